"""Epochs as the user sees them: what one did, and what a run returns.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pystate.epoch import Epoch, RangeReport
from pystate.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EpochProgress", "EpochResult"]


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
    evaluations : int
        How often it was computed; more than 1 after a failure.
    rows_in, rows_out : int
        Rows that all stateful operators read, and emitted.
    keys : int
        Keys that the ranges with rows in this epoch hold.
    rows_changed : int
        State rows that the epoch changed.
    state_bytes : int
        Memory of those ranges' tables.
    checkpoint_bytes : int
        Size of the epoch's state files.
    attach_ms, seal_ms, write_ms : float
        The longest of any range.
    total_ms : float
        From the start of the epoch to its published output.
    """

    epoch: int
    batch_id: int | None
    run_key: str | None
    evaluations: int
    rows_in: int
    rows_out: int
    keys: int
    rows_changed: int
    state_bytes: int
    checkpoint_bytes: int
    attach_ms: float
    seal_ms: float
    write_ms: float
    total_ms: float

    @classmethod
    def of(
        cls, epoch: Epoch, reports: Sequence[RangeReport], sizes: Mapping[Any, Any], total_ms: float
    ) -> EpochProgress:
        """Sum the reports up."""

        def total(name: str) -> int:
            return int(sum(float(report.metrics.get(name, 0)) for report in reports))

        def longest(name: str) -> float:
            return max((float(report.metrics.get(name, 0)) for report in reports), default=0.0)

        return cls(
            epoch=epoch.number,
            batch_id=epoch.position.batch_id,
            run_key=epoch.position.run_key,
            evaluations=len(epoch.discarded_evaluations) + 1,
            rows_in=total("rows_in"),
            rows_out=total("rows_out"),
            keys=sum(keys for keys, _ in sizes.values()),
            rows_changed=total("rows_changed"),
            state_bytes=sum(size for _, size in sizes.values()),
            checkpoint_bytes=sum(r.file.file_bytes for r in reports if r.file is not None),
            attach_ms=longest("attach_ms"),
            seal_ms=longest("seal_ms"),
            write_ms=longest("write_ms"),
            total_ms=total_ms,
        )


@dataclass(frozen=True)
class EpochResult:
    """The outcome of `Job.run_epoch`.

    Attributes
    ----------
    epoch : int
        The checkpoint's number of it.
    run_key : str or None
        As given.
    dataframe : DataFrame
        The published rows, read again from the output; cheap to make, evaluated when used.
    already_done : bool
        The run key was known, so that nothing was computed.
    manifest : Manifest or None
        None where it is not retained any more.
    """

    epoch: int
    run_key: str | None
    dataframe: DataFrame
    already_done: bool
    manifest: Manifest | None
