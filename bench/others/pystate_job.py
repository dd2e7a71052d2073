"""A count per key with pystate: ``python pystate_job.py rows.npy state-folder row|batch``."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from counting import tell

import pystate as ps

EPOCH_ROWS = 100_000


class Counts(ps.KeyedProcessFunction):
    """Emits the count of a key with each of its rows."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        """One more row."""
        n = self.n.value() + 1
        self.n.update(n)
        yield key, n


def by_row(rows: pa.Table, folder: Path) -> list[int]:
    """A function of one row; all of its state is written and synced after each epoch."""
    latest: dict[int, int] = {}
    with ps.testing.Harness(Counts(), key="key", columns="key long") as harness:
        for start in range(0, rows.num_rows, EPOCH_ROWS):
            latest.update(harness.process(rows.slice(start, EPOCH_ROWS)))
            with (folder / "snapshot").open("wb") as file:
                pickle.dump(harness.snapshot(), file)
                file.flush()
                os.fsync(file.fileno())
    return list(latest.values())


def by_batch(rows: pa.Table, folder: Path) -> list[int]:
    """A store, many keys at once, with a checkpoint after each epoch."""
    states = {"n": ps.ValueState("long", default=0)}
    with ps.open(folder / "store", key={"key": "long"}, states=states) as store:
        for start in range(0, rows.num_rows, EPOCH_ROWS):
            keys = rows["key"].slice(start, EPOCH_ROWS)
            store["n"].add(store.keys(keys.combine_chunks()), 1)
            store.checkpoint()
        return list(store.to_arrow()["n"].to_numpy().tolist())


def main() -> None:
    """Time it."""
    rows = pa.table({"key": np.load(sys.argv[1])})
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True)
    began = time.perf_counter()
    counts = {"row": by_row, "batch": by_batch}[sys.argv[3]](rows, folder)
    tell(time.perf_counter() - began, counts, "pystate-spark")


if __name__ == "__main__":
    main()
