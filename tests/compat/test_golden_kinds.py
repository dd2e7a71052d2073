"""Files with lists, maps, aggregates, nested values, timers, namespaces and times to live.

``tests/compat/kinds1`` was written once by ``python tests/compat/test_golden_kinds.py kinds1`` and
is never written again: a change of the format gets a folder of its own, as ``kinds2``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import pystate as ps

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("kinds*"))
NOW = 1_000_000
HOUR = ps.StateTtl(hours=1)


def states() -> dict[str, Any]:
    return {
        "n": ps.ValueState("long", default=0, ttl=HOUR),
        "place": ps.ValueState("struct<x:int,y:double>"),
        "tags": ps.ValueState("map<string,array<int>>"),
        "words": ps.ListState("string"),
        "delays": ps.ListState("double", ttl=HOUR),
        "things": ps.ListState(object),
        "visits": ps.MapState("string", "long", ttl=HOUR),
        "prices": ps.MapState("decimal(20,2)", "struct<a:int>"),
        "worst": ps.ReducingState("double", max),
        "mean": ps.AggregatingState(ps.Mean()),
        "spread": ps.AggregatingState(ps.Variance()),
        "top": ps.AggregatingState(ps.TopK(3), "long"),
        "last": ps.AggregatingState(ps.Last(), "string"),
        "distinct": ps.AggregatingState(ps.ApproxDistinct(), "string"),
    }


def backend() -> ps.KeyedStateBackend:
    made = ps.KeyedStateBackend("string", states=states(), namespace="long", timers=True)
    made.set_clock(processing_time=NOW)
    return made


def first_epoch(b: ps.KeyedStateBackend) -> None:
    for i in range(30):
        b.set_current_namespace(None if i % 3 else i)
        b.set_current_key(None if i == 4 else f"key {i % 20} " + "long " * (i % 7))
        b["n"].update(i)
        b["place"].update({"x": i, "y": i / 4})
        b["tags"].update({"a": [i, None], f"b{i}": []})
        b["words"].add_all(f"word {k} " * (k % 9) for k in range(i * 3))
        b["delays"].add_all(k / 8 for k in range(i))
        b["things"].add({"i": i})
        b["visits"].put_all({f"airport {k}": k * i for k in range(i * 4)})
        b["prices"].put(i * 1000, {"a": i})
        for k in range(i):
            b["worst"].add(k * 1.5)
            b["mean"].add(k)
            b["spread"].add(k * k)
            b["top"].add(k * 7 % 11)
            b["last"].add(f"last {k}")
            b["distinct"].add(f"value {k % 13}")
        b.register_timer("event", i * 1000)
        b.register_timer("processing", -i)


def second_epoch(b: ps.KeyedStateBackend) -> None:
    b.set_current_namespace(None)
    for i in range(1, 20, 2):
        b.set_current_key(f"key {i % 20} " + "long " * (i % 7))
        b["words"].clear()
        b["delays"].add(0.5)
        b["visits"].remove("airport 1")
        b["visits"].put("airport 2", -1)
        b["prices"].clear()
        b["mean"].add(100)
        b.delete_timer("event", i * 1000)
    b.set_current_key("key 2 " + "long " * 2)
    b["words"].update(["only", "these"])
    b.delete(["key 5 " + "long " * 5])


def third_epoch(b: ps.KeyedStateBackend) -> None:
    """Timers go and come: of keys that had one, two, or none."""
    for i in range(30):
        b.set_current_namespace(None if i % 3 else i)
        b.set_current_key(None if i == 4 else f"key {i % 20} " + "long " * (i % 7))
        if i % 2:
            b.delete_timer("event", i * 1000)
        if i % 5 < 3:
            b.delete_timer("processing", -i)
        if i % 7 == 0:
            b.register_timer("event", i * 1000 if i % 2 else 5)


def rows(b: ps.KeyedStateBackend) -> list[Any]:
    found = sorted(
        b.to_arrow().to_pylist(), key=lambda row: (str(row["key"]), str(row["namespace"]))
    )
    timers = []
    for domain in ("event", "processing"):
        due = b.due_timers(domain, 2**62)  # type: ignore[arg-type]
        assert due is not None
        keys = zip(due.keys.to_pylist(), due.keys.namespaces().to_pylist(), strict=True)
        timers += [(domain, *pair) for pair in zip(keys, due.timestamps.tolist(), strict=True)]
    return [found, sorted(timers, key=str)]


def make(folder: Path) -> None:
    folder.mkdir()
    with backend() as b:
        paths = [folder / "1.delta", folder / "2.delta"]
        for path, epoch in zip(paths, (first_epoch, second_epoch), strict=True):
            epoch(b)
            with path.open("wb") as out:
                b.seal().write(out)
    with (folder / "merged.base").open("wb") as out:
        ps.merge_files(paths, out)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("files", [["1.delta", "2.delta"], ["merged.base"]])
def test_files_restore_their_content(version: str, files: list[str]) -> None:
    with backend() as live, backend() as restored:
        first_epoch(live)
        second_epoch(live)
        paths = [HERE / version / file for file in files]
        for path in paths:
            ps.verify_file(path)
        restored.restore(paths)
        assert rows(restored) == rows(live)
        restored.set_clock(processing_time=NOW + HOUR.duration_ms)
        row = restored.to_arrow().to_pylist()[0]
        assert (row["n"], row["delays"], row["visits"]) == (None, [], [])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("files", [["1.delta", "2.delta"], ["merged.base"]])
def test_files_go_on(version: str, files: list[str], tmp_path: Path) -> None:
    paths = [HERE / version / file for file in files]
    delta, merged = tmp_path / "3.delta", tmp_path / "merged.base"
    with backend() as b:
        b.restore(paths)
        third_epoch(b)
        with delta.open("wb") as out:
            b.seal().write(out)
        wanted = rows(b)
    with merged.open("wb") as out:
        ps.merge_files([*paths, delta], out)
    for source in ([*paths, delta], [merged]):
        with backend() as again:
            again.restore(source)
            assert rows(again) == wanted


def test_there_is_each_version() -> None:
    # Of kinds2 a row's record bears a key's only timer.
    assert {"kinds1", "kinds2"} <= set(VERSIONS)


if __name__ == "__main__":
    make(HERE / sys.argv[1])
