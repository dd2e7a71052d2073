"""Reducing and aggregating states: what they take and refuse, one key at a time and many."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
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
    with ps.KeyedStateBackend("long", states=STATES, uid="orders") as made:
        made.set_current_key(1)
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
    uses: list[Callable[[], Any]] = [lambda: handle.add(1), handle.get, handle.clear]
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


def test_a_function_that_raises_changes_nothing(backend: ps.KeyedStateBackend) -> None:
    class Angry(Longest):
        def add(self, accumulator: str, value: str) -> str:
            raise ValueError("no more")

    states = {"own": ps.AggregatingState(Angry())}
    with ps.KeyedStateBackend("long", states=states) as other:
        other.set_current_key(1)
        with pytest.raises(ValueError, match="no more"):
            other["own"].add("x")
        with pytest.raises(ValueError, match="no more"):
            other["own"].add_all(other.keys([1, 2]), ["x", "y"])
        assert other["own"].get() is None and len(other) == 0
