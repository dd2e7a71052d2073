"""Leases by which a reader asks a running job to keep an epoch.

What a job makes of them is said in `pystate.checkpoint.leases`. A `Lease` is held by a thread that
renews it; where it stands, its `Leases` know: files of the checkpoint, or a server that has them.

Thread safety: any thread.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pystate.checkpoint.job_file import SAVEPOINT_FILE
from pystate.checkpoint.leases import LeaseName
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import ClosedError, InvalidArgumentError, PystateError
from pystate.query.retired import check_retained
from pystate.redaction import logger
from pystate.types.durations import Duration, milliseconds

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logger("pystate.query.lease")
#: For how long a lease is asked for, and so how long that of a dead reader goes on.
DURATION: Duration = "2 minutes"
_MOST_MS = 86_400_000
#: How often it is renewed in that time, and how often it may move to another epoch.
_RENEWALS, _MOVES = 3, 8


class Leases(Protocol):
    """Where leases of a job stand."""

    @property
    def where(self) -> str:
        """What messages call it."""

    def write(self, lease: LeaseName, before: LeaseName | None) -> None:
        """Ask for a lease, for the first time, or in place of the one `before`.

        `RetiredEpochError` if the epoch is gone when it is first asked for.
        """

    def end(self, lease: LeaseName) -> None:
        """Ask for it no more."""


class LeaseFiles:
    """Leases as files of a checkpoint."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._holder: dict[str, object] = {
            "host": platform.node() or "unknown",
            "pid": os.getpid(),
            "since_ms": time.time_ns() // 1_000_000,
        }

    @property
    def where(self) -> str:
        """The checkpoint."""
        return self._storage.uri

    def write(self, lease: LeaseName, before: LeaseName | None) -> None:
        """Write a lease; as `Leases.write`."""
        if before is None and self._storage.exists(SAVEPOINT_FILE):
            raise InvalidArgumentError(
                f"{self.where} is a savepoint, of which nothing is ever removed: read it without "
                "a lease"
            )
        lease.write(self._storage, self._holder)
        if before is None:
            try:
                check_retained(self._storage, lease.epoch)
            except BaseException:
                self.end(lease)
                raise
        elif before.path != lease.path:
            self.end(before)

    def end(self, lease: LeaseName) -> None:
        """Remove it; as `Leases.end`."""
        with suppress(PystateError, OSError):
            self._storage.delete(lease.path)


class Lease:
    """Asks the job of a checkpoint to keep an epoch, and all later ones: `StateReader.lease`.

    It is a small file in the checkpoint, which a thread renews until `close`. The job honours it
    within its own bounds (``Job(max_lease=...)``), as from the next epoch that it publishes. The
    lease of a process that has ended goes on for its duration, and no longer.
    """

    def __init__(self, leases: Leases, epoch: int, duration: Duration = DURATION) -> None:
        lasts_ms = milliseconds(duration, "lease: duration", least=1000)
        if lasts_ms > _MOST_MS:
            raise InvalidArgumentError(
                "lease: duration is a day at most, and renewed as long as it is held"
            )
        self._leases, self._process = leases, os.getpid()
        self._seconds = -(-lasts_ms // 1000)
        self._name = self._next = LeaseName(epoch, self._seconds, uuid.uuid4().hex)
        self._lock, self._ended = threading.Lock(), threading.Event()
        leases.write(self._name, None)
        self._written_s = time.monotonic()
        self._thread = threading.Thread(target=self._keep, name="pystate-lease", daemon=True)
        self._thread.start()

    @property
    def epoch(self) -> int:
        """The epoch that is kept, with all later ones."""
        return self._next.epoch

    @property
    def path(self) -> str:
        """The file, relative to the checkpoint."""
        return self._name.path

    def move(self, epoch: int) -> None:
        """Keep a later epoch instead.

        What is kept until then may stay a few seconds longer: the file is not written each time.
        """
        with self._lock:
            self._check()
            if epoch < self._next.epoch:
                raise InvalidArgumentError(
                    f"a lease of epoch {self._next.epoch} cannot go back to epoch {epoch}, which "
                    "the job may have retired: ask for another lease"
                )
            self._next = self._next._replace(epoch=epoch)
            if time.monotonic() - self._written_s >= self._seconds / _MOVES:
                self._try_to_renew()

    def close(self) -> None:
        """Let the job retire the epoch. Does nothing the second time, or in a forked child."""
        if os.getpid() != self._process or self._ended.is_set():
            return
        self._ended.set()
        with self._lock:
            self._leases.end(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Lease of {self._leases.where} from epoch {self.epoch} on>"

    def _check(self) -> None:
        if self._ended.is_set() or os.getpid() != self._process:
            raise ClosedError(f"the lease of epoch {self.epoch} has ended: ask for another one")

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            with self._lock:
                if self._ended.is_set():
                    return
                self._try_to_renew()

    def _try_to_renew(self) -> None:
        try:
            self._renew()
        except (PystateError, OSError) as error:
            _LOG.warning("%s is not renewed: %s; it is tried again", self.path, error)

    def _renew(self) -> None:
        before, name = self._name, self._next
        self._leases.write(name, before)
        self._name, self._written_s = name, time.monotonic()
