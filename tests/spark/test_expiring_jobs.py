"""What a job's states let expire, as whoever reads its checkpoint sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pystate as ps
from pystate.processor.lookup import StateLookup
from pystate.processor.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
Found = dict[int, tuple[int | None, list[int], int]]


def function(ttl: ps.StateTtl | None) -> ps.KeyedProcessFunction:
    class Recent(ps.KeyedProcessFunction):
        last = ps.ValueState("long", ttl=ttl)
        items = ps.ListState("long", ttl=ttl)
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[Any]:
            self.last.update(row.at)
            self.items.add(row.at)
            self.n.update(self.n.value() + 1)
            yield key, self.n.value()

    return Recent()


def run(spark: SparkSession, job: Job, ttl: ps.StateTtl | None, at: int, *keys: int) -> None:
    frame = spark.createDataFrame([(key, at) for key in keys], "k long, at long")
    job.run_epoch(
        frame,
        lambda df: job.key_by(df, "k", uid="recent", event_time="at", allowed_delay=0).process(
            function(ttl), "k long, n long"
        ),
    )


def found(rows: Any) -> Found:
    return {row["k"]: (row["last"], list(row["items"]), row["n"]) for row in rows}


def test_readers_see_what_lives_by_the_watermark(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    ttl = ps.StateTtl(100, time="event")
    job = make_job(parallelism=2, retained=9)
    run(spark, job, ttl, 0, 1, 2, 3)
    run(spark, job, ttl, 50, 1)
    # The rows are processed at the watermark of before, so that nothing is removed yet.
    run(spark, job, ttl, 120, 3)
    # Another program, of another parallelism, keeps what is there for longer.
    run(spark, make_job(parallelism=3, retained=9), ps.StateTtl(1000, time="event"), 130, 4)
    epochs: dict[int, Found] = {
        1: {1: (0, [0], 1), 2: (0, [0], 1), 3: (0, [0], 1)},
        2: {1: (50, [0, 50], 2), 2: (0, [0], 1), 3: (0, [0], 1)},
        3: {1: (50, [50], 2), 2: (None, [], 1), 3: (120, [120], 2)},
    }
    folder = str(job.checkpoint)
    read = spark.read.format("pystate").option("uid", "recent")
    whole = read.option("metadata", True).option("epoch", "all").load(folder).collect()
    for epoch, expected in epochs.items():
        assert found(ps.read_state(folder, "recent", epoch=epoch).to_pylist()) == expected
        assert found(StateLookup(folder, "recent", epoch=epoch).rows([1, 2, 3, 4]).to_pylist()) == (
            expected
        )
        assert found(read.option("epoch", epoch).load(folder).collect()) == expected
        assert found(row for row in whole if row["epoch"] == epoch) == expected
    every = found(ps.read_state(folder, "recent", epoch=3, expired=True).to_pylist())
    assert every == {1: (50, [0, 50], 2), 2: (0, [0], 1), 3: (120, [0, 120], 2)}
    shown = spark.read.format("pystate").option("uid", "recent").option("epoch", 3)
    assert found(shown.option("expired", True).load(folder).collect()) == every
    wanted = Selection(expired=True)
    lookup = StateLookup(folder, "recent", epoch=3, selection=wanted)
    assert found(lookup.rows([1, 2, 3]).to_pylist()) == every
    # What begins with a savepoint says the same before its first epoch, and after it.
    ps.savepoint(folder, tmp_path / "savepoint")
    newest = found(ps.read_state(folder, "recent").to_pylist())
    assert found(ps.read_state(tmp_path / "savepoint", "recent").to_pylist()) == newest
    begun = make_job(
        "begun", checkpoint=tmp_path / "begun", restore=tmp_path / "savepoint", parallelism=2
    )
    run(spark, begun, ttl, 300, 4)
    assert found(ps.read_state(tmp_path / "begun", "recent").to_pylist()) == {
        1: (None, [], 2),
        2: (None, [], 1),
        3: (None, [], 2),
        4: (300, [300], 2),
    }
