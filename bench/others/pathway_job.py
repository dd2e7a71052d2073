"""A count per key with Pathway: ``python pathway_job.py rows.npy state-folder``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pathway as pw
from counting import tell


class Rows(pw.Schema):
    """A key."""

    key: int


def main() -> None:
    """Time it, with its input and state stored in files."""
    keys = np.load(sys.argv[1])
    folder = Path(sys.argv[2])
    (folder / "in").mkdir(parents=True)
    np.savetxt(folder / "in" / "rows.csv", keys, fmt="%d", header="key", comments="")
    rows = pw.io.csv.read(str(folder / "in"), schema=Rows, mode="static", name="rows")
    counts = rows.groupby(rows.key).reduce(rows.key, n=pw.reducers.count())
    latest: dict[int, int] = {}

    def change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            latest[row["key"]] = row["n"]

    pw.io.subscribe(counts, on_change=change)
    backend = pw.persistence.Backend.filesystem(str(folder / "state"))
    began = time.perf_counter()
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE, persistence_config=pw.persistence.Config(backend)
    )
    tell(time.perf_counter() - began, latest.values(), "pathway")


if __name__ == "__main__":
    main()
