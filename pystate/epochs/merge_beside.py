"""One merge of files beside what their owner does.

Thread safety: a `MergeBeside` belongs to the thread that made it; its merge runs in another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pystate.checkpoint.refs import FileRef
from pystate.epochs.merge_policy import Run


class MergeBeside:
    """A merge in a thread of its own, which reads and writes files alone.

    Parameters
    ----------
    run : Run
        What is merged.
    merge : callable
        ``merge(given_up)`` makes the file, or ends with an error once that is set, and leaves none.

    Raises
    ------
    RuntimeError
        There can be no further thread.
    """

    def __init__(self, run: Run, merge: Callable[[threading.Event], FileRef]) -> None:
        self.run = run
        #: Whether a manifest may name the file; whoever makes one says so.
        self.is_named = False
        self._given_up = threading.Event()
        self._merged: FileRef | None = None
        self._thread = threading.Thread(
            target=self._work, args=(merge,), name="pystate-merge", daemon=True
        )
        self._thread.start()

    def _work(self, merge: Callable[[threading.Event], FileRef]) -> None:
        try:
            self._merged = merge(self._given_up)
        except Exception:
            # Whoever merges these files again is told why it fails.
            self._merged = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def wait(self) -> FileRef | None:
        """Wait for the merged file; None if there is none, as the merge failed."""
        self._thread.join()
        return self._merged

    def give_up(self) -> FileRef | None:
        """Have it end soon; the same."""
        self._given_up.set()
        return self.wait()
