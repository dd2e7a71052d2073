"""What readers of one checkpoint share, and the epoch at which each of them stands.

A reader stands at an epoch, which is a manifest that was read, and reads all operators as of it. It
moves when it is told to, and once by itself where a running job has removed the files of its epoch.

Thread safety: any thread. Who reads goes on in the epoch in which he began, whoever moves on.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from pystate.base.arguments import integer
from pystate.checkpoint.job_file import REPAIR_FILE
from pystate.checkpoint.manifest import Manifest, manifest_path
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.refs import OperatorState
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import (
    CheckpointError,
    ClosedError,
    CorruptFileError,
    FencedError,
    InUseError,
    NewerFormatError,
)
from pystate.processor.epochs import MissingFileError, NotHeldError, epoch_of, operator_of
from pystate.processor.key_files import KEYS, BlockCache
from pystate.processor.lookup import StateLookup
from pystate.processor.scan import StateScan
from pystate.processor.selection import EVERYTHING, Selection, wanted_groups
from pystate.query.retired import lost_error
from pystate.redaction import logger
from pystate.types.keys import parse_key

_LOG = logger("pystate.query.connection")
Result = TypeVar("Result")

#: Of a scan so many bytes of raw state are a part, and so many parts at most are read ahead.
PART_BYTES, _MOST_AHEAD = 16 << 20, 4


@contextmanager
def named(storage: CheckpointStorage) -> Iterator[None]:
    """Say of a file that cannot be read of which checkpoint it is, and what to do."""
    try:
        yield
    except (CorruptFileError, NewerFormatError) as error:
        said = f"checkpoint {storage.uri}: {error}"
        if isinstance(error, CorruptFileError):
            said += "; `pystate verify` says what is damaged, and `pystate repair` what can be done"
        raise type(error)(said) from error


class View:
    """The operators of a checkpoint as of one epoch."""

    def __init__(self, connection: Connection, manifest: Manifest) -> None:
        self.connection, self.manifest = connection, manifest
        self._lookups: dict[str, StateLookup] = {}
        self._key_schemas: dict[str, pa.Schema] = {}

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.manifest.epoch

    @property
    def uids(self) -> tuple[str, ...]:
        """The operators."""
        return tuple(sorted(operator.uid for operator in self.manifest.operators))

    def operator(self, uid: str) -> OperatorState:
        """An operator; `NotHeldError` if there is none of that uid."""
        return operator_of(self.connection.storage, self.manifest, uid)

    def key_schema(self, uid: str) -> pa.Schema:
        """The columns of an operator's key."""
        schema = self._key_schemas.get(uid)
        if schema is None:
            key = parse_key(list(self.operator(uid).key_schema))
            schema = pa.schema([pa.field(name, type_.arrow) for name, type_ in key])
            self._key_schemas[uid] = schema
        return schema

    def lookup(self, uid: str) -> StateLookup:
        """What looks keys of an operator up; its files stay open from one epoch to the next."""
        lookup = self._lookups.get(uid)
        if lookup is None:
            lookup = self._lookups[uid] = self.connection.lookup(uid, self.manifest)
        return lookup

    def is_ready(self, uid: str) -> bool:
        """Whether it is known how keys of an operator are looked up."""
        return uid in self._lookups

    def scan(self, uid: str, selection: Selection = EVERYTHING) -> StateScan:
        """What reads all rows of an operator."""
        storage = self.connection.storage
        before = self.lookup(uid).scan
        return StateScan.within(storage, self.manifest, uid, selection=selection, before=before)

    def rows(
        self,
        uid: str,
        selection: Selection = EVERYTHING,
        *,
        keys: list[pa.Array[Any]] | None = None,
        key_groups: Any = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read all rows of an operator a part at a time, or those of some keys."""
        scan = self.scan(uid, selection)
        groups = wanted_groups(key_groups, scan.max_parallelism)
        if keys is None:
            ahead = min(os.cpu_count() or 1, _MOST_AHEAD)
            scan = replace(scan, key_groups=groups)
            return scan.batches(part_bytes=PART_BYTES, ahead=ahead)
        return self._rows_of(uid, keys, replace(scan, key_groups=groups))

    def _rows_of(
        self, uid: str, keys: list[pa.Array[Any]], scan: StateScan
    ) -> Iterator[pa.RecordBatch]:
        lookup = self.lookup(uid)
        for at in range(0, len(keys[0]), KEYS):
            some = [column.slice(at, KEYS) for column in keys]
            found = lookup.rows(some, selection=scan.selection)
            yield from map(scan.within_groups, found.to_batches())

    def follow(self, before: View) -> None:
        """Be ready for the keys of those operators that were asked for before."""
        for uid in before._lookups:
            if self.manifest.operator(uid) is not None:
                self.lookup(uid)


class Connection:
    """A checkpoint that is open for reading, for all readers of it that are one another's."""

    def __init__(self, storage: CheckpointStorage, cache_bytes: int) -> None:
        self.storage, self._cache = storage, BlockCache(cache_bytes)
        self.closed = threading.Event()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._history = History(storage)
        self._lookups: dict[str, StateLookup] = {}
        self._places: weakref.WeakSet[Place] = weakref.WeakSet()

    def check(self, closed: bool = False) -> None:
        """Refuse what is closed, and what a fork has copied."""
        if closed or self.closed.is_set():
            raise ClosedError(f"the reader of {self.storage.uri} is closed: connect again")
        if not self.is_own:
            raise ClosedError(
                f"the reader of {self.storage.uri} is another process's, which has forked this "
                "one: connect in each process"
            )

    @property
    def is_own(self) -> bool:
        """Whether it is of this process, and not of one that has forked it."""
        return os.getpid() == self._process

    def close(self) -> None:
        """Close the files, and end waits; does nothing the second time."""
        if not self.is_own:
            return  # locks are as they were when the process forked
        for place in list(self._places):
            place.stop()
        self.closed.set()
        with self._opening:
            for lookup in self._lookups.values():
                lookup.keep(())
            self._lookups.clear()

    def newest(self, *, anew: bool = False) -> Manifest:
        """Read the newest manifest, and only what is new; all if `anew`."""
        with self._lock, named(self.storage):
            self._refuse_repair()
            if not anew:
                head = self._history.head
                if head is not None and self._is_newest(head):
                    return head
                try:
                    return epoch_of(self.storage, None, self._history)
                except CheckpointError:
                    # A repair may have set the checkpoint back; else this says the same.
                    self._refuse_repair()
            history = History(self.storage)
            manifest = epoch_of(self.storage, None, history)
            self._history = history
            return manifest

    def _is_newest(self, head: Manifest) -> bool:
        """Whether it is known without a list of manifests that there is no newer one.

        Epochs are consecutive, and the oldest are retired first. A list of an object store takes no
        longer than two such requests.
        """
        storage = self.storage
        if storage.local_path(head.path) is None:
            return False
        newer = storage.exists(manifest_path(head.epoch + 1))
        return not newer and storage.exists(head.path)

    def following(self, before: View, anew: bool) -> View:
        """A view of the newest epoch that is ready for what was asked before; the same if none is.

        A fast job may retire that epoch, too, before its files are open: then it is the next one.
        """
        lost = 0
        while True:
            manifest = self.newest(anew=anew)
            if manifest is before.manifest or manifest == before.manifest:
                return before
            after = View(self, manifest)
            try:
                after.follow(before)
                return after
            except MissingFileError:
                if manifest.epoch == lost:
                    raise
                lost = manifest.epoch

    def manifest(self, epoch: int) -> Manifest:
        """Read the manifest of a retained epoch; `NotHeldError` if it is not retained."""
        number = integer(epoch, "epoch", least=1)
        with self._lock, named(self.storage):
            self._refuse_repair()
            if number in self._history.epochs and self.storage.exists(manifest_path(number)):
                with suppress(FencedError):
                    return self._history.manifest(number)
            return epoch_of(self.storage, number)

    def retained(self) -> list[Manifest]:
        """Read all retained manifests, the oldest first."""
        self.newest()
        with self._lock, named(self.storage):
            found = []
            for epoch in self._history.epochs:
                with suppress(FencedError):  # retired meanwhile
                    found.append(self._history.manifest(epoch))
            return found

    def has_run(self, run_key: str, manifest: Manifest, after: int) -> bool:
        """Whether an epoch contains a run, which none up to the epoch `after` does."""
        with self._lock:
            if after:
                for epoch in self._history.epochs:
                    if after < epoch <= manifest.epoch:
                        with suppress(FencedError):
                            if self._history.manifest(epoch).run_key == run_key:
                                return True
                if self._history.epochs[:1] <= (after + 1,):
                    return False
            found = self._history.find_run(run_key)
            return found is not None and found[0] <= manifest.epoch

    def lookup(self, uid: str, manifest: Manifest) -> StateLookup:
        """What looks keys of an operator up as of an epoch."""
        with self._opening:
            self.check()
            known = self._lookups.get(uid)
            if known is None:
                known = StateLookup(self.storage, uid, epoch=manifest, cache_bytes=self._cache)
            elif known.epoch != manifest.epoch:
                known = known.at(manifest)
            self._lookups[uid] = known
            return known

    def stand(self, place: Place) -> None:
        """Keep the files of the epoch at which a reader stands, as long as there is the reader."""
        with self._opening:
            self._places.add(place)

    def leave(self, place: Place) -> None:
        """Nobody stands there any more."""
        if self.is_own:
            with self._opening:
                self._places.discard(place)
            if not self.closed.is_set():
                self.forget()

    def forget(self) -> None:
        """Close files of epochs at which nobody stands any more."""
        with self._opening:
            manifests = [place.view.manifest for place in self._places]
            for lookup in self._lookups.values():
                lookup.keep(manifests)

    def _refuse_repair(self) -> None:
        if self.storage.exists(REPAIR_FILE):
            # Epochs may come again that are known, and are others.
            self._history = History(self.storage)
            raise InUseError(
                f"checkpoint {self.storage.uri} is being repaired ({REPAIR_FILE} is there): read "
                "it again when the repair has ended; run `pystate repair` once more if it was "
                "interrupted"
            )


class Place:
    """Where a reader stands: an epoch, which it keeps if it is `pinned`."""

    def __init__(self, connection: Connection, manifest: Manifest, *, pinned: bool) -> None:
        self.connection, self.pinned, self._closed = connection, pinned, False
        self.view = View(connection, manifest)
        #: What waits for epochs on behalf of the reader.
        self.followers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._moving = threading.Lock()
        connection.stand(self)

    def check(self) -> None:
        """Refuse what is closed, and what a fork has copied."""
        self.connection.check(self._closed)

    def close(self) -> None:
        """Read no more; the files of the epoch stay open as long as others need them."""
        self.stop()
        self._closed = True
        self.connection.leave(self)

    def stop(self) -> None:
        """End what waits for epochs; a forked child has none of its parent's."""
        if self.connection.is_own:
            for follower in list(self.followers):
                follower.stop()

    def read(self, read: Callable[[View], Result]) -> Result:
        """Read the epoch, or the newest one if a running job has removed its files meanwhile."""
        self.check()
        view = self.view
        try:
            return read(view)
        except MissingFileError as error:
            moved = self.moved(view, error)
            try:
                return read(moved)
            except MissingFileError as again:
                place = f"checkpoint {self.connection.storage.uri}"
                raise lost_error(place, view.epoch, moved.epoch) from again

    def refresh(self, *, anew: bool = False) -> View:
        """Move to the newest epoch, unless the reader is pinned."""
        self.check()
        if self.pinned:
            return self.view
        with self._moving:
            before = self.view
            after = self.connection.following(before, anew)
            if after is not before:
                self.view = after
                self.connection.forget()
            return after

    def moved(self, view: View, error: MissingFileError) -> View:
        """The newest epoch in place of one whose files are gone; the error if there is no other."""
        uri = self.connection.storage.uri
        if self.pinned:
            try:
                self.connection.manifest(view.epoch)
            except NotHeldError as gone:
                raise NotHeldError(
                    f"{gone}; the reader was pinned to epoch {view.epoch}, which is retired"
                ) from error
            raise error
        if self.view is view:
            self.refresh(anew=True)
        if self.view.epoch == view.epoch:
            raise error
        _LOG.warning(
            "checkpoint %s: epoch %d was retired while it was read: epoch %d is read from now on",
            uri,
            view.epoch,
            self.view.epoch,
        )
        return self.view

    def cut_short(self, view: View) -> CheckpointError:
        """The error where files are gone of which a part was read."""
        return CheckpointError(
            f"checkpoint {self.connection.storage.uri}: epoch {view.epoch} was retired while its "
            "rows were read, of which some have been given: read again, or let the job retain more "
            "epochs"
        )
