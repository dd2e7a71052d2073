"""What an epoch's files say of some keys: files in memory that have the rows of these keys alone.

Files with guides are looked into by many small reads at a time, and only where a key may be; any
other file is read block by block, which takes longer and is as right. Nobody needs a table for it,
or a lock: a file is as it was written, and a job that runs meanwhile only makes new ones. Whoever
reads whole files reads what is found here.

Thread safety: any thread.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from pystate._core import core
from pystate.base.memory import process_budget
from pystate.checkpoint.refs import FileRef, RangeState
from pystate.checkpoint.state_files import FileInfo, FileSchema, file_schema, open_file
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, PystateError
from pystate.processor.epochs import missing_file, open_named
from pystate.processor.selection import WantedKeys
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import process_reads

#: Keys that are looked up at a time, and the most bytes of what one stack of files says of them: a
#: single key may have more.
KEYS, MOST_BYTES = 1 << 15, 8 << 20


class FoundFile(io.BytesIO):
    """A state file in memory; its name is that of the newest file of which it is made."""

    name = ""


@dataclass(frozen=True)
class _Known:
    """The columns of a file, which is open where it has a guide that this host can read."""

    schema: FileSchema
    guided: core.GuidedFile | None


class KeyFiles:
    """Looks keys up in the files of a checkpoint, and keeps those open that have guides.

    An open file may be removed, but takes its room on the disk until `forget` closes those that an
    epoch does not have any more.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def found(
        self, epoch: int, state: RangeState, keys: WantedKeys
    ) -> Iterator[tuple[WantedKeys, list[FoundFile]]]:
        """Look keys up in a range as it is in an epoch: each one once, some of them at a time.

        Yields these keys, and what is said of them: files, oldest first, that a merge or a load
        makes rows of. Keys of other ranges are left out.

        `MissingFileError` if a file is gone, as a running job retires epochs; `CorruptFileError`,
        `NewerFormatError`, `SystemCallError`, which name file and place; `MemoryLimitError`.
        """
        if self._process != os.getpid():
            self._begin()  # what the parent has open is none of a forked child's
        wanted, at, most = keys.among(*state.bounds).ordered(), 0, KEYS
        while at < len(wanted):
            part = wanted.slice(at, most)
            files = self._look_up(epoch, state, part)
            if isinstance(files, int):
                most = max(1, min(files, len(part) - 1))
                continue
            yield part, files
            at += len(part)
            most = min(2 * most, KEYS)

    def forget(self, kept: frozenset[str] = frozenset()) -> None:
        """Close all files but those with the paths that are `kept`."""
        with self._lock:
            self._known = {path: known for path, known in self._known.items() if path in kept}

    def _look_up(self, epoch: int, state: RangeState, keys: WantedKeys) -> list[FoundFile] | int:
        """The files of what is said of keys; or, if that is too much, how many to ask for."""
        refs = [ref for ref in state.files if ref.overlap(state.bounds) is not None]
        known = [self._file(epoch, ref) for ref in refs]

        def alike(at: int) -> object:
            # Records are merged here only where they are of one schema, all whose states count.
            since = tuple(refs[at].epoch >= first for _, first in state.since)
            return at if known[at].guided is None else (known[at].schema, since)

        found: list[FoundFile] = []
        for _, run in groupby(range(len(refs)), key=alike):
            places = list(run)
            some = [refs[at] for at in places]
            opened = [known[at].guided for at in places]
            out = FoundFile()
            out.name = some[-1].path
            if opened[0] is None:
                rows = self._read(epoch, state, some[0], keys, out)
            else:
                kind = "base" if places[0] == 0 else "delta"
                stack = core.Stack(
                    _core_schema(known[places[0]].schema),
                    keys.max_parallelism,
                    [
                        (file, list(ref.overlap(state.bounds) or ()))
                        for file, ref in zip(opened, some, strict=True)
                        if file is not None
                    ],
                    process_reads(),
                    process_budget(),
                    stored=True,
                )
                newest = some[-1]
                said = stack.look_up(
                    keys.references, out, kind, bytes.fromhex(newest.id), newest.epoch, MOST_BYTES
                )
                if isinstance(said, int):
                    return said
                rows = FileInfo(*said).rows + FileInfo(*said).tombstones
            if rows:
                found.append(out)
        return found

    def _read(
        self, epoch: int, state: RangeState, ref: FileRef, keys: WantedKeys, out: FoundFile
    ) -> int:
        """Look into a file block by block; returns how many records of the keys it has."""
        some = keys.among(*(ref.overlap(state.bounds) or (0, -1)))
        with open_named(self._storage, epoch, ref) as file, open_file(file, ref) as opened:
            info = FileInfo(*core.look_into(opened.reader, some.references, out))
        return info.rows + info.tombstones

    def _file(self, epoch: int, ref: FileRef) -> _Known:
        with self._lock:
            known = self._known.get(ref.path)
        if known is not None:
            return known
        with open_named(self._storage, epoch, ref) as file, open_file(file, ref) as opened:
            schema, info = file_schema(opened.reader), FileInfo(*opened.reader.info())
        known = _Known(schema, self._open(epoch, ref, schema, info))
        with self._lock:
            return self._known.setdefault(ref.path, known)

    def _open(
        self, epoch: int, ref: FileRef, schema: FileSchema, info: FileInfo
    ) -> core.GuidedFile | None:
        path = self._storage.local_path(ref.path) if info.block_bytes else None
        if path is None:
            return None
        try:
            return core.GuidedFile(
                _core_schema(schema),
                info.max_parallelism,
                path,
                process_reads(),
                process_budget(),
                stored=True,
            )
        except CheckpointError as error:
            with suppress(PystateError):
                if self._storage.exists(ref.path):
                    raise
            raise missing_file(self._storage, epoch, ref.path) from error


def fill(backend: KeyedStateBackend, files: Sequence[FoundFile], state: RangeState) -> None:
    """Put what was found of a range's keys into a table, which may leave states out."""
    for file in files:
        backend.load(file, allow_unclaimed_state=True, since=dict(state.since))


def _core_schema(schema: FileSchema) -> core.Schema:
    return core.Schema(schema.keys, schema.states, schema.hashed)
