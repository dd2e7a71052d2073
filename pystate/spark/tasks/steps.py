"""Steps within a task: what a table on disk has changed goes into files, so that rows may leave.

An epoch may change more rows of a range than fit in memory. Then the table is sealed in the middle
of it, and its changes are written beside the executor's tables, not in the checkpoint: nobody else
needs them. The task's delta is made of all of these files at its end.

After a step the table is at no epoch that a manifest will ever name, until the task's end. What
fails later leaves it there, and whoever attaches it next undoes the step, or begins anew.

Thread safety: steps belong to their task's thread, until its table is sealed for the last time.
From then on they are those of the thread that writes the delta, by `SteppedChanges`.

Invariants
----------
1. The files of a task are in a folder of its own, which goes with it; of a process that was killed
   it goes when another task of the operator attaches its table.
2. Steps are joined, those of similar size, so that a range has few of them and each row is merged
   few times. Where there is no room for that they stay as they are.
3. After a step whose changes are in no file the task cannot end: whoever called it may have gone on
   in spite of the error.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import pyarrow as pa

from pystate.checkpoint.size_tiers import steps_to_join
from pystate.checkpoint.state_files import EMPTY_LINEAGE, FileInfo, Lineage, merge_files
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.redaction import logger
from pystate.state.key_batch import KeyBatch
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow
from pystate.tables.host import is_full, on_local_disk, task_folder
from pystate.tables.options import DISK, LEAST_ON_DISK

if TYPE_CHECKING:
    from pystate.tables.snapshots import Snapshot

_LOG = logger("pystate.tasks.steps")
#: So many keys are noted at a time.
_NOTED_ROWS = 1 << 12


class _Step(NamedTuple):
    path: str
    size_bytes: int


class TaskSteps:
    """The steps of one task.

    From now on the table asks for them. `folder` is that of all tasks of the operator, `lineage`
    the name of the epoch that the task makes, without an id. With `notes_changed` the backend can
    be asked which keys the task has changed, but for some that it deleted.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        folder: str,
        lineage: Lineage,
        *,
        notes_changed: bool = False,
    ) -> None:
        self._backend = backend
        self._notes_changed = notes_changed
        self._noted: _NotedKeys | None = None
        self._parent = folder
        self._folder: str | None = None
        #: The epoch's name, with the id of the last step, or of the base.
        self.lineage = lineage
        self._last = lineage.parent
        self._steps: list[_Step] = []
        self._lost: BaseException | None = None
        self._below = backend.below.files
        #: How many rows changed; one counts in each step.
        self.rows = 0
        self.taken = 0
        backend.below.step_by(self.take, changed=self._changed)

    @property
    def last(self) -> bytes:
        """The id of what the table was sealed as most recently."""
        return self._last

    def __bool__(self) -> bool:
        return bool(self._steps)

    def take(self) -> None:
        """Seal what the table has changed so far, and have it below the table.

        `CheckpointError`: it could not be written, or once before. The task cannot end then.
        """
        self.refuse_lost()
        below = self._backend.below
        name = self.lineage._replace(id=uuid.uuid4().bytes, parent=self._last)
        if self._notes_changed:
            if self._noted is None:
                self._noted = _NotedKeys(self._backend, self._parent)
            self._noted.note()
        self.taken += 1
        try:
            with below.seal_step(name) as snapshot:
                self._last = name.id
                self.rows += snapshot.rows
                self._add(snapshot)
        except BaseException as error:
            self._lost = error
            raise
        joined = self._join(name.id)
        bounds = self._backend.key_group_range
        files = [*self._below, *(FileBelow(step.path, *bounds) for step in self._steps)]
        below.set_files(files, all_known=True)
        for step in joined:
            os.unlink(step.path)

    def refuse_lost(self) -> None:
        """Raise `CheckpointError` if what a step sealed is in no file."""
        if self._lost is not None:
            raise CheckpointError(
                f"operator {self._backend.uid!r}: some of what the epoch changed had to leave "
                f"memory, and is lost, so that the task cannot end: {self._lost}"
            ) from self._lost

    def _add(self, snapshot: Snapshot) -> None:
        what = f"operator {self._backend.uid!r}: the epoch changes more rows than fit in memory"
        with on_local_disk(self._parent, what):
            self._steps.append(self._written(snapshot.write))

    def _join(self, id: bytes) -> list[_Step]:
        """Merge some steps, if they are many; return those whose files are not needed then."""
        first, after = steps_to_join([step.size_bytes for step in self._steps])
        old = self._steps[first:after]
        if not old:
            return []
        paths = [step.path for step in old]
        try:
            joined = self._written(lambda out: self.merged(paths, out, id))
        except OSError as error:
            if not is_full(error):
                raise
            where = f"operator {self._backend.uid!r}, {self._parent}"
            _LOG.warning("%s: steps stay unmerged for now: %s", where, error)
            return []
        self._steps[first:after] = [joined]
        return old

    def changes(self, snapshot: Snapshot | None) -> SteppedChanges:
        """All that the task has changed; `snapshot` has what it changed since the last step.

        `CheckpointError`: as `refuse_lost`.
        """
        self.refuse_lost()
        if snapshot is not None:
            self._last = snapshot.lineage.id
        return SteppedChanges(self, snapshot)

    def written(self, snapshot: Snapshot | None) -> list[str]:
        """The files of all steps, with what was changed since."""
        if snapshot is not None:
            self._add(snapshot)
        return [step.path for step in self._steps]

    def merged(self, paths: Sequence[str], out: BinaryIO, id: bytes) -> FileInfo:
        """Merge files of steps, oldest first, into one."""
        first, last = self._backend.key_group_range
        return merge_files(
            paths,
            out,
            lineage=self.lineage._replace(id=id),
            first_key_group=first,
            last_key_group=last,
            kind="delta",
        )

    def close(self) -> None:
        """Remove the files. Does nothing the second time."""
        self._backend.below.step_by(None)
        noted, self._noted = self._noted, None
        if noted is not None:
            noted.close()
        folder, self._folder = self._folder, None
        self._steps.clear()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _changed(self, most: int) -> Iterator[KeyBatch]:
        self.refuse_lost()
        if self._noted is None:
            raise InvalidArgumentError(
                f"operator {self._backend.uid!r}: which keys the epoch has changed is not known, "
                "since some have left memory"
            )
        return self._noted.all(most)

    def _written(self, write: Callable[[BinaryIO], FileInfo]) -> _Step:
        if self._folder is None:
            self._folder = task_folder(self._parent)
        path = os.path.join(self._folder, f"{uuid.uuid4().hex}.delta")
        try:
            with open(path, "xb") as out:
                write(out)
                size_bytes = out.tell()
        except BaseException:
            # What is left of it would take the room that others need.
            with suppress(OSError):
                os.unlink(path)
            raise
        return _Step(path, size_bytes)


class _NotedKeys:
    """Which keys a table has changed in an epoch, in a table on disk of their own."""

    def __init__(self, backend: KeyedStateBackend, folder: str) -> None:
        self._of = backend
        self._name = "changed"
        while self._name in dict(backend.key):
            self._name += "_"
        own = backend._options.limit_bytes
        self._keys = KeyedStateBackend(
            backend.key,
            states={self._name: ValueState("boolean")},
            max_parallelism=backend.max_parallelism,
            key_group_range=backend.key_group_range,
            namespace=None if backend.namespace is None else backend.namespace.arrow,
            home=DISK,
            limit_bytes=max(own // 8, LEAST_ON_DISK) if own else 0,
            uid=f"{backend.uid}, the keys that have changed",
        )
        self._keys.below.set_target(max(backend.below.room_bytes // 8, LEAST_ON_DISK))
        self._keys.open()
        self._steps = TaskSteps(self._keys, folder, EMPTY_LINEAGE)

    def note(self) -> None:
        """Note what has changed since the last call.

        Objects that wait are noted once they are written: that takes room, which is being made.
        """
        self._steps.refuse_lost()
        for keys in self._of.below.changed_so_far(_NOTED_ROWS):
            self._keys[self._name].update_all(self._keys.keys(*_names(keys, self._of)), True)

    def all(self, most: int) -> Iterator[KeyBatch]:
        """All of them, each once."""
        self.note()
        for keys in self._keys.existing(most):
            yield self._of.keys(*_names(keys, self._of))

    def close(self) -> None:
        """Forget them."""
        self._steps.close()
        self._keys.close()


def _names(keys: KeyBatch, backend: KeyedStateBackend) -> tuple[list[pa.Array[Any]], Any]:
    return keys.key_arrays(), None if backend.namespace is None else keys.namespaces()


class SteppedChanges:
    """What a task has changed in several steps; it is written like a `Snapshot`."""

    def __init__(self, steps: TaskSteps, snapshot: Snapshot | None) -> None:
        self._steps = steps
        self._snapshot = snapshot
        self._paths: list[str] | None = None
        self.lineage = steps.lineage._replace(id=steps.last)

    def write(self, out: BinaryIO) -> FileInfo:
        """See `Snapshot.write`."""
        if self._paths is None:
            self._paths = self._steps.written(self._snapshot)
        return self._steps.merged(self._paths, out, self.lineage.id)

    def close(self) -> None:
        """See `Snapshot.close`."""
        if self._snapshot is not None:
            self._snapshot.close()
