"""Rows of Spark's class, made of Arrow batches, and batches made of such rows."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql import types as st

from pystate._core import ported
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.spark.ported.rows import (
    RowMaker,
    RowOutput,
    row_class,
    use_quick_rows,
    use_quick_rows_of,
)


def test_rows_are_rows_of_spark() -> None:
    batch = pa.record_batch({"a": [1], "count": [2], "b c": [None], "_x": ["y"]})
    [row] = RowMaker(batch.schema.names).source(batch, np.arange(1)).rows(0, 1)
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
    inner = st.StructType([st.StructField("x", st.LongType())])
    kinds = {"k": st.LongType(), "s": st.StringType(), "in": inner}
    schema = st.StructType([st.StructField(n, kind, n != "k") for n, kind in kinds.items()])
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


def test_rows_are_collected_as_they_are_converted_at_once() -> None:
    schema = st.StructType(
        [st.StructField("k", st.LongType()), st.StructField("s", st.StringType())]
    )
    output = RowOutput.of(schema, "operator 'one'")
    given: list[list[Row]] = [
        [Row(k=1, s="a"), Row(k=None, s=None)],
        [Row(k=1, s="a"), Row(s="b", k=2), Row(k=3), Row(k=4, s="d")],
        [Row(k=True, s="a")],
        [Row("k", "s")(1, "a")],
        [tuple.__new__(row_class(("k", "s")), (1, "a"))],
    ]
    for rows in given:
        emitted = output.collector()
        emitted.extend(rows)
        try:
            expected = output.from_rows(rows).to_pylist()
        except WrongTypeError as error:
            with pytest.raises(WrongTypeError, match="column 'k'"):
                list(output.pieces(emitted))
            assert "column 'k'" in str(error)
            continue
        assert [row for piece in output.pieces(emitted) for row in piece.to_pylist()] == expected
    emitted = output.collector()
    emitted.append((1, "a"))
    with pytest.raises(WrongTypeError, match="yields rows with names"):
        list(output.pieces(emitted))


# ---- made in one step -----------------------------------------------------------------------


@pytest.fixture
def slow() -> Iterator[Any]:
    """How Spark makes a row, while its class makes them in one step."""
    assert use_quick_rows_of(Row)
    yield partial(Row.__dict__["__new__"].__func__, Row)
    assert ported.set_quick_rows(Row, False)


def test_quick_rows_are_those_of_spark(slow: Any) -> None:
    assert not use_quick_rows_of(Row), "only once"
    for names in ({"a": 1}, {"b": None, "a": [2]}, {"b c": 1, "count": 2, "_x": "y"}):
        found, plain = Row(**names), slow(**names)
        assert type(found) is Row and tuple(found) == tuple(plain)
        assert vars(found) == vars(plain) and repr(found) == repr(plain)
        assert found.asDict() == plain.asDict() and found[next(iter(names))] == plain[0]
        assert copy.copy(found) == pickle.loads(pickle.dumps(found)) == plain
        found.__fields__.append("own")
        assert Row(**names).__fields__ == plain.__fields__
    assert {(1, "x"): 1}[Row(a=1, b="x")] == 1
    # All other calls are for Spark's function.
    assert tuple(Row(1, 2)) == (1, 2) and vars(Row(1, 2)) == {} and tuple(Row()) == ()
    assert Row("a", "b")(1, 2) == slow("a", "b")(1, 2) == Row(a=1, b=2)
    with pytest.raises(PySparkValueError):
        Row(1, a=2)  # type: ignore[call-overload]
    with pytest.raises(PySparkRuntimeError):
        Row(a=1).a = 2


def test_a_subclass_is_made_as_before(slow: Any) -> None:
    seen = []

    class Sub(Row):
        def __setattr__(self, name: str, value: Any) -> None:
            seen.append(name)
            super().__setattr__(name, value)

    row = Sub(a=1)
    assert type(row) is Sub and row.a == 1 and seen == ["__fields__"]


def test_another_class_is_left_alone() -> None:
    members = {k: v for k, v in vars(Row).items() if k not in ("__dict__", "__weakref__")}
    kind: Any = type("Row", (tuple,), members)
    slow = kind.__dict__["__new__"]

    def later(cls: Any, *args: Any, **names: Any) -> Any:
        row = slow.__func__(cls, *args, **names)
        if names:
            row.__dict__["more"] = 1
        return row

    kind.__new__ = later
    assert not use_quick_rows_of(kind) and vars(kind(a=1))["more"] == 1
    del kind.__new__
    assert not use_quick_rows_of(kind)


def test_sparks_class_is_quick_only_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_quick_rows()
    assert not ported.set_quick_rows(Row, False)
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    use_quick_rows()
    try:
        assert Row(a=1).asDict() == {"a": 1}
        use_quick_rows()
    finally:
        assert ported.set_quick_rows(Row, False)


def test_only_classes_of_tuples_have_quick_rows() -> None:
    for wrong in (tuple, dict, 3, Row(a=1)):
        with pytest.raises(InvalidArgumentError, match="rows are tuples"):
            ported.set_quick_rows(wrong, True)  # type: ignore[arg-type]
