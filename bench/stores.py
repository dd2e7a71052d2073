"""Reading and updating a count per key, by number of keys: pystate, a dict, numpy, LMDB, RocksDB.

LMDB commits a transaction for each round, and RocksDB writes no log of its own; neither waits for
the disk. pystate seals an epoch for each round, from which it can roll back. All keys are there.
What is not installed is left out: `make bench-peers` installs lmdb and rocksdict.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench import peers
from bench.keyed import count, count_selected, fill, in_batches, long_backend, random_keys, seal
from bench.measure import Row, Scale, Work, by_turns

with contextlib.suppress(ImportError):
    import lmdb
with contextlib.suppress(ImportError):
    import rocksdict

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 5
LONG = struct.Struct(">q")
"""Keys in the order of their bytes, so that LMDB is filled as fast as it can be."""
FILLED_AT_ONCE = 500_000
LEADING = "pystate, a batch at a time"
BY_ROW = "pystate, a row at a time"
LMDB, ROCKSDB = "LMDB", "RocksDB (rocksdict)"
EXPECTED = {"Python dict": ">= 1x", LMDB: ">= 3x", ROCKSDB: ">= 6x"}
"""How much faster pystate is expected to be, a row at a time, with a million keys."""


class InLmdb:
    """Counts in LMDB."""

    def __init__(self, folder: Path, n_keys: int) -> None:
        size = 200 * n_keys + (64 << 20)
        self._environment = lmdb.open(str(folder), map_size=size, sync=False, metasync=False)
        zero = LONG.pack(0)
        for start in range(0, n_keys, FILLED_AT_ONCE):
            with self._environment.begin(write=True) as transaction:
                for k in range(start, min(start + FILLED_AT_ONCE, n_keys)):
                    transaction.put(LONG.pack(k), zero, append=True)

    def count(self, keys: Sequence[int]) -> None:
        """Count rows, in one transaction."""
        pack, unpack = LONG.pack, LONG.unpack
        with self._environment.begin(write=True) as transaction:
            get, put = transaction.get, transaction.put
            for k in keys:
                key = pack(k)
                found = get(key)
                put(key, pack(1 if found is None else unpack(found)[0] + 1))

    def total(self) -> int:
        """All rows that were counted."""
        with self._environment.begin() as transaction:
            return sum(LONG.unpack(value)[0] for _, value in transaction.cursor())

    def close(self) -> None:
        """End it."""
        self._environment.close()


class InRocksDb:
    """Counts in RocksDB, by rocksdict."""

    def __init__(self, folder: Path, n_keys: int) -> None:
        self._db = rocksdict.Rdict(str(folder), rocksdict.Options(raw_mode=True))
        self._unlogged = rocksdict.WriteOptions()
        self._unlogged.disable_wal = True
        zero = LONG.pack(0)
        for start in range(0, n_keys, FILLED_AT_ONCE):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for k in range(start, min(start + FILLED_AT_ONCE, n_keys)):
                batch.put(LONG.pack(k), zero)
            self._db.write(batch, self._unlogged)
        self._db.flush()

    def count(self, keys: Sequence[int]) -> None:
        """Count rows."""
        pack, unpack = LONG.pack, LONG.unpack
        get, put, unlogged = self._db.get, self._db.put, self._unlogged
        for k in keys:
            key = pack(k)
            found = get(key)
            put(key, pack(1 if found is None else unpack(found)[0] + 1), unlogged)

    def total(self) -> int:
        """All rows that were counted."""
        return sum(LONG.unpack(value)[0] for _, value in self._db.items())

    def close(self) -> None:
        """End it."""
        self._db.close()


def stores(scale: Scale) -> list[Row]:
    """A curve for each of them."""
    rows = []
    for n_keys in scale.store_keys:
        with tempfile.TemporaryDirectory(prefix="pystate-bench-") as folder:
            rows += measured(scale, n_keys, Path(folder))
    return rows


def measured(scale: Scale, n_keys: int, folder: Path) -> list[Row]:
    """All of them at one number of keys."""
    drawn = random_keys(n_keys, scale.store_rows)
    column: pa.Array[Any] = pa.array(drawn)
    keys, batches = drawn.tolist(), list(in_batches(column))
    vectors, scalars = long_backend("n"), long_backend("n")
    for backend in (vectors, scalars):
        fill(backend, n_keys, "n")
    counts = dict.fromkeys(range(n_keys), 0)
    slots = np.zeros(n_keys, np.int64)
    others: dict[str, InLmdb | InRocksDb] = {}
    if "lmdb" in globals():
        others[LMDB] = InLmdb(folder / "lmdb", n_keys)
    if "rocksdict" in globals():
        others[ROCKSDB] = InRocksDb(folder / "rocksdict", n_keys)

    def count_batches() -> None:
        count(vectors, batches)
        seal(vectors)

    def count_rows() -> None:
        count_selected(scalars, column)
        seal(scalars)

    works = {
        LEADING: Work(count_batches),
        BY_ROW: Work(count_rows),
        "Python dict": Work(lambda: peers.read_and_update_dict(counts, keys)),
        "numpy.add.at, no keys": Work(lambda: peers.count_in_array(slots, drawn)),
        **{name: Work(partial(other.count, keys)) for name, other in others.items()},
    }
    timings = by_turns(works, ROUNDS)
    due = (ROUNDS + 1) * scale.store_rows
    totals = {name: other.total() for name, other in others.items()}
    totals["Python dict"], totals["numpy"] = sum(counts.values()), int(slots.sum())
    for name, backend in ((LEADING, vectors), (BY_ROW, scalars)):
        totals[name] = int(np.asarray(backend.to_arrow()["n"]).sum())
        backend.close()
    for other in others.values():
        other.close()
    if wrong := {name: total for name, total in totals.items() if total != due}:
        raise AssertionError(f"{wrong} rows were counted, and not {due}")
    at_million = n_keys == 1_000_000
    return [
        timings.row(
            name,
            "stores",
            f"read and update, {n_keys:,} keys: {name}",
            scale.store_rows,
            "ns/row",
            lead=(BY_ROW, name) if name in EXPECTED else None,
            expected=EXPECTED.get(name, "") if at_million else "",
            series=name,
            size=n_keys,
        )
        for name in works
    ]
