"""Which of a checkpoint's states a declaration continues, and what its files go by for ever.

Thread safety: pure functions.

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

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pystate.errors import DeclarationError, SchemaError
from pystate.state.declaration import State, parted, referred

_Schema = Sequence[tuple[str, str]]


def file_name(name: str, stored: str) -> str:
    """What files call a state, by its name and its spelling in a checkpoint's metadata."""
    return parted(stored)[0] or name


def check_former_names(declared: Mapping[str, State[Any]], what: str) -> None:
    """Refuse former names that are not those of one state alone.

    Raises
    ------
    DeclarationError
        A former name is a state's name still, or that of two states.
    """
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

    Parameters
    ----------
    declared : mapping of str to State
        The states of the program.
    stored : sequence of (str, str)
        Names and spellings of the states in the checkpoint.
    what : str
        Names the operator in errors.
    dropped : collection of str
        States of the checkpoint that do not count.

    Raises
    ------
    DeclarationError
        See `check_former_names`.
    SchemaError
        The checkpoint has a state under two names of one declaration.
    """
    check_former_names(declared, what)
    gone = set(dropped).difference(declared)
    known = {name: file_name(name, text) for name, text in stored if name not in gone}
    taken = {file_name(name, text) for name, text in stored}
    references = {file_name(name, text): referred(text) for name, text in stored}
    found: dict[str, str] = {}
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
            found[name] = known[names[0]]
            continued.add(name)
    for name in declared:
        if name not in found:
            found[name] = _unused(name, taken.union(found.values()))
    made = {}
    for name, state in declared.items():
        reference_ms = references[found[name]] if name in continued else None
        if reference_ms is not None and (state.ttl is None or state.reference_ms is not None):
            state = state.referring_to(reference_ms)
        made[name] = state.in_files(None if found[name] == name else found[name])
    return made


def _unused(name: str, taken: Collection[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}~{number}"
    return free
