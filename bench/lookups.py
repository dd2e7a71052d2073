"""Keys looked up in a checkpoint's files, beside a job: pystate and RocksDB over the same rows.

The operator has a long key, three states and eight ranges, each a base and a few deltas, as a job
leaves them: one whose tables are in memory, and one whose tables are on disk. RocksDB has one value
of three longs for each key, in files of its own and with as large a cache of blocks, and answers in
its own format. All read what the page cache has. `make bench-peers` installs rocksdict; without it
there are our figures alone.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.measure import Row, Scale, Spread, Work, by_turns
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, state_path
from pystate.checkpoint.state_files import Lineage, merge_files
from pystate.checkpoint.storage import LocalStorage
from pystate.processor.lookup import StateLookup

with contextlib.suppress(ImportError):
    import rocksdict

if TYPE_CHECKING:
    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

RANGES, GROUPS, DELTAS = 8, 128, 3
STATES = {name: ps.ValueState("long") for name in ("a", "b", "c")}
KEY = (("key", "bigint"),)
CACHE_BYTES = 64 << 20
SINGLE_KEYS, MANY_KEYS = 2_000, 10_000
FILLED_AT_ONCE = 250_000
LONGS, BIG = struct.Struct("<3q"), struct.Struct(">q")
OURS, ON_DISK, THEIRS = "pystate", 'pystate, home="disk"', "RocksDB (rocksdict)"
#: Sizes of blocks of files with guides; other files have none.
HOMES = {OURS: 0, ON_DISK: 4096}


class Checkpoint:
    """A checkpoint whose operator has `keys` from 0 on; each epoch changes some of them."""

    def __init__(self, folder: Path, n_keys: int, block_bytes: int) -> None:
        self._storage, self.folder, self.n_keys = LocalStorage(folder), folder, n_keys
        self._block_bytes = block_bytes
        self._bounds = [
            (r * GROUPS // RANGES, (r + 1) * GROUPS // RANGES - 1) for r in range(RANGES)
        ]
        self._files: list[list[FileRef]] = [[] for _ in range(RANGES)]
        self.epoch = 0

    def _ranges_of(self, keys: Longs) -> Longs:
        hashes = ps.hash_keys([pa.array(keys)]).view(np.int64)
        ranges: Longs = (hashes % GROUPS) * RANGES // GROUPS
        return ranges

    def fill(self) -> None:
        """Write the base of each range, and publish it."""
        self.epoch += 1
        keys = np.arange(self.n_keys)
        ranges = self._ranges_of(keys)
        for index in range(RANGES):
            self._base(index, keys[ranges == index])
        self._publish()

    def change(self, keys: Longs) -> int:
        """Change keys in an epoch that is published; returns the bytes of its deltas."""
        self.epoch += 1
        ranges, size = self._ranges_of(keys), 0
        for index in range(RANGES):
            with self._backend(index) as backend:
                _put(backend, keys[ranges == index], self.epoch)
                ref = self._sealed(index, backend)
            self._files[index].append(ref)
            size += ref.file_bytes
        self._publish()
        return size

    def _backend(self, index: int) -> ps.KeyedStateBackend:
        return ps.KeyedStateBackend("long", states=STATES, key_group_range=self._bounds[index])

    def _base(self, index: int, keys: Longs) -> None:
        parts = []
        with self._backend(index) as backend:
            for start in range(0, len(keys), FILLED_AT_ONCE):
                _put(backend, keys[start : start + FILLED_AT_ONCE], self.epoch)
            parts.append(self._sealed(index, backend))
        path = state_path("op", *self._bounds[index], self.epoch, parts[0].id, "base")
        sources = [str(self.folder / ref.path) for ref in parts]
        with self._storage.create(path) as out:
            info = merge_files(sources, out, kind="base", block_bytes=self._block_bytes)
        self._files[index].append(FileRef.from_info(path, info))
        for source in sources:
            Path(source).unlink()

    def _sealed(self, index: int, backend: ps.KeyedStateBackend) -> FileRef:
        lineage = Lineage(bytes([self.epoch % 256, index]) * 8, bytes(16), self.epoch)
        path = state_path("op", *self._bounds[index], self.epoch, lineage.id.hex(), "delta")
        with backend.seal(lineage) as snapshot, self._storage.create(path) as out:
            snapshot._block_bytes = self._block_bytes
            return FileRef.from_info(path, snapshot.write(out))

    def _publish(self) -> None:
        stored = tuple((name, state.stored_as()) for name, state in STATES.items())
        ranges = tuple(
            RangeState(index, *self._bounds[index], files[-1].id, files[0], tuple(files[1:]))
            for index, files in enumerate(self._files)
        )
        operator = OperatorState("op", RANGES, KEY, stored, ranges)
        manifest = Manifest(
            self.epoch, self.epoch - 1, "e", "r", 0, "h", GROUPS, 0, 0, "pystate bench", (operator,)
        )
        self._storage.publish(manifest.path, manifest.encode())


def _put(backend: ps.KeyedStateBackend, keys: Longs, number: int) -> None:
    batch = backend.keys(pa.array(keys))
    for place, name in enumerate(STATES):
        backend[name].update_all(batch, keys * (place + 1) + number)


class InRocksDb:
    """The same rows in RocksDB, which is filled in the order of its keys."""

    def __init__(self, folder: Path, n_keys: int) -> None:
        options = rocksdict.Options(raw_mode=True)
        tables = rocksdict.BlockBasedOptions()
        tables.set_block_cache(rocksdict.Cache(CACHE_BYTES))
        tables.set_bloom_filter(10, False)
        options.set_block_based_table_factory(tables)
        self._db = rocksdict.Rdict(str(folder), options)
        unlogged = rocksdict.WriteOptions()
        unlogged.disable_wal = True
        for start in range(0, n_keys, FILLED_AT_ONCE):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for k in range(start, min(start + FILLED_AT_ONCE, n_keys)):
                batch.put(BIG.pack(k), LONGS.pack(k + 1, 2 * k + 1, 3 * k + 1))
            self._db.write(batch, unlogged)
        self._db.flush()
        self._db.compact_range(None, None)

    def get(self, keys: list[int]) -> None:
        """One key after the other."""
        for k in keys:
            LONGS.unpack(self._db.get(BIG.pack(k)))

    def get_all(self, keys: list[int]) -> None:
        """All of them at once, as columns."""
        found = self._db.get([BIG.pack(k) for k in keys])
        np.frombuffer(b"".join(found), np.int64).reshape(-1, 3)

    def close(self) -> None:
        """End it."""
        self._db.close()


def lookups(scale: Scale) -> list[Row]:
    """Point reads, 10 000 keys, opening and refreshing, at the largest number of keys."""
    n_keys = scale.key_counts[-1]
    with tempfile.TemporaryDirectory(prefix="pystate-bench-", dir=scale.disk_folder) as folder:
        ours = {
            name: _filled(Checkpoint(Path(folder) / str(block_bytes), n_keys, block_bytes))
            for name, block_bytes in HOMES.items()
        }
        theirs = InRocksDb(Path(folder) / "rocksdict", n_keys) if "rocksdict" in globals() else None
        try:
            rows = reads(scale, ours, theirs)
            for name, checkpoint in ours.items():
                rows += epochs(scale, name, checkpoint)
            return rows
        finally:
            if theirs is not None:
                theirs.close()


def _filled(checkpoint: Checkpoint) -> Checkpoint:
    """Write the epochs that are there before anything is measured."""
    checkpoint.fill()
    draw = np.random.default_rng(1)
    changed = max(checkpoint.n_keys // 100, 1)
    for _ in range(DELTAS):
        checkpoint.change(draw.choice(checkpoint.n_keys, changed, replace=False))
    return checkpoint


def reads(scale: Scale, ours: dict[str, Checkpoint], theirs: InRocksDb | None) -> list[Row]:
    """What looking keys up takes."""
    rows, n_keys = [], ours[OURS].n_keys
    draw = np.random.default_rng(2)
    lookups = {
        name: StateLookup(checkpoint.folder, cache_bytes=CACHE_BYTES)
        for name, checkpoint in ours.items()
    }
    single: list[int] = []
    many: list[int] = []
    column: list[pa.Array[Any]] = []
    taken: dict[str, list[float]] = {name: [] for name in ours}

    def other_keys() -> None:
        single[:] = draw.integers(0, n_keys, SINGLE_KEYS).tolist()
        drawn = draw.integers(0, n_keys, min(MANY_KEYS, n_keys))
        many[:], column[:] = drawn.tolist(), [pa.array(drawn)]

    def one_by_one(name: str) -> None:
        clock, lookup = time.perf_counter, lookups[name]
        for k in single:
            begin = clock()
            lookup.get([k])
            taken[name].append(clock() - begin)

    other_keys()
    alone: dict[str, Work] = {}
    together: dict[str, Work] = {}
    for name, lookup in lookups.items():
        _check(lookup, np.asarray(many), ours[name].epoch)
        alone[name] = Work(partial(one_by_one, name), before=other_keys)
        together[name] = Work(partial(_get, lookup, column), before=other_keys)
    shapes: list[tuple[str, int, dict[str, Work], str]] = [
        ("one key", len(single), alone, "<= 100 µs"),
        ("10,000 keys", 1, together, "<= 50 ms"),
    ]
    if theirs is not None:
        shapes[0][2][THEIRS] = Work(lambda: theirs.get(single))
        shapes[1][2][THEIRS] = Work(lambda: theirs.get_all(many))
    for what, amount, works, expected in shapes:
        timings = by_turns(works, scale.rounds, warm_up=2)
        unit, factor = ("µs", 1e6) if amount > 1 else ("ms", 1e3)
        for name in works:
            spread = Spread.of(timings.seconds[name]).times(factor / amount)
            ratio = timings.ratio(OURS, name) if name != OURS else None
            of = f"{OURS} / {name}" if ratio else ""
            goal = expected if name in ours else ""
            rows.append(
                Row("lookups", f"{what} of {n_keys:,}: {name}", spread, unit, of, ratio, goal)
            )
    for name in ours:
        slowest = Spread.of([float(np.quantile(taken[name][2 * len(single) :], 0.99)) * 1e3])
        rows.append(
            Row("lookups", f"one key of {n_keys:,}: {name}, p99", slowest, "ms", expected="<= 2 ms")
        )
    return rows


def _get(lookup: StateLookup, column: list[pa.Array[Any]]) -> None:
    lookup.get(column[0])


def _check(lookup: StateLookup, keys: Longs, newest: int) -> None:
    """All keys are there, and their states are of one epoch each."""
    rows = lookup.get(pa.array(keys))
    a, b, c = (rows[name].to_numpy() for name in STATES)
    number = a - keys
    same = np.array_equal(number, b - 2 * keys) and np.array_equal(number, c - 3 * keys)
    if not same or number.min() < 1 or number.max() > newest:
        raise AssertionError("a look-up has given other rows than were written")


def epochs(scale: Scale, name: str, checkpoint: Checkpoint) -> list[Row]:
    """What it takes to open, and to go on to the next epoch, each with a first key."""
    opening, moving, shares = [], [], []
    changed = min(100_000, checkpoint.n_keys)
    draw = np.random.default_rng(3)
    lookup = StateLookup(checkpoint.folder)
    lookup.get([1])
    for _ in range(scale.rounds):
        begin = time.perf_counter()
        StateLookup(checkpoint.folder).get([1])
        opening.append((time.perf_counter() - begin) * 1e3)
        written = checkpoint.change(draw.choice(checkpoint.n_keys, changed, replace=False))
        begin, before = time.perf_counter(), _bytes_read()
        lookup.refresh()
        lookup.get([1])
        moving.append((time.perf_counter() - begin) * 1e3)
        shares.append((_bytes_read() - before) / written)
    return [
        Row(
            "lookups", f"open, and one key: {name}", Spread.of(opening), "ms", expected="<= 100 ms"
        ),
        Row(
            "lookups",
            f"refresh after {changed:,} rows, and one key: {name}",
            Spread.of(moving),
            "ms",
            expected="<= 50 ms",
        ),
        Row(
            "lookups",
            f"bytes it reads, of the deltas': {name}",
            Spread.of(shares),
            "x",
            expected="<= 1.2 x",
        ),
    ]


def _bytes_read() -> int:
    """What this process has read of files, wherever they came from."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])
