"""A job of many small epochs in many ranges: what grows with their number.

``python -m tests.spark.small_epochs --epochs 3000 --ranges 64`` prints figures along the way, and
fails where files, the driver's memory or shared memory are not flat. Time per epoch is printed and
not judged, and so is the JVM's heap, which is Spark's.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import pystate as ps
from pystate.spark import Job

MIB = 1 << 20
KEYS = 2000
#: Samples per run; what is compared is the most of some of them, as merges make saw teeth.
SAMPLES = 60
#: By how much the most of the last third may be above that of the one before.
TIMES, MORE_FILES, MORE_BYTES = 1.05, 16, 4 * MIB


class Figures(NamedTuple):
    """What a job takes after some epochs."""

    epochs: int
    epoch_ms: float
    """The median since the figures before."""
    driver_bytes: int
    """Resident in the driver's Python, after a collection of garbage."""
    heap_bytes: int
    """In use in the JVM, likewise."""
    files: int
    """In the checkpoint, without the output."""
    file_bytes: int
    shared_bytes: int
    """Tables."""

    def __str__(self) -> str:
        return (
            f"{self.epochs:6} epochs: {self.epoch_ms:7.0f} ms per epoch, "
            f"driver {self.driver_bytes / MIB:6.1f} MB, JVM heap {self.heap_bytes / MIB:6.1f} MB, "
            f"{self.files:5} files with {self.file_bytes / MIB:6.2f} MB, "
            f"tables {self.shared_bytes / MIB:6.2f} MB"
        )


def usage(folder: Path, *, without: str = "") -> tuple[int, int]:
    """Files below a folder, and what they take; files come and go meanwhile."""
    files = size = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != without]
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            files += 1
            size += status.st_blocks * 512
    return files, size


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def take(
    job: Job, session: SparkSession, folder: Path, epochs: int, times_s: Sequence[float]
) -> Figures:
    """Look at everything, once what the last epoch retired is removed."""
    assert job._epochs.coordinator is not None
    job._epochs.coordinator._maintenance.wait()
    gc.collect()
    runtime: Any = session.sparkContext._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    heap = runtime.totalMemory() - runtime.freeMemory()
    files, file_bytes = usage(folder / "checkpoint", without="results")
    shared = usage(folder / "home")[1]
    middle_ms = statistics.median(times_s) * 1000
    return Figures(epochs, middle_ms, resident_bytes(), heap, files, file_bytes, shared)


def run(session: SparkSession, folder: Path, epochs: int, ranges: int) -> list[Figures]:
    """Run the job; returns the samples, and prints some of them."""
    shown = {max(1, epochs // 30), max(1, epochs // 3), epochs}
    every = max(1, epochs // SAMPLES)
    found, times_s = [], []
    frame = session.range(100).selectExpr("id AS v")
    with Job(
        "small epochs",
        checkpoint=folder / "checkpoint",
        parallelism=ranges,
        table_home=folder / "home",
    ) as job:
        for number in range(1, epochs + 1):
            rows = frame.selectExpr(f"(v * 7919 + {number} * 104729) % {KEYS} AS k", "v")
            began_s = time.perf_counter()
            job.run_epoch(
                rows,
                # Read to the end, and nothing of it kept: output grows by its nature.
                lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count()).where("n < 0"),
            )
            times_s.append(time.perf_counter() - began_s)
            if number % every == 0 or number in shown:
                found.append(take(job, session, folder, number, times_s))
                times_s = []
                if number in shown:
                    print(found[-1], flush=True)
    return found


def check(found: Sequence[Figures]) -> None:
    """Compare the last third with the one before it."""
    last = found[-1].epochs
    before = [figures for figures in found if last / 3 < figures.epochs <= last * 2 / 3]
    after = [figures for figures in found if figures.epochs > last * 2 / 3]
    for name, more in (
        ("files", MORE_FILES),
        ("file_bytes", MORE_BYTES),
        ("driver_bytes", MORE_BYTES),
        ("shared_bytes", MORE_BYTES),
    ):
        most, bound = (max(getattr(figures, name) for figures in part) for part in (after, before))
        assert most <= bound * TIMES + more, f"{name}: from {bound} to {most} in {last} epochs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3000)
    parser.add_argument("--ranges", type=int, default=64)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="pystate-small-epochs-"))
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("small epochs")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        # What Spark remembers of past jobs, for a page that is not there.
        .config("spark.ui.retainedJobs", "10")
        .config("spark.ui.retainedStages", "10")
        .config("spark.ui.retainedTasks", "1000")
        .config("spark.sql.ui.retainedExecutions", "10")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        check(run(session, folder, given.epochs, given.ranges))
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
