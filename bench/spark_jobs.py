"""Sessions, streams and jobs on Spark that get the same batches, one job after the other.

Batches are folders of Parquet files that appear below a job's folder. All jobs of a comparison run
in one session, shuffle by key into as many partitions, and write Parquet in `foreachBatch`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from bench.measure import Timings
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    Start = Callable[[DataFrame, Path], StreamingQuery]
    """Starts a query over a stream, with its checkpoint and its output in a folder."""
    Batch = tuple[int, bool]
    """How many rows, and whether it is timed."""

PARALLELISM = 2
MAX_PARALLELISM = 128
STATE_STORE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {
    "HDFSBacked": f"{STATE_STORE}HDFSBackedStateStoreProvider",
    "RocksDB": f"{STATE_STORE}RocksDBStateStoreProvider",
}


@contextlib.contextmanager
def session(
    cores: int = PARALLELISM, within: str | None = None
) -> Iterator[tuple[SparkSession, Path]]:
    """Some cores of this machine, quiet, and a folder that is there as long."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(
        prefix="pystate-bench-", dir=within, ignore_cleanup_errors=True
    ) as folder:
        spark = (
            SparkSession.builder.master(f"local[{cores}]")
            .appName("pystate-bench")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "4g")
            # Jobs that wait for their turn rarely check for input.
            .config("spark.sql.streaming.pollingDelay", "500ms")
            .config("spark.sql.shuffle.partitions", str(PARALLELISM))
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            # What tasks write beside the checkpoint.
            .config("spark.local.dir", f"{folder}/local")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield spark, Path(folder)
        finally:
            spark.stop()


def use_store(spark: SparkSession, provider: str) -> None:
    """Let queries that start from now on keep Spark's state so."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])


def source(spark: SparkSession, folder: Path, columns: str) -> DataFrame:
    """A stream with a batch for each folder that appears below `folder`."""
    (folder / "in").mkdir(parents=True)
    return spark.readStream.schema(columns).parquet(str(folder / "in" / "*"))


def hand_over(batch: Path, folder: Path) -> None:
    """Make all files of a batch appear at once in a job's input."""
    coming = folder / "coming"
    shutil.copytree(batch, coming, copy_function=os.link)
    coming.rename(folder / "in" / batch.name)


def new_job(name: str, folder: Path, parallelism: int = PARALLELISM, **options: Any) -> Job:
    """A job with its checkpoint in a folder."""
    return Job(
        name,
        checkpoint=str(folder / "checkpoint"),
        max_parallelism=MAX_PARALLELISM,
        parallelism=parallelism,
        **options,
    )


def in_job(pipeline: Callable[[DataFrame, Job], DataFrame]) -> Start:
    """A job of pystate."""

    def start(stream: DataFrame, folder: Path) -> StreamingQuery:
        sink = ParquetSink(str(folder / "out"))
        return new_job("bench", folder).start(stream, pipeline, sink=sink)

    return start


def in_spark(
    query: Callable[[DataFrame], DataFrame], mode: str = "update", provider: str = "RocksDB"
) -> Start:
    """A query of Spark's own operators."""

    def start(stream: DataFrame, folder: Path) -> StreamingQuery:
        use_store(stream.sparkSession, provider)
        writer = query(stream).writeStream.outputMode(mode)
        return started(writer.foreachBatch(writing(folder)), folder)

    return start


def writing(folder: Path) -> Callable[[DataFrame, int], None]:
    """Writes batches as Parquet."""

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.parquet(str(folder / "out" / f"epoch={batch_id}"))

    return write


def started(writer: Any, folder: Path) -> StreamingQuery:
    """Start a writer with its own checkpoint."""
    query: StreamingQuery = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    return query


def batch_seconds(query: StreamingQuery, turn: int) -> float:
    """Spark's time of the micro-batch just handed over, with source and commit."""
    query.processAllAvailable()
    # By its number: Spark keeps the last hundred reports only, and a query that waits for its turn
    # makes one every ten seconds.
    batches = [found for found in query.recentProgress if found.numInputRows]
    if not batches or batches[-1].batchId != turn:
        last = batches[-1].batchId if batches else "none"
        raise AssertionError(f"the last batch with rows was {last}, not {turn} as handed over")
    return float(batches[-1].durationMs["triggerExecution"]) / 1e3


def plain(rows: int, warm_up: int, timed: int) -> list[list[Batch]]:
    """Turns of one batch, of which the first ones are not timed."""
    return [[(rows, turn >= warm_up)] for turn in range(warm_up + timed)]


def in_a_row(rows: int, warm_up: int, timed: int, batches: int = 1) -> list[list[Batch]]:
    """Turns of a small batch, and of so many others that are timed; the first turns have none.

    Spark ends Python workers that were idle for a minute, as during the others' turn: the small
    batch starts them again. In a stream that goes on, a batch follows the one before it; the first
    one after a pause takes longer.
    """
    small = rows // 10, False
    return [[small]] * warm_up + [[small, *[(rows, True)] * batches]] * timed


def by_turns(
    spark: SparkSession,
    root: Path,
    starts: Mapping[str, Start],
    columns: str,
    write: Callable[[SparkSession, int, Path], None],
    turns: Iterable[Sequence[Batch]],
) -> tuple[Timings, dict[str, Path]]:
    """The seconds of each job's timed batches, and the folders of the jobs.

    `write` writes a batch of so many rows to a folder, whose name is its number.
    """
    # A batch that only moves the watermark would be an extra batch for Spark, but not for pystate.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    folders = {name: root / f"job{i}" for i, name in enumerate(starts)}
    queries = {
        name: start(source(spark, folders[name], columns), folders[name])
        for name, start in starts.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    first = 0
    for turn in turns:
        batches = list(enumerate(turn, first))
        first += len(batches)
        for number, (rows, _) in batches:
            write(spark, rows, root / str(number))
        for name, query in queries.items():
            for number, (_, timed) in batches:
                hand_over(root / str(number), folders[name])
                took = batch_seconds(query, number)
                if timed:
                    seconds[name].append(took)
    for query in queries.values():
        query.stop()
    return Timings(seconds), folders


def same_rows(spark: SparkSession, folders: dict[str, Path], ours: str, *columns: str) -> DataFrame:
    """Check that the outputs of all jobs hold the same rows as one of them, which is returned."""
    frames = {
        name: spark.read.parquet(str(folder / "out")).select(*columns)
        for name, folder in folders.items()
    }
    own = frames.pop(ours)
    for name, theirs in frames.items():
        missing, more = theirs.exceptAll(own).count(), own.exceptAll(theirs).count()
        if missing or more:
            raise AssertionError(f"{name}: {missing} rows missing, {more} too many")
    return own


class ProcessorTime:
    """Processor time of this process and of all that it has started, as Linux counts it.

    It is what a job costs, whoever else uses the machine: the driver, Spark's JVM and Python's
    workers. It counts from when it is made; without what a process did that has ended meanwhile.
    """

    def __init__(self) -> None:
        self._before = _ticks()

    def seconds(self) -> float:
        """Seconds of all cores since then."""
        gone = sum(ticks - self._before.get(pid, 0) for pid, ticks in _ticks().items())
        return gone / os.sysconf("SC_CLK_TCK")


def _ticks() -> dict[int, int]:
    """The processor time of each process."""
    children: dict[int, list[int]] = defaultdict(list)
    every: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has ended
            continue
        # The name, in parentheses, may have spaces; what follows begins with the state.
        fields = text[text.rindex(")") + 2 :].split()
        pid = int(path.parent.name)
        children[int(fields[1])].append(pid)
        every[pid] = int(fields[11]) + int(fields[12])
    found, left = {}, [os.getpid()]
    while left:
        pid = left.pop()
        left += children[pid]
        if pid in every:
            found[pid] = every[pid]
    return found
