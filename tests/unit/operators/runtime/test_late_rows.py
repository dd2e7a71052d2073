"""Which rows are late, and where those of two inputs go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.late_rows import LateInputs, LateRows, SideName

LEFT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("same", pa.int32())])
RIGHT = pa.schema([("key", pa.string()), ("same", pa.int32())])
BOTH: Any = {"left": LEFT, "right": RIGHT}


def test_rows_have_the_columns_of_their_tag() -> None:
    rows = pa.record_batch({"key": ["a"], "same": [1]})
    both = LateInputs.of("late", BOTH, "test")
    written: list[tuple[str, pa.RecordBatch]] = []

    def write(late: LateInputs, side: SideName, rows: pa.RecordBatch) -> pa.RecordBatch:
        writer = late.writer(side, lambda *piece: written.append(piece))
        assert writer is not None
        writer(rows)
        return written[-1][1]

    piece = write(both, "right", rows)
    assert written[-1][0] == "late" and piece.schema.names == ["k", "v", "same", "key"]
    assert piece.to_pylist() == [{"k": None, "v": None, "same": 1, "key": "a"}]
    assert (
        piece.schema
        == write(both, "left", pa.record_batch({"k": ["x"], "v": [1], "same": [2]})).schema
    )
    one = LateInputs.of({"right": "r"}, BOTH, "test")
    assert one.schemas == {"r": RIGHT} and one.writer("left", lambda *_: None) is None
    assert one.writer("right", None) is None
    assert write(one, "right", rows).schema == RIGHT
    assert dict(LateInputs.of({"left": "drop"}, BOTH, "test", processes=True).words) == {
        "left": "drop",
        "right": "process",
    }


@pytest.mark.parametrize(
    ("late", "message"),
    [
        ("process", "'drop'ped"),
        ({"left": "process"}, "'drop'ped"),
        ({"lefft": "x"}, "left"),
        (7, "late is a string"),
        ({"left": None}, "late is a string"),
        ({"left": "aside"}, "a tag of their own"),
    ],
)
def test_what_cannot_be(late: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        LateInputs.of(late, BOTH, "test", sides=["aside"])


@pytest.mark.parametrize("field", [("v", pa.string()), ("V", pa.int64())])
def test_columns_that_one_tag_cannot_have(field: Any) -> None:
    inputs: Any = {"left": LEFT, "right": pa.schema([field])}
    with pytest.raises(InvalidArgumentError, match="a tag of its own"):
        LateInputs.of("late", inputs, "test")
    assert len(LateInputs.of({"left": "a", "right": "b"}, inputs, "test").schemas) == 2


@pytest.mark.parametrize(("word", "passed"), [("process", [5, 10, None]), ("tag", [10, None])])
def test_late_rows_are_counted_and_taken_out(word: str, passed: list[int | None]) -> None:
    noted: list[tuple[int | None, int]] = []
    written: list[pa.RecordBatch] = []
    times = pa.array([5, 10, None], pa.int64())
    rows = pa.record_batch({"at": times})
    late = LateRows(10, lambda *each: noted.append(each), word, written.append)
    rest, left = late.without(rows, times)
    assert rest.column("at").to_pylist() == left.to_pylist() == passed
    assert noted == [(10, 1)] and late.count(times) == 1
    assert [batch.to_pylist() for batch in written] == ([] if word == "process" else [[{"at": 5}]])


def test_without_a_bound_nothing_is_late() -> None:
    noted: list[tuple[int | None, int]] = []
    late = LateRows(None, lambda *each: noted.append(each), "drop")
    times = pa.array([5, None], pa.int64())
    assert late.among(times) is None and noted == [(5, 0)] and late.count(times) == 0


def test_rows_whose_windows_are_over_are_counted_and_written() -> None:
    rows = pa.record_batch({"n": [1, 2, 3, 4]})
    ends = np.array([10, 11, 19, 25], np.int64)
    written: list[Any] = []
    noted: list[tuple[int | None, int]] = []
    late = LateRows(20, lambda *note: noted.append(note), write=lambda p: written.append(p["n"]))

    def left(lateness: int, count: Any = len) -> tuple[list[Any], Any]:
        rest, kept = late.without_past(rows, ends, lateness, count)
        return rest["n"].to_pylist(), None if kept is None else kept.tolist()

    assert left(11) == ([1, 2, 3, 4], None) and not written
    assert left(10) == ([2, 3, 4], [False, True, True, True])
    assert left(0, lambda piece: 2 * len(piece)) == ([4], [False, False, False, True])
    assert late.past_rows == 1 + 6 and [p.to_pylist() for p in written] == [[1], [1, 2, 3]]
    assert not noted
    assert LateRows(None, lambda *note: None).without_past(rows, ends)[1] is None
    late.take_out(rows)
    assert noted == [(None, 4)] and written[-1].to_pylist() == [1, 2, 3, 4]
