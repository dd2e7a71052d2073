"""Which of many files are merged: some of similar size that follow each other.

A byte is then written again only as part of a file several times as large, so that it is merged as
often as the logarithm of the number of files, which itself stays as small. What keys of runs, the
history, deltas of ranges and held deltas differ in is which files may be taken, and when.

Thread safety: functions without state. Sizes are those of the files in their order, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: From so many steps within an epoch on some are joined, if so many are similar.
_MOST_STEPS, _SIMILAR_STEPS = 16, 8


def newest_tier(sizes: Sequence[int], tiers: Iterable[tuple[int, int]], fan_in: int) -> int:
    """Where the files begin that the largest full tier consists of; the number of files if none is.

    A tier (least, below) has the newest files below its bound, and is full if `fan_in` of them have
    the least size at least.
    """
    first = len(sizes)
    for least, below in tiers:
        start = len(sizes)
        while start and sizes[start - 1] < below:
            start -= 1
        if sum(size >= least for size in sizes[start:]) >= fan_in:
            first = start
    return first


def newest_similar(sizes: Sequence[int], added: int, fan_in: int) -> int:
    """Where the files begin that are worth merging with one that is added; the number if none are.

    These are at least `fan_in`, none of which is more than twice as large as all after it.
    """
    start, total = len(sizes), added
    while start and sizes[start - 1] <= 2 * total:
        start -= 1
        total += sizes[start]
    return start if len(sizes) - start >= fan_in else len(sizes)


def similar_run(sizes: Sequence[int], fan_in: int) -> tuple[int, int]:
    """The longest run of files of similar size, among the smallest such sizes, as (first, after).

    One file is similar to another that is at most `fan_in` times as large, and so many make a run,
    unless there are fewer.
    """
    most = min(sizes, default=0)
    while True:
        most = max(most * fan_in, 1)
        first, after = _longest([size <= most for size in sizes])
        if after - first >= min(fan_in, len(sizes)):
            return first, after


def steps_to_join(sizes: Sequence[int]) -> tuple[int, int]:
    """Which steps within an epoch are merged next, as (first, after); none if they are few."""
    return (0, 0) if len(sizes) < _MOST_STEPS else similar_run(sizes, _SIMILAR_STEPS)


def _longest(small: Sequence[bool]) -> tuple[int, int]:
    """The longest run of true values; of equally long ones the last."""
    best, start = (0, 0), 0
    for end, value in enumerate([*small, False]):
        if not value:
            if end - start >= best[1] - best[0]:
                best = (start, end)
            start = end + 1
    return best
