"""Leases: small files by which readers ask a job to keep an epoch for a while.

``manifests/leases/<epoch>-<seconds>-<id>.lease`` asks for an epoch and all later ones, for so many
seconds since the file was last written. Its name says all that a job needs to know; what is in it
tells people who holds it. A job looks at the list of ``manifests`` after each manifest that it
publishes, and so learns of leases without a request of its own.

Thread safety: a `LeaseBook` belongs to its coordinator's lock; the functions have no state.

Invariants
----------
1. A lease only ever puts off what retention would do, within the job's own bounds: it keeps nothing
   that is retired already, and no wrong lease loses state, or makes an epoch fail or wait.
2. How long a lease goes on is measured by whoever honours it, from when he first saw it as it is.
   So clocks of readers do not matter, and that of a dead reader ends. How long an epoch is kept at
   most is counted from when the next one was published, by the clock of the job.
3. A job of an earlier version does not know the names, and leaves the files where they are.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.parts import MANIFESTS
from pystate.checkpoint.storage import CheckpointStorage, FileEntry
from pystate.redaction import logger

_LOG = logger("pystate.checkpoint.leases")
LEASES = f"{MANIFESTS}/leases"
#: How long a job keeps an epoch for readers at most, unless it says otherwise.
MOST_MS = 3_600_000
#: How many epochs readers may make a job keep: it has their manifests in memory.
MOST_EPOCHS = 1024
_NAME = re.compile(re.escape(LEASES) + r"/(\d{8,})-(\d{1,9})-([0-9a-f]{32})\.lease")
#: For so long after its end a lease may still be renewed by a reader that was slow.
_GRACE_S = 60.0
#: A file that no version has named so, or a later one.
_UNKNOWN_S = 86_400.0


class LeaseName(NamedTuple):
    """What a lease asks for."""

    epoch: int
    seconds: int
    id: str
    """Of its reader, 32 hexadecimal digits."""

    @property
    def path(self) -> str:
        """The file."""
        return f"{LEASES}/{self.epoch:08d}-{self.seconds}-{self.id}.lease"

    @classmethod
    def parse(cls, path: str) -> LeaseName | None:
        """What the name of a file says; None if it is not a lease that this version knows."""
        match = _NAME.fullmatch(path)
        return None if match is None else cls(int(match[1]), int(match[2]), match[3])

    def write(self, storage: CheckpointStorage, holder: dict[str, object]) -> None:
        """Ask for it, or once more; `holder` says who does."""
        said = {"epoch": self.epoch, "seconds": self.seconds, **holder}
        storage.replace(self.path, encode_document("lease", 1, said), durable=False)


class RetainedEpochs(Protocol):
    """The epochs that there are; `manifest_log.History` is one."""

    @property
    def epochs(self) -> tuple[int, ...]:
        """Their numbers, ascending."""

    def published_ms(self, epoch: int) -> int | None:
        """When an epoch was published; None if that is not known."""


class LeaseBook:
    """The leases that a job honours."""

    def __init__(self, most_ms: int = MOST_MS, clock_s: Callable[[], float] = time.monotonic):
        self._most_ms, self._clock_s = most_ms, clock_s
        self._seen: dict[FileEntry, float] = {}
        self._told: set[str] = set()

    def keep(self, entries: Sequence[FileEntry], retained: RetainedEpochs, least: int) -> int:
        """How many of the newest epochs are kept, `least` of them anyway.

        `entries` are the files below ``leases``.
        """
        epochs = retained.epochs
        if not entries or not epochs or not self._most_ms:
            self._seen.clear()
            return least
        now_s, now_ms = self._clock_s(), time.time_ns() // 1_000_000
        self._seen = {entry: self._seen.get(entry, now_s) for entry in entries}
        kept = least
        for entry, since_s in self._seen.items():
            lease = LeaseName.parse(entry.path)
            if lease is None:
                self._tell(entry.path, "no lease that this version knows: it keeps no epoch")
                continue
            if now_s - since_s < min(lease.seconds, self._most_ms / 1000):
                first = self._first(lease.epoch, retained, least, now_ms)
                if epochs[0] <= lease.epoch < first:
                    self._tell(entry.path, "held for longer than the job keeps epochs for readers")
                kept = max(kept, epochs[-1] - first + 1)
        return kept

    def _first(self, epoch: int, retained: RetainedEpochs, least: int, now_ms: int) -> int:
        """The first epoch that is kept for a lease of this one; beyond the newest for none."""
        epochs = retained.epochs
        first = max(epoch, epochs[0], epochs[-1] - least - MOST_EPOCHS + 1)
        while first <= epochs[-1] - least:
            next_ms = retained.published_ms(first + 1)
            if next_ms is not None and now_ms < next_ms + self._most_ms:
                break
            first += 1
        return first

    def ended(self) -> tuple[str, ...]:
        """Leases of readers that have died: they may be removed."""
        now_s, over = self._clock_s(), []
        for entry, since_s in self._seen.items():
            lease = LeaseName.parse(entry.path)
            if lease is not None and now_s - since_s >= lease.seconds + _GRACE_S:
                over.append(entry.path)
        return tuple(over)

    def _tell(self, path: str, what: str) -> None:
        if path not in self._told:
            self._told.add(path)
            _LOG.warning("%s is %s", path, what)


def ended_leases(entries: Iterable[FileEntry], now_ms: int) -> list[FileEntry]:
    """Those whose reader has not renewed them for long, by the storage's times; no job runs."""
    over = []
    for entry in entries:
        lease = LeaseName.parse(entry.path)
        seconds = _UNKNOWN_S if lease is None else lease.seconds + _GRACE_S
        if now_ms - entry.modified_ms >= seconds * 1000:
            over.append(entry)
    return over
