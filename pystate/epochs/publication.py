"""Makes and publishes an epoch's manifest, with which the epoch exists, and commits its output.

An epoch's output exists once its sink transactions are committed. Each next driver tries the commit
again until it is known to have succeeded.

Thread safety: a `Publisher` has one user at a time (its coordinator's lock).

Invariants
----------
1. A manifest is published after everything that it names: the workers' files, which the driver has
   seen, and the part, which it may share with earlier manifests.
2. Only the owner of the checkpoint publishes. If a former owner still publishes, that is noticed,
   since both use the same name.
3. No epoch is opened before the newest epoch's transactions are committed or given up: at most one
   manifest has transactions that are neither.
4. Output is given up only by its epoch's number, and durably: it is never committed later.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pystate.checkpoint.job_file import JobFile, library
from pystate.checkpoint.manifest import Manifest, QueryProgress, manifest_path
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.parts import share
from pystate.checkpoint.refs import OperatorState
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.epoch import Epoch
from pystate.epochs.ownership import Ownership
from pystate.epochs.watermarks import smallest
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    FencedError,
    InvalidArgumentError,
    PystateError,
)
from pystate.redaction import logger

Result = TypeVar("Result")

_LOG = logger("pystate.epochs.publication")


class OvertakenError(FencedError):
    """An older driver published the epoch before it noticed that it is no longer the owner.

    `Coordinator.run` opens the next epoch by itself.
    """


class Publisher:
    """Publishes the epochs of one driver; `commit_sinks` does nothing if it was done before."""

    def __init__(
        self,
        storage: CheckpointStorage,
        job: JobFile,
        ownership: Ownership,
        history: History,
        commit_sinks: Callable[[Manifest], None] | None,
    ) -> None:
        self._storage = storage
        self.job = job
        self._ownership = ownership
        self._history = history
        self._commit_sinks = commit_sinks
        self._committed: int | None = None

    def collect(self, epoch: Epoch) -> tuple[OperatorState, ...]:
        """Return the operators after an epoch, from its reports."""
        operators = epoch.collect(closed=True)
        self._check_visible(epoch)
        return operators

    def publish(
        self, manifest: Manifest, head: Manifest | None, operators: tuple[OperatorState, ...]
    ) -> Manifest:
        """Publish a manifest with these operators, on the newest one; only its owner may."""
        lost = [op.uid for op in operators if any(state.held for state in op.ranges)]
        if lost:
            raise InvalidArgumentError(
                f"epoch {manifest.epoch}: the pipeline of its last batch does not have the "
                f"operators {', '.join(map(repr, lost))}, whose changes since the last checkpoint "
                "are to be written: a pipeline must have the same operators in every batch"
            )
        use, part = share(
            operators, manifest.epoch, uuid.uuid4().hex, None if head is None else head.part
        )
        manifest = replace(manifest, operators=operators, part=use)
        data = manifest.encode()
        if use is not None and part is not None:
            self._storage.publish(use.part.path, part)
        self._ownership.check()
        try:
            self._storage.publish(manifest.path, data)
        except AlreadyPublishedError as error:
            self._check_winner(manifest, error)
        self._history.check_published(manifest)
        self._history.add(manifest)
        return manifest

    def note_operators(self, epoch: Epoch) -> None:
        """Add the epoch's operators to ``job.json``, after the epoch is published."""
        job = self.job.with_operators(epoch.entries())
        if job is self.job:
            return
        try:
            job.save(self._storage)
            self.job = job
        except (PystateError, OSError) as error:
            _LOG.warning("epoch %d is published; updating job.json failed: %s", epoch.number, error)

    def _check_visible(self, epoch: Epoch) -> None:
        for report in epoch.reports:
            if report.file is None:
                continue
            size = self._storage.size_bytes(report.file.path)
            if size != report.file.file_bytes:
                actual = "is not there" if size is None else f"has {size} bytes"
                raise CheckpointError(
                    f"epoch {epoch.number}, operator {report.uid!r}, range {report.index}: the "
                    f"worker wrote {report.file.path} with {report.file.file_bytes} bytes, but "
                    f"for the driver it {actual} in {self._storage.uri}: the checkpoint must be on "
                    "a file system that all hosts share"
                )

    def manifest(
        self, epoch: Epoch, operators: tuple[OperatorState, ...], sinks: Sequence[Any]
    ) -> Manifest:
        """Make the manifest of an epoch, or of a step that is held, which nobody publishes."""
        base, position = epoch.base, epoch.position
        queries = {progress.query_id: progress for progress in (base.queries if base else ())}
        if position.query_id is not None:
            assert position.batch_id is not None and position.offsets_hash is not None
            queries[position.query_id] = QueryProgress(
                position.query_id, position.batch_id, position.offsets_hash, epoch.number
            )
        return Manifest(
            epoch=epoch.number,
            predecessor=0 if epoch.head is None else epoch.head.epoch,
            evaluation_id=epoch.evaluation_id,
            run_id=self._ownership.run_id,
            term=self._ownership.term,
            host=self._ownership.host,
            max_parallelism=self.job.max_parallelism,
            processing_time_ms=epoch.processing_time_ms,
            watermark_ms=smallest(operators),
            created_ms=time.time_ns() // 1_000_000,
            library=library(),
            operators=operators,
            query_id=position.query_id,
            batch_id=position.batch_id,
            offsets_hash=position.offsets_hash,
            run_key=position.run_key,
            queries=tuple(queries[query_id] for query_id in sorted(queries)),
            sinks=tuple(sinks),
            read_clock=epoch.clock,
        )

    # ---- other drivers -------------------------------------------------------------------------

    def check_current(self, epoch: Epoch) -> None:
        """Raise `FencedError` unless this driver owns the checkpoint and no other has the epoch.

        It is an `OvertakenError` if an older driver has published it.
        """
        self._ownership.check()
        winner = self._history.find_published(epoch.number)
        if winner is not None and winner.evaluation_id != epoch.evaluation_id:
            raise self._lost_race_error(epoch.number, winner)

    def _check_winner(self, manifest: Manifest, error: AlreadyPublishedError) -> None:
        """Distinguish an earlier attempt of this driver from another driver's manifest."""
        winner = self._history.find_published(manifest.epoch)
        if winner is None:
            raise error  # the name was reported as taken, but no manifest has it
        if winner.evaluation_id != manifest.evaluation_id:
            raise self._lost_race_error(manifest.epoch, winner) from error

    def overtaken_error(self, epoch: Epoch, error: Exception) -> FencedError | None:
        """The error to raise if another driver ended the epoch, whatever error this driver got."""
        if isinstance(error, FencedError):
            return error
        if not epoch.is_open:
            return None
        try:
            self.check_current(epoch)
        except FencedError as fenced:
            return fenced
        except (PystateError, OSError):
            pass
        return None

    def _lost_race_error(self, epoch: int, winner: Manifest) -> FencedError:
        kind = OvertakenError if winner.term < self._ownership.term else FencedError
        return kind(
            f"{manifest_path(epoch)} was published by another driver (run {winner.run_id} on "
            f"{winner.host}); this one (run {self._ownership.run_id}) has changed nothing"
        )

    # ---- output --------------------------------------------------------------------------------

    def commit(self, manifest: Manifest) -> None:
        """Commit the newest manifest's transactions, unless they are known to be committed.

        An error is that of `commit_sinks`, unless another driver owns the checkpoint: that says so.
        """
        if self._committed == manifest.epoch:
            return
        if manifest.sinks and not self._history.is_committed(manifest):
            if self._commit_sinks is None:
                raise CheckpointError(
                    f"{manifest.path} holds {len(manifest.sinks)} sink transactions, and the job "
                    "has no sink to commit them: start it with the sink that wrote them, or their "
                    "output is lost"
                )
            try:
                self._commit_sinks(manifest)
            except Exception as error:
                # The new owner commits it, too, so what it has done meanwhile is not a failure.
                try:
                    self._ownership.check()
                except FencedError as fenced:
                    raise fenced from error
                raise
            self._history.note_committed(manifest)
        self._committed = manifest.epoch

    def give_up_output(self, epoch: int, act: Callable[[Manifest], Result]) -> Result:
        """Mark the newest epoch's output as committed, after a last call of `act`."""
        head = self._history.head
        newest = None if head is None else head.epoch
        if head is None or newest != epoch:
            raise InvalidArgumentError(
                f"the output of epoch {epoch} is not waiting for anything: the newest epoch is "
                f"{newest}, and only its output may not be committed yet"
            )
        if not head.sinks or self._history.is_committed(head):
            raise InvalidArgumentError(
                f"the output of epoch {epoch} is committed: there is nothing to give up"
            )
        result = act(head)
        self._history.note_committed(head, durable=True)
        self._committed = head.epoch
        return result
