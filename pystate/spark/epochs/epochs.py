"""A job's epochs on the driver: the pipeline evaluated, the epoch published, its output committed.

Thread safety: one epoch at a time; other threads wait for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pystate.base.notes import hide_in_causes
from pystate.checkpoint.epoch_log import HISTORY
from pystate.checkpoint.first_start import begin_with, begun_epoch, claim_savepoint, require_restore
from pystate.checkpoint.held_deltas import HELD
from pystate.checkpoint.savepoint import Savepoint, take_savepoint, write_savepoint
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.auto_rescale import Rescaler
from pystate.epochs.chronicle import Sizes
from pystate.epochs.coordinator import Coordinator, RunOutcome
from pystate.epochs.epoch import Epoch
from pystate.epochs.ownership import fence_start
from pystate.errors import CheckpointError, InvalidArgumentError, PystateError
from pystate.redaction import logger
from pystate.spark.base.environment import use_this_python
from pystate.spark.base.failures import is_retryable
from pystate.spark.base.options import JobOptions
from pystate.spark.epochs.file_jobs import Copies, HeldWriter, SpreadMerges
from pystate.spark.epochs.progress import EpochProgress, notify
from pystate.spark.epochs.progress_line import NoLine, ProgressLine, tasks_done
from pystate.spark.epochs.rewind import MARK
from pystate.spark.evaluation.evaluation import Evaluation
from pystate.spark.evaluation.operator_traits import OperatorTraits
from pystate.spark.operators.pipeline import Pipeline, PipelineContext, evaluating, for_job
from pystate.spark.sinks.commits import SinkCommitter
from pystate.spark.sinks.outputs import Outputs, begin_outputs, checkpoint_folder
from pystate.spark.sinks.pending_output import PendingOutput, check_at_least_once
from pystate.spark.state_source import register_state_source
from pystate.spark.tasks.reports import ReportBox
from pystate.spark.tasks.table_move import tables_folder
from pystate.tables.upkeep import replace_janitors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOG = logger("pystate.spark.epochs.epochs")
#: What a checkpoint consists of. The first one makes sure that what is left of a removal that was
#: killed is not taken for a checkpoint.
FOLDERS = (
    "manifests",
    "state",
    "spark",
    "owners",
    "evaluations",
    "runs",
    "foreach",
    "held",
    "side",
    "waiting",
    HISTORY,
)


class EpochRunner:
    """Runs the epochs of a job, both of its streams and of its runs."""

    def __init__(
        self, job: PipelineContext, storage: CheckpointStorage, options: JobOptions
    ) -> None:
        self.storage = storage
        self.options = options
        #: Progress of the last epoch that was computed.
        self.progress: EpochProgress | None = None
        self.coordinator: Coordinator | None = None
        self._job = job
        self._commits = SinkCommitter(checkpoint_folder(storage))
        self._pending = PendingOutput(checkpoint_folder(storage))
        #: Folders of outputs that this job has published rows in.
        self._published: set[str] = set()
        #: The outputs of the last step.
        self._last_outputs: Outputs | None = None
        self._at_once = options.checkpoints.mode == "at_least_once"
        self._box: ReportBox | None = None
        #: The coordinator's.
        self._merges: SpreadMerges | None = None
        self._lock = threading.Lock()
        self._has_claimed = False
        self._traits = OperatorTraits()
        self._parallelism = options.initial_parallelism
        self._rescaler = None if options.auto_rescale is None else Rescaler(options.auto_rescale)
        #: Returns how many rows the source has waiting, or None.
        self.backlog: Callable[[], int | None] = lambda: None

    def prepare(self, session: SparkSession) -> Coordinator:
        """Prepare a session for epochs, and open the checkpoint unless it is open."""
        context = session.sparkContext
        use_this_python(context)
        register_state_source(session)
        with self._lock:
            if self._box is None or self._box.context is not context:
                self._box = ReportBox(context)
            if self.coordinator is None:
                self.coordinator = self._open(self._parallelism or context.defaultParallelism)
            assert self._merges is not None
            self._merges.context = context
            if self.options.tables.on_disk:
                application = self.coordinator.job.application(self.storage)
                self._merges.copies = Copies(application, self.options.tables)
            return self.coordinator

    def run(
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
    ) -> RunOutcome:
        """Run an epoch, unless it is known to have been published."""
        coordinator = self.prepare(session)
        began = time.perf_counter()
        given = replace(outputs, session=session)
        if self._at_once:
            check_at_least_once(given)
        if position.get("query_id") is None:
            # A run is an epoch of its own, with rows of its own.
            self.flush(session)
        self._last_outputs = given
        epochs: list[Epoch] = []
        #: The folders of outputs of the evaluation that counts.
        folders: list[str] = []
        #: Holds the folders of outputs that the pipeline's result has shown.
        shown = ExitStack()

        def evaluate(epoch: Epoch) -> Sequence[Any]:
            epochs[:] = [epoch]
            waits = not self._at_once and (epoch.step.holds or epoch.base is not epoch.head)
            outputs = self._pending.outputs(given) if waits else given
            evaluation = self._evaluation(epoch, session, coordinator, outputs)
            line.begin(epoch.number, partial(tasks_done, session.sparkContext, evaluation.tag))

            def begin(resolved: Outputs) -> None:
                shown.enter_context(resolved.lock_folders())
                self._begin_outputs(resolved, coordinator, epoch)

            try:
                self._begin_outputs(outputs, coordinator, epoch)
                with evaluating(self._job, evaluation):
                    transactions = evaluation.run(data, for_job(pipeline, self._job), schema, begin)
                folders[:] = evaluation.outputs.folders_of(transactions)
                # Missing or repeated reports also discard what was staged.
                epoch.collect()
                self._commits.check(transactions, epoch.number)
                if not self._at_once:
                    return transactions
                coordinator.check_current(epoch)
                self._commits.at_once(transactions, epoch.number)
                return []
            except BaseException:
                evaluation.outputs.abort(epoch.number, epoch.evaluation_id)
                raise

        try:
            with shown, given.lock_folders(), self._commits.within(given, coordinator.check_owner):
                result = coordinator.run(evaluate, retryable=is_retryable, **position)
        except PystateError as error:
            hide_in_causes(error)
            raise
        finally:
            line.idle()
        if not result.already_done:
            self._published.update(folders)
            took_s = time.perf_counter() - began
            progress = self._end_epoch(epochs[0], result, coordinator.sizes, took_s)
            line.end(progress)
            notify(on_epoch, progress)
        return result

    def _end_epoch(
        self, epoch: Epoch, result: RunOutcome, sizes: Sizes, took_s: float
    ) -> EpochProgress:
        """Do what follows an epoch that this job has computed; return its progress."""
        assert result.manifest is not None
        if not result.held:
            self._end_steps(result.epoch)
            self._claim()
        self._traits.combining.note(epoch.reports)
        after = result.manifest.operators
        self.progress = EpochProgress.of(epoch, after, epoch.reports, sizes, took_s * 1000)
        self._adapt(epoch.parallelism, self.progress)
        return self.progress

    def _begin_outputs(self, outputs: Outputs, coordinator: Coordinator, epoch: Epoch) -> None:
        """Tell sinks of an epoch whose rows they are to get, unless its batch goes out at once."""
        self._check_folders(outputs, epoch)
        if not self._at_once:
            begin_outputs(outputs, coordinator, epoch)

    def _check_folders(self, outputs: Outputs, epoch: Epoch) -> None:
        """Refuse to go on in a folder that was removed with the rows of earlier epochs."""
        head = epoch.head
        for path in outputs.folders():
            if os.path.isdir(path) or head is None:
                continue
            named = path in outputs.folders_of(head.sinks)
            # What an epoch before the savepoint has written is not this job's.
            if path in self._published or (named and head.epoch > begun_epoch(self.storage)):
                raise CheckpointError(
                    f"{path} is gone, and with it the output of epochs up to {head.epoch}: put it "
                    "back from a backup; or, if these rows are not needed any more, make an empty "
                    "folder there, or pass another one, and start the job again; nothing was "
                    "computed"
                )

    def is_done(self, run_key: str) -> bool:
        """Whether a run was published; the job has a checkpoint open."""
        assert self.coordinator is not None
        opened = self.coordinator.open_epoch(run_key=run_key)
        if isinstance(opened, Epoch):
            opened.abort()
            return False
        return True

    def rescale(self, parallelism: int) -> None:
        """Change the number of ranges from the next epoch on."""
        policy = self.options.auto_rescale
        if policy is not None and not policy.min <= parallelism <= policy.max:
            raise InvalidArgumentError(
                f"job {self.options.name!r}: parallelism {parallelism} is not within the bounds of "
                f"its AutoRescale, {policy.min} to {policy.max}"
            )
        with self._lock:
            if self.coordinator is not None:
                self.coordinator.rescale(parallelism)
            self._parallelism = parallelism

    def _adapt(self, parallelism: int, progress: EpochProgress) -> None:
        """Let the job's policy choose the next epoch's parallelism."""
        if self._rescaler is None:
            return
        took_ms, rows = progress.total_ms, progress.rows_in
        wanted = self._rescaler.observe(parallelism, took_ms, rows, self.backlog)
        if wanted != parallelism:
            _LOG.info("job %r: parallelism %d -> %d", self.options.name, parallelism, wanted)
            self.rescale(wanted)

    def flush(self, session: SparkSession) -> bool:
        """Take the checkpoint of the held steps; return False if there are none."""
        coordinator = self.coordinator
        if coordinator is None or coordinator.interval.last is None:
            return False
        outputs = self._last_outputs
        assert outputs is not None
        write = HeldWriter(
            session.sparkContext,
            self.storage,
            self.options.tables.home,
            coordinator.job.application(self.storage),
        )
        with outputs.lock_folders(), self._commits.within(outputs, coordinator.check_owner):
            manifest = coordinator.flush(write)
        if manifest is not None:
            self._end_steps(manifest.epoch)
            self._claim()
        return manifest is not None

    def _claim(self) -> None:
        """Remove a claimed savepoint after the job's first epoch, which is published."""
        restore = self.options.origin
        if restore is None or not restore.claim or self._has_claimed:
            return
        try:
            claim_savepoint(restore.origin, self.storage)
            self._has_claimed = True
        except (PystateError, OSError) as error:
            _LOG.warning("%s could not be removed: %s", restore.origin.uri, error)

    def _end_steps(self, epoch: int) -> None:
        """Remove what the steps of a published epoch have left."""
        self._pending.sweep(epoch)
        if self.storage.list(HELD):
            self.storage.remove_folder(HELD)

    def delete(self) -> None:
        """Remove the checkpoint, but for output and savepoints in its folder."""
        coordinator = self.coordinator
        if coordinator is not None:
            coordinator.check_owner()
        self.close()
        for folder in FOLDERS:
            self.storage.remove_folder(folder)
        for name in (MARK, "job.json"):
            self.storage.delete(name)

    def drop_steps(self) -> None:
        """Give up the held steps, whose batches are computed again."""
        if self.coordinator is not None:
            self._pending.drop(self.coordinator.interval.drop())

    def savepoint(
        self, destination: CheckpointStorage, previous: CheckpointStorage | None, *, copy: bool
    ) -> Savepoint:
        """Take a savepoint of the newest epoch, while epochs go on."""
        coordinator = self.coordinator
        if coordinator is None or not coordinator.term:
            # This job has run nothing: it does not take the checkpoint from whoever has.
            return take_savepoint(self.storage, destination, previous=previous, copy=copy)
        with coordinator.held_head() as manifest:
            if manifest is None:
                raise CheckpointError(f"{self.storage.uri} has no epoch to take a savepoint of")
            return write_savepoint(
                self.storage, manifest, destination, previous=previous, copy=copy
            )

    def give_up_output(self, epoch: int) -> list[str]:
        """Mark the output of the newest epoch as committed; return the sinks that lack it."""
        if self.coordinator is not None:
            return self.coordinator.give_up_output(epoch, self._commits.give_up)
        with self._open(self._parallelism or 1) as coordinator:
            return coordinator.give_up_output(epoch, self._commits.give_up)

    def close(self) -> None:
        """Wait for maintenance to end. May be called again; the next epoch reopens it."""
        with self._lock:
            coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            coordinator.close()
            # No task follows that would do it for its executor.
            replace_janitors(tables_folder(self.options.tables.home))

    def _open(self, parallelism: int) -> Coordinator:
        options = self.options
        restore = options.origin
        if restore is not None:
            begin_with(
                restore.origin,
                self.storage,
                job=options.name,
                max_parallelism=options.max_parallelism,
                claim=restore.claim,
                uid_map=restore.uid_map,
                fence=partial(fence_start, self.storage),
            )
        else:
            require_restore(self.storage)
        self._merges = SpreadMerges(self.storage, options.name)
        return Coordinator(
            self.storage,
            options,
            job=options.name,
            parallelism=parallelism,
            max_parallelism=options.max_parallelism,
            commit_sinks=self._commits,
            merge_runner=self._merges,
            join_sinks=self._pending.join,
        )

    def _evaluation(
        self, epoch: Epoch, session: SparkSession, coordinator: Coordinator, outputs: Outputs
    ) -> Evaluation:
        assert self._box is not None
        return Evaluation(
            epoch,
            session,
            self._box,
            self.storage,
            self.options,
            coordinator.term,
            outputs,
            self._traits,
        )
