"""A task's files, written while the task's output is streamed: its delta, held deltas.

Thread safety: a writer is a thread, which belongs to the task that starts it.

Invariants
----------
1. A file appears complete and durable, or not at all.
2. A step that does not close its epoch writes one held delta. A step that closes it writes one
   delta that holds the whole epoch. If that fails and may fail, its changes are held instead.
3. Held deltas are merged so that a range has few of them: O(log n) after n steps, and each row is
   merged O(log n) times.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from pystate.checkpoint.held_deltas import HeldFiles, merge_held
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.size_tiers import newest_similar
from pystate.checkpoint.state_files import FileInfo, Lineage
from pystate.checkpoint.storage import CheckpointStorage, guarded_file
from pystate.epochs.interval import is_tolerable
from pystate.errors import StateLostError

if TYPE_CHECKING:
    from pystate.tables.host import TableHome

#: So many held deltas of similar size are merged into one.
_SIMILAR = 4


@dataclass(frozen=True)
class HeldPlan:
    """How a step's changes are held; pickled with the plan of an operator."""

    serial: int
    """The serial number of the step."""
    closes: bool
    """Whether the step closes its epoch."""
    tolerant: bool
    """Whether its changes are held if they cannot be written."""
    spread: bool
    """Whether tasks of other executors may need held deltas."""
    timeout_ms: int
    """How long the writing of a file of the checkpoint may take."""


class Written(NamedTuple):
    """What a writer has written."""

    file: FileRef | None = None
    held: FileRef | None = None
    merged: int = 0
    """How many of the newest held deltas `held` replaces."""
    failure: str = ""


@dataclass(frozen=True)
class Target:
    """Which range a task writes, and where."""

    storage: CheckpointStorage
    uid: str
    state: RangeState
    """The range as it was before the step."""
    epoch: int
    plan: HeldPlan | None = None
    """How changes are held; None if they cannot be."""
    files: HeldFiles | None = None
    """The place of held deltas, if there is a plan."""

    @property
    def bounds(self) -> tuple[int, int]:
        """First and last key group."""
        return self.state.bounds

    def path(self, unique: str) -> str:
        """Name a delta of the checkpoint."""
        return state_path(self.uid, *self.bounds, self.epoch, unique, "delta")


def held_files(
    storage: CheckpointStorage, home: TableHome, uid: str, state: RangeState, *, spread: bool
) -> HeldFiles:
    """The place of a range's held deltas: beside its table, unless they are `spread`."""
    local = None
    if home.folder is not None and not spread:
        local = os.path.join(home.folder, home.application)
    return HeldFiles.of(storage, local, uid, *state.bounds)


def _overdue(began_s: float, plan: HeldPlan) -> str | None:
    """What is wrong once a file of the checkpoint has taken too long."""
    if time.monotonic() - began_s <= plan.timeout_ms / 1000:
        return None
    return (
        f"not written within {plan.timeout_ms / 1000:g} s, the timeout of the job's "
        "CheckpointOptions"
    )


class Changes(Protocol):
    """What a task has changed: a `Snapshot`, or that of several steps."""

    lineage: Lineage

    def write(self, out: BinaryIO) -> FileInfo:
        """Write it; may be called again."""

    def close(self) -> None:
        """Free the memory."""


class DeltaWriter(threading.Thread):
    """Writes the files of one task.

    `snapshot` has the task's changes; None if it has none, and the step closes an epoch.
    """

    def __init__(self, target: Target, snapshot: Changes | None) -> None:
        super().__init__(name=f"pystate-delta-{target.uid}-{target.state.index}", daemon=True)
        self._target = target
        self._snapshot = snapshot
        self._error: BaseException | None = None
        self._written = Written()
        self.took_ms = 0.0

    def run(self) -> None:
        """Write the files."""
        began = time.perf_counter_ns()
        try:
            self._written = self._write()
        except BaseException as error:
            self._error = error
        finally:
            if self._snapshot is not None:
                self._snapshot.close()
            self.took_ms = (time.perf_counter_ns() - began) / 1e6

    def result(self) -> Written:
        """Wait for the files; raise the error that writing them raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._written

    def _write(self) -> Written:
        target, snapshot, plan = self._target, self._snapshot, self._target.plan
        if plan is None:
            assert snapshot is not None
            path = target.path(snapshot.lineage.id.hex())
            with target.storage.create(path) as file:
                info = snapshot.write(file)
            return Written(FileRef.from_info(path, info))
        if not plan.closes:
            return self._hold()
        own = self._hold(alone=True).held if target.state.held and snapshot is not None else None
        try:
            closed = self._close(own)
        except StateLostError:
            raise
        except Exception as error:
            if not (plan.tolerant and is_tolerable(error)):
                raise
            if own is None and snapshot is not None:
                own = self._hold(alone=True).held
            return Written(held=own, failure=f"{type(error).__name__}: {error}")
        return Written(closed)

    def _close(self, own: FileRef | None) -> FileRef:
        """Write the delta of the whole epoch."""
        target, snapshot, plan = self._target, self._snapshot, self._target.plan
        assert plan is not None
        path = target.path(uuid.uuid4().hex)
        with target.storage.create(path) as file:
            out = guarded_file(file, partial(_overdue, time.monotonic(), plan))
            if target.state.held:
                info = self._merge((*target.state.held, own) if own else target.state.held, out)
            else:
                assert snapshot is not None
                info = snapshot.write(out)
        return FileRef.from_info(path, info)

    def _hold(self, *, alone: bool = False) -> Written:
        """Write the task's changes as a held delta, merged with older ones unless `alone`."""
        target, snapshot, plan = self._target, self._snapshot, self._target.plan
        assert plan is not None and target.files is not None and snapshot is not None
        own = target.files.write(plan.serial, snapshot.write)
        held = target.state.held
        first = newest_similar([ref.file_bytes for ref in held], own.file_bytes, _SIMILAR)
        if alone or first == len(held):
            return Written(held=own)
        refs = (*held[first:], own)
        merged = target.files.write(plan.serial, lambda out: self._merge(refs, out))
        return Written(held=merged, merged=len(held) - first)

    def _merge(self, refs: Sequence[FileRef], out: BinaryIO) -> FileInfo:
        target = self._target
        assert target.files is not None
        return merge_held(target.files, refs, out, target.epoch, target.bounds)
