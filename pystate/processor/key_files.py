"""What an epoch's files say of some keys: files in memory that have the rows of these keys alone.

Files on a local disk are looked into by many small reads at a time, and only where a key may be:
by their guides, or by guides that are made of their indexes. Any other file is read block by block,
which takes longer and is as right. Nobody needs a table for it,
or a lock: a file is as it was written, and a job that runs meanwhile only makes new ones. Whoever
reads whole files reads what is found here.

Where files are objects of a store each read is a request. So it is known of all keys which parts of
which objects will be read, before they are: first what leads to blocks, then the blocks. What lies
near each other is one request, and many are sent at a time. What comes is kept on the local disk,
as `pystate.checkpoint.object_cache` has it, as long as this process runs. Where that disk takes
nothing, objects are read as any files are, one part after the other.

Thread safety: any thread. Look-ups wait for stores at the same time; in files that are open one
searches after the other what has come.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

from pystate._core import core
from pystate.base.arguments import integer
from pystate.base.memory import process_budget
from pystate.checkpoint.object_cache import (
    EXTENT_BYTES,
    GROUP_BYTES,
    REQUEST_BYTES,
    CachedObject,
    CopyError,
    MissingObjectError,
    ObjectCache,
    bring_all,
)
from pystate.checkpoint.object_storage import ObjectStorage
from pystate.checkpoint.refs import FileRef, RangeState
from pystate.checkpoint.state_files import FileInfo, FileSchema, OpenFile, file_schema, open_file
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, CorruptFileError, PystateError, SchemaError
from pystate.processor.epochs import missing_file, open_named
from pystate.processor.selection import WantedKeys
from pystate.redaction import logger
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import reads_for_lookups
from pystate.tables.host import OBJECTS, own_folder

_LOG = logger("pystate.processor.key_files")

#: Keys that are looked up at a time, and the most bytes of what one stack of files says of them: a
#: single key may have more.
KEYS, MOST_BYTES = 1 << 15, 8 << 20
#: How much of the local disk what is read of objects takes at most, and which part of that may be
#: wanted at a time, so that nothing leaves before it was read.
COPIED_BYTES, _WANTED_PART = 1 << 30, 4
#: What lies between two parts of an object is read with them if it is no more: a request takes
#: about as long as twice that, and many are on their way at a time.
_GAP_BYTES = GROUP_BYTES // 2
#: The most blocks of a segment of a guide (`csrc/guide/sst_guide.h`).
_SEGMENT_BLOCKS = 256
_TRIES = 2
_MOST_CACHE = 1 << 46


class FoundFile(io.BytesIO):
    """A state file in memory; its name is that of the newest file of which it is made."""

    name = ""


@dataclass
class _Known:
    """A file whose columns are known; it is open where rows are looked up by a guide."""

    schema: FileSchema
    info: FileInfo
    guided: core.GuidedFile | None = None
    copy: CachedObject | None = None
    asked: int = 0
    """How many requests its guide would have saved until now, at most."""
    opening: threading.Lock = field(default_factory=threading.Lock)

    @property
    def segments(self) -> int:
        """About how many requests it takes to read the guide of an object."""
        if self.info.file_bytes <= REQUEST_BYTES:
            return 0  # it is here as a whole
        return 1 + self.info.raw_bytes // (_SEGMENT_BLOCKS * self.info.block_bytes)


class BlockCache:
    """Blocks of files that look-ups have read, for those that follow.

    Several look-ups may have one. A forked child begins with an empty one of its own.

    Parameters
    ----------
    cache_bytes : int
        The most that is kept.
    """

    def __init__(self, cache_bytes: int) -> None:
        self._bytes = integer(cache_bytes, "cache_bytes", least=0, most=_MOST_CACHE)
        self._begin()

    def _begin(self) -> None:
        self._blocks = core.Blocks(self._bytes, process_budget())
        self._process = os.getpid()  # last: another thread goes by it

    @property
    def blocks(self) -> core.Blocks:
        """What the core has of them."""
        if self._process != os.getpid():
            self._begin()
        return self._blocks


class KeyFiles:
    """Looks keys up in the files of a checkpoint, and keeps those open that have guides.

    An open file may be removed, but takes its room on the disk until `forget` closes those that an
    epoch does not have any more. A guide takes memory, a seventh of a byte for each row, and one
    and a half for each row of a delta that is asked for many keys; that of an object takes
    requests, too, so it is read once as many keys were looked up without it.
    """

    def __init__(self, storage: CheckpointStorage, cache: BlockCache | None = None) -> None:
        self._storage = storage
        self._cache = BlockCache(0) if cache is None else cache
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    @property
    def is_remote(self) -> bool:
        """Whether each read of a file is a request to a store."""
        return isinstance(self._storage, ObjectStorage)

    def found(
        self, epoch: int, state: RangeState, keys: WantedKeys, *, above: bool = False
    ) -> Iterator[tuple[WantedKeys, list[FoundFile]]]:
        """Look keys up in a range as it is in an epoch: each one once, some of them at a time.

        Yields these keys, and what is said of them: files, oldest first, that a merge or a load
        makes rows of. Keys of other ranges are left out. The range's files may lie `above` others,
        which are not looked into: then what they delete is said, too.

        `MissingFileError` if a file is gone, as a running job retires epochs; `CorruptFileError`,
        `NewerFormatError`, `SystemCallError`, which name file and place; `MemoryLimitError`.
        """
        self._check_process()
        wanted, at, most = keys.among(*state.bounds).ordered(), 0, KEYS
        while at < len(wanted):
            part = wanted.slice(at, most)
            files = self._look_up(epoch, state, part, above)
            if isinstance(files, int):
                most = max(1, min(files, len(part) - 1))
                continue
            yield part, files
            at += len(part)
            most = min(2 * most, KEYS)

    def finder(
        self, epoch: int, ranges: Sequence[RangeState], max_parallelism: int
    ) -> tuple[core.Finder, FileSchema] | None:
        """All files of an epoch, for look-ups of any threads at a time, and their columns.

        None where there is none: of objects, and of files that have not all one schema, or such
        blocks that no guide can be made. Errors are those of `found`.
        """
        self._check_process()
        if self.is_remote:
            return None
        schema: FileSchema | None = None
        stacks = []
        for state in ranges:
            counting = []
            for ref in state.files:
                bounds = ref.overlap(state.bounds)
                if bounds is None:
                    continue
                known = self._file(epoch, ref)
                schema = known.schema if schema is None else schema
                if (
                    known.guided is None
                    or known.schema != schema
                    or known.info.max_parallelism != max_parallelism
                    or any(ref.epoch < first for _, first in state.since)
                ):
                    return None
                counting.append((known.guided, list(bounds)))
            if counting:
                assert schema is not None
                stack = _stack(schema, max_parallelism, counting, fetched=False)
                stacks.append((stack, *state.bounds))
        if schema is None:
            return None
        return core.Finder(stacks, self._cache.blocks, process_budget()), schema

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._begin()  # what the parent has open is none of a forked child's

    def forget(self, kept: frozenset[str] = frozenset()) -> None:
        """Close all files but those with the paths that are `kept`."""
        with self._lock:
            self._known = {path: known for path, known in self._known.items() if path in kept}

    def _look_up(
        self, epoch: int, state: RangeState, keys: WantedKeys, above: bool
    ) -> list[FoundFile] | int:
        """The files of what is said of keys; or, if that is too much, how many to ask for."""
        refs = [ref for ref in state.files if ref.overlap(state.bounds) is not None]
        if not self.is_remote:
            return self._found_in(epoch, state, refs, keys, self._files(epoch, refs), above)
        for tries in range(1, _TRIES + 1):
            try:
                files = self._objects(refs, keys)
                return self._found_in(epoch, state, refs, keys, files, above)
            except MissingObjectError as error:
                raise missing_file(self._storage, epoch, error.path) from error
            except CorruptFileError:
                # What was here of it is fetched once more.
                if tries == _TRIES:
                    raise
            except CopyError as error:
                _LOG.warning("keys are looked up without copies of objects: %s", error)
                break
        return self._found_in(epoch, state, refs, keys, [None] * len(refs), above)

    def _found_in(
        self,
        epoch: int,
        state: RangeState,
        refs: Sequence[FileRef],
        keys: WantedKeys,
        files: Sequence[_Known | None],
        above: bool,
    ) -> list[FoundFile] | int:
        def alike(at: int) -> object:
            # Records are merged here only where they are of one schema, all whose states count.
            since = tuple(refs[at].epoch >= first for _, first in state.since)
            known = files[at]
            return at if known is None or known.guided is None else (known.schema, since)

        found: list[FoundFile] = []
        with ExitStack() as stack:
            looks: list[_StackLook | _FileLook] = []
            for _, run in groupby(range(len(refs)), key=alike):
                places = list(run)
                some, known = [refs[at] for at in places], files[places[0]]
                if known is None or known.guided is None:
                    opened = stack.enter_context(self._opened(epoch, some[0], known))
                    looks.append(_FileLook(opened, some[0], known, state, keys))
                else:
                    open_files = [file for at in places if (file := files[at]) is not None]
                    kind = "base" if places[0] == 0 and not above else "delta"
                    looks.append(_StackLook(open_files, some, kind, state, keys))
            if isinstance(self._storage, ObjectStorage):
                for entries in (True, False):
                    parts = [part for look in looks for part in look.parts(entries=entries)]
                    wanted = sum(last - first + 1 for _, first, last in parts) * EXTENT_BYTES
                    most_bytes = _copies_of(self._storage).most_bytes
                    if wanted > most_bytes // _WANTED_PART and len(keys) > 1:
                        return len(keys) // 4 + 1
                    bring_all(parts)
            for look in looks:
                out = FoundFile()
                out.name = look.name
                info = look.found(out)
                if isinstance(info, int):
                    return info
                if info.rows + info.tombstones:
                    found.append(out)
        return found

    @contextmanager
    def _opened(self, epoch: int, ref: FileRef, known: _Known | None) -> Iterator[OpenFile]:
        """A file that is read block by block."""
        copy = None if known is None else known.copy
        if copy is None:
            with open_named(self._storage, epoch, ref) as file, open_file(file, ref) as opened:
                yield opened
            return
        with copy.scanned() as file, open_file(file, ref) as opened:
            yield opened

    def _files(self, epoch: int, refs: Sequence[FileRef]) -> list[_Known]:
        """What is known of files, which are opened where they lie on a local disk."""
        return [self._file(epoch, ref) for ref in refs]

    def _file(self, epoch: int, ref: FileRef) -> _Known:
        with self._lock:
            known = self._known.get(ref.path)
        if known is not None:
            return known
        with self._opened(epoch, ref, None) as opened:
            known = _Known(file_schema(opened.reader), FileInfo(*opened.reader.info()))
        path = self._storage.local_path(ref.path)
        if path is not None:
            try:
                known.guided = _guided(known, path)
            except SchemaError:
                pass  # no guide can be made
            except CheckpointError as error:
                with suppress(PystateError):
                    if self._storage.exists(ref.path):
                        raise
                raise missing_file(self._storage, epoch, ref.path) from error
        with self._lock:
            return self._known.setdefault(ref.path, known)

    # ---- objects of a store ------------------------------------------------------------------

    def _objects(self, refs: Sequence[FileRef], keys: WantedKeys) -> list[_Known]:
        """What is known of objects; those are opened whose guides pay."""
        assert isinstance(self._storage, ObjectStorage)
        with self._lock:
            known = {ref.path: self._known.get(ref.path) for ref in refs}
        copies: dict[str, CachedObject] = {}
        for ref in refs:
            file = known[ref.path]
            # A folder that was removed does not take any more what an open copy does.
            if file is None or file.copy is None or not file.copy.is_in_place():
                copies[ref.path] = _copies_of(self._storage).open(ref.path, ref.file_bytes)
        bring_all(part for copy in copies.values() for part in _ends(copy))
        files = []
        for ref in refs:
            file, copy = known[ref.path], copies.get(ref.path)
            if copy is not None:
                with copy.scanned() as source, open_file(source, ref) as opened:
                    info = FileInfo(*opened.reader.info())
                    file = _Known(file_schema(opened.reader), info, None, copy)
                file = self._keep(ref.path, known[ref.path], file)
            assert file is not None
            self._open_if_it_pays(file, len(keys.among(ref.first_key_group, ref.last_key_group)))
            files.append(file)
        return files

    def _keep(self, path: str, before: _Known | None, file: _Known) -> _Known:
        """Know a file from now on, unless another thread does already."""
        with self._lock:
            if self._known.get(path) is before:
                self._known[path] = file
            return self._known.get(path, file)

    def _open_if_it_pays(self, file: _Known, keys: int) -> None:
        if not file.info.block_bytes:
            return
        with file.opening:
            if file.guided is not None:
                return
            file.asked += min(keys, file.segments)
            if file.asked >= file.segments:
                assert file.copy is not None
                file.guided = _guided(file, file.copy.own_path, file.copy)


def _stack(
    schema: FileSchema,
    max_parallelism: int,
    counting: Sequence[tuple[core.GuidedFile, list[int]]],
    *,
    fetched: bool,
) -> core.Stack:
    reads = reads_for_lookups(fetched=fetched)
    return core.Stack(
        _core_schema(schema), max_parallelism, list(counting), reads, process_budget(), stored=True
    )


def _guided(file: _Known, path: str, extents: CachedObject | None = None) -> core.GuidedFile:
    return core.GuidedFile(
        _core_schema(file.schema),
        file.info.max_parallelism,
        path,
        reads_for_lookups(fetched=extents is not None),
        process_budget(),
        None,
        True,
        extents,
    )


@lru_cache(maxsize=16)
def _copies_of(storage: ObjectStorage) -> ObjectCache:
    """The copies of a storage's objects that all look-ups of this process have together."""
    disk = "the local disk", "TMPDIR"
    try:
        status = os.statvfs(tempfile.gettempdir())
        # Others have the disk, too.
        most_bytes = max(1, min(COPIED_BYTES, status.f_bavail * status.f_frsize // 2))
        return ObjectCache(storage, own_folder(OBJECTS), most_bytes, disk)
    except OSError as error:
        raise CopyError(f"there can be no folder on {disk[0]}: {error}") from error


os.register_at_fork(after_in_child=_copies_of.cache_clear)


_Part = tuple[CachedObject, int, int]


def _ends(copy: CachedObject) -> Iterator[_Part]:
    """Header and tail; of a small object all."""
    last = len(copy.states) - 1
    if copy.size_bytes <= REQUEST_BYTES:
        yield copy, 0, last
    else:
        yield copy, 0, 0
        yield copy, max(0, last - GROUP_BYTES // EXTENT_BYTES), last


def _parts(
    planned: Iterable[tuple[int, int, int]], copies: Sequence[CachedObject | None]
) -> Iterator[_Part]:
    """The extents of planned parts of files."""
    for number, offset, size in planned:
        copy = copies[number]
        if copy is not None:
            yield copy, offset // EXTENT_BYTES, (offset + size - 1) // EXTENT_BYTES


class _StackLook:
    """A look into several files that are open."""

    def __init__(
        self,
        files: Sequence[_Known],
        refs: Sequence[FileRef],
        kind: str,
        state: RangeState,
        keys: WantedKeys,
    ) -> None:
        self._newest, self._kind, self._keys = refs[-1], kind, keys
        self.name = refs[-1].path
        self._copies = [file.copy for file in files]
        counting = [
            (file.guided, list(ref.overlap(state.bounds) or ()))
            for file, ref in zip(files, refs, strict=True)
            if file.guided is not None
        ]
        self._stack = _stack(
            files[0].schema, keys.max_parallelism, counting, fetched=self._copies[0] is not None
        )

    def parts(self, *, entries: bool) -> Iterable[_Part]:
        """What is read of objects; what leads to blocks comes as it is planned."""
        if entries:
            return ()
        planned = self._stack.plan(self._keys.references, _GAP_BYTES, REQUEST_BYTES)
        return _parts(planned, self._copies)

    def found(self, out: FoundFile) -> FileInfo | int:
        """Write what is said of the keys; or say how many to ask for, if that is too much."""
        id, epoch = bytes.fromhex(self._newest.id), self._newest.epoch
        said = self._stack.look_up(self._keys.references, out, self._kind, id, epoch, MOST_BYTES)
        return said if isinstance(said, int) else FileInfo(*said)


class _FileLook:
    """A look into one file, block by block."""

    def __init__(
        self,
        opened: OpenFile,
        ref: FileRef,
        known: _Known | None,
        state: RangeState,
        keys: WantedKeys,
    ) -> None:
        self.name = ref.path
        self._reader = opened.reader
        self._copy = None if known is None else known.copy
        self._keys = keys.among(*(ref.overlap(state.bounds) or (0, -1)))

    def parts(self, *, entries: bool) -> Iterable[_Part]:
        """What is read of an object."""
        if self._copy is None:
            return ()
        planned = core.plan_into(
            self._reader, self._keys.references, entries, _GAP_BYTES, REQUEST_BYTES
        )
        return _parts(planned, [self._copy])

    def found(self, out: FoundFile) -> FileInfo:
        """Write what is said of the keys."""
        return FileInfo(*core.look_into(self._reader, self._keys.references, out))


def fill(backend: KeyedStateBackend, files: Sequence[FoundFile], state: RangeState) -> None:
    """Put what was found of a range's keys into a table, which may leave states out."""
    for file in files:
        backend.load(file, allow_unclaimed_state=True, since=dict(state.since))


def _core_schema(schema: FileSchema) -> core.Schema:
    return core.Schema(schema.keys, schema.states, schema.hashed)
