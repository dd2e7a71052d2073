"""Held deltas: changes since the last checkpoint, which no manifest names.

They are written beside the tables of an executor, in memory, unless tasks of other executors may
need them; then they are in the checkpoint's storage.

Thread safety: functions and immutable types; a file is written by one task.

Invariants
----------
1. A file's name has the serial number of its step. A task removes only files of its own range, of
   earlier steps, which its plan does not name.
2. A held delta that is not found is lost, and with it the state since the last checkpoint:
   `StateLostError`. Nothing is restored without it.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from pystate.checkpoint.refs import FileRef, uid_folder
from pystate.checkpoint.state_files import FileInfo, Lineage, Source, merge_files
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.errors import NoSpaceError, StateLostError

#: The folder of held deltas, beside the tables and in the checkpoint.
HELD = "held"
_NAME = re.compile(r".*/(\d{8,})-[0-9a-f]+\.delta")


def is_held(path: str) -> bool:
    """Whether a path is that of a held delta."""
    return path.startswith(f"{HELD}/")


@dataclass(frozen=True)
class HeldFiles:
    """Where a range's held deltas are."""

    storage: CheckpointStorage
    local: str | None
    folder: str

    @classmethod
    def of(
        cls,
        storage: CheckpointStorage,
        local: str | None,
        uid: str,
        first_key_group: int,
        last_key_group: int,
    ) -> HeldFiles:
        """Name the place of a range's held deltas."""
        bounds = f"{first_key_group:05d}-{last_key_group:05d}"
        return cls(storage, local, f"{HELD}/{uid_folder(uid)}/{bounds}")

    def write(self, serial: int, write: Callable[[BinaryIO], FileInfo]) -> FileRef:
        """Write a held delta: beside the tables, or if these have no room in the checkpoint.

        `serial` is the number of the step, and `write` may be called twice.
        """
        path = f"{self.folder}/{serial:08d}-{uuid.uuid4().hex}.delta"
        if self.local is not None:
            try:
                return _write_file(LocalStorage(self.local), path, write)
            except NoSpaceError:
                pass
        return _write_file(self.storage, path, write)

    def find(self, ref: FileRef) -> str | None:
        """Return the path of a file in a file system; None if it is in the storage alone.

        `StateLostError` if it is a held delta, and gone.
        """
        if is_held(ref.path) and self.local is not None:
            path = os.path.join(self.local, ref.path)
            if os.path.exists(path):
                return path
        if self.storage.exists(ref.path):
            return self.storage.local_path(ref.path)
        raise StateLostError(
            f"the changes of epoch {ref.epoch} in {ref.path} are gone, which were sealed after the "
            "last checkpoint: an executor was lost, or has not computed the range before"
        )

    @contextmanager
    def opened(self, ref: FileRef) -> Iterator[Source]:
        """Open a file, by its path if it has one; `StateLostError` as for `find`."""
        path = self.find(ref)
        if path is not None:
            yield path
            return
        with self.storage.open_read(ref.path) as file:
            yield file

    def remove_older(self, serial: int, keep: Collection[str]) -> None:
        """Remove this host's files of earlier steps, but for those to keep."""
        if self.local is None:
            return
        local = LocalStorage(self.local)
        for temporary in (False, True):
            for entry in local.list(self.folder, temporary=temporary):
                match = _NAME.match(entry.path)
                if match is not None and int(match[1]) < serial and entry.path not in keep:
                    local.delete(entry.path)


def merge_held(
    files: HeldFiles,
    refs: Sequence[FileRef],
    out: BinaryIO,
    epoch: int,
    bounds: tuple[int, int],
) -> FileInfo:
    """Merge a range's held deltas, oldest first, into one; `StateLostError` if one is gone."""
    lineage = Lineage(bytes.fromhex(refs[-1].id), bytes.fromhex(refs[0].parent), epoch, 0)
    with ExitStack() as stack:
        return merge_files(
            [stack.enter_context(files.opened(ref)) for ref in refs],
            out,
            lineage=lineage,
            first_key_group=bounds[0],
            last_key_group=bounds[1],
            kind="delta",
        )


def _write_file(
    storage: CheckpointStorage, path: str, write: Callable[[BinaryIO], FileInfo]
) -> FileRef:
    with storage.create(path) as out:
        info = write(out)
    return FileRef.from_info(path, info)
