"""What the streaming examples share: options, input that Spark reads epoch by epoch, a comparison.

The jobs themselves are in the examples, from the function to `Job.start`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pystate.errors import CheckpointError
from pystate.examples._console import (
    Table,
    await_query,
    failing_softly,
    message,
    quiet_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pystate.spark import EpochProgress, Job, ParquetSink

__all__ = ["AT_ONCE", "Run", "differs", "example", "in_epochs", "parser", "published"]

#: The trigger of all examples: read what is there, an epoch at a time, and end.
AT_ONCE = {"availableNow": True}
#: A file stream takes the oldest first, by modification time.
_FIRST_FILE = 1_700_000_000


def parser(name: str, doc: str | None, *, epochs: int = 8) -> argparse.ArgumentParser:
    """Make a parser with the options that all examples have."""
    made = argparse.ArgumentParser(
        prog=f"python -m pystate.examples.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--epochs",
        type=positive,
        default=epochs,
        metavar="N",
        help=f"micro-batches (default: {epochs})",
    )
    made.add_argument(
        "--checkpoint",
        metavar="DIR",
        type=os.path.abspath,
        help="folder for input, state and output; give it again to resume (default: temporary)",
    )
    made.add_argument(
        "--cores", type=positive, default=2, metavar="N", help="tasks at a time (default: 2)"
    )
    return made


def positive(text: str) -> int:
    """Read a number of things."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def example(options: argparse.Namespace, name: str, body: Callable[[Run], int]) -> int:
    """Run an example in its folder; the exit status is 0 only if the result was verified."""
    folder = options.checkpoint or tempfile.mkdtemp(prefix=f"pystate-{name}-")
    try:
        with failing_softly():
            os.makedirs(folder, exist_ok=True)
            return body(Run(name, options, folder))
    finally:
        if options.checkpoint is None:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Run:
    """One run of an example: its options, its folder, and its table of epochs."""

    name: str
    options: argparse.Namespace
    folder: str
    table: Table = field(
        default_factory=lambda: Table(
            epoch=6, rows=8, out=8, aside=6, late=6, keys=8, checkpoint=11, seconds=8
        )
    )

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

    def finish(self, job: Job, query: StreamingQuery) -> None:
        """Wait until the stream has been read."""
        await_query(job, query)
        job.close()
        if not self.table.rows:
            message("nothing new to read: the checkpoint has all epochs")

    def show(self, progress: EpochProgress) -> None:
        """Print an epoch's line of the table; for ``Job.start(on_epoch=...)``."""
        self.table.add(
            epoch=progress.epoch,
            rows=f"{progress.rows_in:,}",
            out=f"{progress.rows_out:,}",
            aside=f"{sum(progress.side_rows.values()):,}",
            late=f"{sum(progress.late_rows.values()):,}",
            keys=f"{progress.keys:,}",
            checkpoint=f"{progress.checkpoint_bytes / 1024:,.1f} KiB",
            seconds=f"{progress.total_ms / 1000:.2f}",
        )


def in_epochs(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, pa.DataType], epochs: int
) -> list[pa.Table]:
    """Cut rows into tables of about the same length; no more of them than there are rows."""
    table = pa.Table.from_pylist(list(rows), pa.schema(columns))
    epochs = max(1, min(epochs, len(rows)))
    cuts = [len(rows) * i // epochs for i in range(epochs + 1)]
    return [table.slice(a, b - a) for a, b in pairwise(cuts)]


def _write_once(epochs: Sequence[pa.Table], folder: str) -> None:
    """Write the files of a stream, or see that a run before this one wrote the same."""
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
    """Read what a sink has published, epoch after epoch, with pyarrow alone."""
    rows: list[dict[str, Any]] = []
    for epoch in sink.epochs():
        folder = os.path.join(sink.path, f"epoch={epoch}")
        rows += pq.read_table(folder, partitioning=None).to_pylist()
    return rows


def differs(what: str, found: Iterable[tuple[Any, ...]], wanted: Iterable[tuple[Any, ...]]) -> bool:
    """Say what distinguishes the result from the recomputed one, if anything does."""
    mine, theirs = Counter(found), Counter(wanted)
    for wrong, problem in ((theirs - mine, "is missing"), (mine - theirs, "should not be there")):
        if wrong:
            first = min(wrong, key=repr)
            message(f"WRONG: {what} {first} {problem}, {wrong.total()} such in all", error=True)
            return True
    return False
