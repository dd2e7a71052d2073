"""Files with entries of maps that have no value.

``tests/compat/nulls1`` was written once by ``python -m tests.compat.test_golden_nulls nulls1`` and
is never written again: a change of the format gets a folder of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import pystate as ps

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("nulls*"))
NOW = 1_000_000
HOUR = ps.StateTtl(hours=1)
FILES = [["1.delta", "2.delta"], ["merged.base"]]


def states() -> dict[str, Any]:
    return {
        "n": ps.ValueState("long"),
        "words": ps.ListState("string"),
        "visits": ps.MapState("string", "long", ttl=HOUR),
        "names": ps.MapState("long", "string"),
        "prices": ps.MapState("decimal(20,2)", "struct<a:int>"),
        "things": ps.MapState("int", object),
    }


def backend() -> ps.KeyedStateBackend:
    made = ps.KeyedStateBackend("string", states=states())
    made.set_clock(processing_time=NOW)
    return made


def first_epoch(b: ps.KeyedStateBackend) -> None:
    for i in range(20):
        b.set_current_key(f"key {i}")
        if i % 3:
            b["n"].update(i)
        b["words"].add_all(f"word {k}" for k in range(i % 4))
        b["visits"].put_all({f"airport {k}": k if k % 4 else None for k in range(i * 4)})
        b["names"].put_all({k: None if k % 5 == i % 5 else "long " * k for k in range(30)})
        b["prices"].put(i * 1000, None if i % 2 else {"a": None})
        b["things"].put_all({0: None, 1: [i]})


def second_epoch(b: ps.KeyedStateBackend) -> None:
    b.set_clock(processing_time=NOW + 1000)
    for i in range(0, 20, 2):
        b.set_current_key(f"key {i}")
        b["visits"].put_all({"airport 0": 7, "airport 1": None, "airport 2": None})
        b["visits"].remove("airport 4")
        b["names"].put_all({3: None, 4: "", 5: None})
        b["prices"].put(i * 1000, None)
        b["things"].put(1, None)
    b.delete(["key 5"])


def rows(b: ps.KeyedStateBackend) -> list[Any]:
    return sorted(b.to_arrow().to_pylist(), key=lambda row: str(row["key"]))


def make(folder: Path) -> None:
    folder.mkdir()
    paths = [folder / "1.delta", folder / "2.delta"]
    with backend() as b:
        for path, epoch in zip(paths, (first_epoch, second_epoch), strict=True):
            epoch(b)
            with path.open("wb") as out:
                b.seal().write(out)
    with (folder / "merged.base").open("wb") as out:
        ps.merge_files(paths, out)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("files", FILES)
def test_files_restore_their_content(version: str, files: list[str]) -> None:
    paths = [HERE / version / file for file in files]
    with backend() as live, backend() as restored:
        first_epoch(live)
        second_epoch(live)
        for path in paths:
            ps.verify_file(path)
        restored.restore(paths)
        restored.set_clock(processing_time=NOW + 1000)
        assert rows(restored) == rows(live)
        restored.set_current_key("key 6")
        assert restored["visits"].contains("airport 2")
        assert restored["visits"].get("airport 2", 5) is None
        restored.set_clock(processing_time=NOW + HOUR.duration_ms)
        assert sorted(restored["visits"].keys()) == ["airport 0", "airport 1", "airport 2"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("files", FILES)
def test_files_go_on(version: str, files: list[str], tmp_path: Path) -> None:
    paths = [HERE / version / file for file in files]
    delta, merged = tmp_path / "3.delta", tmp_path / "merged.base"
    with backend() as b:
        b.restore(paths)
        for i in range(20):
            b.set_current_key(f"key {i}")
            b["names"].put_all({3: "x", 7: None})
            b["things"].remove(0)
        with delta.open("wb") as out:
            b.seal().write(out)
        wanted = rows(b)
    with merged.open("wb") as out:
        ps.merge_files([*paths, delta], out)
    for source in ([*paths, delta], [merged]):
        with backend() as again:
            again.restore(source)
            again.set_clock(processing_time=NOW)
            assert rows(again) == wanted


def test_there_is_a_version() -> None:
    assert VERSIONS == ["nulls1"]


if __name__ == "__main__":
    make(HERE / sys.argv[1])
