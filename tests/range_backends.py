"""Backends of the ranges of an operator that is run without Spark: in memory, or on disk.

Those on disk lose rows all the time: before some batches of keys a step is taken and rows leave, or
the table begins anew. Few keys fit together.
"""

from __future__ import annotations

import io
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pystate.checkpoint.state_files import Lineage, merge_files
from pystate.spark.tasks.steps import TaskSteps
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow
from pystate.tables.options import LEAST_ON_DISK, TableOptions

DOMAINS: tuple[Any, ...] = ("event", "processing")


class HeapRanges:
    """Ranges in memory, which are restored from the files of all epochs."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.backends: list[KeyedStateBackend] = []

    def __iter__(self) -> Any:
        return iter(self.backends)

    def open(self, operator: OperatorSpec, bounds: Sequence[tuple[int, int]]) -> None:
        """Lose the tables, and make them anew from the files."""
        self.close()
        for each in bounds:
            backend = KeyedStateBackend.of(operator, each)
            backend.restore([io.BytesIO(data) for data in self.files])
            self.backends.append(backend)

    def begin(self, notes_changed: bool) -> None:
        """An epoch begins; at its end the operator may ask which keys it has changed."""

    def undo(self) -> None:
        """The epoch has failed."""
        for backend in self.backends:
            backend.rollback()

    def seal(self) -> None:
        """The epoch ends."""
        for backend in self.backends:
            if not backend.dirty:
                backend.end_idle_epoch()
                continue
            out = io.BytesIO()
            with backend.seal() as snapshot:
                snapshot.write(out)
            self.files.append(out.getvalue())

    def close(self) -> None:
        """Free the tables."""
        for backend in self.backends:
            backend.close()
        self.backends.clear()


class DiskRanges(HeapRanges):
    """Ranges on disk, whose files are in a folder.

    With `merges` a restart merges them into one first.
    """

    def __init__(self, folder: Path, seed: int, merges: bool = True) -> None:
        super().__init__()
        self.folder, self.merges = folder, merges
        self.rng = random.Random(seed)
        self.paths: list[str] = []
        self.next: list[tuple[int | None, int | None]] = []
        self.steps: dict[KeyedStateBackend, TaskSteps] = {}
        self.base: dict[KeyedStateBackend, Lineage] = {}
        #: How many steps there were, how many rows left, and how many tables began anew.
        self.taken = self.left = self.emptied = 0

    def open(self, operator: OperatorSpec, bounds: Sequence[tuple[int, int]]) -> None:
        if self.merges and len(self.paths) > 1:
            all_groups = {"first_key_group": 0, "last_key_group": operator.max_parallelism - 1}
            with open(self._path(), "xb") as out:
                merge_files(self.paths, out, **all_groups, block_bytes=4096)
            self.paths = [out.name]
        # Of all ranges that were.
        times = [[time for time in of if time is not None] for of in zip(*self.next, strict=True)]
        first: Any = tuple(min(of, default=None) for of in times) if self.next else None
        self.close()
        for each in bounds:
            backend = KeyedStateBackend.of(
                operator, each, TableOptions("disk", limit_bytes=LEAST_ON_DISK)
            )
            self._disturb(backend)
            backend.open()
            if self.paths:
                files = [FileBelow(path, *each) for path in self.paths]
                backend.below.begin_at(self._name(bytes(16)), files, first)
            self.backends.append(backend)

    def begin(self, notes_changed: bool) -> None:
        for backend in self.backends:
            lineage = backend.lineage()
            assert lineage is not None
            self.base[backend] = lineage
            self.steps[backend] = TaskSteps(
                backend,
                str(self.folder / "steps"),
                Lineage(bytes(16), lineage.id, 1),
                notes_changed=notes_changed,
            )

    def undo(self) -> None:
        for backend in self.backends:
            steps = self.steps.pop(backend)
            taken = bool(steps)
            self._end(steps)
            if taken:
                files = [FileBelow(path, *backend.key_group_range) for path in self.paths]
                backend.below.reset(self.base[backend], files)
            else:
                backend.rollback()

    def seal(self) -> None:
        paths = list(self.paths)
        self.next = []
        for backend in self.backends:
            steps = self.steps.pop(backend)
            snapshot = None
            if backend.dirty:
                snapshot = backend.seal(self._name(steps.last))
            else:
                backend.end_idle_epoch()
            if snapshot is not None or steps:
                changes = steps.changes(snapshot) if steps else snapshot
                assert changes is not None
                path = self._path()
                with open(path, "xb") as out:
                    changes.write(out)
                changes.close()
                paths.append(path)
            self._end(steps)
        for backend in self.backends:
            files = [FileBelow(path, *backend.key_group_range) for path in paths]
            backend.below.set_files(files, all_known=not backend.below.are_any)
        self.paths = paths
        self.next = [
            (backend.next_timer("event"), backend.next_timer("processing"))
            for backend in self.backends
        ]

    def close(self) -> None:
        for steps in self.steps.values():
            steps.close()
        self.steps.clear()
        super().close()

    def _end(self, steps: TaskSteps) -> None:
        self.taken += steps.taken
        self.left += steps._backend.below.left
        steps._backend.below.left = 0
        steps.close()

    def _name(self, parent: bytes) -> Lineage:
        return Lineage(os.urandom(16), parent, 1)

    def _path(self) -> str:
        return str(self.folder / f"{os.urandom(8).hex()}.delta")

    def _disturb(self, backend: Any) -> None:
        """Have rows leave before any batch of keys is made, or timers are asked for."""
        keys, due, most = backend.keys, backend.due_timers, backend.below.most_keys

        def few(asked: int, each: int = 1) -> int:
            assert 1 <= most(asked, each) <= asked
            return min(asked, self.rng.randint(1, 6))

        backend.below.most_keys = few
        backend.keys = lambda *given: self._shaken(backend) or keys(*given)
        backend.due_timers = lambda *given: self._shaken(backend) or due(*given)

    def _shaken(self, backend: KeyedStateBackend) -> None:
        drawn = self.rng.random()
        if drawn < 0.3:
            backend._table.make_way(1 << 22, 0)
        elif drawn < 0.4:
            before = backend._table.keep_room(True)
            try:
                self.emptied += backend.below._make_room(1, True)
            finally:
                backend._table.keep_room(before)


@contextmanager
def on_disk(seed: int) -> Iterator[DiskRanges]:
    """Ranges in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        ranges = DiskRanges(Path(folder), seed, merges=seed % 3 > 0)
        yield ranges
        ranges.close()
