"""The sink protocol: what a user's output does in an epoch's two-phase commit.

An epoch's output is first staged where readers do not see it. Then the epoch's manifest is
published, which names what was staged. Only then is the output committed: by this driver, or after
a crash by the next one, which knows only what the manifest says, and finds the sink by its name.

Thread safety: the driver calls a sink from one thread at a time; tasks have copies of it.

Invariants
----------
1. Nothing is visible under the output's name before the manifest that names it is published.
2. A commit may be repeated: after a crash, by another process, from the manifest alone.
3. Rows of a losing evaluation are never visible, however late its tasks end.
4. A transaction that cannot be committed stops the job, since rows would be missing. A transaction
   that no sink could commit never gets into a manifest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from pystate.base.arguments import flag, require_no_credentials, shortened, shown
from pystate.errors import DeclarationError, InvalidArgumentError, PystateError, SinkError
from pystate.operators.functions.binding import unsendable_reference
from pystate.spark.base.connection import at_once
from pystate.spark.base.failures import is_stop, stopped_its_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: A manifest's record of a sink's part in an epoch: plain JSON, with ``"kind"``.
Transaction = dict[str, Any]

_RECEIPTS = "partition int, receipt string, rows long"


@dataclass(frozen=True)
class SinkTask:
    """Identifies the rows of one call of `Sink.stage`.

    Attributes
    ----------
    epoch : int
        The checkpoint's number of the epoch.
    evaluation_id : str
        The evaluation's id: an epoch that is computed again has another one.
    partition : int
        Number of the partition within the evaluation.
    attempt_id : int
        Spark's number of the attempt, unique within an application.
    """

    epoch: int
    evaluation_id: str
    partition: int
    attempt_id: int


class Sink:
    """Base of users' outputs: derive from it, give it a name, and write `stage` and `commit`.

    Attributes
    ----------
    name : str
        The sink's name in manifests. By this name a driver that starts again finds the sink that
        can commit what its predecessor has staged: a sink that the job is given, or one that was
        passed to `register_sink`. Set it in the class or in ``__init__``, and do not change it
        while a checkpoint may name it.

    at_least_once : bool
        Whether the sink takes several commits with the number of one epoch, each with other rows.
        A job whose mode is ``"at_least_once"`` commits each batch at once, and refuses other sinks.

    Notes
    -----
    The calls in each epoch, on the driver unless noted otherwise::

        begin(epoch, evaluation_id)               # before anything is computed
        stage(batches, task) -> receipt           # in each task of the output
        prepare(epoch, evaluation_id, receipts) -> transaction
        ...the epoch is published: its manifest has the transaction...
        commit(epoch, transaction)

    An evaluation that does not count ends with `abort` instead of the remaining steps. An error in
    `begin`, `stage` or `prepare` fails the job, and nothing is published. After an error in
    `commit` the epoch is published and its rows wait: the next start of the job commits them before
    anything else.

    Tasks get copies of the sink, made by pickling: keep connections out of its attributes, and
    open them in the methods.

    Examples
    --------
    >>> class Lines(Sink):
    ...     name = "lines"
    ...     def stage(self, batches, task):
    ...         return sum(batch.num_rows for batch in batches)
    ...     def commit(self, epoch, transaction):
    ...         print(f"epoch {epoch}: {sum(transaction)} rows")
    >>> Lines().commit(7, [2, 3])
    epoch 7: 5 rows
    """

    name: str = ""
    at_least_once: bool = False

    def begin(self, epoch: int, evaluation_id: str) -> None:
        """Fail now if the epoch could not be committed later; nothing has been computed yet.

        Do not remove here what other evaluations of the epoch have staged: another driver may be
        about to publish one of them.

        Parameters
        ----------
        epoch : int
            The checkpoint's number of the epoch.
        evaluation_id : str
            Hexadecimal id of this evaluation; an epoch that is computed again has another one.
        """

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise an error if the rows cannot have these columns; nothing has been written yet."""

    def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        """Write a partition's rows durably, where readers do not see them. Runs in a Spark task.

        Parameters
        ----------
        batches : iterator of pyarrow.RecordBatch
            The rows; read them to the end.
        task : SinkTask
            Identifies the rows.

        Returns
        -------
        JSON
            A receipt for `prepare`; it should be small, such as the name of a file.

        Notes
        -----
        Spark may run it several times for one partition, at the same time or after a failure, and
        even for an aborted evaluation: only the receipts that `prepare` gets count. Write each
        attempt to its own place.
        """
        raise NotImplementedError

    def stage_frame(self, frame: DataFrame, epoch: int, evaluation_id: str) -> Sequence[Any]:
        """Stage all rows of an evaluation, and return the receipts for `prepare`.

        It runs `stage` in each task. Override it instead of `stage` to write with one of Spark's
        writers, ``frame.write...``, in one action that reads `frame` to its end.
        """
        return staged_by_tasks(self, frame, epoch, evaluation_id)[0]

    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
        """Make sure that what was staged can be committed, and describe it.

        Parameters
        ----------
        receipts : list
            The return values of `stage`, one per partition in order of its number; empty without
            rows.

        Returns
        -------
        JSON
            The transaction: all that `commit` needs beside the sink's own settings. By default the
            receipts.
        """
        return receipts

    def commit(self, epoch: int, transaction: Any) -> None:
        """Make the rows of an epoch visible, all at once; it may have been done before.

        It is called again if it is not known whether it was done, as after a crash, and then by
        another process. So the step that makes the rows visible must also leave a mark by which a
        second call knows that it was done: a row with the epoch's number in the same database
        transaction, or a renamed file. What other evaluations of this epoch and of earlier ones
        have staged can be removed now.

        Parameters
        ----------
        epoch : int
            The checkpoint's number of the epoch.
        transaction : JSON
            The return value of `prepare`, after a round trip through JSON: a tuple is a list.
        """
        raise NotImplementedError

    def abort(self, epoch: int, evaluation_id: str) -> None:
        """Remove what an evaluation that will not be published has staged.

        It is not called after a crash: see `commit` for what is left then.
        """

    def read(self, session: SparkSession, epoch: int | None = None) -> DataFrame | None:
        """Read the published rows, or one epoch's; None if the output cannot be read here."""
        return None

    def _bound(self, checkpoint: str | None, session: SparkSession | None) -> Sink:
        """The sink as used by one job, whose checkpoint is in that folder."""
        return self


def check_sink(sink: Sink, what: str) -> None:
    """Refuse a sink whose transactions could not be committed, or that tasks could not run."""
    kind = type(sink)
    name: Any = sink.name
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"{what}: {kind.__qualname__}.name is {shown(name)}: give the sink a name, such "
            f"as name = {kind.__name__.lower()!r}, by which a driver that starts again finds it"
        )
    require_no_credentials(name, f"{what}: {kind.__qualname__}.name")
    by_task = kind.stage_frame is Sink.stage_frame
    lacks = ["commit"] if kind.commit is Sink.commit else []
    if by_task and kind.stage is Sink.stage:
        lacks.insert(0, "stage")
    if lacks:
        raise InvalidArgumentError(f"{what}: {kind.__qualname__} lacks {' and '.join(lacks)}")
    if by_task:
        _check_can_be_sent(sink, what)


def _check_can_be_sent(sink: Sink, what: str) -> None:
    from pyspark import cloudpickle

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    try:
        dumps(sink)
    except Exception as error:
        reason = " ".join(str(error).split())
        culprit, value = type(sink).__qualname__, ""
        for attribute, attached in getattr(sink, "__dict__", {}).items():
            try:
                dumps(attached)
            except Exception:
                culprit, value = f"{culprit}.{attribute}", f" = {attached!r:.80}"
                break
        else:
            used = unsendable_reference(sink, dumps)
            if used is not None:
                culprit, value = used[0], f", which refers to {used[1]} = {used[2]!r:.80},"
        raise DeclarationError(
            f"{what}: {culprit}{value} cannot go to the tasks, which work on copies of the sink: "
            f"open it in stage and commit, or leave it out in __getstate__ ({reason})"
        ) from error


# ---- the registry ------------------------------------------------------------------------------

_registry: dict[str, Sink] = {}
_registering = threading.Lock()


def register_sink(sink: Sink, *, replace: bool = False) -> Sink:
    """Let this process commit rows that were staged in a sink that the job no longer has.

    Parameters
    ----------
    sink : Sink
        It is found by its name. A sink that the job is given need not be registered, and takes
        precedence over a registered one of the same name.
    replace : bool
        Replace another registered sink of that name.

    Returns
    -------
    Sink
        The same sink.

    Raises
    ------
    InvalidArgumentError
        It is not a sink, has no name, or another sink of that name is registered.
    """
    given: Any = sink
    if not isinstance(given, Sink):
        hint = "; pass an object of it" if isinstance(given, type) else ""
        raise InvalidArgumentError(f"register_sink takes a sink, not {shown(given)}{hint}")
    replace = flag(replace, "register_sink: replace")
    check_sink(sink, "register_sink")
    with _registering:
        other = _registry.get(sink.name)
        if other is not None and other is not sink and not replace:
            raise InvalidArgumentError(
                f"register_sink: there is another sink {sink.name!r}, {shown(other)}: give this "
                "one another name, or pass replace=True"
            )
        _registry[sink.name] = sink
    return sink


def registered_sink(name: str) -> Sink | None:
    """The sink that was registered under a name."""
    return _registry.get(name)


def registered_names() -> list[str]:
    """The names of all registered sinks."""
    return sorted(_registry)


# ---- calls of user code ------------------------------------------------------------------------


def raise_failed(error: Exception, what: str, then: str) -> NoReturn:
    """Raise the right error after a sink's method has raised one.

    pystate's own errors are kept as they are, and so is the error of a stopped query, which Spark
    recognises only by its text.
    """
    if isinstance(error, PystateError) or is_stop(error) or stopped_its_query(error):
        raise error
    raise failure(what, error, then) from error


def failure(what: str, error: Exception, then: str) -> SinkError:
    """An error that says in one line what failed, with which error, and what follows."""
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {shortened(lines[0])}" if lines else type(error).__name__
    return SinkError(f"{what} failed: {reason}; {then}")


def as_json(value: Any, what: str) -> Any:
    """A value after a round trip through JSON, so that every commit sees the same."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise SinkError(
            f"{what} returned {shown(value)}, and must return plain JSON, that is None, booleans, "
            f"numbers, strings, lists and dicts of them: {error}"
        ) from error


def staged_by_tasks(
    sink: Sink, frame: DataFrame, epoch: int, evaluation_id: str
) -> tuple[list[Any], int]:
    """Run a sink's `stage` in each task; return the receipts, and how many rows there were."""
    call = _Stage(sink, epoch, evaluation_id)
    receipts = sorted(frame.mapInArrow(call, _RECEIPTS).collect())
    return [json.loads(row.receipt) for row in receipts], sum(row.rows for row in receipts)


class _Stage:
    """Runs a sink's `stage` in a task, over one partition."""

    def __init__(self, sink: Sink, epoch: int, evaluation_id: str) -> None:
        self._sink = sink
        self._epoch = epoch
        self._evaluation_id = evaluation_id
        #: The rows of the partition.
        self.rows = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        task = SinkTask(self._epoch, self._evaluation_id, partition, context.taskAttemptId())
        receipt = self.run(batches, task)
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([partition], pa.int32()),
                "receipt": [json.dumps(receipt)],
                "rows": [self.rows],
            }
        )

    def run(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        """Stage the rows, and count them; return the receipt."""
        what = f"sink {self._sink.name!r}, epoch {task.epoch}, partition {task.partition}: stage"
        rows = _Rows(at_once(batches))
        try:
            receipt = self._sink.stage(rows, task)
        except Exception as error:
            # An error of the rows' source is raised as it is.
            if rows.failed or isinstance(error, PystateError):
                raise
            raise failure(what, error, "nothing of the epoch was published") from error
        receipt = as_json(receipt, what)
        if any(batch.num_rows for batch in rows):
            raise SinkError(
                f"{what} returned before it had read all its rows, which would be lost: read "
                "batches to the end"
            )
        self.rows = rows.count
        return receipt


class _Rows:
    """An iterator that knows whether it was the one that failed."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.failed = False
        self.count = 0

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
            self.count += batch.num_rows
            return batch
        except StopIteration:
            raise
        except BaseException:
            self.failed = True
            raise
