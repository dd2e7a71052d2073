"""Output of several batches that waits for their checkpoint, or that is published at once.

The rows of a held step (`pystate.coordinator.interval`) are staged. Files for a `ParquetSink` wait
where they are staged, and are put into one folder when the epoch is closed. Any other sink stages
an epoch in one call, and only once its evaluation is the one that counts; so its rows wait in a
store of the checkpoint, and are staged from there when the epoch is closed.

Thread safety: a `Waiting` belongs to its coordinator's lock.

Invariants
----------
1. Joining the same steps again, after a publish that failed, gives the same rows: files are found
   in whichever of the steps' folders they are, and rows in a store stay until they are published.
2. Rows that are published at once are never removed, and never replace others: files have names of
   their own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql.types import StructField, StructType

from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.spark.base.environment import local_uri
from pystate.spark.base.parquet_format import ParquetFormat
from pystate.spark.sinks.folders import data_files, sync_tree
from pystate.spark.sinks.outputs import Outputs, is_own
from pystate.spark.sinks.parquet import KIND, ParquetSink, forget_schema, sweep_staging
from pystate.spark.sinks.partitioning import save_layout
from pystate.spark.sinks.sink import Sink, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["WAITING", "Waiting", "check_at_least_once", "publish_files"]

#: The folder of stores in a checkpoint.
WAITING = "waiting"


@dataclass(frozen=True)
class _HeldOutputs(Outputs):
    """Outputs whose sinks of users are replaced by stores."""

    real: Outputs | None = None
    schemas: dict[str, StructType] | None = None

    def task_format(self, frame: DataFrame, epoch: int) -> ParquetFormat | None:
        """None for a sink of the user's, whose rows are stored under numbered columns."""
        assert self.real is not None
        return None if is_own(self.real.main) else super().task_format(frame, epoch)

    def stage_main(self, frame: DataFrame, epoch: int, evaluation_id: str) -> list[Any]:
        """Stage the rows under numbered columns, since a file cannot have all names."""
        assert self.real is not None and self.schemas is not None
        if not is_own(self.real.main):
            return super().stage_main(frame, epoch, evaluation_id)
        self.real._check_columns(self.real.main, frame.columns, epoch)
        self.schemas[self.real.main.name] = frame.schema
        return self._stage(self.main, _numbered(frame), epoch, evaluation_id)


class Waiting:
    """The output of one job's held steps.

    Parameters
    ----------
    checkpoint : str or None
        The checkpoint's folder, if it is one.
    """

    def __init__(self, checkpoint: str | None) -> None:
        self._checkpoint = checkpoint
        self._real: dict[str, tuple[Outputs, Sink]] = {}
        self._schemas: dict[str, StructType] = {}
        #: The session that stages rows in users' sinks.
        self.session: SparkSession | None = None

    def outputs(self, real: Outputs) -> Outputs:
        """Return outputs whose rows can wait."""
        self.session = real.session
        main, *others = (self._store(real, sink) for sink in real.sinks())
        sides = dict(zip(real.sides, others, strict=True))
        return _HeldOutputs(main, sides, real.checkpoint, real.session, real, self._schemas)

    def _store(self, outputs: Outputs, sink: Sink) -> Sink:
        if not is_own(sink):
            return sink
        if self._checkpoint is None:
            raise InvalidArgumentError(
                f"{sink!r}: rows wait for their checkpoint in its folder, and this one is no local "
                "folder: use a ParquetSink, or a checkpoint after each batch"
            )
        path = f"{WAITING}/sink={quote(sink.name, safe='')}"
        self._real[path] = outputs, sink
        return ParquetSink(os.path.join(self._checkpoint, path))

    def join(
        self, epoch: int, evaluation_id: str, steps: Sequence[Sequence[Transaction]]
    ) -> list[Transaction]:
        """Make an epoch's transactions from those of its steps, oldest first."""
        groups: dict[str, list[Transaction]] = {}
        result: list[Transaction] = []
        for step in steps:
            for transaction in step:
                if transaction.get("kind") == KIND:
                    groups.setdefault(str(transaction["path"]), []).append(transaction)
                else:
                    result.append(transaction)
        for path, group in groups.items():
            root = os.path.join(self._checkpoint or "", path)
            whole = group[0] if len(group) == 1 else _gathered(root, group)
            if path in self._real:
                folder = os.path.join(root, str(whole["staging"]))
                whole = self._staged(path, folder, epoch, evaluation_id)
            result.append(whole)
        return result

    def _staged(self, path: str, folder: str, epoch: int, evaluation_id: str) -> Transaction:
        """Stage the rows of a store in the sink that they are for."""
        outputs, sink = self._real[path]
        assert self.session is not None
        schema = self._schemas.get(sink.name) if sink is outputs.main else None
        if schema is not None:
            fields = [StructField(f"c{i}", each.dataType) for i, each in enumerate(schema)]
            reader = self.session.read.schema(StructType(fields))
            frame = reader.parquet(local_uri(folder, to_read=True)).toDF(*schema.names)
        else:
            frame = self.session.read.parquet(local_uri(folder, to_read=True))
        return replace(outputs, session=self.session).stage_one(sink, frame, epoch, evaluation_id)

    def sweep(self, epoch: int) -> None:
        """Remove the rows of stores up to an epoch that is published."""
        for path in self._real:
            assert self._checkpoint is not None
            sweep_staging(os.path.join(self._checkpoint, path), epoch)

    def drop(self, steps: Sequence[Sequence[Transaction]]) -> None:
        """Remove the rows of steps that are lost."""
        for step in steps:
            for transaction in step:
                if transaction.get("kind") == KIND:
                    root = os.path.join(self._checkpoint or "", str(transaction["path"]))
                    shutil.rmtree(_evaluation(root, transaction), ignore_errors=True)


def _gathered(root: str, group: Sequence[Transaction]) -> Transaction:
    """Put the files of several steps into the folder of the last one."""
    last = group[-1]
    target = os.path.join(root, str(last["staging"]))
    folders = [os.path.join(root, str(each["staging"])) for each in group]
    files = sorted((str(n), int(size)) for each in group for n, size in each["files"])
    for name, _ in files:
        final = os.path.join(target, name)
        if os.path.exists(final):
            continue
        found = next((f for f in folders if os.path.exists(os.path.join(f, name))), None)
        if found is None:
            raise CheckpointError(
                f"output is lost: {name}, which a batch before this one has staged below {root}, "
                "is not there: nothing of the epoch is published; start the job again, which "
                "computes its batches again"
            )
        os.makedirs(os.path.dirname(final), exist_ok=True)
        os.rename(os.path.join(found, name), final)
    if files:
        forget_schema(target)
    sync_tree(target)
    whole = {**last, "files": [list(file) for file in files]}
    if all("rows" in each for each in group):
        whole["rows"] = sum(each["rows"] for each in group)
    for each in group:
        if each.get("partition_by"):
            whole["partition_by"] = each["partition_by"]
    return whole


def publish_files(transaction: Mapping[str, Any], root: str) -> None:
    """Publish staged files at once, beside those that the epoch's folder has already."""
    staging = os.path.join(root, str(transaction["staging"]))
    final = os.path.join(root, str(transaction["final"]))
    layout = tuple((str(name), str(ddl)) for name, ddl in transaction.get("partition_by", ()))
    if layout:
        save_layout(root, layout)
    for name, _ in data_files(staging, len(layout)) or []:
        to = os.path.join(final, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.rename(os.path.join(staging, name), to)
    os.makedirs(final, exist_ok=True)
    sync_tree(final)
    shutil.rmtree(_evaluation(root, transaction), ignore_errors=True)


def check_at_least_once(outputs: Outputs) -> None:
    """Refuse sinks that take an epoch's number for the mark of what they have.

    Raises
    ------
    InvalidArgumentError
        A sink does not say that it takes several commits of one epoch.
    """
    for sink in outputs.sinks():
        if is_own(sink) and not sink.at_least_once:
            raise InvalidArgumentError(
                f"{sink!r}: at least once, a sink gets several commits with the number of one "
                "epoch, and must not take the second one for a repetition: set at_least_once = "
                "True in its class if it does not, or use mode='exactly_once'"
            )


def _evaluation(root: str, transaction: Mapping[str, Any]) -> str:
    """The folder of all that an evaluation has staged."""
    return os.path.join(root, *str(transaction["staging"]).split(os.sep)[:2])


def _numbered(frame: DataFrame) -> DataFrame:
    return frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
