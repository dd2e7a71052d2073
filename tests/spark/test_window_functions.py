"""Functions over windows on Spark, against a recomputation: through crashes, kills and rescales.

The rows are drawn from a seed that is printed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import pystate as ps
from pystate.operators.windows.assigners import Assigner, Session, Sliding, Tumbling
from pystate.spark import ParquetSink
from tests.unit.operators.windows.test_sessions import Sessions
from tests.unit.operators.windows.windows_world import Model, sliding, tumbling

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
EARLY_MS = 10_000
#: What the watermark is before the first rows, and after a drain.
LEAST, MOST = -(10**9), 10**9

Row = tuple[Any, ...]


class Kind(NamedTuple):
    """Windows, how they are emitted, and where a row's early timers are."""

    windows: Assigner
    options: dict[str, Any]
    expected: Callable[[int], list[tuple[int, int]]] | None = None
    slice: int | None = None


TUMBLING = [
    Kind(Tumbling(10), {"allowed_lateness": 7}, tumbling(10)),
    Kind(Tumbling(10), {"early": EARLY_MS, "allowed_lateness": 3}, tumbling(10)),
]
#: Of each pair one is updated, the other emitted early.
SLIDING = [
    Kind(Sliding(12, 4), {"emit": "update", "allowed_lateness": 5}, sliding(12, 4)),
    Kind(Sliding(12, 4), {"early": EARLY_MS, "allowed_lateness": 4}, sliding(12, 4), 4),
]
SESSIONS = [
    Kind(Session(4), {"early": EARLY_MS}),
    Kind(Session(4), {"emit": "update", "allowed_lateness": 6}),
]


def values(rows: list[Row]) -> str:
    """What the function says of a window's rows, whatever their order."""
    return " ".join(sorted(str(row[2]) for row in rows))


class Recomputed:
    """What a kind of windows emits, from all rows."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        lateness, emit = kind.options.get("allowed_lateness", 0), kind.options.get("emit", "final")
        self._model: Any
        if kind.expected is None:
            self._model = Sessions(lateness, emit)
        else:
            self._model = Model(kind.expected, tuple, lateness, emit)
        # When the changed windows, or slices, are emitted before their end.
        self._timers: set[tuple[Any, int, int]] = set()

    @property
    def late(self) -> list[Row]:
        """The rows that were too late."""
        found: list[Row] = self._model.late
        return found

    def epoch(self, rows: list[Row], bound: int, watermark: int, now: int) -> dict[Any, str]:
        """Emitted windows: key, start and end, with what the function says of their rows."""
        model = self._model
        model.bound = bound
        late = len(model.late)
        found = dict(model.epoch(rows, watermark))
        if "early" in self._kind.options:
            kept = [row for row in rows if row[1] is not None and row not in model.late[late:]]
            found |= self._early(kept, found, watermark, now)
        return {name: values(of) for name, of in found.items()}

    def _early(
        self, rows: list[Row], found: dict[Any, list[Row]], watermark: int, now: int
    ) -> dict[Any, list[Row]]:
        windows = self._windows()
        after = (now // EARLY_MS + 1) * EARLY_MS
        for row in rows:
            for name, kept in {**windows, **found}.items():
                if row in kept:
                    start = name[1] if self._kind.slice is None else row[1] // 4 * 4
                    self._timers.add((row[0], start, after))
        due = {(key, start) for key, start, at in self._timers if at <= now}
        self._timers = {t for t in self._timers if t[2] > now and t[:2] not in due}
        if self._kind.slice is None:
            return {name: kept for name, kept in windows.items() if name[:2] in due}
        return {
            (key, start, end): kept
            for (key, start, end), kept in windows.items()
            if end > watermark and any(key == of and start <= at < end for of, at in due)
        }

    def _windows(self) -> dict[Any, list[Row]]:
        """The windows that are still there."""
        if self._kind.expected is None:
            return {session[:3]: session[3] for session in self._model.sessions}
        return dict(self._model.rows)


class Says(ps.WindowFunction):
    """Says which rows a window has; its process dies once, where a file asks for it."""

    def __init__(self, victim: Path) -> None:
        self._victim = victim

    def process(self, key: Any, window: Any, batch: Any, ctx: Any) -> Any:
        """Say it."""
        if self._victim.exists():
            self._victim.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        kept = [tuple(row.values()) for row in batch.to_pylist()]
        assert {row[0] for row in kept} == {key}
        yield key, window.start, window.end, values(kept)


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object) -> None:
    raise CrashError


def test_equals_a_recomputation(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    victim = tmp_path / "victim"
    now = time.time_ns() // 1_000_000
    clock = SimpleNamespace(time_ns=lambda: now * 1_000_000, monotonic=time.monotonic)
    monkeypatch.setattr("pystate.epochs.coordinator.time", clock)
    which = rng.randrange(2)
    kinds = [rng.choice(TUMBLING), SLIDING[which], SESSIONS[which]]
    sinks = {f"late{i}": ParquetSink(tmp_path / f"late{i}") for i in range(len(kinds))}

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        parts = []
        for i, kind in enumerate(kinds):
            keyed = job.key_by(df, "k", uid=f"w{i}", event_time="t", allowed_delay=5)
            windowed = keyed.window(kind.windows, late=f"late{i}", **kind.options)
            part = windowed.process(Says(victim), "k int, s long, e long, said string")
            parts.append(part.selectExpr(f"{i} AS kind", "*"))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.union(part)
        return whole

    def run(number: int, rows: list[Row], parallelism: int, **more: Any) -> Any:
        frame = spark.createDataFrame(rows, "k int, t long, v int, gap int")
        with make_job(parallelism=parallelism) as job:
            return job.run_epoch(frame, pipeline, run_key=str(number), side_outputs=sinks, **more)

    models = [Recomputed(kind) for kind in kinds]
    bound, latest = LEAST, LEAST
    disturbed = {
        0: "pystate.spark.sinks.commits.commit",
        1: "worker",
        2: "pystate.epochs.epoch.Epoch.complete",
    }
    for number in range(4):
        now += rng.choice([0, 4_000, 13_000])
        rows: list[Row] = []
        for _ in range(rng.randrange(3, 16)):
            moment = None if rng.random() < 0.05 else number * 8 + rng.randrange(-14, 16)
            rows.append((rng.randrange(3), moment, len(rows) + 100 * number, 4))
        if number == 2:
            rows = []
        where = disturbed.get(number)
        more = {"drain": True} if number == 3 else {}
        if where == "worker":
            # Its window is updated, so that the function is called.
            rows.append((0, latest + 20, 999, 4))
            victim.touch()
        elif where is not None:
            with monkeypatch.context() as patch, pytest.raises(CrashError):
                patch.setattr(where, crash)
                run(number, rows, rng.choice([1, 2, 3]))
        result = run(number, rows, rng.choice([1, 2, 3]), **more)
        assert not victim.exists()
        found: list[dict[Any, str]] = [{} for _ in kinds]
        for kind, key, start, end, said in result.dataframe.collect():
            found[kind][key, start, end] = said
        watermark = MOST if more else bound
        for i, model in enumerate(models):
            assert found[i] == model.epoch(rows, bound, watermark, now), (number, kinds[i])
        latest = max([latest, *(row[1] for row in rows if row[1] is not None)])
        bound = latest - 5
    with make_job(parallelism=1) as job:
        for i, model in enumerate(models):
            late: list[Row] = []
            if model.late:
                late = rows_of(sinks[f"late{i}"].read(spark).select("k", "t", "v", "gap"))
            assert late == sorted(model.late, key=repr), kinds[i]
            assert job.read_state(f"w{i}").num_rows == 0, kinds[i]
