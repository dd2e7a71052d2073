"""One merge of files beside what their owner does.

Thread safety: a `MergeBeside` belongs to the thread that made it; its merge runs in another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pystate.checkpoint.refs import FileRef
from pystate.epochs.merge_budget import Pace
from pystate.epochs.merge_policy import Run


class MergeBeside:
    """A merge in a thread of its own, which reads and writes files alone.

    It leaves half of the time to its owner until that waits for it.

    Parameters
    ----------
    run : Run
        What is merged.
    merge : callable
        ``merge(given_up=…, note=…)`` makes the file, and tells `note` of the bytes that it has
        written; or it ends with an error once `given_up` is set, and leaves none.

    Raises
    ------
    RuntimeError
        There can be no further thread.
    """

    def __init__(self, run: Run, merge: Callable[..., FileRef]) -> None:
        self.run = run
        #: Whether a manifest may name the file; whoever makes one says so.
        self.is_named = False
        self._given_up = threading.Event()
        self._pace = Pace()
        self._merged: FileRef | None = None
        self._thread = threading.Thread(
            target=self._work, args=(merge,), name="pystate-merge", daemon=True
        )
        self._thread.start()

    def _work(self, merge: Callable[..., FileRef]) -> None:
        self._pace.begin()
        try:
            self._merged = merge(given_up=self._given_up, note=self._pace.worked)
        except Exception:
            # Whoever merges these files again is told why it fails.
            self._merged = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def wait(self) -> FileRef | None:
        """Wait for the merged file; None if there is none, as the merge failed."""
        with self._pace.hurried():
            self._thread.join()
        return self._merged

    def give_up(self) -> FileRef | None:
        """Have it end soon; the same."""
        self._given_up.set()
        return self.wait()
