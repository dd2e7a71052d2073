"""The kinds of state there are.

Immutable, safe from any thread.
"""

from __future__ import annotations

from typing import Any

from pystate.errors import DeclarationError
from pystate.state.aggregating import AggregatingState
from pystate.state.declaration import State, stored_parts, stored_reference_ms
from pystate.state.identity import StoredFold
from pystate.state.list import ListState, UnionListState
from pystate.state.map import MapState
from pystate.state.reducing import ReducingState
from pystate.state.value import ValueState

#: A new kind is added here, before `ValueState`, which accepts any spelling that no other kind
#: does.
KINDS: tuple[type[State[Any]], ...] = (
    ListState,
    UnionListState,
    MapState,
    StoredFold,
    ReducingState,
    AggregatingState,
    ValueState,
)


def declared_as(stored: str) -> State[Any]:
    """The declaration for which `State.stored_as` gives `stored`.

    A state into which values are folded is given as a `StoredFold`, without its function, unless it
    has an accumulator of the core. `DeclarationError`: a later version wrote it.
    """
    file_name, spelling = stored_parts(stored)
    for kind in KINDS:
        declaration = kind.from_stored(spelling)
        if declaration is not None:
            return declaration.referring_to(stored_reference_ms(stored)).in_files(file_name)
    raise DeclarationError(f"{stored!r}: this version knows no such state")
