"""Steps within a task: what a table on disk has changed goes into files, so that rows may leave.

An epoch may change more rows of a range than fit in memory. Then the table is sealed in the middle
of it, and its changes are written beside the executor's tables, not in the checkpoint: nobody else
needs them. The task's delta is made of all of these files at its end.

After a step the table is at no epoch that a manifest will ever name, until the task's end. What
fails later leaves it there, and whoever attaches it next undoes the step, or begins anew.

Thread safety: steps belong to their task's thread; `SteppedChanges` to one thread at a time.

Invariants
----------
1. The files of a task are in a folder of its own, which goes with it; of a process that was killed
   it goes with the next step of another task of the range.
2. Steps are joined so that a range has few of them: O(log n) after n, and each row is merged
   O(log n) times.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import pyarrow as pa

from pystate.checkpoint.size_tiers import newest_similar
from pystate.checkpoint.state_files import EMPTY_LINEAGE, FileInfo, Lineage, merge_files
from pystate.errors import CheckpointError, InvalidArgumentError, NoSpaceError
from pystate.state.key_batch import KeyBatch
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow
from pystate.tables.host import process_start
from pystate.tables.options import DISK, LEAST_ON_DISK

if TYPE_CHECKING:
    from pystate.tables.snapshots import Snapshot

#: So many files of similar size are merged into one.
_SIMILAR = 4
#: So many keys are noted at a time.
_NOTED_ROWS = 1 << 12


class _Step(NamedTuple):
    path: str
    size_bytes: int


class TaskSteps:
    """The steps of one task.

    `folder` is that of all tasks of the range, `lineage` the name of the epoch that the task makes,
    without an id. With `notes_changed` the backend can be asked which keys the task has changed,
    but for some that it deleted.
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
        self._below = backend.below.files
        #: How many keys were looked up before the files were set anew, and how many rows changed;
        #: one counts in each step.
        self.looked_up = self.rows = 0
        self.taken = 0

    @property
    def last(self) -> bytes:
        """The id of what the table was sealed as most recently."""
        return self._last

    def __bool__(self) -> bool:
        return bool(self._steps)

    def take(self) -> None:
        """Seal what the table has changed so far, and have it below the table."""
        below = self._backend.below
        name = self.lineage._replace(id=uuid.uuid4().bytes, parent=self._last)
        if self._notes_changed:
            if self._noted is None:
                self._noted = _NotedKeys(self._backend, self._parent)
            self._noted.note()
        self.rows += self._backend.stats().changed_rows
        self.taken += 1
        snapshot = below.seal_step(name)
        self._last = name.id
        try:
            own = self._written(snapshot.write)
        except NoSpaceError as error:
            raise CheckpointError(
                f"operator {self._backend.uid!r}: the epoch changes more rows than fit in memory, "
                f"and there is no room for them on the executor's disk, in {self._parent}"
            ) from error
        finally:
            snapshot.close()
        first = newest_similar([step.size_bytes for step in self._steps], own.size_bytes, _SIMILAR)
        tail = [*self._steps[first:], own]
        if len(tail) > 1:
            own = self._written(lambda out: self.merged([step.path for step in tail], out, name.id))
        self._steps[first:] = [own]
        self.looked_up += below.looked_up
        bounds = self._backend.key_group_range
        files = [*self._below, *(FileBelow(step.path, *bounds) for step in self._steps)]
        below.set_files(files, all_known=True)
        below.changed = self._changed
        for step in tail:
            if step is not own:
                os.unlink(step.path)

    def changes(self, snapshot: Snapshot | None) -> SteppedChanges:
        """All that the task has changed; `snapshot` has what it changed since the last step."""
        if snapshot is not None:
            self._last = snapshot.lineage.id
        return SteppedChanges(self, snapshot)

    def written(self, snapshot: Snapshot | None) -> list[str]:
        """The files of all steps, with what was changed since."""
        if snapshot is not None:
            self._steps.append(self._written(snapshot.write))
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
        self._backend.below.changed = None
        noted, self._noted = self._noted, None
        if noted is not None:
            noted.close()
        folder, self._folder = self._folder, None
        self._steps.clear()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _changed(self, most: int) -> Iterator[KeyBatch]:
        if self._noted is None:
            raise InvalidArgumentError(
                f"operator {self._backend.uid!r}: which keys the epoch has changed is not known, "
                "since some have left memory"
            )
        return self._noted.all(most)

    def _written(self, write: Callable[[BinaryIO], FileInfo]) -> _Step:
        path = os.path.join(self._own_folder(), f"{uuid.uuid4().hex}.delta")
        with open(path, "xb") as out:
            write(out)
            return _Step(path, out.tell())

    def _own_folder(self) -> str:
        if self._folder is None:
            os.makedirs(self._parent, mode=0o700, exist_ok=True)
            _remove_left(self._parent)
            pid = os.getpid()
            name = f"{pid}-{process_start(pid)}-{uuid.uuid4().hex}"
            self._folder = os.path.join(self._parent, name)
            os.mkdir(self._folder, 0o700)
        return self._folder


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
        self._keys.below.step_by(self._steps.take)

    def note(self) -> None:
        """Note what has changed since the last call."""
        for keys in self._of._rows(_NOTED_ROWS, changed=True):
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


def _remove_left(folder: str) -> None:
    """Remove what tasks have left whose processes were killed."""
    for name in os.listdir(folder):
        with suppress(ValueError):
            pid, start, _ = name.split("-")
            if str(process_start(int(pid))) != start:
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
