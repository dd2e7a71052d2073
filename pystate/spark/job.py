"""A job: pipelines of keyed operators over streams, batches and RDDs, with one checkpoint.

Thread safety: one epoch at a time; other threads wait for it. While the job runs, any thread may
take savepoints, stop it, rescale it, or ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pystate.base.arguments import checked_uid, flag, folder_path, integer
from pystate.checkpoint.first_start import begun_epoch
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.savepoint import Savepoint, check_destination
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.auto_rescale import AutoRescale
from pystate.epochs.clock import MAX_STEP_MS
from pystate.epochs.interval import CheckpointOptions
from pystate.epochs.listeners import CheckpointListener
from pystate.errors import InvalidArgumentError, PystateError
from pystate.operators.runtime.invalid_rows import OnInvalid
from pystate.processor.state_reader import read_state, rows_in_flight
from pystate.spark.base.arguments import (
    checked_callback,
    checked_drain,
    checked_name,
    checked_pipeline,
    checked_restore,
    checked_trigger,
    session_of,
)
from pystate.spark.base.environment import require_classic, require_pandas
from pystate.spark.base.options import JobOptions
from pystate.spark.epochs.epochs import EpochRunner
from pystate.spark.epochs.heartbeat import with_heartbeat
from pystate.spark.epochs.progress import EpochProgress, progress_panel
from pystate.spark.epochs.progress_line import Show, checked_show, progress_line
from pystate.spark.epochs.queries import QueryOutcome, note_query, require_unused, stop_query
from pystate.spark.epochs.result import EpochResult
from pystate.spark.epochs.runs import checked_run_key, run_rounds
from pystate.spark.epochs.spark_progress import checked_observe
from pystate.spark.epochs.stream import StreamRun
from pystate.spark.operators.pipeline import Pipeline, PipelineContext
from pystate.spark.sinks.outputs import ONLY, outputs_of
from pystate.spark.sinks.sink import Sink
from pystate.types.durations import Duration
from pystate.types.keys import MAX_PARALLELISM

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


class Job(PipelineContext):
    """A stateful job: its name, its checkpoint, and its parallelism.

    Parameters
    ----------
    name : str
        The job's name; a checkpoint belongs to one job name.
    checkpoint : str or PathLike
        The folder of all state, manifests and stream positions. The driver and all executors must
        reach it under this path.
    max_parallelism : int, optional
        Number of key groups, the most ranges that the state can ever be split into. By default the
        stored number; for a new checkpoint 1.5 times `parallelism`, rounded up to a power of two,
        at least 128.
    parallelism : int or AutoRescale, optional
        Number of key-group ranges of each operator, and so of its tasks; or a policy that changes
        it while the job runs. By default Spark's default parallelism. It may differ from run to
        run, and `rescale` changes it in between.
    retained : int
        Number of epochs whose manifests are kept.
    max_lease : str, timedelta or int
        How long an epoch is kept at most after the next one is published, for readers that hold a
        lease of it (`pystate.connect`); 0: not at all. No more than 1024 epochs are kept for them.
    allow_unclaimed_state : bool
        Let pipelines leave out operators that the checkpoint holds; their state is kept. Let
        operators leave out states or timers that the checkpoint holds; these are dropped for good.
    memory_limit_bytes : int
        The most memory that each table may take. With 0 all tables of a host share one limit: three
        quarters of what the machine or the workers' control group allows, unless the workers'
        environment sets another one (``spark.executorEnv.PYSTATE_MEMORY_LIMIT_BYTES``). Of that a
        table on disk takes its share, one by the number of ranges of all operators, and 16 MiB at
        least.
    shared_tables : bool
        Keep tables in memory that all workers of a host share. False is the same as `table_home`
        ``"heap"``: every task restores its range from files, which is worthwhile only for tiny
        states.
    table_home : str or PathLike
        Where each host keeps its tables: ``"shm"``, in ``/dev/shm``; ``"local"``, in the first of
        the executor's local directories; ``"heap"``, in the memory of each worker; or a folder. A
        table that outgrows ``/dev/shm`` or the folder moves to the local directory, and from there
        to the heap, for as long as the executor lives. Its epoch is computed again.
        ``"disk"``: rows lie in the checkpoint's files, and those that were used last are in
        ``/dev/shm``, too. So state may be larger than memory. Of a checkpoint in an object store
        what is read is copied to the executor's local directory.
        The keys of operators with timers, and so of windows by time, are all in memory. It may
        differ from start to start.
    disk_bytes : int
        With `table_home` ``"disk"`` and a checkpoint in an object store: how much of its local
        disk each executor may fill with copies of what it reads and writes there, 64 MiB at least.
        With 0 it is half of what would be free without them. What was not read for longest leaves.
    max_evaluations : int
        How often an epoch may be computed before its failure fails the job.
    max_clock_step : str, timedelta or int
        The most that processing time moves from one epoch to the next if the clock has jumped
        ahead; or twice the longest recent pause of the job, if that is more. Once the clock has run
        for that long after a jump, it is trusted. So processing time lags for a while after an
        unusually long pause.
    allow_time_back : bool
        Set processing time back at this start, if it is further ahead of the clock than
        `max_clock_step`. Use it once after the clock was wrong for long. Timers and times to live
        that were set by the wrong time are not changed.
    on_invalid : {"drop", "fail"}
        What becomes of a row that an operator cannot process, if ``key_by(invalid=...)`` names no
        side output for it: a session's gap that is not positive, an event time beyond what windows
        and joins compute with, one further ahead than ``key_by(max_ahead=...)`` allows, a date that
        Python cannot hold. ``"drop"``: it is dropped, as Spark drops it. ``"fail"``: its epoch
        fails, and so does the stream, at each start. The rows are always counted:
        `EpochProgress.invalid_rows`.
    epoch_timeout : str, timedelta, int or None
        How long an epoch may go without any progress: ``"10 minutes"``, a timedelta, or
        milliseconds. Progress is a Spark task that ends, or a batch of rows that an operator reads.
        An epoch without progress is computed once more; if that hangs too, the job fails and says
        where. None: no limit.
    allow_pickle : bool
        Whether states may be pickled: those of type ``object`` or of an `AggregateFunction`. Anyone
        who can write to the checkpoint can then run any code in the processes that read such a
        state.
    restore : str or PathLike, optional
        A savepoint to begin with, if the job has published no epoch yet: with its state, its run
        keys and its stream's position, as a new query. The job may have another name, other code,
        and another parallelism. Once the job has begun, `restore` means nothing any more: a program
        that is killed and started again continues from its own checkpoint.
    claim : bool
        Remove the savepoint once the job has published an epoch. Without it the savepoint is never
        changed, and any number of jobs may begin with it.
    uid_map : mapping from str to str, optional
        New uids of operators that were renamed, by their uid in the savepoint. If the job has
        begun, an operator that was not renamed so is an error.
    checkpoints : CheckpointOptions
        How often a stream takes a checkpoint, and what happens if one fails.
    listeners : sequence of CheckpointListener
        Who learns on the driver which checkpoints are complete. Functions learn it on the workers,
        by methods of the same names.
    replace : bool
        Stop the query that this process runs on the checkpoint, if there is one, both when the job
        is made and when it is started. If False, `start` raises `InUseError`. It is meant for
        notebooks, where the cell that makes the job is run again.

    Notes
    -----
    One epoch is one micro-batch, or one `run_epoch`. All operators of a pipeline and its output
    commit together or not at all.

    An operator's output is computed once per epoch, however the pipeline reads it. If a pipeline
    reads it more than once, or not to the end (by a second action, `limit`, `isEmpty`, a sort or a
    self-join), the first epoch shows it. That epoch is computed again, and from then on the rows
    are materialised, as by `localCheckpoint`. A pipeline that reads once, to the end, is faster.

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
        parallelism: int | AutoRescale | None = None,
        retained: int = 3,
        max_lease: Duration = "1 hour",
        allow_unclaimed_state: bool = False,
        memory_limit_bytes: int = 0,
        shared_tables: bool = True,
        table_home: str | os.PathLike[str] = "shm",
        disk_bytes: int = 0,
        max_evaluations: int = 4,
        max_clock_step: Duration = MAX_STEP_MS,
        allow_time_back: bool = False,
        on_invalid: OnInvalid = "drop",
        epoch_timeout: Duration | None = "1 hour",
        allow_pickle: bool = True,
        restore: str | os.PathLike[str] | None = None,
        claim: bool = False,
        uid_map: Mapping[str, str] | None = None,
        checkpoints: CheckpointOptions = CheckpointOptions(),  # noqa: B008
        listeners: Sequence[CheckpointListener] = (),
        replace: bool = False,
    ) -> None:
        options = JobOptions(
            name=name,
            max_parallelism=max_parallelism,
            parallelism=parallelism,
            retained=retained,
            max_lease=max_lease,
            allow_unclaimed_state=allow_unclaimed_state,
            memory_limit_bytes=memory_limit_bytes,
            shared_tables=shared_tables,
            table_home=table_home,
            disk_bytes=disk_bytes,
            max_evaluations=max_evaluations,
            max_clock_step=max_clock_step,
            allow_time_back=allow_time_back,
            on_invalid=on_invalid,
            epoch_timeout=epoch_timeout,
            allow_pickle=allow_pickle,
            restore=restore,
            claim=claim,
            uid_map=uid_map,
            checkpoints=checkpoints,
            listeners=listeners,
        )
        storage = open_storage(folder_path(checkpoint, f"job {name!r}: checkpoint"))
        super().__init__(name, storage.uri)
        self._storage = storage
        self._epochs = EpochRunner(self, storage, options)
        self._stream_run: StreamRun | None = None
        self._outcome = QueryOutcome(name)
        self._replace = flag(replace, f"job {name!r}: replace")
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
    def failure(self) -> BaseException | None:
        """The error of the last started streaming query, with its own type and message.

        None if the query has not failed: it runs, has ended, or was stopped. The query's
        ``awaitTermination`` raises it, too. It is a `FencedError` if another driver has taken the
        checkpoint over, and Spark's own error if the query failed outside of pystate.
        """
        return self._outcome.failure

    @property
    def last_progress(self) -> EpochProgress | None:
        """Progress of the last epoch that this job has computed."""
        return self._epochs.progress

    # ---- epochs --------------------------------------------------------------------------------

    def start(
        self,
        stream: DataFrame,
        pipeline: Pipeline,
        *,
        sink: Sink | Mapping[str, Sink] | None = None,
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
            A function from a DataFrame of one epoch's rows to the rows to write: ``pipeline(df)``,
            or ``pipeline(df, job)``, which also gets this job. It is called on the driver for every
            evaluation of an epoch.
        sink : Sink, optional
            Where the rows go: a `ParquetSink`, by default to ``results/`` in the checkpoint; a
            function, with `foreach_epoch`; or a sink of your own.
        side_outputs : mapping from tag to Sink, optional
            Where the rows of each side output go; they are committed with the epoch, like those of
            `sink`. Every tag needs a sink. An epoch without rows of a tag makes no folder there.
        trigger : mapping, optional
            As for ``writeStream.trigger``: ``{"availableNow": True}``,
            ``{"processingTime": "10 seconds"}``.
        heartbeat : str, timedelta or int, optional
            Run an epoch at least that often, also without new rows: ``"10 seconds"``, a timedelta,
            or milliseconds. Without it Spark runs no batch on idle input, and timers and expiry
            wait for the next row. It adds a source without rows to the query, and makes the columns
            nullable. It cannot be added to a query that has run, nor removed. A slower `trigger`
            takes precedence.
        query_name : str, optional
            Spark's name of the query.
        restore : {"latest"}, optional
            Start from the checkpoint's state although it does not know this query, for example
            after Spark's part of the checkpoint was removed.
        drain : bool
            Take the watermark to its end once the input has ended, so that all event-time timers
            fire. This needs a `trigger` with ``availableNow``, and is an epoch of its own after the
            last batch. The query is active until that epoch is published. A job that is started
            again with more input continues from the watermark that its rows gave: a row for a
            window that has fired opens the window again.
        on_epoch : callable, optional
            Called on the driver after each epoch that was computed. Its errors are only logged,
            since the epoch is published by then.
        progress : bool or "always"
            Show a line with the progress of the epoch and the result of the last one: in a
            notebook, and on standard error if that is a console. With ``"always"``, if standard
            error is a file, write a line per epoch to it.
        observe : str, optional
            The name of a metric, such as ``"pystate"``, under which Spark's listeners find the
            epoch's numbers in ``event.progress.observedMetrics``. It costs some 60 ns per input
            row. The progress of the returned query always has the numbers.

        Returns
        -------
        StreamingQuery
            Spark's own handle. Its ``awaitTermination`` raises the job's own error, its ``stop``
            keeps the traces of cancelled tasks out of the driver's log, and its progress lists the
            operators as stateful ones.

        Raises
        ------
        InUseError
            This process already runs a query on the checkpoint, and `replace` is False.
        FencedError
            Another driver has taken the checkpoint over from this job.

        Notes
        -----
        This driver owns the checkpoint from here on. If another one runs a stream on it, that stops
        with `FencedError`, and this call waits for it.
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
        self._epochs.prepare(session)
        stream = with_heartbeat(stream, heartbeat, self._storage)
        outputs = outputs_of(self._storage, sink, side_outputs, session)
        outcome = self._outcome = QueryOutcome(self.name)
        outcome.line = progress_line(progress, self.name)
        stream_run = StreamRun(self._epochs, stream, pipeline, outputs, on_epoch, restore, outcome)
        self._stream_run = stream_run
        beats = heartbeat is not None
        query = stream_run.start(query_name, trigger, drain=drain, observe=observe, heartbeat=beats)
        note_query(self, query)
        return query

    def run_epoch(
        self,
        data: DataFrame | RDD[Any],
        pipeline: Pipeline,
        *,
        run_key: str | None = None,
        sink: Sink | Mapping[str, Sink] | None = None,
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
            A function from `data` to the rows to write: a DataFrame, or with `schema` an RDD. As in
            `start`, it may take the job, too.
        run_key : str, optional
            Makes the run idempotent: a second run with the same key changes nothing and returns the
            same result, whatever `data` is.
        sink : Sink, optional
            Where the rows go; see `start`. With a `run_key` it must be the same each time.
        side_outputs : mapping from tag to Sink, optional
            Where the rows of each side output go; see `start`.
        schema : str or StructType, optional
            Columns of the result if the pipeline returns an RDD.
        drain : bool
            Take the watermark to its end after the rows, in the same epoch, so that all event-time
            timers fire. Later runs continue from the watermark that the rows gave; see `start`.
        on_epoch : callable, optional
            Called after the epoch, if it was computed; see `start`.
        progress : bool or "always"
            Show a line with the progress of the epoch; see `start`.

        Returns
        -------
        EpochResult
            Its `dataframe` reads the published rows.

        Raises
        ------
        InUseError
            Another job of this process runs a query on the checkpoint.
        NoEventTimeError
            `drain` is True, and no operator has event time.
        """
        require_unused(self, but_for_own=True)
        session = session_of(data)
        checked_pipeline(pipeline)
        checked_run_key(run_key)
        flag(drain, "drain")
        checked_callback(on_epoch, "on_epoch")
        checked_show(progress)
        self._epochs.prepare(session)
        outputs = outputs_of(self._storage, sink, side_outputs, session)
        with closing(progress_line(progress, self.name)) as line:
            position = {"run_key": run_key, "drain": drain}
            outcome = self._epochs.run(
                data, session, pipeline, outputs, on_epoch, line, schema=schema, **position
            )
        number, manifest, done = outcome.epoch, outcome.manifest, outcome.already_done
        outputs = outputs.of_epoch(number, manifest)
        if done and manifest is not None and manifest.sinks:
            outputs.require(manifest.sinks, f"run {run_key!r}, epoch {number},")
        # The rows of an epoch before the savepoint are where the job before this one has put them.
        before = done and number <= begun_epoch(self._storage)
        rows = dict.fromkeys(outputs.mains) if before else outputs.read(number)
        shown = rows if isinstance(outputs.main, Mapping) else rows[ONLY]
        return EpochResult(number, run_key, shown, done, manifest, outputs.main)

    def run_until_empty(
        self,
        data: DataFrame,
        pipeline: Pipeline,
        *,
        run_key: str | None = None,
        max_rounds: int = 1000,
        sink: Sink | Mapping[str, Sink] | None = None,
        side_outputs: Mapping[str, Sink] | None = None,
        on_epoch: Callable[[EpochProgress], None] | None = None,
        progress: Show = False,
    ) -> list[EpochResult]:
        """Run the pipeline over a batch, and again without input until its loops are empty.

        Parameters
        ----------
        data : DataFrame
            The input of the first round.
        pipeline : callable
            As in `run_epoch`; its loops are those of `feedback`.
        run_key : str, optional
            Makes the rounds idempotent: after a crash, another call with the same key goes on with
            the first round that was not published, and once all are, it changes nothing.
        max_rounds : int
            The most rounds, those of earlier calls with the same key among them.
        sink, side_outputs, on_epoch, progress
            As in `run_epoch`; they are used in each round.

        Returns
        -------
        list of EpochResult
            A result per round, each of which is an epoch.

        Raises
        ------
        LoopNotEmptyError
            Rows are still in flight after `max_rounds` rounds. All rounds are published, and
            another call goes on.
        InUseError
            Another job of this process runs a query on the checkpoint.
        """
        owner = f"job {self.name!r}: run_until_empty"
        require_classic(data, "data")
        integer(max_rounds, f"{owner}: max_rounds", least=1)
        checked_run_key(run_key)

        def run(rows: DataFrame, key: str | None) -> EpochResult:
            return self.run_epoch(
                rows,
                pipeline,
                run_key=key,
                sink=sink,
                side_outputs=side_outputs,
                on_epoch=on_epoch,
                progress=progress,
            )

        def in_flight(computed: bool) -> Mapping[str, int]:
            last = self.last_progress
            return last.in_flight if computed and last is not None else self.in_flight()

        return run_rounds(
            data,
            run_key,
            max_rounds,
            run=run,
            is_done=self._epochs.is_done,
            in_flight=in_flight,
            owner=owner,
        )

    def read_state(self, uid: str, **options: Any) -> pa.Table:
        """Read an operator's state from the checkpoint's files: `pystate.read_state`.

        Parameters
        ----------
        uid : str
            The operator.
        **options
            ``state``, ``epoch``, ``keys``, ``key_groups``, ``explode`` and ``timers`` of
            `pystate.read_state`.

        Returns
        -------
        pyarrow.Table
            A row per key: the key columns, then a column per state; absent states are null.

        Raises
        ------
        CheckpointError
            The checkpoint has no such operator.
        """
        return read_state(self.checkpoint, checked_uid(uid), **options)

    # ---- while it runs: any thread may call these ----------------------------------------------

    def latest_epoch(self) -> int | None:
        """Return the newest epoch that the checkpoint holds, or None for an empty checkpoint."""
        manifest = read_head(self._storage)
        return None if manifest is None else manifest.epoch

    def in_flight(self) -> dict[str, int]:
        """Count the rows in flight on each loop of the newest epoch, by the loop's uid.

        They are read from the checkpoint's files, while the job runs or later.
        """
        return rows_in_flight(self._storage)

    def savepoint(
        self,
        destination: str | os.PathLike[str],
        *,
        previous: str | os.PathLike[str] | None = None,
        copy: bool = False,
    ) -> Savepoint:
        """Take a savepoint of the newest epoch, while the job runs or after it.

        Waits for an epoch that is being computed. While the files are copied, epochs go on.

        Parameters
        ----------
        destination : str or PathLike
            A folder that is empty, or is not there yet.
        previous : str or PathLike, optional
            An earlier savepoint, for what it has already; see `pystate.savepoint`.
        copy : bool
            Copy all files, rather than share them by hard links where the file system can do it.

        Returns
        -------
        Savepoint

        Raises
        ------
        InvalidArgumentError, CheckpointError
            As for `pystate.savepoint`.
        """
        target, earlier = _places("savepoint", destination, previous)
        return self._epochs.savepoint(target, earlier, copy=flag(copy, "savepoint: copy"))

    def stop_with_savepoint(
        self,
        destination: str | os.PathLike[str],
        *,
        drain: bool = False,
        previous: str | os.PathLike[str] | None = None,
        copy: bool = False,
    ) -> Savepoint:
        """Stop the query after the batch that it computes, with a savepoint of that batch's epoch.

        No later batch is computed, so that the savepoint and the checkpoint are at the same epoch
        once the query has stopped. If the savepoint cannot be taken, the query goes on.

        Parameters
        ----------
        destination : str or PathLike
            A folder that is empty, or is not there yet.
        drain : bool
            Take the watermark to its end first, in an epoch of its own, so that all event-time
            timers fire: for a job whose input has ended for good. See `start`.
        previous : str or PathLike, optional
            An earlier savepoint, for what it has already; see `pystate.savepoint`.
        copy : bool
            Copy all files, rather than share them by hard links where the file system can do it.

        Returns
        -------
        Savepoint

        Raises
        ------
        InvalidArgumentError
            This job has started no query; or as for `pystate.savepoint`.
        CheckpointError
            The query has failed; or as for `pystate.savepoint`.
        NoEventTimeError
            `drain` is True, and no operator has event time.
        """
        target, earlier = _places("stop_with_savepoint", destination, previous)
        flag(copy, "stop_with_savepoint: copy")
        flag(drain, "stop_with_savepoint: drain")
        if self._stream_run is None:
            raise InvalidArgumentError(
                f"job {self.name!r} has started no query that could be stopped: savepoint takes a "
                "savepoint of its newest epoch"
            )
        check_destination(self._storage, target)
        save = partial(self._epochs.savepoint, target, earlier, copy=copy)
        return self._stream_run.stop_after(save, drain=drain)

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism of all operators, also while a query runs.

        It takes effect with the next epoch, which moves the state: a range takes its rows from
        tables in the memory of its host, as far as they are there, and from the checkpoint's files
        for the rest. No file is rewritten. The job's `parallelism` counts again when the job is
        made anew.

        Parameters
        ----------
        parallelism : int
            The new number of key-group ranges of each operator, at most `max_parallelism`.

        Raises
        ------
        InvalidArgumentError
            There are not that many key groups, or the job's `AutoRescale` has other bounds.
        """
        most = MAX_PARALLELISM
        self._epochs.rescale(integer(parallelism, "rescale: parallelism", least=1, most=most))

    def abandon_output(self, epoch: int) -> list[str]:
        """Give up, for good, the rows that an epoch has staged and that no sink can commit.

        It lets a job continue if the newest output cannot be committed, because the sink or the
        staged rows are gone. State and stream position are kept, so the rows are not computed
        again.

        Parameters
        ----------
        epoch : int
            The number of the newest epoch, required as a safeguard against mistakes.

        Returns
        -------
        list of str
            The sinks, by name or folder, whose rows are given up. If such a sink is registered, or
            was passed to this job, its commit was tried once more first.

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
        return self._epochs.give_up_output(number)

    def close(self) -> None:
        """Wait for merges to end, and free the tables in the memory of the hosts.

        The job may be used again: it then reopens its checkpoint.
        """
        self._epochs.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _places(
    call: str, destination: str | os.PathLike[str], previous: str | os.PathLike[str] | None
) -> tuple[CheckpointStorage, CheckpointStorage | None]:
    """Open the folder of a savepoint, and that of an earlier one."""
    target = open_storage(folder_path(destination, f"{call}: destination"))
    if previous is None:
        return target, None
    return target, open_storage(folder_path(previous, f"{call}: previous"))
