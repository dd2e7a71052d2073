"""Reducing and aggregating states: what they take and refuse, one key at a time and many."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    NoCurrentKeyError,
    PoisonedError,
    StaleKeyBatchError,
    StateOverflowError,
    WrongTypeError,
)
from tests.tables import keyed


class Longest(ps.AggregateFunction[Any, Any, Any]):
    def create(self) -> str:
        return ""

    def add(self, accumulator: str, value: str) -> str:
        return max(accumulator, value, key=len)

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=len)

    def result(self, accumulator: str) -> int:
        return len(accumulator)


STATES: dict[str, ps.State] = {
    "r": ps.ReducingState("long", max),
    "joined": ps.ReducingState("string", operator.add),
    "count": ps.AggregatingState(ps.Count(), "string"),
    "sum": ps.AggregatingState(ps.Sum(), "int"),
    "mean": ps.AggregatingState(ps.Mean(), "int"),
    "top": ps.AggregatingState(ps.TopK(2), "int"),
    "kinds": ps.AggregatingState(ps.ApproxDistinct(), "string"),
    "own": ps.AggregatingState(Longest()),
}
NUMBERS = ["r", "sum", "mean", "top"]


@pytest.fixture
def backend() -> Iterator[ps.KeyedStateBackend]:
    with keyed(STATES, uid="orders") as made:
        yield made


def results(handle: Any, keys: ps.KeyBatch) -> list[Any]:
    found = handle.values(keys) if hasattr(handle, "values") else handle.results(keys)
    return found if isinstance(found, list) else found.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", STATES)
def test_none_cannot_be_added_and_nulls_are_skipped(
    backend: ps.KeyedStateBackend, name: str
) -> None:
    handle = backend[name]
    before = handle.get()
    with pytest.raises(WrongTypeError, match=f"state '{name}': None cannot be added"):
        handle.add(None)
    handle.add_all(backend.keys([1, 2]), [None, None])
    assert handle.get() == before
    assert len(backend) == 0


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["5", True, 1.5, b"1"])
def test_a_wrong_value_is_refused(backend: ps.KeyedStateBackend, name: str, value: Any) -> None:
    handle = backend[name]
    handle.add(5)
    before = handle.get()
    with pytest.raises(WrongTypeError, match=name):
        handle.add(value)
    with pytest.raises(WrongTypeError, match=f"state '{name}'"):
        handle.add_all(backend.keys([1, 2]), [value, value])
    assert handle.get() == before


def test_wrong_lengths_and_batches_are_refused(backend: ps.KeyedStateBackend) -> None:
    stale = backend.keys([1, 2])
    backend.seal()
    for name, handle in backend.states.items():
        values = ["a"] * 3 if name in ("joined", "count", "kinds", "own") else [1] * 3
        with pytest.raises(InvalidArgumentError, match="3 values for 2 keys"):
            handle.add_all(backend.keys([1, 2]), values)
        # A sequence of one is no value for all.
        with pytest.raises(InvalidArgumentError, match="1 values for 2 keys"):
            handle.add_all(backend.keys([1, 2]), values[:1])
        for use in (
            lambda h, k, v=values: h.add_all(k, v[:2]),
            lambda h, k: results(h, k),
            lambda h, k: h.clear_all(k),
        ):
            with pytest.raises(StaleKeyBatchError):
                use(handle, stale)
            with pytest.raises(InvalidArgumentError, match="expected a KeyBatch"):
                use(handle, [1, 2])


@pytest.mark.parametrize("name", STATES)
def test_without_a_current_key_it_refuses(backend: ps.KeyedStateBackend, name: str) -> None:
    backend.clear_current_key()
    handle = backend[name]
    value = "a" if name in ("joined", "count", "kinds", "own") else 1
    uses: list[Callable[[], Any]] = [lambda: handle.add(value), handle.get, handle.clear]
    for use in uses:
        with pytest.raises(NoCurrentKeyError):
            use()


@pytest.mark.parametrize("name", STATES)
def test_nothing_added_has_a_result(backend: ps.KeyedStateBackend, name: str) -> None:
    handle = backend[name]
    wanted = {"count": 0, "kinds": 0, "top": []}.get(name)
    assert handle.get() == wanted and results(handle, backend.keys([1])) == [wanted]
    handle.clear()
    handle.clear_all(backend.keys([1, 2]))
    assert len(backend) == 0


def test_one_value_for_all_keys(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2, 1])
    for name in ("sum", "mean", "top"):
        backend[name].add_all(keys, 4)
    backend["count"].add_all(keys, "x")
    backend["own"].add_all(keys, "abc")
    found = {n: results(backend[n], keys)[:2] for n in ("sum", "mean", "top", "count", "own")}
    assert found == {
        "sum": [8, 4],
        "mean": [4.0, 4.0],
        "top": [[4, 4], [4]],
        "count": [2, 1],
        "own": [3, 3],
    }


def test_columns_come_in_many_forms(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2, 1])
    for values in (
        np.array([1, 2, 3], np.int8),
        pa.array([1, 2, 3], pa.int32()),
        pa.chunked_array([[1], [2, 3]]),
        pa.array([9, 1, 2, 3])[1:],
        (1, 2, 3),
    ):
        for name in NUMBERS:
            backend[name].add_all(keys, values)
    assert results(backend["sum"], keys)[:2] == [20, 10]
    assert results(backend["r"], keys)[:2] == [3, 2]
    assert results(backend["mean"], keys)[:2] == [2.0, 2.0]


def test_sums_overflow_loudly() -> None:
    states: dict[str, ps.State] = {
        "s": ps.AggregatingState(ps.Sum(), "long"),
        "r": ps.ReducingState("int", operator.add),
    }
    with ps.KeyedStateBackend("long", states=states) as backend:
        for name, most in (("s", 2**63 - 1), ("r", 2**31 - 1)):
            backend.set_current_key(1)
            backend[name].add(most)
            with pytest.raises(StateOverflowError):
                backend[name].add(1)
            assert backend[name].get() == most
            with pytest.raises(StateOverflowError):
                backend[name].add_all(backend.keys([1]), [1])
            with pytest.raises(PoisonedError):
                backend.seal()
            backend.rollback()


@pytest.mark.parametrize("function", [max, min])
def test_nan_is_larger_than_any_number_in_both_forms(function: Any) -> None:
    states: dict[str, ps.State] = {
        "r": ps.ReducingState("double", function),
        "a": ps.AggregatingState(ps.Max() if function is max else ps.Min(), "double"),
    }
    for order in ([1.0, float("nan")], [float("nan"), 1.0]):
        with ps.KeyedStateBackend("long", states=states) as backend:
            for name in states:
                backend.set_current_key(1)
                for value in order:
                    backend[name].add(value)
                backend[name].add_all(backend.keys([2, 2]), order)
                found = results(backend[name], backend.keys([1, 2]))
                wanted = "nan" if function is max else "1.0"
                assert [str(value) for value in found] == [wanted] * 2, (name, order)


def test_declarations_that_make_no_sense() -> None:
    with pytest.raises(DeclarationError, match="no function of two values"):
        ps.ReducingState("long", "max")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="pass an object of it"):
        ps.AggregatingState(ps.Mean)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="Sum"):
        ps.AggregatingState(ps.Sum(), "string")
    for type_ in ("date", "timestamp", "timestamp_ntz"):
        for function in (sum, operator.add):
            with pytest.raises(DeclarationError, match=f"no sum of values of type {type_}"):
                ps.ReducingState(type_, function)


def test_days_have_an_order_and_no_sum() -> None:
    days = [datetime.date(2024, 2, 29), datetime.date(1969, 12, 31)]
    states: dict[str, ps.State] = {
        "latest": ps.ReducingState("date", max),
        "day": ps.ValueState("date"),
    }
    with ps.KeyedStateBackend("long", states=states) as backend:
        keys = backend.keys([1, 1])
        backend["latest"].add_all(keys, days)
        backend["day"].min(keys, days)
        assert backend["latest"].values(keys)[0].as_py() == days[0]
        assert backend["day"].values(keys)[0].as_py() == days[1]
        with pytest.raises(WrongTypeError, match="state 'day': there is no add for date"):
            backend["day"].add(keys, days)


def test_a_value_for_all_keys_is_of_the_declared_type(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2])
    for name, wrong in (("sum", "4"), ("count", 4), ("mean", "4"), ("top", "4"), ("joined", 4)):
        with pytest.raises(WrongTypeError, match=f"state '{name}'"):
            backend[name].add_all(keys, wrong)
        with pytest.raises(WrongTypeError, match=f"state '{name}'"):
            backend[name].add_all(keys, [wrong, wrong])
    for values in (2**40, [2**40, 1]):
        with pytest.raises((StateOverflowError, WrongTypeError), match="state 'sum'"):
            backend["sum"].add_all(keys, values)
    for name in STATES:
        backend[name].add_all(keys, None)
    assert len(backend) == 0


def test_a_function_that_raises_changes_nothing(backend: ps.KeyedStateBackend) -> None:
    class Angry(Longest):
        def add(self, accumulator: str, value: str) -> str:
            raise ValueError("no more")

    states = {"own": ps.AggregatingState(Angry())}
    with keyed(states) as other:
        with pytest.raises(ValueError, match="no more"):
            other["own"].add("x")
        with pytest.raises(ValueError, match="no more"):
            other["own"].add_all(other.keys([1, 2]), ["x", "y"])
        assert other["own"].get() is None and len(other) == 0


def folded(**states: ps.State) -> ps.KeyedStateBackend:
    made = ps.KeyedStateBackend("long", states=states, namespace="long")
    made.set_current_key(1)
    return made


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("int", [2**31 - 1, 1, 1]),
        ("byte", [100, 100, 100]),
        ("decimal(5,2)", [Decimal("999.99")] * 3),
        ("float", [np.float32(0.1).item(), np.float32(0.2).item(), np.float32(0.3).item()]),
    ],
)
def test_merged_sums_are_as_wide_as_what_is_kept(ddl: str, values: list[Any]) -> None:
    with folded(s=ps.AggregatingState(ps.Sum(), ddl)) as made:
        for space, value in zip((2, 2, 1), values, strict=True):
            made.set_current_namespace(space)
            made["s"].add(value)
        made["s"].merge_namespaces(1, [2])
        made.set_current_namespace(1)
        assert made["s"].get() == values[2] + (values[0] + values[1])


def test_a_merge_that_is_refused_takes_nothing_away() -> None:
    with folded(s=ps.AggregatingState(ps.Sum(), "long")) as made:
        for space in (1, 2):
            made.set_current_namespace(space)
            made["s"].add(2**62 + space)
        with pytest.raises(StateOverflowError):
            made["s"].merge_namespaces(1, [2])
        for space in (1, 2):
            made.set_current_namespace(space)
            assert made["s"].get() == 2**62 + space


@pytest.mark.parametrize(
    "state",
    [
        ps.AggregatingState(ps.Sum(), "decimal(38,0)"),
        ps.ReducingState("decimal(38,0)", sum),
        ps.ReducingState("decimal(38,0)", operator.add),
    ],
)
def test_sums_of_decimals_are_exact_in_both_forms(state: ps.State) -> None:
    values = [Decimal("123456789012345678901234567890"), Decimal(1), Decimal(-2)]
    with keyed({"s": state}) as made:
        for value in values:
            made["s"].add(value)
        made["s"].add_all(made.keys([2] * 3), values)
        for key in (1, 2):
            made.set_current_key(key)
            assert made["s"].get() == Decimal("123456789012345678901234567889")


def test_a_function_reduces_values_of_the_declared_type() -> None:
    states: dict[str, ps.State] = {
        "n": ps.ReducingState("long", lambda a, b: a + b),
        "t": ps.ReducingState("string", lambda a, b: a + b),
        "o": ps.ReducingState(object, lambda a, b: [*a, *b]),
    }
    with ps.KeyedStateBackend("long", states=states) as made:
        keys = made.keys([1, 1])
        made["n"].add_all(keys, np.array([100, 100], np.int8))
        assert made["n"].values(keys).to_pylist() == [200, 200]
        made["n"].add_all(keys, 5)
        assert made["n"].values(keys).to_pylist() == [210, 210]
        made["t"].add_all(keys, "xy")
        assert made["t"].values(keys).to_pylist() == ["xyxy", "xyxy"]
        made["o"].add_all(keys, [[1], [2]])
        assert made["o"].values(keys) == [[1, 2], [1, 2]]
        for wrong in (["a", "b"], [0.5, 1.5], "a"):
            with pytest.raises(WrongTypeError):
                made["n"].add_all(keys, wrong)
        with pytest.raises(InvalidArgumentError, match="3 values for 2 keys"):
            made["n"].add_all(keys, [1, 2, 3])


def test_a_function_that_returns_nothing_is_named() -> None:
    class Forgets(ps.AggregateFunction[Any, Any, Any]):
        def create(self) -> list[int]:
            return []

        def add(self, accumulator: list[int], value: int) -> Any:
            accumulator.append(value)
            return accumulator if value < 5 else None

        def merge(self, a: list[int], b: list[int]) -> Any:
            a += b

        def result(self, accumulator: list[int]) -> int:
            return len(accumulator)

    states: dict[str, ps.State] = {
        "r": ps.ReducingState("long", lambda a, b: None),
        "a": ps.AggregatingState(Forgets()),
    }
    with keyed(states, namespace="long") as backend:
        for name, value, said in (("r", 6, "made None of 1 and 6"), ("a", 6, "add of Forgets")):
            handle = backend[name]
            handle.add(1)
            backend.seal()
            backend.set_current_key(1)
            with pytest.raises(WrongTypeError, match=f"state '{name}'.*{said}"):
                handle.add(value)
            with pytest.raises(WrongTypeError, match=f"state '{name}'.*{said}"):
                handle.add_all(backend.keys([2, 1]), [1, value])
            backend.rollback()
            backend.set_current_key(1)
            assert handle.get() == 1
            backend.set_current_namespace(7)
            handle.add(2)
            with pytest.raises(WrongTypeError, match=f"state '{name}'.*(merge of|made None)"):
                handle.merge_namespaces(None, [7])
            assert handle.get() is not None
            backend.set_current_namespace(None)


def test_an_own_aggregate_takes_every_form_of_a_column(backend: ps.KeyedStateBackend) -> None:
    pandas = pytest.importorskip("pandas")
    keys = backend.keys([1, 1])
    for column in (
        pandas.Series(["a", "bb"]),
        np.array(["a", "bb"]),
        pa.chunked_array([["a"], ["bb"]]),
    ):
        backend["own"].add_all(keys, column)
        assert backend["own"].results(keys) == [2, 2]


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("decimal(2,1)", [Decimal("0.1")] * 3),
        ("long", [2**62, 2**62 - 1, 3]),
        ("decimal(38,10)", [Decimal("1234567890123456789012345678.0000000001"), Decimal(1)]),
        ("long", [7, 8]),
    ],
)
def test_a_mean_is_rounded_once(ddl: str, values: list[Any]) -> None:
    with ps.KeyedStateBackend("long", states={"m": ps.AggregatingState(ps.Mean(), ddl)}) as made:
        keys = made.keys([1] * len(values))
        made["m"].add_all(keys, values)
        wanted = float(sum(map(Fraction, values)) / len(values))
        assert made["m"].results(keys)[0].as_py() == wanted


@pytest.mark.parametrize(
    "state",
    [
        ps.ReducingState("long", max, ttl=ps.StateTtl(1000)),
        ps.ReducingState("long", lambda a, b: max(a, b), ttl=ps.StateTtl(1000)),
        ps.AggregatingState(ps.Max(), "long", ttl=ps.StateTtl(1000)),
        ps.AggregatingState(Longest(), ttl=ps.StateTtl(1000)),
    ],
)
def test_a_null_is_no_use_of_a_value(state: ps.State) -> None:
    value: Any = "word" if "Longest" in repr(state) else 5
    with ps.KeyedStateBackend("long", states={"s": state}) as made:
        found = []
        for now, column in ((0, [value, value]), (900, [None, value]), (1500, None)):
            made.set_clock(processing_time=now)
            keys = made.keys([1, 2])
            if column is not None:
                made["s"].add_all(keys, column)
                with made.seal():
                    pass
            else:
                found = results(made["s"], keys)
        assert found[0] is None and found[1] is not None
