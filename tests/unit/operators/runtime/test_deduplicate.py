"""What a deduplication keeps, and for how long; tests/model compares it with a list of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.runtime import row_operator
from pystate.operators.runtime.deduplicate import DeduplicateSpec
from pystate.operators.runtime.task import TaskContext

SCHEMA = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "v": pa.int64()})


def batch(*rows: tuple[int | None, int | None]) -> pa.RecordBatch:
    """Rows of (key, milliseconds), numbered."""
    found = [
        {"id": key, "at": None if at is None else 1000 * at, "v": i}
        for i, (key, at) in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)


class Epochs:
    def __init__(self, **options: Any) -> None:
        self.spec = DeduplicateSpec(("id",), **options)
        self.backend = ps.KeyedStateBackend({"id": "long"}, states=self.spec.states(), uid="op")
        self.late: list[int] = []

    def run(
        self, *batches: pa.RecordBatch, now: int = 0, watermark: int | None = None
    ) -> list[int]:
        """The numbers of the rows that an epoch passes on."""
        operator = self.spec.make()
        operator.open(
            TaskContext(
                self.backend,
                processing_time=now,
                time=OperatorTime(watermark, watermark),
                side=lambda tag, rows: self.late.extend(rows["v"].to_pylist()),
            )
        )
        pieces = [piece for rows in batches for piece in operator.process(rows)]
        pieces += operator.finish()
        self.backend.expire()
        if self.backend.dirty:
            self.backend.seal(snapshot=False)
        return [v for piece in pieces for v in piece["v"].to_pylist()]


def test_state_is_that_of_the_open_interval() -> None:
    operator = Epochs(within_ms=10, event_time="at")
    sizes = []
    for epoch in range(50):
        begin = 100 * epoch
        rows = batch(*((key, begin + key % 100) for key in range(100 * epoch, 100 * epoch + 100)))
        assert len(operator.run(rows, watermark=begin)) == 100
        sizes.append(operator.backend.stats().keys)
    # Besides those of the last epoch there are those that were not looked at yet.
    assert max(sizes) <= 300


def test_a_changed_clock_forgets_nothing_early() -> None:
    operator = Epochs(within_ms=10)
    assert operator.run(batch((1, None)), now=100) == [0]
    assert operator.run(batch((1, None)), now=109) == []
    # The clock was wrong, and went back.
    assert operator.run(batch((1, None)), now=50) == []
    assert operator.run(batch((1, None)), now=110) == [0]


def test_times_at_the_ends_of_the_range() -> None:
    schema = pa.schema({"id": pa.int64(), "at": pa.int64(), "v": pa.int64()})
    ends = [-(2**63), 2**63 - 1, 0, -(2**63), 2**63 - 1]
    rows = pa.record_batch([pa.array([1] * 5), pa.array(ends), pa.array(range(5))], schema=schema)
    operator = Epochs(within_ms=2**61, event_time="at", ordered=True)
    # Distances of the others do not fit 64 bits.
    assert operator.run(rows) == [2]
    assert operator.run(rows, watermark=-(2**63)) == []


def test_held_rows_are_reduced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_operator, "_HELD_ROWS", 5)
    operator = Epochs(keep="last", event_time="at")
    pieces = [batch(*((key, 10 * i + key) for key in range(3))) for i in (1, 5, 2, 4, 3, 0)]
    marked = [
        p.set_column(2, "v", pa.array([100 * i + k for k in range(3)]))
        for i, p in enumerate(pieces)
    ]
    held = []
    add = row_operator.HeldRows.add

    def noted(rows: row_operator.HeldRows, more: pa.Table) -> None:
        add(rows, more)
        held.append(rows._rows)

    monkeypatch.setattr(row_operator.HeldRows, "add", noted)
    assert sorted(operator.run(*marked)) == [100, 101, 102]
    assert held == [3, 3, 6, 9, 3, 6]


def test_a_later_row_of_the_same_time_is_the_last_one() -> None:
    operator = Epochs(keep="last", event_time="at")
    for time, expected in ((5, [0]), (5, [0]), (4, [])):
        assert operator.run(batch((1, time))) == expected


def test_late_rows() -> None:
    rows = batch((1, 5), (2, 20), (1, None))
    passed = {"process": [0, 1, 2], "drop": [1, 2], "side": [1, 2]}
    for late, expected in passed.items():
        operator = Epochs(within_ms=100, event_time="at", late=late)
        assert operator.run(rows, watermark=10) == expected
        assert operator.late == ([0] if late == "side" else [])


def test_what_was_seen_without_a_duration_is_remembered_for_ever() -> None:
    operator = Epochs(event_time="at")
    assert operator.run(batch((1, 50), (1, 40), (2, None), (3, None), (3, 7))) == [1, 2, 4]
    assert operator.run(batch((1, 10**9), (2, 1), (3, None)), watermark=10**8) == []


def test_repeated_rows_write_nothing() -> None:
    rows = batch(*((key, key) for key in range(100)))
    specs: Sequence[dict[str, Any]] = [
        {},
        {"within_ms": 1000},
        {"within_ms": 1000, "event_time": "at"},
    ]
    for options in specs:
        operator = Epochs(**options)
        assert len(operator.run(rows)) == 100
        task = operator.spec.make()
        time = OperatorTime(50, 50)
        task.open(TaskContext(operator.backend, processing_time=500, time=time))
        assert not list(task.process(rows))
        assert not operator.backend.dirty


def test_what_the_watermark_has_passed_is_forgotten_to_the_millisecond() -> None:
    # Both are stored in one batch, so that their times to live end together, after that of the
    # second one.
    for watermark, expected in ((9, []), (10, [0])):
        operator = Epochs(within_ms=10, event_time="at")
        assert operator.run(batch((1, 0), (1, 20), (2, 0), (3, 20))) == [0, 1, 2, 3]
        assert operator.run(batch((1, 5)), watermark=watermark) == expected
        assert operator.run(batch((2, 5)), watermark=watermark) == expected
