"""Rows of Spark's class, made of Arrow batches, and batches made of such rows."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.errors import PySparkValueError
from pyspark.sql import Row
from pyspark.sql import types as st

from pystate.errors import WrongTypeError
from pystate.spark.ported.rows import RowMaker, RowOutput, row_class


def test_rows_are_rows_of_spark() -> None:
    batch = pa.record_batch({"a": [1], "count": [2], "b c": [None], "_x": ["y"]})
    [row] = RowMaker(batch.schema.names).rows(batch)
    plain = Row(**{"a": 1, "count": 2, "b c": None, "_x": "y"})
    assert isinstance(row, Row)
    assert (row, repr(row), row.asDict()) == (plain, repr(plain), plain.asDict())
    assert (row.a, row["count"], row["b c"], row._x, row[0], row[1:]) == (
        1,
        2,
        None,
        "y",
        1,
        (2, None, "y"),
    )
    # As in Spark, the method of a tuple hides a column of its name.
    assert callable(row.count)
    assert "a" in row and "z" not in row
    with pytest.raises(PySparkValueError):
        row["z"]
    with pytest.raises(AttributeError):
        _ = row.z
    again = pickle.loads(pickle.dumps(row))
    assert type(again) is Row and again == plain and again.__fields__ == plain.__fields__
    assert row_class(("a",)) is row_class(("a",))


def test_rows_are_output_by_name_as_spark_does() -> None:
    schema = st.StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": n, "type": t, "nullable": n != "k", "metadata": {}}
                for n, t in [
                    ("k", "long"),
                    ("s", "string"),
                    (
                        "in",
                        {
                            "type": "struct",
                            "fields": [
                                {"name": "x", "type": "long", "nullable": True, "metadata": {}}
                            ],
                        },
                    ),
                ]
            ],
        }
    )
    output = RowOutput.of(schema, "operator 'one'")
    rows = [Row(s="a", k=1, more=5, **{"in": Row(x=2)}), Row(k=2, s="b", **{"in": None}), Row(k=3)]
    assert output.from_rows(rows).to_pylist() == [
        {"k": 1, "s": "a", "in": {"x": 2}},
        {"k": 2, "s": "b", "in": None},
        {"k": 3, "s": None, "in": None},
    ]
    assert output.from_rows([]).num_rows == 0
    for wrong, text in (
        ([(1, "a", None)], r"yields rows with names, Row\(k=..., s=..., in=...\)"),
        ([Row(k="a")], "column 'k' is declared"),
        ([Row(s="a")], "'k' is declared not null"),
    ):
        with pytest.raises(WrongTypeError, match=text):
            output.from_rows(wrong)
