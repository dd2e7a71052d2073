"""What a notebook shows of jobs, queries, epochs and results.

Nothing is computed for it: a result's rows are not read, and of a job what it knows is shown.

Thread safety: functions without state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pystate.errors import PystateError
from pystate.markup import bytes_shown, panel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pystate.spark.job import Job
    from pystate.spark.progress import EpochProgress, EpochResult, OperatorProgress
    from pystate.spark.queries import JobQuery

__all__ = ["job_html", "progress_html", "query_html", "result_html"]

_OPERATORS = ("operator", "rows in", "rows out", "late", "keys", "state", "changed", "checkpoint")


def job_html(job: Job) -> str:
    """A job: where it stands, and what its last epoch did."""
    try:
        newest: object = job.latest_epoch() or "none"
    except (PystateError, OSError) as error:
        newest = error
    progress, failure = job.last_progress, job.failure
    facts = {
        "checkpoint": job.checkpoint,
        "newest epoch": newest,
        "last computed": progress,
        "failure": None if failure is None else f"{type(failure).__name__}: {failure}",
    }
    return _with_operators(f"Job {job.name}", facts, progress)


def query_html(query: JobQuery, progress: EpochProgress | None) -> str:
    """A query: whether it runs, and what its last epoch did."""
    facts = {
        "state": "active" if query.isActive else "ended",
        "id": query.id,
        "run": query.runId,
        "last epoch": progress,
    }
    return _with_operators(f"Query {query.name or 'without a name'}", facts, progress)


def progress_html(progress: EpochProgress) -> str:
    """An epoch's numbers, and those of its operators."""
    facts = {
        "epoch": str(progress),
        "evaluations": progress.evaluations if progress.evaluations > 1 else None,
        "state": bytes_shown(progress.state_bytes),
        "checkpoint": bytes_shown(progress.checkpoint_bytes),
    }
    return _with_operators(f"Epoch {progress.epoch}", facts, progress)


def result_html(result: EpochResult) -> str:
    """A run's outcome."""
    manifest = result.manifest
    facts = {
        "epoch": result.epoch,
        "run key": result.run_key,
        "computed": "before" if result.already_done else "now",
        "columns": None if result.rows is None else result.rows.schema.simpleString(),
        "state files": None if manifest is None else len(manifest.paths),
    }
    operators = () if manifest is None else manifest.operators
    rows = [(operator.uid, operator.parallelism) for operator in operators]
    return panel("EpochResult", facts, ("operator", "ranges") if rows else (), rows)


def _with_operators(
    heading: str, facts: Mapping[str, object], progress: EpochProgress | None
) -> str:
    operators = () if progress is None else progress.operators
    return panel(heading, facts, _OPERATORS if operators else (), map(_row, operators))


def _row(operator: OperatorProgress) -> Sequence[object]:
    return (
        operator.uid,
        operator.rows_in,
        operator.rows_out,
        operator.late_rows,
        operator.keys,
        bytes_shown(operator.state_bytes),
        operator.rows_changed,
        bytes_shown(operator.checkpoint_bytes),
    )
