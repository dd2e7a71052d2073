"""Measures in turn: every figure is a ratio of works that run alternately in one process."""

from __future__ import annotations

import gc
import os
import re
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Several sizes of one question stand in a line.
# fmt: off


@dataclass(frozen=True)
class Scale:
    """How much a run does; chosen by ``PYSTATE_BENCH_SCALE``. The defaults are those of `short`."""

    name: str = "short"
    rounds: int = 9
    key_counts: tuple[int, ...] = (1_000_000, 10_000_000)
    rows: int = 2_000_000
    scalar_rows: int = 500_000
    state_sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    changed_rows: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    shared_keys: int = 1_000_000
    undo_records: int = 200_000
    memory_keys: tuple[int, int] = (1_000_000, 4_000_000)
    file_rows: tuple[int, ...] = (1_000_000, 3_000_000)
    elements: int = 1_000_000
    element_rows: int = 500_000
    grown: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    timed_rows: tuple[int, ...] = (300_000, 1_200_000)
    timed_keys: int = 60_000
    timed_batches: int = 3
    pandas_rows: tuple[int, ...] = (300_000, 1_200_000)
    pandas_batches: int = 2
    spark_rows: int = 2_000_000
    spark_keys: int = 1_000_000
    spark_batches: int = 5
    spark_query_batches: int = 9
    nexmark_events: int = 2_000_000
    nexmark_chunk: int = 400_000
    store_keys: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    store_rows: int = 200_000
    grown_keys: tuple[int, ...] = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000)
    grown_rows: int = 100_000
    small_rows: tuple[int, ...] = (1_000, 10_000, 100_000)
    small_batches: int = 15
    other_rows: int = 300_000
    other_keys: int = 60_000
    other_rounds: int = 3
    flink_rows: int = 4_000_000
    disk_memory: int = 64 << 20
    disk_batches: tuple[int, ...] = (1_000, 100_000, 250_000)
    disk_rows: int = 50_000
    disk_folder: str = "/var/tmp"
    spark_disk_keys: int = 6_000_000
    spark_disk_rows: int = 1_000_000
    spark_disk_memory: int = 128 << 20
    query_keys: int = 1_000_000
    query_seconds: float = 2.0
    query_period: float = 1.0


SMOKE = Scale(
    "smoke", rounds=2, key_counts=(2_000,), rows=4_000, scalar_rows=500,
    state_sizes=(100, 2_000), changed_rows=(10, 1_000), shared_keys=2_000, undo_records=500,
    memory_keys=(1_000, 4_000), file_rows=(1_000, 3_000),
    elements=2_000, element_rows=1_000, grown=(100, 1_000),
    timed_rows=(400,), timed_keys=100, timed_batches=1, pandas_rows=(400,), pandas_batches=1,
    spark_rows=4_000, spark_keys=1_000, spark_batches=1,
    spark_query_batches=1,
    nexmark_events=9_000, nexmark_chunk=3_000, store_keys=(100, 1_000), store_rows=500,
    grown_keys=(1_000, 3_000), grown_rows=200, small_rows=(100,), small_batches=2,
    other_rows=2_000, other_keys=100, other_rounds=1, flink_rows=2_000,
    disk_memory=2 << 20, disk_batches=(100, 500, 2_000), disk_rows=500,
    spark_disk_keys=4_000, spark_disk_rows=2_000, spark_disk_memory=2 << 20,
    query_keys=2_000, query_seconds=0.1, query_period=0.1,
)
LARGE = Scale(
    "large", rounds=7, rows=4_000_000, scalar_rows=1_000_000,
    state_sizes=(1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000),
    changed_rows=(1_000, 10_000, 100_000, 1_000_000, 2_000_000),
    shared_keys=10_000_000, undo_records=1_000_000,
    file_rows=(1_000_000, 3_000_000, 10_000_000, 30_000_000), element_rows=1_000_000,
    timed_rows=(1_200_000,), timed_keys=240_000, pandas_rows=(1_200_000,), pandas_batches=3,
    spark_batches=9, spark_query_batches=15, nexmark_events=5_000_000, nexmark_chunk=1_000_000,
    store_rows=500_000,
    grown_keys=(1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000),
    small_batches=30, other_rows=1_000_000, other_keys=200_000, other_rounds=5,
    flink_rows=20_000_000, disk_memory=256 << 20, disk_batches=(1_000, 100_000, 1_000_000),
    spark_disk_keys=50_000_000, spark_disk_rows=2_000_000, spark_disk_memory=1 << 30,
    query_keys=10_000_000,
)
# fmt: on
SCALES = {scale.name: scale for scale in (SMOKE, Scale(), LARGE)}


def chosen_scale() -> Scale:
    """The scale that ``PYSTATE_BENCH_SCALE`` names; `short` by default."""
    return SCALES[os.environ.get("PYSTATE_BENCH_SCALE", "short")]


def nothing() -> None:
    """What is done before and after a work that needs neither."""


@dataclass(frozen=True)
class Work:
    """Something to time: `run` is timed, `before` and `after` are not."""

    run: Callable[[], object]
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and largest of its values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of at least one value."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))

    def times(self, factor: float) -> Spread:
        """The same of values that are so many times as large."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `figure` is the measured value in `unit`; `ratio` compares it with `peer`, if there is one.
    `expected` is the goal, such as ``>= 25x`` of the ratio or ``<= 100 µs`` of the figure, which
    `met` reads. A row with a `series` is a point of that curve in the report, at `size`.
    """

    question: str
    what: str
    figure: Spread
    unit: str
    peer: str = ""
    ratio: Spread | None = None
    expected: str = ""
    series: str = ""
    size: float | None = None


#: How much of what is done makes one of a unit; with ns, the time is shown and not the speed.
UNITS = {"M rows/s": 1e6, "M/s": 1e6, "k rows/s": 1e3, "rows/s": 1.0, "MB/s": 1e6}


@dataclass(frozen=True)
class Timings:
    """Seconds per round of each work."""

    seconds: Mapping[str, Sequence[float]]

    def ratio(self, name: str, peer: str) -> Spread:
        """How many times as fast as the peer, round by round."""
        pairs = zip(self.seconds[peer], self.seconds[name], strict=True)
        return Spread.of(theirs / ours for theirs, ours in pairs)

    def row(
        self,
        name: str,
        question: str,
        what: str,
        amount: float,
        unit: str = "M rows/s",
        *,
        lead: tuple[str, str] | None = None,
        peer: str | None = None,
        expected: str = "",
        series: str = "",
        size: float | None = None,
    ) -> Row:
        """The line of a work that did `amount` in each round.

        `lead` names two works of which the first is compared with the second; `peer` says it in
        other words than ``first / second``.
        """
        taken = self.seconds[name]
        if unit in UNITS:
            figure = Spread.of(amount / UNITS[unit] / one for one in taken)
        else:
            figure = Spread.of(one / amount * 1e9 for one in taken)
        ratio, of = None, ""
        if lead is not None:
            ratio, of = self.ratio(*lead), " / ".join(lead) if peer is None else peer
        return Row(question, what, figure, unit, of, ratio, expected, series, size)


def by_turns(
    works: Mapping[str, Work],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time all works in each round, one after the other, with the garbage collector switched off.

    If a question is about one core, use `time.process_time` as the clock: it leaves out the time in
    which other processes had the core.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for current in range(-warm_up, rounds):
        for name, work in works.items():
            work.before()
            gc.collect()
            gc.disable()
            try:
                start = clock()
                work.run()
                taken = clock() - start
            finally:
                gc.enable()
            work.after()
            if current >= 0:
                seconds[name].append(taken)
    return Timings(seconds)


GOAL = re.compile(r"(>=|<=) ([\d.,]+)(x?)")


def met(row: Row) -> bool | None:
    """Whether the median reaches the goal; None if the row has none that can be read."""
    goal = GOAL.match(row.expected)
    if goal is None:
        return None
    measured = row.ratio if goal[3] else row.figure
    if measured is None:
        return None
    bound = float(goal[2].replace(",", ""))
    return measured.median >= bound if goal[1] == ">=" else measured.median <= bound


def number(value: float) -> str:
    """A figure with three significant digits."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(value: Spread | None, suffix: str = "") -> str:
    """The median and, if they differ from it, the smallest and largest value."""
    if value is None:
        return ""
    text = f"{number(value.median)}{suffix}"
    if value.low == value.high:
        return text
    return f"{text} ({number(value.low)}-{number(value.high)})"


def measured(row: Row) -> str:
    """The figure with its unit."""
    return f"{spread(row.figure)} {row.unit}".rstrip()


#: The numbers of the performance goals, by question.
# fmt: off
GOALS = {
    "count": "P1", "one-key": "P2", "writes": "P3", "snapshot-pause": "P4", "delta-size": "P5",
    "files": "P6", "element-files": "P6", "attach": "P7", "memory": "P8",
    "spark-count": "P9", "spark-skewed": "P9", "spark-function": "P10", "spark-pandas": "P10",
    "small-batches": "P11", "state-size": "P12", "spark-state-size": "P12", "rescale": "P13",
}
# fmt: on


def table(rows: Sequence[Row]) -> str:
    """All rows, aligned; medians first, the smallest and largest round in brackets."""
    head = ("", "goal", "what", "measured", "ratio", "of", "expected")
    body = [
        (r.question, GOALS.get(r.question, ""), *cells)
        for r in rows
        for cells in [(r.what, measured(r), spread(r.ratio, "x"), r.peer, r.expected)]
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, tuple("-" * width for width in widths), *body)
    ]
    return "\n".join(lines)
