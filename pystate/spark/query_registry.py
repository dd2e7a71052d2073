"""The streaming queries that this process runs, by checkpoint.

In a notebook a `Job` may be made again while a query of the previous one still runs.

Thread safety: all functions may be called from any thread.
"""

from __future__ import annotations

from pystate.errors import InUseError
from pystate.spark.epochs.queries import JobQuery
from pystate.spark.operators.pipeline import PipelineContext

_queries: dict[str, tuple[PipelineContext, JobQuery]] = {}


def note_query(job: PipelineContext, query: JobQuery) -> None:
    """Remember which query runs on a job's checkpoint."""
    _queries[job.checkpoint] = job, query


def stop_query(checkpoint: str) -> None:
    """Stop the query that this process runs on a checkpoint, if there is one."""
    running = _running(checkpoint)
    if running is not None:
        running[1].stop()


def require_unused(job: PipelineContext, *, but_for_own: bool) -> None:
    """Raise `InUseError` if this process runs a query on a job's checkpoint, perhaps its own."""
    running = _running(job.checkpoint)
    if running is None or (but_for_own and running[0] is job):
        return
    other, query = running
    whose = "this job" if other is job else f"another Job({other.name!r}) of this process"
    called = f" {query.name!r}" if query.name else ""
    raise InUseError(
        f"job {job.name!r}: checkpoint {job.checkpoint} is in use: the query{called} that {whose} "
        "has started on it is running. Stop it first, with query.stop() on what start returned, or "
        "make the job by Job(..., replace=True), which does that"
    )


def _running(checkpoint: str) -> tuple[PipelineContext, JobQuery] | None:
    found = _queries.get(checkpoint)
    if found is None:
        return None
    try:
        active = found[1].isActive
    except Exception:
        # Its Spark has ended, and so has the query.
        active = False
    if not active:
        _queries.pop(checkpoint, None)
    return found if active else None
