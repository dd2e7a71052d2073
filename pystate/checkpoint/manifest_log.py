"""The manifests that a checkpoint retains, read and checked.

Thread safety: a `History` has one user at a time (its coordinator's lock).

Invariants
----------
1. Retained epochs are consecutive: retention removes the oldest first. A gap is a lost manifest and
   is never skipped.
2. ``manifests/latest`` is at most the newest epoch ever published. It is written after the manifest
   and not synced, but for the first one, so that it can only lag behind. It shows if the newest
   manifest is lost, as other traces of epochs do (`pystate.checkpoint.traces`). It and
   ``manifests/committed`` may be damaged, and are then as if they were not there; but those of a
   later version are not overwritten.
3. A manifest with a run key is not removed before `RunKeys` has the key. A damaged manifest may
   have had any key: it is retired like others, and ``runs/unknown`` names its epoch.
4. Before a manifest is removed, ``manifests/<epoch>.retired`` is written. A driver that was delayed
   between its last check and its publish finds the manifest's name free again, and must see that
   the epoch is over. Manifests at or below the newest mark do not count. A mark also says up to
   which epoch `RunKeys` has keys, so that their loss is noticed; of earlier versions it is empty.
5. A mark is not synced. A retired manifest, and the files that only it names, are removed after the
   folder is synced, which the next publish does: if the machine stops before, the epoch may be a
   retained one again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from pystate.checkpoint.epoch_log import HISTORY, newest_records
from pystate.checkpoint.job_file import JOB_FILE, RESTORED_FILE
from pystate.checkpoint.leases import LEASES
from pystate.checkpoint.manifest import (
    Manifest,
    manifest_epoch,
    manifest_path,
    read_manifest,
)
from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.parts import MANIFESTS, Parts
from pystate.checkpoint.run_keys import RUNS, RunKeys, covered_epoch
from pystate.checkpoint.storage import CheckpointStorage, FileEntry, find_bytes
from pystate.checkpoint.traces import (
    COMMITTED,
    LATEST,
    STATE,
    Trace,
    begun_trace,
    marked_epoch,
    read_traces,
)
from pystate.errors import CheckpointError, CorruptFileError, FencedError, NewerFormatError
from pystate.redaction import logger

_LOG = logger("pystate.checkpoint.manifest_log")
_UNKNOWN_RUNS = f"{RUNS}/unknown"
_LISTINGS = 5
_MARK = re.compile(MANIFESTS + r"/(\d{8,})\.retired")
# Number of marks to keep, although only the newest counts: a listing that runs while a driver makes
# a new mark and removes an old one must not miss both.
_MARKS = 16


class History:
    """Reads, caches and retires manifests."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._parts = Parts(storage)
        self._runs = RunKeys(storage)
        self._cache: dict[int, Manifest] = {}
        self._epochs: tuple[int, ...] = ()
        self._leftovers: tuple[str, ...] = ()
        self._compared = False
        self._runs_until: int | None = None
        #: The files of leases, as of the last time that manifests were listed.
        self.leases: tuple[FileEntry, ...] = ()

    @property
    def epochs(self) -> tuple[int, ...]:
        """The retained epochs, ascending, as of the last `refresh`."""
        return self._epochs

    @property
    def head(self) -> Manifest | None:
        """The newest epoch, as of the last `refresh`."""
        return self._cache[self._epochs[-1]] if self._epochs else None

    def refresh(self) -> None:
        """Read the storage again; the first time manifests are compared with other traces.

        `CheckpointError` if a manifest is lost or the newest one cannot be read; `FencedError` if
        another driver keeps publishing faster than this one can read.
        """
        known = self._epochs[-1] if self._epochs else 0
        for _ in range(_LISTINGS):
            listing = _list_retained(self._storage, known, compare=not self._compared)
            epochs, self._leftovers, self.leases = listing.epochs, listing.leftovers, listing.leases
            self._compared = True
            try:
                if epochs:
                    self.manifest(epochs[-1])
            except FencedError:
                continue  # retired meanwhile: the owner of the checkpoint is ahead of this driver
            self._epochs = epochs
            for epoch in self._cache.keys() - set(epochs):
                del self._cache[epoch]
            return
        raise FencedError(f"checkpoint {self._storage.uri}: another driver is publishing epochs")

    def make_durable(self) -> None:
        """Sync the folder: a driver may have ended between a publish and its sync."""
        self._storage.sync_folder(MANIFESTS)

    def manifest(self, epoch: int) -> Manifest:
        """Read a retained epoch's manifest.

        `FencedError` if another driver has retired it since the last `refresh`.
        """
        if epoch not in self._cache:
            path = manifest_path(epoch)
            try:
                self._cache[epoch] = read_manifest(self._storage, path, self._parts)
            except FileNotFoundError as error:
                raise FencedError(f"{path} was retired by another driver") from error
        return self._cache[epoch]

    def find_published(self, epoch: int) -> Manifest | None:
        """Read an epoch's manifest, whichever driver published it; None if there is none.

        `FencedError` if the epoch was published and retired.
        """
        path = manifest_path(epoch)
        try:
            return read_manifest(self._storage, path, self._parts)
        except FileNotFoundError:
            if epoch <= list_manifests(self._storage).floor:
                raise FencedError(
                    f"{path} was published, and retired since, by another driver; this one has "
                    "changed nothing"
                ) from None
            return None

    def add(self, manifest: Manifest) -> None:
        """Add a manifest that was just published."""
        self._cache[manifest.epoch] = manifest
        if manifest.part is not None:
            self._parts.keep(manifest.part.part)
        self._epochs = (*self._epochs, manifest.epoch)
        content = encode_document("latest", 1, {"epoch": manifest.epoch})
        # Without it, only the detection of a lost manifest is weaker. The first one is durable, so
        # that a checkpoint has it from then on, unless it is lost.
        with suppress(CheckpointError, OSError):
            self._storage.replace(LATEST, content, durable=len(self._epochs) == 1)

    def note_committed(self, manifest: Manifest, *, durable: bool = False) -> None:
        """Note that an epoch's sink transactions are committed.

        With `durable` it fails rather than lose the note: they cannot be committed again.
        """
        # A driver that was delayed here may resume when its successors are ahead of it.
        if self._read_committed()[0] > manifest.epoch:
            return
        content = {"epoch": manifest.epoch, "evaluation_id": manifest.evaluation_id}
        data = encode_document("committed", 1, content)
        if durable:
            self._storage.replace(COMMITTED, data)
            return
        # Not synced: if a power failure loses it, they are only committed once more.
        with suppress(CheckpointError, OSError):
            self._storage.replace(COMMITTED, data, durable=False)

    def is_committed(self, manifest: Manifest) -> bool:
        """Whether an epoch's sink transactions are known to be committed."""
        return self._read_committed() == (manifest.epoch, manifest.evaluation_id)

    def _read_committed(self) -> tuple[int, str]:
        try:
            data = self._storage.read_bytes(COMMITTED)
            fields = decode_document("committed", 1, data, COMMITTED)
            return fields.integer("epoch"), fields.text("evaluation_id")
        except NewerFormatError:
            raise
        except (FileNotFoundError, CheckpointError):
            return 0, ""

    def find_batch(self, query_id: str, batch_id: int) -> Manifest | None:
        """Find the retained epoch of a batch."""
        for epoch in reversed(self._epochs):
            manifest = self.manifest(epoch)
            if (manifest.query_id, manifest.batch_id) == (query_id, batch_id):
                return manifest
        return None

    def find_run(self, run_key: str) -> tuple[int, Manifest | None] | None:
        """Find the epoch of a run's result, and its manifest if it is retained.

        `CheckpointError` if no readable epoch is that run's, but some epochs cannot be read; or the
        keys of earlier runs are lost.
        """
        self._check_runs(must_be_known=True)
        damaged = _unknown_runs(self._storage)
        for epoch in reversed(self._epochs):
            manifest = self._intact(epoch)
            if manifest is None:
                damaged.append(epoch)
            elif manifest.run_key == run_key:
                return epoch, manifest
        retired = self._runs.find(run_key)
        if retired is None:
            for epoch in damaged:
                self._check_other(epoch, run_key)
            return None
        return retired, None

    def _check_runs(self, *, must_be_known: bool = False) -> int:
        """Make sure that no run keys are lost; returns up to which epoch there are any."""
        if self._runs_until is None:
            self._runs_until = check_runs(self._storage, must_be_known=must_be_known)
        return self._runs_until

    def _check_other(self, epoch: int, run_key: str) -> None:
        """Refuse a run that may have been applied, unless a user has declared that it was not."""
        mark = f"{RUNS}/{epoch:08d}.other"
        if not self._storage.exists(mark):
            raise CheckpointError(
                f"run {run_key!r} may be epoch {epoch}, whose manifest {manifest_path(epoch)} is "
                "damaged, and no run is applied twice: bring the file back from a copy; or, if you "
                f"know that epoch {epoch} was not this run, create the empty file {mark} in "
                f"{self._storage.uri}"
            )

    def _intact(self, epoch: int) -> Manifest | None:
        """Read a retained epoch's manifest; None if it is damaged."""
        try:
            return self.manifest(epoch)
        except CorruptFileError:
            return None

    def check_published(self, manifest: Manifest) -> None:
        """Make sure that a manifest just published is a new one and not a retired one.

        `FencedError` if other drivers published and retired this epoch while this one was delayed,
        which freed its name. The manifest does not count, and is removed.
        """
        listing = list_manifests(self._storage)
        self.leases = listing.leases
        if manifest.epoch > listing.floor:
            return
        self._storage.delete(manifest.path)
        raise FencedError(
            f"{manifest.path} was published, and retired since, by another driver; this one "
            f"(run {manifest.run_id}) has changed nothing"
        )

    def published_ms(self, epoch: int) -> int | None:
        """When a retained epoch was published; None if that is not known."""
        manifest = self._intact(epoch) if epoch in self._epochs else None
        return None if manifest is None else manifest.created_ms

    def retire(self, keep: int, most: int | None = None) -> Retired:
        """Retire all but the newest `keep` manifests, the oldest first; nothing is removed.

        With `most`, no more are retired at a time; the next call goes on.

        Returned is what may be removed once ``manifests`` is synced. It has no state files and
        parts if a retained manifest is damaged, and lacks those of a retired damaged one: orphan
        collection finds them.
        """
        removed: set[str] = set()
        log: list[str] = []
        over = max(len(self._epochs) - keep, 0)
        for epoch in self._epochs[: over if most is None else min(over, most)]:
            manifest = self._intact(epoch)
            if manifest is None:
                _LOG.warning("%s is damaged, and retired without its files", manifest_path(epoch))
            until = self._check_runs()
            if manifest is not None and manifest.run_key is not None:
                until = max(until, epoch)
            mark_retired(self._storage, self._runs, epoch, manifest, until)
            self._runs_until = until
            log += [manifest_path(epoch), _mark_path(max(epoch - _MARKS, 0))]
            self._epochs = self._epochs[1:]
            self._cache.pop(epoch, None)
            removed |= frozenset() if manifest is None else manifest.paths
        log += self._leftovers
        self._leftovers = ()
        if removed:
            for epoch in self._epochs:
                kept = self._intact(epoch)
                if kept is None:
                    return Retired(tuple(log))
                removed -= kept.paths
        return Retired(tuple(log), frozenset(removed))


class Retired(NamedTuple):
    """What retired epochs leave."""

    log: tuple[str, ...] = ()
    """Their manifests, and old marks."""
    files: frozenset[str] = frozenset()
    """State files and parts that only they named."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of it, in the order in which it goes: no manifest is there without its files."""
        return (*self.log, *sorted(self.files))


class Listing(NamedTuple):
    """The manifests that a checkpoint has."""

    epochs: tuple[int, ...]
    """The epochs above the floor, ascending."""
    floor: int
    """The newest epoch that was retired."""
    leftovers: tuple[str, ...]
    """Manifests at or below the floor: they do not count."""
    leases: tuple[FileEntry, ...] = ()
    """The files of leases."""


def list_manifests(storage: CheckpointStorage) -> Listing:
    """List the manifests as they are there; it is not looked whether one is lost."""
    numbers, floor, leases = [], 0, []
    for entry in storage.list(MANIFESTS):
        if entry.path.startswith(f"{LEASES}/"):
            leases.append(entry)
            continue
        epoch, mark = manifest_epoch(entry.path), _MARK.fullmatch(entry.path)
        if epoch is not None:
            numbers.append(epoch)
        elif mark is not None:
            floor = max(floor, int(mark[1]))
    return Listing(
        tuple(sorted(number for number in numbers if number > floor)),
        floor,
        tuple(manifest_path(number) for number in numbers if number <= floor),
        tuple(leases),
    )


def _list_retained(storage: CheckpointStorage, at_least: int, *, compare: bool = True) -> Listing:
    """List the retained epochs, of which `at_least` is known to have been published.

    With `compare` all traces are read; otherwise only ``manifests/latest``, for an epoch more.
    """
    loss = _Loss(0, Trace())
    # A listing is not atomic: while a driver retires manifests it can show a false gap, which the
    # next listing does not show.
    for _ in range(_LISTINGS):
        if compare:
            listing, loss = _list_and_compare(storage)
        else:
            noted = _latest(storage)
            listing = list_manifests(storage)
            loss = _Loss(_first_hole(listing, max(at_least, noted)), Trace(noted, LATEST))
        if not loss.epoch:
            return listing
    raise _lost_manifest_error(storage, loss)


class _Loss(NamedTuple):
    """A manifest that is lost, or may be."""

    epoch: int
    """0 for none."""
    trace: Trace
    """What tells of it."""
    certain: bool = True


def _list_and_compare(storage: CheckpointStorage) -> tuple[Listing, _Loss]:
    """List the manifests, and find the first one that is lost."""
    traces = read_traces(storage)
    listing = list_manifests(storage)
    head = listing.epochs[-1] if listing.epochs else 0
    if traces.agree_on(head):
        return listing, _Loss(_first_hole(listing, head), traces.newest)
    begun = begun_trace(entry.path for entry in storage.list(STATE))
    listing = list_manifests(storage)
    head = listing.epochs[-1] if listing.epochs else 0
    known = max(traces.newest, Trace(begun.epoch - 1, begun.path), key=lambda trace: trace.epoch)
    if known.epoch <= traces.restored and not storage.exists(JOB_FILE):
        known = Trace()  # a start began to fill the folder from a savepoint, and did not end
    lost = _first_hole(listing, known.epoch)
    if not lost and 0 < head < begun.epoch and traces.leave_open(head):
        return listing, _Loss(head + 1, begun, certain=False)
    return listing, _Loss(lost, known)


def _lost_manifest_error(storage: CheckpointStorage, loss: _Loss) -> CheckpointError:
    """The error of who finds that a manifest is lost."""
    path = manifest_path(loss.epoch)
    way_out = (
        "bring the file back from a copy, or let `pystate repair` set the checkpoint back to what "
        "is left of it"
    )
    if not loss.certain:
        return CheckpointError(
            f"checkpoint {storage.uri}: {loss.trace.path} is of epoch {loss.epoch}, and without "
            f"{LATEST} and the records in {HISTORY}/, which are lost, it cannot be told whether "
            f"that epoch was published and its manifest {path} is lost, too: {way_out}"
        )
    known = f" ({loss.trace.path} tells of it)" if loss.trace.path else ""
    return CheckpointError(
        f"checkpoint {storage.uri}: the manifest {path} is lost{known}; nothing is built on an "
        f"older epoch in its place: {way_out}"
    )


def retained_epochs(storage: CheckpointStorage) -> tuple[int, ...]:
    """List the epochs that have a manifest, ascending; `CheckpointError` if one is lost."""
    return retained_manifests(storage).epochs


def retained_manifests(storage: CheckpointStorage) -> Listing:
    """List the retained manifests, and those that are left of retired epochs.

    `CheckpointError` if one is lost.
    """
    return _list_retained(storage, 0)


class Survey(NamedTuple):
    """Which manifests a checkpoint has, and which it has lost."""

    epochs: tuple[int, ...]
    """The epochs that have a manifest, ascending."""
    lost: tuple[int, ...]
    """The epochs whose manifest is missing, although it was published and not retired."""
    floor: int
    """The newest epoch that was retired; 0 for none."""


def survey(storage: CheckpointStorage) -> Survey:
    """List the manifests of a checkpoint that may be damaged."""
    lost: tuple[int, ...] = ()
    for _ in range(_LISTINGS):  # as in `_list_retained`
        try:
            listing, loss = _list_and_compare(storage)
        except NewerFormatError:  # reported with the other small files
            listing = list_manifests(storage)
            loss = _Loss(_first_hole(listing, 0), Trace())
        newest = max(loss.trace.epoch if loss.epoch else 0, *listing.epochs, loss.epoch)
        lost = ()
        if loss.epoch:
            there = set(listing.epochs)
            lost = tuple(epoch for epoch in range(loss.epoch, newest + 1) if epoch not in there)
        if not lost:
            break
    return Survey(listing.epochs, lost, listing.floor)


def mark_retired(
    storage: CheckpointStorage,
    runs: RunKeys,
    epoch: int,
    manifest: Manifest | None,
    runs_until: int | None = None,
) -> None:
    """Do what must precede the removal of a manifest; None for one that cannot be read.

    `runs_until` is the newest epoch whose run key is kept; it is looked up if it is None.
    """
    if manifest is None:
        note_unknown_runs(storage, (epoch,))
    elif manifest.run_key is not None:
        runs.add(manifest.run_key, epoch)
    until = covered_epoch(storage) if runs_until is None else runs_until
    said = {"epoch": epoch, "runs_until": until}
    storage.replace(_mark_path(epoch), encode_document("retired", 1, said), durable=False)


def note_unknown_runs(storage: CheckpointStorage, epochs: Iterable[int]) -> None:
    """Keep in mind that the runs of some epochs are not known, if they were runs."""
    unknown = _unknown_runs(storage)
    new = [epoch for epoch in epochs if epoch not in unknown]
    if new:
        content = {"epochs": [*unknown, *new]}
        storage.replace(_UNKNOWN_RUNS, encode_document("unknown runs", 1, content))


def check_runs(storage: CheckpointStorage, *, must_be_known: bool = False) -> int:
    """Make sure that the keys of earlier runs are there; returns the newest epoch of one.

    `CheckpointError` if they are lost: the marks of retired epochs, or the history, tell of later
    ones. With `must_be_known` it is one, too, that nothing tells whether there were any.
    """
    covered = newest = 0
    for _ in range(_LISTINGS):  # while files of keys are merged a listing can miss them
        listing = list_manifests(storage)
        over = max(listing.floor, min(listing.epochs, default=1) - 1)
        records, unknown = newest_records(storage), _unknown_runs(storage)
        runs = {record.epoch for record in records if record.run_key is not None}
        recorded = max((e for e in runs.difference(unknown) if e <= over), default=0)
        newest = max(_marked_runs(storage, listing.floor), recorded)
        restored = marked_epoch(storage, RESTORED_FILE, "restored") or 0
        if must_be_known and not listing.floor and not records and over > restored:
            newest = 1
        covered = covered_epoch(storage)
        # Earlier versions had a file per key, whose name does not say the epoch.
        if covered >= newest or any(e.path.endswith(".run") for e in storage.list(RUNS)):
            return covered
    raise CheckpointError(
        f"checkpoint {storage.uri}: the files of {RUNS}/ are lost that hold the keys of runs from "
        f"epoch {covered + 1} on: bring them back from a copy, or no run could be told from one "
        "that was applied"
    )


def _marked_runs(storage: CheckpointStorage, floor: int) -> int:
    path = _mark_path(floor)
    try:
        fields = decode_document("retired", 1, storage.read_bytes(path), path)
        return fields.integer("runs_until")
    except NewerFormatError:
        raise
    except (FileNotFoundError, CheckpointError):
        return 0  # not synced, or of an earlier version


def set_back(storage: CheckpointStorage, manifest: Manifest) -> None:
    """Make an epoch the newest one, before the manifests of later ones are removed.

    Its output is committed: otherwise no later epoch would have been opened.
    """
    content = {"epoch": manifest.epoch, "evaluation_id": manifest.evaluation_id}
    storage.replace(COMMITTED, encode_document("committed", 1, content))
    storage.replace(LATEST, encode_document("latest", 1, {"epoch": manifest.epoch}))


def read_head(storage: CheckpointStorage) -> Manifest | None:
    """Read the newest manifest of a checkpoint; None if there is none."""
    history = History(storage)
    history.refresh()
    return history.head


def _first_hole(listing: Listing, newest: int) -> int:
    """Return the first epoch without a manifest up to `newest`, or 0."""
    if listing.floor:
        # An epoch is retired when a later one is there.
        expected, newest = listing.floor + 1, max(newest, listing.floor + 1)
    else:
        expected = listing.epochs[0] if listing.epochs else newest
    for epoch in listing.epochs:
        if epoch != expected:
            return expected
        expected += 1
    return expected if newest >= expected and newest > 0 else 0


def _latest(storage: CheckpointStorage) -> int:
    return marked_epoch(storage, LATEST, "latest") or 0


def _mark_path(epoch: int) -> str:
    return f"{MANIFESTS}/{epoch:08d}.retired"


def _unknown_runs(storage: CheckpointStorage) -> list[int]:
    """List the epochs whose manifests were damaged when they were retired."""
    data = find_bytes(storage, _UNKNOWN_RUNS)
    if data is None:
        return []
    return decode_document("unknown runs", 1, data, _UNKNOWN_RUNS).items("epochs")
