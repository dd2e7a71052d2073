"""What tells of published epochs beside their manifests.

A checkpoint whose newest manifests are lost looks like an older one, and without any it looks like
an empty one. Other files know better, and whoever opens a checkpoint compares.

Invariants
----------
1. A trace is written after the epoch that it tells of is published, so that no crash leaves a trace
   of an epoch that does not exist. A repair that sets a checkpoint back takes the traces back, too.
2. Files of state may be of an epoch that was never published, as a crash leaves them. But an epoch
   is begun after the one before it is published: a file of epoch 8 is a trace of epoch 7.
3. `read_traces` costs the same for any number of state files. Those are listed (`begun_trace`) only
   where the small files do not agree on the newest epoch, as after a crash.
4. Who looks for lost manifests reads traces first and lists manifests then, since a running driver
   publishes first and leaves traces then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pystate.checkpoint.epoch_log import HISTORY, newest_records
from pystate.checkpoint.job_file import JOB_FILE, RESTORED_FILE, read_job
from pystate.checkpoint.metadata import decode_document
from pystate.checkpoint.parts import MANIFESTS
from pystate.checkpoint.refs import state_epoch
from pystate.checkpoint.run_keys import RUNS, covered_epoch
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, NewerFormatError

#: The files that name the newest epoch, and the newest whose output is committed.
LATEST = f"{MANIFESTS}/latest"
COMMITTED = f"{MANIFESTS}/committed"
#: The folder of state files.
STATE = "state"


class Trace(NamedTuple):
    """A published epoch, and the file that tells of it."""

    epoch: int = 0
    """0 for none."""
    path: str = ""


class Traces(NamedTuple):
    """What the small files of a checkpoint say of its newest epoch."""

    newest: Trace
    latest: int | None
    """What ``manifests/latest`` says: 0 if it is damaged, None if there is none."""
    recorded: int
    """The newest epoch of the history; 0 for none."""
    restored: int
    """The epoch of the savepoint that the checkpoint began with; 0 for none."""

    def agree_on(self, epoch: int) -> bool:
        """Whether two of them name an epoch, and none a later one."""
        return self.latest == self.recorded == self.newest.epoch == epoch > 0

    def leave_open(self, epoch: int) -> bool:
        """Whether none of those that would name a later epoch than this is there.

        A checkpoint that began with a savepoint had none of them in earlier versions.
        """
        return self.latest is None and self.recorded < epoch and self.restored != epoch


def read_traces(storage: CheckpointStorage) -> Traces:
    """Read what the small files of a checkpoint say, whichever of them are lost or damaged.

    `NewerFormatError` if one of them is of a later version.
    """
    latest = marked_epoch(storage, LATEST, "latest")
    records = newest_records(storage)
    recorded = max((record.epoch for record in records), default=0)
    traces = [
        Trace(latest or 0, LATEST),
        Trace(recorded, f"{HISTORY}/"),
        Trace(marked_epoch(storage, COMMITTED, "committed") or 0, COMMITTED),
        Trace(covered_epoch(storage), f"{RUNS}/"),
        Trace(_first_epoch_ran(storage), JOB_FILE),
    ]
    restored = marked_epoch(storage, RESTORED_FILE, "restored") or 0
    return Traces(max(traces, key=lambda trace: trace.epoch), latest, recorded, restored)


def marked_epoch(storage: CheckpointStorage, path: str, kind: str) -> int | None:
    """Read the epoch that a small file names; 0 if it is damaged, None if there is none."""
    try:
        return decode_document(kind, 1, storage.read_bytes(path), path).integer("epoch")
    except NewerFormatError:
        raise
    except FileNotFoundError:
        return None
    except CheckpointError:
        return 0


def _first_epoch_ran(storage: CheckpointStorage) -> int:
    """1 if ``job.json`` has operators, which it gets after an epoch; else 0."""
    try:
        job = read_job(storage)
    except CheckpointError:
        return 0
    return 1 if job is not None and job.operators else 0


def begun_trace(paths: Iterable[str]) -> Trace:
    """Find the newest epoch that was begun, and so maybe published, among the state files."""
    epochs = ((state_epoch(path) or 0, path) for path in paths)
    return Trace(*max(epochs, default=(0, "")))
