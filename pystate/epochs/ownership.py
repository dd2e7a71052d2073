"""Which driver owns a checkpoint: the one that claimed it last.

Every driver publishes ``owners/<term>.owner`` with the next free term before it reads the state
that it builds on. Thread safety: an `Ownership` belongs to its coordinator's lock.

A stream is taken over from a driver that still runs when that has stopped. Spark keeps one log of a
query's positions, in which two queries fail each other: whoever writes the next batch's positions
last dies of it. So a driver that starts a stream owns the checkpoint first; the stream that has
lost it notices that, stops, and says so; then the new one starts, as after any stop. Nothing else
depends on this: a driver that is not heard of is waited for only so long, and it publishes nothing.

Invariants
----------
1. Terms only grow, and each is taken once: the newest owner files are never removed, since a name
   that became free could be taken again by a driver whose listing was overtaken.
2. Safety does not depend on the check, since another driver may take over just after it. It depends
   on manifests being put-if-absent, and on no driver building on a manifest of a later term than
   its own. The check only makes an older driver stop early.
3. ``owners/<term>-<id>.stream`` is there while a stream of that driver may write positions. A
   driver that is killed leaves it.
4. A driver has its term before it looks for the marks of others. It has its mark before it makes
   sure that it still owns the checkpoint, and only then changes anything of Spark's. So of two that
   begin at once the later one finds the mark of the earlier one and waits, or that one ends.
"""

from __future__ import annotations

import os
import platform
import re
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass

from pystate.base.folder_lock import FolderLock
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    CorruptFileError,
    FencedError,
    InUseError,
    NewerFormatError,
    PystateError,
    SwappedFileError,
)
from pystate.redaction import logger
from pystate.tables.janitor import closing_mark

_LOG = logger("pystate.epochs.ownership")
_FORMAT_VERSION = 1
OWNERS = "owners"
_OWNERS_KEPT = 16
#: A clock that was set meanwhile moves the time at which a process seems to have begun.
_CLOCK_STEP_MS = 60_000
_NAME = re.compile(OWNERS + r"/(\d{8,})\.owner")
_STREAM = re.compile(OWNERS + r"/(\d{8,})-[0-9a-f]+\.stream")
_LOOK_S = 0.1
#: How long a driver that runs may take to stop its stream.
_STOP_S = 60.0
#: How long one may take of which it is not known whether it runs, beside the time to notice.
_UNKNOWN_S = 5.0


@dataclass(frozen=True)
class Owner:
    """A driver that took over a checkpoint."""

    term: int
    run_id: str
    host: str
    pid: int
    started_ms: int


class Ownership:
    """One driver's claim to a checkpoint."""

    def __init__(self, storage: CheckpointStorage, run_id: str) -> None:
        self._storage = storage
        self.run_id = run_id
        self.host = platform.node() or "unknown"
        self.term = 0

    def acquire(self) -> None:
        """Become the owner; from now on the previous owner fails with `FencedError`."""
        while True:
            terms = _terms(self._storage)
            newest = max(terms, default=0)
            with suppress(CorruptFileError):  # it only says who the owner is
                _read(self._storage, newest)
            term = newest + 1
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
                if older <= term - _OWNERS_KEPT:
                    self._storage.delete(_path(older))
                    self._storage.delete(closing_mark(older))
            return

    def check(self) -> None:
        """Raise `FencedError` if another driver took over."""
        newest = max(_terms(self._storage), default=0)
        if newest != self.term:
            raise self.fenced_error(newest)

    def is_followed(self) -> bool:
        """Whether another driver has taken over; it has done so before anything else.

        Terms have no gaps, so that this is asked by name: a listing may be out of date.
        """
        return self._storage.exists(_path(self.term + 1))

    def log_start(self, job: str, head: Manifest | None) -> None:
        """Say where this driver begins, and after whose epoch."""
        if head is None:
            _LOG.info("job %r begins in %s as its driver %d", job, self._storage.uri, self.term)
            return
        _LOG.info(
            "job %r continues in %s after epoch %d, of driver %d, as its driver %d; "
            "what was begun and not published is computed again",
            job,
            self._storage.uri,
            head.epoch,
            head.term,
            self.term,
        )

    def close(self) -> None:
        """Note that this driver no longer needs its tables in the memory of hosts."""
        if self.term:
            with suppress(OSError, PystateError):  # the checkpoint may have been removed
                # A mark needs a folder of its own in an object store.
                self._storage.replace(closing_mark(self.term), b"", durable=False)

    def fenced_error(self, newest: int) -> FencedError:
        """The error of a driver that finds another driver's term instead of its own."""
        who = "its owner files were removed"
        try:
            owner = _read(self._storage, newest) if newest > self.term else None
            if owner is not None:
                who = _describe(owner)
        except NewerFormatError:
            who = "a driver of a later version of pystate"
        return FencedError(
            f"checkpoint {self._storage.uri} has another owner now: {who}; "
            f"this driver (run {self.run_id}) has published nothing since and must stop"
        )


def current_owner(storage: CheckpointStorage) -> Owner | None:
    """Return the driver that owns a checkpoint."""
    newest = max(_terms(storage), default=0)
    return _read(storage, newest) if newest else None


def fence_start(storage: CheckpointStorage) -> None:
    """Make sure that a start with other options, which has published nothing, publishes no more.

    Raises `InUseError` or `TableBusyError` if another process is at it.
    """
    lock = storage.local_path("lock")
    if lock is not None and os.path.exists(lock):
        FolderLock(os.path.dirname(lock), 0).release()  # raises where a store is open
    owner = current_owner(storage)
    mine = platform.node() or "unknown", os.getpid()
    if owner is not None and (owner.host, owner.pid) != mine and is_running(storage, owner):
        raise InUseError(
            f"checkpoint {storage.uri}: {_describe(owner)}, has started the job with other options "
            "(its name, max_parallelism, restore or uid_map), and has published nothing yet: stop "
            "it first"
        )
    ownership = Ownership(storage, uuid.uuid4().hex)
    ownership.acquire()
    ownership.close()


def is_running(
    storage: CheckpointStorage, owner: Owner, *, ended_if_closed: bool = True
) -> bool | None:
    """Whether a driver still runs; None if it ran on another host and has not closed its job.

    A process that has got the number of an ended driver began after the driver, and is not it.
    """
    if ended_if_closed and storage.exists(closing_mark(owner.term)):
        return False
    if owner.host != (platform.node() or "unknown"):
        return None
    try:
        with open(f"/proc/{owner.pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/uptime", encoding="ascii") as file:
            up_s = float(file.read().split()[0])
    except FileNotFoundError:
        return False
    began_ms = (time.time() - up_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")) * 1000
    return fields[0] not in "ZX" and began_ms <= owner.started_ms + _CLOCK_STEP_MS


def have_ended(storage: CheckpointStorage, after: int, before: int) -> bool:
    """Whether the drivers of the terms from `after` on, up to that `before`, publish no more.

    What a killed driver has sent to an object store may still arrive, so that there the driver must
    have closed its job. A term without a file is long over: `Ownership.acquire` removed it.
    """
    local = storage.local_path(OWNERS) is not None
    # By name, since a listing may be out of date.
    for term in range(max(1, after, before - _OWNERS_KEPT), before):
        try:
            owner = _read(storage, term)
        except (CorruptFileError, NewerFormatError):
            return False
        if owner is None:
            continue
        if is_running(storage, owner) is not False:
            return False
        if not local and not storage.exists(closing_mark(term)):
            return False
    return True


def _describe(owner: Owner) -> str:
    return f"run {owner.run_id}, process {owner.pid} on {owner.host}"


def _path(term: int) -> str:
    return f"{OWNERS}/{term:08d}.owner"


def _terms(storage: CheckpointStorage) -> list[int]:
    matches = (_NAME.fullmatch(entry.path) for entry in storage.list(OWNERS))
    return [int(match[1]) for match in matches if match]


def _read(storage: CheckpointStorage, term: int) -> Owner | None:
    try:
        return read_owner(storage, _path(term))
    except FileNotFoundError:
        return None  # a still newer owner removed it


def read_owner(storage: CheckpointStorage, path: str) -> Owner:
    """Read an owner's file; `FileNotFoundError` if a still newer owner removed it."""
    data = storage.read_bytes(path)
    fields = decode_document("owner", _FORMAT_VERSION, data, path)
    owner = Owner(
        term=fields.integer("term", least=1),
        run_id=fields.text("run_id"),
        host=fields.text("host"),
        pid=fields.integer("pid"),
        started_ms=fields.integer("started_ms"),
    )
    if _path(owner.term) != path:
        raise SwappedFileError(f"{path}: it holds the owner of term {owner.term}")
    return owner


# ---- streams -------------------------------------------------------------------------------------


def note_stream(storage: CheckpointStorage, term: int) -> str:
    """Say that a driver's stream is about to start; returns what says so."""
    mark = f"{OWNERS}/{term:08d}-{uuid.uuid4().hex}.stream"
    storage.replace(mark, b"", durable=False)
    return mark


def forget_stream(storage: CheckpointStorage, mark: str) -> None:
    """Say that a driver's stream has ended."""
    with suppress(OSError, PystateError):  # the checkpoint may have been removed
        storage.delete(mark)


def await_streams(storage: CheckpointStorage, term: int) -> None:
    """Wait until the streams of earlier drivers have stopped; the driver of `term` owns them."""
    for entry in storage.list(OWNERS):
        match = _STREAM.fullmatch(entry.path)
        if match is not None and int(match[1]) < term:
            _await_stream(storage, entry.path, _stream_owner(storage, int(match[1])))


def _await_stream(storage: CheckpointStorage, mark: str, owner: Owner | None) -> None:
    pause, began_s = threading.Event(), time.monotonic()
    said = False
    while owner is not None and storage.exists(mark):
        running = _lives(storage, owner)
        if running is False:
            break
        # It looks as often as a task gives a sign of life.
        most_s = _STOP_S if running else _UNKNOWN_S + 3 * storage.touch_every_s
        who = f"process {owner.pid} on {owner.host}"
        if time.monotonic() - began_s >= most_s:
            _LOG.warning(
                "checkpoint %s: the stream of %s has not said within %.0f s that it has stopped; "
                "this driver starts its own. What the other one still computes is not published; "
                "if it is at the same batch, Spark may end either query",
                storage.uri,
                who,
                most_s,
            )
            break
        if not said:
            said = True
            _LOG.info("checkpoint %s: waiting for the stream of %s to stop", storage.uri, who)
        pause.wait(_LOOK_S)
    forget_stream(storage, mark)


def _stream_owner(storage: CheckpointStorage, term: int) -> Owner | None:
    try:
        return read_owner(storage, _path(term))
    except (FileNotFoundError, CheckpointError):
        return None


def _lives(storage: CheckpointStorage, owner: Owner) -> bool | None:
    """Whether a driver's process runs, whether or not its job was closed meanwhile."""
    if owner.host == (platform.node() or "unknown") and owner.pid == os.getpid():
        return False  # what this process runs on the checkpoint was stopped before
    return is_running(storage, owner, ended_if_closed=False)
