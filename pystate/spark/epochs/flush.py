"""Takes a checkpoint of held steps without another batch: their held deltas become files.

Thread safety: a `HeldWriter` is called by one thread at a time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pystate.checkpoint.held_deltas import HeldFiles, merge_held
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import CheckpointStorage
from pystate.spark.base.failures import original_error
from pystate.spark.evaluation.materialisation import executors
from pystate.spark.tasks.table_move import executor_home
from pystate.tables.options import TableOptions

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["HeldWriter"]

_Range = tuple[str, RangeState]


@dataclass(frozen=True)
class _Write:
    """The function that a Spark job runs over ranges."""

    storage: CheckpointStorage
    application: bytes
    home: str
    spread: bool
    epoch: int

    def __call__(self, ranges: Iterator[_Range]) -> Iterator[tuple[str, int, FileRef]]:
        for uid, state in ranges:
            yield uid, state.index, self._write(uid, state)

    def _write(self, uid: str, state: RangeState) -> FileRef:
        home = executor_home(self.application, self.home)
        local = None
        if home.folder is not None and not self.spread:
            local = os.path.join(home.folder, home.application)
        bounds = state.first_key_group, state.last_key_group
        files = HeldFiles.of(self.storage, local, uid, *bounds)
        first, last = state.held[0], state.held[-1]
        lineage = Lineage(bytes.fromhex(last.id), bytes.fromhex(first.parent), self.epoch, 0)
        path = state_path(uid, *bounds, self.epoch, uuid.uuid4().hex, "delta")
        with self.storage.create(path) as out:
            info = merge_held(files, state.held, out, lineage, bounds)
        return FileRef.from_info(path, info)


class HeldWriter:
    """Writes the held deltas of a step's ranges, each in a Spark task.

    Parameters
    ----------
    context : SparkContext
        Runs the tasks.
    storage : CheckpointStorage
        The checkpoint.
    tables : TableOptions
        Where the tables are.
    application : bytes
        Identifies the checkpoint.
    """

    def __init__(
        self,
        context: SparkContext,
        storage: CheckpointStorage,
        tables: TableOptions,
        application: bytes,
    ) -> None:
        self._context = context
        self._storage = storage
        self._home = tables.home
        self._application = application

    def __call__(self, last: Manifest) -> dict[tuple[str, int], FileRef]:
        """Write them.

        Raises
        ------
        StateLostError
            A held delta is gone.
        """
        spread = len(executors(self._context)) > 1
        write: Any = _Write(self._storage, self._application, self._home, spread, last.epoch)
        # A range's own state does not matter here, and may be long.
        ranges: list[Any] = [
            (op.uid, RangeState(s.index, s.first_key_group, s.last_key_group, s.id, held=s.held))
            for op in last.operators
            for s in op.ranges
            if s.held
        ]
        if not ranges:
            return {}
        tasks = min(len(ranges), self._context.defaultParallelism)
        try:
            found = self._context.parallelize(ranges, tasks).mapPartitions(write).collect()
        except Exception as error:
            raise original_error(error) from error
        return {(uid, index): file for uid, index, file in found}
