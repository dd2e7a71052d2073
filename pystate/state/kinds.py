"""The kinds of state there are.

Immutable, safe from any thread.
"""

from __future__ import annotations

from typing import Any

from pystate.errors import DeclarationError
from pystate.state.aggregating import AggregatingState
from pystate.state.declaration import State
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.state.reducing import ReducingState
from pystate.state.value import ValueState

__all__ = ["KINDS", "declared_as"]

#: A new kind is named here, before `ValueState`, which takes any spelling that no other kind took.
KINDS: tuple[type[State[Any]], ...] = (
    ListState,
    MapState,
    ReducingState,
    AggregatingState,
    ValueState,
)


def declared_as(stored: str) -> State[Any]:
    """A declaration whose files are what `State.stored_as` says.

    Raises
    ------
    DeclarationError
        A later version wrote it.
    """
    for kind in KINDS:
        found = kind.from_stored(stored)
        if found is not None:
            return found
    raise DeclarationError(f"{stored!r}: this version knows no such state")
