"""The outputs of an epoch: from rows that the tasks have staged to the manifest's transactions.

Thread safety: immutable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from pystate.arguments import mapping, require_no_credentials, shown
from pystate.checkpoint.storage import CheckpointStorage
from pystate.coordinator.coordinator import Coordinator
from pystate.coordinator.epoch import Epoch, RangeReport
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.redaction import logger
from pystate.spark.base.environment import local_uri
from pystate.spark.base.parquet_format import ParquetFormat, parquet_format
from pystate.spark.sinks.folders import shared
from pystate.spark.sinks.parquet import EXECUTED, ParquetSink
from pystate.spark.sinks.sink import (
    Sink,
    Transaction,
    as_json,
    check_sink,
    raise_failed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OWN", "Outputs", "begin_outputs", "checkpoint_folder", "outputs_of", "relocatable"]

_LOG = logger("pystate.spark.sinks.outputs")

#: The kind of a transaction that only its own sink can commit.
OWN = "sink"
_RESULTS = "results"
_SIDE = "side"
#: In a receipt of this process, how the tasks have written the rows.
_FORMAT = "format"
_NOTHING = "nothing of the epoch was published"


@dataclass(frozen=True)
class Outputs:
    """The outputs of an epoch: one sink for the pipeline's result, and one for each tag.

    Parameters
    ----------
    main : Sink
        The sink for the pipeline's result.
    sides : mapping from tag to Sink
        The sinks for the side outputs.
    checkpoint : str or None
        The checkpoint's folder, if it is one.
    session : SparkSession, optional
        The session of the epoch.
    """

    main: Sink
    sides: Mapping[str, Sink] = field(default_factory=dict)
    checkpoint: str | None = None
    session: SparkSession | None = None

    def __post_init__(self) -> None:
        taken: dict[str, str] = {}
        for sink, owner in self._owners():
            if is_own(sink):
                what, share = f"the sink {sink.name!r}", "have"
            else:
                what, share = sink.path, "both write to"  # type: ignore[attr-defined]
            if what in taken:
                hint = "name" if is_own(sink) else "folder"
                raise InvalidArgumentError(
                    f"{owner} and {taken[what]} {share} {what}: each output needs a {hint} of its "
                    "own"
                )
            taken[what] = owner

    def _owners(self) -> list[tuple[Sink, str]]:
        sides = [(sink, f"side_outputs[{tag!r}]") for tag, sink in self.sides.items()]
        return [(self.main, "the job's sink"), *sides]

    def sinks(self) -> list[Sink]:
        """All of them."""
        return [self.main, *self.sides.values()]

    def begin(self, epoch: int, evaluation_id: str) -> None:
        """Fail now if the epoch could not be committed later."""
        for sink in self.sinks():
            self._begin(sink, epoch, evaluation_id)

    def _begin(self, sink: Sink, epoch: int, evaluation_id: str) -> None:
        try:
            self._bound(sink).begin(epoch, evaluation_id)
        except Exception as error:
            _fail(sink, epoch, "begin", error, "nothing was computed")

    def abort(self, epoch: int, evaluation_id: str) -> None:
        """Remove what an evaluation staged."""
        for sink in self.sinks():
            self._abort(sink, epoch, evaluation_id)
        for tag in self.sides:
            self._side_store(tag).abort(epoch, evaluation_id)

    def _abort(self, sink: Sink, epoch: int, evaluation_id: str) -> None:
        try:
            self._bound(sink).abort(epoch, evaluation_id)
        except Exception as error:
            # It must not hide the error that ended the evaluation.
            _LOG.warning("%s", _message(sink, epoch, "abort", error), exc_info=error)

    def side_folder(self, tag: str, names: Sequence[str], epoch: int, evaluation_id: str) -> str:
        """The folder where tasks write the rows of a tag that has a sink."""
        self.sides[tag].check_columns(names)
        return self._side_store(tag).task_folder(epoch, evaluation_id)

    def stage_one(
        self, sink: Sink, frame: DataFrame, epoch: int, evaluation_id: str
    ) -> Transaction:
        """Take rows through all of a sink's part in an epoch up to its transaction."""
        self._abort(sink, epoch, evaluation_id)  # what an earlier call may have staged
        self._begin(sink, epoch, evaluation_id)
        return self._prepare(
            sink, self._stage(sink, frame, epoch, evaluation_id), epoch, evaluation_id
        )

    @property
    def shows_plan(self) -> bool:
        """Whether the executed plan of the main sink's write can be had."""
        return type(self.main) is ParquetSink

    @staticmethod
    def plan_of(staged: list[Any]) -> Any:
        """The executed plan of what `stage_main` has written; None if this Spark hides it."""
        [receipt] = staged
        return receipt[EXECUTED]

    def task_format(self, frame: DataFrame, epoch: int) -> ParquetFormat | None:
        """How tasks could write the result for the main sink; None if Spark has to."""
        if not isinstance(self.main, ParquetSink) or is_own(self.main) or self.main.partition_by:
            return None
        self._check_columns(self.main, frame.columns, epoch)
        return parquet_format(frame)

    def task_folder(self, epoch: int, evaluation_id: str) -> str:
        """The folder where tasks write the result."""
        assert isinstance(self.main, ParquetSink)
        return self.main.task_folder(epoch, evaluation_id)

    @staticmethod
    def stage_written(frame: DataFrame, form: ParquetFormat) -> list[Any]:
        """Run tasks that write the result, and so give no rows. Return receipts."""
        frame._jdf.collectAsList()
        return [{_FORMAT: form, EXECUTED: frame._jdf.queryExecution().executedPlan()}]

    def stage_main(self, frame: DataFrame, epoch: int, evaluation_id: str) -> list[Any]:
        """Write the pipeline's result; return the sink's receipts."""
        self._check_columns(self.main, frame.columns, epoch)
        return self._stage(self.main, frame, epoch, evaluation_id)

    def prepare(
        self, staged: list[Any], reports: Sequence[RangeReport], epoch: int, evaluation_id: str
    ) -> list[Transaction]:
        """Stage the side outputs that the reports name, and return all transactions.

        A tag without rows has no transaction.
        """
        [receipt, *_] = staged or [None]
        if isinstance(receipt, dict) and _FORMAT in receipt:
            assert isinstance(self.main, ParquetSink)
            files = [report.result_file for report in reports if report.result_file is not None]
            staged = self.main.stage_result(files, receipt[_FORMAT], epoch, evaluation_id)
        main = self._prepare(self.main, staged, epoch, evaluation_id)
        return [main, *self.stage_sides(reports, epoch, evaluation_id)]

    def stage_sides(
        self, reports: Sequence[RangeReport], epoch: int, evaluation_id: str
    ) -> list[Transaction]:
        """Stage the files that the reports name; a tag without rows has no transaction."""
        files: dict[str, dict[tuple[str, int], None]] = {}
        for report in reports:
            for file in report.side_files:
                files.setdefault(file.tag, {})[file.name, file.file_bytes] = None
        transactions = []
        for tag in sorted(self.sides):
            sink, store = self.sides[tag], self._side_store(tag)
            if tag not in files:
                self._abort(sink, epoch, evaluation_id)
                continue
            staged = list(store.stage_files(tuple(files[tag]), epoch, evaluation_id))
            if store is not sink:
                assert self.session is not None
                folder = store.staged_folder(epoch, evaluation_id)
                frame = self.session.read.parquet(local_uri(folder, to_read=True))
                staged = self._stage(sink, frame, epoch, evaluation_id)
                store.abort(epoch, evaluation_id)
            transactions.append(self._prepare(sink, staged, epoch, evaluation_id))
        return transactions

    def held(self) -> AbstractContextManager[None]:
        """While the block runs, the folders of the outputs are not compacted."""
        return shared(sink.path for sink in self.sinks() if isinstance(sink, ParquetSink))

    def read(self, epoch: int) -> DataFrame | None:
        """Read the rows of an epoch again, if the sink supports it."""
        main = self.main
        assert self.session is not None
        if isinstance(main, ParquetSink) and main.is_compacted(epoch):
            return None
        return main.read(self.session, epoch)

    def require(self, transaction: Transaction, what: str) -> None:
        """Make sure that a run's transaction was made by the sink that this call is given.

        Raises
        ------
        InvalidArgumentError
            It was another sink; the message begins with `what`.
        """
        sink, own = self.main, transaction.get("kind") == OWN
        if own:
            if not is_own(sink) or sink.name != transaction["name"]:
                raise InvalidArgumentError(
                    f"{what} has its rows in the sink {transaction['name']!r}: pass that one as "
                    "sink=, as when it was computed"
                )
        elif isinstance(sink, ParquetSink):
            sink.require(transaction, what)
        else:
            raise InvalidArgumentError(
                f"{what} has its rows in {transaction['path']}: pass "
                f"sink=ParquetSink({transaction['path']!r}), as when it was computed"
            )

    def _side_store(self, tag: str) -> ParquetSink:
        """The sink itself if tasks can write its files; else a store where they wait for it."""
        sink = self.sides[tag]
        if isinstance(sink, ParquetSink) and not is_own(sink) and not sink.partition_by:
            return sink
        if self.checkpoint is None:
            raise InvalidArgumentError(
                f"side_outputs[{tag!r}]: {sink!r} takes a checkpoint in a local folder"
            )
        return ParquetSink(os.path.join(self.checkpoint, _SIDE, f"tag={quote(tag, safe='')}"))

    def _bound(self, sink: Sink) -> Sink:
        return sink._bound(self.checkpoint, self.session)

    def _check_columns(self, sink: Sink, names: Sequence[str], epoch: int) -> None:
        try:
            sink.check_columns(names)
        except Exception as error:
            _fail(sink, epoch, "check_columns", error, _NOTHING)

    def _stage(self, sink: Sink, frame: DataFrame, epoch: int, evaluation_id: str) -> list[Any]:
        try:
            return list(self._bound(sink).stage_frame(frame, epoch, evaluation_id))
        except Exception as error:
            # The caller decides which of Spark's errors are worth another evaluation.
            if not is_own(sink) or type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            _fail(sink, epoch, "stage_frame", error, _NOTHING)

    def _prepare(
        self, sink: Sink, staged: list[Any], epoch: int, evaluation_id: str
    ) -> Transaction:
        try:
            content = self._bound(sink).prepare(epoch, evaluation_id, staged)
        except Exception as error:
            _fail(sink, epoch, "prepare", error, _NOTHING)
        if not is_own(sink):
            return relocatable(content, self.checkpoint)
        kind, what = type(sink), f"sink {sink.name!r}, epoch {epoch}: prepare"
        content = as_json(content, what)
        require_no_credentials(content, f"{what} returned a transaction that")
        return {
            "kind": OWN,
            "name": sink.name,
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "transaction": content,
        }


def _fail(sink: Sink, epoch: int, method: str, error: Exception, then: str) -> NoReturn:
    raise_failed(error, f"sink {sink.name or sink!r}, epoch {epoch}: {method}", then)


def _message(sink: Sink, epoch: int, method: str, error: Exception) -> str:
    return f"sink {sink.name or sink!r}, epoch {epoch}: {method} failed: {error!r:.200}"


def is_own(sink: Sink) -> bool:
    """Whether only the sink itself can commit a transaction."""
    return type(sink) is not ParquetSink


def outputs_of(
    storage: CheckpointStorage,
    sink: Sink | None,
    sides: Mapping[str, Sink] | None,
    session: SparkSession,
) -> Outputs:
    """The outputs that a job is given, checked."""
    folder = checkpoint_folder(storage)
    _check_given(sink)
    if sink is None:
        if folder is None:
            raise InvalidArgumentError(
                f"{storage.uri} is no local folder, so that results cannot be kept in it: pass a "
                "sink"
            )
        sink = ParquetSink(os.path.join(folder, _RESULTS))
    given = {} if sides is None else sides
    tags = mapping(given, "side_outputs", "side_outputs={'late': ParquetSink('/data/late')}")
    for tag, side in tags.items():
        if not isinstance(side, Sink):
            raise InvalidArgumentError(
                f"side_outputs[{tag!r}] is {side!r:.80}: give each tag a sink, for example "
                f"side_outputs={{{tag!r}: ParquetSink(path)}}"
            )
        _check_given(side, f"side_outputs[{tag!r}]")
    outputs = Outputs(sink, dict(tags), folder, session)
    for each in outputs.sinks():
        outputs._bound(each)
    return outputs


def _check_given(sink: object, what: str = "sink") -> None:
    """Refuse a value that is not a sink; None stands for the default one."""
    if sink is None or type(sink) is ParquetSink:
        return
    if isinstance(sink, Sink):
        check_sink(sink, what)
        return
    hint = ""
    if isinstance(sink, type):
        hint = "; pass an object of it"
    elif callable(getattr(sink, "commit", None)):
        hint = "; derive its class from pystate.spark.Sink"
    elif callable(sink):
        hint = "; for a function of an epoch's rows write foreach_epoch(function)"
    path = repr(os.fspath(sink)) if isinstance(sink, (str, os.PathLike)) else "'/data/out'"
    raise InvalidArgumentError(
        f"{what} is a sink, for example ParquetSink({path}), not {shown(sink)}{hint}"
    )


def checkpoint_folder(storage: CheckpointStorage) -> str | None:
    """The checkpoint's folder, if it is one."""
    results = storage.local_path(_RESULTS)
    return None if results is None else os.path.dirname(results)


def relocatable(transaction: Transaction, checkpoint: str | None) -> Transaction:
    """Give a folder inside the checkpoint a relative path, so that the checkpoint can be moved.

    Parameters
    ----------
    checkpoint : str or None
        The checkpoint's folder, if it is one.
    """
    path = transaction.get("path")
    if checkpoint is None or path is None:
        return transaction
    inside = os.path.relpath(path, checkpoint)
    if inside.split(os.sep)[0] == os.pardir:
        return transaction
    return {**transaction, "path": inside}


def begin_outputs(outputs: Outputs, coordinator: Coordinator, epoch: Epoch) -> None:
    """Begin the sinks' part in an epoch, on behalf of the driver that owns the checkpoint.

    Raises
    ------
    FencedError
        Another driver owns the checkpoint. Output that is in the way may have been published by
        that driver after this one was found to be the owner, so the owner is checked again.
    """
    coordinator.check_current(epoch)
    try:
        outputs.begin(epoch.number, epoch.evaluation_id)
    except CheckpointError:
        coordinator.check_current(epoch)
        raise
