"""Inserts, string keys, skewed keys and deletes, each compared with a count in the same run."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import (
    BATCH_ROWS,
    count,
    count_works,
    fill,
    in_batches,
    long_backend,
    random_keys,
    seal,
)
from bench.measure import Row, Scale, Spread, Work, by_turns

if TYPE_CHECKING:
    from pystate import KeyedStateBackend

ZIPF = 1.1
LENGTHS = (10, 40)
"""Bytes of string keys, both ends included."""
STEP_ROWS = 256
"""Inserts between two readings of the clock when the longest pause is measured."""
BASE = "count, keys that are there"


def string_keys(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array[Any]:
    """A string per number: its digits, scrambled so that they differ early, then letters.

    Equal numbers have equal strings; lengths are spread over `LENGTHS`.
    """
    short, long = LENGTHS
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    digits = np.array([mixed >> np.uint64(4 * i) & np.uint64(15) for i in range(short)], np.uint8)
    letters = np.full((len(numbers), long), ord("x"), np.uint8)
    letters[:, :short] = digits.T + ord("a")
    sizes = short + (mixed >> np.uint64(40)).astype(np.int64) % (long - short + 1)
    kept = np.arange(long) < sizes[:, np.newaxis]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.StringArray.from_buffers(
        len(numbers), pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters[kept].tobytes())
    )


def zipf_keys(n_keys: int, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Keys whose frequencies fall with their rank to the power of `ZIPF`."""
    weights = np.cumsum(np.arange(1, n_keys + 1, dtype=np.float64) ** -ZIPF)
    drawn = np.random.default_rng(48).random(rows) * weights[-1]
    # A hot key may be any key, not only one of the first that were made.
    hot = np.random.default_rng(49).permutation(n_keys)
    keys: np.ndarray[Any, np.dtype[np.int64]] = hot[np.searchsorted(weights, drawn)]
    return keys


def backend_of(kind: str) -> KeyedStateBackend:
    """A heap table that counts."""
    return ps.KeyedStateBackend(key=kind, states={"n": ps.ValueState("long", default=0)})


class Fresh:
    """A table that starts every round empty, or full, and is freed after the timing."""

    def __init__(self, kind: str, keys: pa.Array[Any]) -> None:
        self.kind, self.keys = kind, keys
        self.backend: KeyedStateBackend | None = None

    def empty(self) -> None:
        """Make it without keys."""
        self.backend = backend_of(self.kind)
        seal(self.backend)

    def full(self) -> None:
        """Make it with all keys."""
        self.empty()
        self.count()
        assert self.backend is not None
        seal(self.backend)

    def count(self) -> None:
        """Count each key once."""
        assert self.backend is not None
        count(self.backend, in_batches(self.keys))

    def delete(self) -> None:
        """Delete each key."""
        assert self.backend is not None
        for part in in_batches(self.keys):
            self.backend.delete(part)

    def after(self) -> None:
        """Free it."""
        assert self.backend is not None
        self.backend.close()
        self.backend = None

    def inserts(self) -> Work:
        """Inserts into an empty one."""
        return Work(self.count, before=self.empty, after=self.after)

    def deletes(self) -> Work:
        """Deletes from a full one."""
        return Work(self.delete, before=self.full, after=self.after)


def update_work(backend: KeyedStateBackend, keys: pa.Array[Any]) -> Work:
    """Counts of existing keys."""
    add = partial(count, backend, list(in_batches(keys)))
    return Work(add, after=partial(seal, backend))


def works_of(scale: Scale, n_keys: int) -> dict[str, tuple[Work, int]]:
    """The works, with their numbers of rows."""
    numbers = np.random.default_rng(50).permutation(n_keys)
    longs, strings = pa.array(numbers), string_keys(numbers)
    skewed = long_backend("n")
    fill(skewed, n_keys, "n")
    texts = backend_of("string")
    count(texts, in_batches(strings))
    seal(texts)
    drawn = random_keys(n_keys, scale.rows)
    hot = pa.array(zipf_keys(n_keys, scale.rows))
    return {
        BASE: (count_works(scale, n_keys)["pystate"], scale.rows),
        "new keys": (Fresh("long", longs).inserts(), n_keys),
        "new strings of 10 to 40 bytes": (Fresh("string", strings).inserts(), n_keys),
        "count, strings that are there": (update_work(texts, string_keys(drawn)), scale.rows),
        f"count, zipf {ZIPF}": (update_work(skewed, hot), scale.rows),
        "deletes": (Fresh("long", longs).deletes(), n_keys),
        "deletes, strings": (Fresh("string", strings).deletes(), n_keys),
    }


def longest_step(n_keys: int) -> float:
    """Milliseconds of the longest step in which a table grows to `n_keys` keys.

    In processor time, since other processes may have the core for longer than any step.
    """
    keys = pa.array(np.random.default_rng(51).permutation(n_keys))
    longest = 0.0
    with backend_of("long") as backend:
        for start in range(0, n_keys, STEP_ROWS):
            if start % (16 * BATCH_ROWS) == 0:
                seal(backend)
            batch = backend.keys(keys.slice(start, STEP_ROWS))
            began = time.process_time()
            backend["n"].add(batch, 1)
            longest = max(longest, time.process_time() - began)
    return longest * 1e3


def writes(scale: Scale) -> list[Row]:
    """Processor time, at the smallest number of keys; growth at the largest."""
    n_keys = scale.key_counts[0]
    works = works_of(scale, n_keys)
    timings = by_turns(
        {name: work for name, (work, _) in works.items()}, scale.rounds, clock=time.process_time
    )
    rows = []
    for name, (_, amount) in works.items():
        row = timings.row(name, "writes", f"{name}, {n_keys:,} keys", amount)
        if name != BASE:
            share = timings.ratio(name, BASE).times(amount / scale.rows)
            row = replace(row, peer="the count", ratio=share, expected=">= 0.4x")
        rows.append(row)
    n_keys = scale.key_counts[-1]
    what = f"longest of the steps of {STEP_ROWS} inserts, up to {n_keys:,} keys"
    steps = Spread.of(longest_step(n_keys) for _ in range(3))
    return [*rows, Row("writes", what, steps, "ms", expected="<= 5 ms")]
