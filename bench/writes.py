"""Inserts, string keys, skewed keys and deletes, each compared with a count in the same run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import BATCH_ROWS, count_works, fill, in_batches, long_backend, random_keys, seal
from bench.measure import Row, Scale, Spread, Work, by_turns

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def __init__(self, kind: str, keys: pa.Array[Any], *, full: bool) -> None:
        self.kind, self.keys, self.full = kind, keys, full
        self.backend: KeyedStateBackend | None = None

    def before(self) -> None:
        """Make it."""
        self.backend = backend_of(self.kind)
        self.backend.seal().close()
        if self.full:
            self.count()
            seal(self.backend)

    def count(self) -> None:
        """Count each key once."""
        assert self.backend is not None
        for part in in_batches(self.keys):
            self.backend["n"].add(self.backend.keys(part), 1)

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

    def work(self, run: Callable[[], None]) -> Work:
        """The timed work."""
        return Work(run, before=self.before, after=self.after)


def update_work(backend: KeyedStateBackend, keys: pa.Array[Any]) -> Work:
    """Counts of existing keys."""
    batches = list(in_batches(keys))

    def add() -> None:
        for batch in batches:
            backend["n"].add(backend.keys(batch), 1)

    return Work(add, after=lambda: seal(backend))


def works_of(scale: Scale, n_keys: int) -> dict[str, tuple[Work, int]]:
    """The works, with their numbers of rows."""
    numbers = np.random.default_rng(50).permutation(n_keys)
    longs, strings = pa.array(numbers), string_keys(numbers)
    skewed = long_backend("n")
    fill(skewed, n_keys, "n")
    texts = backend_of("string")
    for part in in_batches(strings):
        texts["n"].add(texts.keys(part), 1)
    seal(texts)
    new_longs, new_strings = (
        Fresh("long", longs, full=False),
        Fresh("string", strings, full=False),
    )
    old_longs, old_strings = Fresh("long", longs, full=True), Fresh("string", strings, full=True)
    return {
        BASE: (count_works(scale, n_keys)["pystate"], scale.rows),
        "new keys": (new_longs.work(new_longs.count), n_keys),
        "new strings of 10 to 40 bytes": (new_strings.work(new_strings.count), n_keys),
        "count, strings that are there": (
            update_work(texts, string_keys(random_keys(n_keys, scale.rows))),
            scale.rows,
        ),
        f"count, zipf {ZIPF}": (
            update_work(skewed, pa.array(zipf_keys(n_keys, scale.rows))),
            scale.rows,
        ),
        "deletes": (old_longs.work(old_longs.delete), n_keys),
        "deletes, strings": (old_strings.work(old_strings.delete), n_keys),
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
    seconds = timings.seconds
    rows = []
    for name, (_, amount) in works.items():
        pairs = zip(seconds[BASE], seconds[name], strict=True)
        share = [(amount / ours) / (scale.rows / base) for base, ours in pairs]
        rows.append(
            Row(
                "writes",
                f"{name}, {n_keys:,} keys",
                timings.rate(name, amount / 1e6),
                "M rows/s",
                peer="" if name == BASE else "the count",
                ratio=None if name == BASE else Spread.of(share),
                expected="" if name == BASE else ">= 0.4x",
                detail={"seconds": seconds[name], "rows": amount},
            )
        )
    n_keys = scale.key_counts[-1]
    rows.append(
        Row(
            "writes",
            f"longest of the steps of {STEP_ROWS} inserts, up to {n_keys:,} keys",
            Spread.of([longest_step(n_keys) for _ in range(3)]),
            "ms",
            expected="<= 5 ms",
        )
    )
    return rows
