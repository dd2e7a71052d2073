"""Rows as functions see them."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.rows import RowFactory
from pystate.types.arrays import datetimes


def test_rows_by_name_position_and_attribute() -> None:
    names = ["v", "count", "class", "a b", "_x"]
    factory = RowFactory(names)
    batch = pa.record_batch([[1], [2], [3], [4], [5]], names=names)
    [row] = factory.rows(batch)
    assert (row.v, row.count, row["class"], row["a b"], row["_x"], row[0], row[-1]) == (
        1,
        2,
        3,
        4,
        5,
        1,
        5,
    )
    assert row == (1, 2, 3, 4, 5) and tuple(row) == (1, 2, 3, 4, 5)
    for wrong in ("_x", "w"):
        with pytest.raises(AttributeError, match=f"no column '{wrong}'; columns: v, count"):
            getattr(row, wrong)
    with pytest.raises(AttributeError, match=r"_x; write row\['_x'\]$"):
        _ = row._x
    with pytest.raises(KeyError, match=r"no column 'w'; columns: v, count, class, a b, _x\"$"):
        row["w"]
    with pytest.raises(KeyError, match=r"no column 'coutn'; .*, _x; did you mean 'count'\?"):
        row["coutn"]
    with pytest.raises(AttributeError, match=r"no column 'coutn'; .*; did you mean 'count'\?$"):
        _ = row.coutn
    assert not hasattr(row, "coutn") and getattr(row, "w", None) is None
    copy = pickle.loads(pickle.dumps(row))
    assert copy == row and copy["a b"] == 4
    assert repr(RowFactory(["x"])._make((1,))) == "Row(x=1)"


def row_of(**columns: Any) -> Any:
    [row] = RowFactory(list(columns)).rows(pa.record_batch({n: [v] for n, v in columns.items()}))
    return row


def test_rows_answer_as_sparks_do() -> None:
    row = row_of(k="ada", n=3)
    assert row.asDict() == row.asDict(True) == {"k": "ada", "n": 3}
    assert list(row.asDict()) == ["k", "n"]
    assert "k" in row and "ada" not in row and "x" not in row
    assert 3 in row and 4 not in row
    copy = pickle.loads(pickle.dumps(row))
    assert copy.asDict() == row.asDict() and "n" in copy
    with pytest.raises(AttributeError, match=r"columns: k, n; row.asDict\(\) is a dict"):
        row.keys()
    with pytest.raises(AttributeError, match=r"columns: k, n$"):
        row.__reversed__  # noqa: B018


def test_columns_come_before_methods() -> None:
    row = row_of(asDict=1, count=2, index=3, keys=4, get=5, items=6, values=7)
    found = (row.asDict, row.count, row.index, row.keys, row.get, row.items, row.values)
    assert found == tuple(row) == (1, 2, 3, 4, 5, 6, 7)
    assert row["asDict"] == 1 and "asDict" in row


def test_two_columns_of_one_name() -> None:
    with pytest.raises(InvalidArgumentError, match="two input columns are called v"):
        RowFactory(["v", "k", "v"])


def test_timestamps_are_aware_whatever_the_session() -> None:
    arrays = [
        pa.array([0, None], pa.timestamp("us", "America/New_York")),
        pa.array([0, None], pa.timestamp("us")),
    ]
    rows = list(RowFactory(["t", "n"]).rows(pa.record_batch(arrays, names=["t", "n"])))
    epoch = datetime.datetime(1970, 1, 1)
    assert rows == [(epoch.replace(tzinfo=datetime.timezone.utc), epoch), (None, None)]


COUNTS = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("arrow_type", "values", "expected"),
    [
        (COUNTS, [[("b", 1), ("a", None)], [], None], [{"b": 1, "a": None}, {}, None]),
        (pa.list_(COUNTS), [[[("a", 1)], None], None], [[{"a": 1}, None], None]),
        (pa.large_list(COUNTS), [[[("a", 1)]]], [[{"a": 1}]]),
        (pa.list_(COUNTS, 1), [[[("a", 1)]]], [[{"a": 1}]]),
        (
            pa.struct([("n", pa.int64()), ("m", COUNTS)]),
            [{"n": 1, "m": [("a", 1)]}, {"n": 2, "m": None}, None],
            [{"n": 1, "m": {"a": 1}}, {"n": 2, "m": None}, None],
        ),
        (
            pa.map_(pa.int32(), pa.list_(pa.struct([("m", COUNTS)]))),
            [[(7, [{"m": [("a", 1)]}])]],
            [{7: [{"m": {"a": 1}}]}],
        ),
        # Python's dict cannot have these keys.
        (pa.map_(pa.list_(pa.int64()), pa.int64()), [[([1], 2)]], [[([1], 2)]]),
        (pa.map_(pa.list_(pa.int64()), COUNTS), [[([1], [("a", 1)])]], [[([1], {"a": 1})]]),
        (COUNTS, [[("a", 1), ("a", 2)]], [{"a": 2}]),
    ],
    ids=str,
)
def test_maps_are_dicts_at_any_depth(
    arrow_type: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    batch = pa.record_batch([pa.array(values, arrow_type)], names=["m"])
    rows = list(RowFactory(["m"]).rows(batch))
    assert [row.asDict(recursive=True)["m"] for row in rows] == expected


def test_structs_answer_to_the_names_of_their_fields() -> None:
    place = pa.struct([("city", pa.string()), ("at", pa.struct([("x", pa.int64())]))])
    values = [{"city": "Ulm", "at": {"x": 1}}, {"city": None, "at": None}, None]
    batch = pa.record_batch(
        [pa.array(values, place), pa.array([[value] for value in values], pa.list_(place))],
        names=["st", "many"],
    )
    first, second, third = RowFactory(["st", "many"]).rows(batch)
    assert (first.st.city, first["st"]["at"]["x"], first.st.at.x, first.st[0]) == (
        "Ulm",
        1,
        1,
        "Ulm",
    )
    assert first.many[0].at.x == 1 and second.st.at is None and third.st is None
    assert "city" in first.st and first.st == ("Ulm", (1,))
    assert first.asDict(recursive=True) == {"st": values[0], "many": [values[0]]}
    assert first.asDict() == {"st": first.st, "many": first.many}
    assert pickle.loads(pickle.dumps(first)).st.at.x == 1
    with pytest.raises(AttributeError, match="no column 'town'; columns: city, at"):
        _ = first.st.town


def test_a_struct_of_a_row_is_kept_and_yielded() -> None:
    class Keeps(ps.KeyedProcessFunction):
        last = ps.ValueState("struct<y:long,x:string>")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            self.last.update(row.st)
            yield key, row.st

    with ps.testing.Harness(
        Keeps(),
        key="k",
        columns="k long, st struct<x:string,y:long>",
        schema="k long, st struct<y:long,x:string>",
    ) as harness:
        assert harness.process([(1, {"x": "a", "y": 2})]) == [(1, (2, "a"))]
        assert harness.state("last", 1) == {"y": 2, "x": "a"}


FIRST = -62_135_596_800_000_000
LAST = 253_402_300_799_999_999
EPOCH = datetime.datetime(1970, 1, 1)
MICROSECOND = datetime.timedelta(microseconds=1)


@given(st.lists(st.none() | st.integers(FIRST, LAST)), st.integers(0, 9))
@example([FIRST, FIRST + 1, -1, 0, 1, LAST - 1, LAST], 0)
def test_datetimes_are_those_of_pythons_own_arithmetic(
    times: list[int | None], skipped: int
) -> None:
    expected = [None if time is None else EPOCH + time * MICROSECOND for time in times][skipped:]
    assert datetimes(pa.array(times, pa.timestamp("us")).slice(skipped)) == expected


def test_every_day_of_four_centuries() -> None:
    first = datetime.datetime(1799, 1, 1)
    days = np.arange(150_000) * 86_400_000_000 + (first - EPOCH) // MICROSECOND
    expected = [first + datetime.timedelta(n) for n in range(len(days))]
    assert datetimes(pa.array(days, pa.timestamp("us"))) == expected
    assert datetimes(pa.array(days + 86_399_999_999, pa.timestamp("us", "UTC"))) == [
        day.replace(
            hour=23, minute=59, second=59, microsecond=999_999, tzinfo=datetime.timezone.utc
        )
        for day in expected
    ]


@pytest.mark.parametrize("time", [FIRST - 1, LAST + 1, -(1 << 63), (1 << 63) - 1])
def test_a_timestamp_that_python_cannot_hold(time: int) -> None:
    batch = pa.record_batch([pa.array([0, time], pa.timestamp("us"))], names=["at"])
    with pytest.raises(InvalidArgumentError, match=f"column 'at': {time} microseconds since 1970"):
        list(RowFactory(["at"]).rows(batch))
