"""A count per key in functions that get pandas frames, compared with what one writes for pystate.

Spark's `applyInPandasWithState` and `transformWithStateInPandas`, the same functions unchanged in a
job of pystate, and two functions of pystate: one by row, and one by batch, which is what someone
writes who takes frames in Spark for their speed. Each yields, for each row, its key and how many
rows of the key came so far; all outputs are compared at the end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pystate as ps
from bench.measure import Row, Scale
from bench.spark_aggregates import COUNTED, write_input
from bench.spark_jobs import by_turns, in_a_row, in_job, in_spark, same_rows, session
from bench.spark_timed import WARM_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bench.spark_jobs import Start

OUTPUT = "key long, n long"
STATE = "n long"


def by_row() -> ps.KeyedProcessFunction:
    """What one would write; defined here so that it is pickled by value."""

    class Counts(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            n = self.n.value() + 1
            self.n.update(n)
            yield key, n

    return Counts()


def by_batch() -> ps.VectorizedFunction:
    """The same for many rows of many keys at once."""
    numpy, arrow = np, pa

    class Counts(ps.VectorizedFunction):
        n = ps.ValueState("long", default=0)

        def process(self, keys: Any, batch: Any, ctx: ps.RuntimeContext) -> Any:
            before = self.n.values(keys)
            self.n.add(keys, 1)
            # The rows of each key together, in their order, and where those of each begin.
            first = keys.first_rows()
            order = numpy.argsort(first, kind="stable")
            begins = numpy.flatnonzero(numpy.diff(first[order], prepend=-1))
            lengths = numpy.diff(begins, append=len(order))
            counts = numpy.empty(len(order), numpy.int64)
            counts[order] = numpy.arange(1, len(order) + 1) - numpy.repeat(begins, lengths)
            counts += before
            return arrow.record_batch([keys.key_arrays()[0], counts], ["key", "n"])

    return Counts()


def group_function() -> Callable[[Any, Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]:
    """For applyInPandasWithState."""
    pandas = pd

    def count(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n = state.get[0] if state.exists else 0
        for frame in frames:
            more = len(frame)
            yield pandas.DataFrame({"key": key[0], "n": range(n + 1, n + more + 1)})
            n += more
        state.update((n,))

    return count


def frames_processor() -> StatefulProcessor:
    """For transformWithStateInPandas."""
    pandas = pd

    class Counts(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            found = self.n.get()
            n = 0 if found is None else found[0]
            for frame in rows:
                more = len(frame)
                yield pandas.DataFrame({"key": key[0], "n": range(n + 1, n + more + 1)})
                n += more
            self.n.update((n,))

        def close(self) -> None:
            pass

    return Counts()


def job_with(operator: Callable[[Any], Any]) -> Start:
    """A job of pystate."""
    return in_job(lambda frame, job: operator(job.key_by(frame, "key", uid="count")))


def spark_with(operator: Callable[[Any], Any]) -> Start:
    """A query of Spark's own."""
    return in_spark(lambda stream: operator(stream.groupBy("key")))


def with_group_function(keyed: Any) -> Any:
    """The same text in both engines."""
    return keyed.applyInPandasWithState(group_function(), OUTPUT, STATE, "Update", "NoTimeout")


def with_processor(keyed: Any) -> Any:
    """The same text in both engines."""
    return keyed.transformWithStateInPandas(frames_processor(), OUTPUT, "Update", "None")


BY_ROW, BY_BATCH = "pystate, by row", "pystate, by batch"
GROUP, FRAMES = "applyInPandasWithState", "transformWithStateInPandas"
IN_JOB = " in a job"
STARTS: dict[str, Start] = {
    BY_ROW: job_with(lambda keyed: keyed.process(by_row(), OUTPUT)),
    BY_BATCH: job_with(lambda keyed: keyed.process(by_batch(), OUTPUT)),
    f"{GROUP}{IN_JOB}": job_with(with_group_function),
    f"{FRAMES}{IN_JOB}": job_with(with_processor),
    GROUP: spark_with(with_group_function),
    FRAMES: spark_with(with_processor),
}
EXPECTED = {GROUP: ">= 150x", FRAMES: ">= 150x"}
"""Of the function by row."""


def jobs(scale: Scale) -> list[Row]:
    """All jobs, with batches of each size: several of the first, and one of each other."""
    found = []
    for i, rows in enumerate(scale.pandas_rows):
        keys = rows * scale.timed_keys // scale.timed_rows[0]
        # The larger batches are there to be compared: the goals are those of the first.
        found += sized(rows, keys, 1 if i else scale.pandas_batches, {} if i else EXPECTED)
    return found


def sized(rows: int, keys: int, batches: int, goals: dict[str, str]) -> list[Row]:
    """All jobs, with batches of one size.

    The lead is that of the function by row, or of the same text in a job; at the end, it is that of
    the function by batch over what gets frames in Spark.
    """
    write = partial(write_input, keys=keys)
    with session() as (spark, root):
        turns = in_a_row(rows, WARM_UP, batches)
        timings, folders = by_turns(spark, root, STARTS, COUNTED, write, turns)
        same_rows(spark, folders, BY_ROW, "key", "n")
    row = partial(timings.row, question="spark-pandas", amount=rows, unit="k rows/s")
    found = []
    for name in STARTS:
        lead, peer, own = None, None, name.removesuffix(IN_JOB)
        if own != name:
            lead, peer = (name, own), f"in Spark: {own}"
        elif name in (GROUP, FRAMES):
            lead = BY_ROW, name
        what = f"count by frames, {rows:,} rows a batch, {keys:,} keys: {name}"
        found.append(row(name, what=what, lead=lead, peer=peer, expected=goals.get(name, "")))
    for name in (GROUP, FRAMES):
        what = f"by batch in pystate, by frames in Spark, {rows:,} rows a batch: {name}"
        found.append(row(BY_BATCH, what=what, lead=(BY_BATCH, name), peer=name))
    return found
