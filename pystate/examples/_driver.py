"""Runs the examples: options, a folder, Spark, input epoch by epoch, a table, a comparison.

The jobs themselves, and the expected results, are in the examples.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pystate.errors import CheckpointError, InUseError
from pystate.examples._console import Table, await_query, failing_softly, message, quiet_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochProgress, Job, ParquetSink


#: A file stream takes the oldest file first, by modification time.
_FIRST_FILE = 1_700_000_000


class Column(NamedTuple):
    """A column of the table of epochs: its content and its width."""

    width: int
    shown: Callable[[EpochProgress], str]


_COLUMNS = {
    "epoch": Column(6, lambda progress: str(progress.epoch)),
    "rows": Column(8, lambda progress: f"{progress.rows_in:,}"),
    "out": Column(8, lambda progress: f"{progress.rows_out:,}"),
    "aside": Column(6, lambda progress: f"{sum(progress.side_rows.values()):,}"),
    "late": Column(6, lambda progress: f"{sum(progress.late_rows.values()):,}"),
    "flight": Column(8, lambda progress: f"{sum(progress.in_flight.values()):,}"),
    "keys": Column(8, lambda progress: f"{progress.keys:,}"),
    "state": Column(10, lambda progress: f"{progress.state_bytes / 1024:,.0f} KiB"),
    "checkpoint": Column(11, lambda progress: f"{progress.checkpoint_bytes / 1024:,.1f} KiB"),
    "seconds": Column(8, lambda progress: f"{progress.total_ms / 1000:.2f}"),
}
_USUAL = ("epoch", "rows", "out", "aside", "late", "keys", "checkpoint", "seconds")


def parser(name: str, doc: str | None, *, epochs: int | None = 8) -> argparse.ArgumentParser:
    """Make a parser with the options that all examples have."""
    options = argparse.ArgumentParser(
        prog=f"python -m pystate.examples.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if epochs is not None:
        options.add_argument(
            "--epochs",
            type=positive,
            default=epochs,
            metavar="N",
            help=f"micro-batches (default: {epochs})",
        )
    options.add_argument(
        "--checkpoint",
        metavar="DIR",
        type=os.path.abspath,
        help="folder for input, state and output; give it again to resume (default: temporary)",
    )
    options.add_argument(
        "--cores", type=positive, default=2, metavar="N", help="tasks at a time (default: 2)"
    )
    return options


def positive(text: str) -> int:
    """Parse a positive number."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def example(
    options: argparse.Namespace,
    name: str,
    body: Callable[[Run], int],
    *,
    columns: Mapping[str, str] | None = None,
    keep: bool = False,
) -> int:
    """Run an example in its folder; the exit status is 0 only if the result was verified.

    `columns` has the headings of the table of epochs, and what they show.
    """
    folder = options.checkpoint or tempfile.mkdtemp(prefix=f"pystate-{name}-")
    try:
        with failing_softly():
            # Reports a missing package before anything is done.
            import pystate.spark  # noqa: F401

            os.makedirs(folder, exist_ok=True)
            kept = keep or options.checkpoint is not None
            with _alone(folder):
                return body(Run(name, options, folder, columns or {n: n for n in _USUAL}, kept))
    finally:
        if options.checkpoint is None and not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Have a folder alone: what Spark keeps there for a while is removed at the end of a run."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            # The lock goes with the process, also with one that is killed.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(
                f"another example runs in {folder}: wait until it has ended, or give another "
                "--checkpoint"
            ) from None
        yield
    finally:
        os.close(descriptor)


@dataclass
class Run:
    """One run of an example: its options, its folder, and its table of epochs."""

    name: str
    options: argparse.Namespace
    folder: str
    columns: Mapping[str, str]
    kept: bool = False
    """Whether the folder stays when the run has ended."""
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.table = Table(**{name: _COLUMNS[what].width for name, what in self.columns.items()})

    def path(self, *names: str) -> str:
        """A path in the run's folder."""
        return os.path.join(self.folder, *names)

    def session(self) -> AbstractContextManager[SparkSession]:
        """Start a local Spark that prints nothing."""
        return quiet_session(f"pystate {self.name}", self.options.cores, self.folder)

    def job(self) -> Job:
        """The example's job, on the checkpoint in its folder."""
        from pystate.spark import Job

        checkpoint = self.path("checkpoint")
        return Job(self.name, checkpoint=checkpoint, parallelism=self.options.cores)

    def stream(
        self, session: SparkSession, epochs: Sequence[pa.Table], name: str = "input"
    ) -> DataFrame:
        """Write one file per epoch, and read them as a stream, one by one."""
        folder = self.path(name)
        _write_once(epochs, folder)
        reader = session.readStream.schema(session.read.parquet(folder).schema)
        return reader.option("maxFilesPerTrigger", 1).option("maxFileAge", "36500d").parquet(folder)

    def frames(
        self, session: SparkSession, parts: Sequence[pa.Table], name: str = "input"
    ) -> list[DataFrame]:
        """Write one file per part, and read each as a batch."""
        folder = self.path(name)
        _write_once(parts, folder)
        names = sorted(os.listdir(folder))
        return [session.read.parquet(os.path.join(folder, each)) for each in names]

    def sink(self, name: str) -> ParquetSink:
        """A sink in a folder of the run."""
        from pystate.spark import ParquetSink

        return ParquetSink(self.path(name))

    def read(
        self,
        job: Job,
        stream: DataFrame,
        pipeline: Callable[[DataFrame, Job], DataFrame],
        sink: ParquetSink,
        on_epoch: Callable[[EpochProgress], None] | None = None,
        **side_outputs: ParquetSink,
    ) -> None:
        """Run a pipeline over all input of a stream, an epoch at a time.

        Each epoch's line is printed, or `on_epoch` is called instead.
        """
        query = job.start(
            stream,
            pipeline,
            sink=sink,
            side_outputs=side_outputs,
            trigger={"availableNow": True},
            on_epoch=on_epoch or self.show,
        )
        await_query(job, query)
        job.close()
        if not self.table.rows:
            message("nothing new to read: the checkpoint has all epochs")

    def show(self, progress: EpochProgress) -> None:
        """Print an epoch's line of the table; for a job's ``on_epoch``."""
        shown = {name: _COLUMNS[what].shown(progress) for name, what in self.columns.items()}
        self.table.add(**shown)


def cut(table: pa.Table, epochs: int) -> list[pa.Table]:
    """Split a table into parts of about the same length; no more parts than it has rows."""
    rows = len(table)
    epochs = max(1, min(epochs, rows))
    cuts = [rows * i // epochs for i in range(epochs + 1)]
    return [table.slice(a, b - a) for a, b in pairwise(cuts)]


def in_epochs(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, pa.DataType], epochs: int
) -> list[pa.Table]:
    """Split rows as `cut` does."""
    return cut(pa.Table.from_pylist(list(rows), pa.schema(columns)), epochs)


def _write_once(epochs: Sequence[pa.Table], folder: str) -> None:
    """Write the files of a stream, or check that an earlier run wrote the same."""
    names = [f"{number:05d}.parquet" for number in range(len(epochs))]
    if os.path.isdir(folder):
        there = sorted(os.listdir(folder))
        if there != names or any(
            pq.read_table(os.path.join(folder, name)) != table
            for name, table in zip(names, epochs, strict=True)
        ):
            raise CheckpointError(
                f"{folder} holds another input: give the same options again, or another "
                "--checkpoint"
            )
        return
    building = f"{folder}.tmp"
    shutil.rmtree(building, ignore_errors=True)
    os.makedirs(building)
    for number, (name, table) in enumerate(zip(names, epochs, strict=True)):
        path = os.path.join(building, name)
        pq.write_table(table, path)
        os.utime(path, (_FIRST_FILE + number, _FIRST_FILE + number))
    os.rename(building, folder)


def published(sink: ParquetSink) -> list[dict[str, Any]]:
    """Read a sink's published rows, epoch by epoch, with only pyarrow."""
    rows: list[dict[str, Any]] = []
    for epoch in sink.epochs():
        folder = os.path.join(sink.path, f"epoch={epoch}")
        rows += pq.read_table(folder, partitioning=None).to_pylist()
    return rows


def verified(*results: tuple[str, Iterable[tuple[Any, ...]], Iterable[tuple[Any, ...]]]) -> bool:
    """Compare results with recomputed ones, and report any difference."""
    for what, rows, wanted in results:
        mine, theirs = Counter(rows), Counter(wanted)
        for wrong, problem in (
            (theirs - mine, "is missing"),
            (mine - theirs, "should not be there"),
        ):
            if wrong:
                first = min(wrong, key=repr)
                message(f"WRONG: {what} {first} {problem}, {wrong.total()} such in all", error=True)
                return False
    return True
