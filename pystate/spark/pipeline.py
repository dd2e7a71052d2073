"""What a job offers inside its pipeline, and which epoch a thread of the driver is in.

In a notebook a `Job` is soon made again, while a query of the one before goes on: the name by which
its pipeline knows the job then stands for another object. So an operator looks for the evaluation
that its thread is in, and not for what its own object has begun.

Thread safety: all may be called from any thread.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pystate.arguments import checked_uid
from pystate.errors import CheckpointError
from pystate.functions.base import KeyedProcessFunction
from pystate.operator.function_spec import PROCESS_LATE
from pystate.spark.environment import require_classic
from pystate.spark.evaluation import Evaluation
from pystate.spark.keyed import KeyedFrame
from pystate.spark.rdd import rdd_operator, split_rdd
from pystate.spark.requirements import require_pandas
from pystate.spark.routing import Routed
from pystate.types.durations import Duration
from pystate.types.state_type import TypeLike

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Pipeline", "PipelineContext", "evaluating", "for_job"]

#: From one epoch's input, and the job if it asks for it, to its output.
Pipeline = Callable[[Any], Any] | Callable[[Any, Any], Any]

_threads = threading.local()


class PipelineContext:
    """The part of a job that its pipeline calls, to put operators on an epoch's rows.

    Parameters
    ----------
    name : str
        The job's.
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
    ) -> KeyedFrame:
        """Split one epoch's rows by key, for a stateful operator.

        Parameters
        ----------
        df : DataFrame
            The rows; inside a pipeline only.
        *columns : str
            The key columns, found as `DataFrame.select` finds them: upper and lower case are the
            same unless ``spark.sql.caseSensitive`` says otherwise, and names may have backticks. A
            field inside of a struct, ``"user.id"``, becomes a column of its own. Null is an
            ordinary key. A struct may be a key: a function sees it as a row, ``key.id``. It counts
            by its fields, so that a struct that is null and a struct of nulls are one key.
        uid : str
            Names the operator in checkpoints. Required: it is how a later run, with other code
            around it, finds the operator's state again.
        order_by : str, Column or a sequence of them, optional
            Sort each key's rows within the epoch. Without it their order is not promised, because
            Spark's shuffle gives none. `aggregate` sorts only where rounding makes a sum or a mean
            depend on the order.
        event_time : str, optional
            The column that says when a row's event happened: a timestamp, a timestamp_ntz (taken
            for UTC), a date, or a long with milliseconds since 1970. It makes a watermark.
        allowed_delay : str, timedelta or int, optional
            How much later than the newest event a row may come: ``"10 minutes"``, a timedelta, or
            milliseconds; 0 by default. The watermark of an epoch is the largest event time of all
            epochs before it, minus this. Several operators with event time share the smallest of
            theirs, and there is none before each of them has seen a row. An operator whose rows
            all come from another one's timers must therefore have no event time: each would wait
            for the other.

        Returns
        -------
        KeyedFrame
            Put `process` or `aggregate` on it.
        """
        evaluation = self._current("key_by")
        require_classic(df)
        require_pandas("key_by")
        name = checked_uid(uid)
        return KeyedFrame(evaluation, df, columns, name, order_by, event_time, allowed_delay)

    def partition_by(
        self,
        rdd: RDD[Any],
        key: Callable[[Any], Any],
        *,
        key_type: TypeLike | Sequence[TypeLike],
        uid: str | None = None,
        event_time: Callable[[Any], object] | None = None,
        allowed_delay: Duration | None = None,
    ) -> RDD[Routed]:
        """Split an RDD by key, for ``rdd.mapPartitions(job.partitions(...))``.

        Parameters
        ----------
        rdd : RDD
            The elements; inside a pipeline only.
        key : callable
            The key of an element; a tuple for a key of several parts.
        key_type : type or sequence of types
            The type of the key, or of each of its parts: DDL, or a type of pyarrow or pyspark.
        uid : str
            Names the operator in checkpoints; `partitions` takes the same.
        event_time : callable, optional
            When an element's event happened: a datetime with a time zone, a date (its midnight in
            UTC), milliseconds since 1970, or None. It makes a watermark, as in `key_by`.
        allowed_delay : str, timedelta or int, optional
            How much later than the newest event an element may come; 0 by default.

        Returns
        -------
        RDD
            One partition per key-group range; its elements are for `partitions` alone.
        """
        evaluation = self._current("partition_by")
        name = checked_uid(uid)
        return split_rdd(evaluation, rdd, key, key_type, name, event_time, allowed_delay)

    def partitions(
        self,
        function: KeyedProcessFunction,
        *,
        uid: str | None = None,
        schema: str | StructType | None = None,
        side_outputs: Mapping[str, str | StructType] | None = None,
        late: Literal["process", "drop"] | str = PROCESS_LATE,
    ) -> Callable[[Iterator[Routed]], Iterator[Any]]:
        """Make a stateful function fit ``rdd.mapPartitions``.

        Parameters
        ----------
        function : KeyedProcessFunction
            Sees each element of the RDD that `partition_by` was given, as ``row``.
        uid : str
            As given to `partition_by`.
        schema : str or StructType, optional
            Check what the function yields against these columns.
        side_outputs : mapping from tag to str or StructType, optional
            The columns of what it emits with ``ctx.output(tag, row)``, as in `KeyedFrame.process`.
        late : {"process", "drop"} or str
            What becomes of elements whose event time is below the watermark, as in
            `KeyedFrame.process`. A tag is one of `side_outputs`: the elements must then be rows,
            tuples, lists or dicts with a value for each of its columns.

        Returns
        -------
        callable
            From a partition of `partition_by`'s result to what the function yields.
        """
        evaluation = self._current("partitions")
        name = checked_uid(uid)
        return rdd_operator(evaluation, function, name, schema, side_outputs, late)

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
        # A thread that the pipeline has started.
        evaluation_of_own = self._evaluation
        if evaluation_of_own is None:
            raise CheckpointError(
                f"{method} works inside a pipeline only, that is in the function given to start "
                "or run_epoch, which opens the epoch that the state belongs to"
            )
        return evaluation_of_own


@contextmanager
def evaluating(job: PipelineContext, evaluation: Evaluation) -> Iterator[None]:
    """Let a job, and this thread, be within an evaluation."""
    before = getattr(_threads, "running", None)
    job._evaluation, _threads.running = evaluation, (job, evaluation)
    try:
        with evaluation:
            yield
    finally:
        job._evaluation, _threads.running = None, before


def for_job(pipeline: Callable[..., Any], job: PipelineContext) -> Callable[[Any], Any]:
    """Return a pipeline as a function of an epoch's input alone.

    One that has a parameter called ``job``, or a second one without a default, gets the job.
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
    needed = [found for found in more if found.kind in positional and found.default is kinds.empty]
    return pipeline if len(needed) != 1 else lambda data: pipeline(data, job)
