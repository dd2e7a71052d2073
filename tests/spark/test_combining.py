"""Rows combined before the shuffle, on Spark: the same results, state and counts."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, InvalidRowError
from pystate.operators.runtime.partial_rows import COMBINED_ROWS
from pystate.spark.base import partial_aggregation as combining
from pystate.spark.evaluation.operator_traits import CombinePolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
#: Plans are what these are about.
pytestmark = pytest.mark.usefixtures("default_plans")
NAN = float("nan")
SCHEMA = "`k.1` double, s struct<u:string>, at timestamp, v long, i int, f float, d decimal(9,2)"


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows of few keys in three minutes, of which some are null, NaN or -0.0; in two partitions."""
    utc = datetime.timezone.utc
    start = datetime.datetime(1969, 12, 31, 23, 59, 30, tzinfo=utc)
    data = []
    for n in range(240):
        at = None if n % 31 == 30 else start + datetime.timedelta(seconds=n * 0.7505)
        user = None if n % 5 == 4 else (f"u{n % 3}" if n % 5 else None,)
        key = (None, NAN, -0.0, 0.0, 1.5)[n % 5]
        value = None if n % 4 == 3 else (n - 100) * (1 << 40)
        data.append((key, user, at, value, n % 7, (n % 9) / 4, None))
    return spark.createDataFrame(data, SCHEMA).withColumn("d", combining.F.expr("i * 1.25BD"))


def both(
    make_job: MakeJob,
    tmp_path: Path,
    frames: list[DataFrame],
    pipeline: Callable[[DataFrame, Job, bool], dict[str, DataFrame]],
) -> list[list[Any]]:
    """What both roads emit, count and store: each output is that of the operator of its name."""
    found = []
    for combine in (False, True):
        job = make_job(checkpoint=tmp_path / f"{combine}")
        seen: list[Any] = []
        for frame in frames:
            result = job.run_epoch(frame, lambda df, job, c=combine: pipeline(df, job, c))
            progress = job.last_progress
            assert progress is not None
            keys = {operator.uid: operator.keys for operator in progress.operators}
            counts = progress.rows_in, progress.late_rows, progress.rows_changed, keys
            emitted = {
                name: sorted(map(repr, out.collect())) for name, out in result.dataframes.items()
            }
            seen.append((emitted, counts, progress.watermark_ms))
        state = {uid: job.read_state(uid).to_pylist() for uid in emitted}
        found.append([seen, {uid: sorted(map(repr, rows)) for uid, rows in state.items()}])
    return found


def test_aggregates_of_keys(
    rows: DataFrame, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = []
    real = combining._partial
    monkeypatch.setattr(combining, "_partial", lambda *a: partial.append(real(*a)) or partial[-1])

    def pipeline(df: DataFrame, job: Job, combine: bool) -> dict[str, DataFrame]:
        # A row is at the late bound, and on time.
        keyed = job.key_by(df, "`k.1`", "s", uid="a", event_time="at", allowed_delay="20263 ms")
        out = keyed.aggregate(
            n=ps.count(),
            some=ps.count("v"),
            total=ps.sum("v"),
            least=ps.min("f"),
            last=ps.max("at"),
            mean=ps.mean("v"),
            mean_f=ps.mean("f"),
            small=ps.sum("i"),
            mean_i=ps.mean("i"),
            combine=combine,
        )
        return {"a": out}

    late = rows.where("at < timestamp'1970-01-01T00:01:30Z'")
    off, on = both(make_job, tmp_path, [late, rows], pipeline)
    assert on == off
    assert on[0][1][1][1]["a"] > 0, "no row was late"
    # Neither frame's plan has a shuffle, so that none is combined by a whole aggregation.
    assert len(partial) == 2 and all(frame is not None for frame in partial)


@pytest.mark.parametrize(
    "windows",
    [
        {
            "tumbling": (ps.Tumbling("30 s", offset="7 s"), "final"),
            "session": (ps.Session("3500 ms"), "update"),
        },
        pytest.param(
            {
                "sliding": (ps.Sliding("45 s", "30 s"), "final"),
                "tumbling": (ps.Tumbling("30 s"), "update"),
                "session": (ps.Session("4 s"), "final"),
                "global": (ps.Global(), "update"),
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["some", "others"],
)
def test_aggregates_of_windows(
    windows: dict[str, Any], rows: DataFrame, make_job: MakeJob, tmp_path: Path
) -> None:
    def pipeline(df: DataFrame, job: Job, combine: bool) -> dict[str, DataFrame]:
        found = {}
        for uid, (assigner, emit) in windows.items():
            keyed = job.key_by(df, "`k.1`", uid=uid, event_time="at", allowed_delay="20 s")
            lateness = _lateness(assigner)
            windowed = keyed.window(assigner, emit=emit, allowed_lateness=lateness)
            found[uid] = windowed.aggregate(
                n=ps.count(),
                some=ps.count("s"),
                total=ps.sum("v"),
                most=ps.max("f"),
                mean=ps.mean("v"),
                mean_i=ps.mean("i"),
                digits=ps.sum("d"),
                combine=combine,
            )
        return found

    late = rows.where("at < timestamp'1970-01-01T00:01:30Z'")
    off, on = both(make_job, tmp_path, [late, rows], pipeline)
    assert on == off and all(on[0][1][0].values())


def _lateness(windows: Any) -> str:
    return "0 s" if isinstance(windows, ps.Global) else "15 s"


def test_a_frame_with_a_shuffle_is_combined_by_a_whole_aggregation(
    rows: DataFrame, make_job: MakeJob, tmp_path: Path
) -> None:
    def pipeline(df: DataFrame, job: Job, combine: bool) -> dict[str, DataFrame]:
        twice = df.repartition(3, "i").join(df.select("i").distinct(), "i")
        out = job.key_by(twice, "i", uid="a").aggregate(
            n=ps.count(), total=ps.sum("v"), digits=ps.sum("d"), combine=combine
        )
        return {"a": out}

    off, on = both(make_job, tmp_path, [rows], pipeline)
    assert on == off and on[1]["a"]


def test_an_epoch_that_failed_is_repeated_on_the_other_road(
    rows: DataFrame, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roads = iter([False, True, False, True])
    taken: list[bool] = []
    came: list[bool] = []
    note = CombinePolicy.note

    def combines(self: CombinePolicy, uid: str) -> bool:
        taken.append(next(roads))
        return taken[-1]

    def noted(self: CombinePolicy, reports: Any) -> None:
        came.append(COMBINED_ROWS in reports[0].metrics)
        note(self, reports)

    monkeypatch.setattr(CombinePolicy, "combines", combines)
    monkeypatch.setattr(CombinePolicy, "note", noted)

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(df, "`k.1`", uid="a", event_time="at", allowed_delay="1 hour")
        windowed = keyed.window(ps.Tumbling("30 s"), emit="update")
        out = windowed.aggregate(n=ps.count(), total=ps.sum("v"))
        # Of the second epoch's first evaluation not all ranges are read, so that it is repeated.
        return out.limit(1) if len(taken) == 2 else out

    job = make_job()
    epochs = []
    for _ in range(3):
        found = job.run_epoch(rows, pipeline).dataframe.collect()
        epochs.append({(repr(r[0]), r[1]): (r.n, r.total) for r in found})
        assert job.last_progress is not None and job.last_progress.rows_in == 240
    assert taken == [False, True, False, True] and came == [False, False, True]
    for number, emitted in enumerate(epochs[1:], 2):
        assert emitted == {
            at: (number * n, None if total is None else number * total)
            for at, (n, total) in epochs[0].items()
        }


def test_output_that_is_read_twice(rows: DataFrame, make_job: MakeJob) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        out = job.key_by(df, "i", uid="a").aggregate(n=ps.count(), combine=True)
        return out.union(out)

    job = make_job()
    for times in (1, 2):
        found = Counter(map(tuple, job.run_epoch(rows, pipeline).dataframe.collect()))
        assert len(found) == 7
        assert all(k == 2 and n in (34 * times, 35 * times) for (_, n), k in found.items())


def test_combined_rows_whose_sum_is_beyond_its_range(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    big = (1 << 63) - 1
    rows = [(1, big), (1, big), (1, -5), (2, 3)]
    frame = spark.createDataFrame(rows, "k int, v long").coalesce(1)

    def pipeline(df: DataFrame, job: Any) -> DataFrame:
        return job.key_by(df, "k", uid="a").aggregate(total=ps.sum("v"), combine=True)

    job = make_job()
    result = job.run_epoch(frame, pipeline)
    assert list(map(tuple, result.dataframe.collect())) == [(2, 3)]
    assert job.last_progress is not None and job.last_progress.invalid_rows == {"a": 3}
    with pytest.raises(InvalidRowError, match=r"row of key 1 would take total=sum\(v\) beyond"):
        make_job(checkpoint=tmp_path / "strict", on_invalid="fail").run_epoch(frame, pipeline)


def test_what_cannot_be_combined_is_an_error(rows: DataFrame, make_job: MakeJob) -> None:
    job = make_job()
    cases: list[tuple[str, Callable[[Any], Any]]] = [
        ("order_by", lambda df: job.key_by(df, "i", uid="a", order_by="at").aggregate(
            total=ps.sum("f"), combine=True)),
        ("time zone", lambda df: job.key_by(
            df.selectExpr("i", "cast(at as timestamp_ntz) at"), "i", uid="a", event_time="at"
        ).aggregate(n=ps.count(), combine=True)),
        ("how long", lambda df: job.key_by(df, "i", uid="a", event_time="at").window(
            ps.Session(column="v")).aggregate(n=ps.count(), combine=True)),
        ("side output", lambda df: job.key_by(df, "i", uid="a", event_time="at").window(
            ps.Tumbling("5 s"), late="late").aggregate(n=ps.count(), combine=True)),
        ("combine=", lambda df: job.key_by(df, "i", uid="a").aggregate(combine=ps.count())),
    ]  # fmt: skip
    for message, pipeline in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            job.run_epoch(rows, pipeline)
