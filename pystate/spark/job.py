"""A job: pipelines of keyed operators over streams, batches and RDDs, with one checkpoint.

Thread safety: one epoch at a time; other threads wait for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pystate.arguments import checked_uid, flag, folder_path, integer, text
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import open_storage
from pystate.coordinator.clock import MAX_STEP_MS
from pystate.coordinator.coordinator import Coordinator
from pystate.coordinator.epoch import Epoch
from pystate.errors import CheckpointError, InvalidArgumentError, PystateError
from pystate.functions.base import KeyedProcessFunction
from pystate.inspection import read_all
from pystate.operator.function_spec import PROCESS_LATE
from pystate.spark.arguments import (
    checked_callback,
    checked_count,
    checked_drain,
    checked_home,
    checked_name,
    checked_pipeline,
    checked_restore,
    checked_trigger,
    session_of,
)
from pystate.spark.drain_keys import checked_run_key
from pystate.spark.environment import require_classic, use_this_python
from pystate.spark.evaluation import Evaluation, TableOptions
from pystate.spark.failures import is_retryable
from pystate.spark.heartbeat import with_heartbeat
from pystate.spark.keyed import KeyedFrame
from pystate.spark.live import NoLine, ProgressLine, Show, checked_show, progress_line, tasks_done
from pystate.spark.observed import checked_observe
from pystate.spark.progress import EpochProgress, notify, progress_panel
from pystate.spark.queries import Outcome
from pystate.spark.rdd import rdd_operator, split_rdd
from pystate.spark.reports import ReportBox
from pystate.spark.requirements import require_pandas
from pystate.spark.result import EpochResult
from pystate.spark.routing import Routed
from pystate.spark.running import (
    evaluating,
    for_job,
    note_query,
    require_unused,
    running_here,
    stop_query,
)
from pystate.spark.sinks.commits import Commits
from pystate.spark.sinks.outputs import Outputs, begin_outputs, checkpoint_folder, outputs_of
from pystate.spark.sinks.sink import Sink
from pystate.spark.state_source import register_state_source
from pystate.spark.streaming import StreamRun
from pystate.types.durations import Duration, milliseconds
from pystate.types.state_type import TypeLike

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = ["Job"]

#: From one epoch's input, and the job if it asks for it, to its output.
Pipeline = Callable[[Any], Any] | Callable[[Any, Any], Any]


class Job:
    """A stateful job: its name, its checkpoint, and how it is split.

    Parameters
    ----------
    name : str
        A checkpoint belongs to the job of one name.
    checkpoint : str or PathLike
        The folder of all state, manifests and stream positions. The driver and all executors must
        see it under this name.
    max_parallelism : int, optional
        Number of key groups, the most ranges that the state can ever be split into. The stored
        number by default, or for a new checkpoint the next power of two of 1.5 times
        `parallelism`, at least 128.
    parallelism : int, optional
        Number of key-group ranges of each operator, that is of tasks. Spark's default parallelism
        by default. It may differ from run to run.
    retained : int
        Number of epochs whose manifests are kept.
    allow_unclaimed_state : bool
        Let pipelines leave out operators that the checkpoint holds, which are carried along, and
        states or timers of an operator, which are dropped for good.
    memory_limit_bytes : int
        Bound of each table. 0: all tables of a host share one, which is three quarters of what the
        machine or the workers' control group allows, or what the workers' environment says
        (``spark.executorEnv.PYSTATE_MEMORY_LIMIT_BYTES``).
    shared_tables : bool
        Keep tables in memory that all workers of a host share. Otherwise every task restores its
        range from files, which only pays for tiny states: `table_home` is ``"heap"``.
    table_home : str or PathLike
        Where those are on each host: ``"shm"``, memory in ``/dev/shm``; ``"local"``, the first of
        the executor's local directories; ``"heap"``, each worker's own; or a folder. A table that
        outgrows ``/dev/shm`` or the folder goes to the local directory, and from there to the heap,
        for as long as the executor lives; its epoch is computed again.
    max_evaluations : int
        How often an epoch may be computed before its failure is the job's.
    max_clock_step : str, timedelta or int
        By how much one epoch's processing time follows a clock that jumps ahead, beyond the pauses
        that the job is used to. A clock that goes on for so long after a jump is believed, so that
        processing time is late for a while after a longer pause than ever.
    allow_time_back : bool
        Take processing time back where it is further ahead of the clock than that, for one start
        after a clock was wrong for long. Timers and times to live that were set by it stay.
    epoch_timeout : str, timedelta, int or None
        How long an epoch may go without any progress, that is without a Spark task that ended or
        a batch of rows that an operator took, as ``"10 minutes"``, a timedelta, or milliseconds.
        Then it is computed once more, and if that hangs too the job fails and says where. None
        for ever.
    allow_pickle : bool
        Whether states may be pickled: of type ``object``, or by an `AggregateFunction`. Whoever can
        write to the checkpoint can have any code run where such a state is read.
    replace : bool
        Stop the query that this process runs on the checkpoint, if there is one: at once, and again
        where `start` finds one. Without it `start` refuses. For notebooks, where a cell that makes
        the job runs again.

    Notes
    -----
    One epoch is one micro-batch, or one `run_epoch`. All operators of a pipeline and its output
    commit together or not at all.

    What an operator returns is computed once in an epoch, however often and far the pipeline reads
    it. Where that is more than once, or not to the end (a second action, `limit`, `isEmpty`, a
    sort, a self-join), the job notices in its first epoch, which is computed again, and
    materialises the rows in each, as `localCheckpoint` does. A pipeline that reads once, to the
    end, is faster.

    Examples
    --------
    >>> job = Job("flights", checkpoint="/data/flights", parallelism=4)  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        checkpoint: str | os.PathLike[str],
        *,
        max_parallelism: int | None = None,
        parallelism: int | None = None,
        retained: int = 3,
        allow_unclaimed_state: bool = False,
        memory_limit_bytes: int = 0,
        shared_tables: bool = True,
        table_home: str | os.PathLike[str] = "shm",
        max_evaluations: int = 4,
        max_clock_step: Duration = MAX_STEP_MS,
        allow_time_back: bool = False,
        epoch_timeout: Duration | None = "1 hour",
        allow_pickle: bool = True,
        replace: bool = False,
    ) -> None:
        self.name = text(name, "Job: name", ": Job('flights', checkpoint='/data/flights')")
        owner = f"job {name!r}"
        self._max_parallelism = checked_count(max_parallelism, f"{owner}: max_parallelism")
        self._parallelism = checked_count(parallelism, f"{owner}: parallelism")
        self._retained = integer(retained, f"{owner}: retained", least=1)
        self._allow_unclaimed_state = flag(allow_unclaimed_state, f"{owner}: allow_unclaimed_state")
        self._max_evaluations = integer(max_evaluations, f"{owner}: max_evaluations", least=1)
        self._max_clock_step_ms = milliseconds(max_clock_step, f"{owner}: max_clock_step", least=1)
        self._allow_time_back = flag(allow_time_back, f"{owner}: allow_time_back")
        self._timeout_ms = (
            None
            if epoch_timeout is None
            else milliseconds(epoch_timeout, f"{owner}: epoch_timeout", least=1)
        )
        self._tables = TableOptions(
            checked_home(table_home, flag(shared_tables, f"{owner}: shared_tables"), owner),
            integer(memory_limit_bytes, f"{owner}: memory_limit_bytes", least=0),
            allow_pickle=flag(allow_pickle, f"{owner}: allow_pickle"),
        )
        self._storage = open_storage(folder_path(checkpoint, f"{owner}: checkpoint"))
        self._commits = Commits(checkpoint_folder(self._storage))
        self._coordinator: Coordinator | None = None
        self._box: ReportBox | None = None
        self._lock = threading.Lock()
        self._evaluation: Evaluation | None = None
        self._materialised: set[str] = set()
        self._timed: set[str] = set()
        self._sizes: dict[tuple[str, int], tuple[int, int]] = {}
        self._replace = flag(replace, f"{owner}: replace")
        self._outcome = Outcome()
        self._progress: EpochProgress | None = None
        if self._replace:
            stop_query(self.checkpoint)

    def __repr__(self) -> str:
        return f"Job({self.name!r}, checkpoint={self._storage.uri!r})"

    def _repr_html_(self) -> str:
        try:
            newest: object = self.latest_epoch() or "none"
        except (PystateError, OSError) as error:
            newest = error
        progress, failure = self.last_progress, self.failure
        facts = {
            "checkpoint": self.checkpoint,
            "newest epoch": newest,
            "last computed": progress,
            "failure": None if failure is None else f"{type(failure).__name__}: {failure}",
        }
        return progress_panel(f"Job {self.name}", facts, progress)

    @property
    def checkpoint(self) -> str:
        """The checkpoint's folder."""
        return self._storage.uri

    @property
    def failure(self) -> BaseException | None:
        """What made the streaming query fail that was started last, with its own type and message.

        None where it has not failed: it runs, it has come to its end, or somebody has stopped it.
        ``StreamingQuery.awaitTermination`` raises Spark's account of it, Java traces included.
        """
        return self._outcome.failure

    @property
    def last_progress(self) -> EpochProgress | None:
        """The last epoch that this job has computed."""
        return self._progress

    # ---- inside a pipeline ---------------------------------------------------------------------

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
            The key columns, found as `DataFrame.select` finds them: in any case, unless
            ``spark.sql.caseSensitive`` says otherwise; with backticks; or fields inside of structs,
            ``"user.id"``, which become columns of their own. Null is an ordinary key. A struct may
            be one: a function sees it as a row, ``key.id``. It counts by its fields, so that a
            struct that is null and one of nulls are one key.
        uid : str
            Names the operator in checkpoints. Required: it is how a later run, with other code
            around it, finds the operator's state again.
        order_by : str, Column or a sequence of them, optional
            Sort each key's rows within the epoch. Without it their order is not promised, because
            Spark's shuffle gives none. `aggregate` sorts only for sums and means that rounding
            makes depend on the order.
        event_time : str, optional
            The column that says when a row's event happened: a timestamp, a timestamp_ntz (taken
            for UTC), a date, or a long with milliseconds since 1970. It makes a watermark.
        allowed_delay : str, timedelta or int, optional
            How much later than the newest event a row may come: ``"10 minutes"``, a timedelta, or
            milliseconds; 0 by default. The watermark of an epoch is the largest event time of all
            epochs before it minus this, and the smallest of that where several operators have
            event time; none before each has seen one. An operator whose rows all come from another
            one's timers, which wait for the watermark, must therefore have no event time.

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

    # ---- epochs --------------------------------------------------------------------------------

    def start(
        self,
        stream: DataFrame,
        pipeline: Pipeline,
        *,
        sink: Sink | None = None,
        side_outputs: Mapping[str, Sink] | None = None,
        trigger: Mapping[str, Any] | None = None,
        heartbeat: Duration | None = None,
        query_name: str | None = None,
        restore: Literal["latest"] | None = None,
        drain: bool = False,
        on_epoch: Callable[[EpochProgress], None] | None = None,
        progress: Show = False,
        observe: str | None = None,
    ) -> StreamingQuery:
        """Run the pipeline over a stream, one epoch per micro-batch, exactly once.

        Parameters
        ----------
        stream : DataFrame
            A streaming DataFrame.
        pipeline : callable
            From a DataFrame that holds one epoch's rows to the rows to write: ``pipeline(df)``, or
            ``pipeline(df, job)``, which is given this job. Called on the driver for every
            evaluation of an epoch.
        sink : Sink, optional
            Where the rows go: a `ParquetSink`, by default on ``results/`` in the checkpoint; a
            function, by `foreach_epoch`; or a sink of your own.
        side_outputs : mapping from tag to Sink, optional
            Where the rows of each side output go, committed with the epoch as `sink` is. Every tag
            needs one. An epoch without rows of a tag leaves no folder there.
        trigger : mapping, optional
            As for ``writeStream.trigger``: ``{"availableNow": True}``,
            ``{"processingTime": "10 seconds"}``.
        heartbeat : str, timedelta or int, optional
            Run an epoch at least so often, also without new rows, for example every
            ``"10 seconds"``. Spark by itself runs no batch on idle input, so that timers and
            expiry wait for the next row. It adds a source to the query, never a row, and makes the
            columns nullable; a query keeps it for its whole life. A `trigger` that is slower wins.
        query_name : str, optional
            Spark's name of the query.
        restore : {"latest"}, optional
            Begin with the state that the checkpoint holds although this query is new to it, for
            example after Spark's part of the checkpoint was removed.
        drain : bool
            Take the watermark to its end once the input has ended, so that the last windows and all
            event-time timers fire: an epoch of its own, after the last batch of a `trigger` with
            ``availableNow``. The query counts as active until that is published. Started again
            with more input the job goes on from the watermark that its rows have made: a row for a
            window that has fired opens it anew, and is late only by the watermark.
        on_epoch : callable, optional
            Called on the driver after each epoch that was computed. What it raises is logged: the
            epoch is published by then.
        progress : bool or "always"
            Show a line that tells how far the epoch is, and what the last one did: in a notebook,
            and on standard error if that is a console. With ``"always"`` also where it is a file,
            a line per epoch.
        observe : str, optional
            The name of a metric, such as ``"pystate"``, by which Spark's listeners find the epoch's
            numbers in ``event.progress.observedMetrics``. It costs some 60 ns for each row of the
            input; the returned handle's own progress has them in any case.

        Returns
        -------
        StreamingQuery
            Spark's own handle, whose ``stop`` keeps the traces of what it cancels out of the
            driver's log, and whose progress counts the operators among those with state. A batch
            without new rows does not run, unless by `heartbeat`.

        Raises
        ------
        InUseError
            This process runs a query on the checkpoint already, and the job was made without
            `replace`.
        """
        require_classic(stream, "stream")
        checked_pipeline(pipeline)
        checked_trigger(trigger)
        checked_name(query_name, "query_name")
        checked_restore(restore)
        checked_drain(flag(drain, "drain"), trigger)
        checked_callback(on_epoch, "on_epoch")
        checked_observe(observe)
        checked_show(progress)
        if not stream.isStreaming:
            raise InvalidArgumentError(
                "stream is not a streaming DataFrame: read it with spark.readStream, or use "
                "run_epoch for a batch"
            )
        require_pandas("start")
        if self._replace:
            stop_query(self.checkpoint)
        require_unused(self, but_for_own=False)
        session = stream.sparkSession
        self._prepare(session)
        stream = with_heartbeat(stream, heartbeat, self._storage)
        outputs = outputs_of(self._storage, sink, side_outputs, session)
        outcome = self._outcome = Outcome()
        outcome.line = progress_line(progress, self.name)
        stream_run = StreamRun(self, stream, pipeline, outputs, on_epoch, restore, outcome)
        query = stream_run.start(query_name, trigger, drain=drain, observe=observe)
        note_query(self, query)
        return query

    def run_epoch(
        self,
        data: DataFrame | RDD[Any],
        pipeline: Pipeline,
        *,
        run_key: str | None = None,
        sink: Sink | None = None,
        side_outputs: Mapping[str, Sink] | None = None,
        schema: str | StructType | None = None,
        drain: bool = False,
        on_epoch: Callable[[EpochProgress], None] | None = None,
        progress: Show = False,
    ) -> EpochResult:
        """Run the pipeline once over a batch; the state carries over to the next run.

        Parameters
        ----------
        data : DataFrame or RDD
            The epoch's input.
        pipeline : callable
            From `data` to the rows to write: a DataFrame, or with `schema` an RDD. As in `start` it
            may take the job, too.
        run_key : str, optional
            Makes the run idempotent: the same key again changes nothing and returns the same
            result, whatever `data` is then.
        sink : Sink, optional
            Where the rows go; see `start`. With a `run_key` the same each time.
        side_outputs : mapping from tag to Sink, optional
            Where the rows of each side output go; see `start`.
        schema : str or StructType, optional
            Columns of the result where the pipeline returns an RDD.
        drain : bool
            Take the watermark to its end after the rows, so that the last windows and all
            event-time timers fire: in this same epoch. Runs that come after it go on from the
            watermark that the rows have made; see `start`.
        on_epoch : callable, optional
            Called after the epoch, if it was computed; see `start`.
        progress : bool or "always"
            Show a line that tells how far the epoch is; see `start`.

        Returns
        -------
        EpochResult
            Its `dataframe` reads the published rows.

        Raises
        ------
        InUseError
            Another job of this process runs a query on the checkpoint.
        NoEventTimeError
            It is to drain, and no operator has event time.
        """
        require_unused(self, but_for_own=True)
        session = session_of(data)
        checked_pipeline(pipeline)
        checked_run_key(run_key)
        flag(drain, "drain")
        checked_callback(on_epoch, "on_epoch")
        checked_show(progress)
        self._prepare(session)
        outputs = outputs_of(self._storage, sink, side_outputs, session)
        with closing(progress_line(progress, self.name)) as line:
            position = {"run_key": run_key, "drain": drain}
            number, manifest, done = self._run(
                data, session, pipeline, outputs, on_epoch, line, schema=schema, **position
            )
        if done and manifest is not None and manifest.sinks:
            outputs.require(manifest.sinks[0], f"run {run_key!r}, epoch {number},")
        rows = outputs.read(number)
        return EpochResult(number, run_key, rows, done, manifest, outputs.main)

    def read_state(self, uid: str) -> pa.Table:
        """Read an operator's state as of the last epoch, from the checkpoint's files.

        Returns
        -------
        pyarrow.Table
            A row per key: the key columns, then a column per state; absent states are null.

        Raises
        ------
        CheckpointError
            The checkpoint has no such operator.
        """
        return read_all(self._storage, checked_uid(uid))

    def latest_epoch(self) -> int | None:
        """Return the newest epoch that the checkpoint holds, or None for an empty checkpoint."""
        manifest = read_head(self._storage)
        return None if manifest is None else manifest.epoch

    def abandon_output(self, epoch: int) -> list[str]:
        """Give up for ever what an epoch has staged and nobody can commit, so that the job goes on.

        For an epoch whose output no start of the job could commit: its sink is gone, or what was
        staged is. State and stream position stay as they are, so the rows are not made again.

        Parameters
        ----------
        epoch : int
            The newest; it makes sure that no other one is meant.

        Returns
        -------
        list of str
            The sinks, by name or folder, whose rows are given up. Each was tried once more before,
            if it is registered or was passed to this job.

        Raises
        ------
        InvalidArgumentError
            It is not the newest epoch, or its output is committed.
        InUseError
            This process runs a query on the checkpoint.
        """
        number = integer(epoch, "abandon_output: epoch", least=1)
        require_unused(self, but_for_own=False)
        if self.latest_epoch() is None:
            raise InvalidArgumentError(f"abandon_output: {self.checkpoint} has no epoch")
        if self._coordinator is not None:
            return self._coordinator.give_up_output(number, self._commits.give_up)
        with self._open(self._parallelism or 1) as coordinator:
            return coordinator.give_up_output(number, self._commits.give_up)

    def close(self) -> None:
        """Wait for maintenance to end, and give up what the job has in the memory of hosts.

        A job that is used again opens its checkpoint again.
        """
        with self._lock:
            coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- within --------------------------------------------------------------------------------

    def _prepare(self, session: SparkSession) -> Coordinator:
        context = session.sparkContext
        use_this_python(context)
        register_state_source(session)
        with self._lock:
            if self._box is None or self._box.context is not context:
                self._box = ReportBox(context)
            if self._coordinator is None:
                self._coordinator = self._open(self._parallelism or context.defaultParallelism)
            return self._coordinator

    def _open(self, parallelism: int) -> Coordinator:
        return Coordinator(
            self._storage,
            job=self.name,
            parallelism=parallelism,
            max_parallelism=self._max_parallelism,
            retained=self._retained,
            commit_sinks=self._commits,
            allow_unclaimed_state=self._allow_unclaimed_state,
            max_evaluations=self._max_evaluations,
            max_clock_step_ms=self._max_clock_step_ms,
            allow_time_back=self._allow_time_back,
        )

    def _current(self, method: str) -> Evaluation:
        here = running_here()
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

    def _run(
        self,
        data: Any,
        session: SparkSession,
        pipeline: Pipeline,
        outputs: Outputs,
        on_epoch: Callable[[EpochProgress], None] | None,
        line: ProgressLine | NoLine,
        *,
        schema: Any = None,
        **position: Any,
    ) -> tuple[int, Manifest | None, bool]:
        coordinator = self._prepare(session)
        began = time.perf_counter()
        box = self._box
        assert box is not None
        epochs: list[Epoch] = []

        def evaluate(epoch: Epoch) -> Sequence[Any]:
            evaluation = Evaluation(
                epoch,
                session,
                box,
                self._storage,
                replace(self._tables, term=coordinator.term),
                coordinator.parallelism,
                outputs,
                self._materialised,
                self._timeout_ms,
                self._timed,
            )
            epochs[:] = [epoch]
            line.begin(epoch.number, partial(tasks_done, session.sparkContext, evaluation.tag))
            try:
                begin_outputs(outputs, coordinator, epoch)
                with self._evaluating(evaluation):
                    transactions = evaluation.run(data, for_job(pipeline, self), schema)
                # Reports that are missing or repeated discard what was staged, too.
                epoch.collect()
                self._commits.check(transactions, epoch.number)
                return transactions
            except BaseException:
                outputs.abort(epoch.number, epoch.evaluation_id)
                raise

        outputs = replace(outputs, session=session)
        try:
            with outputs.held(), self._commits.within(outputs, coordinator.check_owner):
                result = coordinator.run(evaluate, retryable=is_retryable, **position)
        finally:
            line.idle()
        if not result.already_done:
            assert result.manifest is not None
            progress = self._note(epochs[0], result.manifest, time.perf_counter() - began)
            line.end(progress)
            notify(on_epoch, progress)
        return result.epoch, result.manifest, result.already_done

    @contextmanager
    def _evaluating(self, evaluation: Evaluation) -> Iterator[None]:
        self._evaluation = evaluation
        try:
            with evaluation, evaluating(self, evaluation):
                yield
        finally:
            self._evaluation = None

    def _note(self, epoch: Epoch, manifest: Manifest, took_s: float) -> EpochProgress:
        for report in epoch.reports:
            if "keys" in report.metrics:
                size = int(report.metrics["keys"]), int(report.metrics["state_bytes"])
                self._sizes[report.uid, report.index] = size
        mark, reports = manifest.watermark_ms, epoch.reports
        self._progress = EpochProgress.of(epoch, mark, reports, self._sizes, took_s * 1000)
        return self._progress
