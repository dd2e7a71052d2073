"""The progress of an epoch for the user: as numbers, as a line and in a notebook.

Thread safety: immutable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from pystate.base.markup import bytes_shown, panel
from pystate.checkpoint.epoch_log import OperatorRecord
from pystate.checkpoint.refs import OperatorState
from pystate.epochs.chronicle import Sizes, most_files, new_bytes, operator_records
from pystate.epochs.epoch import Epoch, Flow
from pystate.epochs.range_report import RangeReport
from pystate.epochs.watermarks import smallest
from pystate.operators.runtime.loop import IN_FLIGHT
from pystate.redaction import logger
from pystate.spark.epochs.runs import drains_a_stream

_LOG = logger("pystate.spark.epochs.progress")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The column heads of `OperatorProgress.as_row`.
_HEADS = (
    "operator",
    "rows in",
    "rows out",
    "late",
    "invalid",
    "keys",
    "state",
    "changed",
    "checkpoint",
)


@dataclass(frozen=True)
class OperatorProgress(OperatorRecord):
    """The progress of an operator in an epoch.

    Its attributes are those of `pystate.checkpoint.epoch_log.OperatorRecord`, of one batch: the
    watermark is that after it, from all event times seen so far.
    """

    @classmethod
    def of(
        cls, record: OperatorRecord, after: OperatorState | None, known: frozenset[str]
    ) -> OperatorProgress:
        """Take what was added up of an operator's reports, and its state after the epoch.

        `known` are the files that an earlier epoch has named.
        """
        if after is None:
            return cls(**vars(record))
        files = {"merged_bytes": new_bytes(after, known)[1], "most_files": most_files(after)}
        return cls(**{**vars(record), "watermark_ms": after.watermark_ms, **files})

    def as_row(self) -> Sequence[object]:
        """The same as a row of a table in a notebook."""
        return (
            self.uid,
            self.rows_in,
            self.rows_out,
            self.late_rows,
            self.invalid_rows,
            self.keys,
            bytes_shown(self.state_bytes),
            self.rows_changed,
            bytes_shown(self.checkpoint_bytes),
        )

    def as_spark(self) -> dict[str, Any]:
        """The same in the form of the progress of Spark's own stateful operators."""
        return {
            "operatorName": self.uid,
            "numRowsTotal": self.keys,
            "numRowsUpdated": self.rows_changed,
            "allUpdatesTimeMs": round(self.process_ms),
            "numRowsRemoved": 0,
            "allRemovalsTimeMs": 0,
            "commitTimeMs": round(self.seal_ms + self.write_ms),
            "memoryUsedBytes": self.state_bytes,
            "numRowsDroppedByWatermark": 0,
            "numShufflePartitions": self.ranges,
            "numStateStoreInstances": self.ranges,
            "customMetrics": {
                "rowsIn": self.rows_in,
                "rowsOut": self.rows_out,
                "lateRows": self.late_rows or 0,
                "invalidRows": self.invalid_rows,
                "checkpointBytes": self.checkpoint_bytes,
                "mergedBytes": self.merged_bytes,
                "mostFiles": self.most_files,
                "attachMs": round(self.attach_ms),
                "rowsRestored": self.rows_restored,
                "rowsInMemory": self.rows_in_memory,
                "cacheHits": self.cache_hits,
                "cacheMisses": self.cache_misses,
                "filesAsked": self.files_asked,
                "readBytes": self.read_bytes,
                "rowsLeft": self.rows_left,
            },
        }


@dataclass(frozen=True)
class EpochProgress:
    """The progress of an epoch, for a log or a table.

    Attributes
    ----------
    epoch : int
        The checkpoint's number of the epoch.
    batch_id : int or None
        The micro-batch of the streaming query; None for a run.
    run_key : str or None
        The run key that `run_epoch` got.
    drained : bool
        Whether event time ended after the rows, so that all event-time timers fired.
    evaluations : int
        How often the epoch was computed; more than 1 after a failure.
    processing_time_ms : int
        The epoch's one processing time, in milliseconds since 1970.
    watermark_ms : int or None
        The smallest watermark after the epoch of the operators that have one.
    rows_in : int
        Rows that came into the pipeline: those that stateful operators read, but for what other
        operators have emitted. A row that several of them read counts once.
    rows_out : int
        Rows that the pipeline returned, and that were written; those of side outputs are in
        `side_rows`.
    outputs : mapping from name to int
        The same by output, if the pipeline returned several frames.
    late_rows : mapping from uid to int
        Rows below the late bound, of each operator whose rows have event time, whether it handled
        them or not. A row that several operators read counts in each.
    rows_late : int or None
        How many of the rows that came into the pipeline were late, as the epoch's line has it: a
        row that several operators read counts once. None if none has event time.
    side_rows : mapping from tag to int
        Rows of the side outputs that had any.
    keys : int
        Keys that the operators hold, as far as the job has seen their ranges since its start; not
        those of loops, which users do not see. Of tables on disk it is an estimate: what their
        files put, less what they delete, and the rows in memory where these are more.
    rows_changed : int
        State rows that the epoch changed.
    rows_restored : int
        State rows that tables read from the checkpoint's files before it.
    rows_copied : int
        State rows that tables took from tables of another parallelism.
    state_bytes : int
        Memory of these ranges' tables.
    checkpoint_bytes : int
        Size of the epoch's state files.
    merged_bytes : int
        Size of the files, made of earlier ones by merging, that the epoch is the first to name.
    most_files : int
        How many state files count for one key group at most.
    hit_rate : float or None
        Of tables on disk, the share of keys whose rows were in memory when they were needed; None
        if nothing was looked up. Each operator has ``cache_hits`` and ``cache_misses``, with
        ``files_per_lookup``, ``read_bytes``, ``rows_in_memory`` and ``rows_left``.
    read_bytes : int
        What tables on disk read of their files.
    attach_ms : float
        How long it took to find a range's table, or to restore it. This and the next two times are
        the longest of any range.
    seal_ms : float
        How long it took to end the epoch in memory.
    write_ms : float
        How long it took to write a range's file.
    total_ms : float
        Time from the start of the epoch to its published output.
    operators : tuple of OperatorProgress
        The progress of each operator, in the order of their uids: the rows that it read and
        emitted, and all else.
    by_operator : mapping from uid to OperatorProgress
        The same by uid.
    invalid_rows : mapping from uid to int
        Rows that operators could not process, of each operator that had any.
    in_flight : mapping from uid to int
        Rows that each loop has fed to the next epoch.
    """

    epoch: int
    batch_id: int | None
    run_key: str | None
    drained: bool
    evaluations: int
    processing_time_ms: int
    watermark_ms: int | None
    rows_in: int
    rows_out: int
    late_rows: Mapping[str, int]
    side_rows: Mapping[str, int]
    keys: int
    rows_changed: int
    rows_restored: int
    rows_copied: int
    state_bytes: int
    checkpoint_bytes: int
    attach_ms: float
    seal_ms: float
    write_ms: float
    total_ms: float
    operators: tuple[OperatorProgress, ...] = ()
    in_flight: Mapping[str, int] = field(default_factory=dict)
    invalid_rows: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    rows_late: int | None = None

    @property
    def merged_bytes(self) -> int:
        """See above."""
        return sum(operator.merged_bytes for operator in self.operators)

    @property
    def most_files(self) -> int:
        """See above."""
        return max((operator.most_files for operator in self.operators), default=0)

    @property
    def hit_rate(self) -> float | None:
        """See above."""
        hits = sum(operator.cache_hits for operator in self.operators)
        asked = hits + sum(operator.cache_misses for operator in self.operators)
        return hits / asked if asked else None

    @property
    def read_bytes(self) -> int:
        """See above."""
        return sum(operator.read_bytes for operator in self.operators)

    @property
    def by_operator(self) -> Mapping[str, OperatorProgress]:
        """The progress of each operator, by its uid."""
        return {operator.uid: operator for operator in self.operators}

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        operators: Sequence[OperatorState],
        reports: Sequence[RangeReport],
        sizes: Sizes,
        total_ms: float,
    ) -> EpochProgress:
        """Add up the reports; `operators` is the state after the epoch."""
        states = {operator.uid: operator for operator in operators}
        known = frozenset() if epoch.head is None else epoch.head.paths
        records = operator_records(reports, sizes)
        late = {r.uid: r.late_rows for r in records if r.late_rows is not None}
        side: Counter[str] = Counter()
        in_flight: dict[str, int] = {}
        for report in reports:
            if IN_FLIGHT in report.metrics:
                rows = int(report.metrics[IN_FLIGHT])
                in_flight[report.uid] = in_flight.get(report.uid, 0) + rows
            for file in report.side_files:
                side[file.tag] += file.rows
        held = [(uid, size) for uid, ranges in sizes.items() for size in ranges.values()]
        flow = epoch.flow or Flow(
            sum(r.rows_in for r in records),
            sum(r.rows_out for r in records),
            sum(late.values()) if late else None,
        )
        return cls(
            epoch=epoch.number,
            batch_id=epoch.position.batch_id,
            run_key=epoch.position.run_key,
            drained=epoch.drain,
            evaluations=len(epoch.discarded_evaluations) + 1,
            processing_time_ms=epoch.processing_time_ms,
            watermark_ms=smallest(operators),
            rows_in=flow.rows_in,
            rows_out=flow.rows_out,
            late_rows=late,
            side_rows=dict(side),
            keys=sum(size.keys for uid, size in held if uid not in in_flight),
            rows_changed=sum(r.rows_changed for r in records),
            rows_restored=sum(r.rows_restored for r in records),
            rows_copied=sum(r.rows_copied for r in records),
            state_bytes=sum(size.state_bytes for _, size in held),
            checkpoint_bytes=sum(r.checkpoint_bytes for r in records),
            attach_ms=max((r.attach_ms for r in records), default=0.0),
            seal_ms=max((r.seal_ms for r in records), default=0.0),
            write_ms=max((r.write_ms for r in records), default=0.0),
            total_ms=total_ms,
            operators=tuple(OperatorProgress.of(r, states.get(r.uid), known) for r in records),
            in_flight=in_flight,
            invalid_rows={r.uid: r.invalid_rows for r in records if r.invalid_rows},
            outputs=flow.outputs,
            rows_late=flow.late_rows,
        )

    def _repr_html_(self) -> str:
        facts = {
            "epoch": str(self),
            "evaluations": self.evaluations if self.evaluations > 1 else None,
            "state": bytes_shown(self.state_bytes),
            "checkpoint": bytes_shown(self.checkpoint_bytes),
        }
        return progress_panel(f"Epoch {self.epoch}", facts, self)

    def __str__(self) -> str:
        """One line for a log."""
        origin = "a run" if self.run_key is None else f"run {self.run_key!r}"
        if self.batch_id is not None:
            origin = f"batch {self.batch_id}"
        elif drains_a_stream(self.run_key):
            origin = "the end of the stream"
        parts = [f"epoch {self.epoch} ({origin}): {self.rows_in} rows in, {self.rows_out} out"]
        if self.outputs:
            each = ", ".join(f"{rows} to {name!r}" for name, rows in self.outputs.items())
            parts[-1] += f" ({each})"
        if self.rows_late is not None:
            parts.append(f"{self.rows_late} late")
        if self.invalid_rows:
            parts.append(f"{sum(self.invalid_rows.values())} invalid")
        parts += [f"{rows} to {tag!r}" for tag, rows in sorted(self.side_rows.items())]
        if self.in_flight:
            parts.append(f"{sum(self.in_flight.values())} in flight")
        if self.watermark_ms is not None:
            parts.append(f"watermark {_instant(self.watermark_ms)}")
        if self.drained:
            parts.append("drained")
        if self.rows_restored:
            parts.append(
                f"{self.rows_restored} rows of state read in {self.attach_ms / 1000:.2f} s"
            )
        if self.rows_copied:
            parts.append(f"{self.rows_copied} rows of state moved")
        if self.hit_rate is not None:
            parts.append(f"{self.hit_rate:.0%} hits in memory")
        parts += [f"{self.keys} keys", f"{self.total_ms / 1000:.2f} s"]
        return ", ".join(parts)


def progress_panel(
    heading: str, facts: Mapping[str, object], progress: EpochProgress | None
) -> str:
    """What a notebook shows of an object that computes epochs: facts, and the last epoch.

    It computes nothing.
    """
    operators = () if progress is None else progress.operators
    rows = [operator.as_row() for operator in operators]
    return panel(heading, facts, _HEADS if rows else (), rows)


def notify(on_epoch: Callable[[EpochProgress], None] | None, progress: EpochProgress) -> None:
    """Call a listener for an epoch; its errors are only logged, since the epoch is published."""
    try:
        if on_epoch is not None:
            on_epoch(progress)
    except Exception:
        _LOG.exception("epoch %d is published, but on_epoch failed", progress.epoch)


def _instant(time_ms: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + " UTC"
