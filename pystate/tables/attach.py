"""Attaching a task to a table that is at exactly the epoch that the manifest says.

A shared table is a cache of what the files hold. An attach demands the id that the base names. A
table that is at another id is undone to it, caught up with it by the newer deltas, or discarded and
restored. If the table cannot be had at all (another process holds its lock for too long, this
process uses it already, it cannot be mapped), the task works on a private replica, restored from
the same files: the result is the same, and the shared table catches up later.

After a change of parallelism a table is filled from the tables of the old ranges that this host
has, as far as they are at the base, and from files for the rest. So key groups that stay on a host
are not read again.

Thread safety: `TableCache` may be used by any thread; an `Attachment` belongs to its task.

Invariants
----------
1. When an attachment is handed out, its table is at exactly the base's id.
2. A lock is never stolen from a live holder, and no task waits for itself.
3. A table that a failed task leaves behind is rolled back before its lock is released; if that
   fails, the table is closed and forgotten instead.
4. A table that is filled is empty, and nobody else had it since that was found.
5. Tables that no task uses keep a bounded number of files open, and none that was removed for
   longer than until the next attach; tables of another parallelism are let go of.
6. The tables of old ranges are only read. They go when there is no room for the new ones beside
   them, which then come from files, or in a later epoch (`pystate.tables.upkeep`).
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Literal, TypeAlias

from pystate._core.core import range_bounds
from pystate.checkpoint.refs import EMPTY_ID, FileRef, RangeSource, RangeState
from pystate.checkpoint.state_files import EMPTY_LINEAGE
from pystate.errors import (
    AddressSpaceError,
    CorruptFileError,
    InUseError,
    MemoryLimitError,
    NoSpaceError,
    PystateError,
    SystemCallError,
    TableBusyError,
    TableMismatchError,
)
from pystate.redaction import logger
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.host import TableHome
from pystate.tables.hot_keys import HotKeys
from pystate.tables.janitor import remove_table
from pystate.tables.range_files import begin_at, can_catch_up, catch_up, put_above
from pystate.tables.recovery import (
    TableSpec,
    apply_files,
    load_files,
    new_backend,
    seal_as_base,
)

_LOG = logger("pystate.tables.attach")

#: So often it is looked at all mapped tables, whether another process has discarded their files.
_STALE_PERIOD_S = 5.0
#: So many files of the state may be open for tables that no task uses, in which rows are looked up.
_MOST_IDLE_FILES = 256
_UNDO_WINDOW = 3
# Errors that make a shared table unusable here, while a private replica may still work.
_UNUSABLE_HERE = (
    TableMismatchError,
    AddressSpaceError,
    NoSpaceError,
    SystemCallError,
    FileNotFoundError,  # the folder was removed
)

How: TypeAlias = Literal[
    "current", "undone", "caught up", "copied", "restored", "opened", "replica"
]
_Key: TypeAlias = "tuple[str, str, str, int, int, str]"


class Attachment:
    """A task's hold on a table; release it in every case."""

    def __init__(
        self,
        backend: KeyedStateBackend,
        how: How,
        *,
        files: int = 0,
        rows: int = 0,
        copied: int = 0,
        reason: str = "",
        entry: _Entry | None = None,
    ) -> None:
        #: At the base's id; its open epoch is the task's.
        self.backend = backend
        #: How the table was brought to the base; "copied" if no file was read for it, "opened" if
        #: it is empty, above files in which its rows are looked up.
        self.how = how
        #: Files and records that were applied for it, and records from tables of another
        #: parallelism.
        self.files, self.rows, self.copied = files, rows, copied
        #: Why it is a replica; empty if it is not one.
        self.reason = reason
        #: Of the attach, including the wait for the lock.
        self.duration_ns = 0
        self._entry = entry
        self._released = False

    def release(self) -> None:
        """Undo what was not sealed, and release the table. Does nothing the second time."""
        if self._released:
            return
        self._released = True
        entry = self._entry
        if entry is None:
            with suppress(InUseError):
                self.backend.close()
            return
        try:
            if self.backend.below.on_disk:
                entry.end_task()
            if entry.shared:
                self.backend.detach()
            else:
                self.backend.rollback()
        except PystateError as error:
            _LOG.warning("a table could not be released, and is closed: %s", error)
            entry.discard()
        entry.in_use = False

    def warm(self, most_s: float) -> int:
        """Bring rows that were used most before a table on disk began anew; return how many keys.

        It takes about so many seconds at most, no memory that anything else needs, and raises
        nothing. Their rows stay with those of the open epoch.
        """
        entry = self._entry
        return 0 if entry is None or entry.hot is None else entry.hot.warm(most_s)

    def used(self, rows: int) -> None:
        """Say how many rows a task has changed or looked up, when its table is sealed.

        From time to time those that are used most are written down; see `pystate.tables.hot_keys`.
        """
        if self._entry is not None and self._entry.hot is not None:
            self._entry.hot.used(rows)

    @property
    def path(self) -> str | None:
        """The table's file, if it is shared with other processes."""
        return None if self._entry is None else self._entry.path

    def move(self, home: TableHome) -> None:
        """Give up a shared table that has outgrown its file system, and have it put elsewhere.

        Unsealed changes are lost; the sealed state is restored there from files. `OSError`: the
        move could not be written down.
        """
        entry = self._entry
        assert entry is not None and entry.path is not None and not self._released
        self._released = True
        entry.discard(unlink=True)
        entry.in_use = False
        home.leave(entry.path)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        # A task that was cut short must not keep the lock for as long as its process lives.
        if not getattr(self, "_released", True):
            with suppress(Exception):
                self.release()


class _Entry:
    """A table that this process keeps mapped between tasks."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.backend: KeyedStateBackend | None = None
        self.file: tuple[int, int] | None = None
        self.in_use = False
        #: Of a table on disk that a task has had.
        self.hot: HotKeys | None = None

    @property
    def shared(self) -> bool:
        return self.path is not None

    @property
    def is_stale(self) -> bool:
        """Whether another process has discarded the file that this one maps."""
        return self.backend is not None and self.file != _file_id(self.path)

    def is_of(self, path: str | None, on_disk: bool) -> bool:
        """Whether a job whose rows are there may use it; one before may have had another home."""
        is_as_wanted = self.backend is None or self.backend.below.on_disk == on_disk
        return self.path == path and is_as_wanted

    def end_task(self) -> None:
        """Note what has become of a table on disk, and keep the rows that came from files."""
        assert self.backend is not None
        below = self.backend.below
        if below.is_new_file:
            self.file, below.is_new_file = _file_id(self.path), False
        below.keep()
        # A stack holds its files open, whoever lets go of them.
        below.rest()

    def close_files(self, idle: int) -> int:
        """Close those that were removed, or all, if with these more are open than `idle` may be.

        Returns how many stay open.
        """
        if self.backend is None:
            return 0
        below = self.backend.below
        below.close_files(removed=True)
        if below.open_files > idle:
            below.close_files()
        return below.open_files

    def renew(self, spec: TableSpec, base: RangeState) -> KeyedStateBackend:
        """Put an empty table in the place of one whose lock is held.

        The lock is held all along: whatever another process had made in between would be filled
        over.
        """
        backend = new_backend(spec, base, self.path)
        if self.backend is not None and self.shared:
            self.backend.give_way(backend)
        self.discard()
        backend.open()
        self.backend, self.file = backend, _file_id(self.path)
        return backend

    def discard(self, *, unlink: bool = False) -> None:
        """Close the table; `unlink` also removes its file."""
        if unlink and self.path is not None and not self.is_stale:
            with suppress(OSError):
                os.unlink(self.path)
        backend, self.backend, self.file, self.hot = self.backend, None, None, None
        if backend is not None:
            with suppress(InUseError):
                backend.close()


class TableCache:
    """The tables that this process has mapped; one per process is enough: `tables`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}
        self._reset()

    def _reset(self) -> None:
        # Those that may have open files, the last used one at the end.
        self._with_files: dict[_Entry, None] = {}
        # Of each operator, when tables of another one were let go of.
        self._parallelism: dict[tuple[str, str, str], int] = {}
        self._checked_s = time.monotonic()

    def attach(self, spec: TableSpec, base: RangeState) -> Attachment:
        """Attach to a range's table at exactly the base's id; errors are those of `load_files`."""
        return self._attach_timed(spec, base, reads=False)

    def attach_to_read(self, spec: TableSpec, base: RangeState) -> Attachment:
        """Attach to a range's table to read the base, with the arguments and errors of `attach`.

        A table that is ahead of the base is left as it is: its range's own task may have sealed it
        in this very epoch. It is read from files then.
        """
        return self._attach_timed(spec, base, reads=True)

    def _attach_timed(self, spec: TableSpec, base: RangeState, *, reads: bool) -> Attachment:
        start = time.perf_counter_ns()
        attachment = self._attach(spec, base, reads)
        if attachment.reason:
            _LOG.info("operator %r: private replica: %s", spec.operator.uid, attachment.reason)
        attachment.duration_ns = time.perf_counter_ns() - start
        return attachment

    def _attach(self, spec: TableSpec, base: RangeState, reads: bool) -> Attachment:
        reason = "another task of this process uses the table"
        try:
            entry = self._reserve(spec, base)
        except OSError as error:
            entry, reason = None, f"no folder for tables: {error}"
        if entry is None:
            return _replica(spec, base, reason)
        try:
            return self._attach_entry(entry, spec, base, reads)
        except TableBusyError as error:
            entry.in_use = False
            return _replica(spec, base, str(error))
        except (MemoryLimitError, CorruptFileError) as error:
            entry.discard()
            entry.in_use = False
            if not _remove_sources(spec, base, error):
                raise
        except _UNUSABLE_HERE as error:
            entry.discard(unlink=True)
            entry.in_use = False
            path = entry.path
            full = isinstance(error, NoSpaceError)
            if not (full and _remove_sources(spec, base, error)):
                if not full or path is None or not spec.home.has_room_beside(path):
                    return _replica(spec, base, str(error))
                spec.home.leave(path)
                _LOG.warning(
                    "operator %r: a table does not fit into %s: %s", spec.operator.uid, path, error
                )
        except BaseException:
            entry.discard()
            entry.in_use = False
            raise
        return self._attach(spec, base, reads)

    def _attach_entry(
        self, entry: _Entry, spec: TableSpec, base: RangeState, reads: bool
    ) -> Attachment:
        backend = _lock_table(entry, spec, base)
        if reads and _has_left(backend, base):
            Attachment(backend, "current", entry=entry).release()
            return _replica(spec, base, "the table has left the state that is to be read")
        attachment = _catch_up(backend, spec, base, entry)
        if attachment is None:
            # One without a name may be what a task left that was killed in its first epoch.
            if backend.lineage() != EMPTY_LINEAGE or backend.below.are_any:
                backend = entry.renew(spec, base)
            attachment = self._fill(backend, spec, base, entry)
        if backend.below.on_disk and entry.hot is None:
            entry.hot = HotKeys(spec.storage, spec.operator.uid, backend)
        if attachment.how == "opened" and entry.hot is not None:
            entry.hot.begin(base)
        return attachment

    def _fill(
        self, backend: KeyedStateBackend, spec: TableSpec, base: RangeState, entry: _Entry
    ) -> Attachment:
        """Fill an empty table from tables of another parallelism, and from files."""
        if backend.below.on_disk:
            return Attachment(backend, "opened", files=begin_at(backend, spec, base), entry=entry)
        sources = base.sources
        # Held deltas go on top of what all sources have.
        if not sources or not base.files or base.held:
            rows = apply_files(backend, spec, base, base.files)
            return Attachment(backend, "restored", files=len(base.files), rows=rows, entry=entry)
        files = rows = copied = 0
        for source in sources:
            records = self._copy(backend, spec, source) if entry.shared else None
            if records is None:
                rows += load_files(backend, spec, base, source.files)
                files += len(source.files)
            else:
                copied += records
        seal_as_base(backend, spec, base)
        how: How = "restored" if files else "copied"
        return Attachment(backend, how, files=files, rows=rows, copied=copied, entry=entry)

    def _copy(self, backend: KeyedStateBackend, spec: TableSpec, source: RangeSource) -> int | None:
        """Copy rows from an old range's table; None if it is not here, or not at the base."""
        path = _path_of(spec, source.range)
        if source.range.id == EMPTY_ID or path is None or not os.path.exists(path):
            return None
        entry = self._reserve(spec, source.range)
        if entry is None:
            return None
        try:
            old = _lock_table(entry, spec, source.range)
            if old.lineage() == EMPTY_LINEAGE:  # it was removed just now, and made again
                raise FileNotFoundError(path)
            attachment = _catch_up(old, spec, source.range, entry)
        except TableBusyError:
            entry.in_use = False
            return None
        except _UNUSABLE_HERE:
            entry.discard(unlink=True)
            entry.in_use = False
            return None
        if attachment is None:
            entry.in_use = False
            return None
        with attachment:
            if spec.heartbeat is not None:
                spec.heartbeat()
            return backend.copy_from(old, *source.bounds)

    def keep_ranges(self, spec: TableSpec, parallelism: int) -> None:
        """Let go of an operator's tables of another parallelism, but for those in use.

        With them go the files that they hold open. O(tables) where the parallelism has changed.
        """
        operator = _operator_key(spec)
        with self._lock:
            if self._parallelism.get(operator) == parallelism:
                return
            self._parallelism[operator] = parallelism
            groups = spec.operator.max_parallelism
            ranges = {range_bounds(i, groups, parallelism) for i in range(parallelism)}
            for key, entry in list(self._entries.items()):
                if key[:3] == operator and key[3:5] not in ranges and not entry.in_use:
                    entry.discard()
                    self._with_files.pop(entry, None)
                    del self._entries[key]

    def close(self) -> None:
        """Unmap all tables that no task uses."""
        with self._lock:
            for entry in self._entries.values():
                if not entry.in_use:
                    entry.discard()
            self._entries = {key: e for key, e in self._entries.items() if e.in_use}
            self._with_files = {e: None for e in self._with_files if e.in_use}

    def forget(self) -> None:
        """Drop everything without touching it: for a forked child, to which none of it belongs."""
        self._lock = threading.Lock()
        self._entries = {}
        self._reset()

    def _discard_stale(self) -> None:
        # A mapping keeps a discarded file's memory, which nobody will use again. Not at each
        # attach, so that a task of one range does not take longer the more ranges there are.
        now_s = time.monotonic()
        if now_s - self._checked_s < _STALE_PERIOD_S:
            return
        self._checked_s = now_s
        for other in self._entries.values():
            if not other.in_use and other.is_stale:
                other.discard()

    def _close_files(self) -> None:
        idle = _MOST_IDLE_FILES
        for entry in reversed(list(self._with_files)):
            if entry.in_use:
                continue
            kept = entry.close_files(idle)
            idle -= kept
            if not kept:
                del self._with_files[entry]

    def _reserve(self, spec: TableSpec, base: RangeState) -> _Entry | None:
        fingerprint = spec.operator.fingerprint(base.since)
        key = (*_operator_key(spec), *base.bounds, fingerprint)
        with self._lock:
            self._discard_stale()
            self._close_files()
            path = _path_of(spec, base)
            entry = self._entries.get(key)
            if entry is None or not entry.is_of(path, spec.options.on_disk):
                if entry is not None and entry.in_use:
                    return None
                if entry is not None:
                    entry.discard()
                entry = self._entries[key] = _Entry(path)
            if entry.in_use:
                return None
            entry.in_use = True
            if spec.options.on_disk:
                self._with_files.pop(entry, None)
                self._with_files[entry] = None
            return entry


#: The tables of this process.
tables = TableCache()
os.register_at_fork(after_in_child=tables.forget)


def _remove_sources(spec: TableSpec, base: RangeState, error: Exception) -> bool:
    """Remove the tables that the base would be copied from; return whether there were any."""
    any_removed = False
    for source in base.sources:
        path = _path_of(spec, source.range)
        if path is not None and os.path.exists(path):
            remove_table(path)
            any_removed = True
    if any_removed:
        _LOG.warning("operator %r: read from files: %s", spec.operator.uid, error)
    return any_removed


def _operator_key(spec: TableSpec) -> tuple[str, str, str]:
    identity = spec.home.identity
    application = "" if identity is None else identity.application.hex()
    return spec.storage.uri, application, spec.operator.uid


def _path_of(spec: TableSpec, base: RangeState) -> str | None:
    """The file of a range's table, whether it exists or not."""
    fingerprint = spec.operator.fingerprint(base.since)
    return spec.home.table_path(spec.operator.uid, *base.bounds, fingerprint)


def _lock_table(entry: _Entry, spec: TableSpec, base: RangeState) -> KeyedStateBackend:
    """Take the table's lock, opening or creating the table if it is not mapped."""
    if entry.backend is not None:
        try:
            if entry.shared:
                entry.backend.attach(spec.options.lock_timeout_ms)
            return entry.backend
        except TableMismatchError:
            entry.discard()
    try:
        return _open(entry, spec, base)
    except TableMismatchError as error:
        _LOG.warning("a shared table is discarded: %s", error)
        if entry.path is not None:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
        return _open(entry, spec, base)


def _open(entry: _Entry, spec: TableSpec, base: RangeState) -> KeyedStateBackend:
    backend = new_backend(spec, base, entry.path)
    backend.open()
    entry.backend, entry.file = backend, _file_id(entry.path)
    return backend


def _catch_up(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, entry: _Entry
) -> Attachment | None:
    """Bring a table to the base by undoing and catching up; None if only a restore helps."""
    on_disk = backend.below.on_disk
    if backend.below.are_any and (base.id == EMPTY_ID or not on_disk):
        return None  # a task that failed had rows leave, or a job whose tables are on disk
    if base.sources and backend.lineage() == EMPTY_LINEAGE:
        return None
    for back in range(_UNDO_WINDOW):
        lineage = backend.lineage(back)
        if lineage is None:
            return None
        deltas = base.deltas_after(lineage.id.hex())
        if deltas is None:
            continue
        how: How = "undone" if back else "current"
        if deltas:
            how = "restored" if lineage == EMPTY_LINEAGE else "caught up"
        if on_disk:
            return _catch_up_on_disk(backend, spec, base, entry, back, deltas, how)
        if back:
            backend.rollback(back)
        rows = apply_files(backend, spec, base, deltas)
        return Attachment(backend, how, files=len(deltas), rows=rows, entry=entry)
    return None


def _catch_up_on_disk(
    backend: KeyedStateBackend,
    spec: TableSpec,
    base: RangeState,
    entry: _Entry,
    back: int,
    deltas: tuple[FileRef, ...],
    how: How,
) -> Attachment | None:
    """Bring what a table has in memory to the base; None if it is best to begin anew."""
    if how == "restored" or (deltas and not can_catch_up(backend, spec, base, deltas)):
        return None  # files have all of it
    if back:
        backend.below.roll_back(back)
    try:
        rows = catch_up(backend, spec, base, deltas)
        put_above(backend, spec, base)
    except MemoryLimitError:
        # With another home or limit it was larger than it may be now; or others have made its rows
        # larger. Files have it all.
        backend.below.roll_back(0)
        return None
    return Attachment(backend, how, files=len(deltas), rows=rows, entry=entry)


def _has_left(backend: KeyedStateBackend, base: RangeState) -> bool:
    """Whether a table holds sealed state that does not lead to the base."""
    lineage = backend.lineage()
    if lineage is None or lineage == EMPTY_LINEAGE:
        return False
    return base.deltas_after(lineage.id.hex()) is None


def private_table(spec: TableSpec, base: RangeState) -> tuple[KeyedStateBackend, int]:
    """Return a table of this process with what the base's files hold, and the number of records.

    Errors are those of `load_files`.
    """
    backend = new_backend(spec, base, None)
    try:
        if backend.below.on_disk:
            begin_at(backend, spec, base)
            return backend, 0
        rows = apply_files(backend, spec, base, base.files)
    except BaseException:
        backend.close()
        raise
    return backend, rows


def _replica(spec: TableSpec, base: RangeState, reason: str) -> Attachment:
    backend, rows = private_table(spec, base)
    return Attachment(backend, "replica", files=len(base.files), rows=rows, reason=reason)


def _file_id(path: str | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
