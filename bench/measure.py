"""Measures in turn: every figure is a ratio of works that run alternately in one process."""

from __future__ import annotations

import gc
import os
import re
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Scale:
    """How much a run does; chosen by ``PYSTATE_BENCH_SCALE``."""

    name: str
    rounds: int
    key_counts: tuple[int, ...]
    rows: int
    scalar_rows: int
    state_sizes: tuple[int, ...]
    changed_rows: tuple[int, ...]
    shared_keys: int
    undo_records: int
    memory_keys: tuple[int, int]
    file_rows: tuple[int, ...]
    elements: int
    element_rows: int
    grown: tuple[int, ...]
    timed_rows: tuple[int, ...]
    timed_keys: int
    timed_batches: int
    pandas_rows: tuple[int, ...]
    pandas_batches: int
    spark_rows: int
    spark_keys: int
    spark_batches: int
    nexmark_events: int
    nexmark_chunk: int
    store_keys: tuple[int, ...]
    store_rows: int
    grown_keys: tuple[int, ...]
    grown_rows: int
    small_rows: tuple[int, ...]
    small_batches: int
    other_rows: int
    other_keys: int
    other_rounds: int
    flink_rows: int


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="smoke",
            rounds=2,
            key_counts=(2_000,),
            rows=4_000,
            scalar_rows=500,
            state_sizes=(100, 2_000),
            changed_rows=(10, 1_000),
            shared_keys=2_000,
            undo_records=500,
            memory_keys=(1_000, 4_000),
            file_rows=(1_000, 3_000),
            elements=2_000,
            element_rows=1_000,
            grown=(100, 1_000),
            timed_rows=(400,),
            timed_keys=100,
            timed_batches=1,
            pandas_rows=(400,),
            pandas_batches=1,
            spark_rows=4_000,
            spark_keys=1_000,
            spark_batches=1,
            nexmark_events=9_000,
            nexmark_chunk=3_000,
            store_keys=(100, 1_000),
            store_rows=500,
            grown_keys=(1_000, 3_000),
            grown_rows=200,
            small_rows=(100,),
            small_batches=2,
            other_rows=2_000,
            other_keys=100,
            other_rounds=1,
            flink_rows=2_000,
        ),
        Scale(
            name="short",
            rounds=9,
            key_counts=(1_000_000, 10_000_000),
            rows=2_000_000,
            scalar_rows=500_000,
            state_sizes=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
            changed_rows=(1_000, 10_000, 100_000, 1_000_000),
            shared_keys=1_000_000,
            undo_records=200_000,
            memory_keys=(1_000_000, 4_000_000),
            file_rows=(1_000_000, 3_000_000),
            elements=1_000_000,
            element_rows=500_000,
            grown=(1_000, 10_000, 100_000, 1_000_000),
            timed_rows=(300_000, 1_200_000),
            timed_keys=60_000,
            timed_batches=3,
            pandas_rows=(300_000, 1_200_000),
            pandas_batches=2,
            spark_rows=2_000_000,
            spark_keys=1_000_000,
            spark_batches=5,
            nexmark_events=2_000_000,
            nexmark_chunk=400_000,
            store_keys=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
            store_rows=200_000,
            grown_keys=(1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000),
            grown_rows=100_000,
            small_rows=(1_000, 10_000, 100_000),
            small_batches=15,
            other_rows=300_000,
            other_keys=60_000,
            other_rounds=3,
            flink_rows=4_000_000,
        ),
        Scale(
            name="large",
            rounds=7,
            key_counts=(1_000_000, 10_000_000),
            rows=4_000_000,
            scalar_rows=1_000_000,
            state_sizes=(1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000),
            changed_rows=(1_000, 10_000, 100_000, 1_000_000, 2_000_000),
            shared_keys=10_000_000,
            undo_records=1_000_000,
            memory_keys=(1_000_000, 4_000_000),
            file_rows=(1_000_000, 3_000_000, 10_000_000, 30_000_000),
            elements=1_000_000,
            element_rows=1_000_000,
            grown=(1_000, 10_000, 100_000, 1_000_000),
            timed_rows=(1_200_000,),
            timed_keys=240_000,
            timed_batches=3,
            pandas_rows=(1_200_000,),
            pandas_batches=3,
            spark_rows=2_000_000,
            spark_keys=1_000_000,
            spark_batches=9,
            nexmark_events=5_000_000,
            nexmark_chunk=1_000_000,
            store_keys=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
            store_rows=500_000,
            grown_keys=(1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000),
            grown_rows=100_000,
            small_rows=(1_000, 10_000, 100_000),
            small_batches=30,
            other_rows=1_000_000,
            other_keys=200_000,
            other_rounds=5,
            flink_rows=20_000_000,
        ),
    )
}


def chosen_scale() -> Scale:
    """The scale that ``PYSTATE_BENCH_SCALE`` names; `short` by default."""
    return SCALES[os.environ.get("PYSTATE_BENCH_SCALE", "short")]


@dataclass(frozen=True)
class Work:
    """Something to time: `run` is timed, `before` and `after` are not."""

    run: Callable[[], object]
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and largest of its values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Timings:
    """Seconds per round of each work."""

    seconds: Mapping[str, tuple[float, ...]]

    def rate(self, name: str, amount: float) -> Spread:
        """`amount` per second."""
        return Spread.of([amount / taken for taken in self.seconds[name]])

    def each(self, name: str, amount: float) -> Spread:
        """Nanoseconds for each of `amount`."""
        return Spread.of([taken / amount * 1e9 for taken in self.seconds[name]])

    def ratio(self, name: str, peer: str) -> Spread:
        """How many times as fast as the peer, round by round."""
        pairs = zip(self.seconds[peer], self.seconds[name], strict=True)
        return Spread.of([theirs / ours for theirs, ours in pairs])


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
    return Timings({name: tuple(values) for name, values in seconds.items()})


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
    detail: dict[str, Any] = field(default_factory=dict)
    series: str = ""
    size: float | None = None


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


def spread(value: Spread, suffix: str = "") -> str:
    """The median and, if they differ from it, the smallest and largest value."""
    text = f"{number(value.median)}{suffix}"
    if value.low == value.high:
        return text
    return f"{text} ({number(value.low)}-{number(value.high)})"


#: The numbers of the performance goals, by question.
GOALS = {
    "count": "P1",
    "one-key": "P2",
    "writes": "P3",
    "snapshot-pause": "P4",
    "delta-size": "P5",
    "files": "P6",
    "element-files": "P6",
    "attach": "P7",
    "memory": "P8",
    "spark-count": "P9",
    "spark-skewed": "P9",
    "spark-function": "P10",
    "spark-pandas": "P10",
    "small-batches": "P11",
    "state-size": "P12",
    "spark-state-size": "P12",
    "rescale": "P13",
}


def table(rows: Sequence[Row]) -> str:
    """All rows, aligned; medians first, the smallest and largest round in brackets."""
    head = ("", "goal", "what", "measured", "ratio", "of", "expected")
    body = [
        (
            row.question,
            GOALS.get(row.question, ""),
            row.what,
            f"{spread(row.figure)} {row.unit}".rstrip(),
            "" if row.ratio is None else spread(row.ratio, "x"),
            row.peer,
            row.expected,
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, tuple("-" * width for width in widths), *body)
    ]
    return "\n".join(lines)
