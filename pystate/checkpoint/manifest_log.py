"""The manifests that a checkpoint retains, read and checked.

Thread safety: a `History` has one user at a time (its coordinator's lock).

Invariants
----------
1. Retained epochs are consecutive: retention removes the oldest first. A gap is a lost manifest and
   is never skipped.
2. ``manifests/latest`` is at most the newest epoch ever published. It is written after the manifest
   and not synced, so that it can only lag behind. It shows if the newest manifest is lost. It and
   ``manifests/committed`` may be damaged, and are then as if they were not there; but those of a
   later version are not overwritten.
3. A manifest with a run key is not removed before `RunKeys` has the key. A damaged manifest may
   have had any key: it is retired like others, and ``runs/unknown`` names its epoch.
4. Before a manifest is removed, ``manifests/<epoch>.retired`` is written. A driver that was delayed
   between its last check and its publish finds the manifest's name free again, and must see that
   the epoch is over. Manifests at or below the newest mark do not count.
5. A mark is not synced. A retired manifest, and the files that only it names, are removed after the
   folder is synced, which the next publish does: if the machine stops before, the epoch may be a
   retained one again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from pystate.checkpoint.manifest import (
    MANIFESTS,
    Manifest,
    manifest_epoch,
    manifest_path,
    read_manifest,
)
from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.parts import Parts
from pystate.checkpoint.run_keys import RUNS, RunKeys
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, CorruptFileError, FencedError, NewerFormatError
from pystate.redaction import logger

__all__ = [
    "COMMITTED",
    "LATEST",
    "History",
    "Retired",
    "Survey",
    "mark_retired",
    "read_head",
    "retained_epochs",
    "set_back",
    "survey",
]

_LOG = logger("pystate.checkpoint.manifest_log")
#: The files that name the newest epoch, and the newest whose output is committed.
LATEST = f"{MANIFESTS}/latest"
COMMITTED = f"{MANIFESTS}/committed"
_UNKNOWN_RUNS = f"{RUNS}/unknown"
_LISTINGS = 5
_MARK = re.compile(MANIFESTS + r"/(\d{8,})\.retired")
# Number of marks to keep, although only the newest counts: a listing that runs while a driver makes
# a new mark and removes an old one must not miss both.
_MARKS = 16


class History:
    """Reads, caches and retires manifests.

    Parameters
    ----------
    storage : CheckpointStorage
        The checkpoint.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._parts = Parts(storage)
        self._runs = RunKeys(storage)
        self._cache: dict[int, Manifest] = {}
        self._epochs: tuple[int, ...] = ()
        self._leftovers: tuple[str, ...] = ()

    @property
    def epochs(self) -> tuple[int, ...]:
        """The retained epochs, ascending, as of the last `refresh`."""
        return self._epochs

    @property
    def head(self) -> Manifest | None:
        """The newest epoch, as of the last `refresh`."""
        return self._cache[self._epochs[-1]] if self._epochs else None

    def refresh(self) -> None:
        """Read the storage again.

        Raises
        ------
        CheckpointError
            A manifest is lost; the message names its file.
        CorruptFileError, NewerFormatError
            The newest manifest cannot be read.
        FencedError
            Another driver keeps publishing faster than this one can read.
        """
        known = self._epochs[-1] if self._epochs else 0
        for _ in range(_LISTINGS):
            epochs, _, self._leftovers = _retained(self._storage, known)
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

        Raises
        ------
        CorruptFileError, NewerFormatError
            It cannot be understood.
        FencedError
            Another driver has retired it since the last `refresh`.
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

        Raises
        ------
        CorruptFileError, NewerFormatError
            It cannot be understood.
        FencedError
            The epoch was published and retired.
        """
        path = manifest_path(epoch)
        try:
            return read_manifest(self._storage, path, self._parts)
        except FileNotFoundError:
            if epoch <= _scan(self._storage).floor:
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
        # Without it, only the detection of a lost manifest is weaker.
        with suppress(CheckpointError, OSError):
            self._storage.replace(LATEST, content, durable=False)

    def note_committed(self, manifest: Manifest, *, durable: bool = False) -> None:
        """Note that an epoch's sink transactions are committed.

        Parameters
        ----------
        durable : bool
            Fail rather than lose the note, since the transactions cannot be committed again.
        """
        # A driver that was delayed here may resume when its successors are ahead of it.
        if self._committed()[0] > manifest.epoch:
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
        return self._committed() == (manifest.epoch, manifest.evaluation_id)

    def _committed(self) -> tuple[int, str]:
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

        Raises
        ------
        CheckpointError
            No readable epoch is that run's, but some epochs cannot be read.
        """
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

        Raises
        ------
        FencedError
            Other drivers published and retired this epoch while this one was delayed, which freed
            its name. The manifest does not count, and is removed.
        """
        if manifest.epoch > _scan(self._storage).floor:
            return
        self._storage.delete(manifest.path)
        raise FencedError(
            f"{manifest.path} was published, and retired since, by another driver; this one "
            f"(run {manifest.run_id}) has changed nothing"
        )

    def retire(self, keep: int) -> Retired:
        """Retire all but the newest `keep` manifests, the oldest first. Nothing is removed.

        Returns
        -------
        Retired
            What may be removed once ``manifests`` is synced. It has no state files and parts if a
            retained manifest is damaged, and lacks those of a retired damaged one: orphan
            collection finds them.
        """
        removed: set[str] = set()
        log: list[str] = []
        while len(self._epochs) > keep:
            epoch = self._epochs[0]
            manifest = self._intact(epoch)
            if manifest is None:
                _LOG.warning("%s is damaged, and retired without its files", manifest_path(epoch))
            mark_retired(self._storage, self._runs, epoch, manifest)
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


class _Listing(NamedTuple):
    epochs: tuple[int, ...]
    """The epochs above the floor, ascending."""
    floor: int
    """The newest epoch that was retired."""
    leftovers: tuple[str, ...]
    """Manifests at or below the floor: they do not count."""


def _scan(storage: CheckpointStorage) -> _Listing:
    numbers, floor = [], 0
    for entry in storage.list(MANIFESTS):
        epoch, mark = manifest_epoch(entry.path), _MARK.fullmatch(entry.path)
        if epoch is not None:
            numbers.append(epoch)
        elif mark is not None:
            floor = max(floor, int(mark[1]))
    return _Listing(
        tuple(sorted(number for number in numbers if number > floor)),
        floor,
        tuple(manifest_path(number) for number in numbers if number <= floor),
    )


def _retained(storage: CheckpointStorage, at_least: int) -> _Listing:
    lost = 0
    # A listing is not atomic: while a driver retires manifests it can show a false gap, which the
    # next listing does not show.
    for _ in range(_LISTINGS):
        listing = _scan(storage)
        lost = _first_hole(listing, max(at_least, _latest(storage)))
        if not lost:
            return listing
    raise CheckpointError(
        f"checkpoint {storage.uri}: the manifest {manifest_path(lost)} is lost; nothing is built "
        "on an older epoch in its place: bring the file back from a copy"
    )


def retained_epochs(storage: CheckpointStorage) -> tuple[int, ...]:
    """List the epochs that have a manifest, ascending.

    Raises
    ------
    CheckpointError
        There is a gap, or the newest manifest is missing.
    """
    return _retained(storage, 0).epochs


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
    for _ in range(_LISTINGS):  # as in `_retained`
        listing = _scan(storage)
        noted = 0
        with suppress(NewerFormatError):  # reported with the other small files
            noted = _latest(storage)
        newest = max(noted, *listing.epochs, listing.floor)
        first = listing.floor + 1 if listing.floor else min(listing.epochs, default=newest)
        found = set(listing.epochs)
        lost = tuple(epoch for epoch in range(max(first, 1), newest + 1) if epoch not in found)
        if not lost:
            break
    return Survey(listing.epochs, lost, listing.floor)


def mark_retired(
    storage: CheckpointStorage, runs: RunKeys, epoch: int, manifest: Manifest | None
) -> None:
    """Do what must precede the removal of a manifest; None for one that cannot be read."""
    if manifest is None:
        unknown = _unknown_runs(storage)
        if epoch not in unknown:
            content = {"epochs": [*unknown, epoch]}
            storage.replace(_UNKNOWN_RUNS, encode_document("unknown runs", 1, content))
    elif manifest.run_key is not None:
        runs.add(manifest.run_key, epoch)
    storage.replace(_mark_path(epoch), b"", durable=False)


def set_back(storage: CheckpointStorage, manifest: Manifest) -> None:
    """Make an epoch the newest one, before the manifests of later ones are removed.

    Its output is committed: otherwise no later epoch would have been opened.
    """
    content = {"epoch": manifest.epoch, "evaluation_id": manifest.evaluation_id}
    storage.replace(COMMITTED, encode_document("committed", 1, content))
    storage.replace(LATEST, encode_document("latest", 1, {"epoch": manifest.epoch}))


def read_head(storage: CheckpointStorage) -> Manifest | None:
    """Read the newest manifest of a checkpoint; None if there is none.

    Raises
    ------
    CheckpointError
        The manifest is lost or cannot be understood.
    """
    history = History(storage)
    history.refresh()
    return history.head


def _first_hole(listing: _Listing, newest: int) -> int:
    """Return the first epoch without a manifest up to `newest`, or 0."""
    if listing.floor:
        expected = listing.floor + 1
    else:
        expected = listing.epochs[0] if listing.epochs else newest
    for epoch in listing.epochs:
        if epoch != expected:
            return expected
        expected += 1
    return expected if newest >= expected and newest > 0 else 0


def _latest(storage: CheckpointStorage) -> int:
    try:
        fields = decode_document("latest", 1, storage.read_bytes(LATEST), LATEST)
        return fields.integer("epoch")
    except NewerFormatError:
        raise
    except (FileNotFoundError, CheckpointError):
        return 0


def _mark_path(epoch: int) -> str:
    return f"{MANIFESTS}/{epoch:08d}.retired"


def _unknown_runs(storage: CheckpointStorage) -> list[int]:
    """List the epochs whose manifests were damaged when they were retired."""
    try:
        data = storage.read_bytes(_UNKNOWN_RUNS)
    except FileNotFoundError:
        return []
    return decode_document("unknown runs", 1, data, _UNKNOWN_RUNS).items("epochs")
