"""An operator's state, read from a checkpoint's files: at once, or range by range.

A scan reads one epoch. A job that runs meanwhile retires epochs and removes their files. A read of
everything at once then starts again with the newest epoch; a scan that has yielded rows cannot.

Thread safety: functions without state; a `StateScan` is immutable, and its ranges may be read in
several threads or processes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO

import pyarrow as pa

from pystate.arguments import checked_uid, folder_path
from pystate.backend.keyed import KeyedStateBackend
from pystate.checkpoint.job_file import JOB_FILE
from pystate.checkpoint.manifest import OperatorState, RangeState, manifest_path
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.state_files import file_schema, open_file
from pystate.checkpoint.storage import CheckpointStorage, open_storage
from pystate.errors import CheckpointError
from pystate.state.kinds import declared_as
from pystate.state.operator_spec import OperatorSpec
from pystate.types.keys import parse_key
from pystate.types.state_type import StateType

__all__ = ["StateScan", "read_all", "read_state", "scan_state"]

_TRIES = 10


def read_state(location: str | os.PathLike[str], uid: str | None = None) -> pa.Table:
    """Read an operator's state as of a checkpoint's newest epoch into one table.

    Ranges are read in parallel, by as many threads as there are processors.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job.
    uid : str, optional
        The operator. It may be left out if the checkpoint has only one, as that of a store has.

    Returns
    -------
    pyarrow.Table
        A row per key: the key columns, the namespace if the operator has any, then a column per
        state. A state that the key does not have is null. An aggregate's column has the results, an
        object's the pickled bytes. Timers are left out.

    Raises
    ------
    CheckpointError
        The checkpoint has no epoch, or no such operator, or a file of it is lost.
    """
    return read_all(_storage_at(location, "read_state"), uid)


def scan_state(location: str | os.PathLike[str], uid: str | None = None) -> pa.RecordBatchReader:
    """Read an operator's state as of a checkpoint's newest epoch, lazily.

    Parameters
    ----------
    location, uid
        As for `read_state`.

    Returns
    -------
    pyarrow.RecordBatchReader
        The rows of `read_state`, read as they are asked for. As many ranges as the machine has
        processors are in memory at a time. The reader can be used once. DuckDB, Polars and
        pyarrow's writers take it.

    Raises
    ------
    CheckpointError
        As for `read_state`. It is also raised while batches are read, if a running job has removed
        the epoch's files.
    """
    scan = StateScan.newest(_storage_at(location, "scan_state"), uid)
    return pa.RecordBatchReader.from_batches(scan.schema, scan.batches())


def _storage_at(location: str | os.PathLike[str], caller: str) -> CheckpointStorage:
    return open_storage(folder_path(location, f"{caller}: a checkpoint's location"))


def read_all(storage: CheckpointStorage, uid: str | None) -> pa.Table:
    """`read_state` of an open checkpoint; it starts again if a job retires the epoch it reads."""
    epoch = 0
    for _ in range(_TRIES):
        try:
            scan = StateScan.newest(storage, uid)
            return pa.Table.from_batches(scan.batches(), scan.schema)
        except _MissingFileError as error:
            # A running driver retires epochs, and removes their files, while they are read.
            if error.epoch == epoch:
                raise
            epoch = error.epoch
    raise CheckpointError(
        f"checkpoint {storage.uri}: each of {_TRIES} epochs was retired while it was read: retain "
        "more epochs, or read while the job stands still"
    )


class _MissingFileError(CheckpointError):
    """A file that an epoch's manifest names does not exist, or no longer."""

    epoch = 0


@dataclass(frozen=True)
class StateScan:
    """An operator's state as of one epoch."""

    storage: CheckpointStorage
    epoch: int
    max_parallelism: int
    """Number of key groups."""
    operator: OperatorState
    namespace: StateType | None
    """The type of its namespaces; None if it has none."""

    @classmethod
    def newest(cls, storage: CheckpointStorage, uid: str | None) -> StateScan:
        """Look at the newest epoch; errors are those of `read_state`."""
        if uid is not None:
            checked_uid(uid)
        manifest = read_head(storage)
        if manifest is None:
            raise CheckpointError(
                f"checkpoint {storage.uri} has no epoch yet"
                if storage.exists(JOB_FILE)
                else f"{storage.uri} holds no checkpoint: give the folder that a Job, or "
                "pystate.open, has as its checkpoint"
            )
        operators = [found for found in manifest.operators if uid in (None, found.uid)]
        if len(operators) != 1:
            known = ", ".join(sorted(repr(found.uid) for found in manifest.operators)) or "none"
            raise CheckpointError(
                f"checkpoint {storage.uri}, epoch {manifest.epoch}: which operator? It has {known}"
                if uid is None
                else f"checkpoint {storage.uri} has no operator {uid!r} in epoch {manifest.epoch}; "
                f"it has {known}"
            )
        [operator] = operators
        scan = cls(storage, manifest.epoch, manifest.max_parallelism, operator, None)
        return replace(scan, namespace=scan._namespace_in_files())

    def split(self) -> list[StateScan]:
        """One scan per range, which together have the rows of this one."""
        return [
            replace(self, operator=replace(self.operator, ranges=(state,)))
            for state in self.operator.ranges
        ]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        with self._backend(self.operator.ranges[0]) as backend:
            return backend.arrow_schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows; several ranges are read ahead, one per processor."""
        parts = self.split()
        if len(parts) == 1:
            yield from self._batches_of(*self.operator.ranges)
            return
        ahead = min(len(parts), os.cpu_count() or 1)
        # Loading and reading out release the GIL.
        threads = ThreadPoolExecutor(ahead)
        try:
            reads: deque[Future[list[pa.RecordBatch]]] = deque()
            for part in parts:
                reads.append(threads.submit(_all_of, part))
                if len(reads) > ahead:
                    yield from reads.popleft().result()
            while reads:
                yield from reads.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _batches_of(self, state: RangeState) -> Iterator[pa.RecordBatch]:
        with self._backend(state) as backend:
            for ref in state.files:
                with self._opened(ref.path) as file:
                    backend.load(
                        file,
                        # After a change of parallelism only a part of a file's rows belongs to the
                        # range.
                        first_key_group=max(ref.first_key_group, state.first_key_group),
                        last_key_group=min(ref.last_key_group, state.last_key_group),
                        expected=ref,
                        allow_unclaimed_state=True,  # timers, and what was dropped
                        since=dict(state.since),
                    )
            yield from backend.to_batches()

    def _backend(self, state: RangeState) -> KeyedStateBackend:
        operator = OperatorSpec(
            uid=self.operator.uid,
            key=parse_key(list(self.operator.key_schema)),
            states={name: declared_as(stored) for name, stored in self.operator.state_schema},
            namespace=self.namespace,
            max_parallelism=self.max_parallelism,
        )
        return KeyedStateBackend.of(operator, (state.first_key_group, state.last_key_group))

    def _namespace_in_files(self) -> StateType | None:
        for ref in self.operator.files:
            with self._opened(ref.path) as source, open_file(source) as opened:
                return file_schema(opened.reader).namespace
        return None

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        try:
            file = self.storage.open_read(path)
        except FileNotFoundError as error:
            missing = _MissingFileError(
                f"checkpoint {self.storage.uri}: a file that {manifest_path(self.epoch)} names is "
                f"missing: {error.filename}; a job that went on may have retired the epoch: read "
                "again, or retain more epochs; if not, bring it back from a copy"
            )
            missing.epoch = self.epoch
            raise missing from error
        with file:
            yield file


def _all_of(scan: StateScan) -> list[pa.RecordBatch]:
    return list(scan.batches())
