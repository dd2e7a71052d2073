"""Frames of pandas for Spark's processors, and what is made of those that they yield."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.streaming import StatefulProcessor

from pystate.errors import WrongTypeError
from pystate.spark import StatefulProcessorError, adapt
from pystate.spark.base.failures import original_error
from pystate.spark.ported import calls, frames
from pystate.spark.ported.frame_output import FrameOutput
from pystate.spark.ported.frames import CutFrames, FrameForm, to_frame
from pystate.testing import Harness

NOON = datetime(2024, 7, 1, 12, tzinfo=timezone.utc)


def test_columns_are_what_sparks_workers_make_of_them() -> None:
    at = pa.timestamp("us", "Europe/Berlin")
    batch = pa.record_batch(
        {
            "at": pa.array([NOON, None], at),
            "ntz": pa.array([NOON.replace(tzinfo=None)] * 2, pa.timestamp("us")),
            "n": pa.array([1, None], pa.int32()),
            "m": pa.array([1, 2], pa.int64()),
            "d": pa.array([date(2024, 1, 2)] * 2),
            "dec": pa.array([Decimal("1.5")] * 2, pa.decimal128(5, 1)),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "map": pa.array([[("a", NOON)], None], pa.map_(pa.string(), at)),
            "struct": pa.array([{"x": 1, "t": NOON}, None], pa.struct({"x": pa.int32(), "t": at})),
        }
    )
    frame = to_frame(batch, "Europe/Berlin")
    local = pd.Timestamp("2024-07-01 14:00:00")
    assert list(frame["at"]) == [local, pd.NaT] or frame["at"].isna().tolist() == [False, True]
    assert frame["at"].iloc[0] == local
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert kinds == {
        "at": "datetime64[ns]",
        "ntz": "datetime64[ns]",
        "n": "float64",
        "m": "int64",
        **dict.fromkeys(["d", "dec", "list", "map", "struct"], "object"),
    }
    row = frame.iloc[0]
    assert (row["d"], row["dec"]) == (date(2024, 1, 2), Decimal("1.5"))
    assert isinstance(row["list"], np.ndarray) and row["list"].tolist() == [1, None]
    assert (row["map"], row["struct"]) == ({"a": local}, {"x": 1, "t": local})


@pytest.mark.parametrize("piece", [7, 100, 1_000])
def test_each_key_gets_all_of_its_rows_in_order(
    monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(frames, "_PIECE", piece)
    chosen = random.Random(piece)
    sizes = [chosen.choice([1, 2, 5, 30]) for _ in range(40)]
    ends = np.cumsum(sizes).tolist()
    order = np.array(chosen.sample(range(ends[-1]), ends[-1]))
    rows = pa.record_batch({"v": list(range(ends[-1]))})
    begin = 0
    for end, own in zip(ends, FrameForm("UTC", most=4).groups(rows, order, ends), strict=True):
        got = list(own)
        assert [v for frame in got for v in frame["v"]] == order[begin:end].tolist()
        assert all(list(frame.index) == list(range(len(frame))) for frame in got)
        assert all(len(frame) == 4 for frame in got[:-1]) and 1 <= len(got[-1]) <= 4
        begin = end


@pytest.mark.parametrize(
    ("most", "most_bytes", "sizes"),
    [(4, None, [4, 4, 2]), (4, 1, [1] * 10), (4, 24, [3, 3, 3, 1]), (4, 25, [4, 4, 2])],
)
def test_rows_of_average_size_fill_a_frame(
    monkeypatch: pytest.MonkeyPatch, most: int, most_bytes: int | None, sizes: list[int]
) -> None:
    rows = pa.record_batch({"v": pa.array(range(10), pa.int64())})
    for piece in (3, 100):
        monkeypatch.setattr(frames, "_PIECE", piece)
        for own in FrameForm("UTC", most, most_bytes).groups(rows, np.arange(10), [10]):
            assert list(map(len, own)) == sizes


def test_whole_numbers_may_have_types_that_hold_nulls() -> None:
    kinds = {name: pa.array([1, None], getattr(pa, name)()) for name in ("int8", "int32", "int64")}
    rows = pa.record_batch({**kinds, "x": [0.5, None]})
    [frame] = next(FrameForm("UTC", extension_ints=True).groups(rows, np.arange(2), [2]))
    assert [str(kind) for kind in frame.dtypes] == ["Int8", "Int32", "Int64", "float64"]
    assert frame["int64"].tolist() == [1, pd.NA]


def varied(n: int) -> pa.RecordBatch:
    """Columns of several types, those of one type not side by side."""
    at = pa.timestamp("us", "Europe/Berlin")
    return pa.record_batch(
        {
            "m": pa.array(range(n), pa.int64()),
            "s": pa.array([None if i % 3 == 0 else str(i) for i in range(n)]),
            "k": pa.array([-i for i in range(n)], pa.int64()),
            "at": pa.array([NOON if i % 2 else None for i in range(n)], at),
            "x": pa.array([i / 4 for i in range(n)]),
            "b": pa.array([i % 2 == 0 for i in range(n)]),
            "list": pa.array([[i] for i in range(n)], pa.list_(pa.int32())),
            "c": pa.array(["a", "b"] * (n // 2)).dictionary_encode(),
        }
    )


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (3, 8), (5, 5), (0, 12)])
def test_a_frame_that_is_cut_is_as_pandas_makes_it(begin: int, end: int) -> None:
    whole = to_frame(varied(12), "Europe/Berlin")
    cut = CutFrames(whole).cut(begin, end)
    plain = whole.iloc[begin:end].reset_index(drop=True)
    pd.testing.assert_frame_equal(cut, plain, check_index_type="exact", check_column_type="exact")
    assert type(cut.index) is type(plain.index) and cut._mgr.is_consolidated()
    pd.testing.assert_frame_equal(cut.groupby("b").min(True), plain.groupby("b").min(True))
    pd.testing.assert_frame_equal(pd.concat([cut, cut.T.T]), pd.concat([plain, plain.T.T]))
    assert cut.copy().equals(plain) and pickle.loads(pickle.dumps(cut)).equals(plain)


def test_a_frame_that_is_cut_is_its_owners() -> None:
    whole = to_frame(varied(12), "UTC")
    before, cutter = whole.copy(), CutFrames(whole)
    for _ in range(2):
        mine = cutter.cut(2, 6)
        pd.testing.assert_frame_equal(mine, before.iloc[2:6].reset_index(drop=True))
        mine.index.name = mine.columns.name = "mine"
        mine.loc[:, "m"] = 7
        mine.loc[1, "s"] = "mine"
        mine.loc[mine["k"] < -3, "x"] = -1.0
        mine["at"] = mine["at"].fillna(pd.Timestamp(0))
        mine["more"] = mine.pop("b")
        mine.drop(columns="list", inplace=True)
        mine.rename(columns={"m": "own"}, inplace=True)
    pd.testing.assert_frame_equal(whole, before)
    assert whole.columns.name is None and cutter.cut(0, 3).index.name is None


class Sums(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        total = (self.total.get() or (0,))[0] + sum(frame["v"].sum() for frame in rows)
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "total": [total]})

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("frames_at_once", "rows_at_once"), [(3, 1_000), (1_000, 10)])
def test_output_is_not_held_until_the_input_ends(
    monkeypatch: pytest.MonkeyPatch, frames_at_once: int, rows_at_once: int
) -> None:
    monkeypatch.setattr(FrameForm, "collected", frames_at_once)
    monkeypatch.setattr(calls, "_GIVEN_ROWS", rows_at_once)
    taken: list[int] = []
    drain = calls.PortedCalls.drain

    def noted(self: Any) -> Iterator[Any]:
        taken.append(len(self.emitted))
        return drain(self)

    monkeypatch.setattr(calls.PortedCalls, "drain", noted)
    with Harness(adapt(Sums(), "k", frames=True), key="k") as harness:
        found = harness.process([{"k": i % 12, "v": i} for i in range(48)])
    assert [frame["k"].item() for frame in found] == list(range(12))
    assert taken == [3] * 4 + [0]


def test_the_harness_runs_a_processor_of_frames() -> None:
    with Harness(adapt(Sums(), "k", frames=True), key="k") as harness:
        harness.process([{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}])
        [frame] = harness.process([{"k": "a", "v": 5}])
    assert frame.to_dict("records") == [{"k": "a", "total": 9}]


def output(ddl: dict[str, st.DataType], zone: str = "UTC", **options: Any) -> FrameOutput:
    fields = [st.StructField(name, kind) for name, kind in ddl.items()]
    return FrameOutput.of(st.StructType(fields), "operator 'one'", zone, **options)


def test_frames_are_output_by_name_or_by_place() -> None:
    made = output({"k": st.StringType(), "n": st.LongType()})
    found = made.from_rows(
        [
            pd.DataFrame({"n": [1, 2], "more": [0, 0], "k": ["a", None]}),
            pd.DataFrame([["b", 3]]),
            pd.DataFrame(),
            pd.DataFrame({"k": ["c"], "n": [None]}),
        ]
    )
    assert found.to_pydict() == {"k": ["a", None, "b", "c"], "n": [1, 2, 3, None]}
    assert made.from_rows([pd.DataFrame()]).num_rows == 0


def test_frames_may_be_output_by_place_alone() -> None:
    made = output({"k": st.StringType(), "n": st.LongType()}, by_name=False)
    found = made.from_rows([pd.DataFrame({"n": ["a"], "k": [1]})])
    assert found.to_pydict() == {"k": ["a"], "n": [1]}


@pytest.mark.parametrize("kind", ["int64", "int16", "Int64", "object"])
def test_whole_numbers_go_into_decimals_where_that_is_wanted(kind: str) -> None:
    frame = pd.DataFrame({"n": pd.Series([12345, 1], dtype=kind)})
    kinds = {"n": st.DecimalType(10, 2)}
    made = output(kinds, ints_to_decimals=True)
    found = made.from_rows([frame, pd.DataFrame({"n": pd.array([None, 2], "Int64")})])
    assert found.to_pydict() == {"n": [Decimal("12345.00"), Decimal(1), None, Decimal(2)]}
    with pytest.raises(WrongTypeError, match="declared decimal"):
        made.from_rows([pd.DataFrame({"n": [10**9]})])
    if kind == "int64":
        with pytest.raises(WrongTypeError, match="column 'n' is declared"):
            output(kinds).from_rows([frame])


def test_frames_are_output_as_if_each_were_alone() -> None:
    large = 2**60 + 1
    kinds = {"n": st.LongType(), "at": st.TimestampType(), "s": st.StringType()}
    at = pd.Timestamp("2024-07-01 14:00:00")
    given = [
        pd.DataFrame({"n": [large, 2], "at": [at, None], "s": ["a", None]}),
        pd.DataFrame({"n": [3], "at": [at.tz_localize("UTC")], "s": ["b"]}),
        pd.DataFrame({"s": ["c", "d"], "n": [np.nan, 4.0], "at": [None, at.to_pydatetime()]}),
        pd.DataFrame({"n": pd.array([None, large], "Int64"), "at": at, "s": "e", "more": 1}),
        pd.DataFrame({"n": ["5"], "at": [at], "s": pd.Categorical(["f"])}),
        pd.DataFrame({"n": pd.Series([6], dtype="int8"), "at": [at], "s": [None]}),
    ]
    made = output(kinds, "Europe/Berlin")
    alone = [row for frame in given for row in made.from_rows([frame]).to_pylist()]
    for times in (1, 3):
        assert made.from_rows(given * times).to_pylist() == alone * times
    assert [row["n"] for row in alone] == [large, 2, 3, None, 4, None, large, 5, 6]
    shuffled = random.Random(1).sample(given * 20, 120)
    expected = [row for frame in shuffled for row in made.from_rows([frame]).to_pylist()]
    assert made.from_rows(shuffled).to_pylist() == expected


def test_timestamps_without_a_zone_are_the_sessions() -> None:
    kinds = {"at": st.TimestampType(), "ntz": st.TimestampNTZType(), "d": st.DateType()}
    made = output(kinds, "Europe/Berlin")
    local = pd.Timestamp("2024-07-01 14:00:00")
    for at in (local, local.tz_localize("Europe/Berlin"), local.to_pydatetime()):
        frame = pd.DataFrame({"at": [at], "ntz": [local], "d": [local]})
        [row] = made.from_rows([frame]).to_pylist()
        assert row == {"at": NOON, "ntz": datetime(2024, 7, 1, 14), "d": date(2024, 7, 1)}


def test_nested_values_are_taken() -> None:
    kind = st.StructType([st.StructField("x", st.LongType())])
    made = output({"s": kind, "a": st.ArrayType(st.LongType())})
    frame = pd.DataFrame({"s": [{"x": 1}, None], "a": [np.array([1, 2]), [3]]})
    assert made.from_rows([frame]).to_pydict() == {"s": [{"x": 1}, None], "a": [[1, 2], [3]]}


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ([1], r"yielded \[1\] of type list: yield a DataFrame"),
        (pd.DataFrame({"k": ["a"]}), "without the column 'n'"),
        (pd.DataFrame([["a"]]), "DataFrame of 1 columns"),
        (pd.DataFrame([["a", 1, 2]], columns=["k", "n", "n"]), "more than one column 'n'"),
        (pd.DataFrame({"k": ["a"], "n": [1.5]}), "column 'n' is declared"),
        (pd.DataFrame({"k": ["a"], "n": ["x"]}), "column 'n' is declared"),
    ],
)
def test_what_is_no_such_frame_is_refused(frame: Any, text: str) -> None:
    good = pd.DataFrame({"k": ["a"], "n": [1]})
    with pytest.raises(WrongTypeError, match=text):
        output({"k": st.StringType(), "n": st.LongType()}).from_rows([good, frame])


def test_an_error_of_a_processor_is_found_in_sparks_report() -> None:
    raised = StatefulProcessorError("operator 'one': not so")
    kind = type(raised)
    report = Exception(f"trace\n{kind.__module__}.{kind.__name__}: {raised}\nmore")
    found = original_error(report)
    assert type(found) is StatefulProcessorError and str(found) == str(raised)
