"""Keyed counts and sums, a batch at a time and a key at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench import peers
from bench.measure import Row, Scale, Work, by_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pystate import KeyedStateBackend

BATCH_ROWS = 65_536
"""Rows that one KeyBatch sees."""


def long_backend(*names: str) -> KeyedStateBackend:
    """A heap table with a long key and long states."""
    states = {name: ps.ValueState("long", default=0) for name in names}
    return ps.KeyedStateBackend(key="long", states=states)


def in_batches(array: pa.Array[Any]) -> Iterator[pa.Array[Any]]:
    """Slices of `BATCH_ROWS` rows."""
    for start in range(0, len(array), BATCH_ROWS):
        yield array.slice(start, BATCH_ROWS)


def fill(backend: KeyedStateBackend, n_keys: int, *names: str, there: int = 0) -> None:
    """Insert the keys there..n_keys - 1 with zeros and seal, in epochs of a million."""
    for start in range(there, n_keys, 1_000_000):
        keys = pa.array(np.arange(start, min(start + 1_000_000, n_keys), dtype=np.int64))
        for part in in_batches(keys):
            batch = backend.keys(part)
            for name in names:
                backend[name].add(batch, 0)
        seal(backend)


def count(backend: KeyedStateBackend, batches: Iterable[pa.Array[Any]], n: int = 1) -> None:
    """Count the rows of each key."""
    for batch in batches:
        backend["n"].add(backend.keys(batch), n)


def seal(backend: KeyedStateBackend) -> None:
    """Seal and drop the snapshot."""
    backend.seal().close()


def random_keys(n_keys: int, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Uniform keys, the same for all participants."""
    return np.random.default_rng(42).integers(0, n_keys, rows)


def add_works(backend: KeyedStateBackend, add: Callable[[], None]) -> dict[str, Work]:
    """The same work without and with the seal that ends an epoch."""

    def add_and_seal() -> None:
        add()
        seal(backend)

    return {
        "pystate": Work(add, after=lambda: seal(backend)),
        "pystate, seal timed": Work(add_and_seal),
    }


def count_works(scale: Scale, n_keys: int) -> dict[str, Work]:
    """Count rows per key; all keys exist already."""
    keys = random_keys(n_keys, scale.rows)
    backend = long_backend("n")
    fill(backend, n_keys, "n")
    add = partial(count, backend, list(in_batches(pa.array(keys))))
    dict_keys = keys.tolist()
    counts = dict.fromkeys(range(n_keys), 0)
    slots = np.zeros(n_keys, np.int64)
    return {
        **add_works(backend, add),
        "dict": Work(lambda: peers.count_in_dict(counts, dict_keys)),
        "numpy.add.at": Work(lambda: peers.count_in_array(slots, keys)),
    }


def sum_and_count_works(scale: Scale, n_keys: int) -> dict[str, Work]:
    """Sum and count per key."""
    keys = random_keys(n_keys, scale.rows)
    values = np.random.default_rng(43).integers(0, 1_000, scale.rows)
    backend = long_backend("total", "n")
    fill(backend, n_keys, "total", "n")
    batches = list(zip(in_batches(pa.array(keys)), in_batches(pa.array(values)), strict=True))
    total, n = backend["total"], backend["n"]

    def add() -> None:
        for batch, amounts in batches:
            found = backend.keys(batch)
            total.add(found, amounts)
            n.add(found, 1)

    dict_keys, dict_values = keys.tolist(), values.tolist()
    rows = dict.fromkeys(range(n_keys), (0, 0))
    return {
        **add_works(backend, add),
        "dict": Work(lambda: peers.sum_and_count_in_dict(rows, dict_keys, dict_values)),
    }


def count_one_by_one(backend: KeyedStateBackend, keys: Sequence[int]) -> None:
    """The cost of a function that handles one row at a time, without its own work."""
    count = backend["n"]
    for k in keys:
        backend.set_current_key(k)
        n = count.value()
        count.update(n + 1)


def count_selected(backend: KeyedStateBackend, keys: pa.Array[Any]) -> None:
    """The same with the keys of some rows known beforehand, as for the rows of a function."""
    count = backend["n"]
    for part in in_batches(keys):
        select = backend.keys(part).select
        for i in range(len(part)):
            select(i)
            n = count.value()
            count.update(n + 1)


def scalar_works(scale: Scale, n_keys: int) -> dict[str, Work]:
    """Set the key, read, update."""
    drawn = random_keys(n_keys, scale.scalar_rows)
    column, keys = pa.array(drawn), drawn.tolist()
    backend = long_backend("n")
    fill(backend, n_keys, "n")
    counts = dict.fromkeys(range(n_keys), 0)
    return {
        "pystate": Work(lambda: count_one_by_one(backend, keys), after=lambda: seal(backend)),
        "pystate, keys known in batches": Work(
            lambda: count_selected(backend, column), after=lambda: seal(backend)
        ),
        "dict": Work(lambda: peers.read_and_update_dict(counts, keys)),
    }


def vectorised(scale: Scale) -> list[Row]:
    """A batch at a time."""
    rows = []
    for what, works_of in (("count", count_works), ("sum+count", sum_and_count_works)):
        for n_keys in scale.key_counts:
            timings = by_turns(works_of(scale, n_keys), scale.rounds)
            for name in timings.seconds:
                text = f"{what}, {n_keys:,} keys: {name}"
                lead = (name, "dict") if name.startswith("pystate") else None
                goal = ">= 25x" if name.endswith("seal timed") else ""
                row = timings.row(
                    name, "count", text, scale.rows, lead=lead, peer="dict", expected=goal
                )
                rows.append(row)
    return rows


def scalar(scale: Scale) -> list[Row]:
    """A key at a time, at the smallest number of keys."""
    n_keys, rows = scale.key_counts[0], []
    timings = by_turns(scalar_works(scale, n_keys), scale.rounds)
    for name in timings.seconds:
        what = f"one key at a time, {n_keys:,} keys: {name}"
        lead = None if name == "dict" else (name, "dict")
        goal = ">= 1x" if lead else ""
        row = timings.row(
            name, "one-key", what, scale.scalar_rows, lead=lead, peer="dict", expected=goal
        )
        rows.append(row)
    return rows
