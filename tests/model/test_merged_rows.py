"""Rows merged out of files, against those of a table that was restored from the same files."""

from __future__ import annotations

import io
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.merging import merge_files
from pystate.checkpoint.state_files import open_file
from pystate.processor.merged import can_merge, merged_rows

KEY = (("k", "int"), ("s", "string"))
STATES: dict[str, Any] = {
    "n": ps.ValueState("long"),
    "flag": ps.ValueState("boolean"),
    "small": ps.ValueState("byte"),
    "money": ps.ValueState("decimal(20,3)"),
    "text": ps.ValueState("string"),
    "inline": ps.ValueState("struct<x:int,y:double>"),
    "nested": ps.ValueState("array<string>"),
}
VALUES = {
    "n": st.integers(-9, 9),
    "flag": st.booleans(),
    "small": st.integers(-128, 127),
    "money": st.decimals(-99, 99, places=3),
    "text": st.text(max_size=5),
    "inline": st.fixed_dictionaries(
        {"x": st.none() | st.integers(-9, 9), "y": st.none() | st.floats(-1, 1)}
    ),
    "nested": st.lists(st.none() | st.text(max_size=2), max_size=3),
}
GROUPS = 8
keys = st.tuples(st.none() | st.integers(0, 12), st.sampled_from([None, "", "a", "b"]))
#: None clears a state, an empty dict deletes the key.
changes = st.fixed_dictionaries({}, optional={n: st.none() | v for n, v in VALUES.items()})


@st.composite
def epochs(draw: st.DrawFn) -> list[list[tuple[Any, dict[str, Any]]]]:
    """Some epochs of a few changes each, after one of many keys that may all have all states.

    In some all keys change the same states, and stand together in a file.
    """
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=2, unique=True))
    same = st.fixed_dictionaries({n: st.none() | VALUES[n] for n in names})
    whole = draw(st.sampled_from([st.fixed_dictionaries(VALUES), changes, same]))
    later = draw(st.sampled_from([changes, same]))
    first = draw(st.lists(st.tuples(keys, whole), max_size=40))
    return [first, *draw(st.lists(st.lists(st.tuples(keys, later), max_size=12), max_size=4))]


def written(rows: list[list[tuple[Any, dict[str, Any]]]]) -> list[io.BytesIO]:
    files = []
    with ps.KeyedStateBackend(KEY, states=STATES, max_parallelism=GROUPS, uid="op") as backend:
        for epoch in rows:
            for key, values in epoch:
                backend.set_current_key(key)
                if not values:
                    backend.delete([[part] for part in key])
                for name, value in values.items():
                    if value is None:
                        backend[name].clear()
                    else:
                        backend[name].update(value)
            snapshot = backend.snapshot()
            if snapshot is not None:
                files.append(io.BytesIO())
                snapshot.write(files[-1])
    return files


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


@settings(max_examples=150, deadline=None)
@given(
    epochs(),
    st.lists(st.sampled_from(sorted(STATES)), min_size=1, unique=True),
    st.tuples(st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1)).map(sorted),
    st.integers(0, 3),
)
def test_merged_rows_are_those_of_a_table(
    rows: list[list[tuple[Any, dict[str, Any]]]],
    wanted: list[str],
    key_groups: list[int],
    merged: int,
) -> None:
    files = written(rows)
    if merged > 1 and len(files) >= merged:
        base = io.BytesIO()
        merge_files(files[:merged], base)
        files = [base, *files[merged:]]
    first, last = key_groups
    states = {name: STATES[name] for name in wanted}
    backend = ps.KeyedStateBackend(
        KEY, states=states, max_parallelism=GROUPS, key_group_range=(first, last), uid="op"
    )
    with backend:
        for file in files:
            backend.load(file, allow_unclaimed_state=True)
        expected = backend.to_arrow()
        assert can_merge(backend.key, states)
        with ExitStack() as stack:
            opened = [stack.enter_context(open_file(file)) for file in files]
            batches = merged_rows(opened, backend.key, states, (first, last), GROUPS, {})
            assert batches is not None
            found = pa.Table.from_batches(
                [pa.RecordBatch.from_arrays(c, schema=expected.schema) for c in batches],
                expected.schema,
            )
    found.validate(full=True)
    assert sorted_rows(found) == sorted_rows(expected)
