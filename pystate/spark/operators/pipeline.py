"""The methods of a job for use inside its pipeline, and the current epoch of a driver's thread.

In a notebook a `Job` may be made again while a query of the previous one still runs. The name that
its pipeline uses for the job then refers to another object. So an operator looks for the evaluation
of its thread, and not for that of its own object.

Thread safety: everything may be called from any thread.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pystate.base.arguments import checked_uid, text
from pystate.errors import CheckpointError
from pystate.operators.functions.base import KeyedProcessFunction
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.spark.base.environment import require_classic, require_pandas
from pystate.spark.base.routing import Routed
from pystate.spark.evaluation.evaluation import Evaluation
from pystate.spark.evaluation.initial_state import Given
from pystate.spark.operators.broadcast import BroadcastFrame
from pystate.spark.operators.functions import OperatorFrame
from pystate.spark.operators.inputs import InputOptions, KeyedInput
from pystate.spark.operators.keyed_frame import KeyedFrame
from pystate.spark.operators.loops import FeedbackLoop
from pystate.spark.operators.rdd import rdd_operator, split_rdd
from pystate.types.durations import Duration
from pystate.types.state_type import TypeLike

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: A function from one epoch's input, and optionally the job, to its output.
Pipeline = Callable[[Any], Any] | Callable[[Any, Any], Any]

_threads = threading.local()


class PipelineContext:
    """The part of a job that its pipeline calls to apply operators to an epoch's rows.

    Parameters
    ----------
    name : str
        The job's name.
    checkpoint : str
        The folder of its checkpoint.
    """

    def __init__(self, name: str, checkpoint: str) -> None:
        self.name = name
        self._checkpoint = checkpoint
        self._evaluation: Evaluation | None = None

    @property
    def checkpoint(self) -> str:
        """The checkpoint's folder."""
        return self._checkpoint

    def key_by(
        self,
        df: DataFrame,
        *columns: str,
        uid: str | None = None,
        order_by: str | Column | Sequence[str | Column] | None = None,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        idle_after: Duration | None = None,
        max_ahead: Duration | None = None,
        invalid: str | None = None,
        initial_rows: Given | None = None,
        as_rows: bool = False,
    ) -> KeyedFrame:
        """Partition one epoch's rows by key, for a stateful operator.

        Parameters
        ----------
        df : DataFrame
            The rows. It may be called only inside a pipeline.
        *columns : str
            The key columns, found as `DataFrame.select` finds them: upper and lower case are the
            same unless ``spark.sql.caseSensitive`` says otherwise, and names may have backticks. A
            field inside of a struct, ``"user.id"``, becomes a column of its own. Null is an
            ordinary key. A struct may be a key: a function sees it as a row, ``key.id``, or None.
            As in SQL, a null struct and a struct of nulls are different keys.
        uid : str
            Names the operator in checkpoints. It is required: by it a later run, with other code
            around the operator, finds the operator's state. A join's right input may leave it out.
        order_by : str, Column or a sequence of them, optional
            Sort each key's rows within the epoch. Without it their order is not specified, because
            Spark's shuffle does not keep any. `aggregate` sorts only if rounding makes a sum or a
            mean depend on the order.
        event_time : str, optional
            The column with the time of a row's event: a timestamp, a timestamp_ntz (taken as UTC),
            a date, or a long with milliseconds since 1970. The operator then has a watermark. An
            operator whose rows all come from operators with a watermark has one without this, too,
            and none of its rows is late.
        allowed_delay : str, timedelta or int, optional
            How far a row's event time may be behind the newest one: ``"10 minutes"``, a timedelta,
            or milliseconds; 0 by default. The watermark of an epoch is the largest event time of
            all epochs before it, minus this. If all rows come from other operators, it is their
            smallest watermark in the same epoch, minus this; if some do, the smaller of both. So
            operators that do not depend on each other have watermarks of their own.
        idle_after : str, timedelta or int, optional
            How long, in processing time, epochs may bring no row before the input is idle and holds
            no watermark back; by default it never is. The next row ends that, and may then be late,
            since a watermark never goes back. If all inputs of an operator are idle, its watermark
            stays where it is, and other operators do not wait for it.
        max_ahead : str, timedelta or int, optional
            How far a row's event time may be ahead of the epoch's processing time. A row that is
            further ahead, of the year 9999 for example, would make all later rows late for good: it
            is invalid. By default there is no bound.
        invalid : str, optional
            The tag of a side output for rows that the operator cannot process, with the columns of
            `df`. Without it ``Job(on_invalid=...)`` says what becomes of them.
        initial_rows : DataFrame or callable, optional
            Rows of the time before the operator's first epoch, with the columns of `df`, in any
            order of rows. They go through the operator as an epoch of their own whose output is
            dropped. So the first epoch has the watermark that they give, and what is due by then,
            such as a window, is done. Once the checkpoint has the operator, they are not read. A
            function without arguments makes the frame only when it is needed.
        as_rows : bool
            Take updates that an operator before this one has emitted, such as the counts of
            `aggregate`, for rows of their own. By default `top`, `aggregate` and `deduplicate` with
            ``keep="last"`` take each for the newest state of what it is of, which replaces the
            earlier one; joins, windows and other duplicates refuse them. A function sees each
            update as a row in any case.

        Returns
        -------
        KeyedFrame
            Call `process`, `aggregate`, `window`, `deduplicate`, `top`, `interval_join`,
            `asof_join` or `connect` on it.
        """
        evaluation = self._evaluation_of(df, "key_by")
        name = None if uid is None else checked_uid(uid)
        options = InputOptions(
            event_time,
            allowed_delay,
            idle_after,
            order_by,
            max_ahead,
            invalid,
            initial_rows,
            as_rows,
        )
        return KeyedFrame(KeyedInput.by(evaluation, df, columns, name, options))

    def operator(
        self,
        df: DataFrame,
        *,
        uid: str | None = None,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        idle_after: Duration | None = None,
        max_ahead: Duration | None = None,
        invalid: str | None = None,
    ) -> OperatorFrame:
        """Give one epoch's rows to the instances of an operator, for state without keys.

        Parameters
        ----------
        df : DataFrame
            The rows. It may be called only inside a pipeline.
        uid : str
            Names the operator in checkpoints.
        event_time, allowed_delay, idle_after, max_ahead, invalid
            As in `key_by`.

        Returns
        -------
        OperatorFrame
            Call `process` on it, with a `ProcessFunction`.
        """
        evaluation = self._evaluation_of(df, "operator")
        options = InputOptions(
            event_time, allowed_delay, idle_after, max_ahead=max_ahead, invalid=invalid
        )
        return OperatorFrame(evaluation, df, checked_uid(uid), options)

    def broadcast(
        self,
        df: DataFrame,
        *,
        uid: str | None = None,
        order_by: str | Column | Sequence[str | Column] | None = None,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        idle_after: Duration | None = None,
    ) -> BroadcastFrame:
        """Give one epoch's rows, such as rules, to every instance of an operator.

        Parameters
        ----------
        df : DataFrame
            The rows, which should be few: each instance gets all of them. It may be called only
            inside a pipeline.
        uid : str
            Names the broadcast states in checkpoints; another one than the operator's. It is
            required, for the reason that `key_by` gives.
        order_by : str, Column or a sequence of them, optional
            The order in which all instances see the rows; rows that are equal in it are ordered by
            their content. Without it all see one order, too, which is not specified.
        event_time : str, optional
            As in `key_by`. The operator's watermark is then the smaller one of both inputs. Without
            it these rows hold no watermark back, and none of them has a time.
        allowed_delay, idle_after : str, timedelta or int, optional
            As in `key_by`. Rules are rare: ``idle_after="1 minute"`` lets the watermark go on.

        Returns
        -------
        BroadcastFrame
            Connect it to the keyed input: ``job.key_by(...).connect(rules).process(function, ...)``
            with a `KeyedBroadcastProcessFunction`.
        """
        evaluation = self._evaluation_of(df, "broadcast")
        options = InputOptions(event_time, allowed_delay, idle_after, order_by)
        return BroadcastFrame(evaluation, df, checked_uid(uid), options)

    def feedback(
        self,
        name: str,
        schema: str | StructType,
        *,
        uid: str | None = None,
        event_time: str | None = None,
    ) -> FeedbackLoop:
        """Open a loop: rows that an epoch feeds are read by the next one.

        Parameters
        ----------
        name : str
            The loop's name in messages.
        schema : str or StructType
            The columns of its rows, as DDL: ``"order long, tries int"``.
        uid : str, optional
            Names the rows in flight in checkpoints; by default `name`.
        event_time : str, optional
            The column with the rows' event time. The watermark of an operator that reads the loop's
            rows then waits for the oldest one in flight, so that none is late. Without it no
            watermark waits for a loop.

        Returns
        -------
        FeedbackLoop
            ``loop.rows()`` are the rows that the epoch before has fed, ``loop.feed(df)`` feeds
            those of this epoch. Each epoch reads the rows, and feeds back those that are to stay.

        Notes
        -----
        The rows in flight are state: they are in every checkpoint and savepoint, exactly once.
        `Job.run_until_empty` runs epochs until there are none; in a stream each batch is an epoch,
        and `heartbeat` makes batches without input.
        """
        evaluation = self._current("feedback")
        require_pandas("feedback")
        text(name, "feedback: name")
        known = checked_uid(name if uid is None else uid)
        return FeedbackLoop(evaluation, name, schema, known, event_time)

    def partition_by(
        self,
        rdd: RDD[Any],
        key: Callable[[Any], Any],
        *,
        key_type: TypeLike | Sequence[TypeLike],
        uid: str | None = None,
        event_time: Callable[[Any], object] | None = None,
        allowed_delay: Duration | None = None,
        idle_after: Duration | None = None,
    ) -> RDD[Routed]:
        """Partition an RDD by key, for ``rdd.mapPartitions(job.partitions(...))``.

        Parameters
        ----------
        rdd : RDD
            The elements. It may be called only inside a pipeline.
        key : callable
            Returns the key of an element; a tuple for a key of several parts.
        key_type : type or sequence of types
            The type of the key, or of each of its parts: DDL, or a type of pyarrow or pyspark.
        uid : str
            Names the operator in checkpoints; pass the same to `partitions`.
        event_time : callable, optional
            Returns the time of an element's event: a datetime with a time zone, a date (its
            midnight in UTC), milliseconds since 1970, or None. The operator then has a watermark,
            as in `key_by`.
        allowed_delay : str, timedelta or int, optional
            How far an element's event time may be behind the newest one; 0 by default. An RDD
            counts as a source, even if it was made from another operator's output.
        idle_after : str, timedelta or int, optional
            As in `key_by`.

        Returns
        -------
        RDD
            One partition per key-group range; only `partitions` can read its elements.
        """
        evaluation = self._current("partition_by")
        name = checked_uid(uid)
        return split_rdd(
            evaluation, rdd, key, key_type, name, event_time, allowed_delay, idle_after
        )

    def partitions(
        self,
        function: KeyedProcessFunction,
        *,
        uid: str | None = None,
        schema: str | StructType | None = None,
        side_outputs: Mapping[str, str | StructType] | None = None,
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        initial_state: Given | None = None,
        initial_timers: Given | None = None,
    ) -> Callable[[Iterator[Routed]], Iterator[Any]]:
        """Return a stateful function in a form for ``rdd.mapPartitions``.

        Parameters
        ----------
        function : KeyedProcessFunction
            It gets each element of the RDD that `partition_by` was given, as ``row``.
        uid : str
            As given to `partition_by`.
        schema : str or StructType, optional
            Check what the function yields against these columns.
        side_outputs : mapping from tag to str or StructType, optional
            The columns of what it emits with ``ctx.output(tag, row)``, as in `KeyedFrame.process`.
        late : {"process", "drop"} or str
            What happens to elements whose event time is below the watermark, as in
            `KeyedFrame.process`. A tag is one of `side_outputs`: the elements must then be rows,
            tuples, lists or dicts with a value for each of its columns.
        initial_state, initial_timers : DataFrame or callable, optional
            As in `KeyedFrame.process`. The key's column is ``key``; the parts of a key of several
            are ``key0``, ``key1`` and so on.

        Returns
        -------
        callable
            A function from a partition of `partition_by`'s result to what `function` yields.
        """
        evaluation = self._current("partitions")
        name = checked_uid(uid)
        return rdd_operator(
            evaluation,
            function,
            name,
            schema,
            side_outputs,
            late,
            initial_state,
            initial_timers,
        )

    def _evaluation_of(self, df: DataFrame, method: str) -> Evaluation:
        """The evaluation that a method is called in, for a frame that an operator can take."""
        evaluation = self._current(method)
        require_classic(df)
        require_pandas(method)
        return evaluation

    def _current(self, method: str) -> Evaluation:
        """The evaluation that a method is called in."""
        here: tuple[PipelineContext, Evaluation] | None = getattr(_threads, "running", None)
        if here is not None:
            job, evaluation = here
            if job.checkpoint != self.checkpoint:
                raise CheckpointError(
                    f"{method} of job {self.name!r}, on checkpoint {self.checkpoint}, is called in "
                    f"an epoch of job {job.name!r}, on {job.checkpoint}: call it on the job that "
                    "the pipeline is given, def pipeline(df, job)"
                )
            return evaluation
        # This is a thread that the pipeline has started.
        evaluation_of_own = self._evaluation
        if evaluation_of_own is None:
            raise CheckpointError(
                f"{method} works inside a pipeline only, that is in the function given to start "
                "or run_epoch, which opens the epoch that the state belongs to"
            )
        return evaluation_of_own


@contextmanager
def evaluating(job: PipelineContext, evaluation: Evaluation) -> Iterator[None]:
    """Set the current evaluation of a job and of this thread."""
    before = getattr(_threads, "running", None)
    job._evaluation, _threads.running = evaluation, (job, evaluation)
    try:
        with evaluation:
            yield
    finally:
        job._evaluation, _threads.running = None, before


def for_job(pipeline: Callable[..., Any], job: PipelineContext) -> Callable[[Any], Any]:
    """Return a pipeline as a function of only an epoch's input.

    A pipeline with a parameter called ``job``, or with a second one without a default, gets the
    job.
    """
    try:
        _, *more = inspect.signature(pipeline).parameters.values()
    except (TypeError, ValueError):
        return pipeline
    kinds = inspect.Parameter
    for parameter in more:
        if parameter.name == "job" and parameter.kind is not kinds.POSITIONAL_ONLY:
            return lambda data: pipeline(data, job=job)
    positional = kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD
    needed = [each for each in more if each.kind in positional and each.default is kinds.empty]
    return pipeline if len(needed) != 1 else lambda data: pipeline(data, job)
