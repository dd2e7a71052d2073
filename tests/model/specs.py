"""The states that the model tests try: a declaration, values to store, and what they add up to."""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

import pystate as ps
from tests.model.kinds import FoldDriver, ListDriver, MapDriver, Spec, ValueDriver

LONGS = st.integers(-(2**40), 2**40)
SMALL = st.integers(-9, 9)
TEXTS = st.one_of(st.text(max_size=3), st.sampled_from(["", "x" * 12, "x" * 13, "długi " * 40]))
STRUCTS = st.fixed_dictionaries({"a": SMALL, "b": st.one_of(st.none(), st.just(0.5))})
ARRAYS = st.lists(st.one_of(st.none(), st.sampled_from(["", "ab", "c" * 20])), max_size=3)
OBJECTS = st.one_of(SMALL, st.lists(SMALL, max_size=3), st.just({"a": (1,)}))
DOUBLES = st.sampled_from([0.0, 1.5, -2.0, 1e10, 0.25])
DECIMALS = st.integers(-(10**20), 10**20).map(lambda n: Decimal(n).scaleb(-2))
HALVES = st.sampled_from([0.0, 1.5, -2.0, 0.25])
PRICES = st.sampled_from([Decimal("1.25"), Decimal("-3.00")])


def joined(a: str, b: str) -> str:
    return (a + b)[-30:]


class Joined(ps.AggregateFunction[Any, Any, Any]):
    """Keeps the last five values; its result is their sum and number."""

    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [*accumulator, value][-5:]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [*a, *b][-5:]

    def result(self, accumulator: list[int]) -> tuple[int, int]:
        return sum(accumulator), len(accumulator)


def _mean(values: Any) -> Any:
    return None if values is None else sum(values) / len(values)


def _variance(values: Any) -> Any:
    if values is None or len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _keep(values: Any, value: Any) -> Any:
    return [*(values or ()), value]


def _first(old: Any, value: Any) -> Any:
    return value if old is None else old


def _last(_: Any, value: Any) -> Any:
    return value


def _top(old: Any, value: Any) -> Any:
    return sorted([*(old or ()), value], reverse=True)[:3]


def _bigger(old: Any, value: Any) -> Any:
    return value if old is None else max(old, value)


def _smaller(old: Any, value: Any) -> Any:
    return value if old is None else min(old, value)


def _sum(old: Any, value: Any) -> Any:
    return value if old is None else old + value


def _joined(old: Any, value: Any) -> Any:
    return value if old is None else joined(old, value)


def _one_more(old: Any, _: Any) -> Any:
    return (old or 0) + 1


def _or_zero(old: Any) -> Any:
    return old or 0


def _or_none(old: Any) -> Any:
    return old or []


def _both_tops(a: Any, b: Any) -> Any:
    return sorted([*a, *b], reverse=True)[:3]


def _with(old: Any, value: Any) -> Any:
    return {*(old or ()), value}


def _size(old: Any) -> Any:
    return len(old or ())


def _plus(old: Any, value: Any) -> Any:
    return Joined().add(old or [], value)


def _result(old: Any) -> Any:
    return None if old is None else Joined().result(old)


def _value(type_: Any, values: Any, default: Any = None, **more: Any) -> Spec:
    return Spec(lambda ttl: ps.ValueState(type_, default, ttl=ttl), ValueDriver, values, more)


def _list(type_: Any, values: Any) -> Spec:
    return Spec(lambda ttl: ps.ListState(type_, ttl=ttl), ListDriver, values)


def _map(key: Any, type_: Any, keys: Any, values: Any) -> Spec:
    return Spec(lambda ttl: ps.MapState(key, type_, ttl=ttl), MapDriver, values, {"keys": keys})


def _reduce(type_: Any, function: Any, plus: Any, values: Any, how: str) -> Spec:
    more = {"plus": plus, "how": how, "merge": plus}
    return Spec(lambda ttl: ps.ReducingState(type_, function, ttl=ttl), FoldDriver, values, more)


def _aggregate(aggregate: Any, type_: Any, values: Any, how: str = "core", **more: Any) -> Spec:
    def make(ttl: ps.StateTtl | None) -> ps.State:
        return ps.AggregatingState(aggregate, type_, ttl=ttl)

    return Spec(make, FoldDriver, values, {"merge": operator.add, "how": how, **more})


NUMERIC = {"operations": ["add", "min", "max"], "scalar": True}

VALUES = {
    "n": _value("long", LONGS, **NUMERIC),
    "five": _value("int", SMALL, 5, **NUMERIC),
    "text": _value("string", TEXTS, scalar=True),
    "point": _value("struct<a:int,b:double>", STRUCTS),
    "words": _value("array<string>", ARRAYS, ["none"]),
    "any": _value(object, OBJECTS, [0]),
    "money": _value("decimal(30,2)", DECIMALS, **NUMERIC),
}
LISTS = {
    "longs": _list("long", LONGS),
    "bits": _list("boolean", st.booleans()),
    "texts": _list("string", TEXTS),
    "points": _list("struct<a:int,b:double>", STRUCTS),
    "things": _list(object, OBJECTS),
}
MAPS = {
    "counts": _map("long", "long", st.integers(-3, 30), LONGS),
    "names": _map("string", "string", TEXTS, TEXTS),
    "at": _map("double", "struct<a:int,b:double>", DOUBLES, STRUCTS),
    "arrays": _map(
        "decimal(10,2)",
        "array<string>",
        PRICES,
        ARRAYS,
    ),
    "bag": _map("int", object, SMALL, OBJECTS),
}
FOLDS = {
    "most": _reduce("long", max, _bigger, LONGS, "column"),
    "least": _reduce("double", min, _smaller, DOUBLES, "column"),
    "total": _reduce("int", operator.add, _sum, SMALL, "column"),
    "joined": _reduce("string", joined, _joined, TEXTS, "python"),
    "pile": _reduce(object, operator.add, _sum, st.lists(SMALL, max_size=3), "python"),
    "count": _aggregate(ps.Count(), "string", TEXTS, "column", plus=_one_more, result=_or_zero),
    "sum": _aggregate(ps.Sum(), "int", SMALL, "column", plus=_sum),
    "low": _aggregate(ps.Min(), "long", LONGS, "column", plus=_smaller, merge=min),
    "high": _aggregate(ps.Max(), "double", DOUBLES, "column", plus=_bigger, merge=max),
    "mean": _aggregate(ps.Mean(), "long", SMALL, plus=_keep, result=_mean),
    "spread": _aggregate(ps.Variance(), "double", HALVES, plus=_keep, result=_variance),
    "first": _aggregate(ps.First(), "string", TEXTS, plus=_first, merge=_first),
    "last": _aggregate(ps.Last(), "long", SMALL, plus=_last, merge=_last),
    "top": _aggregate(ps.TopK(3), "int", SMALL, plus=_top, merge=_both_tops, result=_or_none),
    "kinds": _aggregate(
        ps.ApproxDistinct(), "string", TEXTS, plus=_with, merge=operator.or_, result=_size
    ),
    "own": _aggregate(
        Joined(), "long", SMALL, "python", plus=_plus, merge=Joined().merge, result=_result
    ),
}

#: Milliseconds; times that live less than 64 have no granularity.
DURATIONS = [40, 640, 6400]

TTLS = st.one_of(
    st.none(),
    st.builds(
        ps.StateTtl,
        st.sampled_from(DURATIONS),
        update=st.sampled_from(["create_and_write", "read_and_write"]),
        visibility=st.sampled_from(["never_return_expired", "return_if_not_cleaned_up"]),
        time=st.sampled_from(["processing", "event"]),
    ),
)
NAN = float("nan")
#: By name: the type, keys to draw, and the i-th of many that are distinct.
KEYS: dict[str, tuple[Any, st.SearchStrategy[Any], Callable[[int], Any]]] = {
    "long": (
        "long",
        st.sampled_from([None, 0, 1, -1, -(2**63), 2**63 - 1, 2**32]) | st.integers(0, 9),
        lambda i: i,
    ),
    "string": (
        "string",
        st.sampled_from([None, "", "a", "b" * 12, "c" * 13, "ż" * 200, "\0"]) | st.text(max_size=3),
        lambda i: f"{i:04d}" * (1 + i % 5),
    ),
    "pair": (
        {"a": "int", "b": "string"},
        st.tuples(st.none() | st.integers(-3, 3), st.none() | st.sampled_from(["", "x", "y" * 30])),
        lambda i: (i if i % 7 else None, f"{i}"),
    ),
    "double": (
        "double",
        st.sampled_from([None, 0.0, 1.5, float("inf"), float("-inf"), 5e-324, NAN])
        | st.floats(allow_nan=False),
        lambda i: i / 8,
    ),
}
SPACES: dict[str, tuple[Any, list[Any]]] = {
    "none": (None, [None]),
    "long": ("long", [None, 0, 60_000]),
    "string": ("string", [None, "", "a window with a long name"]),
}
