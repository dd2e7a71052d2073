"""Amounts move between two operators; no query ever sees another sum than theirs.

Four processes ask the job's files and a server, and one follows it, while drivers, workers and the
follower are killed, and the job is rescaled, merges, retires epochs and takes savepoints. Each
answer is compared with a recomputation of its epoch, which is drawn from a seed that is printed.

``pytest -m slow tests/spark/test_live_queries.py`` asks 100 000 times; ``PYSTATE_QUERIES`` is how
often, and ``PYSTATE_QUERIES_SEED`` chooses the seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pystate.checkpoint.manifest import manifest_path
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.processor.state_reader import read_all
from pystate.serve.limits import Limits
from tests.served import serving

from . import moves_follow, moves_job, moves_query
from .conftest import python_path, wait_for
from .moves_ledger import UIDS, Ledger, accounts_in
from .processes import newest_epoch, workers_of

ASKING = 4
PATIENCE_S = 300
#: Of what is done again, so many epochs are between at most: a driver takes long to begin.
MOST_EPOCHS = 10
#: What is done to the job, again and again until all is asked.
ACTS = ("ranges", "worker", "driver", "follower", "ranges")
TABLES = ("shm", "disk", "heap")
RANGES = (1, 2, 3, 5)


class Run:
    """The processes, and what is done to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.done: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._all: list[subprocess.Popen[bytes]] = []
        self._choose_ranges()

    def start(self, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        """A process, of which the log is a file."""
        with open(self.folder / f"{len(self._all):03d}-{Path(program).stem}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, program, str(self.folder), *map(str, arguments)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": python_path()},
                start_new_session=True,
            )
        self._all.append(process)
        return process

    def start_driver(self) -> None:
        """Begin, or go on, with tables elsewhere."""
        tables = TABLES[self.done["driver"] % len(TABLES)]
        self.driver = self.start(moves_job.__file__, self.seed, tables)

    def start_follower(self) -> None:
        """Begin, or go on."""
        self.follower = self.start(moves_follow.__file__)

    def choose(self, what: Sequence[str]) -> str:
        """Draw what to do."""
        return self._rng.choice(what)

    def act(self, what: str) -> None:
        """Do something after some more epochs, at any moment of the next one."""
        self._go_on(self._rng.randint(1, 3 if self.done.total() < len(ACTS) else MOST_EPOCHS))
        time.sleep(self._rng.uniform(0, 0.5))
        if what == "ranges":
            self._choose_ranges()
        elif what == "worker":
            self.wait_for(self._kill_worker, "a worker to kill")
        elif what == "driver":
            # The driver alone: its JVM ends by itself, as after a real crash.
            self.driver.kill()
        else:
            begun = self.folder / moves_follow.FOLLOWED
            self.wait_for(lambda: any(begun.glob("*.json")), "the first state")
            self.follower.kill()
        self.done[what] += 1
        if what == "driver":
            self.start_driver()
        elif what == "follower":
            self.follower.wait()
            self.start_follower()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, however busy the machine is, as long as nothing has ended that was not killed."""

        def holds() -> bool:
            self.check()
            return condition()

        wait_for(holds, what, PATIENCE_S)

    def check(self) -> None:
        """Nothing has ended that was not killed."""
        for number, process in enumerate(self._all):
            if process.poll() not in (None, 0, -signal.SIGKILL):
                [log] = self.folder.glob(f"{number:03d}-*.log")
                raise AssertionError(f"seed {self.seed}, {log.name}: {log.read_text()[-4000:]}")

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process."""
        self.wait_for(lambda: process.poll() is not None, "its end")
        assert process.returncode == 0

    def kill_all(self) -> None:
        """End what is left."""
        for process in self._all:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _choose_ranges(self) -> None:
        path = self.folder / "ranges"
        before = int(path.read_text()) if path.exists() else None
        temporary = self.folder / "ranges.tmp"
        temporary.write_text(str(self._rng.choice([n for n in RANGES if n != before])))
        temporary.rename(path)

    def _go_on(self, epochs: int) -> None:
        least = newest_epoch(self.folder) + epochs
        self.wait_for(lambda: newest_epoch(self.folder) >= least, f"epoch {least}")

    def _kill_worker(self) -> bool:
        for victim in workers_of(self.driver.pid):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                return True
        return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[int], Run]]:
    made: list[Run] = []

    def begin(seed: int) -> Run:
        made.append(Run(tmp_path, seed))
        return made[-1]

    yield begin
    for each in made:
        each.kill_all()


def chosen_seed() -> int:
    seed = int(os.environ.get("PYSTATE_QUERIES_SEED") or time.time_ns() % 2**32)
    print(f"seed {seed}")
    return seed


@pytest.mark.parametrize(
    ("queries", "pause_s"),
    [
        pytest.param(300, 0.1, id="short"),
        pytest.param(
            int(os.environ.get("PYSTATE_QUERIES", "100000")), 0.0, id="long", marks=pytest.mark.slow
        ),
    ],
)
def test_the_sum_is_the_same(queries: int, pause_s: float, run: Callable[[int], Run]) -> None:
    seed, begun_s = chosen_seed(), time.monotonic()
    job = run(seed)
    folder, each = job.folder, -(-queries // ASKING)
    job.start_driver()
    job.wait_for(lambda: newest_epoch(folder) >= 2, "the first epochs")
    # Time enough for each, however busy the machine is.
    limits = Limits(statements=ASKING, seconds=55)
    with serving({"moves": str(folder / "checkpoint")}, limits=limits) as url:
        asking = [
            job.start(moves_query.__file__, seed, number, each, pause_s, url)
            for number in range(ASKING)
        ]
        job.start_follower()
        todo = [*ACTS]
        while todo or len([*folder.glob("asked-*")]) < ASKING or missing(folder):
            job.act(todo.pop(0) if todo else job.choose(ACTS))
        (folder / "disturbed").touch()
        for process in asking:
            job.end(process)
    (folder / "stop").touch()
    job.end(job.driver)
    last = newest_epoch(folder)
    (folder / "last").write_text(str(last))
    job.end(job.follower)
    check_followed(folder, Ledger(seed), last)
    counted = check_counted(folder, queries)
    head = read_head(LocalStorage(folder / "checkpoint"))
    assert head is not None and head.epoch == last
    print(f"{time.monotonic() - begun_s:.0f} s, {last} epochs, {dict(job.done)}")
    print(dict(sorted(counted.items())))


def check_followed(folder: Path, ledger: Ledger, last: int) -> None:
    """The changes, replayed, give each epoch's state, and the last one is what is stored."""
    first, states = moves_follow.replayed(folder)
    assert first < last and [*states] == [*range(first, last + 1)]
    for epoch, found in states.items():
        assert found == ledger.at(epoch), epoch
    storage = LocalStorage(folder / "checkpoint")
    assert {uid: accounts_in(read_all(storage, uid)) for uid in UIDS} == states[last]


def check_counted(folder: Path, queries: int) -> Counter[str]:
    """So many answers were of an epoch, and most of each kind."""
    counted: Counter[str] = Counter()
    for number in range(ASKING):
        said = json.loads((folder / f"queries-{number}.json").read_text())
        counted.update(said["counted"], answered=said["answered"])
    assert counted["answered"] >= queries
    refused = sum(n for name, n in counted.items() if name.count(":") == 2)
    assert refused <= 0.1 * counted["answered"], counted
    for kind in moves_query.KINDS:
        assert sum(n for name, n in counted.items() if name.endswith(f": {kind}")), (kind, counted)
    return counted


def missing(folder: Path) -> list[str]:
    """What the job has not done yet, of what readers are to stand."""
    noted = [tuple(map(int, line.split())) for line in (folder / "noted").read_text().splitlines()]
    happened = {
        "a rescale": len({ranges for _, ranges, _ in noted}) > 1,
        "a merge": any(merged for _, _, merged in noted),
        "a savepoint": any(folder.glob("savepoints/*/savepoint.json")),
        "a retired epoch": not (folder / "checkpoint" / manifest_path(1)).exists(),
    }
    return [what for what, has in happened.items() if not has]
