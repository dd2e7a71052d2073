"""The rows of a table on disk that lie in files: which files, what is in memory of them, all rows.

Rows leave memory only when files have what changed of them. A store, or whoever else seals
epochs, makes deltas durable and says so by `RowsBelow.set_files`. In the middle of what its user
sees as one epoch it is asked for that by a *step*, see `RowsBelow.step_by`.

Which files are wanted is kept apart from those in which the table looks. `RowsBelow.place` makes
them the same, or raises; whatever needs the files comes by there. So a file that cannot be opened
now makes uses fail that need it, and no row is taken for absent. A table that is made anew above
files is closed again where that fails, and its next use makes it again.

Thread safety: as the backend whose rows they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from pystate._core import core
from pystate.checkpoint.state_files import (
    EMPTY_LINEAGE,
    FileIdentity,
    FileInfo,
    FileSchema,
    Lineage,
    Source,
    claim,
    is_expected,
    merge_files,
    open_file,
)
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import (
    CheckpointError,
    InvalidArgumentError,
    LineageError,
    MemoryLimitError,
    SchemaError,
)
from pystate.state.columns import LIST, TIME, core_schema
from pystate.state.declaration import State
from pystate.state.expiring import Expiring
from pystate.state.handle import Objects
from pystate.state.key_batch import KeyBatch, walked
from pystate.state.operator_spec import declared_fills
from pystate.tables.below import (
    PLAIN,
    SCAN_BYTES,
    SCAN_ROWS,
    AnyFile,
    FileBelow,
    FilesBelow,
    Part,
    gathered,
    has_rows_of,
    key_arrays,
    schema_in_files,
    state_array,
    written,
)
from pystate.tables.host import guide_prefix
from pystate.tables.loading import apply_file
from pystate.tables.options import DiskStats, TableOptions
from pystate.tables.registry import StateRegistry
from pystate.tables.snapshots import FilesReader, Snapshot
from pystate.tables.timers import Places, Timers
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

#: Deltas of tables on disk have changed rows whole up to this size, so that a look at the newest
#: file with a key is the last one.
WHOLE_ROWS_BYTES = 512
#: The last time before which a table can be said to have no timer.
_LAST_PASSED = (1 << 63) - 2
#: Memory of a table of which nobody says how much it may have.
_USUAL_BYTES = 256 << 20


class Owner(Protocol):
    """What a backend gives to its rows below; see `KeyedStateBackend`."""

    key: KeyColumns
    namespace: StateType | None
    max_parallelism: int
    key_group_range: tuple[int, int]
    path: str | None
    _file: str | None
    _table: core.Table
    _states: StateRegistry
    _timers: Timers
    _options: TableOptions
    _clock: dict[str, tuple[int | None, ...]]

    @property
    def declarations(self) -> Mapping[str, State[Any]]: ...  # noqa: D102
    @property
    def dirty(self) -> bool: ...  # noqa: D102
    @property
    def arrow_schema(self) -> pa.Schema: ...  # noqa: D102

    def open(self) -> None: ...  # noqa: D102
    def exported(self, keys: KeyBatch) -> pa.RecordBatch: ...  # noqa: D102
    def _seal(self, name: Lineage, wanted: bool, goes_on: bool = False) -> core.Sealed | None: ...
    def _sweep(self) -> int: ...
    def _flush(self) -> None: ...
    def _flush_one(self, kept: Objects) -> None: ...
    def _discard(self) -> None: ...
    def _drop_read(self) -> None: ...
    def _key_types(self) -> list[StateType]: ...


class _Counts:
    """What a table counts, added up over its stacks of files and over tables made anew."""

    _TABLE = 3  # the first ones are the table's, the others its stack's

    def __init__(self, table: core.Table) -> None:
        self._table = table
        self._last: tuple[int, ...] = (0,) * 9
        self._total: tuple[int, ...] = (0,) * 9

    def note(self) -> tuple[int, ...]:
        """Add up what was counted since the last time.

        Returns what `pst_fetch_stats` has, and then the first six of `pst_stack_stats`.
        """
        if not self._table.is_open:
            return self._total
        now = (*self._table.fetch_stats(), *(self._table.stack_stats() or (0,) * 6)[:6])
        pairs = zip(now, self._last, strict=True)
        news = [n - last if n >= last else n for n, last in pairs]
        self._total = tuple(t + new for t, new in zip(self._total, news, strict=True))
        self._last = now
        return self._total

    def begin_stack(self) -> None:
        """Another stack was set, which counts from nothing."""
        self._last = (*self._last[: self._TABLE], *(0,) * (len(self._last) - self._TABLE))

    def begin(self) -> None:
        """Forget what was counted."""
        self.note()
        self._total = (0,) * len(self._total)


class RowsBelow:
    """The files below a backend's table; `KeyedStateBackend.below` is it.

    Attributes
    ----------
    files : tuple of FileBelow
        In which rows are looked up, oldest first: those that are wanted.
    """

    def __init__(self, backend: Owner, on_disk: bool) -> None:
        #: Whether they may leave memory.
        self.on_disk = on_disk
        #: How many rows have left.
        self.left = 0
        self._counts = _Counts(backend._table)
        #: Whether a shared table was made anew, in another file; whoever asks says False then.
        self.is_new_file = False
        self._backend = backend
        self._table = backend._table
        self._wanted = self._placed = FilesBelow()
        self._lineage = EMPTY_LINEAGE  # of the epoch that the wanted ones have
        self._file_schema: FileSchema | None = None
        self._may_step: Callable[[], None] | None = None
        self._steps = 0  # of the open epoch
        self._target_bytes = 0
        self._full = 0  # while there are fewer rows, none need to leave after a checkpoint
        self._say_files: Callable[[], Sequence[FileBelow]] | None = None
        self._say_changed: Callable[[int], Iterator[KeyBatch]] | None = None
        # An epoch, and for each domain a place before which no key has a timer then.
        self._passed: tuple[Lineage, Places] | None = None
        if on_disk:
            self._table.on_room(self._make_room, self.place, self._place_anew)

    @property
    def files(self) -> tuple[FileBelow, ...]:  # noqa: D102
        return self._wanted.named

    @property
    def guides(self) -> str | None:
        """How the paths of copies of guides begin, beside a table that several processes have.

        So they are made once for a file and a host, in a folder that is private, and count as
        tables do.
        """
        file = self._backend._file
        if file is None:
            return None
        return os.path.join(os.path.dirname(file), guide_prefix(self._backend.key_group_range))

    @property
    def room_bytes(self) -> int:
        """How much memory the table may have alone: its limit, or its target; 0: neither."""
        return self._backend._options.limit_bytes or self._target_bytes

    @property
    def is_too_large(self) -> bool:
        """Whether it has more than twice its target, as that was another one, or its home was."""
        return 0 < self._target_bytes < self._table.stats()[8] // 2

    @property
    def waiting_bytes(self) -> int:
        """How large the objects may be that wait to be written."""
        return (self.room_bytes or _USUAL_BYTES) // 16

    def most_keys(self, most: int, each: int = 1) -> int:
        """How many keys, at most so many, can be used together: their rows are in memory at once.

        `each` says how many rows are looked up for a key. A quarter of what fits, reckoned by the
        rows that are here, is left for what is written, and to rows that are larger.
        """
        if not self.on_disk:
            return most
        self._backend.open()
        # Those that are here can leave, if need be after a step.
        fits = self._table.stats()[0] + self._table.room(4 * most * each)[0]
        return max(min(most, fits // (4 * each)), 1)

    def write_objects_early(self) -> None:
        """Have objects of a table on disk written before too many wait for its memory."""
        for objects in self._backend._states.objects if self.on_disk else ():
            objects.write_early(partial(self._backend._flush_one, objects), self.waiting_bytes)

    def set_target(self, target_bytes: int) -> None:
        """Have the table grow only up to so many bytes, from which on rows leave.

        They are its share of what all tables have, whose limit binds it besides. One with a limit
        of its own has no target.
        """
        if self._backend._options.limit_bytes or target_bytes == self._target_bytes:
            return
        self._target_bytes = target_bytes
        self.write_objects_early()
        if self._table.is_open:
            self._table.set_target(target_bytes)

    def set_files(self, files: Sequence[AnyFile], *, all_known: bool = False) -> None:
        """Say which files hold what the last sealed epoch has, so that rows may leave memory.

        Only those are opened that are not open, as whoever looks into a file shares it.

        Parameters
        ----------
        files : sequence of (path, first key group, last key group[, ObjectFile])
            Oldest first; each counts for these key groups, both inclusive. All have guides and the
            table's own columns. They may go while they are in use: they stay open.
        all_known : bool
            Whether the files have only rows that this table has had: it then has all of them in
            memory still, if it had before. Without it rows that are not here are looked for there.

        Raises
        ------
        CheckpointError, CorruptFileError, NewerFormatError, SchemaError, SystemCallError
            A file cannot be used; the message names it. Each use that needs the files tries again.
        MemoryLimitError
            There is no room for what is kept of a file in memory; likewise.
        """
        self._backend.open()
        last = self._table.lineage(0)
        assert last is not None
        self._wanted, self._lineage = FilesBelow(files, self._wanted), Lineage(*last)
        self._place(all_known)

    def keep_files(self, *, all_known: bool = False) -> None:
        """As `set_files`, of those that are wanted; open ones count, whatever is at their paths."""
        self._backend.open()
        last = self._table.lineage(0)
        assert last is not None
        self._lineage = Lineage(*last)
        self._place(all_known)

    def _place(self, all_known: bool) -> None:
        if self.files and not all_known:
            self._table.set_whole(False)
        self.place()

    def place(self) -> None:
        """Have the table look in the files that are wanted, or raise as `set_files` does.

        `CheckpointError` if nobody has said which file has the last sealed epoch.
        """
        self._backend.open()
        if not self._are_of_last_epoch():
            if self._say_files is None:
                raise CheckpointError(
                    f"{self._table.where}: rows of the last sealed epoch are in no file that is "
                    "below the table: write its snapshot, and call below.set_files"
                )
            self.set_files(self._say_files(), all_known=True)
        elif self._placed is not self._wanted:
            self._set_stack()

    def _place_anew(self) -> None:
        """As `place`, of files that are opened once more, as the open ones are of no use."""
        self._wanted.renew(self._core_schema(), self._backend.max_parallelism, self.guides)
        self._placed = FilesBelow()
        self.place()

    def opens(self, file: FileBelow, expected: FileIdentity) -> bool:
        """Whether a file can be opened for look-ups as it is, and is the expected one.

        It stays open for `set_files`. False: `check_files` and `has_rows_of` say what it is.
        """
        self._backend.open()
        try:
            opened = self._wanted.open_ahead(
                file, self._core_schema(), self._backend.max_parallelism, self.guides
            )
        except (CheckpointError, SchemaError):
            return False
        return is_expected(FileInfo(*opened.info()), expected)

    def _set_stack(self) -> None:
        wanted = self._wanted
        stack = wanted.stack(self._core_schema(), self._backend.max_parallelism, self.guides)
        self._counts.note()
        self._table.set_stack(stack, self._lineage)
        self._counts.begin_stack()
        self._placed = wanted

    def _are_of_last_epoch(self) -> bool:
        return self._table.lineage(0) == self._lineage

    def reset(self, lineage: Lineage | None, files: Sequence[FileBelow]) -> None:
        """Forget all that is in memory, and have what files hold as the last sealed epoch.

        Handles stay valid; batches and readers do not. The files are opened by the table's next
        use, which raises if that cannot be, and so does each one after it.

        Raises
        ------
        InUseError
            Another thread uses a reader of the table; nothing has changed.
        """
        self._reopen()
        self._backend._discard()
        self._wanted = FilesBelow(files, self._wanted)
        self._lineage = EMPTY_LINEAGE if lineage is None else lineage

    def begin(self) -> None:
        """Put a table that was just opened above the files, or close it again and raise."""
        if not self.on_disk:
            return
        try:
            self._table.set_whole_rows(WHOLE_ROWS_BYTES)
            self._table.set_steps(True)
            if self._target_bytes:
                self._table.set_target(self._target_bytes)
            if self._backend._clock:
                processing, event = self._times()
                self._table.set_clock(processing, *event)
            if self.files:
                self._table.set_whole(False)
                if self._passed is not None and self._passed[0] == self._lineage:
                    # Files name timers still that were fired, or deleted, before that place.
                    self._backend._timers.set_passed(self._passed[1])
            if self._lineage != EMPTY_LINEAGE:
                # Which batches have ended was said when the table was closed.
                self._table.seal(*self._lineage, wanted=False, goes_on=True)
            self._set_stack()
        except BaseException:
            self._reopen(True)
            raise

    def begin_at(
        self,
        lineage: Lineage,
        files: Sequence[FileBelow],
        next_timers: tuple[int | None, int | None] | None = None,
    ) -> None:
        """As `reset`, of a table that was just made, and is empty; opens the files.

        `next_timers` says for each domain from when on keys may have timers; None: none has. What
        files say of earlier ones is then passed over: these were fired, or deleted.
        """
        self._backend.open()
        self._wanted, self._lineage = FilesBelow(files, self._wanted), lineage
        if next_timers is not None and self._backend._states.has_timers:
            times = (_LAST_PASSED if time is None else time for time in next_timers)
            self._passed = lineage, tuple((min(time, _LAST_PASSED), 0, 0) for time in times)
        self.begin()

    @property
    def takes_deltas(self) -> bool:
        """Whether rows that are in memory can be brought up to date with deltas that others made.

        Of a list whose items expire a merge may have left out all, and it then begins anew.
        """
        columns = self._backend._states.columns
        return not any(a.kind == LIST and b.kind == TIME for a, b in pairwise(columns))

    def take_delta(self, file: Source, expected: FileIdentity, since: Mapping[str, int]) -> int:
        """Apply a delta that others made to the rows in memory; return how many records it has.

        All since the last sealed epoch are given, oldest first, in an epoch of their own. Then it
        is sealed under the last one's name, and `set_files` follows. Errors are those of `load`.
        """
        self._backend.open()
        return apply_file(
            self._table,
            file,
            self._backend.key_group_range,
            expected,
            (
                self._backend.key,
                self._backend.namespace,
                self._backend._states.columns,
                self._backend.max_parallelism,
            ),
            True,
            since,
        )

    def keep(self) -> None:
        """Have rows that came from files stay for whoever has the table next.

        Otherwise they go with the open epoch, which has changed nothing.
        """
        if not self._backend.dirty and self.files and self._are_of_last_epoch():
            self._backend._seal(self._lineage, wanted=False)

    @property
    def wanted(self) -> FilesBelow:
        """Those in which rows are looked up: another object once other ones are."""
        return self._wanted

    def rest(self) -> None:
        """Look in no file until `set_files` or the next use that needs them; they stay open."""
        self._table.set_stack(None)
        self._placed = FilesBelow()

    @property
    def open_files(self) -> int:
        """How many files are open, of those that are wanted."""
        return self._wanted.open_files

    def close_files(self, *, removed: bool = False) -> None:
        """Close the files of a table that rests, or those of them that were removed.

        Where they are wanted again, they are opened again.
        """
        self._wanted.close(removed=removed)

    def roll_back(self, back: int) -> None:
        """Undo the open epoch and some sealed ones; then the files of that epoch are to be set."""
        self._table.rollback(back)
        self._backend._discard()

    def _reopen(self, goes_on: bool = False) -> None:
        """Free all that is in memory; a shared table is made anew, before others can have it."""
        self._table.reopen(goes_on)
        self.is_new_file = self._backend._file is not None

    def close(self) -> None:
        """Let go of the files of a table that was closed."""
        self._wanted = self._placed = FilesBelow()
        self._may_step = self._say_files = self._say_changed = None

    def restore(
        self,
        files: list[Source],
        expected: list[FileIdentity | None],
        lineage: Lineage | None,
        allow_unclaimed_state: bool,
    ) -> int:
        """As `restore`; the rows stay in their files, or go into a base that is made of these."""
        paths = [os.fspath(file) for file in files if isinstance(file, (str, os.PathLike))]
        if len(paths) < len(files):
            raise InvalidArgumentError(
                "restore: rows of a table on disk stay in their files, so these are named by paths"
            )
        rows = self.check_files(files, expected, allow_unclaimed_state)
        if lineage is None:
            with open_file(files[-1]) as newest:
                lineage = Lineage(*newest.reader.lineage())
        made: str | None = None
        if not all(map(self.has_rows_of, files)):
            if self._backend.path is None:
                raise InvalidArgumentError(
                    f"restore: rows cannot be looked up in {paths[-1]} as it is, and is "
                    "first merged into a new base: say in which folder, by path="
                )
            made = self._merged(files, self._backend.path, lineage)
            paths = [made]
        bounds = self._backend.key_group_range
        try:
            self.reset(lineage, [FileBelow(path, *bounds) for path in paths])
            self._backend.open()
        except BaseException:
            self.reset(None, ())
            if made is not None:
                os.unlink(made)
            raise
        return rows

    def _merged(self, files: Sequence[Source], folder: str, lineage: Lineage) -> str:
        """Merge files into a durable base in a folder; returns its path."""
        storage, name = LocalStorage(folder), f"{os.urandom(16).hex()}.base"
        with storage.create(name) as out:
            self.merge(files, out, lineage)
        return storage.local_path(name)

    def check_files(
        self,
        files: Sequence[Source],
        expected: Sequence[FileIdentity | None],
        allow_unclaimed_state: bool = False,
        since: Mapping[str, int] | None = None,
    ) -> int:
        """Check that this table can have the files' rows, as `load` does; count their records."""
        self._backend.open()
        rows = 0
        if since is None:
            since = declared_fills(self._backend.declarations)
        for file, identity in zip(files, expected, strict=True):
            with open_file(file, identity) as opened:
                claim(
                    opened.reader,
                    self._backend.key,
                    self._backend.namespace,
                    self._backend._states.columns,
                    self._backend.max_parallelism,
                    allow_unclaimed_state,
                    since,
                )
                rows += FileInfo(*opened.reader.info()).rows
        return rows

    def has_rows_of(self, file: Source) -> bool:
        """Whether rows can be looked up in a file: it has a guide, and this table's columns."""
        self._backend.open()
        if self._file_schema is None:
            self._file_schema = schema_in_files(self._table)
        with open_file(file) as opened:
            return has_rows_of(opened, self._file_schema)

    def merge(
        self,
        files: Sequence[Source],
        out: BinaryIO,
        lineage: Lineage,
        since: Mapping[str, int] | None = None,
    ) -> FileInfo:
        """Merge files, oldest first, into one in which the rows of this table are looked up.

        It has the columns as they are declared now. What has expired by now is left out, and what
        has no time, as its state did not expire when it was written, lives from now on.

        `since` is that of `merge_files`, by default what the declarations say.
        """
        if since is None:
            since = declared_fills(self._backend.declarations)
        self._backend.open()
        own = written(self._table.changes())
        first, last = self._backend.key_group_range
        return merge_files(
            [*files, own],
            out,
            lineage=lineage,
            first_key_group=first,
            last_key_group=last,
            since=since,
            block_bytes=self._backend._options.guided_block_bytes,
            expiring=self.expiring(),
        )

    def step_by(
        self,
        step: Callable[[], None] | None,
        files: Callable[[], Sequence[FileBelow]] | None = None,
        changed: Callable[[int], Iterator[KeyBatch]] | None = None,
    ) -> None:
        """Have `step` called where rows have to leave and the open epoch has changes.

        It seals under another name by `seal_step`, makes that durable and calls `set_files`. If
        something failed before it did, `files()` is asked which files have the last sealed epoch;
        they have only rows that the table has had. `changed(most)` is asked which keys the epoch
        has changed, in batches, once there was a step: the table itself then does not know.
        """
        self._may_step, self._say_files, self._say_changed = step, files, changed
        self._table.may_step = step is not None

    def seal_step(self, lineage: Lineage) -> Snapshot:
        """As `seal`, in the middle of what the user sees as one epoch: key batches stay valid."""
        self._backend._sweep()
        sealed = self._backend._seal(lineage, wanted=True, goes_on=True)
        assert sealed is not None
        self._steps += 1
        return Snapshot(sealed, self._backend._options.guided_block_bytes)

    def hottest(self, most: int) -> list[pa.Array[Any]] | None:
        """The keys of the rows in memory that are used most, by column; None if there are none."""
        types = self._backend._key_types()
        keys = KeyBatch(self._table, None, types)
        try:
            return list(keys._columns()) if keys.take_hottest(most) else None
        finally:
            keys.close()

    def bring(self, arrays: Sequence[pa.Array[Any]]) -> bool:
        """Bring the rows of keys into memory, if they fit there with room for as much as is used.

        None leaves for them. Returns whether they are there. Errors are those of the keys' first
        use.
        """
        if self._table.is_whole or self._placed is not self._wanted or not self.files:
            return False
        keys = len(arrays[0])
        wanted = keys + self._table.stats()[0] // 8
        if self._table.room(wanted)[0] < wanted:
            return False
        batch = KeyBatch(self._table, arrays, self._backend._key_types())
        try:
            return batch.bring_if_fits()
        finally:
            batch.close()

    def leave_room(self, keys: int) -> None:
        """Let rows leave, if the table looks in files that have all of them, until so many fit.

        Where hardly any did last time, as all rows are in use, it is tried again when as many have
        come: each try looks at all rows. `MemoryLimitError`: not even leaving has room.
        """
        is_placed = self._placed is self._wanted and self._are_of_last_epoch()
        rows = self._table.stats()[0]
        if not is_placed or rows < self._full or self._table.room(keys)[0] >= keys:
            return
        self._full, before = 0, self.left
        if self._let_leave(keys) and self.left - before < keys // 8:
            self._full = self._table.stats()[0] + keys

    def _may_leave(self) -> bool:
        """Whether the files have all rows; the table then looks in them."""
        if self._table.dirty() or not self.files or not self._are_of_last_epoch():
            return False
        self.place()
        return True

    def _let_leave(self, keys: int) -> bool:
        if not self._may_leave():
            return False
        # Rows that came are a part of the open epoch, which has changed nothing.
        self._backend._seal(self._lineage, wanted=False, goes_on=True)
        self._table.settle()
        # Twice as many as are wanted, so that it is not soon to be done again.
        _, rows, size_bytes = self._table.room(2 * keys)
        self._miss_rows()
        wanted = max(1, rows, min(2 * keys, self._table.stats()[0] // 2))
        self.left += self._table.leave(wanted, size_bytes)[0]
        return True

    def _miss_rows(self) -> None:
        """Say that rows lie in files alone from now on; until then the table knows all timers."""
        if not self._table.is_whole:
            return
        timed = self._backend._states.has_timers
        passed = self._backend._timers.passed() if timed else ()
        self._table.set_whole(False)
        if timed:
            self._backend._timers.set_passed(passed)

    def sealed(self, lineage: Lineage) -> None:
        """Note where timers begin in the last sealed epoch, since which nothing has changed."""
        if self.on_disk and self._backend._states.has_timers:
            self._passed = lineage, self._backend._timers.passed()

    def _make_room(self, keys: int, fully: bool) -> bool:
        if self._may_step is not None and self._table.dirty():
            self._may_step()
        # What was undone may have left nothing but memory that was taken for other purposes.
        is_empty = not self.files and not self._table.dirty() and not self._table.stats()[0]
        if not fully:
            try:
                return self._let_leave(keys) or is_empty
            except MemoryLimitError:
                return True  # where not even leaving has room, a table that is made anew has all
        # The memory that a table once took for rows stays for rows. A new one takes what this batch
        # needs, for all purposes.
        if not is_empty and not self._may_leave():
            return False
        self.sealed(self._lineage)  # up to where timers were looked for since
        self._reopen(True)
        self._backend._drop_read()
        self._backend.open()
        return True

    def _core_schema(self) -> core.Schema:
        return core_schema(
            self._backend.key, self._backend.namespace, self._backend._states.columns
        )

    def rows(
        self, expiring: Expiring | None, *, counted: bool = False
    ) -> Iterator[tuple[int, list[Part]]]:
        """All rows in the files below and in memory, in parts, as `gathered` gives them."""
        self._backend._flush()
        self.place()
        bounds = self._backend.key_group_range
        with ExitStack() as opened:
            files = opened.enter_context(self._placed.scanned())
            if self._table.dirty():
                changes = opened.enter_context(open_file(written(self._table.changes())))
                files.append((changes.reader, bounds))
            room_bytes = self.room_bytes or SCAN_BYTES * 4
            yield from gathered(
                files,
                self._core_schema(),
                self._backend._states.columns,
                self._backend.max_parallelism,
                bounds,
                expiring,
                most_bytes=min(room_bytes // 4, SCAN_BYTES),
                counted=counted,
            )

    def _times(self) -> tuple[int | None, tuple[int | None, ...]]:
        """The clock: the processing time; the watermark and the event time."""
        clock = self._backend._clock
        return clock.get("processing", (None,))[0], clock.get("event", (None, None))

    def expiring(self) -> Expiring:
        """What has expired by now, for merges of the files into a base."""
        processing, event = self._times()
        return Expiring.of(self._backend.declarations, processing, *event)

    def count(self) -> int:
        """How many keys there are that have not expired: O(rows)."""
        return sum(rows for rows, _ in self.rows(self.expiring(), counted=True))

    def keys(self, most: int) -> Iterator[KeyBatch]:
        """All keys, in batches of as many as fit in memory; no more than `most`."""
        types = self._backend._key_types()
        for rows, parts in self.rows(self.expiring()):
            arrays = key_arrays(iter(parts), types)
            at = 0
            while at < rows:
                # As many as fit: who asks for all rows gets them in parts.
                fits = max(1, self._table.room(min(most, rows - at))[0])
                yield KeyBatch(self._table, [a.slice(at, fits) for a in arrays], types)
                at += fits

    def _exported_in_parts(self, arrays: list[pa.Array[Any]]) -> Iterator[pa.RecordBatch]:
        """As `exported`, of fewer keys at a time where the rows of all do not fit in memory."""
        rows = len(arrays[0])
        try:
            keys = KeyBatch(self._table, arrays, self._backend._key_types())
            keys.bring()  # once, for all states
            found = self._backend.exported(keys)
        except MemoryLimitError as error:
            if rows <= 1:
                raise
            at = max(1, min(rows // 2, error.keys or rows))
            yield from self._exported_in_parts([array[:at] for array in arrays])
            yield from self._exported_in_parts([array[at:] for array in arrays])
        else:
            yield found

    def exported_all(self, batches: Iterable[KeyBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of keys, as `KeyedStateBackend.exported` gives them, in parts that fit."""
        for keys in batches:
            yield from self._exported_in_parts(list(keys._columns()))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, as `KeyedStateBackend.to_batches` gives them."""
        if not all(type(d) in PLAIN for d in self._backend.declarations.values()) or any(
            type_.is_nested for type_ in self._backend._key_types()
        ):
            yield from self.exported_all(self.keys(SCAN_ROWS))
            return
        types = self._backend._key_types()
        places, at = {}, 0
        for name, declaration in self._backend.declarations.items():
            places[name] = at
            at += len(declaration.columns(name))
        for _, parts in self.rows(self.expiring()):
            given = iter(parts)
            arrays = key_arrays(given, types)
            for name, declaration in self._backend.declarations.items():
                arrays.append(
                    state_array(given, declaration, self._backend._states.columns[places[name]])
                )
            yield pa.RecordBatch.from_arrays(arrays, schema=self._backend.arrow_schema)

    def reader(self, files: Sequence[FileBelow], lineage: Lineage | None) -> FilesReader:
        """Return a reader of what files have, for this thread or another one."""
        self._backend.open()
        return FilesReader(
            FilesBelow(files, self._wanted),
            EMPTY_LINEAGE if lineage is None else lineage,
            self._backend.max_parallelism,
            self._backend.key_group_range,
            self._backend.key,
            self._backend.declarations,
            namespace=self._backend.namespace,
            timers=self._backend._states.has_timers,
        )

    @property
    def looked_up(self) -> int:
        """How many keys were looked for in files."""
        return self._counts.note()[1]

    def stats(self, estimated_keys: int) -> DiskStats:
        """What is in memory, and what was looked up; `estimated_keys` is what the files hold."""
        self._backend.open()
        asked, missed, came, _, files, lies, _, reads, size_bytes = self._counts.note()
        stack = self._table.stack_stats()
        keys = self._table.stats()[0]
        return DiskStats(
            rows_in_memory=keys,
            estimated_keys=max(keys, estimated_keys),
            cache_hits=max(0, asked - missed),
            cache_misses=missed,
            absent_keys=missed - came,
            files_asked=files,
            filter_lies=lies,
            reads=reads,
            read_bytes=size_bytes,
            guide_bytes=0 if stack is None else int(stack[8]),
            rows_left=self.left,
        )

    def count_anew(self) -> None:
        """Count from now on what is looked up and what leaves."""
        self.left = 0
        self._counts.begin()

    @property
    def are_any(self) -> bool:
        """Whether rows may lie in files alone."""
        self._backend.open()
        return not self._table.is_whole

    def ended(self) -> None:
        """The epoch, of which there may have been steps, was sealed or undone."""
        self._steps = 0

    def changed(self, most: int) -> Iterator[KeyBatch] | None:
        """The keys that the epoch has changed; None if there was no step: the table knows them."""
        self._backend.open()
        # There may be a first step in it, after which the table knows some of them no longer.
        self._backend._flush()
        if self._steps and self._say_changed is not None:
            return self._say_changed(most)
        self.refuse_steps("changed")
        return None

    def changed_so_far(self, most: int) -> Iterator[KeyBatch]:
        """The keys changed since the last step, without those whose objects wait to be written."""
        self._backend.open()
        return walked(self._table, most, self._backend._key_types(), changed=True)

    def refuse_steps(self, what: str) -> None:
        """Refuse what only a table can do that has all that the open epoch changed."""
        if self._steps:
            raise InvalidArgumentError(
                f"{what}: some of what the epoch changed had to leave memory, and is in files; "
                "seal the epoch more often, or raise limit_bytes"
            )

    def refuse_return(self, back: int) -> None:
        """Refuse to return over so many sealed epochs where files have the last one."""
        if back and self.files:
            raise LineageError(
                f"roll back over {back} sealed epochs: rows of the table are in files of the last "
                "one: call below.reset with the files of the other one"
            )

    def refuse(self, what: str) -> None:
        """Refuse what only a table that has all rows can do."""
        if self.are_any:
            raise InvalidArgumentError(
                f"{what}: rows of the table lie in files: it is filled by restore alone"
            )
