"""A count per key with pystate: ``python pystate_job.py rows.npy state-folder``."""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata

import numpy as np
import pyarrow as pa

import pystate as ps

EPOCH_ROWS = 100_000


class Counts(ps.KeyedProcessFunction):
    """Emits the count of a key with each of its rows."""

    n = ps.ValueState("long", default=0)

    def process(self, key, row, ctx):  # type: ignore[no-untyped-def]
        """One more row."""
        n = self.n.value() + 1
        self.n.update(n)
        yield key, n


def main() -> None:
    """Time it, with its state as files in the folder's stead: bytes, taken after each epoch."""
    keys = np.load(sys.argv[1])
    rows = pa.table({"key": keys})
    total = 0
    began = time.perf_counter()
    with ps.testing.Harness(Counts(), key="key", columns="key long") as harness:
        latest: dict[int, int] = {}
        for start in range(0, len(keys), EPOCH_ROWS):
            latest.update(harness.process(rows.slice(start, EPOCH_ROWS)))
            harness.snapshot()
        total = sum(latest.values())
    seconds = time.perf_counter() - began
    version = metadata.version("pystate-spark")
    print(json.dumps({"seconds": seconds, "total": total, "version": version}))


if __name__ == "__main__":
    main()
