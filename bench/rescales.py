"""The first epoch after a change of parallelism, beside an ordinary one: 4 -> 8 -> 3 ranges.

As a question of the report, the running job is changed several times, there and back.

``python -m bench.rescales --keys 10000000 --rows 100000`` fills the state, lets some epochs pass,
and changes the parallelism of the running job twice. It prints each epoch's time, what was read
from files and copied between tables in memory, and the time of the slowest range's table. With
``--cold`` the tables are discarded with each change, as after a loss of the host, so that all that
moves is read from files.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.spark_jobs import PARALLELISM, session
from pystate.spark import EpochProgress, Job
from pystate.spark.evaluation.combining import CombinePolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.coordinator.range_report import RangeReport

FROM = 4
TO = (8, 3)
ROUNDS = 3
"""Changes of each kind in the report; the way back to `FROM` is shown as well."""
EPOCHS = 6
"""Epochs with one parallelism; of those after the first change all but two are ordinary ones."""
ORDINARY = 2


class Stage(NamedTuple):
    """The epochs with one parallelism."""

    parallelism: int
    epochs: list[EpochProgress]
    tables_ms: list[float]
    """For each epoch how long its cores were busy with getting the ranges' tables."""

    @property
    def ordinary_ms(self) -> float:
        """The time of one that neither moves state nor merges what was moved."""
        return statistics.median(each.total_ms for each in self.epochs[ORDINARY:])


def pipeline(df: DataFrame, job: Job) -> DataFrame:
    """Count and add up."""
    return job.key_by(df, "k", uid="counts").aggregate(n=ps.count(), total=ps.sum("v"))


def stages(
    ranges: Sequence[int], keys: int, rows: int, epochs: int, *, cold: bool = False
) -> Iterator[Stage]:
    """Run epochs with each parallelism; the first epoch of all fills the state."""
    folder = Path(tempfile.mkdtemp(prefix="pystate-rescales-"))
    made = 0
    try:
        with session(folder) as spark:
            parallelism, job = ranges[0], None
            for wanted in ranges:
                if job is None or cold:
                    if job is not None:
                        job.close()
                    job = Job("rescales", folder / "checkpoint", parallelism=wanted)
                elif wanted != parallelism:
                    job.rescale(wanted)
                parallelism = wanted
                stage = Stage(wanted, [], [])
                for _ in range(epochs):
                    step = 7919 if made else 1
                    frame = spark.range(rows if made else keys).selectExpr(
                        f"(id * {step} + {made * rows}) % {keys} AS k", "id AS v"
                    )
                    with mock.patch.object(CombinePolicy, "note", noting(stage.tables_ms)):
                        job.run_epoch(frame, pipeline, on_epoch=stage.epochs.append)
                    made += 1
                yield stage
            if job is not None:
                job.close()
    finally:
        shutil.rmtree(folder)


def noting(tables_ms: list[float]) -> Callable[[CombinePolicy, Iterable[RangeReport]], None]:
    """Look at the ranges' reports, whose sums progress does not have."""
    note = CombinePolicy.note

    def noted(self: CombinePolicy, reports: Iterable[RangeReport]) -> None:
        given = [*reports]
        busy = sum(float(report.metrics.get("attach_ms", 0)) for report in given)
        tables_ms.append(busy / PARALLELISM)
        note(self, given)

    return noted


def rescales(scale: Scale) -> list[Row]:
    """The first epoch after each change: beyond the time in which state moves, and that time."""
    keys, rows = scale.key_counts[-1], scale.grown_rows
    ranges = [FROM, *[*TO, FROM] * ROUNDS]
    firsts: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    moved: dict[tuple[int, int], int] = {}
    for last, stage in pairwise(stages(ranges, keys, rows, EPOCHS)):
        change = last.parallelism, stage.parallelism
        first = stage.epochs[0]
        moved[change] = first.rows_restored + first.rows_copied
        took = first.total_ms, stage.tables_ms[0], stage.ordinary_ms
        firsts.setdefault(change, []).append(took)
    found = []
    for (before, after), timed in firsts.items():
        what = f"{before} -> {after} ranges of {keys:,} keys"
        found += [
            Row(
                "rescale",
                f"{what}: the first epoch, beyond its tables",
                Spread.of([total - table for total, table, _ in timed]),
                "ms",
                peer=f"an epoch that changes {rows:,} keys, with {after} ranges",
                ratio=Spread.of([(total - table) / normal for total, table, normal in timed]),
                expected="<= 2x",
                detail={"ordinary_ms": [normal for _, _, normal in timed]},
            ),
            Row(
                "rescale",
                f"{what}: its tables, {moved[before, after]:,} rows moved",
                Spread.of([table for _, table, _ in timed]),
                "ms",
            ),
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of an epoch")
    parser.add_argument("--epochs", type=int, default=7, help="between two changes")
    parser.add_argument("--cold", action="store_true", help="without tables in memory")
    given = parser.parse_args(arguments)
    ranges = (FROM, *TO)
    found = stages(ranges, given.keys, given.rows, given.epochs, cold=given.cold)
    for number, stage in enumerate(found):
        for i, epoch in enumerate(stage.epochs):
            first = f"first with {stage.parallelism} ranges" if number else "fill"
            print(
                f"{'then' if i else first:24} {epoch.total_ms:8.0f} ms, "
                f"slowest table {epoch.attach_ms:7.0f} ms, "
                f"{epoch.rows_restored:10,} rows read, {epoch.rows_copied:10,} copied, "
                f"{epoch.rows_changed:10,} changed",
                flush=True,
            )
        print(f"{stage.parallelism} ranges, then: median {stage.ordinary_ms:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
