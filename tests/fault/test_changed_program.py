"""A program that changes its declarations, and is killed as it starts.

Whatever the old program left, and wherever the new one ended: the next one goes on as if nothing
had been. Until the new program has published an epoch, the old one can go on, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import RangeReport
from pystate.errors import SchemaError
from pystate.tables.host import choose_home
from tests.drawn import stride
from tests.peer import Peer
from tests.program import QUERY, Program, state_in
from tests.work import Cut, batch, cuts

KEYS = range(12)
OLD = {
    "n": ps.ValueState("int", default=0),
    "place": ps.ValueState("struct<a:int,b:string>"),
    "seen": ps.ListState("struct<x:int>"),
    "gone": ps.ValueState("long"),
}
NEW = {
    "seen": ps.ListState("struct<y:array<int>,x:long>"),
    "place": ps.ValueState("struct<c:string,a:long>"),
    "n": ps.ValueState("long", default=0),
    "more": ps.ValueState("double"),
}
Rows = dict[int, dict[str, Any]]


def values(states: Mapping[str, Any], number: int, key: int) -> dict[str, Any]:
    """What an epoch writes for a key; `seen` is added to."""
    if states is OLD:
        place: dict[str, Any] = {"a": number * 100 + key, "b": f"b{key}"}
        return {"n": number, "place": place, "seen": {"x": number}, "gone": 1}
    place = {"c": f"c{number}", "a": 2**40 + key}
    return {"n": 2**33 + number, "place": place, "seen": {"y": [key], "x": number}, "more": 0.5}


def keys_of(number: int) -> list[int]:
    """Each epoch writes other keys, so that some are only in files of the old program."""
    return [key for key in KEYS if key % 3 != number % 3]


def rows_of(states: Mapping[str, Any], number: int) -> Rows:
    return {key: values(states, number, key) for key in keys_of(number)}


def expected(epochs: Sequence[Mapping[str, Any]]) -> Rows:
    """What there is after some epochs, each by a program that declared these states."""
    rows: Rows = {}
    for number, states in enumerate(epochs):
        for key in keys_of(number):
            now = values(states, number, key)
            row = rows.setdefault(key, {"seen": []})
            row.update({**now, "seen": [*row["seen"], now["seen"]]})
    if NEW not in epochs:
        return rows
    for row in rows.values():
        row["place"] = {"c": row["place"].get("c"), "a": row["place"]["a"]}
        row["seen"] = [{"y": item.get("y"), "x": item["x"]} for item in row["seen"]]
        row.pop("gone", None)
        row.setdefault("more", None)
    return rows


def begin(root: Path, epochs: int = 3) -> None:
    Program(root, OLD, 2).run(0, *(rows_of(OLD, number) for number in range(epochs)))


@pytest.mark.drawn
@pytest.mark.parametrize("back", [False, True], ids=["on", "back and on"])
def test_a_new_program_is_killed_at_any_step_of_its_first_epoch(tmp_path: Path, back: bool) -> None:
    begin(tmp_path / "old")
    assert state_in(tmp_path / "old") == expected([OLD] * 3)
    ends, every = {3: 0, 4: 0}, stride(3)

    def start(storage: Cut) -> None:
        root = Path(storage.uri)
        shutil.copytree(tmp_path / "old", root)
        program = Program(root, NEW, 3)
        program.storage = storage
        program.run(3, rows_of(NEW, 3))

    for number, cut in enumerate(cuts(tmp_path / "cut", start, every)):
        root = tmp_path / "cut" / str(number)
        head = read_head(LocalStorage(root))
        assert head is not None
        published = head.epoch
        ends[published] += 1
        epochs: list[Mapping[str, Any]] = [OLD, OLD, OLD, NEW]
        if back and published == 3:
            Program(root, OLD, 2).run(3, rows_of(OLD, 3))
            epochs[3] = OLD
            assert state_in(root) == expected(epochs)
        elif back:
            with pytest.raises(SchemaError, match="'n': stored as long, declared as int"):
                Program(root, OLD, 2).run(4, rows_of(OLD, 4))
        Program(root, NEW, 3).run(3, rows_of(NEW, 3), rows_of(NEW, 4))
        assert state_in(root) == expected([*epochs, NEW])
        assert ps.verify(root).ok
        if not cut:
            assert published == 4
    assert ends[3] > 10 // every and ends[4] >= 2


@pytest.mark.parametrize("steps", [1, 2, 3], ids=["attached", "written", "sealed"])
def test_a_worker_is_killed_while_it_holds_the_new_programs_table(
    tmp_path: Path, steps: int
) -> None:
    """In a folder that another one takes over."""
    root, home = tmp_path / "ck", choose_home(bytes(32), shm=str(tmp_path), least_bytes=0)
    Program(root, OLD, 1).run(0, rows_of(OLD, 0), rows_of(OLD, 1))

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        [state] = program.declare(epoch)
        rows = rows_of(NEW, 2)
        calls = (("attach", state), ("put", rows), ("seal", epoch.number))
        options = {"states": NEW, "allow_unclaimed_state": True}
        killed, worker = Peer(), Peer()
        try:
            for peer, end in ((killed, steps), (worker, 3)):
                peer.call("configure", str(root), home, options)
                done = [peer.call(*call) for call in calls[:end]]
                hows.append(done[0][0])
                if peer is killed:
                    peer.kill()
            ref = done[-1]
        finally:
            worker.stop()
        report = RangeReport("op", 0, epoch.evaluation_id, ref.id, state.id, ref)
        assert epoch.report(report)
        return ("out",)

    hows: list[str] = []
    program = Program(root, NEW, 1)
    with program.coordinator() as coordinator:
        coordinator.run(evaluate, **batch(2, QUERY))
    assert hows == ["restored", "undone" if steps == 3 else "current"]
    assert state_in(root) == expected([OLD, OLD, NEW])
