"""An operator, as its tables see it.

Immutable, safe from any thread.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pystate._core import core
from pystate.errors import DeclarationError
from pystate.state.columns import LIST, MAP
from pystate.state.declaration import Defaults, State
from pystate.state.renames import in_files
from pystate.types.fills import Fills, pin
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

__all__ = ["OperatorSpec", "declared_fills", "stored_defaults"]


@dataclass(frozen=True)
class OperatorSpec:
    """What determines the tables of an operator; it is pickled and sent to the workers.

    Attributes
    ----------
    uid : str
        Its name in checkpoints and errors.
    key : tuple of (name, StateType)
        The key's columns.
    states : mapping of str to State
        The declarations, in the order of the table's columns.
    namespace : StateType or None
        The type of its namespaces.
    timers : bool
        Whether keys have timers.
    max_parallelism : int
        Number of key groups.
    instances : bool
        Whether its states belong to instances, and not to keys; `key` is then `INSTANCE_KEY`.
    dropped : frozenset of str
        States that the checkpoint may have, and that are dropped from it.
    """

    uid: str
    key: KeyColumns
    states: Mapping[str, State[Any]]
    namespace: StateType | None = None
    timers: bool = False
    max_parallelism: int = 128
    instances: bool = False
    dropped: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        spaces = self.namespace is not None
        if len(self.key) + spaces + 1 > core.MAX_KEYS:
            self._check_room(spaces)

    def _check_room(self, spaces: bool) -> None:
        """Refuse a key that leaves no room for what files put behind it.

        Raises
        ------
        DeclarationError
            It has too many columns.
        """
        kinds = {
            column.kind for name, state in self.states.items() for column in state.columns(name)
        }
        elements = self.timers or bool(kinds & {LIST, MAP})
        most = core.MAX_KEYS - spaces - elements
        if len(self.key) > most:
            what = "windows and timers" if spaces else "timers, lists or maps"
            raise DeclarationError(
                f"operator {self.uid!r}: a key with {what} has at most {most} columns, and this "
                f"one has {len(self.key)}; a struct stands for its fields, and one column more "
                "that says whether it is null: make one column of some, a string for example"
            )

    @property
    def expires(self) -> bool:
        """Whether a state has a time to live."""
        return any(state.ttl is not None for state in self.states.values())

    def stored_states(self) -> tuple[tuple[str, str], ...]:
        """Return names and kinds of the states as a checkpoint's metadata spells them."""
        return tuple((name, state.stored_as()) for name, state in self.states.items())

    def fills(self) -> dict[str, Fills]:
        """Return what fields have that are added to structs, by the states' names in files."""
        return {state.file_name(name): state.fills() for name, state in self.states.items()}

    def defaults(self) -> Defaults:
        """Return what keys without a value have, for a checkpoint's metadata."""
        return stored_defaults(self.states)

    def continuing(self, stored: Sequence[tuple[str, str]]) -> OperatorSpec:
        """Return the operator as one whose states a checkpoint has already, under these spellings.

        Raises
        ------
        DeclarationError, SchemaError
            Former names of states contradict each other, or the checkpoint.
        """
        what = f"operator {self.uid!r}"
        return replace(self, states=in_files(self.states, stored, what, self.dropped))

    def fingerprint(self, since: tuple[tuple[str, int], ...] = ()) -> str:
        """Return 64 hexadecimal digits that differ between tables of different schemas.

        Parameters
        ----------
        since : tuple of (str, int)
            As in `RangeState`: a table that held a dropped state is not used for a new state of the
            same name.
        """
        columns = [[name, type_.ddl] for name, type_ in self.key]
        states = [_described(name, state) for name, state in self.states.items()]
        space = None if self.namespace is None else self.namespace.ddl
        text = json.dumps([self.max_parallelism, columns, states, space, self.timers, since])
        return hashlib.sha256(text.encode()).hexdigest()


def _described(name: str, state: State[Any]) -> list[str]:
    own, reference_ms = state.file_name(name), state.reference_ms
    described = [name, repr(state)] if own == name else [name, repr(state), own]
    return described if reference_ms is None else [*described, f"{reference_ms} ms"]


def stored_defaults(states: Mapping[str, State[Any]]) -> Defaults:
    """Return what keys without a value have, by the names of states."""
    found = {name: states[name].stored_default() for name in sorted(states)}
    return tuple((name, text) for name, text in found.items() if text is not None)


def declared_fills(states: Mapping[str, State[Any]]) -> dict[str, int]:
    """Return what stands for the declarations' own defaults where no checkpoint's metadata does.

    It is a `since` of `pystate.checkpoint.state_files.merge_files`: all defaults count from the
    first epoch on.
    """
    return {
        f"{state.file_name(name)}#{pin(path, value)}": 1
        for name, state in states.items()
        for path, value in state.fills().items()
    }
