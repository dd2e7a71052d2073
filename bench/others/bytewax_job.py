"""A count per key with Bytewax: ``python bytewax_job.py rows.npy state-folder``."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, cluster_main
from counting import tell


def count(state: int | None, _row: Any) -> tuple[int, int]:
    """One more row of a key."""
    n = (state or 0) + 1
    return n, n


def main() -> None:
    """Time it, with its state in SQLite, stored each second."""
    keys = np.load(sys.argv[1])
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True)
    init_db_dir(folder, 1)
    rows = [(str(key), 1) for key in keys.tolist()]
    out: list[tuple[str, int]] = []
    flow = Dataflow("count")
    counted = op.stateful_map("count", op.input("rows", flow, TestingSource(rows, 1_000)), count)
    op.output("out", counted, TestingSink(out))
    began = time.perf_counter()
    cluster_main(
        flow,
        [],
        0,
        epoch_interval=timedelta(seconds=1),
        recovery_config=RecoveryConfig(str(folder)),
    )
    tell(time.perf_counter() - began, dict(out).values(), "bytewax")


if __name__ == "__main__":
    main()
