"""Frames of pandas for Spark's processors, and what is made of those that they yield."""

from __future__ import annotations

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
from pystate.spark.ported import frames
from pystate.spark.ported.frames import FrameForm, FrameOutput, to_frame
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


class Sums(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        total = (self.total.get() or (0,))[0] + sum(frame["v"].sum() for frame in rows)
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "total": [total]})

    def close(self) -> None:
        pass


def test_the_harness_runs_a_processor_of_frames() -> None:
    with Harness(adapt(Sums(), "k", frames=True), key="k") as harness:
        harness.process([{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}])
        [frame] = harness.process([{"k": "a", "v": 5}])
    assert frame.to_dict("records") == [{"k": "a", "total": 9}]


def output(ddl: dict[str, st.DataType], zone: str = "UTC") -> FrameOutput:
    fields = [st.StructField(name, kind) for name, kind in ddl.items()]
    return FrameOutput.of(st.StructType(fields), "operator 'one'", zone)


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
        (pd.DataFrame({"k": ["a"], "n": [1.5]}), "column 'n' is declared"),
        (pd.DataFrame({"k": ["a"], "n": ["x"]}), "column 'n' is declared"),
    ],
)
def test_what_is_no_such_frame_is_refused(frame: Any, text: str) -> None:
    with pytest.raises(WrongTypeError, match=text):
        output({"k": st.StringType(), "n": st.LongType()}).from_rows([frame])


def test_an_error_of_a_processor_is_found_in_sparks_report() -> None:
    raised = StatefulProcessorError("operator 'one': not so")
    kind = type(raised)
    report = Exception(f"trace\n{kind.__module__}.{kind.__name__}: {raised}\nmore")
    found = original_error(report)
    assert type(found) is StatefulProcessorError and str(found) == str(raised)
