"""What queries of live state are measured with: a job's checkpoint, which goes on, and its peers.

The operator has a long key, three states and eight ranges, each a base and a few deltas, as a job
leaves them. A process of its own publishes epochs, and
merges deltas now and then. RocksDB has one value of three longs for each key, in files of its own
and with as large a cache of blocks, and answers in its own format; DuckDB has the rows of one epoch
in Parquet. All read what the page cache has. `make bench-peers` installs rocksdict.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, state_path
from pystate.checkpoint.state_files import Lineage, merge_files
from pystate.checkpoint.storage import LocalStorage

with contextlib.suppress(ImportError):
    import rocksdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

RANGES, GROUPS = 8, 128
#: Sizes of blocks of files with guides, which tables on disk write; other files have none.
HOMES = {"": 0, ', home="disk"': 4096}
#: Deltas of a range before the first epoch that is measured, and the most before they are merged.
DELTAS, MOST_DELTAS = 3, 8
CHANGED = 100_000
STATES = {name: ps.ValueState("long") for name in ("a", "b", "c")}
KEY = (("key", "bigint"),)
CACHE_BYTES = 64 << 20
FILLED_AT_ONCE = 250_000
LONGS, BIG = struct.Struct("<3q"), struct.Struct(">q")
OURS, ROCKSDB, DUCKDB = "pystate", "RocksDB (rocksdict)", "DuckDB (Parquet)"
_READY_SECONDS, _EPOCH_SECONDS = 1200, 60


class Checkpoint:
    """A checkpoint whose operator has `keys` from 0 on; each epoch changes some of them."""

    def __init__(self, folder: Path, n_keys: int, block_bytes: int) -> None:
        self._storage, self.folder, self.n_keys = LocalStorage(folder), folder, n_keys
        self._block_bytes = block_bytes
        self._history = History(self._storage)
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
            if len(self._files[index]) > MOST_DELTAS:
                self._merge(index)
        self._publish()
        return size

    def _merge(self, index: int) -> None:
        """Make one of the deltas of a range."""
        base, *deltas = self._files[index]
        path = state_path("op", *self._bounds[index], self.epoch, secrets.token_hex(16), "delta")
        with self._storage.create(path) as out:
            sources = [str(self.folder / ref.path) for ref in deltas]
            info = merge_files(sources, out, kind="delta", block_bytes=self._block_bytes)
        self._files[index] = [base, FileRef.from_info(path, info)]

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
        self._history.add(manifest)


def _put(backend: ps.KeyedStateBackend, keys: Longs, number: int) -> None:
    batch = backend.keys(pa.array(keys))
    for place, name in enumerate(STATES):
        backend[name].update_all(batch, keys * (place + 1) + number)


class Job:
    """The job, a process: it makes a checkpoint, and publishes epochs until it is closed."""

    def __init__(self, folder: Path, n_keys: int, period: float, block_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._said, theirs = context.Pipe()
        self._process = context.Process(
            target=_run, args=(folder, n_keys, period, block_bytes, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self.changed = min(CHANGED, n_keys)
        self._next(_READY_SECONDS)

    def epoch(self) -> tuple[int, int]:
        """Wait for an epoch that is published from now on; its number, and its deltas' bytes."""
        while self._said.poll():
            self._said.recv()
        return self._next(_EPOCH_SECONDS)

    def _next(self, seconds: float) -> tuple[int, int]:
        if not self._said.poll(seconds):
            raise TimeoutError(f"the job has published nothing for {seconds} seconds")
        said: tuple[int, int] = self._said.recv()
        return said

    def run_on(self, cores: set[int]) -> None:
        """Let it run on these cores alone."""
        assert self._process.pid is not None
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            os.sched_setaffinity(int(thread), cores)

    def close(self) -> None:
        """End it."""
        self._said.close()
        self._process.join(_EPOCH_SECONDS)
        self._process.kill()


def _run(folder: Path, n_keys: int, period: float, block_bytes: int, said: Connection) -> None:
    checkpoint, draw = Checkpoint(folder, n_keys, block_bytes), np.random.default_rng(1)
    checkpoint.fill()
    for _ in range(DELTAS):
        checkpoint.change(draw.choice(n_keys, max(n_keys // 100, 1), replace=False))
    due = time.monotonic()
    with contextlib.suppress(OSError, EOFError):
        while True:
            written = checkpoint.change(draw.choice(n_keys, min(CHANGED, n_keys), replace=False))
            said.send((checkpoint.epoch, written))
            due = max(due + period, time.monotonic())
            if said.poll(due - time.monotonic()):
                said.recv()  # nothing is ever said: the other end is closed


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


class InParquet:
    """The rows of an epoch in Parquet, read by DuckDB."""

    def __init__(self, path: Path, rows: pa.RecordBatchReader) -> None:
        self._database, self._path = duckdb.connect(), path
        self._database.sql(f"copy (select * from rows) to '{path}' (format parquet)")
        rows.close()

    def scan(self, where: str = "true") -> Iterator[pa.RecordBatch]:
        """A key and a state of some rows."""
        query = f"select key, a from '{self._path}' where {where}"
        yield from self._database.sql(query).fetch_arrow_reader(1 << 17)

    def close(self) -> None:
        """End it."""
        self._database.close()
