"""What determines an operator's tables, and what has no room in them."""

from __future__ import annotations

from typing import Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError
from pystate.state.operator_spec import OperatorSpec
from pystate.testing import Harness, WindowHarness
from pystate.types.keys import parse_key
from pystate.types.state_type import parse_type

MOST = 16


def spec(columns: int, state: Any, **more: Any) -> OperatorSpec:
    key = parse_key([(f"k{i}", "int") for i in range(columns)])
    return OperatorSpec("o", key, {"s": state}, **more)


def test_a_key_leaves_room_for_what_files_put_behind_it() -> None:
    """It is refused where it is declared, and not by the first checkpoint."""
    value, items, entries = ps.ValueState("int"), ps.ListState("int"), ps.MapState("int", "int")
    long = parse_type("long")
    for state, more, room in [
        (value, {}, MOST),
        (items, {}, MOST - 1),
        (entries, {}, MOST - 1),
        (value, {"timers": True}, MOST - 1),
        (value, {"namespace": long}, MOST - 1),
        (value, {"namespace": long, "timers": True}, MOST - 2),
    ]:  # fmt: skip
        assert spec(room, state, **more)
        if room < MOST:
            with pytest.raises(DeclarationError, match=f"'o'.* at most {room} columns.*{room + 1}"):
                spec(room + 1, state, **more)


class Listed(ps.KeyedProcessFunction):
    """Keeps a list."""

    items = ps.ListState("int")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.items.add(1)
        yield len(self.items)


@pytest.mark.parametrize("columns", [14, 15, 16])
def test_harnesses_refuse_it_as_well(columns: int) -> None:
    names = [f"k{i}" for i in range(columns)]
    schema = ", ".join(f"{name} int" for name in names)
    row = tuple(range(columns))

    def listed() -> list[Any]:
        with Harness(Listed(), key=names, columns=schema) as harness:
            return harness.process([row])

    def windows() -> list[Any]:
        made = WindowHarness(
            ps.Tumbling(10), {"n": ps.count()}, names, columns=f"{schema}, at long", event_time="at"
        )
        with made as harness:
            harness.process([(*row, 1)])
            return [found.n for found in harness.drain()]

    for run, most in ((listed, MOST - 1), (windows, MOST - 2)):
        if columns <= most:
            assert run() == [1]
        else:
            with pytest.raises(DeclarationError, match=f"at most {most} columns"):
                run()
