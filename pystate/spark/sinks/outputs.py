"""The outputs of an epoch: from rows that the tasks have staged to the manifest's transactions.

Thread safety: immutable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote, unquote

from pyspark.sql.pandas.types import from_arrow_schema

from pystate.base.arguments import mapping, require_no_credentials, shown, text
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import RangeReport
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.redaction import logger
from pystate.spark.base.environment import local_uri
from pystate.spark.base.parquet_format import ParquetFormat, parquet_format
from pystate.spark.sinks.folders import shared_locks
from pystate.spark.sinks.parquet import EXECUTED, KIND, ParquetSink
from pystate.spark.sinks.sink import (
    Sink,
    Transaction,
    as_json,
    check_sink,
    raise_failed,
    staged_by_tasks,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_LOG = logger("pystate.spark.sinks.outputs")

#: The kind of a transaction that only its own sink can commit.
OWN = "sink"
#: The name of the output of a pipeline that returns one frame.
ONLY = ""
#: In a transaction, the name of the output; an only output has none.
OUTPUT = "output"
_RESULTS = "results"
#: The folder of the outputs that have names and no sinks.
RESULTS = "outputs"
_SIDE = "side"
#: In a receipt of this process, how the tasks have written the rows, and of which operator.
_FORMAT = "format"
_OPERATOR = "operator"
_NOTHING = "nothing of the epoch was published"


class Staged(NamedTuple):
    """What a sink has staged."""

    receipts: list[Any]
    rows: int | None = None
    """How many rows; None if the sink's transaction says it, or nothing does."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of an epoch: sinks for what the pipeline returns, and one for each tag.

    With `default`, `main` was not given, and depends on what the pipeline returns.
    """

    main: Sink | Mapping[str, Sink]
    sides: Mapping[str, Sink] = field(default_factory=dict)
    checkpoint: str | None = None
    session: SparkSession | None = None
    default: bool = False

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
        _require_apart(
            {sink.path: owner for sink, owner in self._owners() if isinstance(sink, ParquetSink)}
        )

    def _owners(self) -> list[tuple[Sink, str]]:
        sides = [(sink, f"side_outputs[{tag!r}]") for tag, sink in self.sides.items()]
        if isinstance(self.main, Mapping):
            return [*((sink, f"sink[{name!r}]") for name, sink in self.main.items()), *sides]
        return [(self.main, "the job's sink"), *sides]

    @property
    def mains(self) -> Mapping[str, Sink]:
        """The sinks for what the pipeline returns, by the name of the output."""
        return self.main if isinstance(self.main, Mapping) else {ONLY: self.main}

    def sinks(self) -> list[Sink]:
        """All of them."""
        return [*self.mains.values(), *self.sides.values()]

    def folders(self) -> list[str]:
        """The folders that rows are published in by a rename."""
        return [sink.path for sink in self.sinks() if isinstance(sink, ParquetSink)]

    def folders_of(self, transactions: Sequence[Transaction]) -> set[str]:
        """The folders that transactions have published rows in."""
        paths = (str(each["path"]) for each in transactions if each.get("kind") == KIND)
        return {os.path.join(self.checkpoint or "", path) for path in paths}

    def for_names(self, names: Sequence[str] | None) -> Outputs:
        """The outputs of a pipeline that has returned frames of some names, or one without."""
        if self.default:
            return self if names is None else self._by_default(names)
        if names is None:
            if not isinstance(self.main, Mapping):
                return self
            wanted = ", ".join(map(repr, self.main))
            raise InvalidArgumentError(
                f"the pipeline returned one DataFrame, and sink= has sinks for {wanted}: return a "
                "dict of DataFrames with these names, or pass one sink"
            )
        if not isinstance(self.main, Mapping):
            example = ", ".join(f"{name!r}: ..." for name in names)
            raise InvalidArgumentError(
                f"the pipeline returned the outputs {', '.join(map(repr, names))}, and sink= is "
                f"one sink: pass a sink for each, sink={{{example}}}"
            )
        missing = [name for name in names if name not in self.main]
        left = [name for name in self.main if name not in names]
        if missing or left:
            wrong = [f"no sink for {', '.join(map(repr, missing))}"] if missing else []
            wrong += [f"a sink for {', '.join(map(repr, left))}, which it did not"] if left else []
            raise InvalidArgumentError(
                f"the pipeline returned the outputs {', '.join(map(repr, names))}; sink= has "
                f"{' and '.join(wrong)}: it must have the same names"
            )
        return self

    def _by_default(self, names: Iterable[str]) -> Outputs:
        assert self.checkpoint is not None
        root = os.path.join(self.checkpoint, RESULTS)
        sinks = {name: ParquetSink(os.path.join(root, _folder(name))) for name in names}
        return replace(self, main=sinks, default=False)

    def of_epoch(self, epoch: int, manifest: Manifest | None) -> Outputs:
        """The outputs of a published epoch, whose pipeline may have returned several frames."""
        if not self.default or self.checkpoint is None:
            return self
        if manifest is not None:
            names = [str(each[OUTPUT]) for each in manifest.sinks if OUTPUT in each]
        else:
            root = os.path.join(self.checkpoint, RESULTS)
            folders = sorted(os.listdir(root)) if os.path.isdir(root) else []
            names = [
                unquote(name)
                for name in folders
                if epoch in ParquetSink(os.path.join(root, name)).epochs()
            ]
        return self._by_default(names) if names else self

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

    def side_folder(self, tag: str, schema: pa.Schema, epoch: int, evaluation_id: str) -> str:
        """The folder where tasks write the rows of a tag that has a sink."""
        self._check_columns(self.sides[tag], from_arrow_schema(schema), epoch)
        return self._side_store(tag).task_folder(epoch, evaluation_id)

    def stage_one(
        self, sink: Sink, frame: DataFrame, epoch: int, evaluation_id: str
    ) -> Transaction:
        """Take rows through all of a sink's part in an epoch up to its transaction."""
        self._abort(sink, epoch, evaluation_id)  # what an earlier call may have staged
        self._begin(sink, epoch, evaluation_id)
        staged = self._stage(sink, frame, epoch, evaluation_id)
        return self._prepare(sink, staged.receipts, epoch, evaluation_id)

    @property
    def shows_plan(self) -> bool:
        """Whether the executed plans of the writes of the pipeline's frames can be had."""
        return all(type(sink) is ParquetSink for sink in self.mains.values())

    @staticmethod
    def plans_of(staged: Mapping[str, Staged]) -> list[Any]:
        """The executed plans of what was written; None for those that this Spark hides."""
        return [each.receipts[0][EXECUTED] for each in staged.values()]

    def task_format(self, name: str, frame: DataFrame, epoch: int) -> ParquetFormat | None:
        """How tasks could write an output; None if Spark has to."""
        sink = self.mains[name]
        if not isinstance(sink, ParquetSink) or is_own(sink) or sink.partition_by:
            return None
        self._check_columns(sink, frame.schema, epoch)
        return parquet_format(frame)

    def task_folder(self, name: str, epoch: int, evaluation_id: str) -> str:
        """The folder where tasks write an output."""
        sink = self.mains[name]
        assert isinstance(sink, ParquetSink)
        return sink.task_folder(epoch, evaluation_id)

    @staticmethod
    def stage_written(frame: DataFrame, form: ParquetFormat, uid: str) -> Staged:
        """Run an operator's tasks that write the result, and so give no rows."""
        frame._jdf.collectAsList()
        executed = frame._jdf.queryExecution().executedPlan()
        return Staged([{_FORMAT: form, _OPERATOR: uid, EXECUTED: executed}])

    def stage_main(self, name: str, frame: DataFrame, epoch: int, evaluation_id: str) -> Staged:
        """Write a frame that the pipeline has returned."""
        sink = self.mains[name]
        self._check_columns(sink, frame.schema, epoch)
        return self._stage(sink, frame, epoch, evaluation_id)

    def prepare(
        self,
        staged: Mapping[str, Staged],
        reports: Sequence[RangeReport],
        epoch: int,
        evaluation_id: str,
    ) -> list[Transaction]:
        """Stage the side outputs that the reports name, and return all transactions.

        A tag without rows has no transaction.
        """
        transactions = [
            self._prepare_main(name, each.receipts, reports, epoch, evaluation_id)
            for name, each in staged.items()
        ]
        return [*transactions, *self.stage_sides(reports, epoch, evaluation_id)]

    def _prepare_main(
        self,
        name: str,
        staged: list[Any],
        reports: Sequence[RangeReport],
        epoch: int,
        evaluation_id: str,
    ) -> Transaction:
        sink = self.mains[name]
        [receipt, *_] = staged or [None]
        if isinstance(receipt, dict) and _FORMAT in receipt:
            assert isinstance(sink, ParquetSink)
            files = [
                report.result_file
                for report in reports
                if report.result_file is not None and report.uid == receipt[_OPERATOR]
            ]
            staged = sink.stage_result(files, receipt[_FORMAT], epoch, evaluation_id)
        transaction = self._prepare(sink, staged, epoch, evaluation_id)
        return {**transaction, OUTPUT: name} if name != ONLY else transaction

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
                staged = self._stage(sink, frame, epoch, evaluation_id).receipts
                store.abort(epoch, evaluation_id)
            transactions.append(self._prepare(sink, staged, epoch, evaluation_id))
        return transactions

    def lock_folders(self) -> AbstractContextManager[None]:
        """While the block runs, the folders of the outputs are not compacted."""
        return shared_locks(sink.path for sink in self.sinks() if isinstance(sink, ParquetSink))

    def read(self, epoch: int) -> Mapping[str, DataFrame | None]:
        """Read the rows of an epoch again, by output; None where the sink does not support it."""
        return {name: self._read(sink, epoch) for name, sink in self.mains.items()}

    def _read(self, sink: Sink, epoch: int) -> DataFrame | None:
        assert self.session is not None
        if isinstance(sink, ParquetSink) and sink.is_compacted(epoch):
            return None
        return sink.read(self.session, epoch)

    def require(self, transactions: Sequence[Transaction], what: str) -> None:
        """Make sure that a run's transactions were made by the sinks that this call is given."""
        named = {str(each[OUTPUT]): each for each in transactions if OUTPUT in each}
        by_output = named or {ONLY: transactions[0]}
        if by_output.keys() != self.mains.keys():
            have = f"the outputs {', '.join(map(repr, named))}" if named else "one output"
            raise InvalidArgumentError(
                f"{what} has {have}: pass sink= as when it was computed, "
                + ("a dict with a sink for each" if named else "one sink")
            )
        for name, sink in self.mains.items():
            _require(sink, by_output[name], what)

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

    def _check_columns(self, sink: Sink, schema: StructType, epoch: int) -> None:
        """Refuse columns that the sink cannot take; nothing has been written yet."""
        try:
            sink.check_columns(schema.names)
            if isinstance(sink, ParquetSink):
                sink.check_schema(schema)
        except Exception as error:
            _fail(sink, epoch, "check_columns", error, _NOTHING)

    def _stage(self, sink: Sink, frame: DataFrame, epoch: int, evaluation_id: str) -> Staged:
        bound = self._bound(sink)
        try:
            if type(bound).stage_frame is Sink.stage_frame:
                return Staged(*staged_by_tasks(bound, frame, epoch, evaluation_id))
            return Staged(list(bound.stage_frame(frame, epoch, evaluation_id)))
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


def _require_apart(owners: Mapping[str, str]) -> None:
    """Refuse a folder within another one, whose readers and compaction take all of it as theirs."""
    real = {os.path.realpath(path): (path, owner) for path, owner in owners.items()}
    for folder, (inner, owner) in real.items():
        for other, (outer, whose) in real.items():
            if folder != other and os.path.commonpath([folder, other]) == other:
                raise InvalidArgumentError(
                    f"{owner} writes to {inner}, which is within {outer}, where {whose} writes: "
                    "readers of that folder would take all of it for its rows; put the folders "
                    "side by side"
                )
    if len(real) < len(owners):
        raise InvalidArgumentError(
            f"{' and '.join(owners.values())}: by symbolic links some of {', '.join(owners)} are "
            "one folder: each output needs a folder of its own"
        )


def _folder(name: str) -> str:
    """The name of an output's folder, from which `unquote` gives the output's name."""
    quoted = quote(name, safe="")
    # "." and ".." are folders already.
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def _require(sink: Sink, transaction: Transaction, what: str) -> None:
    if transaction.get("kind") == OWN:
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


def rows_of(transaction: Transaction) -> int | None:
    """How many rows a transaction has; None if its sink does not say so."""
    content = transaction["transaction"] if transaction.get("kind") == OWN else transaction
    rows = content.get("rows") if isinstance(content, dict) else None
    return rows if isinstance(rows, int) else None


def _fail(sink: Sink, epoch: int, method: str, error: Exception, then: str) -> NoReturn:
    raise_failed(error, f"sink {sink.name or sink!r}, epoch {epoch}: {method}", then)


def _message(sink: Sink, epoch: int, method: str, error: Exception) -> str:
    return f"sink {sink.name or sink!r}, epoch {epoch}: {method} failed: {error!r:.200}"


def is_own(sink: Sink) -> bool:
    """Whether only the sink itself can commit a transaction."""
    return type(sink) is not ParquetSink


def outputs_of(
    storage: CheckpointStorage,
    sink: Sink | Mapping[str, Sink] | None,
    sides: Mapping[str, Sink] | None,
    session: SparkSession,
) -> Outputs:
    """The outputs that a job is given, checked."""
    folder = checkpoint_folder(storage)
    main = _by_name(sink) if isinstance(sink, Mapping) else sink
    if not isinstance(main, Mapping):
        _check_given(main)
    default = main is None
    if main is None:
        if folder is None:
            raise InvalidArgumentError(
                f"{storage.uri} is no local folder, so that results cannot be kept in it: pass a "
                "sink"
            )
        main = ParquetSink(os.path.join(folder, _RESULTS))
    given = {} if sides is None else sides
    tags = mapping(given, "side_outputs", "side_outputs={'late': ParquetSink('/data/late')}")
    for tag, side in tags.items():
        if not isinstance(side, Sink):
            raise InvalidArgumentError(
                f"side_outputs[{tag!r}] is {side!r:.80}: give each tag a sink, for example "
                f"side_outputs={{{tag!r}: ParquetSink(path)}}"
            )
        _check_given(side, f"side_outputs[{tag!r}]")
    outputs = Outputs(main, dict(tags), folder, session, default)
    for each in outputs.sinks():
        outputs._bound(each)
    return outputs


def _by_name(sinks: Mapping[Any, Any]) -> dict[str, Sink]:
    """The sinks of a pipeline that returns several frames, checked."""
    example = "sink={'users': ParquetSink('/data/users'), 'pages': ParquetSink('/data/pages')}"
    if not sinks:
        raise InvalidArgumentError(
            f"sink is an empty dict: it has a sink for each frame that the pipeline returns, "
            f"{example}; leave it out for files in the checkpoint"
        )
    for name, sink in sinks.items():
        text(name, "sink: the name of an output")
        if sink is None:
            raise InvalidArgumentError(
                f"sink[{name!r}] is None: give each output a sink, {example}; or leave sink= out, "
                "and all of them are kept in the checkpoint"
            )
        _check_given(sink, f"sink[{name!r}]")
    return dict(sinks)


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
    """Give a folder inside the checkpoint a relative path, so that the checkpoint can be moved."""
    path = transaction.get("path")
    if checkpoint is None or path is None:
        return transaction
    inside = os.path.relpath(path, checkpoint)
    if inside.split(os.sep)[0] == os.pardir:
        return transaction
    return {**transaction, "path": inside}


def begin_outputs(outputs: Outputs, coordinator: Coordinator, epoch: Epoch) -> None:
    """Begin the sinks' part in an epoch, on behalf of the driver that owns the checkpoint.

    Output that is in the way may have been published by another driver after this one was found to
    be the owner, so the owner is checked again: `FencedError`.
    """
    coordinator.check_current(epoch)
    try:
        outputs.begin(epoch.number, epoch.evaluation_id)
    except CheckpointError:
        coordinator.check_current(epoch)
        raise
