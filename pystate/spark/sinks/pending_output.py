"""Output of several batches that waits for their checkpoint, or that is published at once.

The rows of a held step (`pystate.epochs.interval`) are staged. Files for a `ParquetSink` wait
where they are staged, and are put into one folder when the epoch is closed. Any other sink stages
an epoch in one call, and only once its evaluation is the one that counts; so its rows wait in a
store of the checkpoint, and are staged from there when the epoch is closed.

Thread safety: a `PendingOutput` belongs to its coordinator's lock.

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

from pyspark.sql.types import StructType

from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.spark.base.environment import local_uri
from pystate.spark.base.parquet_format import ParquetFormat
from pystate.spark.sinks.columns import as_columns, fit_columns
from pystate.spark.sinks.folders import data_files, sync_tree
from pystate.spark.sinks.outputs import ONLY, OUTPUT, Outputs, Staged, is_own
from pystate.spark.sinks.parquet import (
    KIND,
    ParquetSink,
    forget_schema,
    read_numbered,
    save_form,
    sweep_staging,
    with_numbered_columns,
)
from pystate.spark.sinks.sink import Sink, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: The folder of stores in a checkpoint.
WAITING = "waiting"


@dataclass(frozen=True)
class _PendingOutputs(Outputs):
    """Outputs whose sinks of users are replaced by stores."""

    real: Outputs | None = None
    pending: PendingOutput | None = None

    def for_names(self, names: Sequence[str] | None) -> Outputs:
        """The same of what was found."""
        assert self.real is not None and self.pending is not None
        outputs = self.real.for_names(names)
        return self if outputs is self.real else self.pending.outputs(outputs)

    def task_format(self, name: str, frame: DataFrame, epoch: int) -> ParquetFormat | None:
        """None for a sink of the user's, whose rows are stored under numbered columns."""
        assert self.real is not None
        return None if is_own(self.real.mains[name]) else super().task_format(name, frame, epoch)

    def stage_main(self, name: str, frame: DataFrame, epoch: int, evaluation_id: str) -> Staged:
        """Stage the rows under numbered columns, since a file cannot have all names."""
        assert self.real is not None and self.pending is not None
        sink = self.real.mains[name]
        if not is_own(sink):
            return super().stage_main(name, frame, epoch, evaluation_id)
        self.real._check_columns(sink, frame.schema, epoch)
        self.pending.note_schema(sink, frame.schema)
        return self._stage(self.mains[name], with_numbered_columns(frame), epoch, evaluation_id)

    def _check_columns(self, sink: Sink, schema: StructType, epoch: int) -> None:
        super()._check_columns(sink, schema, epoch)
        if isinstance(sink, ParquetSink):
            assert self.pending is not None
            self.pending.note_columns(sink, schema)


class PendingOutput:
    """The output of one job's held steps."""

    def __init__(self, checkpoint: str | None) -> None:
        self._checkpoint = checkpoint
        self._real: dict[str, tuple[Outputs, Sink]] = {}
        #: Of users' sinks by name, what their stores hold of the steps so far.
        self._schemas: dict[str, StructType] = {}
        #: The same of folders.
        self._columns: dict[str, StructType] = {}
        #: The session that stages rows in users' sinks.
        self.session: SparkSession | None = None

    def outputs(self, real: Outputs) -> Outputs:
        """Return outputs whose rows can wait."""
        self.session = real.session
        stores = {name: self._store(real, sink) for name, sink in real.mains.items()}
        sides = {tag: self._store(real, sink) for tag, sink in real.sides.items()}
        main = stores if isinstance(real.main, Mapping) else stores[ONLY]
        return _PendingOutputs(main, sides, real.checkpoint, real.session, False, real, self)

    def note_schema(self, sink: Sink, schema: StructType) -> None:
        """Remember the columns of a user's sink, which all steps of a checkpoint share."""
        known = self._schemas.setdefault(sink.name, schema)
        if as_columns(known) != as_columns(schema):
            raise InvalidArgumentError(
                f"{sink!r}: the pipeline returned the columns {schema.simpleString():.300}, and in "
                f"an earlier batch of the same checkpoint {known.simpleString():.300}: return the "
                "same ones until the checkpoint is taken"
            )

    def note_columns(self, sink: ParquetSink, schema: StructType) -> None:
        """Remember the columns of a folder, which those of the next step must fit."""
        given = as_columns(schema, sink.partition_by)
        self._columns[sink.path] = fit_columns(self._columns.get(sink.path), given, repr(sink))

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
        ordered: list[list[Transaction]] = []
        for transaction in (each for step in steps for each in step):
            if transaction.get("kind") != KIND:
                ordered.append([transaction])
                continue
            path = str(transaction["path"])
            if path not in groups:
                ordered.append(groups.setdefault(path, []))
            groups[path].append(transaction)
        return [self._join_transactions(group, epoch, evaluation_id) for group in ordered]

    def _join_transactions(
        self, group: Sequence[Transaction], epoch: int, evaluation_id: str
    ) -> Transaction:
        """Make one transaction of those of one output."""
        if group[0].get("kind") != KIND:
            return group[0]
        path = str(group[0]["path"])
        root = os.path.join(self._checkpoint or "", path)
        whole = group[0] if len(group) == 1 else _gather_files(root, group)
        if path not in self._real:
            return whole
        folder = os.path.join(root, str(whole["staging"]))
        named = {OUTPUT: whole[OUTPUT]} if OUTPUT in whole else {}
        return {**self._stage_rows(path, folder, epoch, evaluation_id), **named}

    def _stage_rows(self, path: str, folder: str, epoch: int, evaluation_id: str) -> Transaction:
        """Stage the rows of a store in the sink that they are for."""
        outputs, sink = self._real[path]
        assert self.session is not None
        is_main = any(sink is each for each in outputs.mains.values())
        schema = self._schemas.get(sink.name) if is_main else None
        if schema is not None:
            frame = read_numbered(self.session, folder, schema)
        else:
            frame = self.session.read.parquet(local_uri(folder, to_read=True))
        return replace(outputs, session=self.session).stage_one(sink, frame, epoch, evaluation_id)

    def sweep(self, epoch: int) -> None:
        """Remove the rows of stores up to an epoch that is published."""
        self._schemas.clear()
        self._columns.clear()
        for path in self._real:
            assert self._checkpoint is not None
            sweep_staging(os.path.join(self._checkpoint, path), epoch)

    def drop(self, steps: Sequence[Sequence[Transaction]]) -> None:
        """Remove the rows of steps that are lost."""
        self._schemas.clear()
        self._columns.clear()
        for step in steps:
            for transaction in step:
                if transaction.get("kind") == KIND:
                    root = os.path.join(self._checkpoint or "", str(transaction["path"]))
                    shutil.rmtree(_evaluation(root, transaction), ignore_errors=True)


def _gather_files(root: str, group: Sequence[Transaction]) -> Transaction:
    """Put the files of several steps into the folder of the last one."""
    last = group[-1]
    target = os.path.join(root, str(last["staging"]))
    folders = [os.path.join(root, str(each["staging"])) for each in group]
    files = sorted((str(n), int(size)) for each in group for n, size in each["files"])
    for name, _ in files:
        final = os.path.join(target, name)
        if os.path.exists(final):
            continue
        holder = next((f for f in folders if os.path.exists(os.path.join(f, name))), None)
        if holder is None:
            raise CheckpointError(
                f"output is lost: {name}, which a batch before this one has staged below {root}, "
                "is not there: nothing of the epoch is published; start the job again, which "
                "computes its batches again"
            )
        os.makedirs(os.path.dirname(final), exist_ok=True)
        os.rename(os.path.join(holder, name), final)
    if files:
        forget_schema(target)
    sync_tree(target)
    whole = {**last, "files": [list(file) for file in files]}
    if all("rows" in each for each in group):
        whole["rows"] = sum(each["rows"] for each in group)
    columns: StructType | None = None
    for each in group:
        if each.get("partition_by"):
            whole["partition_by"] = each["partition_by"]
        if each.get("columns"):
            columns = fit_columns(columns, StructType.fromJson(each["columns"]), root)
    if columns is not None:
        whole["columns"] = columns.jsonValue()
    return whole


def publish_files(transaction: Mapping[str, Any], root: str) -> None:
    """Publish staged files at once, beside those that the epoch's folder has already."""
    staging = os.path.join(root, str(transaction["staging"]))
    final = os.path.join(root, str(transaction["final"]))
    save_form(transaction, root)
    for name, _ in data_files(staging, len(transaction.get("partition_by", ()))) or []:
        to = os.path.join(final, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.rename(os.path.join(staging, name), to)
    os.makedirs(final, exist_ok=True)
    sync_tree(final)
    shutil.rmtree(_evaluation(root, transaction), ignore_errors=True)


def check_at_least_once(outputs: Outputs) -> None:
    """Refuse sinks that take an epoch's number for the mark of what they have."""
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
