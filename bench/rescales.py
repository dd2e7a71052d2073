"""The first epoch after a change of parallelism, beside an ordinary one.

The running job is changed several times, from 4 ranges to 8, to 3 and back.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.spark_jobs import PARALLELISM, new_job, session
from pystate.spark import EpochProgress
from pystate.spark.evaluation.operator_traits import CombinePolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.epochs.range_report import RangeReport
    from pystate.spark import Job

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


def stages(ranges: Sequence[int], keys: int, rows: int) -> Iterator[Stage]:
    """Run epochs with each parallelism; the first epoch of all fills the state."""
    made = 0
    with session() as (spark, folder), new_job("rescales", folder, ranges[0]) as job:
        for wanted in ranges:
            if made:
                job.rescale(wanted)
            stage = Stage(wanted, [], [])
            for _ in range(EPOCHS):
                step = 7919 if made else 1
                frame = spark.range(rows if made else keys).selectExpr(
                    f"(id * {step} + {made * rows}) % {keys} AS k", "id AS v"
                )
                with mock.patch.object(CombinePolicy, "note", noting(stage.tables_ms)):
                    job.run_epoch(frame, pipeline, on_epoch=stage.epochs.append)
                made += 1
            yield stage


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
    for last, stage in pairwise(stages(ranges, keys, rows)):
        change = last.parallelism, stage.parallelism
        first = stage.epochs[0]
        moved[change] = first.rows_restored + first.rows_copied
        took = first.total_ms, stage.tables_ms[0], stage.ordinary_ms
        firsts.setdefault(change, []).append(took)
    found = []
    for (before, after), timed in firsts.items():
        what = f"{before} -> {after} ranges of {keys:,} keys"
        beyond = [total - table for total, table, _ in timed]
        text = f"{what}: the first epoch, beyond its tables"
        pairs = zip(beyond, timed, strict=True)
        ratio = Spread.of(more / normal for more, (_, _, normal) in pairs)
        peer = f"an epoch that changes {rows:,} keys, with {after} ranges"
        tables = f"{what}: its tables, {moved[before, after]:,} rows moved"
        figure = Spread.of(table for _, table, _ in timed)
        found.append(Row("rescale", text, Spread.of(beyond), "ms", peer, ratio, "<= 2x"))
        found.append(Row("rescale", tables, figure, "ms"))
    return found
