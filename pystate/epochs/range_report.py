"""A task's report about its range, and the state of the range after it.

Thread safety: all types are immutable; the functions keep no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pystate.checkpoint.refs import INPUT, FileRef, RangeState
from pystate.errors import LineageError


@dataclass(frozen=True)
class SideFile:
    """A file that a task wrote for a side output, or for the result."""

    tag: str
    """Of the side output; empty for the result."""
    name: str
    file_bytes: int
    rows: int


@dataclass(frozen=True)
class InputSeen:
    """What a task has seen of one of its operator's inputs."""

    name: str = INPUT
    rows: int = 0
    max_event_time_ms: int | None = None
    """The largest event time of these rows."""


@dataclass(frozen=True)
class RangeReport:
    """A task's report about one range, its last act once its file is durable.

    It can be pickled. A task that changed nothing reports ``file=None``, and its base's id as both
    `id` and `parent`.
    """

    uid: str
    index: int
    evaluation_id: str
    id: str
    """Lineage id that the range was sealed under; hex."""
    parent: str
    """Lineage id of the range before; hex."""
    file: FileRef | None
    inputs: tuple[InputSeen, ...] = ()
    """What the task has seen of each input."""
    next_event_timer_ms: int | None = None
    """The range's earliest event-time timer now; that of its base if the task did not look."""
    next_processing_timer_ms: int | None = None
    """The same for processing-time timers."""
    held: FileRef | None = None
    """The task's changes as a held delta, if its step does not close the epoch."""
    merged: int = 0
    """How many of the range's newest held deltas `held` replaces."""
    failure: str = ""
    """Why the state could not be written, for a step that was to close the epoch."""
    side_files: tuple[SideFile, ...] = ()
    """The files that it wrote for side outputs; they are durable, and the driver stages them."""
    result_file: SideFile | None = None
    """The file with its rows of the pipeline's result, if the tasks write that."""
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """Numbers for progress: rows, state sizes, times, how the table was attached."""


def check_report(
    report: RangeReport,
    state: RangeState,
    where: str,
    epoch: int,
    bounds: tuple[int, int],
    *,
    closes: bool,
) -> None:
    """Make sure that a report was built on a range's state, and names the right files."""
    if report.parent != state.id:
        raise LineageError(f"{where}: built on {report.parent}, but the base stands at {state.id}")
    kept = state.held[: len(state.held) - report.merged]
    expected = []
    if report.file is not None:
        # A file that closes an epoch holds all its steps.
        expected.append((report.file, state.held[0].parent if state.held else state.id))
    if report.held is not None:
        parent = state.held[len(kept)].parent if report.merged else state.id
        expected.append((report.held, parent))
    if not expected and (report.id != state.id or (closes and state.held and not report.failure)):
        raise LineageError(f"{where}: sealed as {report.id} but names no file")
    for file, parent in expected:
        said = (report.id, parent, epoch, "delta")
        written = (file.id, file.parent, file.epoch, file.kind)
        if said != written:
            raise LineageError(f"{where}: {file.path} is {written}, expected {said}")
        if file.bounds != bounds:
            raise LineageError(f"{where}: {file.path} covers other key groups")


def advance_range(state: RangeState, report: RangeReport, *, closed: bool) -> RangeState:
    """Return a range's state after its task.

    Unless the step has `closed` the epoch, the report's file is held like any other delta.
    """
    if report.file is not None:
        if closed:
            return replace(state, id=report.id, deltas=(*state.deltas, report.file), held=())
        return replace(state, id=report.id, held=(report.file,))
    if report.held is not None:
        kept = state.held[: len(state.held) - report.merged]
        return replace(state, id=report.id, held=(*kept, report.held))
    return state
