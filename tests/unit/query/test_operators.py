"""Operators as jobs have them: namespaces, timers, several ranges; and what epochs contain."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest import Manifest, QueryProgress, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import mark_retired
from pystate.checkpoint.refs import RangeState, restrict
from pystate.checkpoint.run_keys import RunKeys
from pystate.checkpoint.source_position import METADATA, encode_query_id
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, InvalidArgumentError, NotReachedError
from pystate.processor import key_files
from tests.folder_objects import FolderObjects
from tests.readers import Connect
from tests.unit.processor.changes import keyed
from tests.unit.processor.test_key_files import KEYS, fill, sorted_rows

RANGES = ((0, 40), (41, 99), (100, 127))


def in_ranges(storage: Any) -> None:
    """Name the files of an epoch in several ranges, as after a change of parallelism."""
    manifest = read_manifest(storage, manifest_path(6))
    [operator] = manifest.operators
    [state] = operator.ranges
    ranges = tuple(
        RangeState(i, *bounds, state.id, deltas=tuple(restrict(d, bounds) for d in state.deltas))
        for i, bounds in enumerate(RANGES)
    )
    operator = replace(operator, ranges=ranges, parallelism=len(ranges))
    storage.replace(manifest.path, replace(manifest, operators=(operator,)).encode())


def listed(rows: Any) -> list[str]:
    return sorted_rows(rows.read_all())


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("seed", [0, 3])
def test_an_operator_of_several_ranges(
    tmp_path: Path, seed: int, namespace: str | None, objects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "ck", seed, namespace)
    in_ranges(LocalStorage(tmp_path / "ck"))
    draw = random.Random(seed)
    whole = ps.read_state(tmp_path / "ck")
    timers = ps.read_state(tmp_path / "ck", timers=True).to_pylist()
    location = str(tmp_path / "ck")
    if objects:
        # Where the copies of objects are.
        monkeypatch.setattr(key_files, "own_folder", lambda kind: str(tmp_path / "local" / kind))
        monkeypatch.setattr(
            "pystate.query.reader.storage_at", lambda *_: FolderObjects(tmp_path / "ck")
        )
        location = "s3://bucket/ck"
    with ps.connect(location) as reader:
        operator = reader["op"]
        assert operator.schema == whole.schema
        assert listed(operator.scan()) == sorted_rows(whole)
        asked = [keyed(k) for k in draw.choices(range(2 * KEYS), k=50)]
        rows = operator.get(asked).to_pylist()
        by_key = {key: [r for r in whole.to_pylist() if r["k"] == key] for key in asked}
        if namespace is None:
            assert [row["k"] for row in rows] == asked
            there = [row for row in rows if by_key[row["k"]]]
            assert there == [by_key[key][0] for key in asked if by_key[key]]
        else:
            assert sorted(map(str, rows)) == sorted(str(r) for k in asked for r in by_key[k])
            assert [row["k"] for row in rows] == [key for key in asked for _ in by_key[key]]
            spaces = [draw.choice([None, 1, 2, 30]) for _ in asked]
            found = operator.get(asked, namespaces=spaces).to_pylist()
            pairs = [(row["k"], row["namespace"]) for row in found]
            assert pairs == list(zip(asked, spaces, strict=True))
        for domain in (None, "event", "processing"):
            for until in (None, 300):
                assert listed(operator.timers(domain=domain, until=until)) == sorted(
                    str(timer)
                    for timer in timers
                    if domain in (None, timer["timer_domain"])
                    and (until is None or timer["timer_ms"] <= until)
                )
        for row in whole.to_pylist()[:10]:
            space = {} if namespace is None else {"namespace": row["namespace"]}
            found = operator.entries("map", row["k"], **space).read_all().to_pylist()
            assert [tuple(entry.values()) for entry in found] == sorted(row["map"])
            found = operator.entries("list", row["k"], from_=1, **space).read_all().to_pylist()
            assert [entry["list"] for entry in found] == row["list"][1:]


def publish(storage: LocalStorage, epoch: int, **more: Any) -> Manifest:
    manifest = Manifest(epoch, epoch - 1, "e", "r", 1, "h", 128, 0, 0, "pystate test", (), **more)
    storage.publish(manifest.path, manifest.encode())
    return manifest


def test_a_run_is_waited_for(tmp_path: Path, connect: Connect) -> None:
    storage = LocalStorage(tmp_path)
    first = publish(storage, 1, run_key="load-1")
    publish(storage, 2)
    mark_retired(storage, RunKeys(storage), 1, first)
    storage.delete(first.path)
    with connect(tmp_path) as reader:
        assert reader.wait_for(position="load-1") == 2
        with pytest.raises(NotReachedError, match="run 'load-3' was not published within 1 ms"):
            reader.wait_for(position="load-3", timeout=1)
        began = threading.Event()

        def wait() -> None:
            began.set()
            found.append(reader.wait_for(position="load-3", timeout="60 seconds"))

        found: list[int] = []
        waiting = threading.Thread(target=wait)
        waiting.start()
        began.wait()
        publish(storage, 3, run_key="load-3")
        waiting.join()
        assert found == [3]


def test_offsets_and_batches_are_waited_for(tmp_path: Path, connect: Connect) -> None:
    storage, lines = LocalStorage(tmp_path), ["v1", json.dumps({"batchWatermarkMs": 0})]
    storage.publish(METADATA, encode_query_id("q"))

    def batch(number: int, *offsets: Any) -> None:
        text = "\n".join([*lines, *("-" if o is None else json.dumps(o) for o in offsets)])
        storage.publish(f"spark/offsets/{number}", text.encode())
        progress = (QueryProgress("q", number, "x", number + 1),)
        publish(storage, number + 1, queries=progress)

    batch(0, {"topic": {"0": 5}}, None)
    with connect(tmp_path) as reader:
        assert reader.wait_for(position=("q", 0)) == 1
        assert reader.wait_for(position={"id": "q", "batchId": 0, "sources": []}) == 1
        assert reader.wait_for(position=[{"topic": {"0": 5}}, None]) == 1
        for position in (
            [{"topic": {"0": 6}}, None],
            [{"topic": {"1": 0}}, None],
            [None, 7],
            ("q", 1),
            ("other", 0),
        ):
            with pytest.raises(NotReachedError, match="the newest epoch is 1"):
                reader.wait_for(position=position, timeout=1)
        batch(1, {"topic": {"0": 6, "1": 1}}, 7)
        assert reader.wait_for(position=[{"topic": {"0": 6, "1": 0}}, 7]) == 2
        with pytest.raises(InvalidArgumentError, match="position has 1 sources, and the stream 2"):
            reader.wait_for(position={"topic": {"0": 6}})
        with pytest.raises(InvalidArgumentError, match=r'"x".* cannot be compared with 6'):
            reader.wait_for(position=[{"topic": {"0": "x"}}, None])
        storage.delete("spark/offsets/1")
        with pytest.raises(CheckpointError, match="spark/offsets/1 is gone"):
            reader.wait_for(position=[None, 7])


def test_closing_ends_what_waits(tmp_path: Path, connect: Connect) -> None:
    publish(LocalStorage(tmp_path), 1)
    reader, said = connect(tmp_path), []

    def wait() -> None:
        try:
            reader.wait_for(epoch=2, timeout="60 seconds")
        except ps.PystateError as error:
            said.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    reader.close()
    waiting.join()
    assert "is closed: connect again" in said[0]
