"""A sealed epoch of a store on its way into a manifest: a file, or in memory while it has no room.

Thread safety: it belongs to one thread at a time, that of the store.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from shutil import copyfileobj
from typing import BinaryIO

from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.state_files import FileInfo
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, ClosedError
from pystate.tables.snapshots import Snapshot

_COPIED_BYTES = 1 << 20


@dataclass
class SealedDelta:
    """What an epoch has changed, as a table has sealed it."""

    snapshot: Snapshot
    rows: int
    ref: FileRef | None = None
    """Its file, once there is one."""
    is_step: bool = False
    """Whether it was made since `Store.checkpoint` was called last, to make room."""
    _tried: bool = False
    _memory: BinaryIO | None = None
    """The file in memory, in place of the snapshot, while there is no room for it in the folder."""
    _info: FileInfo | None = None
    """What that file says of itself."""

    @property
    def held_bytes(self) -> int:
        """How much of it is in memory as a file."""
        return 0 if self._info is None else self._info.file_bytes

    def write(self, storage: LocalStorage, path: str) -> FileRef:
        """Write its file, unless an earlier call did; the path is the same each time."""
        if self.ref is None:
            if self._tried:
                storage.delete(path)
            self._tried = True
            with storage.create(path) as out:
                if self._info is None:
                    info = self.snapshot.write(out)
                else:
                    assert self._memory is not None
                    info = self._info
                    self._memory.seek(0)
                    copyfileobj(self._memory, out, _COPIED_BYTES)
            self.ref = FileRef.from_info(path, info)
            self.close()
        return self.ref

    def local_path(self, storage: LocalStorage) -> str:
        """Where its rows can be looked up: in its file, or in one in memory that this makes."""
        if self.ref is not None:
            return storage.local_path(self.ref.path)
        return f"/proc/self/fd/{self._in_memory(storage.uri).fileno()}"

    def _in_memory(self, where: str) -> BinaryIO:
        if self._memory is None:
            memory: BinaryIO | None = None
            try:
                memory = os.fdopen(os.memfd_create("pystate-delta"), "w+b")
                info = self.snapshot.write(memory)
                memory.flush()
            except OSError as error:
                if memory is not None:
                    with suppress(OSError):  # it would write the rest
                        memory.close()
                raise CheckpointError(
                    f"{where}: changes that are in no file yet cannot be put into memory as "
                    f"one: {error.strerror or error}"
                ) from error
            self._memory, self._info = memory, info
            # Once is enough. The file is compressed, too.
            self.snapshot.close()
        return self._memory

    def close(self) -> None:
        """Give the memory back; the file stays."""
        with suppress(ClosedError):
            self.snapshot.close()
        if self._memory is not None:
            self._memory.close()
        self._memory = self._info = None
