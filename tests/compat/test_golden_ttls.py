"""A checkpoint knows how long what is in its states lives, and older ones are as they were.

``tests/compat/ttls1`` was written once by ``python tests/compat/test_golden_ttls.py ttls1`` and is
never written again: a change of the form gets a folder of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest import FORMAT_VERSION, Manifest
from pystate.checkpoint.parts import Parts
from pystate.checkpoint.refs import WITH_TTLS
from pystate.checkpoint.storage import LocalStorage
from pystate.state.declaration import State

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("ttls*"))
TTLS = {
    "v": ps.StateTtl(seconds=1),
    "l": ps.StateTtl(seconds=2, update="read_and_write"),
    "m": ps.StateTtl(seconds=1, visibility="return_if_not_cleaned_up"),
    "é": ps.StateTtl(2**63 - 1),
}


def states(ttls: dict[str, ps.StateTtl]) -> dict[str, State[Any]]:
    return {
        "v": ps.ValueState("long", ttl=ttls.get("v")),
        "l": ps.ListState("long", ttl=ttls.get("l")),
        "m": ps.MapState("long", "string", ttl=ttls.get("m")),
        "é": ps.AggregatingState(ps.Max(), "long", ttl=ttls.get("é")),
        "n": ps.ValueState("long"),
    }


def at(folder: Path, ttls: dict[str, ps.StateTtl], now_ms: int) -> ps.Store:
    """A program that knows what time it is."""
    return ps.open(folder, key="long", states=states(ttls), retained=9, clock=lambda: now_ms)


def make(folder: Path) -> None:
    """Each epoch writes a key at its time; the last program lets nothing expire."""
    for number, ttls in enumerate((TTLS, TTLS, TTLS, {}), 1):
        with at(folder, ttls, 1000 * number) as store:
            store.set_current_key(number)
            store["v"].update(number)
            store["l"].add(number)
            store["m"].put(number, "é")
            store["é"].add(number)
            store._backend._swept = True  # nothing is removed
            store.checkpoint()


def rows(folder: Path, **asked: Any) -> dict[int, dict[str, Any]]:
    return {row.pop("key"): row for row in ps.read_state(folder, **asked).to_pylist()}


def written(number: int, **others: Any) -> dict[str, Any]:
    every = {"v": number, "l": [number], "m": [(number, "é")], "é": number, "n": None}
    return {**every, **others}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_has_expired_is_not_there(version: str) -> None:
    folder = HERE / version
    assert rows(folder, epoch=1) == {1: written(1)}
    assert rows(folder, epoch=2) == {1: written(1, v=None), 2: written(2)}
    assert rows(folder, epoch=3) == {
        1: written(1, v=None, l=[]),
        2: written(2, v=None),
        3: written(3),
    }
    assert rows(folder) == {n: written(n) for n in (1, 2, 3, 4)}
    for epoch in (1, 2, 3, 4):
        kept = rows(folder, epoch=epoch, expired=True)
        assert kept == {n: written(n) for n in range(1, epoch + 1)}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_says_so(version: str) -> None:
    said = ps.state_metadata(HERE / version).to_pylist()
    for epoch in (1, 2, 3, 4):
        ttls = {row["state"]: row["ttl"] for row in said if row["epoch"] == epoch}
        known = TTLS if epoch < 4 else {}
        assert ttls == {name: repr(known[name]) if name in known else None for name in states({})}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_goes_on(version: str, tmp_path: Path) -> None:
    """What the last program let live for ever lives from the next opening on, and from no later."""
    shutil.copytree(HERE / version, tmp_path / "store")
    for number, now_ms in ((5, 5500), (6, 6499), (7, 6500)):
        with at(tmp_path / "store", TTLS, now_ms) as store:
            store.set_current_key(number)
            store["v"].update(number)
            store.checkpoint()
        found = rows(tmp_path / "store", state="v")
        assert found.keys() == ({6, 7} if number == 7 else set(range(1, number + 1)))
    assert ps.verify(tmp_path / "store").ok


OLDER = sorted(str(path.relative_to(HERE)) for path in HERE.rglob("*.manifest"))


@pytest.mark.parametrize("path", OLDER)
def test_a_manifest_is_written_again_as_it_was(path: str) -> None:
    """Repairs and savepoints keep the format that a manifest has."""
    data = (HERE / path).read_bytes()
    root = Path(path).parent.parent
    manifest = Manifest.decode(data, path, Parts(LocalStorage(HERE / root)))
    if manifest.format_version < WITH_TTLS:
        assert not any(operator.ttls for operator in manifest.operators)
    if manifest.format_version > 2:  # those before are written in format 3
        assert manifest.encode() == data


def test_there_is_a_version() -> None:
    assert VERSIONS == ["ttls1"] and FORMAT_VERSION >= WITH_TTLS


if __name__ == "__main__":
    make(HERE / sys.argv[1])
