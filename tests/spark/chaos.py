"""A randomised run: jobs are drawn, disturbed at random moments, and their results recomputed.

Each scenario draws a job (its operators, what its pipeline does with their output, runs or a
stream), how it is run (parallelism, where its tables are and how much room there is, sessions), and
what happens to it: drivers, JVMs, daemons and workers are killed, or stopped and continued; other
drivers take over; tables are removed, or run out of room. In the end the published output, the
state and a recomputation in plain Python are the same, or a driver has ended with an error that
belongs to what was done to it and names operator and cause.

``python -m tests.spark.chaos --seconds 3600 --seed 1`` runs scenarios until the time is over;
``--scenario 7`` runs that one alone. A seed gives the same draws; the moments are the machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.processor.state_reader import read_all
from pystate.spark.sinks.parquet import ParquetSink
from tests.spark.chaos_acts import (
    DISTURBANCES,
    PAUSE_AND_TAKE_OVER,
    TAKE_OVER,
    Acts,
    Child,
    file_system,
)
from tests.spark.chaos_job import ACTIONS, Segment, Spec, action_of
from tests.spark.chaos_model import Found, MismatchError, check, draw_plan, input_rows
from tests.spark.conftest import python_path
from tests.spark.processes import send

#: A driver that publishes nothing for so long while nothing is done to it hangs.
PATIENCE_S = 180.0
MIB = 1 << 20

#: What Spark says where two drivers run one streaming query.
CONCURRENT = ("CONCURRENT", "oncurrent", "another stream", "already been committed")

#: Why evaluations were discarded, as drivers log it. A table that has moved is seldom among them:
#: Spark tries the task again.
DISCARDED = {
    "table moved": "its table has taken",
    "read twice": "evaluated twice",
    "read in part": "not read to the end",
}


class Scenario:
    """One job and what happens to it.

    Parameters
    ----------
    seed : str
        Draws everything.
    folder : Path
        Empty.
    batches : int
        Of the input.
    disturbances : int or None
        How many; drawn where it is None.
    """

    def __init__(
        self, seed: str, folder: Path, batches: int | None = None, disturbances: int | None = None
    ) -> None:
        rng = self.rng = random.Random(seed)
        self.folder = folder
        self.plan = draw_plan(rng, seed, batches or rng.randint(4, 14))
        count = rng.randint(0, 7) if disturbances is None else disturbances
        self.todo = [rng.choice(DISTURBANCES) for _ in range(count)]
        self.home_bytes = rng.choice((MIB // 4, MIB, 2 * MIB, 6 * MIB, 16 * MIB, 64 * MIB))
        self.limit_bytes = rng.choice((0,) * 9 + (400_000,))
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self._children: list[Child] = []
        self._all: list[Child] = []
        self._finished = False
        self._began_s = time.monotonic()
        self._home = folder / "home"
        self._acts = Acts(rng, self._home, self.home_bytes, lambda: self.epoch)
        self._outgrown: set[str] = set()
        self._progress: tuple[object, float] = (None, 0.0)

    # ---- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the job to its end and check what it has come to.

        Raises
        ------
        MismatchError
            It is not what it should be, or does not end.
        """
        self._write_input()
        with file_system(self._home, self.home_bytes):
            try:
                self._drive()
                self._end_tables()
            finally:
                self._end_all()
        self._check()

    def _write_input(self) -> None:
        folder = self.folder / "input"
        folder.mkdir()
        for batch in range(self.plan.batches):
            rows = input_rows(self.plan, batch)
            columns = {
                name: pa.array([getattr(row, name) for row in rows], pa.int64())
                for name in ("seq", "k", "v", "t")
            }
            path = folder / f"{batch:05d}.parquet"
            pq.write_table(pa.table(columns), path)
            # A file stream takes the oldest first.
            os.utime(path, (1_700_000_000 + batch,) * 2)

    def _drive(self) -> None:
        next_s = 0.0
        start_s = 0.0
        while not (self._finished and not self._children):
            now_s = time.monotonic()
            self._acts.continue_paused()
            self._reap()
            self._check_progress(now_s)
            if self._finished:
                # What is left finds out by itself that everything is done, or that it is fenced.
                self.todo.clear()
            elif not self._children:
                if start_s == 0.0:
                    start_s = now_s + self.rng.choice((0.0, 0.0, 3.0))
                elif now_s >= start_s:
                    self._start()
                    start_s, next_s = 0.0, now_s
            elif self.todo and now_s >= next_s and self._note_jvms():
                if next_s:
                    self._disturb()
                next_s = time.monotonic() + self.rng.expovariate(1 / 1.5)
            time.sleep(0.03)

    def _start(self) -> Child:
        spec = Spec(
            folder=str(self.folder),
            name=f"driver-{len(self._all) + 1}",
            plan=self.plan,
            segments=self._segments(),
            conf=self._conf(),
            takes=self.rng.choice((0, 0, 2)),
        )
        environment = {**os.environ, "PYTHONPATH": python_path()}
        with open(spec.path("log"), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.chaos_job", str(spec.save())],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        child = Child(spec, process, has_rivals=bool(self._children))
        for other in self._children:
            other.has_rivals = True
        self._children.append(child)
        self._all.append(child)
        shown = ", ".join(
            f"{s.parallelism} in {Path(s.home).name} until {s.until}" for s in spec.segments
        )
        self._note(f"{spec.name} starts, epoch {self.epoch}: {shown}")
        return child

    def _segments(self) -> list[Segment]:
        rng = self.rng
        segments = []
        until = self.epoch
        for _ in range(rng.choice((0, 0, 1, 2))):
            until += rng.randint(1, 5)
            segments.append(self._segment(until))
        segments.append(self._segment(None))
        if not self._all:
            segments[0].limit_bytes = self.limit_bytes
        return segments

    def _segment(self, until: int | None) -> Segment:
        home = self.rng.choice((str(self._home),) * 6 + ("shm", "local", "heap"))
        return Segment(self.rng.choice((1, 2, 2, 3, 5)), home, until)

    def _conf(self) -> dict[str, str]:
        rng = self.rng
        conf = {
            "spark.sql.adaptive.enabled": rng.choice(("true", "true", "false")),
            "spark.sql.shuffle.partitions": rng.choice(("2", "3")),
        }
        if rng.random() < 0.3:
            conf["spark.sql.execution.arrow.maxRecordsPerBatch"] = rng.choice(("1", "50"))
        return conf

    def _note_jvms(self) -> bool:
        """Whether a driver has a session."""
        ready = [child for child in self._children if child.is_ready]
        for child in ready:
            child.jvms = child.jvms or child.processes("jvm")
        return bool(ready)

    @property
    def epoch(self) -> int:
        """The newest epoch that is published."""
        names = (path.stem for path in self.folder.glob("checkpoint/manifests/*.manifest"))
        return max(map(int, names), default=0)

    def _reap(self) -> None:
        for child in list(self._children):
            if child.process.poll() is None:
                continue
            self._children.remove(child)
            result = child.spec.path("result")
            if result.exists():
                child.result = json.loads(result.read_text())
            self._judge(child)

    def _judge(self, child: Child) -> None:
        """Whether a driver ended as it may, after what was done to it."""
        name, result = child.spec.name, child.result
        if result is None:
            if child.killed is None:
                raise MismatchError(
                    f"{name} ended with {child.process.returncode} and said nothing"
                )
            self._note(f"{name} is gone: {child.killed}")
            return
        error, text = result["error"], result.get("text", "")
        if error is None:
            self._note(f"{name} is done, epoch {self.epoch}")
            self._finished = True
            return
        self._note(f"{name} ended with {error}: {text.partition(chr(10))[0]:.300}")
        self.done[f"error: {error}"] += 1
        if error == "FencedError" and child.has_rivals:
            return
        if child.has_rivals and self.plan.stream and any(sign in text for sign in CONCURRENT):
            return
        if child.killed is not None:
            return
        limited = any(segment.limit_bytes for segment in child.spec.segments)
        if error == "MemoryLimitError" and limited and "operator '" in text:
            return
        raise MismatchError(f"{name} ended with {error}: {text:.1500}")

    def _check_progress(self, now_s: float) -> None:
        epoch = self.epoch
        state = (epoch, len(self._all), len(self._children))
        if state != self._progress[0] or self._acts.is_pausing:
            self._progress = (state, now_s)
            self._outgrown |= {path.name for path in self._home.rglob("*.outgrown")}
        elif now_s - self._progress[1] > PATIENCE_S:
            for child in self._children:
                for process in child.processes("driver"):
                    send(process, signal.SIGUSR1)
                for process in child.processes("jvm"):
                    send(process, signal.SIGQUIT)
            time.sleep(2)
            names = ", ".join(child.spec.name for child in self._children)
            raise MismatchError(f"epoch {epoch}: no progress in {PATIENCE_S:g} s; {names} hang")

    # ---- disturbing ------------------------------------------------------------------------------

    def _disturb(self) -> None:
        what = self.todo.pop()
        child = self.rng.choice([c for c in self._children if c.is_ready])
        detail = self._take_over() if what == TAKE_OVER else self._acts.act(what, child)
        if detail is not None and what == PAUSE_AND_TAKE_OVER:
            detail += self._take_over() or ""
        if detail is None:
            # There is nothing of the kind at the moment.
            self.todo.insert(0, what)
            return
        self.done[what] += 1
        self._note(f"{what}, epoch {self.epoch}: {child.spec.name}{detail}")

    def _take_over(self) -> str | None:
        return None if len(self._children) > 1 else f", by {self._start().spec.name}"

    # ---- the end ---------------------------------------------------------------------------------

    def _end_tables(self) -> None:
        """Tables go with their executors, whatever became of those."""
        deadline_s = time.monotonic() + 60
        folders = [self._home]
        for child in self._all:
            for jvm in child.jvms:
                owner = f"*-{jvm.pid}-{jvm.start}"
                folders += Path(f"/dev/shm/pystate-{os.geteuid()}").glob(owner)
        while left := [str(path) for folder in folders for path in folder.rglob("*.table")]:
            if time.monotonic() > deadline_s:
                raise MismatchError(f"{len(left)} tables are left after all drivers, as {left[0]}")
            time.sleep(0.1)

    def count_discarded(self) -> None:
        """Add up how often evaluations were discarded, and why, and which tables have moved."""
        if self._outgrown:
            self.done["tables moved"] = len(self._outgrown)
        for child in self._all:
            for line in child.spec.path("log").read_text(errors="replace").splitlines():
                if "is discarded and runs again" in line:
                    known = (name for name, sign in DISCARDED.items() if sign in line)
                    self.done[f"discarded: {next(known, 'failed')}"] += 1

    def _end_all(self) -> None:
        for child in self._all:
            for process in child.processes():
                send(process, signal.SIGKILL)
            child.process.wait()

    def _check(self) -> None:
        storage = LocalStorage(self.folder / "checkpoint")
        head = read_head(storage)
        assert head is not None
        epochs = self._input_of_epochs(head.epoch)
        uids = ["stamps"] + ["groups"] * self.plan.groups + ["alarms"] * self.plan.alarms
        check(
            self.plan,
            Found(
                epochs=epochs,
                out=published(self.folder / "out", "kind", "k", "seq", "n", "total", "stamp"),
                side=published(self.folder / "side", "k", "seq", "stamp"),
                states={uid: read_all(storage, uid).to_pylist() for uid in uids},
                rules=[ACTIONS[action_of(self.plan, e)][1] for e in range(1, head.epoch + 1)],
            ),
        )

    def _input_of_epochs(self, last: int) -> list[list[Any]]:
        """The rows of each epoch: a stream that is killed may read two files in one batch."""
        if not self.plan.stream:
            return [input_rows(self.plan, batch) for batch in range(last)]
        epochs: list[list[Any]] = []
        done = 0
        if self.plan.interval > 1:
            return self._input_of_long_epochs()
        for batch in range(last):
            lines = (self.folder / f"checkpoint/spark/offsets/{batch}").read_text().splitlines()
            files = int(json.loads(lines[2])["logOffset"]) + 1
            epochs.append([r for file in range(done, files) for r in input_rows(self.plan, file)])
            done = files
        return epochs

    def _input_of_long_epochs(self) -> list[list[Any]]:
        """The same for epochs of several batches: each row of a file is in their output once."""
        epochs, done = [], 0
        for epoch, rows in sorted(published(self.folder / "out", "seq").items()):
            assert epoch == len(epochs) + 1
            files = max(seq for (seq,) in rows) // 1_000_000 + 1
            epochs.append([r for file in range(done, files) for r in input_rows(self.plan, file)])
            done = files
        if done != self.plan.batches:
            raise MismatchError(f"{done} of {self.plan.batches} files were read")
        return epochs

    def _note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began_s:6.1f} s  {text}")


def published(folder: Path, *names: str) -> dict[int, list[tuple[Any, ...]]]:
    """The rows of each epoch of a sink."""
    found = {}
    for epoch in ParquetSink(folder).epochs():
        table = pq.read_table(folder / f"epoch={epoch}", partitioning=None)
        columns = [table.column(name).to_pylist() for name in names]
        found[epoch] = list(zip(*columns, strict=True))
    return found


def run(seed: str, *, batches: int | None = None, disturbances: int | None = None) -> Counter[str]:
    """Run one scenario; what was done is printed where it fails.

    Raises
    ------
    MismatchError
        The job came to something else than it should; its folder is kept.
    """
    folder = Path(tempfile.mkdtemp(prefix="pystate-chaos-"))
    scenario = Scenario(seed, folder, batches, disturbances)
    print(f"scenario {seed}: {scenario.plan}", flush=True)
    try:
        scenario.run()
    except BaseException as error:
        print("\n".join(scenario.log))
        print(f"scenario {seed} failed, see {folder}: {error}", flush=True)
        raise
    scenario.count_discarded()
    shutil.rmtree(folder)
    took_s = time.monotonic() - scenario._began_s
    print(f"scenario {seed}: {took_s:.1f} s, {dict(scenario.done)}", flush=True)
    return scenario.done + Counter(scenarios=1, epochs=scenario.plan.batches)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--scenario", type=int, help="only the one of this number")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    end_s = time.monotonic() + given.seconds
    counts: Counter[str] = Counter()
    failed = []
    number = given.scenario or 0
    while True:
        try:
            counts += run(f"{given.seed}/{number}")
        except Exception as error:
            if not isinstance(error, MismatchError):
                traceback.print_exc()
            failed.append(number)
        number += 1
        if given.scenario is not None or time.monotonic() >= end_s:
            break
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
