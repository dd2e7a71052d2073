"""A store whose rows are on disk: files with guides, a base and deltas.

``tests/compat/disk1`` was written once by ``python -m tests.compat.test_golden_disk disk1`` and is
never written again: a change of the format gets a folder of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.state_files import verify_file

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("disk*"))
STATES: dict[str, Any] = {
    "n": ps.ValueState("long", default=0),
    "text": ps.ValueState("string"),
    "words": ps.ListState("string"),
    "visits": ps.MapState("string", "long"),
    "mean": ps.AggregatingState(ps.Mean()),
    "seen": ps.ValueState("long", ttl=ps.StateTtl(hours=1)),
}
NOW = 1_000_000


def opened(folder: Path, home: Any = "disk") -> ps.Store:
    return ps.open(folder, key="long", states=STATES, home=home, clock=lambda: NOW)


def epoch(store: ps.Store, number: int) -> None:
    for key in range(number * 5, number * 5 + 40):
        store.set_current_key(key)
        store["n"].update(store["n"].value() + number)
        store["text"].update(f"epoch {number} " * (key % 7))
        store["words"].add_all(f"{number}.{i}" for i in range(key % 3))
        store["visits"].put(f"at {number}", key)
        store["mean"].add(float(key + number))
        store["seen"].update(key)
    store.delete([number * 5 + 1])


def rows(store: ps.Store) -> list[Any]:
    return sorted(store.to_arrow().to_pylist(), key=lambda row: int(row["key"]))


def make(folder: Path) -> None:
    with opened(folder) as store:
        for number in range(1, 8):
            epoch(store, number)
            store.checkpoint()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("home", ["disk", "heap"])
def test_a_store_goes_on(version: str, home: str, tmp_path: Path) -> None:
    folder, fresh = tmp_path / "old", tmp_path / "new"
    shutil.copytree(HERE / version, folder)
    make(fresh)
    with opened(folder, home) as store, opened(fresh) as wanted:
        assert store.epoch == wanted.epoch == 7
        for number in (8, 9):
            assert rows(store) == rows(wanted)
            for each in (store, wanted):
                epoch(each, number)
                each.checkpoint()
        assert rows(store) == rows(wanted) and len(store) == len(wanted)


@pytest.mark.parametrize("version", VERSIONS)
def test_its_files_have_guides(version: str) -> None:
    paths = [path for path in (HERE / version / "state").rglob("*") if path.is_file()]
    assert {path.suffix for path in paths} == {".base", ".delta"}
    for path in paths:
        assert verify_file(path).block_bytes == 4096
        assert path.read_bytes()[24] & 8, "what older versions do not know"


def test_there_is_a_version() -> None:
    assert VERSIONS == ["disk1"]


if __name__ == "__main__":
    make(HERE / sys.argv[1])
