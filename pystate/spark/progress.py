"""Epochs as the user sees them: what one did, and what a run returns.

Thread safety: immutable.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pystate.checkpoint.manifest import Manifest
from pystate.coordinator.epoch import Epoch, RangeReport
from pystate.errors import InvalidArgumentError
from pystate.spark.draining import DRAIN_KEY
from pystate.spark.shown import progress_html, result_html

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark.sinks.sink import Sink

__all__ = ["EpochProgress", "EpochResult", "OperatorProgress", "notify"]

_LOG = logging.getLogger("pystate.spark.progress")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class OperatorProgress:
    """What an operator did in an epoch.

    Attributes
    ----------
    uid : str
        Its name.
    ranges : int
        Its parallelism.
    rows_in, rows_out : int
        Rows that it read, and emitted.
    late_rows : int or None
        Rows below the epoch's own watermark; None without event time.
    keys, state_bytes : int
        Keys that its ranges hold, and the memory of their tables, as far as the job has seen them.
    rows_changed : int
        State rows that the epoch changed.
    rows_restored : int
        State rows that tables read from the checkpoint's files before it: all of them where a
        range was not in memory, after a start or a change of parallelism.
    checkpoint_bytes : int
        Size of the epoch's files of it.
    attach_ms, process_ms, seal_ms, write_ms : float
        The longest of any range.
    """

    uid: str
    ranges: int
    rows_in: int
    rows_out: int
    late_rows: int | None
    keys: int
    state_bytes: int
    rows_changed: int
    rows_restored: int
    checkpoint_bytes: int
    attach_ms: float
    process_ms: float
    seal_ms: float
    write_ms: float

    @classmethod
    def of(
        cls, uid: str, reports: Sequence[RangeReport], sizes: Mapping[tuple[str, int], Any]
    ) -> OperatorProgress:
        """Sum an operator's reports up."""
        held = [size for (owner, _), size in sizes.items() if owner == uid]
        timed = any("late_rows" in report.metrics for report in reports)
        return cls(
            uid=uid,
            ranges=len(reports),
            rows_in=_total(reports, "rows_in"),
            rows_out=_total(reports, "rows_out"),
            late_rows=_total(reports, "late_rows") if timed else None,
            keys=sum(keys for keys, _ in held),
            state_bytes=sum(size for _, size in held),
            rows_changed=_total(reports, "rows_changed"),
            rows_restored=_total(reports, "rows_restored"),
            checkpoint_bytes=sum(r.file.file_bytes for r in reports if r.file is not None),
            attach_ms=_longest(reports, "attach_ms"),
            process_ms=_longest(reports, "process_ms"),
            seal_ms=_longest(reports, "seal_ms"),
            write_ms=_longest(reports, "write_ms"),
        )

    def as_spark(self) -> dict[str, Any]:
        """The same as Spark writes the progress of a stateful operator of its own."""
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
                "checkpointBytes": self.checkpoint_bytes,
                "attachMs": round(self.attach_ms),
                "rowsRestored": self.rows_restored,
            },
        }


@dataclass(frozen=True)
class EpochProgress:
    """What an epoch did, for a log or a table.

    Attributes
    ----------
    epoch : int
        The checkpoint's number of it.
    batch_id : int or None
        Of the streaming query.
    run_key : str or None
        Of the run.
    drained : bool
        Whether event time ended after the rows, so that all event-time timers fired.
    evaluations : int
        How often it was computed; more than 1 after a failure.
    processing_time_ms : int
        The epoch's one processing time, in milliseconds since 1970.
    watermark_ms : int or None
        The watermark that it leaves to the next epoch, of all event times seen so far; None before
        the first.
    rows_in, rows_out : int
        Rows that all stateful operators read, and emitted.
    late_rows : mapping from uid to int
        Rows below the epoch's own watermark, of each operator with event time.
    side_rows : mapping from tag to int
        Rows of the side outputs that had any.
    keys : int
        Keys that the ranges with rows in this epoch hold.
    rows_changed : int
        State rows that the epoch changed.
    rows_restored : int
        State rows that tables read from the checkpoint's files before it.
    state_bytes : int
        Memory of those ranges' tables.
    checkpoint_bytes : int
        Size of the epoch's state files.
    attach_ms, seal_ms, write_ms : float
        The longest of any range.
    total_ms : float
        From the start of the epoch to its published output.
    operators : tuple of OperatorProgress
        The same of each operator, in the order of their uids.
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
    state_bytes: int
    checkpoint_bytes: int
    attach_ms: float
    seal_ms: float
    write_ms: float
    total_ms: float
    operators: tuple[OperatorProgress, ...] = ()

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        watermark_ms: int | None,
        reports: Sequence[RangeReport],
        sizes: Mapping[tuple[str, int], tuple[int, int]],
        total_ms: float,
    ) -> EpochProgress:
        """Sum the reports up."""
        late: Counter[str] = Counter()
        side: Counter[str] = Counter()
        for report in reports:
            if "late_rows" in report.metrics:
                late[report.uid] += int(report.metrics["late_rows"])
            for file in report.side_files:
                side[file.tag] += file.rows

        return cls(
            epoch=epoch.number,
            batch_id=epoch.position.batch_id,
            run_key=epoch.position.run_key,
            drained=epoch.drain,
            evaluations=len(epoch.discarded_evaluations) + 1,
            processing_time_ms=epoch.processing_time_ms,
            watermark_ms=watermark_ms,
            rows_in=_total(reports, "rows_in"),
            rows_out=_total(reports, "rows_out"),
            late_rows=dict(late),
            side_rows=dict(side),
            keys=sum(keys for keys, _ in sizes.values()),
            rows_changed=_total(reports, "rows_changed"),
            rows_restored=_total(reports, "rows_restored"),
            state_bytes=sum(size for _, size in sizes.values()),
            checkpoint_bytes=sum(r.file.file_bytes for r in reports if r.file is not None),
            attach_ms=_longest(reports, "attach_ms"),
            seal_ms=_longest(reports, "seal_ms"),
            write_ms=_longest(reports, "write_ms"),
            total_ms=total_ms,
            operators=tuple(
                OperatorProgress.of(uid, [r for r in reports if r.uid == uid], sizes)
                for uid in sorted({report.uid for report in reports})
            ),
        )

    def _repr_html_(self) -> str:
        return progress_html(self)

    def __str__(self) -> str:
        """One line for a log."""
        came = "a run" if self.run_key is None else f"run {self.run_key!r}"
        if self.batch_id is not None:
            came = f"batch {self.batch_id}"
        elif self.run_key is not None and self.run_key.startswith(DRAIN_KEY):
            came = "the end of the stream"
        parts = [f"epoch {self.epoch} ({came}): {self.rows_in} rows in, {self.rows_out} out"]
        if self.late_rows:
            parts.append(f"{sum(self.late_rows.values())} late")
        parts += [f"{rows} to {tag!r}" for tag, rows in sorted(self.side_rows.items())]
        if self.watermark_ms is not None:
            parts.append(f"watermark {_instant(self.watermark_ms)}")
        if self.drained:
            parts.append("drained")
        if self.rows_restored:
            parts.append(
                f"{self.rows_restored} rows of state read in {self.attach_ms / 1000:.2f} s"
            )
        parts += [f"{self.keys} keys", f"{self.total_ms / 1000:.2f} s"]
        return ", ".join(parts)


def notify(on_epoch: Callable[[EpochProgress], None] | None, progress: EpochProgress) -> None:
    """Tell a listener of an epoch; what it raises is logged, since the epoch is published."""
    try:
        if on_epoch is not None:
            on_epoch(progress)
    except Exception:
        _LOG.exception("epoch %d is published, but on_epoch failed", progress.epoch)


def _total(reports: Sequence[RangeReport], name: str) -> int:
    return int(sum(float(report.metrics.get(name, 0)) for report in reports))


def _longest(reports: Sequence[RangeReport], name: str) -> float:
    return max((float(report.metrics.get(name, 0)) for report in reports), default=0.0)


def _instant(time_ms: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + " UTC"


@dataclass(frozen=True, repr=False)
class EpochResult:
    """The outcome of `Job.run_epoch`.

    Attributes
    ----------
    epoch : int
        The checkpoint's number of it.
    run_key : str or None
        As given.
    rows : DataFrame or None
        The published rows; None where the sink is not read.
    already_done : bool
        The run key was known, so that nothing was computed.
    manifest : Manifest or None
        None where it is not retained any more.
    sink : Sink
        Where the rows went.
    """

    epoch: int
    run_key: str | None
    rows: DataFrame | None
    already_done: bool
    manifest: Manifest | None
    sink: Sink | None = None

    @property
    def dataframe(self) -> DataFrame:
        """The published rows, read again from the output; cheap to make, evaluated when used.

        Raises
        ------
        InvalidArgumentError
            The sink's rows are not read from here.
        """
        if self.rows is None:
            raise InvalidArgumentError(
                f"the rows of epoch {self.epoch} went to {self.sink!r}, and cannot be read from "
                "here: the sink has no read, or has compacted them with others'"
            )
        return self.rows

    def _repr_html_(self) -> str:
        return result_html(self)

    def __repr__(self) -> str:
        shown = [f"epoch={self.epoch}", f"already_done={self.already_done}"]
        if self.run_key is not None:
            shown.insert(1, f"run_key={self.run_key!r}")
        if self.manifest is not None:
            shown.append(f"operators={[operator.uid for operator in self.manifest.operators]}")
            shown.append(f"state_files={len(self.manifest.paths)}")
        return f"EpochResult({', '.join(shown)})"
