"""What a replay is compared with."""

from __future__ import annotations

from typing import Any

import pytest

from pystate.errors import ReplayError
from pystate.testing.faults import check_replay

ROWS: list[Any] = [("a", 1.0), ("b", float("nan")), ("a", 1.0)]


def test_a_replay_yields_the_same() -> None:
    check_replay(1, ROWS, [*ROWS, ("c", 2.0)], in_order=True)
    check_replay(1, [], [], in_order=True)
    for in_order in (True, False):
        with pytest.raises(ReplayError, match=r"epoch 3 .* its row 2 was \('a', 1\.0\).* nothing"):
            check_replay(3, ROWS, ROWS[:2], in_order=in_order)


def test_timers_of_other_keys_may_be_first() -> None:
    check_replay(1, ROWS, [("c", 2.0), *reversed(ROWS)], in_order=False)
    with pytest.raises(ReplayError, match="its row 0 was"):
        check_replay(1, ROWS, [("c", 2.0), *reversed(ROWS)], in_order=True)
    with pytest.raises(ReplayError, match="its row 1 was"):
        check_replay(1, ROWS, [("a", 1.0), ("b", 0.0), ("a", 1.0)], in_order=False)
