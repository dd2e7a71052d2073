"""Event time: every kind of column becomes milliseconds since 1970."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import WrongTypeError
from pystate.operators.runtime.event_time import event_times, instants, milliseconds

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([0, None, 90_061_001], pa.int64()), [0, None, 90_061_001]),
        (pa.array([7], pa.int32()), [7]),
        (pa.array([None, None]), [None, None]),
        (pa.array([date(1970, 1, 2), None, date(1969, 12, 31)]), [24 * HOUR, None, -24 * HOUR]),
        (pa.array([date(1970, 1, 2)], pa.date64()), [24 * HOUR]),
        (pa.array([1, None], pa.timestamp("s")), [1000, None]),
        (pa.array([1, None], pa.timestamp("ms", "Asia/Tokyo")), [1, None]),
        (pa.array([1999, None, -1], pa.timestamp("us", "UTC")), [1, None, -1]),
        (pa.array([1_999_999, -1], pa.timestamp("ns")), [1, -1]),
    ],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else "",
)
def test_kinds_of_columns(column: pa.Array[Any], wanted: list[int | None]) -> None:
    found = event_times(column, "x")
    assert found.type == pa.int64()
    assert found.to_pylist() == wanted
    if len(column) > 1:
        assert event_times(column.slice(1), "x").to_pylist() == wanted[1:]


@pytest.mark.parametrize("column", [pa.array(["2020"]), pa.array([1.0]), pa.array([[1]])])
def test_columns_that_are_no_time(column: pa.Array[Any]) -> None:
    with pytest.raises(WrongTypeError, match=rf"column 'at': event time is .*not {column.type}"):
        event_times(column, "column 'at'")


@given(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)))
def test_a_column_and_a_single_instant_agree(moment: datetime) -> None:
    [found] = event_times(pa.array([moment], pa.timestamp("us")), "x").to_pylist()
    assert milliseconds(moment.replace(tzinfo=timezone.utc), "x") == found


def test_single_instants() -> None:
    berlin = timezone(timedelta(hours=1))
    assert milliseconds(datetime(1970, 1, 1, 1, tzinfo=berlin), "x") == 0
    assert milliseconds(np.int64(5), "x") == 5
    for wrong in (1.5, True, "now", None):
        with pytest.raises(WrongTypeError, match="the watermark is an int, in milliseconds"):
            milliseconds(wrong, "the watermark")


def test_instants_of_python_objects() -> None:
    tokyo = timezone(timedelta(hours=9))
    values = [
        None,
        5,
        date(1969, 12, 31),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc),
        datetime(1970, 1, 1, 9, 0, 2, 999, tzinfo=tokyo),
    ]
    assert instants(values, "v").to_pylist() == [None, 5, -86_400_000, 1_000, 2_000]
    for wrong in ("noon", 1.5, True, time(1)):
        with pytest.raises(WrongTypeError, match="v is an int"):
            instants([wrong], "v")
    with pytest.raises(WrongTypeError, match="v does not fit 64 bits"):
        instants([2**63], "v")


NAIVE = datetime(1970, 1, 1)
RULE = r"a time without a time zone is no instant: attach .*tzinfo=datetime.timezone.utc"


def test_a_time_without_a_time_zone_is_no_instant_anywhere() -> None:
    class Keeps(ps.KeyedProcessFunction):
        at = ps.ValueState("timestamp")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            yield key, NAIVE

    with pytest.raises(WrongTypeError, match=f"^v is datetime.*: {RULE}"):
        instants([NAIVE], "v")
    with ps.testing.Harness(Keeps(), key="k", schema="k long, at timestamp") as harness:
        with pytest.raises(WrongTypeError, match=f"^the watermark is datetime.*: {RULE}"):
            harness.advance_watermark(NAIVE)
        with pytest.raises(WrongTypeError, match=f"^the processing time is datetime.*: {RULE}"):
            harness.advance_processing_time(NAIVE)
        with pytest.raises(WrongTypeError, match=f"column 'at' is declared timestamp.*{RULE}"):
            harness.process([{"k": 1}])
    with pytest.raises(WrongTypeError, match=f"^processing_time is datetime.*: {RULE}"):
        ps.testing.Harness(Keeps(), key="k", processing_time=NAIVE)
    with ps.KeyedStateBackend("long", states={"at": Keeps.at}) as backend:
        backend.set_current_key(1)
        with pytest.raises(WrongTypeError, match="a time without a time zone is no instant: atta"):
            backend["at"].update(NAIVE)
        with pytest.raises(WrongTypeError, match=RULE):
            backend["at"].update_all(backend.keys([1]), [NAIVE])
        with pytest.raises(WrongTypeError, match=RULE):
            backend["at"].update_all(backend.keys([1]), pa.array([NAIVE]))
    columns = pa.array([NAIVE], pa.timestamp("us"))
    assert event_times(columns, "a column without a time zone is in UTC").to_pylist() == [0]
