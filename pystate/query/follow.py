"""What each epoch has changed, as epochs are published.

A consumer that has the state of an epoch, and the changes of all later ones, has the state of the
newest. So epochs come one after the other without a gap, or there is an error that says where to
begin anew.

Thread safety: a `Follower` is used by one thread, and stopped by any; `EpochChanges` by any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pystate.base.arguments import checked_uid, integer, shown
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import list_manifests
from pystate.checkpoint.parts import Parts
from pystate.checkpoint.refs import OperatorState
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError, RetiredEpochError, WrongTypeError
from pystate.processor.change_scan import ChangeScan
from pystate.processor.changes import change_batches, changes_schema, manifests_between
from pystate.processor.epochs import MissingFileError
from pystate.processor.key_files import KeyFiles
from pystate.processor.scan import StateScan
from pystate.processor.selection import Selection
from pystate.query.connection import named
from pystate.query.lease import DURATION, Lease, LeaseFiles, Leases
from pystate.query.retired import manifest_at, retired_error
from pystate.types.durations import Duration, milliseconds

if TYPE_CHECKING:
    from typing_extensions import Self

_LEAST_POLL_MS, _MOST_POLL_MS = 10, 60_000
#: How often a follower looks for the next manifest: a request each, in an object store.
_LOCAL_POLL_S, _REMOTE_POLL_S = 0.05, 1.0
#: How often it makes sure that the next epoch is still to come: that lists the manifests.
_LIST_EVERY_S = 10.0


@dataclass(frozen=True)
class _Source:
    """What is needed to read changes, and is kept from one epoch to the next."""

    storage: CheckpointStorage
    uids: tuple[str, ...] | None
    check: Callable[[], None]
    looking: KeyFiles
    scans: dict[str, StateScan] = field(default_factory=dict)

    @classmethod
    def of(cls, storage: CheckpointStorage, uids: Any, check: Callable[[], None]) -> _Source:
        return cls(storage, checked_uids(uids), check, KeyFiles(storage))

    def changes(self, older: Manifest | None, newer: Manifest) -> EpochChanges:
        return EpochChanges(self, older, newer)


class EpochChanges:
    """What has changed in an epoch, by operator; iterate over it.

    Iterating gives pairs of an operator's uid and a `pyarrow.RecordBatch` with rows of
    `pystate.changes`: the key columns, ``namespace`` if there are any, ``change`` (``put`` or
    ``delete``), ``before`` and ``after``. Each key (and namespace) is there once. As there, both
    sides have what is stored, also if it has expired. Batches are read as they are asked for, a
    bounded number of keys at a time, and once more when it is iterated over again.

    Attributes
    ----------
    epoch : int
        The epoch.
    since : int
        The epoch with which it is compared: the one before, if epochs are followed.
    uids : tuple of str
        The operators that may have changes, of those that were asked for.
    dropped : tuple of str
        Operators that the job has dropped meanwhile, with all of their state. There are no rows for
        their keys.
    processing_time_ms, published_ms : int
        The epoch's processing time, and when it was published; milliseconds since 1970.
    """

    def __init__(self, source: _Source, older: Manifest | None, newer: Manifest) -> None:
        self._source, self._older, self._newer = source, older, newer
        self.epoch, self.since = newer.epoch, 0 if older is None else older.epoch
        self.processing_time_ms, self.published_ms = newer.processing_time_ms, newer.created_ms
        before = {} if older is None else {op.uid: op for op in older.operators}
        operators = [op for op in newer.operators if _is_asked(op, source.uids)]
        self.uids = tuple(op.uid for op in operators if not _is_same(before.get(op.uid), op))
        now = {op.uid for op in newer.operators}
        self.dropped = tuple(
            op.uid for op in before.values() if op.uid not in now and _is_asked(op, source.uids)
        )

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        return self._batches(self.uids)

    def schema(self, uid: str) -> pa.Schema:
        """The columns of an operator's batches."""
        return changes_schema(self._scan(uid).new)

    def read(self, uid: str) -> pa.Table:
        """Read all changes of one operator; there are no rows if it has none.

        Raises
        ------
        RetiredEpochError
            The job has removed the epoch's files meanwhile.
        InvalidArgumentError
            The epoch has no such operator.
        """
        batches = [rows for _, rows in self._batches((uid,) if uid in self.uids else ())]
        return pa.Table.from_batches(batches, self.schema(uid))

    def __repr__(self) -> str:
        return f"<EpochChanges of epoch {self.epoch} since epoch {self.since}>"

    def _scan(self, uid: str) -> ChangeScan:
        source, newer = self._source, self._newer
        # As `changes` compares: what has expired is there until a delta says otherwise.
        all_there = Selection(expired=True)
        try:
            new = StateScan.within(
                source.storage, newer, uid, selection=all_there, before=source.scans.get(uid)
            )
        except MissingFileError as error:
            raise self._retired(error) from error
        source.scans[uid] = new
        between: Callable[[], Iterable[Manifest]] = tuple
        if self.epoch > self.since + 1:
            between = partial(manifests_between, source.storage, self.since, self.epoch)
        return ChangeScan.of(new, self._older, between)

    def _batches(self, uids: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        source = self._source
        for uid in uids:
            source.check()
            try:
                scan = self._scan(uid)
                if scan.is_unexpected:
                    self._check_not_set_back()
                for rows in change_batches(scan, source.looking)[1]:
                    yield uid, rows
                    source.check()
            except MissingFileError as error:
                raise self._retired(error) from error

    def _retired(self, error: MissingFileError) -> RetiredEpochError:
        gone = f"files of epoch {error.epoch} are gone"
        return retired_error(self._source.storage, self.since, gone)

    def _check_not_set_back(self) -> None:
        """Make sure that the older epoch is what it was, where the newer one follows another."""
        older = self._older
        if older is None:
            return
        try:
            stored = read_manifest(self._source.storage, manifest_path(older.epoch))
        except FileNotFoundError:
            raise retired_error(self._source.storage, self.since) from None
        if stored.evaluation_id != older.evaluation_id:
            raise retired_error(
                self._source.storage, self.since, "the checkpoint was set back by a repair"
            )


class Follower:
    """Gives the changes of each epoch, as epochs are published; `StateReader.follow` makes it.

    Iterating gives an `EpochChanges` for each epoch after the one to start from, without a gap, and
    waits for the next. It ends when `stop` is called, or the reader is closed. An epoch counts as
    done when the next one is asked for: go on after a failure with ``follow(since=...)`` and the
    last epoch that was done.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        manifest: Manifest | None,
        *,
        uids: Any = None,
        poll: Duration | None = None,
        lease: bool | Duration = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = _Source.of(storage, uids, check)
        self._storage, self._at = storage, manifest
        self._given: Manifest | None = None
        self._parts = Parts(storage)
        self._poll_s = _REMOTE_POLL_S if self._source.looking.is_remote else _LOCAL_POLL_S
        if poll is not None:
            self._poll_s = poll_seconds(poll)
        self._stopped = threading.Event()
        self._listed_s = 0.0
        self._lease = lease_of_follower(LeaseFiles(storage), self.epoch, lease)

    @property
    def epoch(self) -> int:
        """The last epoch that was done, with which to go on after a failure."""
        return 0 if self._at is None else self._at.epoch

    def next(self, timeout: float | None = None) -> EpochChanges | None:
        """Wait for the next epoch.

        Parameters
        ----------
        timeout : float, optional
            Seconds; 0 to look once.

        Returns
        -------
        EpochChanges or None
            None if there is no epoch after so long, or if it was stopped.

        Raises
        ------
        RetiredEpochError
            The job has retired the epoch that comes next.
        CheckpointError
            The manifest cannot be read.
        """
        if self._given is not None:
            self._at, self._given = self._given, None
            if self._lease is not None and not self._stopped.is_set():
                self._lease.move(self._at.epoch)
        until_s = None if timeout is None else time.monotonic() + timeout
        self._listed_s = 0.0  # it may be long ago that this was called
        while not self._stopped.is_set():
            self._source.check()
            manifest = self._look()
            if manifest is not None:
                self._given = manifest
                self._keep_open(manifest)
                return self._source.changes(self._at, manifest)
            left_s = self._poll_s
            if until_s is not None:
                left_s = min(left_s, until_s - time.monotonic())
                if left_s <= 0:
                    return None
            self._stopped.wait(left_s)
        return None

    def stop(self) -> None:
        """End the iteration, from any thread; who waits does so no longer."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, close files and end the lease. Does nothing the second time."""
        self.stop()
        self._source.looking.forget()
        if self._lease is not None:
            self._lease.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EpochChanges:
        changes = self.next()
        if changes is None:
            self.close()
            raise StopIteration
        return changes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Follower of {self._storage.uri} after epoch {self.epoch}>"

    def _look(self) -> Manifest | None:
        """The next epoch's manifest, if it is there and counts."""
        number = self.epoch + 1
        now_s = time.monotonic()
        if not self._storage.exists(manifest_path(number)):
            if self._listed_s and now_s - self._listed_s < _LIST_EVERY_S:
                return None
            manifest = None
        else:
            manifest = None
            with named(self._storage), suppress(FileNotFoundError):
                manifest = read_manifest(self._storage, manifest_path(number), self._parts)
        # A driver that was delayed may publish an epoch once more that others have retired.
        listing = list_manifests(self._storage)
        self._listed_s = now_s
        if listing.floor >= number:
            raise retired_error(self._storage, self.epoch)
        if manifest is None and listing.epochs and listing.epochs[-1] < self.epoch:
            raise retired_error(
                self._storage, self.epoch, "the checkpoint was set back by a repair"
            )
        return manifest

    def _keep_open(self, manifest: Manifest) -> None:
        paths = set(manifest.paths)
        if self._at is not None:
            paths |= self._at.paths
        self._source.looking.forget(frozenset(paths))


def poll_seconds(poll: Duration) -> float:
    """How often it is looked for the next epoch, as a user has said it."""
    poll_ms = milliseconds(poll, "follow: poll", least=_LEAST_POLL_MS)
    return min(poll_ms, _MOST_POLL_MS) / 1000


def lease_of_follower(leases: Leases, epoch: int, lease: bool | Duration) -> Lease | None:
    """The lease of who follows from an epoch on, if one is asked for."""
    if lease is False:
        return None
    if not epoch:
        raise InvalidArgumentError(
            "follow: nothing is kept of epoch 0, before the first: leave the lease out, or begin "
            "with an epoch"
        )
    return Lease(leases, epoch, DURATION if lease is True else lease)


def follow(
    storage: CheckpointStorage,
    since: int | Manifest,
    *,
    uids: Any = None,
    poll: Duration | None = None,
    lease: bool | Duration = False,
    check: Callable[[], None] = lambda: None,
) -> Follower:
    """Follow a checkpoint from an epoch on; see `StateReader.follow`."""
    manifest: Manifest | None
    if isinstance(since, Manifest):
        manifest = since
    else:
        manifest = manifest_at(storage, integer(since, "follow: since", least=0))
    return Follower(storage, manifest, uids=uids, poll=poll, lease=lease, check=check)


def changes_until(
    storage: CheckpointStorage,
    since: int,
    newer: Manifest,
    *,
    uids: Any = None,
    check: Callable[[], None] = lambda: None,
) -> EpochChanges:
    """What has changed between an epoch and a newer one; see `StateReader.changes`."""
    number = integer(since, "changes: since", least=0)
    if number > newer.epoch:
        raise InvalidArgumentError(
            f"changes: since is {number}, and the reader's epoch {newer.epoch}: refresh the "
            "reader, or give an older epoch"
        )
    older = None if number == 0 else manifest_at(storage, number)
    return _Source.of(storage, uids, check).changes(older, newer)


def checked_uids(uids: Any) -> tuple[str, ...] | None:
    """The operators whose changes are asked for; None for all."""
    if uids is None:
        return None
    if not isinstance(uids, (list, tuple, set, frozenset)):
        raise WrongTypeError(
            f"uids is a list of operators' uids, such as ['counts'], not {shown(uids)}"
        )
    if not uids:
        raise InvalidArgumentError("uids has no operator: leave it out for all of them")
    return tuple(map(checked_uid, uids))


def _is_asked(operator: OperatorState, uids: tuple[str, ...] | None) -> bool:
    # The rows in flight on a loop are nobody's state.
    return not operator.is_loop if uids is None else operator.uid in uids


def _is_same(before: OperatorState | None, after: OperatorState) -> bool:
    """Whether nothing was written for an operator, as its ranges' ids say."""
    if before is None or before.state_schema != after.state_schema:
        return False
    return [(s.bounds, s.id, s.since) for s in before.ranges] == [
        (s.bounds, s.id, s.since) for s in after.ranges
    ]
