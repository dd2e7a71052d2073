"""Changes the number of ranges over the same key groups, without rewriting a file.

Thread safety: functions without state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pystate._core.core import range_bounds
from pystate.checkpoint.refs import (
    EMPTY_ID,
    FileRef,
    OperatorState,
    RangeSource,
    RangeState,
    restrict,
)
from pystate.state.operator_state import INSTANCE_SCHEMA


def plan_rescale(
    operator: OperatorState, parallelism: int, max_parallelism: int
) -> tuple[RangeState, ...]:
    """Plan the ranges of a new parallelism from the files of the old one.

    Returns the same objects if nothing changes. A range with new bounds has its own id, which is
    computed from those of the old ranges, so that every replay gets the same one.

    A file may hold more key groups than its range still has, and two old ranges may name the same
    file. Each entry is therefore restricted to the key groups for which it counts: the content of
    one old range's file for keys of another range is out of date.
    """
    if parallelism == operator.parallelism:
        return operator.ranges
    ranges = []
    for index in range(parallelism):
        bounds = first, last = range_bounds(index, max_parallelism, parallelism)
        sources = sources_of(operator, bounds)
        same = [s.range for s in sources if s.range.bounds == bounds]
        if same:
            ranges.append(replace(same[0], index=index))
            continue
        files = tuple(ref for source in sources for ref in source.files)
        text = ",".join([f"{first}-{last}", *(source.range.id for source in sources)])
        derived = hashlib.sha256(text.encode()).hexdigest()[:32]
        state_id = derived if files else EMPTY_ID
        ranges.append(
            RangeState(
                index,
                first,
                last,
                state_id,
                None,
                files,
                # Only the range's next task will see whose timer it is; a time that is too early
                # does no harm.
                _earliest(source.range.next_event_timer_ms for source in sources),
                _earliest(source.range.next_processing_timer_ms for source in sources),
                operator.ranges[0].since,
            )
        )
    return tuple(ranges)


def gather_instances(operator: OperatorState, max_parallelism: int) -> OperatorState:
    """Return an operator of instances with one range, after its rows were moved; others unchanged.

    Its rows may be where no instance looks for them. Whoever goes on from one range redistributes
    them: with another number of instances as after any change, and a single instance by itself.
    """
    if operator.key_schema != INSTANCE_SCHEMA:
        return operator
    return replace(operator, parallelism=1, ranges=plan_rescale(operator, 1, max_parallelism))


def sources_of(operator: OperatorState, bounds: tuple[int, int]) -> tuple[RangeSource, ...]:
    """Return who has the key groups within bounds, both inclusive, and in which files."""
    sources = []
    for old in operator.ranges:
        taken = old.overlap(bounds)
        if taken is not None:
            sources.append(RangeSource(old, *taken, tuple(_parts(old, taken))))
    return tuple(sources)


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _parts(old: RangeState, bounds: tuple[int, int]) -> Iterator[FileRef]:
    """Restrict the files of an old range to some of its key groups."""
    for ref in old.files:
        part = ref.overlap(bounds)
        if part is not None:
            yield restrict(ref, part)
