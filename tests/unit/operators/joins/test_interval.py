"""What the model of joins does not see: sizes, changed intervals, names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pystate.epochs.watermarks import OperatorTime
from pystate.errors import InvalidArgumentError
from pystate.operators.joins.inputs import JoinInput, result_names
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.joins.operator import OUTPUT_ROWS
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.types.state_type import parse_type

LEFT = JoinInput.of("left", ["k"], {"k": "int", "a": "long", "t": "long"}.items(), "t", "one")
RIGHT = JoinInput.of("right", ["k"], {"k": "int", "b": "long", "u": "long"}.items(), "u", "one")


def spec_of(lower: int, upper: int, how: Any = "inner") -> IntervalJoinSpec:
    schema = pa.schema([("k", pa.int32()), *((n, pa.int64()) for n in "atbu")])
    return IntervalJoinSpec(LEFT, RIGHT, lower, upper, how, OutputColumns(schema, "one"))


def backend_of(spec: IntervalJoinSpec) -> KeyedStateBackend:
    long = parse_type("long")
    return KeyedStateBackend.of(OperatorSpec("j", LEFT.key, spec.states(), long, timers=True))


def rows(names: str, count: int, time: int = 5) -> pa.RecordBatch:
    value, at = names
    return pa.record_batch(
        {"k": pa.array([1] * count, pa.int32()), value: range(count), at: [time] * count}
    )


def opened(
    spec: IntervalJoinSpec, backend: KeyedStateBackend, watermark: int | None = None
) -> tuple[IntervalJoin, TaskContext]:
    join, task = IntervalJoin(spec), TaskContext(backend, time=OperatorTime(None, watermark))
    join.open(task)
    return join, task


def test_many_rows_of_one_key_come_in_pieces() -> None:
    spec = spec_of(-10, 10, "full")
    with backend_of(spec) as backend:
        join, _ = opened(spec, backend, 1 << 40)
        assert list(join.process(rows("at", 2000), "left")) == []
        sizes = [batch.num_rows for batch in join.process(rows("bu", 1000), "right")]
        assert sum(sizes) == 2_000_000 and max(sizes) <= OUTPUT_ROWS
        assert list(join.finish()) == [] and len(backend) == 0


def test_a_row_at_the_late_bound_waits_for_one_of_the_same_time() -> None:
    spec = spec_of(0, 0)
    with backend_of(spec) as backend:
        join, task = opened(spec, backend)
        task.time = OperatorTime(5, 5)
        assert list(join.process(rows("at", 1), "left")) == []
        assert [pairs.num_rows for pairs in join.process(rows("bu", 1), "right")] == [1]


def test_another_interval_of_the_same_buckets_keeps_the_state() -> None:
    """Timers of the one before are not those of this one; the rows leave all the same."""
    first, second = spec_of(-10, 10), spec_of(-300, 400)
    assert first.states() == second.states() != spec_of(-1000, 1000).states()
    with backend_of(first) as backend:
        list(opened(first, backend)[0].process(rows("at", 1), "left"))
        backend.seal()
        join, task = opened(second, backend, 1024 + 10)
        list(join.finish())
        found = [batch.to_pylist() for batch in join.process(rows("bu", 1, 405), "right")]
        assert found == [[{"k": 1, "a": 0, "t": 5, "b": 0, "u": 405}]]
        task.time = OperatorTime(None, 1024 + 400)
        list(join.finish())
        assert len(backend) == 0


def test_times_far_away_are_left_out() -> None:
    spec = spec_of(0, 1)
    with backend_of(spec) as backend:
        join, task = opened(spec, backend)
        assert list(join.process(rows("at", 1, -(1 << 63) + 1), "left")) == []
        assert (task.invalid_rows, task.latest["left"]) == (1, None)


def test_names_of_the_result() -> None:
    other = JoinInput.of("right", ["x"], {"x": "int", "A": "long", "u": "long"}.items(), "u", "o")
    assert result_names(LEFT, other, ("", "_r"), "o") == ("k", "a", "t", "A_r", "u")
    with pytest.raises(InvalidArgumentError, match="would be called a: rename"):
        result_names(LEFT, other, None, "o")
    key = JoinInput.of("right", ["x"], {"x": "int", "K": "long", "u": "long"}.items(), "u", "o")
    with pytest.raises(InvalidArgumentError, match="would be called k: rename"):
        result_names(LEFT, key, ("", "_r"), "o")
