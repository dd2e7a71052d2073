"""Adds up what an epoch's reports say, and writes its record into the checkpoint's history.

Thread safety: a `Chronicle` belongs to its coordinator's lock; what it submits runs on the
maintenance thread.

Invariants
----------
1. Nothing here can fail an epoch: a record that cannot be written is missing.
2. The record of an epoch has all its steps, and none that were given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from pystate.checkpoint.epoch_log import EpochLog, EpochRecord, OperatorRecord
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import OperatorState, fingerprint, is_merged
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.epoch import Epoch, Flow
from pystate.epochs.merges import Maintenance
from pystate.epochs.ownership import Ownership
from pystate.epochs.range_report import RangeReport
from pystate.errors import PystateError
from pystate.redaction import logger

_LOG = logger("pystate.epochs.chronicle")
_ROWS = (
    "rows_in",
    "rows_out",
    "rows_changed",
    "rows_restored",
    "rows_copied",
    "invalid_rows",
    "cache_hits",
    "cache_misses",
    "files_asked",
    "read_bytes",
    "rows_left",
)
_TIMES = ("attach_ms", "process_ms", "seal_ms", "write_ms")


class TableSize(NamedTuple):
    """How large a range's table is."""

    keys: int
    state_bytes: int
    rows_in_memory: int = 0
    """Of a table on disk."""


#: Of tables, by operator and range. So an operator's are found without a look at those of all
#: others, of which there may be a thousand.
Sizes: TypeAlias = Mapping[str, Mapping[int, TableSize]]


def operator_records(reports: Iterable[RangeReport], sizes: Sizes) -> list[OperatorRecord]:
    """Add up the reports of one step for each operator, in the order of their uids."""
    by_uid: dict[str, list[RangeReport]] = {}
    for report in reports:
        by_uid.setdefault(report.uid, []).append(report)
    return [operator_record(uid, by_uid[uid], sizes) for uid in sorted(by_uid)]


def operator_record(uid: str, reports: Sequence[RangeReport], sizes: Sizes) -> OperatorRecord:
    """Add up an operator's reports of one step; of its times the longest of any range counts."""
    metrics = [report.metrics for report in reports]
    late = [int(each["late_rows"]) for each in metrics if "late_rows" in each]
    held = sizes.get(uid, {}).values()
    numbers: dict[str, Any] = {
        name: int(sum(float(each.get(name, 0)) for each in metrics)) for name in _ROWS
    }
    for name in _TIMES:
        numbers[name] = max((float(each.get(name, 0)) for each in metrics), default=0.0)
    return OperatorRecord(
        uid=uid,
        ranges=len(reports),
        late_rows=sum(late) if late else None,
        keys=sum(size.keys for size in held),
        state_bytes=sum(size.state_bytes for size in held),
        rows_in_memory=sum(size.rows_in_memory for size in held),
        checkpoint_bytes=sum(r.file.file_bytes for r in reports if r.file is not None),
        **numbers,
    )


class Chronicle:
    """Writes the records of one driver's epochs."""

    def __init__(
        self, storage: CheckpointStorage, ownership: Ownership, maintenance: Maintenance
    ) -> None:
        self._log = EpochLog(storage)
        self._ownership = ownership
        self._maintenance = maintenance
        #: Of tables, as far as this driver has seen them.
        self.sizes: dict[str, dict[int, TableSize]] = {}
        self._operators: dict[str, OperatorRecord] = {}
        self._batches = self._evaluations = 0
        self._total_ms = 0.0
        self._flow: Flow | None = None

    def step(self, epoch: Epoch, took_s: float, *, first: bool) -> None:
        """Add a step that has ended; with `first` no step of its epoch is held."""
        if first:
            self._operators = {}
            self._batches = self._evaluations = 0
            self._total_ms = 0.0
            self._flow = None
        self._flow = _add_flow(self._flow, epoch.flow)
        self._batches += 1
        self._evaluations += len(epoch.discarded_evaluations) + 1
        self._total_ms += took_s * 1000
        self._note_sizes(epoch)
        for record in operator_records(epoch.reports, self.sizes):
            before = self._operators.get(record.uid)
            self._operators[record.uid] = record if before is None else _add_step(before, record)

    def _note_sizes(self, epoch: Epoch) -> None:
        for operator in () if epoch.base is None else epoch.base.operators:
            if operator.parallelism != epoch.parallelism:  # other ranges had these numbers
                self.sizes.pop(operator.uid, None)
        for report in epoch.reports:
            if "keys" in report.metrics:
                size = (int(report.metrics.get(name, 0)) for name in TableSize._fields)
                self.sizes.setdefault(report.uid, {})[report.index] = TableSize(*size)

    def published(
        self, manifest: Manifest, before: Manifest | None, publish_s: float, commit_s: float
    ) -> EpochRecord:
        """Write the record of a published epoch, whose steps have been added; returns it."""
        known = frozenset() if before is None else before.paths
        new = {op.uid: new_bytes(op, known) for op in manifest.operators}
        operators = {op.uid: op for op in manifest.operators}
        flow = self._flow
        record = EpochRecord(
            epoch=manifest.epoch,
            published_ms=manifest.created_ms,
            processing_time_ms=manifest.processing_time_ms,
            watermark_ms=manifest.watermark_ms,
            query_id=manifest.query_id,
            batch_id=manifest.batch_id,
            run_key=manifest.run_key,
            batches=self._batches,
            evaluations=self._evaluations,
            term=manifest.term,
            host=manifest.host,
            publish_ms=publish_s * 1000,
            commit_ms=commit_s * 1000,
            total_ms=self._total_ms + (publish_s + commit_s) * 1000,
            merged_bytes=sum(merged for _, merged in new.values()),
            operators=tuple(
                replace(
                    self._operators[uid],
                    checkpoint_bytes=new[op.uid][0],
                    merged_bytes=new[op.uid][1],
                    most_files=most_files(op),
                    watermark_ms=op.watermark_ms,
                    fingerprint=fingerprint(op),
                    since=op.ranges[0].since,
                )
                for uid, op in sorted(operators.items())
                if uid in self._operators
            ),
            rows_in=None if flow is None else flow.rows_in,
            rows_out=None if flow is None else flow.rows_out,
            late_rows=None if flow is None else flow.late_rows,
        )
        try:
            if self._log.add(record):
                self._maintenance.submit(lambda: self._tidy(record.epoch))
        except (PystateError, OSError) as error:
            _LOG.warning(
                "epoch %d is published; its record is missing in the history: %s",
                record.epoch,
                error,
            )
        return record

    def _tidy(self, newest: int) -> None:
        self._log.tidy(newest, self._ownership.check)


def _add_flow(before: Flow | None, step: Flow | None) -> Flow | None:
    """What went through the pipeline in an epoch, with one step more."""
    if before is None or step is None:
        return step or before
    late = [flow.late_rows for flow in (before, step) if flow.late_rows is not None]
    return Flow(
        before.rows_in + step.rows_in, before.rows_out + step.rows_out, sum(late) if late else None
    )


def _add_step(before: OperatorRecord, step: OperatorRecord) -> OperatorRecord:
    """An operator in an epoch, with one step more, of which what is not added up counts."""
    added = {name: getattr(before, name) + getattr(step, name) for name in (*_ROWS, *_TIMES)}
    late = [record.late_rows for record in (before, step) if record.late_rows is not None]
    return replace(step, late_rows=sum(late) if late else None, **added)


def new_bytes(operator: OperatorState, known: frozenset[str]) -> tuple[int, int]:
    """Size of the deltas, and of the merged files, that no earlier epoch names."""
    files = {ref.path: ref for ref in operator.files if ref.path not in known}.values()
    merged = sum(ref.file_bytes for ref in files if is_merged(ref.path))
    return sum(ref.file_bytes for ref in files) - merged, merged


def most_files(operator: OperatorState) -> int:
    """How many files count for a key group of an operator at most."""
    return max((state.depth for state in operator.ranges), default=0)
