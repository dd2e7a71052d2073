"""Spark's rows, made in one step."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql import Row

from pystate._core import core
from pystate.errors import InvalidArgumentError
from pystate.spark.ported.quick_rows import quicken, quicken_class


@pytest.fixture
def slow() -> Iterator[Any]:
    """How Spark makes a row, while its class makes them in one step."""
    assert quicken_class(Row)
    yield partial(Row.__dict__["__new__"].__func__, Row)
    assert core.set_quick_rows(Row, False)


def test_rows_are_those_of_spark(slow: Any) -> None:
    assert not quicken_class(Row), "only once"
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
    assert not quicken_class(kind) and vars(kind(a=1))["more"] == 1
    del kind.__new__
    assert not quicken_class(kind)


def test_sparks_class_is_quick_only_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken()
    assert not core.set_quick_rows(Row, False)
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    quicken()
    try:
        assert Row(a=1).asDict() == {"a": 1}
        quicken()
    finally:
        assert core.set_quick_rows(Row, False)


def test_only_classes_of_tuples_have_quick_rows() -> None:
    for wrong in (tuple, dict, 3, Row(a=1)):
        with pytest.raises(InvalidArgumentError, match="rows are tuples"):
            core.set_quick_rows(wrong, True)  # type: ignore[arg-type]
