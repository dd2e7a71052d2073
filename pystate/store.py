"""`pystate.open`: a durable keyed store in a folder, without Spark.

The folder is a checkpoint like a job's: ``job.json``, manifests, one operator with one range. The
table itself is in memory; `Store.checkpoint` writes what changed since the last one and publishes
a manifest, and reopening restores that. With ``home="disk"`` the table has some of the rows, and
the others are looked up in the files of the checkpoint. If what changed since the last checkpoint
has to leave memory, too, it is written in *steps*: deltas that no manifest names before the next
checkpoint, and which are deleted after a crash or by `Store.rollback`.

Thread safety: a store belongs to one thread at a time. Only one process at a time may have it open.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pystate.base.arguments import choice, flag, folder_path, integer, mapping, shown
from pystate.base.folder_lock import FolderLock
from pystate.base.markup import bytes_shown, panel
from pystate.checkpoint.epoch_log import StoreChronicle
from pystate.checkpoint.job_file import (
    OperatorEntry,
    check_schemas,
    library,
    open_job,
    read_job,
    refuse_spark,
)
from pystate.checkpoint.leases import LEASES, LeaseBook
from pystate.checkpoint.locations import local_only
from pystate.checkpoint.manifest import Manifest, QueryProgress, is_published
from pystate.checkpoint.manifest_log import History, Retired
from pystate.checkpoint.refs import (
    EMPTY_ID,
    FileRef,
    OperatorState,
    RangeState,
    Schema,
    empty_range,
    state_path,
)
from pystate.checkpoint.size_tiers import steps_to_join
from pystate.checkpoint.state_files import Lineage, Source
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_beside import MergeBeside
from pystate.epochs.merge_policy import DiskMergePolicy, MergePolicy, Run
from pystate.epochs.merges import merge_range
from pystate.epochs.retention import delete_files, delete_retired, delete_unnamed
from pystate.errors import (
    ClosedError,
    InvalidArgumentError,
    MemoryLimitError,
    NoEventTimeError,
    NoSpaceError,
    PystateError,
)
from pystate.redaction import logger
from pystate.state.declaration import Defaults, State, Ttls
from pystate.state.evolution import same_content
from pystate.state.key_batch import KeyBatch
from pystate.state.operator_spec import begin_to_expire, declared_fills, in_files, stored_rules
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow
from pystate.tables.hot_keys import HotKeys, warming_s
from pystate.tables.options import DISK, DiskStats, TableStats
from pystate.tables.registry import refuse_pickled
from pystate.tables.sealed_delta import SealedDelta
from pystate.tables.snapshots import SealedReader
from pystate.types.keys import KeyLike

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logger("pystate.store")
_UID = "embedded"
_POLICY = MergePolicy(min_deltas=4, max_deltas=64, keep_deltas=0)
_DISK_POLICY = DiskMergePolicy(min_deltas=4, keep_deltas=0)
#: Deltas for which the disk has no room are kept in memory up to this part of the table's limit, or
#: of a limit of this size.
_HELD_PART, _USUAL_LIMIT_BYTES = 4, 256 << 20
#: Of files on disk that are as large together, or larger, a merge runs beside the next batches.
_BESIDE_BYTES = 16 << 20
#: The same of the first one after opening, which may be the last: a store that is closed after each
#: checkpoint would never end it.
_FIRST_BESIDE_BYTES = 256 << 20
#: A checkpoint brings hot rows if so much time has passed since the last one.
_LEAST_SINCE_S = 0.1


class Store:
    """A durable keyed store; `pystate.open` makes it.

    ``store["n"]`` is a state's handle. Changes after the last checkpoint are lost at `close`, as in
    a crash.

    Attributes
    ----------
    path : str
        The store's folder.
    set_current_key : callable
        ``set_current_key(key)`` makes a key current; a tuple if the key has several columns.

    Notes
    -----
    Checkpoints are incremental: each writes a delta of the keys and states that changed since the
    last one. When the deltas outweigh the base below them, the same call merges their files into a
    new base.
    """

    set_current_key: Callable[[Any], None]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: KeyLike,
        states: Mapping[str, State[Any]],
        max_parallelism: int | None = None,
        limit_bytes: int = 0,
        retained: int = 3,
        lock_timeout_ms: int = 0,
        allow_unclaimed_state: bool = False,
        allow_pickle: bool = True,
        clock: Callable[[], int] | None = None,
        home: Literal["heap", "disk"] = "heap",
    ) -> None:
        self.path = local_only(folder_path(path, "ps.open: path"), "ps.open: path")
        owner = f"the store {self.path}"
        self._closed = False
        self._process = os.getpid()
        if clock is not None and not callable(clock):
            raise InvalidArgumentError(
                f"{owner}: clock is a function that gives milliseconds since 1970, not "
                f"{shown(clock)}"
            )
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._retained = integer(retained, f"{owner}: retained", least=1)
        integer(lock_timeout_ms, f"{owner}: lock_timeout_ms", least=0)
        flag(allow_unclaimed_state, f"{owner}: allow_unclaimed_state")
        states = mapping(states, f"{owner}: states", "states={'n': ps.ValueState('long')}")
        self._pending: list[SealedDelta] = []
        self._merged: set[str] = set()  # files that the next manifest may name
        self._unnamed: set[str] = set()  # files that no manifest will name
        self._recorded: DiskStats | None = None  # what the history has told
        self._rebase = False
        self._unsynced = False
        self._beside: MergeBeside | None = None
        #: From how many bytes on merges run beside the next batches.
        self._beside_from = _FIRST_BESIDE_BYTES
        # Invalid arguments must not leave a folder behind.
        groups = 128 if max_parallelism is None else max_parallelism
        self.home = choice(home, f"{owner}: home", ("heap", DISK))
        self._on_disk = home == DISK
        self._converted = False
        self._limit_bytes = limit_bytes
        backend = partial(KeyedStateBackend, key, limit_bytes=limit_bytes, home=home, where=owner)
        backend(states=states, max_parallelism=groups)
        if not flag(allow_pickle, f"{owner}: allow_pickle"):
            refuse_pickled(states, owner)
        by_event = [n for n, s in states.items() if s.ttl is not None and s.ttl.time == "event"]
        if by_event:
            raise NoEventTimeError(
                f"{owner}: {', '.join(map(repr, by_event))} would never expire: a "
                "store has no event time; declare StateTtl(..., time='processing')"
            )
        self._storage = LocalStorage(self.path)
        # Nothing is left in Spark's folder, not even a lock.
        refuse_spark(self._storage)
        self._lock = FolderLock(self.path, lock_timeout_ms)
        try:
            self._job = job = open_job(self._storage, _UID, 1, max_parallelism, self._refuse_job)
            self._history = History(self._storage)
            self._history.refresh()
            self._history.make_durable()
            self._retired = Retired()
            self._leases = LeaseBook()
            self._chronicle = StoreChronicle(self._storage)
            head = self._history.head
            stored = None if head is None else head.operator(_UID)
            states = in_files(states, () if stored is None else stored.state_schema, owner)
            self._backend = backend(states=states, max_parallelism=job.max_parallelism)
            self.set_current_key = self._backend.set_current_key
            self._range = empty_range(0, job.max_parallelism, 1)
            self._hot = HotKeys(self._storage, _UID, self._backend)
            self._checkpointed_s = time.monotonic()
            self._looked_up = 0
            try:
                if self._on_disk:
                    self._tick()
                    self._backend.below.step_by(self._step, self._files)
                    # What a merge makes while it is opened is named by the next manifest.
                    delete_unnamed(self._storage, self._history)
                self._restore(allow_unclaimed_state)
                if not self._on_disk:
                    # What has no time in files must not get one that they never have.
                    self._tick()
                    if stored is not None and begin_to_expire(states, stored):
                        self._backend.sweep_all()
                    delete_unnamed(self._storage, self._history)
            except BaseException:
                self._backend.close()
                raise
        except BaseException:
            self._lock.release()
            raise

    def _refuse_job(self) -> None:
        """Refuse the folder of a job, which may be at its first epoch, in any process."""
        job = read_job(self._storage)
        if job is not None and job.name != _UID:
            raise InvalidArgumentError(
                f"checkpoint {self._storage.uri} belongs to the job {job.name!r}, and is no store: "
                "choose another folder"
            )

    def _tick(self) -> None:
        """Begin an epoch: one processing time for all of it."""
        self._now_ms = integer(self._clock(), f"the store {self.path}: what clock gives,")
        self._backend.set_clock(processing_time=self._now_ms)

    # -- access

    def __getitem__(self, name: str) -> Any:
        return self._backend[name]

    @property
    def states(self) -> Mapping[str, Any]:
        """The handles by name."""
        return self._backend.states

    @property
    def epoch(self) -> int:
        """The last checkpoint's number; 0 before the first."""
        return 0 if self._history.head is None else self._history.head.epoch

    def keys(self, columns: Any) -> KeyBatch:
        """Hash and look up many keys.

        Parameters
        ----------
        columns : array-like, list of array-like, RecordBatch or Table
            The key column, or a list of columns for a key of several. From a record batch or a
            table, the columns that have the key's names are taken.

        Returns
        -------
        KeyBatch
            Pass it to the handles; it is valid until the next checkpoint or rollback.

        Raises
        ------
        MemoryLimitError
            Of a store on disk, when the batch is first used: rows of so many keys do not fit in
            memory together. The error's ``keys`` says how many do; nothing has changed.
        """
        return self._backend.keys(columns)

    def prefetch(self, columns: Any) -> KeyBatch:
        """As `keys`, of a store on disk also bring the keys' rows into memory.

        The first use of a batch does that, too. Whoever is about to make several batches of some
        keys, or to make them current one by one, prefetches all of them before: keys that are
        looked up together share what is read.

        Parameters
        ----------
        columns : array-like, list of array-like, RecordBatch or Table
            As for `keys`.

        Returns
        -------
        KeyBatch
            As of `keys`.

        Raises
        ------
        MemoryLimitError
            As for `keys`, at once.
        """
        return self._backend.prefetch(columns)

    def delete(self, keys: Any) -> None:
        """Delete keys with all their states; absent ones are ignored.

        Parameters
        ----------
        keys : KeyBatch or what `keys` takes
            The keys to delete.
        """
        self._backend.delete(keys)

    def to_arrow(self) -> pa.Table:
        """All rows: key columns, then state columns; null if absent; objects in pickled form."""
        return self._backend.to_arrow()

    def __iter__(self) -> Iterator[Any]:
        """All keys, in no particular order."""
        return iter(self._backend)

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._backend)

    def __bool__(self) -> bool:
        return True

    def stats(self) -> TableStats:
        """The size of the table in memory."""
        return self._backend.stats()

    def disk_stats(self) -> DiskStats:
        """What is in memory of a store on disk, and what was looked up since it was opened.

        `ClosedError`; `InvalidArgumentError` of a store on the heap, which has all rows in memory.
        """
        if self._closed:
            raise ClosedError(f"{self.path}: the store is closed")
        if not self._on_disk:
            raise InvalidArgumentError(
                f"{self.path}: disk_stats: the store has all rows in memory: open it with "
                "home='disk', or see stats()"
            )
        return self._backend.below.stats(self._range.estimated_keys)

    def reader(self) -> SealedReader:
        """Return a reader of the last sealed state, for this thread or another one."""
        if not self._on_disk:
            return self._backend.reader()
        return self._backend.below.reader(self._files(steps=False), self._lineage())

    def rollback(self) -> None:
        """Undo everything since the last call of `checkpoint`, or since the store was opened."""
        self._refuse_fork()
        steps = [delta for delta in self._pending if delta.is_step]
        if not steps:
            self._backend.rollback()
            return
        # The table returns to no epoch before the steps. What is below these is in the files.
        self._backend.below.reset(self._lineage(), self._files(steps=False))
        self._pending = [delta for delta in self._pending if not delta.is_step]
        self._drop(steps)

    # -- checkpoints

    def checkpoint(self) -> int:
        """Make everything so far durable.

        Returns
        -------
        int
            The checkpoint's number; if nothing has changed since the last one, its number.

        Raises
        ------
        NoSpaceError, CheckpointError
            Nothing was published. The last checkpoint is intact, and the store remains usable: the
            changes are kept in memory, and the next call writes them.
        PoisonedError
            An operation failed half way: call `rollback` first.

        Notes
        -----
        What was written is durable when the call returns: the delta, the manifest and their folders
        were synced. The cost is O(rows changed), and now and then a merge of files. Of a store on
        disk large ones run beside the next batches, and later checkpoints name what they have made.
        """
        if self._closed:
            raise ClosedError(f"{self.path}: the store is closed")
        self._refuse_fork()
        began_s, before = time.monotonic(), self._range.files
        head = self._history.head
        epoch = self.epoch + 1
        self._refuse_if_full()
        self._backend.expire()
        # Objects are written now: in steps, if they do not fit in memory together.
        rows = self._backend.stats().changed_rows
        if self._backend.dirty or (head is None and not self._pending):
            self._pending.append(SealedDelta(self._backend.seal(self._next()), rows))
        else:
            self._backend.end_idle_epoch()
        for delta in self._pending:
            delta.is_step = False
        if not self._pending and not self._unsynced and not self._converted:
            self._tick()
            return self.epoch
        try:
            deltas = tuple(self._write(delta, epoch) for delta in self._pending)
            written_s = time.monotonic()
            rows = sum(delta.rows for delta in self._pending)
            newest = deltas[-1].id if deltas else self._range.id
            state = replace(self._range, id=newest, deltas=(*self._range.deltas, *deltas))
            manifest = self._manifest(epoch, self._merge(state, epoch))
            self._publish(manifest)
        finally:
            self._place()
        if self._on_disk:
            with suppress(MemoryLimitError):  # the next batch makes room
                self._backend.below.leave_room(self._backend.stats().keys // 8)
            self._keep_warm(rows, began_s - self._checkpointed_s)
        counted = self._counted(rows)
        self._chronicle.published(manifest, deltas, counted, began_s, written_s, before)
        self._tick()
        return epoch

    def _keep_warm(self, changed: int, since_s: float) -> None:
        """Bring rows that were used most before, for a part of the time since a checkpoint.

        And say how many were used since then: so many were changed, others were looked up.
        """
        looked_up = self._backend.below.looked_up
        used, self._looked_up = changed + looked_up - self._looked_up, looked_up
        if since_s > _LEAST_SINCE_S:
            self._hot.warm(warming_s(since_s))
        self._hot.used(used)
        self._checkpointed_s = time.monotonic()

    def _most_keys(self) -> int:
        """How many keys there are; where rows lie in files alone, at most."""
        keys = self._backend.stats().keys
        if not self._backend.below.are_any:
            return keys
        return max(keys, self._range.estimated_keys)

    def _counted(self, rows_changed: int) -> dict[str, int]:
        """What the history says of the table, by the names of its records."""
        stats = self._backend.stats()
        counted = {"rows_changed": rows_changed, "state_bytes": stats.committed_bytes}
        counted["keys"] = self._most_keys()
        if not self._backend.below.are_any:
            return counted
        now, before = self.disk_stats(), self._recorded
        self._recorded = now
        for name in ("cache_hits", "cache_misses", "files_asked", "read_bytes", "rows_left"):
            counted[name] = getattr(now, name) - (0 if before is None else getattr(before, name))
        return {**counted, "rows_in_memory": now.rows_in_memory}

    def _next(self) -> Lineage:
        """The name of the epoch that is sealed next."""
        base = self._backend.lineage() or Lineage(bytes(16), bytes(16), 0)
        return Lineage(uuid.uuid4().bytes, base.id, self.epoch + 1)

    # -- rows on disk

    def _step(self) -> None:
        """Write what changed so far, so that it may leave memory before the next checkpoint.

        Where the folder is full the error is `NoSpaceError`, and the changes are kept in memory.
        """
        self._refuse_if_full()
        snapshot = self._backend.below.seal_step(self._next())
        self._pending.append(SealedDelta(snapshot, snapshot.rows, is_step=True))
        try:
            for waiting in self._pending:
                self._write(waiting, self.epoch + 1)
            self._join_steps()
        finally:
            self._place()

    def _join_steps(self) -> None:
        """Merge steps since the last checkpoint, if they are many."""
        steps = [delta for delta in self._pending if delta.is_step]
        refs = [delta.ref for delta in steps if delta.ref is not None]
        first, after = steps_to_join([ref.file_bytes for ref in refs])
        if first == after:
            return
        bounds, old = self._range.bounds, steps[first:after]
        path = state_path(_UID, *bounds, self.epoch + 1, uuid.uuid4().hex, "delta")
        try:
            merged = merge_range(
                self._storage,
                tuple(refs[first:after]),
                refs[after - 1].id,
                path,
                *bounds,
                kind="delta",
                block_bytes=_DISK_POLICY.block_bytes,
            )
        except NoSpaceError as error:
            _LOG.warning("%s: the steps stay unmerged for now: %s", self.path, error)
            return
        joined = replace(old[-1], rows=sum(delta.rows for delta in old), ref=merged)
        steps[first:after] = [joined]
        self._pending = [*(d for d in self._pending if not d.is_step), *steps]
        self._drop(old)

    def _refuse_if_full(self) -> None:
        """Seal nothing more while the folder is full and much of what was sealed waits for room.

        `NoSpaceError` then; nothing has changed.
        """
        held = sum(delta.held_bytes for delta in self._pending)
        limit_bytes = self._limit_bytes or _USUAL_LIMIT_BYTES
        if held > limit_bytes // _HELD_PART:
            for waiting in self._pending:
                self._write(waiting, self.epoch + 1)

    def _refuse_fork(self) -> None:
        """Refuse in a forked child what would touch its parent's files."""
        if os.getpid() != self._process:
            raise ClosedError(
                f"{self.path}: the store is open in process {self._process}, and does not survive "
                "a fork: use it there, or close it there and open it here"
            )

    def _drop(self, deltas: list[SealedDelta]) -> None:
        """Remove what no manifest names and nothing needs any more."""
        with suppress(PystateError, OSError):  # they go when the store is opened again
            delete_files(self._storage, [d.ref.path for d in deltas if d.ref is not None])
        for delta in deltas:
            delta.close()

    def _lineage(self) -> Lineage | None:
        """The name of the state that `_files` have without steps; None if there is none."""
        sealed = [delta.snapshot.lineage for delta in self._pending if not delta.is_step]
        if sealed:
            return sealed[-1]
        if self._range.id == EMPTY_ID:
            return None
        files = self._range.files
        parent = bytes.fromhex(files[-1].parent) if files else bytes(16)
        return Lineage(bytes.fromhex(self._range.id), parent, self.epoch)

    def _files(self, *, steps: bool = True) -> list[FileBelow]:
        """The files that hold the last sealed epoch, oldest first."""
        files = [
            FileBelow(self._storage.local_path(ref.path), *ref.bounds) for ref in self._range.files
        ]
        for delta in self._pending:
            if delta.is_step and not steps:
                continue
            path = delta.local_path(self._storage)
            files.append(FileBelow(path, *self._range.bounds))
        return files

    def _place(self) -> None:
        """Have the table look in the files of its last sealed epoch.

        It comes after something that succeeded or failed by itself. So an error is for the next use
        that needs the files, and tries again.
        """
        if self._on_disk:
            try:
                self._backend.below.set_files(self._files(), all_known=True)
            except (PystateError, OSError) as error:
                _LOG.warning("%s: the state's files cannot be opened now: %s", self.path, error)

    def _write(self, delta: SealedDelta, epoch: int) -> FileRef:
        """Write a sealed epoch's file, unless an earlier call did."""
        first, last = self._backend.key_group_range
        path = state_path(_UID, first, last, epoch, delta.snapshot.lineage.id.hex(), "delta")
        return delta.write(self._storage, path)

    def _merge(self, state: RangeState, epoch: int) -> RangeState:
        """The range with its files merged, if it is time; or as far as that was done beside."""
        if self._beside is not None:
            replaced = self._merged_beside(self._beside, state)
            if replaced is not None:
                return replaced
        if self._beside is not None:
            run = _DISK_POLICY.meanwhile(state, self._beside.run)
        else:
            run = (_DISK_POLICY if self._on_disk else _POLICY).choose(state)
        if self._rebase:
            run = Run(state.files, "base", state.id)
        if run is None:
            return state
        merge = self._planned(run, run.slice or state.bounds, epoch)
        if self._runs_beside(state, run):
            with suppress(RuntimeError):  # there is no thread for it
                self._beside = MergeBeside(run, merge)
                return state
        try:
            merged = merge()
        except NoSpaceError as error:
            if self._rebase:
                raise
            _LOG.warning("%s: the deltas stay unmerged for now: %s", self.path, error)
            return state
        self._merged.add(merged.path)
        return run.replaced(state, merged) or state

    def _runs_beside(self, state: RangeState, run: Run) -> bool:
        size_bytes = sum(int(ref.file_bytes * ref.share) for ref in run.sources)
        if not self._on_disk or self._beside is not None or size_bytes < self._beside_from:
            return False
        # What every store that was opened began, and none ended, is ended by one.
        return self._beside_from < _FIRST_BESIDE_BYTES or not _DISK_POLICY.waits(state, run)

    def _planned(self, run: Run, bounds: tuple[int, int], epoch: int) -> Callable[..., FileRef]:
        """What carries out a merge; another thread may."""
        path = state_path(_UID, *bounds, epoch, uuid.uuid4().hex, run.kind)
        return partial(
            merge_range,
            self._storage,
            run.sources,
            run.id,
            path,
            *bounds,
            kind=run.kind,
            since=declared_fills(self._backend.declarations),
            block_bytes=(_DISK_POLICY if self._on_disk else _POLICY).block_bytes,
            # Sweeps see what is in memory alone. Of other homes deltas lack what stayed equal.
            expiring=self._backend.below.expiring() if self._on_disk else None,
        )

    def _merged_beside(self, beside: MergeBeside, state: RangeState) -> RangeState | None:
        """The range with the file that was made beside, once there is one.

        `_adopt` forgets it. Where the merge failed the next one runs in this thread.
        """
        if beside.is_running and not _DISK_POLICY.waits(state, beside.run):
            return None
        merged = beside.wait()
        replaced = None if merged is None else beside.run.replaced(state, merged)
        if replaced is None:
            self._drop_beside()
            self._beside_from = sys.maxsize  # it says why
        else:
            beside.is_named = True
        return replaced

    def _drop_beside(self) -> None:
        """End a merge. Its file goes, unless a manifest may name it that could not be published."""
        if self._beside is not None:
            beside, self._beside = self._beside, None
            merged = beside.give_up()
            if merged is not None and not beside.is_named:
                with suppress(PystateError, OSError):  # it goes when the store is opened again
                    delete_files(self._storage, [merged.path])

    def _manifest(self, epoch: int, state: RangeState) -> Manifest:
        return Manifest(
            epoch=epoch,
            predecessor=self.epoch,
            evaluation_id=uuid.uuid4().hex,
            run_id=uuid.uuid4().hex,
            term=0,
            host=socket.gethostname(),
            max_parallelism=self._backend.max_parallelism,
            processing_time_ms=self._now_ms,
            created_ms=time.time_ns() // 1_000_000,
            library=library(),
            operators=(self._operator(state),),
            query_id=_UID,
            batch_id=epoch,
            offsets_hash="",
            queries=(QueryProgress(_UID, epoch, "", epoch),),
        )

    def _publish(self, manifest: Manifest) -> None:
        try:
            self._storage.publish(manifest.path, manifest.encode())
        except PystateError:
            # If only the last sync of the folder failed, the manifest is there, and the next
            # published one makes it durable.
            if is_published(self._storage, manifest):
                self._adopt(manifest)
                self._unsynced = True
            raise
        self._adopt(manifest)
        self._unsynced = False
        self._note_operator()
        try:
            # What the checkpoint before has retired: this one's publish has made that durable.
            done = (*self._retired.paths, *self._unnamed, *self._leases.ended())
            delete_files(self._storage, done)
            self._unnamed.clear()
            leases = self._storage.list(LEASES)
            kept = self._leases.keep(leases, self._history, self._retained)
            self._retired = self._history.retire(kept)
        except (PystateError, OSError) as error:
            _LOG.warning("%s: old checkpoints could not be removed: %s", self.path, error)

    def _note_operator(self) -> None:
        """Tell ``job.json`` of the states, as a job does: it then shows that there are epochs."""
        job = self._job.with_operators((OperatorEntry.of(self._operator(self._range)),))
        if job is not self._job:
            try:
                job.save(self._storage)
                self._job = job
            except (PystateError, OSError) as error:
                _LOG.warning("%s: job.json could not be updated: %s", self.path, error)

    def _adopt(self, manifest: Manifest) -> None:
        self._history.add(manifest)
        self._range = manifest.operators[0].ranges[0]
        if self._beside is not None and self._beside.is_named:
            self._beside = None
        self._beside_from = _BESIDE_BYTES
        # A delta may have been merged before any manifest named it.
        deltas = {delta.ref.path for delta in self._pending if delta.ref is not None}
        self._unnamed |= (deltas | self._merged) - manifest.paths
        self._merged.clear()
        for delta in self._pending:
            delta.close()
        self._pending.clear()
        self._rebase = self._converted = False

    def _operator(self, state: RangeState) -> OperatorState:
        defaults, ttls = self._rules
        return OperatorState(_UID, 1, *self._schemas, (state,), defaults=defaults, ttls=ttls)

    # What is declared stays, and each checkpoint says it.
    @cached_property
    def _rules(self) -> tuple[Defaults, Ttls]:
        return stored_rules(self._backend.declarations)

    @cached_property
    def _schemas(self) -> tuple[Schema, Schema]:
        keys = tuple((name, type_.ddl) for name, type_ in self._backend.key)
        return keys, tuple((n, d.stored_as()) for n, d in self._backend.declarations.items())

    # -- opening and closing

    def _restore(self, allow_unclaimed_state: bool) -> None:
        head = self._history.head
        operator = None if head is None else head.operator(_UID)
        if operator is None:
            self._backend.open()
            return
        if operator.parallelism != 1:
            raise InvalidArgumentError(
                f"{self.path}: its state is in {operator.parallelism} ranges, and a store has one: "
                "write it by ps.write_state with parallelism=1"
            )
        stored = (operator.key_schema, operator.state_schema)
        unclaimed = check_schemas(
            _UID, stored, self._schemas, allow_unclaimed_state=allow_unclaimed_state
        )
        # The next checkpoint removes dropped states and fields from the files, so that they stay
        # dropped.
        self._rebase = bool(unclaimed) or not same_content(stored[1], self._schemas[1])
        self._range = operator.ranges[0]
        lineage = self._lineage()
        if lineage is None:
            self._backend.open()
        elif self._on_disk:
            self._restore_below(allow_unclaimed_state)
        else:
            files = self._range.files
            self._backend.restore(
                [self._storage.local_path(ref.path) for ref in files],
                lineage,
                expected=files,
                allow_unclaimed_state=allow_unclaimed_state,
            )

    def _restore_below(self, allow_unclaimed_state: bool) -> None:
        """Leave the rows in the files, which are first merged if no rows can be looked up there.

        The next checkpoint names the merged one, also if nothing changes until then.
        """
        refs, lineage = self._range.files, self._lineage()
        assert lineage is not None
        paths: list[Source] = [self._storage.local_path(ref.path) for ref in refs]
        self._backend.below.check_files(paths, refs, allow_unclaimed_state)
        if refs and (self._rebase or not all(map(self._backend.below.has_rows_of, paths))):
            bounds, on_the_way = self._range.bounds, []
            if any(ref.bounds != bounds for ref in refs):
                path = state_path(_UID, *bounds, self.epoch, uuid.uuid4().hex, "base")
                merge_range(self._storage, refs, self._range.id, path, *bounds)
                on_the_way, paths = [path], [self._storage.local_path(path)]
            path = state_path(_UID, *bounds, self.epoch, uuid.uuid4().hex, "base")
            with self._storage.create(path) as out:
                info = self._backend.below.merge(paths, out, lineage)
            delete_files(self._storage, on_the_way)
            self._merged.add(path)
            ref = FileRef.from_info(path, info)
            self._range = replace(self._range, base=ref, deltas=())
            self._rebase, self._converted = False, True
        self._backend.below.reset(lineage, self._files())
        self._backend.open()
        self._hot.begin(self._range)

    def close(self, checkpoint: bool = False) -> None:
        """Close the store. Does nothing the second time.

        In a forked child only the child's copy is closed: the files are its parent's.

        Parameters
        ----------
        checkpoint : bool
            Whether to make a checkpoint first; without it, changes since the last one are lost. If
            the checkpoint fails, the store stays open.
        """
        if self._closed:
            return
        if flag(checkpoint, "close: checkpoint"):
            self.checkpoint()
        if os.getpid() != self._process:
            self._closed = True
            self._beside = None
            self._backend.close()
            for delta in self._pending:
                delta.close()
            self._pending.clear()
            self._lock.release()
            return
        self._drop_beside()
        self._backend.close()
        self._closed = True
        self._drop([delta for delta in self._pending if delta.is_step])
        for delta in self._pending:
            delta.close()
        self._pending.clear()
        with suppress(PystateError, OSError):  # they do no harm, and go when it is opened again
            delete_retired(self._storage, (*self._retired.paths, *self._unnamed))
            if self._converted:
                # No manifest names the files that it began with, unless one is there unseen.
                self._history.refresh()
                delete_unnamed(self._storage, self._history)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<Store {self.path!r} at checkpoint {self.epoch}{closed}>"

    def _repr_html_(self) -> str:
        """The store's path, size and states, for a notebook."""
        facts: dict[str, object] = {"checkpoint": self.epoch}
        if not self._closed:
            most = "at most " if self._backend.below.are_any else ""
            memory = bytes_shown(self.stats().committed_bytes)
            facts |= {"keys": f"{most}{self._most_keys()}", "in memory": memory}
        rows = [(name, repr(state)) for name, state in self._backend.declarations.items()]
        closed = ", closed" if self._closed else ""
        return panel(f"Store {self.path}{closed}", facts, ("state", "declared as"), rows)


def open(
    path: str | os.PathLike[str],
    *,
    key: KeyLike,
    states: Mapping[str, State[Any]],
    max_parallelism: int | None = None,
    limit_bytes: int = 0,
    retained: int = 3,
    lock_timeout_ms: int = 0,
    allow_unclaimed_state: bool = False,
    allow_pickle: bool = True,
    clock: Callable[[], int] | None = None,
    home: Literal["heap", "disk"] = "heap",
) -> Store:
    """Open a durable keyed store, or make it if there is none.

    Parameters
    ----------
    path : path
        The store's folder, on a local file system.
    key : type, or mapping or list of (name, type)
        The key's type, or its columns.
    states : mapping of str to declaration
        What is kept per key. States can be added from one opening to the next.
    max_parallelism : int, optional
        Number of key groups, fixed when the store is made; 128 by default.
    limit_bytes : int
        The most memory that the table may take. With 0 it has no limit of its own, but shares that
        of the process and its host, by default three quarters of
        the memory of the machine or the container.
    retained : int
        How many of the newest checkpoints are kept.
    lock_timeout_ms : int
        How long to wait for a store that another process has open.
    allow_unclaimed_state : bool
        Whether stored states that `states` does not name are dropped; the next checkpoint then
        removes them for good. If False, such states are an error.
    allow_pickle : bool
        Whether states may be pickled: those of type ``object`` or of an `AggregateFunction`. Anyone
        who can write to the folder can then run any code in the process that reads such a state.
    clock : callable, optional
        A function that returns milliseconds since 1970, by which states with a time to live expire;
        by default the system's time. It is called when the store is opened and at each checkpoint.
        In between time stands still.
    home : {"heap", "disk"}
        Where the rows are. On the heap all of them are in memory. On disk as many as `limit_bytes`
        allows are, and the others in the folder's files, where a batch of keys is looked up. It may
        differ from one opening to the next: a store that was on the heap is first merged into one
        file, which the next checkpoint names.

    Returns
    -------
    Store
        At its last checkpoint. A context manager that closes it, without a checkpoint.

    Raises
    ------
    DeclarationError
        A state cannot be kept, or would be pickled although that is not allowed. `NoEventTimeError`
        if a state would expire by event time, which a store does not have.
    TableBusyError
        Another process, or this one, has it open.
    SchemaError, UnclaimedStateError
        The stored key or a stored state has another type, or a stored state is not declared.
    CorruptFileError, NewerFormatError, CheckpointError
        A file is damaged, lost, or of a later version; the message names it.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa, pystate as ps
    >>> folder = tempfile.mkdtemp()
    >>> with ps.open(folder, key="long", states={"n": ps.ValueState("long", default=0)}) as store:
    ...     keys = store.keys(pa.array([1, 2, 1]))
    ...     store["n"].add(keys, 1)
    ...     store["n"].values(keys).to_pylist()
    ...     store.checkpoint()
    [2, 1, 2]
    1
    """
    return Store(
        path,
        key=key,
        states=states,
        max_parallelism=max_parallelism,
        limit_bytes=limit_bytes,
        retained=retained,
        lock_timeout_ms=lock_timeout_ms,
        allow_unclaimed_state=allow_unclaimed_state,
        allow_pickle=allow_pickle,
        clock=clock,
        home=home,
    )
