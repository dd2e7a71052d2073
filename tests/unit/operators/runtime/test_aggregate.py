"""Aggregates inside a task: which keys are emitted, with what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.checkpoint.refs import INPUT
from pystate.errors import InvalidRowError
from pystate.operators.runtime.aggregate import AggregateOperator, Aggregates, StateUpdate
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.state.operator_spec import OperatorSpec
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.types.keys import parse_key
from tests.drawn import drawn

DROPPED = InvalidRule()
SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("a", pa.int64()), ("b", pa.int64())])


@contextmanager
def sums(names: Sequence[str], rule: InvalidRule = DROPPED) -> Iterator[Any]:
    """A function of an epoch's batches that returns sums and maxima per key."""
    key = {"k": "string", "x": "double"}
    states = {name: ValueState("long") for name in names}
    spec = OperatorSpec("totals", parse_key(key), states)
    updates = [StateUpdate(n, "max" if n == "b" else "add", n, f"{n}=sum") for n in names]
    output = OutputColumns(
        pa.schema([*list(SCHEMA)[:2], *(pa.field(n, pa.int64()) for n in names)]), "totals"
    )
    aggregates = Aggregates(
        ("k", "x"), states, tuple(updates), tuple((n, None) for n in names), output
    )
    with KeyedStateBackend.of(spec) as backend:

        def epoch(*batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
            body = AggregateOperator(aggregates)
            task = TaskContext(backend, rules={INPUT: rule})
            body.open(task)
            for rows in batches:
                columns = list(zip(*rows, strict=True)) if rows else [()] * 4
                arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
                assert not list(body.process(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)))
            pieces = list(body.finish())
            body.close()
            epoch.invalid_rows = task.invalid_rows  # type: ignore[attr-defined]
            backend.seal(snapshot=False)
            return [tuple(row.values()) for piece in pieces for row in piece.to_pylist()]

        yield epoch


def test_keys_of_which_all_values_are_null_are_emitted() -> None:
    with sums(["a"]) as epoch:
        rows = [("p", 0.0, 1, None), ("q", 0.0, None, None), ("p", 0.0, None, None)]
        assert sorted(epoch(rows)) == [("p", 0.0, 1), ("q", 0.0, None)]
        # In any epoch with a row of theirs, as if there were a count beside the sum.
        assert epoch([("p", -0.0, None, None)]) == [("p", 0.0, 1)]
        assert epoch([("q", 0.0, None, None)], [("q", 0.0, 4, None)]) == [("q", 0.0, 4)]
        assert epoch([("q", 0.0, 5, None)], [("q", 0.0, None, None)]) == [("q", 0.0, 9)]
        assert epoch() == epoch([]) == []


MOST = (1 << 63) - 1


def test_a_sum_beyond_its_range_names_the_key() -> None:
    rows = [("p", 1.5, MOST, None), ("q", 1.5, MOST, None), ("q", 1.5, 1, None)]
    with (
        sums(["a"], InvalidRule(on_invalid="fail")) as epoch,
        pytest.raises(
            InvalidRowError, match=r"key \('q', 1\.5\) would take a=sum beyond the range of long"
        ),
    ):
        epoch(rows)


def test_a_row_that_is_too_much_takes_no_part() -> None:
    with sums(["b", "a"]) as epoch:
        assert epoch(
            [("p", 1.5, MOST, 1), ("p", 1.5, 1, 9), ("p", 1.5, -1, 2), ("p", 1.5, 1, 3)],
            [("p", 1.5, 1, 9)],
        ) == [("p", 1.5, 3, MOST)]
        assert epoch.invalid_rows == 2


def same(x: Any) -> Any:
    """A key's column in a form that is equal where SQL's GROUP BY holds it equal."""
    if isinstance(x, float):
        return "nan" if math.isnan(x) else x + 0.0
    return x


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["", "p", None]),
        st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, None]),
        st.sampled_from([None, None, 0, 3, -7]),
        st.sampled_from([None, None, 0, 3, -7]),
    ),
    max_size=8,
)


@drawn(60)
@given(st.lists(st.lists(ROWS, max_size=3), max_size=3), st.sampled_from(["a", "b", "ab"]))
def test_groups_and_their_nulls_are_those_of_sql(epochs: list[list[list[Any]]], names: str) -> None:
    seen: dict[Any, list[list[Any]]] = {}
    with sums(list(names)) as epoch:
        for batches in epochs:
            touched = set()
            for row in (row for rows in batches for row in rows):
                key = tuple(map(same, row[:2]))
                touched.add(key)
                own = seen.setdefault(key, [[], []])
                for values, value in zip(own, row[2:], strict=True):
                    values += [] if value is None else [value]
            found = epoch(*batches)
            emitted = {tuple(map(same, row[:2])): row[2:] for row in found}
            assert len(emitted) == len(found)
            for key, values in emitted.items():
                a, b = seen[key]
                totals = {"a": sum(a) if a else None, "b": max(b, default=None)}
                assert values == tuple(totals[name] for name in names)
            assert set(emitted) == touched
