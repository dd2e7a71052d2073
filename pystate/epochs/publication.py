"""Makes and publishes an epoch's manifest, with which the epoch exists.

Thread safety: a `Publisher` has one user at a time (its coordinator's lock).

Invariants
----------
1. A manifest is published after everything that it names: the workers' files, which the driver has
   seen, and the part, which it may share with earlier manifests.
2. Only the owner of the checkpoint publishes. If a former owner still publishes, that is noticed,
   since both use the same name.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pystate.checkpoint.job_file import JobFile, library
from pystate.checkpoint.manifest import Manifest, QueryProgress
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.parts import share
from pystate.checkpoint.refs import OperatorState
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.epoch import Epoch
from pystate.epochs.ownership import Ownership
from pystate.epochs.rivals import Rivals
from pystate.epochs.watermarks import smallest
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    InvalidArgumentError,
    PystateError,
)
from pystate.redaction import logger

__all__ = ["Publisher"]

_LOG = logger("pystate.epochs.publication")


class Publisher:
    """Publishes the epochs of one driver.

    Parameters
    ----------
    storage : CheckpointStorage
        The checkpoint.
    job : JobFile
        Its identity; the operators of published epochs are added to it.
    ownership : Ownership
        The driver's ownership.
    history : History
        The published manifests; new ones are added.
    rivals : Rivals
        Finds out which other driver has published an epoch.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        job: JobFile,
        ownership: Ownership,
        history: History,
        rivals: Rivals,
    ) -> None:
        self._storage = storage
        self.job = job
        self._ownership = ownership
        self._history = history
        self._rivals = rivals

    def collect(self, epoch: Epoch) -> tuple[OperatorState, ...]:
        """Return the operators after an epoch, from its reports.

        Raises
        ------
        EvaluationError
            A range has not reported, or more than once.
        CheckpointError
            The driver does not see a file as a worker wrote it.
        """
        operators = epoch.collect(closed=True)
        self._check_visible(epoch)
        return operators

    def publish(
        self, manifest: Manifest, head: Manifest | None, operators: tuple[OperatorState, ...]
    ) -> Manifest:
        """Publish a manifest with these operators, on the newest one.

        Raises
        ------
        FencedError
            Another driver owns the checkpoint, or has published the epoch.
        """
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
            self._rivals.check_winner(manifest, error)
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
                found = "is not there" if size is None else f"has {size} bytes"
                raise CheckpointError(
                    f"epoch {epoch.number}, operator {report.uid!r}, range {report.index}: the "
                    f"worker wrote {report.file.path} with {report.file.file_bytes} bytes, but "
                    f"for the driver it {found} in {self._storage.uri}: the checkpoint must be on "
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
