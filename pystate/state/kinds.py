"""The kinds of state there are.

Immutable, safe from any thread.
"""

from __future__ import annotations

from typing import Any

from pystate.errors import DeclarationError, NewerFormatError
from pystate.state.aggregating import AggregatingState
from pystate.state.declaration import State, stored_parts, stored_reference_ms
from pystate.state.identity import StoredFold
from pystate.state.list import ListState, UnionListState
from pystate.state.map import MapState
from pystate.state.reducing import ReducingState
from pystate.state.value import ValueState

#: A new kind is added here.
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


def stored_state(uid: str, name: str, stored: str) -> State[Any]:
    """The declaration of an operator's state in a checkpoint.

    `NewerFormatError`: a later version wrote it.
    """
    try:
        return declared_as(stored)
    except DeclarationError as error:
        raise NewerFormatError(
            f"operator {uid!r}, state {name!r} is stored as {stored_parts(stored)[1]}, which this "
            "version of pystate does not know, so that a later one has written it: upgrade pystate"
        ) from error
