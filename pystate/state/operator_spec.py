"""An operator as its tables see it, and which of a checkpoint's states its declarations continue.

Immutable values and pure functions, safe from any thread.

Invariants
----------
1. A state has one name in files for ever, its first: a rename changes no file, and files of before
   and after it are merged as any others.
2. A checkpoint's metadata has both names where they differ (`State.stored_as`). So a renamed state
   is found by its new name from then on, and no longer needs to be declared with its former one.
3. No two states of an operator have one name in files. A new state whose name is that of a renamed
   one in files gets another name there.
4. The times of a state that keeps the expiry of what is stored refer to one duration for ever, the
   first that the state was declared with (`State.reference_ms`), as do those of files from before
   a checkpoint has known it: then the duration of the next start counts for them. A state without
   a time to live keeps it, for files that have times when it has one again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from pystate._core import core
from pystate.errors import DeclarationError, SchemaError
from pystate.state.columns import LIST, MAP
from pystate.state.declaration import Defaults, State, Ttls, file_name, stored_reference_ms
from pystate.types.fills import Fills, pin
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

_Schema: TypeAlias = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class OperatorSpec:
    """What determines the tables of an operator; it is pickled and sent to the workers."""

    uid: str
    key: KeyColumns
    states: Mapping[str, State[Any]]
    """In the order of the table's columns."""
    namespace: StateType | None = None
    timers: bool = False
    max_parallelism: int = 128
    instances: bool = False
    """Whether its states belong to instances, and not to keys; `key` is then `INSTANCE_KEY`."""
    dropped: frozenset[str] = frozenset()
    """States that the checkpoint may have, and that are dropped from it."""

    def __post_init__(self) -> None:
        spaces = self.namespace is not None
        if len(self.key) + spaces + 1 > core.MAX_KEYS:
            self._check_room(spaces)

    def _check_room(self, spaces: bool) -> None:
        """Refuse a key that leaves no room for what files put behind it."""
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

    def ttls(self) -> Ttls:
        """Return how long what is in states lives, for a checkpoint's metadata."""
        return stored_ttls(self.states)

    def continuing(self, stored: Sequence[tuple[str, str]]) -> OperatorSpec:
        """The operator as one whose states a checkpoint has already, under these spellings.

        `DeclarationError` or `SchemaError`: former names contradict each other, or the checkpoint.
        """
        what = f"operator {self.uid!r}"
        return replace(self, states=in_files(self.states, stored, what, self.dropped))

    def fingerprint(self, since: tuple[tuple[str, int], ...] = ()) -> str:
        """64 hexadecimal digits that differ between tables of different schemas.

        With `since`, as in `RangeState`, a table that held a dropped state is not used for a new
        state of the same name.
        """
        columns = [[name, type_.ddl] for name, type_ in self.key]
        states = [_fingerprint_parts(name, state) for name, state in self.states.items()]
        space = None if self.namespace is None else self.namespace.ddl
        text = json.dumps([self.max_parallelism, columns, states, space, self.timers, since])
        return hashlib.sha256(text.encode()).hexdigest()


def _fingerprint_parts(name: str, state: State[Any]) -> list[str]:
    own, reference_ms = state.file_name(name), state.reference_ms
    described = [name, repr(state)] if own == name else [name, repr(state), own]
    return described if reference_ms is None else [*described, f"{reference_ms} ms"]


def stored_defaults(states: Mapping[str, State[Any]]) -> Defaults:
    """Return what keys without a value have, by the names of states."""
    defaults = {name: states[name].stored_default() for name in sorted(states)}
    return tuple((name, text) for name, text in defaults.items() if text is not None)


def stored_ttls(states: Mapping[str, State[Any]]) -> Ttls:
    """Return how long what is in states lives, by the names of those that have a time to live."""
    ttls = ((name, states[name].ttl) for name in sorted(states))
    return tuple((name, ttl) for name, ttl in ttls if ttl is not None)


def stored_rules(states: Mapping[str, State[Any]]) -> tuple[Defaults, Ttls]:
    """Return what a checkpoint's metadata says of states for its readers."""
    return stored_defaults(states), stored_ttls(states)


class _Stored(Protocol):
    """An operator as a manifest has it."""

    @property
    def state_schema(self) -> _Schema: ...
    @property
    def ttls(self) -> Ttls: ...


def begin_to_expire(states: Mapping[str, State[Any]], stored: _Stored) -> bool:
    """Whether a stored state is declared with a time to live, and may have had none until now."""
    ttls = dict(stored.ttls)
    timeless = {file_name(*pair) for pair in stored.state_schema if pair[0] not in ttls}
    timed = {state.file_name(name) for name, state in states.items() if state.ttl is not None}
    return not timed.isdisjoint(timeless)


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


def check_former_names(declared: Mapping[str, State[Any]], what: str) -> None:
    """Refuse former names that are not those of one state alone, or are still a state's name."""
    owners: dict[str, str] = {}
    for name, state in declared.items():
        for former in state.previously:
            if former == name:
                raise DeclarationError(
                    f"{what}, state {name!r}: previously={former!r} is the name that it has now"
                )
            if former in declared:
                raise DeclarationError(
                    f"{what}, state {name!r}: previously={former!r}, but there is a state "
                    f"{former!r}, which keeps what is stored under that name: rename it, too, or "
                    "leave previously out, once every checkpoint has the new name"
                )
            if former in owners:
                raise DeclarationError(
                    f"{what}: the states {owners[former]!r} and {name!r} both have "
                    f"previously={former!r}, and what is stored can go to one of them only"
                )
            owners[former] = name


def in_files(
    declared: Mapping[str, State[Any]],
    stored: _Schema,
    what: str,
    dropped: Collection[str] = (),
) -> dict[str, State[Any]]:
    """The declared states with what the files of a checkpoint have for them: names, and durations.

    `stored` has names and spellings of the checkpoint's states, of which those in `dropped` do not
    count; `what` names the operator in errors. `SchemaError`: the checkpoint has a state under two
    names of one declaration. `DeclarationError`: as in `check_former_names`.
    """
    check_former_names(declared, what)
    gone = set(dropped).difference(declared)
    known = {name: file_name(name, text) for name, text in stored if name not in gone}
    taken = {file_name(name, text) for name, text in stored}
    references = {file_name(name, text): stored_reference_ms(text) for name, text in stored}
    file_names: dict[str, str] = {}
    continued = set()
    for name, state in declared.items():
        names = [each for each in (name, *state.previously) if each in known]
        if len(names) > 1:
            raise SchemaError(
                f"{what}, state {name!r}: previously={state.previously[0]!r}, and the checkpoint "
                f"has {' and '.join(map(repr, names))}, which cannot both become {name!r}: leave "
                "the name out whose state it is not, and declare that state, or drop it by "
                "allow_unclaimed_state=True"
            )
        if names:
            file_names[name] = known[names[0]]
            continued.add(name)
    for name in declared:
        if name not in file_names:
            file_names[name] = _unused_name(name, taken.union(file_names.values()))
    states = {}
    for name, state in declared.items():
        reference_ms = references[file_names[name]] if name in continued else None
        if reference_ms is not None and (state.ttl is None or state.reference_ms is not None):
            state = state.referring_to(reference_ms)
        states[name] = state.in_files(None if file_names[name] == name else file_names[name])
    return states


def _unused_name(name: str, taken: Collection[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}~{number}"
    return free
