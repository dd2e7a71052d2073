"""The loops that pystate is compared with, exactly as they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]


def count_in_dict(d: dict[int, int], keys: Iterable[int]) -> None:
    """P1: rows per key."""
    for k in keys:
        d[k] = d.get(k, 0) + 1


def sum_and_count_in_dict(
    d: dict[int, tuple[int, int]], keys: Iterable[int], values: Iterable[int]
) -> None:
    """P1: sum and count per key; faster with tuples than with lists or two dicts."""
    for k, v in zip(keys, values, strict=True):
        row = d.get(k)
        d[k] = (v, 1) if row is None else (row[0] + v, row[1] + 1)


def read_and_update_dict(d: dict[int, int], keys: Iterable[int]) -> None:
    """P2: one key after the other, read, then write."""
    for k in keys:
        n = d.get(k, 0)
        d[k] = n + 1


def count_in_array(counts: Longs, slots: Longs) -> None:
    """P1, the limit: dense slots, no hashing, no keys, nothing that could be undone."""
    np.add.at(counts, slots, 1)
