"""Which driver owns a checkpoint: the one that claimed it last.

Every driver publishes ``owners/<term>.owner`` with the next free term before it reads the state
that it builds on. Thread safety: an `Ownership` belongs to its coordinator's lock.

Invariants
----------
1. Terms only grow, and each is taken once: the newest owner files are never removed, since a name
   that became free could be taken again by a driver whose listing was overtaken.
2. Safety does not depend on the check, since another driver may take over just after it. It depends
   on manifests being put-if-absent, and on no driver building on a manifest of a later term than
   its own. The check only makes an older driver stop early.
"""

from __future__ import annotations

import os
import platform
import re
import time
from contextlib import suppress
from dataclasses import dataclass

from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import AlreadyPublishedError, FencedError, PystateError
from pystate.janitor import closing_mark

__all__ = ["Owner", "Ownership", "current_owner"]

_FORMAT_VERSION = 1
_FOLDER = "owners"
_KEPT = 16
_NAME = re.compile(_FOLDER + r"/(\d{8,})\.owner")


@dataclass(frozen=True)
class Owner:
    """A driver that took over a checkpoint."""

    term: int
    run_id: str
    host: str
    pid: int
    started_ms: int


class Ownership:
    """One driver's claim to a checkpoint.

    Parameters
    ----------
    storage : CheckpointStorage
        The checkpoint.
    run_id : str
        Names this driver in owner files and manifests.
    """

    def __init__(self, storage: CheckpointStorage, run_id: str) -> None:
        self._storage = storage
        self.run_id = run_id
        self.host = platform.node() or "unknown"
        self.term = 0

    def acquire(self) -> None:
        """Become the owner; from now on the previous owner fails with `FencedError`."""
        while True:
            terms = _terms(self._storage)
            term = max(terms, default=0) + 1
            fields = {
                "term": term,
                "run_id": self.run_id,
                "host": self.host,
                "pid": os.getpid(),
                "started_ms": time.time_ns() // 1_000_000,
            }
            try:
                self._storage.publish(_path(term), encode_document("owner", 1, fields))
            except AlreadyPublishedError:
                continue
            self.term = term
            for older in terms:
                if older <= term - _KEPT:
                    self._storage.delete(_path(older))
                    self._storage.delete(closing_mark(older))
            return

    def check(self) -> None:
        """Make sure that no other driver took over.

        Raises
        ------
        FencedError
            Another driver did; the message says which.
        """
        newest = max(_terms(self._storage), default=0)
        if newest != self.term:
            raise self.fenced(newest)

    def close(self) -> None:
        """Note that this driver no longer needs its tables in the memory of hosts."""
        if self.term:
            with suppress(OSError, PystateError):  # the checkpoint may have been removed
                self._storage.mark(closing_mark(self.term), b"")

    def fenced(self, newest: int) -> FencedError:
        """The error of a driver that finds another driver's term instead of its own."""
        owner = _read(self._storage, newest) if newest > self.term else None
        who = "its owner files were removed" if owner is None else _describe(owner)
        return FencedError(
            f"checkpoint {self._storage.uri} has another owner now: {who}; "
            f"this driver (run {self.run_id}) has published nothing since and must stop"
        )


def current_owner(storage: CheckpointStorage) -> Owner | None:
    """Return the driver that owns a checkpoint."""
    newest = max(_terms(storage), default=0)
    return _read(storage, newest) if newest else None


def _describe(owner: Owner) -> str:
    return f"run {owner.run_id}, process {owner.pid} on {owner.host}"


def _path(term: int) -> str:
    return f"{_FOLDER}/{term:08d}.owner"


def _terms(storage: CheckpointStorage) -> list[int]:
    matches = (_NAME.fullmatch(entry.path) for entry in storage.list(_FOLDER))
    return [int(match[1]) for match in matches if match]


def _read(storage: CheckpointStorage, term: int) -> Owner | None:
    path = _path(term)
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        return None  # a still newer owner removed it
    fields = decode_document("owner", _FORMAT_VERSION, data, path)
    return Owner(
        term=fields.integer("term", least=1),
        run_id=fields.text("run_id"),
        host=fields.text("host"),
        pid=fields.integer("pid"),
        started_ms=fields.integer("started_ms"),
    )
