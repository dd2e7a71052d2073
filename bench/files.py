"""How fast state is written to files, restored, merged and read, at any number of rows."""

from __future__ import annotations

import io
import itertools
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import in_batches
from bench.measure import Row, Scale, Spread
from bench.writes import string_keys
from pystate.checkpoint.state_files import FileInfo, file_schema, merge_files, open_file
from pystate.processor.file_scan import merged_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pystate import KeyedStateBackend
    from pystate.state.declaration import State

ROUNDS = 3
KINDS = ("long", "string")
KEY_GROUPS = (16, 128)
CAUGHT_UP = 4
"""The delta that a table catches up with has one new key per this many existing keys."""
STEPS = ("written", "restored", "caught up", "re-imported", "merged", "read")
FLAT = ("caught up", "re-imported", "merged")

STATES: dict[str, State[Any]] = {
    "total": ps.ValueState("long"),
    "n": ps.ValueState("long", default=0),
}

#: What a key has of a list or map, and how many elements.
COLLECTIONS: dict[str, tuple[State[Any], int]] = {
    "maps of 10 longs": (ps.MapState("long", "long"), 10),
    "maps of 10 strings": (ps.MapState("string", "string"), 10),
    "lists of 10 longs": (ps.ListState("long"), 10),
    "lists of 100 longs": (ps.ListState("long"), 100),
    "lists of 10 strings": (ps.ListState("string"), 10),
}
DELTAS = 3
CHANGED = 50
"""Each delta changes one of this many keys."""


def backend_of(kind: str, key_groups: int) -> KeyedStateBackend:
    """A heap table with a sum and a count."""
    return ps.KeyedStateBackend(key=kind, states=STATES, max_parallelism=key_groups)


def add(backend: KeyedStateBackend, kind: str, first: int, rows: int) -> None:
    """Add `rows` new keys, in random order."""
    numbers = pa.array(np.random.default_rng(52).permutation(rows) + first)
    for part in in_batches(numbers):
        keys = backend.keys(part if kind == "long" else string_keys(part.to_numpy()))
        backend["total"].add(keys, part)
        backend["n"].add(keys, 1)


def timed(run: Callable[[], Any]) -> float:
    """Processor seconds, of all threads."""
    began = time.process_time()
    run()
    return time.process_time() - began


def written(backend: KeyedStateBackend) -> tuple[io.BytesIO, float, float]:
    """The open epoch as a file, its uncompressed megabytes, and the seconds it took."""
    out = io.BytesIO()
    with backend.seal() as snapshot:
        began = time.process_time()
        info = snapshot.write(out)
        return out, info.raw_bytes / 1e6, time.process_time() - began


def imported(kind: str, key_groups: int, rows: pa.Table) -> None:
    """The rows of another table, batch by batch in their order."""
    with backend_of(kind, key_groups) as backend:
        for batch in rows.to_batches():
            keys = backend.keys([batch.column(0)])
            for name in ("total", "n"):
                backend[name].update_all(keys, batch.column(name))


def read(files: list[io.BytesIO], rows: int, states: dict[str, State[Any]] = STATES) -> None:
    """The rows of several files, as `read_state` gives them."""
    with ExitStack() as stack:
        opened = [stack.enter_context(open_file(file)) for file in files]
        first = opened[0].reader
        groups = FileInfo(*first.info()).max_parallelism
        key = file_schema(first).key
        found = merged_rows(opened, key, states, (0, groups - 1), groups, {})
        if sum(len(columns[0]) for columns in found) != rows:
            raise AssertionError(f"not {rows} rows were read")


def round_trip(kind: str, key_groups: int, rows: int) -> dict[str, float]:
    """Megabytes per second of each step."""
    with backend_of(kind, key_groups) as backend:
        add(backend, kind, 0, rows)
        base, megabytes, seconds = written(backend)
        add(backend, kind, rows, rows // CAUGHT_UP)
        delta, more, _ = written(backend)
    rates = {"written": megabytes / seconds}
    with backend_of(kind, key_groups) as backend:
        rates["restored"] = megabytes / timed(lambda: backend.restore([base]))
        if len(backend) != rows:
            raise AssertionError(f"{len(backend)} rows of {rows} were restored")
        copy = backend.to_arrow()
        rates["caught up"] = more / timed(lambda: backend.load(delta))
    both = megabytes + more
    rates["merged"] = both / timed(lambda: merge_files([base, delta], io.BytesIO()))
    rates["read"] = both / timed(lambda: read([base, delta], copy.num_rows + rows // CAUGHT_UP))
    rates["re-imported"] = megabytes / timed(lambda: imported(kind, key_groups, copy))
    return rates


def files(scale: Scale) -> list[Row]:
    """Write and restore, at each number of rows, and compare with the smallest number."""
    rows, (smallest, *_) = [], scale.file_rows
    for kind, key_groups in itertools.product(KINDS, KEY_GROUPS):
        base: list[dict[str, float]] = []
        for n in scale.file_rows:
            rounds = [round_trip(kind, key_groups, n) for _ in range(ROUNDS)]
            base = base or rounds
            for step in STEPS:
                what = f"{step}, {n:,} rows, {kind} keys, {key_groups} key groups"
                goal = "flat" if step in FLAT else ">= 500 MB/s, flat"
                row = Row("files", what, Spread.of(r[step] for r in rounds), "MB/s", expected=goal)
                if n != smallest:
                    pairs = zip(rounds, base, strict=True)
                    share = Spread.of(ours[step] / first[step] for ours, first in pairs)
                    row = replace(row, peer=f"at {smallest:,} rows", ratio=share)
                rows.append(row)
    return rows


def put_elements(
    backend: KeyedStateBackend, state: State[Any], length: int, numbers: pa.Array[Any]
) -> None:
    """Put as many elements into the list or map of each key."""
    values: Any = pa.array(np.random.default_rng(53).integers(0, 1 << 40, len(numbers)))
    if state.type.name == "string":
        values = values.cast(pa.string())
    keys = backend.keys(numbers)
    for i in range(length):
        if isinstance(state, ps.MapState):
            name: Any = i * 7 if state.key_type.name == "long" else f"field-{i:04}"
            backend["s"].put_entries(keys, [name] * len(numbers), values)
        else:
            backend["s"].append(keys, values)


def collection_rates(state: State[Any], length: int, rows: int) -> dict[str, float]:
    """Megabytes per second of raw state: a base, with deltas and without, and into a table."""
    states: dict[str, State[Any]] = {"s": state}
    rng = np.random.default_rng(54)
    made = []
    with ps.KeyedStateBackend(key="long", states=states, max_parallelism=16) as backend:
        for part in in_batches(pa.array(rng.permutation(rows))):
            put_elements(backend, state, length, part)
        made.append(written(backend))
        for _ in range(DELTAS):
            few = pa.array(rng.choice(rows, rows // CHANGED, replace=False))
            put_elements(backend, state, length, few)
            made.append(written(backend))
    files = [file for file, _, _ in made]
    (_, base, took), every = made[0], sum(megabytes for _, megabytes, _ in made)

    def restored() -> None:
        with ps.KeyedStateBackend(key="long", states=states, max_parallelism=16) as backend:
            backend.restore([files[0]])

    return {
        "written": base / took,
        "read": base / timed(lambda: read(files[:1], rows, states)),
        "read with three deltas": every / timed(lambda: read(files, rows, states)),
        "restored": base / timed(restored),
    }


def collections(scale: Scale) -> list[Row]:
    """Write lists and maps, read them without a table, and restore them into one."""
    rows = []
    for name, (state, length) in COLLECTIONS.items():
        keys = max(scale.element_rows // length, CHANGED)
        rounds = [collection_rates(state, length, keys) for _ in range(ROUNDS)]
        for step in rounds[0]:
            figure = Spread.of(one[step] for one in rounds)
            row = Row("element-files", f"{step}, {keys:,} {name}", figure, "MB/s")
            rows.append(replace(row, expected=">= 500 MB/s"))
    return rows
