"""What runs in this process: each thread's evaluation, and each checkpoint's streaming query.

In a notebook a `Job` is soon made again, while a query of the one before goes on: the name by which
its pipeline knows the job then stands for another object. So an operator looks for the evaluation
that its thread is in, and not for what its own object has begun.

Thread safety: all functions may be called from any thread.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pystate.errors import InUseError

if TYPE_CHECKING:
    from pystate.spark.evaluation import Evaluation
    from pystate.spark.job import Job
    from pystate.spark.queries import JobQuery

__all__ = ["evaluating", "for_job", "note_query", "require_unused", "running_here", "stop_query"]

_threads = threading.local()
_queries: dict[str, tuple[Job, JobQuery]] = {}


@contextmanager
def evaluating(job: Job, evaluation: Evaluation) -> Iterator[None]:
    """Let this thread be within an evaluation of a job."""
    before = running_here()
    _threads.running = job, evaluation
    try:
        yield
    finally:
        _threads.running = before


def running_here() -> tuple[Job, Evaluation] | None:
    """Return what this thread is within."""
    found: tuple[Job, Evaluation] | None = getattr(_threads, "running", None)
    return found


def for_job(pipeline: Callable[..., Any], job: Job) -> Callable[[Any], Any]:
    """Return a pipeline as a function of an epoch's input alone.

    One that has a parameter called ``job``, or a second one without a default, gets the job.
    """
    try:
        _, *more = inspect.signature(pipeline).parameters.values()
    except (TypeError, ValueError):
        return pipeline
    kinds = inspect.Parameter
    for parameter in more:
        if parameter.name == "job" and parameter.kind is not kinds.POSITIONAL_ONLY:
            return lambda data: pipeline(data, job=job)
    positional = kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD
    needed = [found for found in more if found.kind in positional and found.default is kinds.empty]
    return pipeline if len(needed) != 1 else lambda data: pipeline(data, job)


def note_query(job: Job, query: JobQuery) -> None:
    """Remember which query runs on a job's checkpoint."""
    _queries[job.checkpoint] = job, query


def stop_query(checkpoint: str) -> None:
    """Stop the query that this process runs on a checkpoint, if there is one."""
    running = _running(checkpoint)
    if running is not None:
        running[1].stop()


def require_unused(job: Job, *, but_for_own: bool) -> None:
    """Raise `InUseError` where this process runs a query on a job's checkpoint.

    Parameters
    ----------
    job : Job
        Who wants to use the checkpoint.
    but_for_own : bool
        Whether a query of this very job is no hindrance.
    """
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


def _running(checkpoint: str) -> tuple[Job, JobQuery] | None:
    found = _queries.get(checkpoint)
    if found is None:
        return None
    try:
        active = found[1].isActive
    except Exception:
        # Its Spark has gone, and the query with it.
        active = False
    if not active:
        _queries.pop(checkpoint, None)
    return found if active else None
