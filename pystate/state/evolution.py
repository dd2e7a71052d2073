"""How the columns of a state that was stored become those of its declaration.

Pure functions and immutable values, safe from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pystate._core import core
from pystate.state.columns import LIST, MAP, TIME, TIMERS, Column, key_column
from pystate.state.declaration import State, file_name
from pystate.state.identity import other_meaning
from pystate.state.kinds import declared_as
from pystate.state.list import UnionListState
from pystate.state.map import MapState
from pystate.state.value import ValueState
from pystate.types.conversion import TypeChange, TypeRow, change_of, keeps_identity, type_rows
from pystate.types.state_type import StateType, parse_type

_ACCUMULATOR = re.compile(r"#((\w+)\(.*\)) of (.+)")
#: Aggregators whose accumulators are the same for floats and doubles: they keep doubles.
_OF_DOUBLES = ("Mean", "Variance")
#: Those that keep hashes of what they were given, which are other ones for another type.
_OF_HASHES = ("ApproxDistinct",)
_OTHER_KIND = "a state does not change its kind"

_Rows = Sequence[TypeRow]
_Ignored = Callable[[str], bool]


@dataclass(frozen=True)
class ColumnChange:
    """How a stored column becomes a declared one."""

    old: Column
    new: Column
    types: TypeChange = field(default_factory=TypeChange)
    """Of the values, the items, or the map's values."""
    fill: bytes | None = None
    """A value in which the fields that are added have their defaults; None where all are null."""

    @property
    def is_none(self) -> bool:
        """Whether files hold the column as it is declared."""
        if self.new.is_accumulator or self.new.kind in (TIME, TIMERS):
            return True
        return not self.converts and self.old.file_types == self.new.file_types

    @property
    def converts(self) -> bool:
        """Whether values have other bytes."""
        sources = self.types.sources
        return sources != list(range(len(sources))) or not _same_bytes(self.old, self.new)


def column_change(old: Column, new: Column, ignored: _Ignored = lambda path: False) -> ColumnChange:
    """Compare the column of a stored state with its declaration.

    A stored field of whose path `ignored` is true counts as if it were not there.
    """
    if old.same_as(new) and (old.is_accumulator or not old.value_type.is_nested):
        return ColumnChange(old, new)
    types = TypeChange()
    if old.kind != new.kind or TIME in (old.kind, new.kind) or TIMERS in (old.kind, new.kind):
        types.refused.append(_OTHER_KIND)
    elif old.is_accumulator or new.is_accumulator:
        types.refused += _accumulators(old, new)
    else:
        (before, *keys), (after, *new_keys) = old.file_types, new.file_types
        types = change_of(before, after, ignored)
        if new.kind == MAP and not keeps_identity(keys[0], new_keys[0]):
            types.refused.append(
                f"keys of maps keep their identity: {old.key_type.ddl} does not become "
                f"{new.key_type.ddl}"
            )
    return ColumnChange(old, new, types)


def stored_change(old: str, new: str) -> ColumnChange:
    """Compare two states as a checkpoint's metadata spells them (`State.stored_as`).

    `DeclarationError`: a later version wrote one of them.
    """
    stored, declared = declared_as(old), declared_as(new)
    change = column_change(stored.columns("state")[0], declared.columns("state")[0])
    # Columns do not tell the two kinds of timestamps apart.
    for before, after in zip(_types(stored), _types(declared), strict=False):
        if {before.name, after.name} == {"timestamp", "timestamp_ntz"}:
            change.types.refused.append(f"{before.ddl} is no {after.ddl}")
    if isinstance(stored, UnionListState) and not isinstance(declared, UnionListState):
        # The other way round each instance gets all items, as it should, at the next change.
        change.types.refused.append(
            "the list was a union, of which several instances may have the same items, and would "
            "now be divided as if each item were there once"
        )
    if not change.types.refused and not (
        isinstance(declared, type(stored))
        or (isinstance(stored, ValueState) and isinstance(declared, ValueState))
    ):
        # Two kinds may have the same column.
        change.types.refused.append(_OTHER_KIND)
    if not change.types.refused:
        wrong = other_meaning(old, new)
        change.types.refused += [] if wrong is None else [wrong]
    return change


def same_content(old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]) -> bool:
    """Whether files of some states are files of others, which may have other names or functions."""

    def content(states: Sequence[tuple[str, str]]) -> dict[str, Any]:
        columns = {file_name(*pair): declared_as(pair[1]).columns("state")[0] for pair in states}
        return {
            name: (column.kind, column.ddl, column.map_key, column.map_precision, column.map_scale)
            for name, column in columns.items()
        }

    return content(old) == content(new)


def _types(state: State[Any]) -> tuple[StateType, ...]:
    return (state.type, state.key_type) if isinstance(state, MapState) else (state.type,)


def refusal(change: ColumnChange, allow_unclaimed_state: bool) -> str:
    """Return why a state cannot be read as it is declared, and what to do; empty if it can."""
    if change.types.refused:
        return (
            f"{'; '.join(change.types.refused)}. Values become wider, and fields of structs come "
            "and go; for anything else declare a state of another name beside the stored one and "
            "fill it from there, or transform the state offline (read, change, write)"
        )
    if change.types.renamed and not allow_unclaimed_state:
        pairs = ", ".join(f"{was!r} to {now!r}" for was, now in change.types.renamed)
        return (
            f"this looks like a rename, {pairs}, and would drop what the old field holds. If that "
            "is meant, remove the one and add the other in two runs, or pass "
            "allow_unclaimed_state=True; else keep the old name"
        )
    return ""


def _same_bytes(old: Column, new: Column) -> bool:
    if old.is_accumulator or new.is_accumulator:
        return True
    ours, theirs = old.value_type, new.value_type
    if not (ours.is_nested or theirs.is_nested):
        return ours.code == theirs.code and ours.scale == theirs.scale
    return ours == theirs


def _accumulators(old: Column, new: Column) -> list[str]:
    before, after = _ACCUMULATOR.fullmatch(old.ddl), _ACCUMULATOR.fullmatch(new.ddl)
    if before is None or after is None or before[1] != after[1]:
        return ["an aggregate does not become another one"]
    if before[3] == after[3]:
        return []
    name, ours, theirs = before[2], parse_type(before[3]), parse_type(after[3])
    widens = keeps_identity(ours, theirs) and name not in _OF_HASHES
    doubles = name in _OF_DOUBLES and (ours.name, theirs.name) == ("float", "double")
    if widens or doubles:
        return []
    return [f"the accumulators of {before[1]} of {ours.ddl} are not those of {theirs.ddl}"]


def evolve_reader(reader: core.FileReader, changes: Sequence[tuple[int, ColumnChange]]) -> None:
    """Make a file's reader give columns, by their numbers in the file, as they are declared."""
    wanted = [(at, change) for at, change in changes if not change.is_none]
    if not wanted:
        return
    rows: list[tuple[int, _Rows, _Rows, Sequence[int], bytes | None]] = []
    for at, change in wanted:
        if not change.converts:
            rows.append((at, (), (), (), None))
            continue
        old, new = type_rows(change.old.value_type), type_rows(change.new.value_type)
        rows.append((at, old, new, tuple(change.types.sources), change.fill))
    columns = [_in_file(change.new) for _, change in wanted]
    reader.evolve(rows, core.Schema([key_column("key", StateType("long"))], columns))


def _in_file(column: Column) -> Column:
    """As a column of files: a list's runs of items are bytes."""
    if column.kind != LIST or column.map_key:
        return column
    return column._replace(
        code=StateType("binary").code,
        precision=0,
        scale=0,
        default=None,
        map_key=column.code,
        map_precision=column.precision,
        map_scale=column.scale,
        codec=None,
    )
