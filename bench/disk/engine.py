"""One engine with two longs a key, in a process of its own: ``python -m bench.disk.engine NAME``.

It reads requests from its input, a line of JSON each, and prints an answer for each. Both engines
draw the same keys, so they must read the same sums.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps

if TYPE_CHECKING:
    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

BYTES_OF_A_ROW = 256
"""What a new row may take while a state is filled."""
THREADS = 32
"""Of RocksDB; what one disk serves at once."""
SUMMED = 31
"""A sum over all that was read is ``31 a + b``."""
MASK = 255
"""The other long grows by as much of the key."""


class InPystate:
    """The store on disk: a checkpoint after each batch."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        states = {"a": ps.ValueState("long", default=0), "b": ps.ValueState("long", default=0)}
        self._store = ps.open(
            folder, key="long", states=states, home="disk", limit_bytes=memory_bytes
        )

    def fill(self, keys: Longs) -> None:
        """Insert keys with zeros."""
        batch = self._store.keys(pa.array(keys))
        self._store["a"].add(batch, 0)
        self._store["b"].add(batch, 0)
        self._store.checkpoint()

    def filled(self) -> None:
        """All keys are there."""

    def batch(self, keys: Longs, updated: npt.NDArray[np.bool_], *, alone: bool) -> int:
        """Update some keys, then read the others; the sum over what was read."""
        del alone  # It has no look-ups by one key.
        a, b = self._store["a"], self._store["b"]
        changed, read = keys[updated], keys[~updated]
        self._store.prefetch(pa.array(keys))
        batch = self._store.keys(pa.array(changed))
        a.add(batch, 1)
        b.add(batch, changed & MASK)
        rows = self._store.keys(pa.array(read))
        total = SUMMED * int(np.asarray(a.values(rows)).sum())
        total += int(np.asarray(b.values(rows)).sum())
        self._store.checkpoint()
        return total

    def close(self) -> None:
        """End it."""
        self._store.close()


class InRocksDb:
    """RocksDB by its C interface, without a log; durable only when `flushed`."""

    def __init__(self, folder: Path, memory_bytes: int, library: str) -> None:
        self._c = ctypes.CDLL(library)
        self._c.peer_open.restype = ctypes.c_void_p
        self._c.peer_error.restype = ctypes.c_char_p
        self._peer = ctypes.c_void_p(
            self._c.peer_open(str(folder).encode(), ctypes.c_size_t(memory_bytes), THREADS)
        )
        self._checked(0)

    def _checked(self, failed: int) -> None:
        if failed or self._c.peer_error(self._peer):
            raise RuntimeError(self._c.peer_error(self._peer).decode())

    def _put(self, keys: Longs, values: Longs) -> None:
        pointer = ctypes.c_void_p
        self._checked(
            self._c.peer_put(
                self._peer,
                keys.ctypes.data_as(pointer),
                ctypes.c_size_t(len(keys)),
                values.ctypes.data_as(pointer),
            )
        )

    def fill(self, keys: Longs) -> None:
        """Insert keys with zeros."""
        self._put(keys, np.zeros((len(keys), 2), np.int64))

    def filled(self) -> None:
        """All keys are there: put them where they stay."""
        self._c.peer_compact(self._peer)

    def batch(self, keys: Longs, updated: npt.NDArray[np.bool_], *, alone: bool) -> int:
        """Update some keys, then read the others; the sum over what was read.

        `alone`: keys are looked up in the thread of the caller.
        """
        # They must ascend as RocksDB compares them: as bytes.
        unsigned, places = np.unique(keys.view(np.uint64), return_inverse=True)
        unique = unsigned.view(np.int64)
        values = np.empty((len(unique), 2), np.int64)
        pointer = ctypes.c_void_p
        self._checked(
            self._c.peer_get(
                self._peer,
                unique.ctypes.data_as(pointer),
                ctypes.c_size_t(len(unique)),
                values.ctypes.data_as(pointer),
                ctypes.c_int(alone),
            )
        )
        times = np.bincount(places[updated], minlength=len(unique))
        values[:, 0] += times
        values[:, 1] += times * (unique & MASK)
        read = values[places[~updated]]
        total = SUMMED * int(read[:, 0].sum()) + int(read[:, 1].sum())
        changed = times > 0
        self._put(unique[changed], values[changed])
        return total

    def close(self) -> None:
        """End it."""
        self._c.peer_close(self._peer)


class Keys:
    """The keys of a state, and those of batches: uniform, or by Zipf's law with s = 1.1."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    @staticmethod
    def of(ranks: npt.NDArray[np.uint64]) -> Longs:
        """Scattered keys, so that hot ones lie anywhere; the finalizer of SplitMix64."""
        z = ranks + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).view(np.int64)

    def drawn(self, random: np.random.Generator, n: int, law: str) -> Longs:
        """Keys of a batch."""
        if law == "uniform":
            return self.of(random.integers(0, self.rows, n, np.uint64))
        ranks = random.zipf(1.1, 2 * n + 100)
        while np.count_nonzero(ranks <= self.rows) < n:
            ranks = np.concatenate([ranks, random.zipf(1.1, n)])
        return self.of((ranks[ranks <= self.rows][:n] - 1).astype(np.uint64))


def peak_bytes() -> int:
    """The most memory of this process since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> None:
    """Let `peak_bytes` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def io_bytes() -> tuple[int, int]:
    """Bytes that this process has read and written."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["read_bytes"]), int(found["write_bytes"])


def processor_seconds() -> float:
    """Of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def served(engine: InPystate | InRocksDb, keys: Keys, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a request."""
    if request["do"] == "fill":
        at_once = request["memory"] // BYTES_OF_A_ROW
        for first in range(0, keys.rows, at_once):
            last = min(first + at_once, keys.rows)
            engine.fill(np.sort(keys.of(np.arange(first, last, dtype=np.uint64))))
        engine.filled()
        return {}
    random = np.random.default_rng(request["seed"])
    n = request["keys"]
    drawn = [
        (keys.drawn(random, n, request["law"]), random.random(n) < request["updated"])
        for _ in range(request["batches"])
    ]
    forget_peak()
    before, read = processor_seconds(), io_bytes()
    began = time.perf_counter()
    total = sum(engine.batch(*one, alone=request["alone"]) for one in drawn)
    seconds = time.perf_counter() - began
    after = io_bytes()
    return {
        "seconds": seconds,
        "processor": processor_seconds() - before,
        "sum": total,
        "peak": peak_bytes(),
        "read": after[0] - read[0],
        "written": after[1] - read[1],
    }


def main() -> None:
    """Serve until the input ends."""
    given = json.loads(sys.argv[1])
    folder, memory = Path(given["folder"]), given["memory"]
    engine: InPystate | InRocksDb
    if given["engine"] == "pystate":
        engine = InPystate(folder, memory)
    else:
        engine = InRocksDb(folder, memory, given["library"])
    keys = Keys(given["rows"])
    for line in sys.stdin:
        print(json.dumps(served(engine, keys, json.loads(line))), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
