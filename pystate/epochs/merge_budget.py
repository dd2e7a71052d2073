"""What merges may take while tasks run, and what they have written.

A merge that works as fast as it can takes what the disk and a processor have from the tasks beside
it. How much that is nobody knows beforehand, and it changes. So a merge pauses as long as it has
worked: it then reads and writes half of what it could.

Thread safety: a `Pace` is that of one thread, which merges; any other may wait for it. `Written`
belongs to whoever counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# A pause is not worth it for less work, and longer ones look like a hanging merge.
_LEAST_WORK_S, _MOST_PAUSE_S = 0.02, 1.0


class Pace:
    """Has a merge pause as long as it has worked, while tasks run.

    Parameters
    ----------
    tasks_run : callable
        Whether there is anybody whom it might slow down; by default there is.
    """

    def __init__(self, tasks_run: Callable[[], bool] = lambda: True) -> None:
        self._tasks_run = tasks_run
        self._lock = threading.Lock()
        self._waiting = 0
        self._hurried = threading.Event()
        self._since_s = time.monotonic()
        #: How long it has paused.
        self.paused_s = 0.0

    def begin(self) -> None:
        """The merge begins to work."""
        self._since_s = time.monotonic()

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Around a wait for the merge, or for one that comes after it: it does not pause."""
        with self._lock:
            self._waiting += 1
            self._hurried.set()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._hurried.clear()

    def end(self) -> None:
        """Pause no more."""
        with self._lock:
            self._waiting += 1
            self._hurried.set()

    def worked(self, _: int) -> None:
        """The merge has read and written something: pause, if it is time to."""
        now_s = time.monotonic()
        worked_s = now_s - self._since_s
        if worked_s < _LEAST_WORK_S:
            return
        if not self._hurried.is_set() and self._tasks_run():
            self._hurried.wait(min(worked_s, _MOST_PAUSE_S))
        self._since_s = time.monotonic()
        self.paused_s += self._since_s - now_s


@dataclass
class Written:
    """Bytes of state files that were written since the driver began."""

    changed_bytes: int = 0
    """By tasks: what epochs have changed."""
    merged_bytes: int = 0
    """By merges, also by those that came too late."""
    read_bytes: int = 0
    """About as much those merges have read for it."""

    @property
    def amplification(self) -> float:
        """How many bytes are written for one that epochs have changed; 1 without merges."""
        if not self.changed_bytes:
            return 1.0
        return (self.changed_bytes + self.merged_bytes) / self.changed_bytes
