"""What a randomised run does to drivers, their processes and the place of their tables."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pystate.tables.janitor import remove_table
from tests.spark.chaos_job import Spec
from tests.spark.processes import Process, of_session, send

__all__ = ["DISTURBANCES", "PAUSE_AND_TAKE_OVER", "TAKE_OVER", "Acts", "Child", "file_system"]

MIB = 1 << 20
TAKE_OVER, PAUSE_AND_TAKE_OVER = "take over", "pause driver and take over"
#: Those that are drawn more often stand here more often.
DISTURBANCES = (
    "kill worker", "kill worker", "kill worker", "kill driver", "kill driver", "kill all",
    "kill jvm", "kill daemon", "pause driver", "pause jvm", "pause worker", "pause worker",
    "pause all", "remove tables", "fill home", TAKE_OVER, PAUSE_AND_TAKE_OVER,
)  # fmt: skip


@dataclass
class Child:
    """A driver's processes."""

    spec: Spec
    process: subprocess.Popen[bytes]
    has_rivals: bool = False
    killed: str | None = None
    """What was killed in a way that the driver may not survive."""
    jvms: list[Process] = field(default_factory=list)
    result: dict[str, Any] | None = None

    def processes(self, *kinds: str) -> list[Process]:
        """Its processes of some kinds, or all."""
        return [p for p in of_session(self.process.pid) if not kinds or p.kind in kinds]

    @property
    def is_ready(self) -> bool:
        """Whether it has a session."""
        return self.spec.path("ready").exists()


class Acts:
    """Disturbs drivers.

    Parameters
    ----------
    rng : Random
        Draws whom and for how long.
    home : Path
        Where tables are.
    home_bytes : int
        How much room there is.
    epoch : callable
        The newest epoch that is published.
    """

    def __init__(
        self, rng: random.Random, home: Path, home_bytes: int, epoch: Callable[[], int]
    ) -> None:
        self._rng = rng
        self._home = home
        self._home_bytes = home_bytes
        self._epoch = epoch
        self._paused: list[tuple[float, Process]] = []
        self._kills_in_epoch: Counter[int] = Counter()

    @property
    def is_pausing(self) -> bool:
        """Whether somebody is stopped."""
        return bool(self._paused)

    def continue_paused(self) -> None:
        """Let those go on whose pause is over."""
        for entry in list(self._paused):
            if time.monotonic() >= entry[0]:
                self._paused.remove(entry)
                send(entry[1], signal.SIGCONT)

    def act(self, what: str, child: Child) -> str | None:
        """Do it; returns some details, or None where it cannot be done at the moment."""
        verb, _, rest = what.partition(" ")
        if what == "remove tables":
            return self._remove_tables()
        if what == "fill home":
            return self._fill_home()
        if verb == "pause":
            kind = rest.partition(" ")[0]
            return self._pause(
                child, *(("driver", "jvm", "daemon", "worker") if kind == "all" else (kind,))
            )
        assert verb == "kill", what
        if rest in ("worker", "daemon"):
            return self._kill_worker(child, rest)
        child.killed = rest
        for process in child.processes(*(() if rest == "all" else (rest,))):
            send(process, signal.SIGKILL)
        return ""

    def _kill_worker(self, child: Child, kind: str) -> str | None:
        # Four attempts of one task that die twice over are the job's failure, and rightly so.
        epoch = self._epoch()
        found = child.processes(kind)
        kills = 2 if kind == "daemon" else 1  # whatever runs is lost with it
        if not found or self._kills_in_epoch[epoch] + kills > 2:
            return None
        victim = self._rng.choice(found)
        if not send(victim, signal.SIGKILL):
            return None
        self._kills_in_epoch[epoch] += kills
        return f", {victim.pid}"

    def _pause(self, child: Child, *kinds: str) -> str | None:
        processes = child.processes(*kinds)
        if not processes:
            return None
        pause_s = self._rng.choice((0.2, 1.0, 3.0, 8.0))
        for process in processes:
            send(process, signal.SIGSTOP)
            self._paused.append((time.monotonic() + pause_s, process))
        return f" for {pause_s} s"

    def _remove_tables(self) -> str | None:
        """What the janitor does where it takes a job for closed."""
        tables = list(self._home.rglob("*.table"))
        if not tables:
            return None
        chosen = self._rng.sample(tables, self._rng.randint(1, len(tables)))
        for path in chosen:
            remove_table(str(path))
        held = sorted(self._home.rglob("held/*/*/*.delta"))
        lost = self._rng.sample(held, self._rng.choice((0, min(1, len(held)), len(held))))
        for path in lost:
            path.unlink(missing_ok=True)
        return f", {len(chosen)} of {len(tables)}, {len(lost)} of {len(held)} held deltas"

    def _fill_home(self) -> str | None:
        """Leave little room, or give it back."""
        ballast = self._home / "ballast"
        if ballast.exists():
            ballast.unlink()
            return ", emptied"
        status = os.statvfs(self._home)
        if status.f_blocks * status.f_frsize > self._home_bytes:
            return None  # it is a folder of something larger
        left = self._rng.choice((0, MIB // 8, MIB))
        size = status.f_bavail * status.f_frsize - left
        if size <= 0:
            return None
        try:
            with open(ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            pass  # a table was faster, and it is full all the same
        return f", {left} bytes left"


@contextmanager
def file_system(folder: Path, size_bytes: int) -> Iterator[None]:
    """A memory file system of that size, where this user may mount one; else a folder."""
    folder.mkdir()
    options = f"size={size_bytes},mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
