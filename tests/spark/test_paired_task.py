"""A range of two operators in one task, without Spark: keyed rows and rules, each with a table.

What fails leaves neither, and both tables free for the next task.
"""

from __future__ import annotations

import dataclasses
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.begin_marks import BeginMarks
from pystate.checkpoint.refs import empty_range
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.range_report import RangeReport, advance_range
from pystate.errors import EvaluationError, NoSpaceError, TableMovedError
from pystate.operators.functions.binding import broadcast_states, operator_spec
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import BroadcastInput, FunctionSpec
from pystate.operators.runtime.instance_state import instance_spec
from pystate.operators.runtime.output import OutputColumns
from pystate.spark.tasks.arrivals import BroadcastRows
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.spark.tasks.worker import ArrowOperator
from pystate.state.operator_state import INSTANCE_SCHEMA
from pystate.tables.options import TableOptions
from pystate.types.keys import parse_key

PARALLELISM = 2
COLUMNS = ["k", "__pystate_target", "__pystate_rule_0", "__pystate_range"]
OUTPUT = OutputColumns(pa.schema([("k", pa.int64()), ("n", pa.int64())]), "operator 'counts'")


class Counts(ps.KeyedBroadcastProcessFunction):
    """Counts by the steps that the rules say."""

    steps = ps.BroadcastState("long", "long")
    n = ps.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        if row["step"] < 0:
            raise NoSpaceError(28, "no space")
        self.steps.put(0, row["step"])

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        if key == BAD:
            raise ValueError("a bad row")
        self.n.update(self.n.value() + self.steps.get(0, 1))
        yield key, self.n.value()


def keys_of(index: int, count: int) -> list[int]:
    """Keys that belong to a range."""
    hashes = ps.hash_keys([pa.array(range(1000), pa.int64())])
    owners = [ps.range_of(ps.key_group(int(h), 128), 128, PARALLELISM) for h in hashes]
    return [key for key, owner in enumerate(owners) if owner == index][:count]


#: A key that the function fails for.
BAD = keys_of(0, 9)[-1]


class World:
    """The driver's half: epochs on one checkpoint."""

    def __init__(self, folder: Path, home: str) -> None:
        self.storage = LocalStorage(folder)
        self.home = home
        self.epoch = 0
        self.found: list[RangeReport] = []
        self.ranges = {
            uid: [empty_range(i, 128, PARALLELISM) for i in range(PARALLELISM)]
            for uid in ("counts", "steps")
        }

    def add(self, reports: list[RangeReport]) -> None:
        """Take a task's report; the storage holds what it names."""
        for report in reports:
            # Whoever had the table before has released it.
            assert report.metrics.get("attached") != "replica"
            if report.file is not None:
                assert self.storage.exists(report.file.path)
        self.found += reports

    def run(self, index: int, *batches: pa.RecordBatch, **more: Any) -> list[tuple[Any, ...]]:
        """Run one range's task as the only one of an epoch, and publish it.

        `more` is what the plan of the rules has.
        """
        self.epoch += 1
        self.found = []
        marks = BeginMarks(self.storage, self.epoch, "e" * 32)
        marks.open()
        key, function = parse_key({"k": "long"}), Counts()
        spec = FunctionSpec(
            function,
            key=("k",),
            columns=("k",),
            output=OUTPUT,
            broadcast=BroadcastInput(("step",)),
        )
        states = broadcast_states(function)
        plan = OperatorPlan(
            operator=operator_spec(function, "counts", key),
            options=TableOptions(home=self.home, lock_timeout_ms=100),
            key_schema=(("k", "long"),),
            ranges=tuple(self.ranges["counts"]),
            storage=self.storage,
            application=bytes(32),
            epoch=self.epoch,
            evaluation_id="e" * 32,
            query=7,
            processing_time_ms=0,
            time=None,
            event_time=False,
            drain=False,
            side_folders={},
            term=1,
            reports=self,  # type: ignore[arg-type]
            marks=marks,
        )
        beside = dataclasses.replace(
            plan,
            operator=instance_spec("steps", states),
            key_schema=INSTANCE_SCHEMA,
            ranges=tuple(self.ranges["steps"]),
            query=8,
            **more,
        )

        make = partial(FunctionOperator, spec, broadcast=states)
        arrivals = BroadcastRows(1, ("step",))
        operator = ArrowOperator(plan, make, COLUMNS[:-1], arrivals, beside=beside)
        out = [tuple(row.values()) for b in operator(iter(batches)) for row in b.to_pylist()]
        for report in self.found:
            state = self.ranges[report.uid][report.index]
            self.ranges[report.uid][report.index] = advance_range(state, report, closed=True)
        return out


@pytest.fixture(params=["heap", "folder"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    home = "heap" if request.param == "heap" else str(tmp_path / "home")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    # Without it the janitor takes the checkpoint for deleted, and frees the tables.
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "job.json").touch()
    return World(tmp_path / "checkpoint", home)


def batch(*rows: tuple[int | None, int | None, int | None, int | None]) -> pa.RecordBatch:
    """Routed rows: a key; or a range with its copy of a rule; or a marker."""
    types = [pa.int64(), pa.int32(), pa.int64(), pa.int32()]
    columns = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.record_batch(columns, names=COLUMNS)


def of_key(key: int) -> tuple[Any, ...]:
    return key, None, None, None


def of_rule(index: int, step: int) -> tuple[Any, ...]:
    return None, index, step, None


def marker(index: int) -> tuple[Any, ...]:
    return None, None, None, index


def metrics(world: World) -> dict[str, Any]:
    return {report.uid: report.metrics["rows_in"] for report in world.found}


def test_both_ranges_report(world: World) -> None:
    one, two = keys_of(1, 2)
    rules, rows = batch(of_rule(1, 5), of_rule(1, 10)), batch(of_key(one), of_key(two), marker(1))
    assert world.run(1, rules, rows) == [(one, 10), (two, 10)]
    assert [(report.uid, report.index) for report in world.found] == [("steps", 1), ("counts", 1)]
    assert all(report.file is not None for report in world.found)
    assert metrics(world) == {"counts": 2, "steps": 2}
    # In one batch, and in any order; without rules the table of the rules stays as it is.
    assert world.run(
        1, batch(of_key(one), of_rule(1, 1), of_rule(1, 2), of_key(one), marker(1))
    ) == [(one, 20), (one, 22)]
    before = world.ranges["steps"][1]
    assert world.run(1, batch(of_key(two), marker(1))) == [(two, 12)]
    assert world.ranges["steps"][1].id == before.id
    assert world.found[0].file is None


def test_a_range_without_rows_has_the_rules(world: World) -> None:
    assert world.run(0, batch(of_rule(0, 3), marker(0))) == []
    assert metrics(world) == {"counts": 0, "steps": 1}
    [key] = keys_of(0, 1)
    assert world.run(0, batch(of_key(key), marker(0))) == [(key, 3)]
    assert world.run(0, batch(marker(0))) == []
    assert [report.file for report in world.found] == [None, None]


def test_a_range_without_rows_has_work_where_its_rules_have(world: World) -> None:
    """All of them have where their number changes, and each gets a copy of the rules."""
    for works in (False, True):
        assert world.run(0, batch(marker(0)), every_epoch=works) == []
        assert ["attached" in report.metrics for report in world.found] == [works] * 2


def test_a_task_that_fails_leaves_both_tables_as_they_were(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    [key] = keys_of(0, 1)
    first = batch(of_rule(0, 3), of_key(key), marker(0))
    assert world.run(0, first) == [(key, 3)]

    def fails(match: str, *batches: pa.RecordBatch) -> None:
        with pytest.raises(Exception, match=match):
            world.run(0, *batches)
        assert world.found == []
        assert world.run(0, batch(of_key(key), marker(0))) == [(key, expected.pop(0))]

    expected = [6, 9, 12, 15, 18]
    fails("a bad row", batch(of_rule(0, 7), of_key(key), of_key(BAD), marker(0)))
    fails("no marker", batch(of_rule(0, 7), of_key(key)))
    fails("broadcast rows of range 1", batch(of_rule(0, 7), of_rule(1, 7), marker(0)))
    # Both tables are sealed when one of the files cannot be written.
    create = LocalStorage.create
    for uid in ("steps", "counts"):
        refused = threading.Event()

        def refuse(
            storage: LocalStorage,
            path: str,
            uid: str = uid,
            refused: threading.Event = refused,
            **options: Any,
        ) -> Any:
            if uid in path:
                refused.set()
                raise OSError("the disk is full")
            # The task has to wait for the file that is written.
            assert refused.wait(60)
            return create(storage, path, **options)

        monkeypatch.setattr(LocalStorage, "create", refuse)
        with pytest.raises(OSError, match="the disk is full"):
            world.run(0, batch(of_rule(0, 7), of_key(key), marker(0)))
        assert not [each for each in threading.enumerate() if "pystate-delta" in each.name]
        assert world.found == []
        monkeypatch.setattr(LocalStorage, "create", create)
        assert world.run(0, batch(of_key(key), marker(0))) == [(key, expected.pop(0))]


def test_a_partition_of_two_ranges_is_refused(world: World) -> None:
    with pytest.raises(EvaluationError, match="markers of ranges 0 and 1"):
        world.run(0, batch(of_rule(0, 1), marker(0), marker(1)))


@pytest.mark.parametrize("world", ["folder"], indirect=True)
@pytest.mark.parametrize("larger", ["counts", "steps", "counts|steps"])
def test_the_larger_table_makes_room(
    world: World, larger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "|" not in larger:
        monkeypatch.setattr(
            "pystate.spark.tasks.paired_task._size", lambda task: task.plan.operator.uid == larger
        )
    [key] = keys_of(0, 1)
    assert world.run(0, batch(of_rule(0, 3), of_key(key), marker(0))) == [(key, 3)]
    with pytest.raises(TableMovedError, match=f"operator '({larger})'"):
        world.run(0, batch(of_rule(0, -1), marker(0)))
    assert world.run(0, batch(of_key(key), marker(0))) == [(key, 6)]
