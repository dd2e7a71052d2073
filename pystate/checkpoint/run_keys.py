"""The run keys of retired epochs, kept for ever and in few files.

``runs/<first>-<last>.keys`` holds the keys of all runs from the first to the last epoch. Each
retired run adds a file for the epochs since the previous file; eight files of about one size are
merged, so that their number grows with the logarithm of the number of keys.

Thread safety: a `RunKeys` has one user at a time; other drivers may use their own meanwhile.

Invariants
----------
1. The keys of a file's epochs are complete and never change, whichever driver writes them: keys are
   added in the order of epochs, and before their manifests are removed. So a file whose epochs and
   keys another file also has is not needed, and any driver may remove it.
2. The files cover the epochs from the first on without a gap; a gap is a lost file.
3. A merged file is durable before its sources are removed. A listing made meanwhile may miss both,
   but not twice in the same way: only two equal successive listings are trusted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pystate.checkpoint.metadata import Fields, decode_document, encode_document
from pystate.checkpoint.size_tiers import newest_tier
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    CorruptFileError,
    NewerFormatError,
    SwappedFileError,
)

RUNS = "runs"
_FORMAT_VERSION = 1
_NAME = re.compile(RUNS + r"/(\d{8,})-(\d{8,})\.keys")
#: The files of earlier versions: one per key.
_SINGLE = re.compile(RUNS + r"/([0-9a-f]{64})\.run")
_DIGITS = 32
_FAN_IN = 8
_LISTINGS = 10


class _File(NamedTuple):
    """The keys of some epochs."""

    first: int
    last: int

    @property
    def path(self) -> str:
        return f"{RUNS}/{self.first:08d}-{self.last:08d}.keys"

    def within(self, other: _File) -> bool:
        """Whether another file covers these epochs."""
        return self != other and other.first <= self.first and self.last <= other.last


class _Listing(NamedTuple):
    files: tuple[_File, ...]
    """The files, ascending; some may be covered by others."""
    singles: tuple[str, ...]

    @property
    def last(self) -> int:
        """The newest epoch that is covered."""
        return max((file.last for file in self.files), default=0)

    @property
    def covering(self) -> list[_File]:
        """The files that are not covered by others, ascending."""
        return [f for f in self.files if not any(f.within(other) for other in self.files)]

    def plus(self, file: _File) -> _Listing:
        """Add a file that was just written."""
        return self._replace(files=tuple(sorted({*self.files, file})))


def check_version(path: str, data: bytes) -> None:
    """Refuse a file of run keys, intact, that a later version wrote."""
    if _NAME.fullmatch(path):
        decode_document("run keys", _FORMAT_VERSION, data, path)


def covered_epoch(storage: CheckpointStorage) -> int:
    """Return the newest epoch whose run key is kept here, by the names of the files; 0 for none."""
    matches = (_NAME.fullmatch(entry.path) for entry in storage.list(RUNS))
    return max((int(match[2]) for match in matches if match), default=0)


class RunKeys:
    """Finds and keeps run keys.

    All methods raise `CheckpointError` if a file is lost, or cannot be understood.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._known: dict[_File, Mapping[str, int]] = {}

    def find(self, run_key: str) -> int | None:
        """Return the epoch of a retired run, or None."""
        digest = hashlib.sha256(run_key.encode()).hexdigest()
        for _ in range(_LISTINGS):
            listing = self._list()
            with suppress(FileNotFoundError):
                # Newest first, since mostly those keys are looked up again.
                for file in reversed(listing.files):
                    epoch = self._keys(file).get(digest[:_DIGITS])
                    if epoch is not None:
                        return epoch
                single = f"{RUNS}/{digest}.run"
                return self._single(single)[1] if single in listing.singles else None
        raise self._unsteady()

    def add(self, run_key: str, epoch: int) -> None:
        """Add a run's key durably. Adding it again changes nothing."""
        digest = hashlib.sha256(run_key.encode()).hexdigest()[:_DIGITS]
        for _ in range(_LISTINGS):
            with suppress(FileNotFoundError):
                listing = self._list()
                if listing.singles:
                    self._take_over_singles(listing)
                    listing = self._list()
                if not any(self._keys(file).get(digest) == epoch for file in listing.files):
                    file = _File(min(listing.last + 1, epoch), epoch)
                    self._write(file, {digest: epoch})
                    listing = listing.plus(file)
                self._merge(listing)
                return
        raise self._unsteady()

    def copy_to(self, destination: CheckpointStorage, until: int) -> None:
        """Keep the keys of runs up to an epoch in another checkpoint, too, which has none."""
        keys: dict[str, int] | None = None
        for _ in range(_LISTINGS):
            listing = self._list()
            with suppress(FileNotFoundError):
                keys = dict(self._single(path) for path in listing.singles)
                for file in listing.covering:
                    keys.update(self._keys(file))
                break
        if keys is None:
            raise self._unsteady()
        keys = {digest: epoch for digest, epoch in keys.items() if epoch <= until}
        if keys:
            RunKeys(destination)._write(_File(1, max(keys.values())), keys)

    def damage(self) -> list[tuple[str, CheckpointError]]:
        """Read all files, and return those that cannot be understood, with their errors."""
        damaged: list[tuple[str, CheckpointError]] = []
        listing = self._list()
        reads: list[tuple[str, Callable[[], object]]] = [
            *((file.path, partial(self._keys, file)) for file in listing.files),
            *((path, partial(self._single, path)) for path in listing.singles),
        ]
        for path, read in reads:
            with suppress(FileNotFoundError):  # merged meanwhile
                try:
                    read()
                except (CorruptFileError, NewerFormatError) as error:
                    damaged.append((path, error))
        return damaged

    # ---- within --------------------------------------------------------------------------------

    def _list(self) -> _Listing:
        before = None
        for _ in range(_LISTINGS):
            files, singles = [], []
            for entry in self._storage.list(RUNS):
                match = _NAME.fullmatch(entry.path)
                if match is not None:
                    files.append(_File(int(match[1]), int(match[2])))
                elif _SINGLE.fullmatch(entry.path):
                    singles.append(entry.path)
            listing = _Listing(tuple(sorted(files)), tuple(singles))
            if listing == before:
                self._check_covered(listing)
                self._known = {f: keys for f, keys in self._known.items() if f in listing.files}
                return listing
            before = listing
        raise self._unsteady()

    def _check_covered(self, listing: _Listing) -> None:
        expected = 1
        for file in listing.files:
            if file.first > expected:
                raise CheckpointError(
                    f"checkpoint {self._storage.uri}: a file of {RUNS}/ is lost, that holds the "
                    f"keys of the runs from epoch {expected} to {file.first - 1}: bring it back "
                    "from a copy, or no run could be told from one that was applied"
                )
            expected = max(expected, file.last + 1)

    def _keys(self, file: _File) -> Mapping[str, int]:
        if file not in self._known:
            data = self._storage.read_bytes(file.path)
            fields = decode_document("run keys", _FORMAT_VERSION, data, file.path)
            stored = _File(fields.integer("first"), fields.integer("last"))
            content = fields.mapping("runs")
            fields.finish()
            inner = Fields(content, file.path)
            keys = {name: inner.integer(name, least=file.first) for name in content}
            if stored != file or any(epoch > file.last for epoch in keys.values()):
                raise SwappedFileError(f"{file.path}: belongs to other epochs")
            self._known[file] = keys
        return self._known[file]

    def _write(self, file: _File, keys: Mapping[str, int]) -> None:
        content = {"first": file.first, "last": file.last, "runs": keys}
        try:
            data = encode_document("run keys", _FORMAT_VERSION, content)
            self._storage.publish(file.path, data)
        except AlreadyPublishedError:
            if not keys.items() <= self._keys(file).items():
                raise CorruptFileError(
                    f"{file.path}: lacks a run of these epochs; bring it back from a copy"
                ) from None
        else:
            self._known[file] = dict(keys)

    def _merge(self, listing: _Listing) -> None:
        """Merge the newest files if enough are of one size; remove superfluous ones."""
        covering = listing.covering
        sizes = [len(self._keys(file)) for file in covering]
        powers = range(max(sizes, default=0).bit_length())
        tiers = [(_FAN_IN**power, _FAN_IN ** (power + 1)) for power in powers]
        start = newest_tier(sizes, tiers, _FAN_IN)
        if start < len(covering) - 1:
            merged = _File(covering[start].first, covering[-1].last)
            keys: dict[str, int] = {}
            for file in covering[start:]:
                keys.update(self._keys(file))
            self._write(merged, keys)
            listing = listing.plus(merged)
        for file in listing.files:
            for other in listing.covering:
                if file.within(other) and self._keys(file).items() <= self._keys(other).items():
                    self._storage.delete(file.path)
                    self._known.pop(file, None)
                    break

    def _take_over_singles(self, listing: _Listing) -> None:
        """Merge the files of an earlier version into one, and remove them."""
        keys = dict(self._single(path) for path in listing.singles)
        known = {key for file in listing.files for key in self._keys(file)}
        new = {digest: epoch for digest, epoch in keys.items() if digest not in known}
        if new:
            self._write(_File(min(listing.last + 1, *new.values()), max(new.values())), new)
        for path in listing.singles:
            self._storage.delete(path)

    def _single(self, path: str) -> tuple[str, int]:
        fields = decode_document("run", 1, self._storage.read_bytes(path), path)
        digest = hashlib.sha256(fields.text("run_key").encode()).hexdigest()
        if path != f"{RUNS}/{digest}.run":
            raise SwappedFileError(f"{path}: belongs to another run key")
        return digest[:_DIGITS], fields.integer("epoch", least=1)

    def _unsteady(self) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {self._storage.uri}: another driver is changing {RUNS}/ all the time"
        )
