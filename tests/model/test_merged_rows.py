"""Rows merged out of files, against those of a table that was restored from the same files."""

from __future__ import annotations

import io
import pickle
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.state_files import merge_files, open_file
from pystate.errors import CorruptFileError, NewerFormatError
from pystate.processor.file_scan import can_merge, merged_rows
from pystate.types.arrays import hash_keys, key_groups
from tests.drawn import drawn

KEY = (("k", "int"), ("s", "string"))
POINT = "struct<x:int,y:double>"
STATES: dict[str, Any] = {
    "n": ps.ValueState("long"),
    "flag": ps.ValueState("boolean"),
    "small": ps.ValueState("byte"),
    "money": ps.ValueState("decimal(20,3)"),
    "text": ps.ValueState("string"),
    "inline": ps.ValueState(POINT),
    "nested": ps.ValueState("array<string>"),
    "longs": ps.ListState("long"),
    "bytes": ps.ListState("byte"),
    "flags": ps.ListState("boolean"),
    "texts": ps.ListState("string"),
    "sums": ps.ListState("decimal(20,3)"),
    "points": ps.ListState(POINT),
    "paths": ps.ListState("array<string>"),
    "things": ps.ListState(object),
    "by_id": ps.MapState("long", "long"),
    "by_name": ps.MapState("string", "string"),
    "by_sum": ps.MapState("decimal(20,3)", "array<string>"),
    "by_flag": ps.MapState("boolean", POINT),
    "by_small": ps.MapState("short", "boolean"),
    "by_float": ps.MapState("double", "decimal(20,3)"),
}
#: What an older program declared otherwise, or not at all.
OLDER: dict[str, Any] = {
    "n": ps.ValueState("int"),
    "inline": ps.ValueState("struct<x:int>"),
    "longs": ps.ListState("short"),
    "points": ps.ListState("struct<y:double>"),
    "sums": ps.ListState("decimal(10,3)"),
    "by_id": ps.MapState("int", "short"),
    "by_flag": ps.MapState("boolean", "struct<x:int>"),
}
LISTS = [name for name, state in STATES.items() if isinstance(state, ps.ListState)]
MAPS = [name for name, state in STATES.items() if isinstance(state, ps.MapState)]
longs = st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1)
sums = st.decimals(-99, 99, places=3)
texts = st.text(max_size=5)
nested = st.lists(st.none() | st.text(max_size=2), max_size=3)
points = st.fixed_dictionaries(
    {"x": st.none() | st.integers(-9, 9), "y": st.none() | st.floats(-1, 1)}
)
ITEMS = {
    "longs": longs,
    "bytes": st.integers(-128, 127),
    "flags": st.booleans(),
    "texts": texts,
    "sums": sums,
    "points": points,
    "paths": nested,
    "things": st.sampled_from([1, "a", (2, None)]),
}
#: Removes an entry.
GONE = ("gone",)
ENTRIES = {
    "by_id": (longs, longs),
    "by_name": (st.text(max_size=3), texts),
    "by_sum": (sums, nested),
    "by_flag": (st.booleans(), points),
    "by_small": (st.integers(-3, 300), st.booleans()),
    "by_float": (st.floats(-2, 2), sums),
}
VALUES = {
    "n": st.integers(-9, 9),
    "flag": st.booleans(),
    "small": st.integers(-128, 127),
    "money": sums,
    "text": texts,
    "inline": points,
    "nested": nested,
    # What is appended.
    **{name: st.lists(items, max_size=4) for name, items in ITEMS.items()},
    # What is put.
    **{
        name: st.dictionaries(key, st.none() | st.just(GONE) | value, max_size=4)
        for name, (key, value) in ENTRIES.items()
    },
}
GROUPS = 8
keys = st.tuples(st.none() | st.integers(0, 12), st.sampled_from([None, "", "a", "b"]))
#: None clears a state, an empty dict deletes the key.
changes = st.fixed_dictionaries({}, optional={n: st.none() | v for n, v in VALUES.items()})

Epoch = list[tuple[Any, dict[str, Any]]]


@st.composite
def epochs(draw: st.DrawFn) -> list[Epoch]:
    """Some epochs of a few changes each, after one of many keys that may all have all states.

    In some all keys change the same states, and stand together in a file.
    """
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    same = st.fixed_dictionaries({n: st.none() | VALUES[n] for n in names})
    some = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=6, unique=True))
    few = st.fixed_dictionaries({}, optional={n: st.none() | VALUES[n] for n in some})
    every = st.fixed_dictionaries({n: VALUES[n] for n in some})
    whole = draw(st.sampled_from([every, few, same, changes]))
    later = draw(st.sampled_from([few, same]))
    first = draw(st.lists(st.tuples(keys, whole), max_size=30))
    return [first, *draw(st.lists(st.lists(st.tuples(keys, later), max_size=12), max_size=4))]


def apply(backend: ps.KeyedStateBackend, key: Any, values: dict[str, Any], timers: bool) -> None:
    backend.set_current_key(key)
    if timers:
        backend.register_timer("event", len(values))
    if not values:
        backend.delete([[part] for part in key])
    for name, value in values.items():
        state: Any = backend[name]
        if value is None:
            state.clear()
        elif name in LISTS:
            state.add_all(value)
        elif name in MAPS:
            for at, put in value.items():
                state.remove(at) if put is GONE else state.put(at, put)
        else:
            state.update(value)


def remember(rows: dict[Any, dict[str, Any]], key: Any, values: dict[str, Any]) -> None:
    """What `apply` does, with dicts."""
    if not values:
        rows.pop(key, None)
    row = rows.setdefault(key, {})
    for name, value in values.items():
        if value is None:
            row.pop(name, None)
        elif name in LISTS:
            row[name] = row.get(name, []) + value
        elif name in MAPS:
            both = {**row.get(name, {}), **value}
            row[name] = {at: put for at, put in both.items() if put is not GONE}
        else:
            row[name] = value


def sealed(backend: ps.KeyedStateBackend, files: list[io.BytesIO]) -> None:
    snapshot = backend.snapshot()
    if snapshot is not None:
        files.append(io.BytesIO())
        snapshot.write(files[-1])


def written(rows: list[Epoch], timers: bool = False) -> list[io.BytesIO]:
    files: list[io.BytesIO] = []
    with ps.KeyedStateBackend(
        KEY, states=STATES, timers=timers, max_parallelism=GROUPS, uid="op"
    ) as backend:
        for epoch in rows:
            for key, values in epoch:
                apply(backend, key, values, timers)
            sealed(backend, files)
    return files


def fitting(declaration: Any, value: Any) -> Any:
    """A value that the older declaration takes, too."""
    if isinstance(value, dict) and value.keys() <= {"x", "y"} and value:
        return {name: v for name, v in value.items() if name in declaration}
    return value % 100 if isinstance(value, int) and not isinstance(value, bool) else value


def as_older(values: dict[str, Any], states: dict[str, Any]) -> dict[str, Any]:
    """The changes that a program can make that declares these states."""
    found = {}
    for name, value in values.items():
        if name not in states or value is None:
            continue
        ddl = states[name].type.ddl
        if name in LISTS:
            value = [fitting(ddl, item) for item in value]
        elif name in MAPS:
            value = {fitting("", at): fitting(ddl, put) for at, put in value.items()}
        found[name] = fitting(ddl, value) if name in OLDER and name not in MAPS else value
    return found


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def gathered(
    files: list[io.BytesIO],
    backend: ps.KeyedStateBackend,
    states: dict[str, Any],
    since: dict[str, int] | None = None,
    clock: tuple[int | None, int | None] = (None, None),
) -> pa.Table:
    """The rows of files as `read_state` gives them, of the backend's key groups."""
    assert can_merge(backend.key, states)
    schema = backend.arrow_schema
    with ExitStack() as stack:
        opened = [stack.enter_context(open_file(file)) for file in files]
        groups = backend.key_group_range
        batches = merged_rows(opened, backend.key, states, groups, GROUPS, since or {}, clock)
        found = [pa.RecordBatch.from_arrays(columns, schema=schema) for columns in batches]
    table = pa.Table.from_batches(found, schema)
    table.validate(full=True)
    return table


def plain(name: str, value: Any) -> Any:
    """A state of a row as `remember` has it; None if there is none."""
    if name in MAPS:
        return dict(value) or None
    if name in LISTS:
        items = [pickle.loads(item) if name == "things" else item for item in value]
        return items or None
    return value


@drawn(300)
@given(
    epochs(),
    st.lists(st.sampled_from(sorted(STATES)), min_size=1, max_size=8, unique=True),
    st.tuples(st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1)).map(sorted),
    st.tuples(st.integers(0, 3), st.integers(0, 3)).map(sorted),
    st.sampled_from(["base", "delta"]),
    st.booleans(),
)
def test_merged_rows_are_those_of_a_table(
    rows: list[Epoch],
    wanted: list[str],
    bounds: list[int],
    merged: list[int],
    kind: str,
    timers: bool,
) -> None:
    files = written(rows, timers)
    first, last = merged
    if last - first > 1 and len(files) >= last:
        one = io.BytesIO()
        merge_files(files[first:last], one, kind=kind if first == 0 else "delta")
        files = [*files[:first], one, *files[last:]]
    states = {name: STATES[name] for name in wanted}
    low, high = bounds
    backend = ps.KeyedStateBackend(
        KEY, states=states, max_parallelism=GROUPS, key_group_range=(low, high), uid="op"
    )
    with backend:
        for file in files:
            backend.load(file, allow_unclaimed_state=True)
        found = gathered(files, backend, states)
        assert sorted_rows(found) == sorted_rows(backend.to_arrow())
    model: dict[Any, dict[str, Any]] = {}
    for epoch in rows:
        for key, values in epoch:
            remember(model, key, values)
    expected = {}
    for key, row in model.items():
        columns = [pa.array([key[0]], pa.int32()), pa.array([key[1]], pa.string())]
        kept = {n: v for n, v in row.items() if n in wanted and (v or n not in [*LISTS, *MAPS])}
        if kept and low <= key_groups(hash_keys(columns), GROUPS)[0] <= high:
            expected[key] = kept
    rows_found = {}
    for row in found.to_pylist():
        states_found = {n: plain(n, row[n]) for n in wanted}
        rows_found[row["k"], row["s"]] = {n: v for n, v in states_found.items() if v is not None}
    assert rows_found == expected


@drawn(200)
@given(
    epochs(),
    st.lists(st.sampled_from(sorted(STATES)), unique=True),
    st.lists(st.sampled_from(sorted(STATES)), min_size=1, max_size=8, unique=True),
    st.dictionaries(st.sampled_from(sorted(STATES)), st.integers(1, 4), max_size=3),
    st.booleans(),
)
def test_files_of_older_programs(
    rows: list[Epoch], left_out: list[str], wanted: list[str], since: dict[str, int], first: bool
) -> None:
    """They declared less, and some of it otherwise; what was dropped meanwhile does not count."""
    older = {n: OLDER.get(n, state) for n, state in STATES.items() if n not in left_out}
    if not older:
        older = {"n": OLDER["n"]}
    files: list[io.BytesIO] = []
    before = rows[:1] if first else rows[:-1]
    with ps.KeyedStateBackend(KEY, states=older, max_parallelism=GROUPS, uid="op") as backend:
        for epoch in before:
            for key, values in epoch:
                apply(backend, key, as_older(values, older), False)
            sealed(backend, files)
    with ps.KeyedStateBackend(KEY, states=STATES, max_parallelism=GROUPS, uid="op") as backend:
        backend.restore(list(files))
        for epoch in rows[len(before) :]:
            for key, values in epoch:
                apply(backend, key, values, False)
            sealed(backend, files)
    states = {name: STATES[name] for name in wanted}
    with ps.KeyedStateBackend(KEY, states=states, max_parallelism=GROUPS, uid="op") as backend:
        for file in files:
            backend.load(file, allow_unclaimed_state=True, since=since)
        found = gathered(files, backend, states, since)
        assert sorted_rows(found) == sorted_rows(backend.to_arrow())


@drawn(100)
@given(epochs(), st.data())
def test_damaged_files_are_refused(rows: list[Epoch], data: st.DataObject) -> None:
    files = written(rows)
    with ps.KeyedStateBackend(KEY, states=STATES, max_parallelism=GROUPS, uid="op") as backend:
        right = sorted_rows(gathered(files, backend, STATES))
        if not files:
            return
        which = data.draw(st.integers(0, len(files) - 1))
        damaged = bytearray(files[which].getvalue())
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        files[which] = io.BytesIO(damaged)
        try:
            found = gathered(files, backend, STATES)
        except (CorruptFileError, NewerFormatError):
            return
        assert sorted_rows(found) == right


def test_batches_are_bounded() -> None:
    states: dict[str, Any] = {"items": ps.ListState("long"), "text": ps.ValueState("string")}
    with ps.KeyedStateBackend("long", states=states, max_parallelism=GROUPS) as backend:
        rows = 150_000
        keys = backend.keys(pa.array(range(rows)))
        backend["items"].append(keys, pa.array(range(rows)))
        few = backend.keys(pa.array([7, 8]))
        backend["items"].extend(few, pa.array([list(range(400_000))] * 2))
        backend["text"].update_all(few, pa.array(["x" * (3 << 20)] * 2))
        file = io.BytesIO()
        with backend.seal() as snapshot:
            snapshot.write(file)
        with open_file(file) as opened:
            batches = merged_rows([opened], backend.key, states, (0, GROUPS - 1), GROUPS, {})
            sizes = [(len(c[0]), sum(array.nbytes for array in c)) for c in batches]
        found = gathered([file], backend, states).sort_by("key")
    assert sum(n for n, _ in sizes) == rows
    assert max(n for n, _ in sizes) <= 1 << 16
    assert max(size for _, size in sizes) < (4 << 20) + 7 * (1 << 20)
    assert found["items"].to_pylist()[6:10] == [
        [6],
        [7, *range(400_000)],
        [8, *range(400_000)],
        [9],
    ]


@drawn(100)
@given(epochs(), st.sampled_from([0, 20, 512]))
def test_the_open_epoch_is_the_newest_file(rows: list[Epoch], whole_bytes: int) -> None:
    files: list[io.BytesIO] = []
    with ps.KeyedStateBackend(KEY, states=STATES, max_parallelism=GROUPS, uid="op") as backend:
        backend._table.set_whole_rows(whole_bytes)
        for epoch in rows:
            sealed(backend, files)
            for key, values in epoch:
                apply(backend, key, values, False)
        changes = io.BytesIO()
        backend._table.changes().write(changes, "what changed")
        found = gathered([*files, changes], backend, STATES)
        assert sorted_rows(found) == sorted_rows(backend.to_arrow())
        sealed(backend, files)
        assert sorted_rows(gathered(files, backend, STATES)) == sorted_rows(found)


def timed_states(lenient: bool) -> dict[str, Any]:
    ttl = ps.StateTtl(
        milliseconds=100,
        update="read_and_write",
        visibility="return_if_not_cleaned_up" if lenient else "never_return_expired",
    )
    return {
        "n": ps.ValueState("long", ttl=ttl),
        "texts": ps.ListState("string", ttl=ttl),
        "by_id": ps.MapState("long", "long", ttl=ps.StateTtl(milliseconds=200)),
        "stays": ps.ValueState("long"),
    }


timed_steps = st.tuples(
    keys,
    st.sampled_from(["n", "texts", "by_id", "stays", "read"]),
    st.integers(0, 3),
    st.integers(0, 60),
)


@drawn(200)
@given(
    st.lists(st.lists(timed_steps, max_size=15), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 300),
)
def test_what_has_expired_is_not_there(
    steps: list[list[tuple[Any, str, int, int]]], lenient: bool, timers: bool, later: int | None
) -> None:
    states, files, now = timed_states(lenient), list[io.BytesIO](), 1000
    with ps.KeyedStateBackend(
        KEY, states=states, timers=timers, max_parallelism=GROUPS, uid="op"
    ) as backend:
        for epoch in steps:
            for key, name, value, passed in epoch:
                now += passed
                backend.set_clock(processing_time=now)
                backend.set_current_key(key)
                if timers and value == 3:
                    backend.register_timer("event", now)
                elif name == "texts":
                    backend["texts"].add(str(value))
                elif name == "by_id":
                    backend["by_id"].put(value, value)
                elif name == "read":
                    backend["n"].value()
                else:
                    backend[name].update(value)
            sealed(backend, files)
    clock = None if later is None else now + later
    with ps.KeyedStateBackend(KEY, states=states, max_parallelism=GROUPS, uid="op") as backend:
        for file in files:
            backend.load(file, allow_unclaimed_state=True)
        if clock is not None:
            backend.set_clock(processing_time=clock)
        found = gathered(files, backend, states, clock=(clock, None))
        assert sorted_rows(found) == sorted_rows(seen(backend.to_arrow()))


def seen(rows: pa.Table) -> pa.Table:
    """Without keys of which nothing is seen, which a table still has."""
    return pa.Table.from_pylist(
        [
            row
            for row in rows.to_pylist()
            if any(v not in (None, []) for v in list(row.values())[2:])
        ],
        rows.schema,
    )
