"""A driver in a process of its own, for `test_driver_process.py`, which reads what it prints.

``python -m tests.spark.driver_program``, in a folder of its own: it stops a query, has a drain
fail, stops its session, starts another one, and is killed while rows go round a loop.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

import pystate as ps
from pystate.spark import Job
from tests.spark.conftest import wait_for
from tests.spark.processes import tables_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import EpochProgress

__all__ = ["HOME", "INPUT", "Fails", "counting"]

HOME = "home"
#: How often a row goes round, by key.
INPUT = {"a": 3, "b": 1}
SCHEMA = "k string, v long"
BEGAN = Path("began")


class Waits(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        """Say which process it is, and wait for ever."""
        temporary = Path("began.tmp")
        temporary.write_text(str(os.getpid()))
        temporary.rename("began")
        threading.Event().wait()


class Fails(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        """Fire at the end."""
        ctx.register_event_time_timer(row["v"] + 1)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        """Fail."""
        yield key, 1 // 0


def counting(job: Job) -> Callable[[DataFrame], DataFrame]:
    """Count the rows of each key; a row goes round `v` times."""

    def pipeline(df: DataFrame) -> DataFrame:
        loop = job.feedback("again", SCHEMA)
        rows = df.unionByName(loop.rows())
        loop.feed(rows.where("v > 0").selectExpr("k", "v - 1 AS v"))
        return job.key_by(rows, "k", uid="counts").aggregate(n=ps.count())

    return pipeline


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.daemon.module", "tests.spark.daemon")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema(SCHEMA).csv("input")


def stop_a_query(spark: SparkSession) -> None:
    """Nothing is printed, and the log's level is what it was."""
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    name = "org.apache.spark.scheduler"

    def level() -> str:
        return str(log4j.LogManager.getLogger(name).getLevel())

    before = level()
    job = Job("waits", "waits", parallelism=2)
    query = job.start(
        stream(spark), lambda df: job.key_by(df, "k", uid="u").process(Waits(), "k string")
    )
    wait_for(BEGAN.exists, "the row")
    worker = Path("/proc") / BEGAN.read_text()
    say("stopping")
    query.stop()
    wait_for(lambda: not worker.exists(), "the end of the worker")
    wait_for(lambda: level() == before, "the log")
    say("stopped")
    config = log4j.LogManager.getContext(False).getConfiguration()
    assert config.getLoggerConfig(name).getName() == "" and before != "OFF"
    assert (job.failure, query.exception()) == (None, None)


def fail_in_a_drain(spark: SparkSession) -> None:
    job = Job("fails", "fails", parallelism=1)
    query = job.start(
        stream(spark),
        lambda df: job.key_by(df, "k", uid="u", event_time="v").process(
            Fails(), "k string, n long"
        ),
        trigger={"availableNow": True},
        drain=True,
    )
    say("failing")
    try:
        query.awaitTermination()
    except Exception:
        traceback.print_exc()


def stop_the_session(spark: SparkSession, job: Job) -> None:
    """Its tables go while the process goes on."""
    df = spark.range(1000).selectExpr("id AS k")
    job.run_epoch(df, lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count()))
    assert tables_in(Path(HOME)) == {"00000-00127"}
    say("failed")
    spark.stop()
    wait_for(lambda: not tables_in(Path(HOME)), "the janitor")


def be_killed(spark: SparkSession) -> None:
    """At any moment after the second round."""
    job = Job("test", "killed", parallelism=2, table_home=os.path.abspath(HOME))

    def kill(progress: EpochProgress) -> None:
        if progress.epoch == 2:
            assert len(tables_in(Path(HOME))) == 2
            delay_s = random.uniform(0, 1.5)
            say(f"killed after {delay_s} s")
            timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL))
            timer.start()

    data = spark.createDataFrame([*INPUT.items()], SCHEMA)
    job.run_until_empty(data, counting(job), run_key="a", on_epoch=kill)
    threading.Event().wait()


def main() -> None:
    Path("input").mkdir()
    Path("input/1.csv").write_text("a,1")
    spark = session()
    stop_a_query(spark)
    fail_in_a_drain(spark)
    stop_the_session(
        spark, Job("stopping", "stopping", parallelism=1, table_home=os.path.abspath(HOME))
    )
    be_killed(session())


if __name__ == "__main__":
    main()
