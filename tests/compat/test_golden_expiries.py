"""A checkpoint knows for ever to which duration the times of a state refer that keeps its expiry.

``tests/compat/expiries1`` was written once by ``python tests/compat/test_golden_expiries.py
expiries1`` and is never written again: a change of the form gets a folder of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.state.declaration import State

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("expiries*"))
DAY_MS = 86_400_000
CENTURY_MS = 36_500 * DAY_MS


def states(ttl_ms: int) -> dict[str, State[Any]]:
    """As the processors of Spark declare them."""
    ttl = ps.StateTtl(ttl_ms)
    made: dict[str, State[Any]] = {
        "v": ps.ValueState("struct<n:long>", ttl=ttl),
        "l": ps.ListState("struct<n:long>", ttl=ttl),
        "m": ps.MapState("long", "struct<n:long>", ttl=ttl),
    }
    made = {name: state.referring_to(ttl_ms) for name, state in made.items()}
    return {**made, "n": ps.ValueState("long")}


def make(folder: Path) -> None:
    for n, ttl_ms in enumerate((CENTURY_MS, 1, 2 * CENTURY_MS), 1):
        with ps.open(folder, key="long", states=states(ttl_ms)) as store:
            for key in (n, 9):
                store.set_current_key(key)
                store["v"].update((n,))
                store["l"].add((n,))
                store["m"].put(n, (n,))
                store["n"].update(n)
            store.checkpoint()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ttl_ms", [1, DAY_MS, 2**63 - 1])
def test_it_opens_with_what_has_not_expired(version: str, ttl_ms: int, tmp_path: Path) -> None:
    """Whatever the program asks for now: what was written for a millisecond is gone, alone."""
    shutil.copytree(HERE / version, tmp_path / "store")
    with ps.open(tmp_path / "store", key="long", states=states(ttl_ms)) as store:
        found = {}
        for key in (1, 2, 3, 9):
            store.set_current_key(key)
            found[key] = (
                store["v"].value(),
                [item["n"] for item in store["l"].get()],
                sorted(store["m"].keys()),
            )
        assert found == {
            1: ({"n": 1}, [1], [1]),
            2: (None, [], []),
            3: ({"n": 3}, [3], [3]),
            9: ({"n": 3}, [1, 3], [1, 3]),
        }
        store.checkpoint()
    assert sorted(ps.read_state(tmp_path / "store").column("n").to_pylist()) == [1, 2, 3, 3]
    assert ps.verify(tmp_path / "store").ok
    there = schema(tmp_path / "store")
    assert there == schema(HERE / version)


def test_there_is_a_version() -> None:
    assert VERSIONS == ["expiries1"]
    assert schema(HERE / VERSIONS[0]) == {
        "v": f"{CENTURY_MS} ms: struct<n:long>",
        "l": f"{CENTURY_MS} ms: ListState('struct<n:long>')",
        "m": f"{CENTURY_MS} ms: MapState('long', 'struct<n:long>')",
        "n": "long",
    }


def schema(folder: Path) -> dict[str, str]:
    head = read_head(LocalStorage(folder))
    assert head is not None
    return dict(head.operators[0].state_schema)


if __name__ == "__main__":
    make(HERE / sys.argv[1])
