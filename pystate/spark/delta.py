"""A task's delta file, written while the task's output is streamed.

Thread safety: a `DeltaWriter` is a thread, which belongs to the task that starts it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from pystate.checkpoint.manifest import FileRef
from pystate.checkpoint.storage import CheckpointStorage

if TYPE_CHECKING:
    from pystate.backend.keyed import Snapshot

__all__ = ["DeltaWriter"]


class DeltaWriter(threading.Thread):
    """Writes one delta file; it appears complete and durable, or not at all."""

    def __init__(self, storage: CheckpointStorage, path: str, snapshot: Snapshot) -> None:
        super().__init__(name=f"pystate-delta-{os.path.basename(path)}", daemon=True)
        self._storage = storage
        self._path = path
        self._snapshot = snapshot
        self._error: BaseException | None = None
        self._file: FileRef | None = None
        self.took_ms = 0.0

    def run(self) -> None:
        """Write the file."""
        began = time.perf_counter_ns()
        try:
            with self._storage.create(self._path) as file:
                info = self._snapshot.write(file)
            self._file = FileRef.from_info(self._path, info)
        except BaseException as error:
            self._error = error
        finally:
            self._snapshot.close()
            self.took_ms = (time.perf_counter_ns() - began) / 1e6

    def result(self) -> FileRef:
        """Wait for the file; raise the error that writing it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self._file is not None
        return self._file
