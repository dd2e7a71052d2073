"""Going over all rows while epochs are sealed, and the table becomes shorter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import pystate as ps

KEYS, EVERY = 400_000, 40


def add(table: ps.KeyedStateBackend, numbers: np.ndarray) -> None:
    with closing(table.keys(numbers)) as batch:
        table["n"].add(batch, 1)
    table.seal(snapshot=False)


@pytest.fixture
def shrinking() -> Iterator[ps.KeyedStateBackend]:
    """Of 400 000 keys the last of every forty are left, and rows are about to move down."""
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("bigint", default=0)}) as table:
        for numbers in np.array_split(np.arange(KEYS), 20):
            add(table, numbers)
        for numbers in np.array_split(np.arange(KEYS), 20):
            with closing(table.keys(numbers[numbers % EVERY != EVERY - 1])) as batch:
                table.delete(batch)
            table.seal(snapshot=False)
        yield table


def stays() -> list[int]:
    return list(range(EVERY - 1, KEYS, EVERY))


def shrink(table: ps.KeyedStateBackend, epochs: int) -> int:
    """The slots that are left after so many epochs."""
    for _ in range(epochs):
        add(table, np.array([EVERY - 1]))
    return table.stats().slots


def test_each_row_is_met_once_over_seals(shrinking: ps.KeyedStateBackend) -> None:
    for _ in range(40):
        seen: Counter[int] = Counter()
        for keys in shrinking._rows(100, changed=False):
            seen.update(keys.to_pylist())
            shrink(shrinking, 2)
        assert dict(seen) == dict.fromkeys(stays(), 1)
    assert shrink(shrinking, 1500) < KEYS // 8  # what was put off is done once nobody looks


def test_dropped_iterators_hold_nothing_up(shrinking: ps.KeyedStateBackend) -> None:
    left = [iter(shrinking), shrinking.to_batches()]
    for rows in left:
        next(rows)
    assert shrink(shrinking, 1500) == KEYS
    del rows
    left.clear()
    assert shrink(shrinking, 1500) < KEYS // 8


def test_over_roll_backs(shrinking: ps.KeyedStateBackend) -> None:
    rows = shrinking._rows(1000, changed=False)
    seen = next(rows).to_pylist()
    shrinking.rollback()  # of the open epoch: nothing has moved
    seen += next(rows).to_pylist()
    assert len(set(seen)) == 2000
    add(shrinking, np.array([EVERY - 1]))
    shrinking.rollback(1)
    with pytest.raises(ps.errors.StaleKeyBatchError, match="to a sealed epoch; begin again"):
        next(rows)


def test_over_a_detached_table(tmp_path: Path) -> None:
    path = tmp_path / "t.table"
    states = {"n": ps.ValueState("bigint", default=0)}
    with ps.KeyedStateBackend("long", states=states, home="shared", path=path) as table:
        add(table, np.arange(10))
        rows = table._rows(5, changed=False)
        next(rows)
        table.detach()
        table.attach()
        with pytest.raises(ps.errors.StaleKeyBatchError, match="was detached"):
            next(rows)


def test_what_has_changed_is_of_one_epoch(shrinking: ps.KeyedStateBackend) -> None:
    with closing(shrinking.keys(stays())) as batch:
        shrinking["n"].add(batch, 1)
    rows = shrinking.changed(100)
    assert len(next(rows)) == 100
    assert len(next(rows)) == 100
    shrinking.seal(snapshot=False)
    with pytest.raises(ps.errors.StaleKeyBatchError, match="epoch whose keys these are"):
        next(rows)
