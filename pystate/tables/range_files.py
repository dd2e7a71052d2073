"""A range's table on disk above the files that a manifest names for it.

The rows of such a table lie in the checkpoint's own files, where these are. Or they lie in objects
of a store, of which what is read is copied to the local disk. Nothing is read when the table begins
at a base, and what it has in memory stays there from task to task; what tasks on other hosts have
changed of that is taken from their deltas. Files in which no rows can be looked up, since they have
no guide or other columns than the table, are merged into one first. It is kept beside the tables of
the executor, until the driver has made such a file that the manifest names.

Thread safety: functions of the thread that holds the table's lock. What is remembered of files may
be lost to another thread, which then looks once more.

Invariants
----------
1. What is looked up in is what the manifest names, by its id and checksum, and counts for the key
   groups for which the manifest says so.
2. Rows leave only while the table is exactly at the base.
3. A file of other columns, or of an epoch in which a state of the same name was another one, is
   never looked up in.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import BinaryIO, cast
from weakref import WeakKeyDictionary

from pystate.checkpoint.held_deltas import is_held
from pystate.checkpoint.object_cache import ObjectCache, ObjectFile
from pystate.checkpoint.object_storage import ObjectStorage
from pystate.checkpoint.refs import EMPTY_ID, FileRef, RangeState, restrict
from pystate.checkpoint.state_files import Lineage, Source, merge_files
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage, guarded_file
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    CorruptFileError,
    MemoryLimitError,
)
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow, FilesBelow
from pystate.tables.host import (
    BELOW,
    GUIDE_NAME,
    OBJECTS,
    STEPS,
    TableHome,
    on_local_disk,
    task_folder,
)
from pystate.tables.recovery import TableSpec, seal_as_base, target_bytes

#: The names of merged files, with the range's bounds.
MERGED_NAME = re.compile(r"(\d{5,})-(\d{5,})-[0-9a-f]+\.base")
_MOST_KNOWN = 1 << 16
#: What was merged for a range goes when no task has asked for it so long: they are on another host,
#: or the manifest names what the driver has made of the same files.
_UNUSED_S = 3600.0
#: So many records of deltas are always read, for whatever rows are in memory.
_FEW_RECORDS = 1 << 14
#: Whether rows of a table can be looked up in a file: by its path and checksum, the table's schema,
#: and how the file system knows the file.
_known: dict[tuple[str, int, str, int, int, int], bool] = {}

#: What manifests named, of which files are that tables look in.
_found: WeakKeyDictionary[FilesBelow, tuple[tuple[FileRef, ...], tuple[tuple[str, int], ...]]]
_found = WeakKeyDictionary()


def begin_at(backend: KeyedStateBackend, spec: TableSpec, base: RangeState) -> int:
    """Have an empty table begin at a base; return the number of files below it.

    `CheckpointError`, `CorruptFileError`, `NewerFormatError`, `SchemaError` or
    `UnclaimedStateError`: a file cannot be used, and is named.
    """
    backend.open()
    refs = _counting(base)
    if base.id == EMPTY_ID or not refs:
        return 0
    newest = refs[-1]
    parent = newest.parent if newest.id == base.id else EMPTY_ID
    name = Lineage(bytes.fromhex(base.id), bytes.fromhex(parent), newest.epoch, spec.query)
    files = _below(backend, spec, base, refs)
    # An epoch fires all timers that are due, and says when the next ones are.
    next_timers = base.next_event_timer_ms, base.next_processing_timer_ms
    backend.below.begin_at(name, files, next_timers)
    return len(files)


def put_above(backend: KeyedStateBackend, spec: TableSpec, base: RangeState) -> None:
    """Have a table that is at a base look for rows in its files; errors are those of `begin_at`.

    Rows leave it, if there is not as much room as the last epoch needed. `MemoryLimitError`: it is
    larger than it may be now, and is best made anew.
    """
    backend.below.set_target(target_bytes(spec.tables_of_host))
    if backend.below.is_too_large:
        raise MemoryLimitError("the table has far more than its share of its host's memory")
    refs = _counting(base)
    # A table that has all rows, and is at the base, has had those that the files have.
    below = backend.below
    known = not below.are_any
    found = _found.get(below.wanted)
    if found == (base.files, base.since) and below.open_files == len(below.files):
        # They were looked at as they were opened.
        below.keep_files(all_known=known)
    else:
        before = below.files
        below.set_files(_below(backend, spec, base, refs), all_known=known)
        _forget(before, below.files)
        _found[below.wanted] = base.files, base.since
    below.count_anew()
    _note_use(below.files)
    if refs:
        changed = refs[-1].rows if refs[-1].kind == "delta" else 0
        backend.below.leave_room(max(changed + changed // 4, backend.stats().keys // 8))


def can_catch_up(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, deltas: Sequence[FileRef]
) -> bool:
    """Whether what a table has in memory is best brought up to date with deltas that others made.

    A record costs a tenth of what a row costs at the least that is looked up again.
    """
    records = sum(ref.rows for ref in deltas)
    if not backend.below.takes_deltas or records > _FEW_RECORDS + 8 * backend.stats().keys:
        return False
    return all(_is_usable(backend, spec, base, _located(spec, ref), ref) for ref in deltas)


def catch_up(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, deltas: Sequence[FileRef]
) -> int:
    """Bring what a table has in memory to the base; return how many records the deltas have.

    They are an epoch of their own. Errors are those of `load_files`; the table is then as before,
    or rolled back by whoever has it next.
    """
    records = 0
    for ref in deltas:
        if spec.heartbeat is not None:
            spec.heartbeat()
        with _opened(_located(spec, ref)) as source:
            records += backend.below.take_delta(source, ref, dict(base.since))
    if deltas:
        seal_as_base(backend, spec, base)
    return records


def _forget(before: Sequence[FileBelow], now: Sequence[FileBelow]) -> None:
    """Remove the copies of objects that a range does not have any more."""
    named = {file.path for file in now}
    for file in before:
        if file.object is not None and file.path not in named:
            file.object.cache.forget([file.object.path])


def _counting(base: RangeState) -> list[FileRef]:
    """The files that count for a range, oldest first, each for the key groups it counts for."""
    found = ((ref, ref.overlap(base.bounds)) for ref in base.files)
    return [restrict(ref, part) for ref, part in found if part is not None]


def _below(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, refs: Sequence[FileRef]
) -> list[FileBelow]:
    files = [_located(spec, ref) for ref in refs]
    unusable = [
        at
        for at, (file, ref) in enumerate(zip(files, refs, strict=True))
        if not _is_usable(backend, spec, base, file, ref)
    ]
    merged = unusable[-1] + 1 if unusable else 0
    _remove_guides(backend, {ref.id for ref in refs})
    folder = spec.home.local_folder(BELOW, spec.operator.uid)
    if not merged:
        _remove_others(folder, base, None)
        return files
    parts = list(zip(files[:merged], refs[:merged], strict=True))
    name = _merged(backend, spec, base, parts, folder)
    _remove_others(folder, base, name)
    return [FileBelow(os.path.join(folder, name), *base.bounds), *files[merged:]]


def _located(spec: TableSpec, ref: FileRef) -> FileBelow:
    """Where a file is, for the key groups for which it counts."""
    if spec.held is not None and is_held(ref.path):
        path = spec.held.find(ref)
    else:
        path = spec.storage.local_path(ref.path)
        if path is not None and not spec.storage.exists(ref.path):
            raise CheckpointError(
                f"{ref.path} is missing in {spec.storage.uri}, and a manifest names it: bring it "
                "back"
            )
    if path is not None:
        return FileBelow(path, *ref.bounds)
    cache = cache_of(spec)
    if cache is None:
        raise CheckpointError(
            f"{ref.path} is in {spec.storage.uri}, and rows of tables on disk are looked up in "
            "files of file systems and objects of stores alone: choose another table_home"
        )
    copy = ObjectFile(cache, ref.path, ref.file_bytes)
    return FileBelow(copy.local_path, *ref.bounds, copy)


def cache_of(spec: TableSpec) -> ObjectCache | None:
    """Where copies of the checkpoint's objects are; None if it is in no object store."""
    return cache_in(spec.home, spec.storage, spec.options.disk_bytes)


def cache_in(home: TableHome, storage: CheckpointStorage, most_bytes: int) -> ObjectCache | None:
    """As `cache_of`: all operators of an executor have it together."""
    if not isinstance(storage, ObjectStorage):
        return None
    return _cache_of(storage, home.local_folder(OBJECTS, "all"), most_bytes)


@lru_cache(maxsize=16)
def _cache_of(storage: ObjectStorage, folder: str, most_bytes: int) -> ObjectCache:
    return ObjectCache(storage, folder, most_bytes)


os.register_at_fork(after_in_child=_cache_of.cache_clear)


@contextmanager
def _opened(file: FileBelow) -> Iterator[Source]:
    """A file as a whole."""
    if file.object is None:
        yield file.path
        return
    with file.object.open().scanned() as source:
        yield source


def _is_usable(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, file: FileBelow, ref: FileRef
) -> bool:
    """Whether rows can be looked up in a file; checks that it is the one that was written."""
    identity = (0, ref.file_bytes, 0)
    if file.object is None:
        status = os.stat(file.path)
        identity = status.st_ino, status.st_size, status.st_mtime_ns
    key = file.path, ref.checksum, spec.operator.fingerprint(base.since), *identity
    known = _known.get(key)
    if known is None:
        try:
            known = _look_at(backend, spec, base, file, ref)
        except CorruptFileError:
            if file.object is None:
                raise
            # What was here of it is fetched once more.
            known = _look_at(backend, spec, base, file, ref)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = known
    return known


def _look_at(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, file: FileBelow, ref: FileRef
) -> bool:
    # Of a state that was dropped, and declared anew, older files have what does not count.
    counts = all(ref.epoch >= epoch for _, epoch in base.since)
    # It stays open: where it is on another host each opening is a round trip.
    if counts and backend.below.opens(file, ref):
        return True
    with _opened(file) as source:
        allowed = spec.options.allow_unclaimed_state
        backend.below.check_files([source], [ref], allowed, dict(base.since))
        return counts and backend.below.has_rows_of(source)


# ---- files that are merged first ----------------------------------------------------------------


def _merged(
    backend: KeyedStateBackend,
    spec: TableSpec,
    base: RangeState,
    files: Sequence[tuple[FileBelow, FileRef]],
    to: str,
) -> str:
    """Merge files into one with a guide and the table's columns, or find it; return its name."""
    parts = [(ref.path, ref.checksum, ref.bounds) for _, ref in files]
    text = json.dumps([spec.operator.fingerprint(base.since), spec.options.block_bytes, parts])
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    name = f"{base.first_key_group:05d}-{base.last_key_group:05d}-{digest}.base"
    folder = LocalStorage(to)
    if folder.exists(name):
        return name
    if spec.heartbeat is not None:
        spec.heartbeat()

    def beating(out: BinaryIO) -> BinaryIO:
        # Else a long merge would look like a task that hangs, or go on for nobody.
        return out if spec.heartbeat is None else guarded_file(out, spec.heartbeat)

    newest = files[-1][1]
    lineage = Lineage(bytes.fromhex(newest.id), bytes.fromhex(newest.parent), newest.epoch, 0)
    what = f"operator {spec.operator.uid!r}: files are merged for a table on disk"
    with on_local_disk(to, what), ExitStack() as stack:
        sources: list[Source] = []
        scratch = ""
        for file, ref in files:
            source = stack.enter_context(_opened(file))
            if ref.bounds == base.bounds:
                sources.append(source)
                continue
            if not scratch:
                scratch = task_folder(spec.home.local_folder(STEPS, spec.operator.uid))
                stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            # Reduced to what counts; deletions in it are kept, since older files may follow.
            with open(os.path.join(scratch, f"{len(sources)}.delta"), "xb") as part:
                merge_files(
                    [source],
                    beating(cast(BinaryIO, part)),
                    first_key_group=ref.first_key_group,
                    last_key_group=ref.last_key_group,
                    kind="delta",
                    since=dict(base.since),
                    block_bytes=0,
                )
            sources.append(part.name)
        with suppress(AlreadyPublishedError), folder.create(name) as out:
            backend.below.merge(sources, beating(out), lineage, dict(base.since))
    return name


os.register_at_fork(after_in_child=_known.clear)


def _remove_guides(backend: KeyedStateBackend, used: set[str]) -> None:
    """Remove copies of guides of files that do not count any more; who maps them keeps them."""
    prefix = backend.below.guides
    if prefix is None:
        return
    folder, begin = os.path.split(prefix)
    for name in os.listdir(folder):
        match = GUIDE_NAME.fullmatch(name) if name.startswith(begin) else None
        if match is not None and match[3] not in used:
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _remove_others(folder: str, base: RangeState, used: str | None) -> None:
    """Remove what was merged for a range before, and for those whose tasks are elsewhere now."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        match = MERGED_NAME.fullmatch(name)
        if match is None or name == used:
            continue
        path = os.path.join(folder, name)
        with suppress(OSError):
            is_own = (int(match[1]), int(match[2])) == base.bounds
            if is_own or time.time() - os.stat(path).st_mtime > _UNUSED_S:
                os.unlink(path)


def _note_use(files: Sequence[FileBelow]) -> None:
    """Say of a file that was merged for a range that its tasks are here still."""
    for file in files[:1]:
        if MERGED_NAME.fullmatch(os.path.basename(file.path)):
            with suppress(OSError):
                os.utime(file.path)
