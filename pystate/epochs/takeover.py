"""How a stream is taken over from a driver that still runs: the new one waits until it has stopped.

Spark keeps one log of a query's positions, in which two queries fail each other: whoever writes the
next batch's positions last dies of it. So a driver that starts a stream owns the checkpoint first;
the stream that has lost it notices that, stops, and says so; then the new one starts, as after any
stop. Nothing else depends on this: a driver that is not heard of is waited for only so long, and
that it publishes nothing follows from `pystate.epochs.ownership`.

Thread safety: functions without state.

Invariants
----------
1. ``owners/<term>-<id>.stream`` is there while a stream of that driver may write positions. A
   driver that is killed leaves it.
2. A driver has its term before it looks for the marks of others. It has its mark before it makes
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

from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.ownership import OWNERS, Owner, is_running, read_owner
from pystate.errors import CheckpointError, PystateError
from pystate.redaction import logger

_LOG = logger("pystate.epochs.takeover")
_NAME = re.compile(OWNERS + r"/(\d{8,})-[0-9a-f]+\.stream")
_LOOK_S = 0.1
#: How long a driver that runs may take to stop its stream.
_STOP_S = 60.0
#: How long one may take of which it is not known whether it runs, beside the time to notice.
_UNKNOWN_S = 5.0


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
        match = _NAME.fullmatch(entry.path)
        if match is not None and int(match[1]) < term:
            _await_stream(storage, entry.path, _owner(storage, int(match[1])))


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


def _owner(storage: CheckpointStorage, term: int) -> Owner | None:
    try:
        return read_owner(storage, f"{OWNERS}/{term:08d}.owner")
    except (FileNotFoundError, CheckpointError):
        return None


def _lives(storage: CheckpointStorage, owner: Owner) -> bool | None:
    """Whether a driver's process runs, whether or not its job was closed meanwhile."""
    if owner.host == (platform.node() or "unknown") and owner.pid == os.getpid():
        return False  # what this process runs on the checkpoint was stopped before
    return is_running(storage, owner, ended_if_closed=False)
