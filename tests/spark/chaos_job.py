"""A driver of the randomised run: a local Spark and a job that goes on until its input is read.

``python -m tests.spark.chaos_job SPEC.json`` is started by `tests.spark.chaos`, again and again. It
leaves ``ready`` beside its specification once it has a session, and in the end its result.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import random
import secrets
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import EvaluationError, FencedError
from pystate.spark import Job, ParquetSink
from tests.spark.chaos_model import GROUPS, NAMES, RING_AFTER_MS, Plan, pad_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ACTIONS", "Spec", "action_of"]

INPUT = "seq long, k long, v long, t long"
OUT = "kind string, k long, seq long, n long, total long, stamp long"
SIDE = "k long, seq long, stamp long"


@dataclasses.dataclass
class Segment:
    """How a job is run for a while, without a new process."""

    parallelism: int
    home: str
    until: int | None
    """An epoch, or to the end of the input."""
    limit_bytes: int = 0


@dataclasses.dataclass
class Spec:
    """What a driver is to do."""

    folder: str
    name: str
    plan: Plan
    segments: list[Segment]
    conf: dict[str, str]
    takes: int
    """How often it takes the checkpoint over again when another driver has."""

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    def path(self, ending: str) -> Path:
        """A file of this driver."""
        return Path(self.folder, f"{self.name}.{ending}")

    def save(self) -> Path:
        """Write it for the driver."""
        self.path("json").write_text(json.dumps(dataclasses.asdict(self)))
        return self.path("json")

    @classmethod
    def load(cls, path: str) -> Spec:
        """Read it."""
        fields = json.loads(Path(path).read_text())
        fields["plan"] = Plan(**fields["plan"])
        fields["segments"] = [Segment(**segment) for segment in fields["segments"]]
        return cls(**fields)


# ---- operators ---------------------------------------------------------------------------------


class Stamps(ps.KeyedProcessFunction):
    """Counts and sums a key's rows, and keeps what it has emitted for each."""

    n = ps.ValueState("long", default=0)
    total = ps.ValueState("long", default=0)
    pad = ps.ValueState("string")
    stamps = ps.MapState("long", "array<long>")

    def __init__(self, pad: int, side: bool) -> None:
        self._pad = pad
        self._side = side

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        n, total = self.n.value() + 1, self.total.value() + row["v"]
        stamp = secrets.randbits(62)
        self.n.update(n)
        self.total.update(total)
        if self._pad:
            self.pad.update(pad_of(self._pad, key, n))
        self.stamps.put(row["seq"], [n, total, stamp])
        if self._side and row["seq"] % 2:
            ctx.output("odd", (key, row["seq"], stamp))
        yield "row", key, row["seq"], n, total, stamp


class Alarms(ps.KeyedProcessFunction):
    """Rings some time after each row."""

    rung = ps.ValueState("long", default=0)
    marks = ps.MapState("long", "array<long>")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        if self.rung.value() == 0:
            self.rung.update(0)
        ctx.register_event_time_timer(row["t"] + RING_AFTER_MS)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        n, stamp = self.rung.value() + 1, secrets.randbits(62)
        self.rung.update(n)
        self.marks.put(n, [timestamp, stamp])
        yield "alarm", int(key[1:]), timestamp, n, ctx.watermark, stamp


# ---- what the pipeline does with its output ----------------------------------------------------


def _count(out: DataFrame, scratch: str) -> DataFrame:
    out.count()
    return out


def _look(out: DataFrame, scratch: str) -> DataFrame:
    if not out.isEmpty():
        assert out.first() is not None and out.take(3)
    out.show(1)
    return out


def _count_and_limit(out: DataFrame, scratch: str) -> DataFrame:
    out.count()
    return out.limit(7)


def _persist(out: DataFrame, scratch: str) -> DataFrame:
    out.persist().count()
    return out.where("seq % 2 = 0").union(out.where("seq % 2 = 1"))


def _checkpoint(out: DataFrame, scratch: str) -> DataFrame:
    out = out.localCheckpoint()
    assert out.count() == out.count()
    return out


def _join(out: DataFrame, scratch: str) -> DataFrame:
    others = out.select("kind", "seq").distinct()
    return out.join(F.broadcast(others), ["kind", "seq"]).select(*out.columns)


def _window(out: DataFrame, scratch: str) -> DataFrame:
    numbered = out.selectExpr("*", "row_number() OVER (PARTITION BY k ORDER BY seq) AS place")
    return numbered.drop("place")


def _elsewhere(out: DataFrame, scratch: str) -> DataFrame:
    copy = f"{scratch}/copy-{uuid.uuid4().hex}"
    out.write.parquet(f"file://{copy}")
    return out.sparkSession.read.parquet(f"file://{copy}")


def _barrier(out: DataFrame, scratch: str) -> DataFrame:
    return out.repartition(1).mapInArrow(_pass_on, out.schema, barrier=True)


def _fail_once(out: DataFrame, scratch: str) -> DataFrame:
    return out.mapInArrow(Failing(f"{scratch}/failed-{uuid.uuid4().hex}"), out.schema)


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class Failing:
    """Passes everything on, then fails its task, whose operator has sealed by then, once."""

    def __init__(self, flag: str) -> None:
        self._flag = flag

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            os.close(os.open(self._flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise OSError("a disk that fails once")


Action = Callable[["DataFrame", str], "DataFrame"]
#: What reads the output once and to its end, and by which rule rows are published.
WHOLE: dict[str, tuple[Action, str]] = {
    "plain": (lambda out, scratch: out, "all"),
    "coalesce": (lambda out, scratch: out.coalesce(1), "all"),
    "repartition": (lambda out, scratch: out.repartition(3), "all"),
    "distinct": (lambda out, scratch: out.distinct(), "all"),
    "window": (_window, "all"),
    "sample": (lambda out, scratch: out.sample(0.7), "some"),
    "chance": (lambda out, scratch: out.where(F.rand() < 0.5), "some"),
    "barrier": (_barrier, "all"),
    "fail once": (_fail_once, "all"),
    "elsewhere": (_elsewhere, "all"),
    "checkpoint": (_checkpoint, "all"),
}
#: What reads it more than once, or in part.
ACTIONS: dict[str, tuple[Action, str]] = {
    **WHOLE,
    "count": (_count, "all"),
    "look": (_look, "all"),
    "limit": (lambda out, scratch: out.limit(7), "seven"),
    "count and limit": (_count_and_limit, "seven"),
    "persist": (_persist, "all"),
    "union": (lambda out, scratch: out.union(out.limit(3)), "and three"),
    "sort": (lambda out, scratch: out.orderBy("seq", "kind"), "all"),
    "ranges": (lambda out, scratch: out.repartitionByRange(3, "seq"), "all"),
    "join": (_join, "all"),
    "filters": (lambda out, scratch: out.where("k % 2 = 0").union(out.where("k % 2 <> 0")), "all"),
}


def action_of(plan: Plan, epoch: int) -> str:
    """What the pipeline does in an epoch, whoever computes it."""
    if not plan.actions:
        return "plain"
    rng = random.Random(f"{plan.seed}/action/{epoch}")
    return rng.choice(list(WHOLE if plan.rdd else ACTIONS))


# ---- the driver --------------------------------------------------------------------------------


class Driver:
    """Runs the job's segments."""

    def __init__(self, spec: Spec, session: SparkSession) -> None:
        self._spec = spec
        self._plan = spec.plan
        self._session = session
        self._scratch = f"{spec.folder}/scratch"
        self._sink = ParquetSink(f"{spec.folder}/out")
        self._sides = {"odd": ParquetSink(f"{spec.folder}/side")} if spec.plan.side else None

    def job(self, segment: Segment) -> Job:
        return Job(
            "chaos",
            checkpoint=self._spec.checkpoint,
            parallelism=segment.parallelism,
            table_home=segment.home,
            memory_limit_bytes=segment.limit_bytes,
            max_parallelism=16,
            checkpoints=ps.CheckpointOptions(interval=self._plan.interval),
        )

    def run(self) -> None:
        """Run all segments, the last one to the end of the input."""
        takes = self._spec.takes
        for segment in self._spec.segments:
            while True:
                try:
                    with self.job(segment) as job:
                        (self._stream if self._plan.stream else self._runs)(job, segment)
                    break
                except FencedError:
                    if takes == 0:
                        raise
                    takes -= 1

    def _runs(self, job: Job, segment: Segment) -> None:
        last = self._plan.batches if segment.until is None else segment.until
        for batch in range(min(last, self._plan.batches)):
            path = f"{self._spec.folder}/input/{batch:05d}.parquet"
            frame = self._session.read.schema(INPUT).parquet(path)
            if self._plan.rdd and self._plan.actions and batch % 4 == 3:
                self._refused(job, frame, batch)
            job.run_epoch(
                frame,
                lambda df: self._pipeline(job, df),
                run_key=f"b{batch}",
                sink=self._sink,
                side_outputs=self._sides,
            )

    def _refused(self, job: Job, frame: DataFrame, batch: int) -> None:
        """An RDD that is read twice is an error that says how; nothing is published."""

        def pipeline(df: DataFrame) -> DataFrame:
            out = self._pipeline(job, df, "plain")
            out.count()
            return out

        try:
            result = job.run_epoch(
                frame,
                pipeline,
                run_key=f"b{batch}",
                sink=self._sink,
                side_outputs=self._sides,
            )
            assert result.already_done, "an RDD that is read twice was published"
        except EvaluationError as error:
            text = str(error)
            if "'stamps'" not in text or "evaluated twice" not in text:
                raise

    def _stream(self, job: Job, segment: Segment) -> None:
        reached = threading.Event()

        def on_epoch(progress: Any) -> None:
            if segment.until is not None and progress.epoch >= segment.until:
                reached.set()

        reader = self._session.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
        stream = reader.option("maxFileAge", "36500d").parquet(f"{self._spec.folder}/input")
        query = job.start(
            stream,
            lambda df: self._pipeline(job, df),
            sink=self._sink,
            side_outputs=self._sides,
            trigger={"availableNow": True},
            on_epoch=on_epoch,
        )
        try:
            while not query.awaitTermination(0.05):
                if reached.is_set():
                    # In the midst of the next epoch.
                    query.stop()
                    return
        except Exception:
            if job.failure is not None:
                raise job.failure from None
            raise

    def _pipeline(self, job: Job, df: DataFrame, action: str | None = None) -> DataFrame:
        plan = self._plan
        epoch = (job.latest_epoch() or 0) + 1
        rng = random.Random(f"{plan.seed}/parallelism/{epoch}")
        if rng.random() < 0.2:
            job.rescale(rng.randint(1, 7))  # from the next epoch on
        if action is None:
            action = action_of(plan, epoch)
        function = Stamps(plan.pad, plan.side)
        sides = {"odd": SIDE} if plan.side else None
        if plan.rdd:
            routed = job.partition_by(df.rdd, lambda row: row["k"], key_type="long", uid="stamps")
            operator = job.partitions(function, uid="stamps", side_outputs=sides)
            out = self._session.createDataFrame(routed.mapPartitions(operator), OUT)
        else:
            order = "seq" if plan.ordered else None
            keyed = job.key_by(df, "k", uid="stamps", order_by=order)
            out = keyed.process(function, OUT, side_outputs=sides)
        result = out
        if plan.groups:
            grouped = job.key_by(out.selectExpr(f"k % {GROUPS} AS g", "seq"), "g", uid="groups")
            counts = grouped.aggregate(n=ps.count(), most=ps.max("seq"), total=ps.sum("seq"))
            result = result.union(
                counts.selectExpr(
                    "'group'", "g", "most", "n", "total", "CAST(NULL AS BIGINT) AS stamp"
                )
            )
        if plan.alarms:
            times = df.selectExpr(f"concat('a', k % {NAMES}) AS name", "t")
            named = job.key_by(
                times, "name", uid="alarms", event_time="t", allowed_delay=plan.delay_ms
            )
            result = result.union(named.process(Alarms(), OUT))
        return ACTIONS[action][0](result, self._scratch)


def session_for(spec: Spec) -> SparkSession:
    """A local Spark with two cores and four attempts per task."""
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName(spec.name)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", f"{spec.folder}/{spec.name}.local")
        .config("spark.sql.warehouse.dir", f"{spec.folder}/{spec.name}.warehouse")
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    )
    for name, value in spec.conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main(path: str) -> int:
    """Run a driver to its end."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    spec = Spec.load(path)
    os.makedirs(f"{spec.folder}/scratch", exist_ok=True)
    session = session_for(spec)
    spec.path("ready").touch()
    result: dict[str, Any] = {"error": None}
    try:
        Driver(spec, session).run()
    except Exception as error:
        result = {"error": type(error).__name__, "text": str(error)}
    temporary = spec.path("result.tmp")
    temporary.write_text(json.dumps(result))
    temporary.rename(spec.path("result"))
    # What is still running does not hold the process.
    sys.stdout.flush()
    session.stop()
    shutil.rmtree(f"{spec.folder}/{spec.name}.local", ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
