"""The loops that pystate is compared with, exactly as they run."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]


def count_in_dict(d: dict[int, int], keys: Iterable[int]) -> None:
    """Rows per key."""
    for k in keys:
        d[k] = d.get(k, 0) + 1


def sum_and_count_in_dict(
    d: dict[int, tuple[int, int]], keys: Iterable[int], values: Iterable[int]
) -> None:
    """Sum and count per key; faster with tuples than with lists or two dicts."""
    for k, v in zip(keys, values, strict=True):
        row = d.get(k)
        d[k] = (v, 1) if row is None else (row[0] + v, row[1] + 1)


def read_and_update_dict(d: dict[int, int], keys: Iterable[int]) -> None:
    """One key after the other, read, then write."""
    for k in keys:
        n = d.get(k, 0)
        d[k] = n + 1


def count_in_array(counts: Longs, slots: Longs) -> None:
    """The limit: dense slots, no hashing, no keys, no undo."""
    np.add.at(counts, slots, 1)


def append_to_lists(d: dict[int, list[int]], keys: Iterable[int], values: Iterable[int]) -> None:
    """Append an item to the list of each key; `d` is a defaultdict."""
    for k, v in zip(keys, values, strict=True):
        d[k].append(v)


def copy_lists(d: dict[int, list[int]], keys: Iterable[int]) -> list[list[int]]:
    """Copies of the keys' lists, which later changes do not affect."""
    return [d[k].copy() for k in keys]


def sum_lists(d: dict[int, list[int]], keys: Iterable[int]) -> list[int]:
    """Use each item of the lists."""
    return [sum(d[k]) for k in keys]


def put_into_maps(
    d: dict[int, dict[int, int]], keys: Iterable[int], names: Iterable[int], values: Iterable[int]
) -> None:
    """Put an entry into the map of each key; `d` is a defaultdict."""
    for k, name, v in zip(keys, names, values, strict=True):
        d[k][name] = v


def get_from_maps(
    d: dict[int, dict[int, int]], keys: Iterable[int], names: Iterable[int]
) -> list[int | None]:
    """Get an entry of the map of each key."""
    return [d[k].get(name) for k, name in zip(keys, names, strict=True)]


def sum_in_dict(d: dict[int, int], keys: Iterable[int], values: Iterable[int]) -> None:
    """A reduced value per key; `d` is a defaultdict."""
    for k, v in zip(keys, values, strict=True):
        d[k] += v


def mean_in_dict(
    d: dict[int, tuple[float, int]], keys: Iterable[int], values: Iterable[float]
) -> None:
    """Sum and count for a mean; with tuples, as above."""
    for k, v in zip(keys, values, strict=True):
        row = d.get(k)
        d[k] = (v, 1) if row is None else (row[0] + v, row[1] + 1)


Timer = tuple[int, int]
"""A timer: its time and its key."""


def register_timers(
    heap: list[Timer], there: set[Timer], keys: Iterable[int], times: Iterable[int]
) -> None:
    """Register timers; registering one twice makes one timer."""
    for timer in zip(times, keys, strict=True):
        if timer not in there:
            there.add(timer)
            heapq.heappush(heap, timer)


def fire_timers(
    heap: list[Timer], there: set[Timer], until: int, call: Callable[[int, int], object]
) -> int:
    """Fire due timers, in order; those that are no longer in the set were deleted."""
    fired = 0
    while heap and heap[0][0] <= until:
        timer = heapq.heappop(heap)
        if timer in there:
            there.remove(timer)
            call(timer[1], timer[0])
            fired += 1
    return fired
