"""A store on disk with many times more keys than its memory has room for, against a recomputation.

Each key is a number's image under a permutation of all longs, from which the number is found again:
so whatever is read is compared with what its number says it must be, and no table of what was
written is kept. Keys are inserted, updated, read, scanned, left until they expire, and made again.

``python -m tests.model.large_store --keys 200000000 --mib 512 --folder /var/tmp/large`` takes some
20 GB of that disk. It prints what each part has taken; `test_large_store` runs it smaller.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import pystate as ps
from pystate.store import Store

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

MIB = 1 << 20
#: What a batch takes for a key while it is worked on, with six batches in the limit.
BYTES_OF_A_KEY = 6 * 160
#: Batches between two checkpoints: more than fit in memory, so that there are steps.
BATCHES = 4
#: Of these parts of all keys one is updated at a time, and some are never updated.
PARTS, UPDATED = 8, 3
FIRST_KEYS = 1000
#: How long it may take until files are merged that are large, and all have changed.
MERGED_S = 600
DURATION_MS = 1_000_000
#: When keys were inserted, were updated, and when those that were not are gone.
FILLED_MS, UPDATED_MS, GONE_MS = 0, 640_000, 1_200_000

#: What keys that are made again begin with.
AGAIN = 1000

_WORD = (1 << 64) - 1
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def bytes_in(folder: Path) -> int:
    """The size of all files, of which some may go meanwhile."""
    total = 0
    for path in folder.rglob("*.*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def keys_of(numbers: Words) -> Longs:
    """The finalizer of SplitMix64, which is a permutation."""
    z = numbers ^ (numbers >> np.uint64(30))
    z = z * np.uint64(_FIRST)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_SECOND)
    z ^= z >> np.uint64(31)
    return z.view(np.int64)


def numbers_of(keys: Longs) -> Words:
    """The other way round."""
    z = keys.view(np.uint64)
    z = z ^ (z >> np.uint64(31)) ^ (z >> np.uint64(62))
    z *= np.uint64(pow(_SECOND, -1, 1 << 64))
    z ^= (z >> np.uint64(27)) ^ (z >> np.uint64(54))
    z *= np.uint64(pow(_FIRST, -1, 1 << 64))
    z ^= (z >> np.uint64(30)) ^ (z >> np.uint64(60))
    return z


def hash_sum(numbers: Words) -> int:
    """A sum that differs for two sets of numbers, but by a rare chance."""
    mixed = keys_of(numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)).view(np.uint64)
    return int(mixed.sum(dtype=np.uint64))


@dataclass
class Recomputed:
    """What the store must hold, by a key's number."""

    keys: int
    #: How often each part was updated.
    updates: list[int] = field(default_factory=lambda: [0] * PARTS)
    #: Whether what was never updated has expired.
    is_gone: bool = False
    #: So many numbers from the first on were made again after that.
    again: int = 0

    def exist(self, numbers: Words) -> npt.NDArray[np.bool_]:
        """Which keys are there."""
        there = numbers < np.uint64(self.keys)
        if self.is_gone:
            there &= self._times(numbers).astype(bool) | (numbers < np.uint64(self.again))
        return there

    def values(self, numbers: Words) -> tuple[Longs, Longs]:
        """The sum and the last value of keys that are there."""
        signed, times = numbers.view(np.int64), self._times(numbers)
        first = np.where(times.astype(bool) | (not self.is_gone), first_amount(signed), 0)
        total = first + times * (times + 1) // 2
        return total + np.where(signed < self.again, AGAIN, 0), signed * 7 + times

    def _times(self, numbers: Words) -> Longs:
        return np.array(self.updates)[(numbers % np.uint64(PARTS)).view(np.int64)]

    def whole(self) -> tuple[int, int]:
        """How many keys there are, and the hash sum of their numbers."""
        count = total = 0
        for first in range(0, self.keys, MIB):
            numbers = np.arange(first, min(first + MIB, self.keys), dtype=np.uint64)
            numbers = numbers[self.exist(numbers)]
            count, total = count + len(numbers), total + hash_sum(numbers)
        return count, total & _WORD


def first_amount(signed: Longs) -> Longs:
    """What a key's sum begins with."""
    return signed % 1000 + 1


def equal(what: str, numbers: Words, found: Iterable[Any], due: Iterable[Longs]) -> None:
    """Check columns; the message names the first number that differs."""
    for name, column, wanted in zip(("total", "last"), found, due, strict=True):
        array = np.asarray(column)
        if not np.array_equal(array, wanted):
            at = int(np.flatnonzero(array != wanted)[0])
            raise AssertionError(
                f"{what}: {name} of number {numbers[at]} (key {keys_of(numbers)[at]}) is "
                f"{array[at]}, not {wanted[at]}; {np.count_nonzero(array != wanted)} differ"
            )


@dataclass
class Part:
    """What a part of the run has taken."""

    name: str
    keys: int
    seconds: float
    processor: float

    def __str__(self) -> str:
        rate = self.keys / max(self.seconds, 1e-9) / 1e3
        own = self.processor * 1e6 / max(self.keys, 1)
        return (
            f"{self.name}: {self.keys:,} keys in {self.seconds:.1f} s, {rate:,.0f} k/s, "
            f"{own:.2f} µs of processor each"
        )


class Life:
    """A store from its first key to its last scan."""

    def __init__(
        self, keys: int, memory_bytes: int, folder: Path, say: Callable[[str], object] = print
    ) -> None:
        self.folder, self.memory_bytes, self.say = folder, memory_bytes, say
        self.batch = max(FIRST_KEYS, memory_bytes // BYTES_OF_A_KEY)
        self.model = Recomputed(keys)
        self.now_ms = FILLED_MS
        self.parts: list[Part] = []
        self.first_ms = 0.0
        self.most_bytes = 0
        self.store = self.opened()

    def opened(self) -> Store:
        ttl = ps.StateTtl(DURATION_MS, time="processing")
        states = {
            "total": ps.ValueState("long", default=0, ttl=ttl),
            "last": ps.ValueState("long", ttl=ttl),
        }
        return ps.open(
            self.folder,
            key="long",
            states=states,
            home="disk",
            limit_bytes=self.memory_bytes,
            retained=1,
            clock=lambda: self.now_ms,
        )

    @contextmanager
    def timed(self, name: str, keys: int) -> Iterator[None]:
        began, own = time.perf_counter(), time.process_time()
        yield
        took = time.perf_counter() - began
        self.parts.append(Part(name, keys, took, time.process_time() - own))
        self.say(f"{self.parts[-1]}; {self.on_disk() / MIB:,.0f} MiB on disk")

    def on_disk(self) -> int:
        return bytes_in(self.folder / "state")

    def pieces(self, numbers: Iterable[Words]) -> Iterator[tuple[int, Words]]:
        for at, some in enumerate(numbers, 1):
            yield at, some
            used = self.store.stats().committed_bytes
            self.most_bytes = max(self.most_bytes, used)
            assert used <= self.memory_bytes, f"{used:,} of {self.memory_bytes:,} bytes are used"

    def ranges(self, last: int, step: int = 1, first: int = 0) -> Iterator[Words]:
        """Numbers from `first` to `last`, a batch at a time."""
        for begin in range(first, last, step * self.batch):
            yield np.arange(begin, min(begin + step * self.batch, last), step, dtype=np.uint64)

    def write(self, numbers: Iterable[Words], amounts: Callable[[Longs], Longs], n: int) -> None:
        """Add to sums and set last values, with a checkpoint for each few batches."""
        for at, some in self.pieces(numbers):
            keys, signed = self.store.keys(pa.array(keys_of(some))), some.view(np.int64)
            self.store["total"].add(keys, pa.array(amounts(signed)))
            self.store["last"].update_all(keys, pa.array(signed * 7 + n))
            if at % BATCHES == 0:
                self.store.checkpoint()
        self.store.checkpoint()

    def fill(self) -> None:
        with self.timed("inserted", self.model.keys):
            self.write(self.ranges(self.model.keys), first_amount, 0)

    def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.store.checkpoint()

    def update(self, *parts: int) -> None:
        for part in parts:
            times = self.model.updates[part] + 1
            with self.timed(f"part {part} updated", self.model.keys // PARTS):
                self.write(
                    self.ranges(self.model.keys, PARTS, part),
                    partial(np.full_like, fill_value=times),
                    times,
                )
            self.model.updates[part] = times

    def read(self, what: str) -> None:
        """Look a tenth of the keys up, and some that never were."""
        tenth = self.model.keys // 10
        with self.timed(f"read {what}", tenth + self.batch):
            for _, some in self.pieces(self.ranges(self.model.keys, 10, 3)):
                self.check(what, some)
            self.check(what, np.arange(self.batch, dtype=np.uint64) + np.uint64(self.model.keys))

    def check(self, what: str, numbers: Words) -> None:
        keys = self.store.keys(pa.array(keys_of(numbers)))
        totals, lasts = self.store["total"].values(keys), self.store["last"].values(keys)
        there = self.model.exist(numbers)
        valid = np.asarray(pa.compute.is_valid(lasts))
        if not np.array_equal(valid, there):
            at = int(np.flatnonzero(valid != there)[0])
            raise AssertionError(f"{what}: number {numbers[at]} is there: {bool(valid[at])}")
        assert not np.asarray(totals)[~there].any(), f"{what}: an absent key has a sum"
        kept = numbers[there]
        found = np.asarray(totals)[there], np.asarray(lasts.drop_null())
        equal(what, kept, found, self.model.values(kept))

    def scan(self, what: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Compare all rows, each of which must come once."""
        count = total = 0
        wanted = self.model.whole()
        with self.timed(f"scanned {what}", wanted[0]):
            for batch in batches:
                numbers = numbers_of(np.asarray(batch.column("key")))
                assert self.model.exist(numbers).all(), f"{what}: a key that is not there"
                equal(
                    what,
                    numbers,
                    (batch.column("total"), batch.column("last")),
                    self.model.values(numbers),
                )
                count, total = count + len(numbers), (total + hash_sum(numbers)) & _WORD
        assert (count, total) == wanted, f"{what}: {count:,} keys, not {wanted[0]:,}"

    def attach(self) -> None:
        """Open the store anew; the first keys are read, then changed, and changed back."""
        self.store.close()
        # Of the part that never expires.
        step = self.model.keys // FIRST_KEYS // PARTS * PARTS
        some = np.arange(FIRST_KEYS, dtype=np.uint64) * np.uint64(step)
        began = time.perf_counter()
        self.store = self.opened()
        opened = time.perf_counter()
        self.check("attached", some)
        read = time.perf_counter()
        self.store["total"].add(self.store.keys(pa.array(keys_of(some))), 5)
        self.store.checkpoint()
        written = time.perf_counter()
        self.store["total"].add(self.store.keys(pa.array(keys_of(some))), -5)
        self.store.checkpoint()
        self.first_ms = 1e3 * (read - began)
        self.say(
            f"attached: {1e3 * (opened - began):.1f} ms; the first {FIRST_KEYS:,} keys read after "
            f"{self.first_ms:.1f} ms, updated and durable after {1e3 * (written - began):.1f} ms"
        )

    def expire(self) -> None:
        """Let what was not updated go, make some of it again, and update all that is left."""
        before = self.on_disk()
        self.at(GONE_MS)
        self.model.is_gone = True
        self.read("expired")
        again = self.model.keys // 20
        with self.timed("made again", again):
            for part in range(PARTS):
                self.write(
                    self.ranges(again, PARTS, part),
                    partial(np.full_like, fill_value=AGAIN),
                    self.model.updates[part],
                )
        self.model.again = again
        # A base is merged once a quarter of it has changed, and then loses what has expired.
        self.update(*range(UPDATED))
        deadline = time.monotonic() + MERGED_S
        # Files of before go with the next checkpoint but one.
        while (after := self.on_disk()) >= before * 3 // 4 and time.monotonic() < deadline:
            self.write(self.ranges(PARTS, PARTS), np.zeros_like, self.model.updates[0])
            time.sleep(0.01)
        assert after < before * 3 // 4, f"{before:,} bytes of files, and {after:,} without the gone"

    def live(self) -> None:
        self.fill()
        self.attach()
        self.read("inserted")
        self.at(UPDATED_MS)
        self.update(*range(UPDATED), 0)
        self.read("updated")
        with self.store.reader() as reader:
            self.scan("updated", reader.to_batches())
        self.attach()
        self.expire()
        self.read("made again")
        self.attach()
        self.scan("made again", self.store._backend.to_batches())
        self.store.close()
        self.say(
            f"at most {self.most_bytes / MIB:.1f} of {self.memory_bytes / MIB:.1f} MiB were used; "
            f"the first keys came {self.first_ms:.1f} ms after the last opening"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=200_000_000)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp(prefix="pystate-large-", dir="/var/tmp"))
    try:
        Life(given.keys, given.mib * MIB, folder / "store", lambda t: print(t, flush=True)).live()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
