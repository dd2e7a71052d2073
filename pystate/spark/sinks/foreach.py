"""A sink that passes each epoch's rows to a user's function once the epoch is published.

The rows are first staged as Parquet files in the checkpoint: when the function runs, the state has
moved on, and after a crash the rows could not be computed again.

Thread safety: as in `pystate.spark.sinks.sink`.

Invariants
----------
1. The function gets an epoch's rows only after its manifest is published, and gets the same rows
   each time it is called for the epoch.
2. Staged rows are removed only after a durable note that the function has returned. If there are
   neither rows nor a note, rows are lost, which is an error.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pystate.base.arguments import flag, shown, text
from pystate.checkpoint.storage import sync_path
from pystate.errors import InvalidArgumentError, SinkError
from pystate.spark.sinks.folders import data_files
from pystate.spark.sinks.parquet import (
    ParquetSink,
    read_numbered,
    sweep_staging,
    with_numbered_columns,
)
from pystate.spark.sinks.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


#: A function that gets an epoch's rows and the epoch's number.
EpochFunction = Callable[["DataFrame", int], Any]

_FOLDER = "foreach"
#: A folder's name has at most 255 bytes.
_LONGEST = 200


def foreach_epoch(
    function: EpochFunction, *, name: str = "foreach_epoch", at_least_once: bool = False
) -> ForeachEpoch:
    """Make a sink from a function, which is called with each epoch's rows and number.

    Parameters
    ----------
    function : callable
        ``function(df, epoch)``, called on the driver in the order of the epochs, even for an epoch
        without rows. `df` may be read any number of times until the function returns. An error that
        it raises fails the job.
    name : str
        The sink's name, by which the job finds the function when it starts again. Several functions
        of a job must have different names.
    at_least_once : bool
        Whether `function` may be called several times for one epoch, with the rows of one batch
        each time: see ``CheckpointOptions(mode=...)``.

    Returns
    -------
    ForeachEpoch
        Pass it as ``sink=``, or in ``side_outputs=``.

    Notes
    -----
    The function is called at least once for each epoch, with the same rows each time. It is called
    again if the driver ended before it noted that the call had returned. Its effect is exactly once
    if it is idempotent by the epoch: it writes the number with the rows, in one transaction, and
    does nothing for a number that is already there. A driver that was delayed while its successor
    continued may still call the function for an older epoch. A function that would thereby undo
    later epochs must refuse a number below the last one written.

    The rows are kept in ``foreach/`` in the checkpoint, as Parquet files, until the call has
    returned.

    Examples
    --------
    >>> def show(df, epoch):
    ...     print(epoch, df.count())
    >>> foreach_epoch(show)
    foreach_epoch(show)
    """
    sink = ForeachEpoch(function, text(name, "foreach_epoch: name"))
    sink.at_least_once = flag(at_least_once, "foreach_epoch: at_least_once")
    return sink


class ForeachEpoch(Sink):
    """A function as a sink; `foreach_epoch` makes it."""

    def __init__(self, function: EpochFunction, name: str) -> None:
        self.name = name
        self.function = function
        _check_function(function)
        if len(quote(name, safe="")) > _LONGEST:
            raise InvalidArgumentError(f"foreach_epoch: name={name!r:.80} is too long for a folder")

    def __repr__(self) -> str:
        called = getattr(self.function, "__qualname__", repr(self.function))
        name = "" if self.name == "foreach_epoch" else f", name={self.name!r}"
        return f"foreach_epoch({called}{name})"

    def _bound(self, checkpoint: str | None, session: SparkSession | None) -> Sink:
        return _JobSink(self, checkpoint, session)

    def stage_frame(self, frame: DataFrame, epoch: int, evaluation_id: str) -> Sequence[Any]:
        """Refuse: rows wait in a job's checkpoint."""
        raise SinkError("a foreach_epoch works in a job alone")

    def commit(self, epoch: int, transaction: Any) -> None:
        """Refuse: rows wait in a job's checkpoint."""
        raise SinkError("a foreach_epoch works in a job alone")


class _JobSink(Sink):
    """The sink of one job, which knows where the job's rows wait."""

    def __init__(
        self, sink: ForeachEpoch, checkpoint: str | None, session: SparkSession | None
    ) -> None:
        if checkpoint is None:
            raise InvalidArgumentError(
                f"{sink!r} keeps rows in the checkpoint's folder, and this one is no local folder"
            )
        self.name = sink.name
        self._sink = sink
        self._session = session
        self._root = os.path.join(checkpoint, _FOLDER, f"name={quote(sink.name, safe='')}")
        self._store = ParquetSink(self._root)

    def stage_frame(self, frame: DataFrame, epoch: int, evaluation_id: str) -> Sequence[Any]:
        [staged] = self._store.stage_frame(with_numbered_columns(frame), epoch, evaluation_id)
        return [{**staged, "schema": json.loads(frame.schema.json())}]

    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
        parquet = self._store.prepare(epoch, evaluation_id, receipts)
        kept = {key: parquet[key] for key in ("staging", "files", "rows")}
        return {**kept, "schema": receipts[0]["schema"], "evaluation_id": evaluation_id}

    def commit(self, epoch: int, transaction: Any) -> None:
        done = os.path.join(self._root, f"_done-{epoch}-{transaction['evaluation_id']}")
        staged = os.path.join(self._root, transaction["staging"])
        if not os.path.exists(done):
            wanted = sorted((name, size) for name, size in transaction["files"])
            # Another driver may have committed it meanwhile.
            if data_files(staged) != wanted and not os.path.exists(done):
                raise SinkError(
                    f"rows are lost: {staged} does not hold the {len(wanted)} files that the "
                    "checkpoint names; put them back from a backup"
                )
            self._call(self._frame(staged, transaction["schema"]), epoch)
            _touch(done)
        sweep_staging(self._root, epoch)
        self._forget(epoch)

    def _frame(self, staged: str, schema: Any) -> DataFrame:
        session = self._session or SparkSession.getActiveSession()
        if session is None:
            raise SinkError("there is no Spark session to read the rows with: make one first")
        return read_numbered(session, staged, StructType.fromJson(schema))

    def _call(self, frame: DataFrame, epoch: int) -> None:
        result = self._sink.function(frame, epoch)
        if inspect.isawaitable(result) or inspect.isgenerator(result):
            kind = type(result).__name__
            if inspect.iscoroutine(result):
                result.close()
            raise SinkError(
                f"the function returned a {kind}, which nobody runs: its work must be done when "
                "it returns"
            )

    def _forget(self, epoch: int) -> None:
        """Remove the notes of earlier epochs, which are never committed again."""
        for name in os.listdir(self._root):
            note = re.fullmatch(r"_done-(\d+)-.*", name)
            if note is not None and int(note[1]) < epoch:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._root, name))

    def abort(self, epoch: int, evaluation_id: str) -> None:
        self._store.abort(epoch, evaluation_id)


def _touch(path: str) -> None:
    with open(path, "w", encoding="utf-8"):
        pass
    sync_path(path)
    sync_path(os.path.dirname(path))


def _check_function(function: Any) -> None:
    if not callable(function) or isinstance(function, type):
        raise InvalidArgumentError(
            "foreach_epoch takes a function of an epoch's rows and its number, def f(df, epoch), "
            f"not {shown(function)}"
        )
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called):
        raise InvalidArgumentError(
            f"foreach_epoch: {shown(function)} is a coroutine or a generator, which nobody would "
            "run: its work must be done when it returns"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, 0)
    except TypeError:
        raise InvalidArgumentError(
            f"foreach_epoch: {shown(function)} is called with an epoch's rows and its number, "
            f"f(df, epoch), and does not take these: it is f{signature}"
        ) from None
