"""How values that were stored as one type are read as another.

A type may change as far as no value is lost: integers and floats become wider, dates timestamps,
decimals longer, and the fields of structs come, go and change places. Everything here is pure and
safe from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pystate._core import core
from pystate.types import ddl
from pystate.types.state_type import StateType

#: A type as the core takes it: name, code, precision, scale, number of children.
TypeRow: TypeAlias = tuple[str, int, int, int, int]

_INTEGERS = ("byte", "short", "int", "long")


@dataclass
class TypeChange:
    """What it takes to read a stored type as a declared one."""

    #: For the declared type and those in it, in preorder, the number of the stored type that its
    #: values come from; -1 for fields that were not stored.
    sources: list[int] = field(default_factory=list)
    #: Fields by their paths.
    added: dict[str, StateType] = field(default_factory=dict)
    removed: dict[str, StateType] = field(default_factory=dict)
    #: Why it cannot be read; empty if it can.
    refused: list[str] = field(default_factory=list)
    #: Paths of fields that look as if they had been renamed: one that is removed, and one of the
    #: same type that is added beside it.
    renamed: list[tuple[str, str]] = field(default_factory=list)


def change_of(
    old: StateType, new: StateType, ignored: Callable[[str], bool] = lambda path: False
) -> TypeChange:
    """Compare a stored type with a declared one.

    A stored field of whose path `ignored` is true counts as if it were not there.

    >>> from pystate.types.state_type import parse_type
    >>> change = change_of(parse_type("struct<a:int,b:int>"), parse_type("struct<c:date,a:long>"))
    >>> change.sources, list(change.added), list(change.removed), change.refused
    ([0, -1, 1], ['c'], ['b'], [])
    """
    change = TypeChange()
    _Comparison(change, ignored).types(old, new, 0, "")
    return change


def type_rows(type: StateType) -> tuple[TypeRow, ...]:
    """Return a type and those in it, in preorder, as the core takes them."""
    code = 0 if type.is_nested else type.code
    own = (type.name, code, type.precision, type.scale, len(type.children))
    return (own, *(row for _, child in type.children for row in type_rows(child)))


def field_paths(type: StateType, path: str = "") -> Iterator[str]:
    """Return the paths of all fields of structs in a type, as `TypeChange` spells them."""
    for name, child in type.children:
        at = _below(type, path, name)
        if type.name == "struct":
            yield at
        yield from field_paths(child, at)


def field_path(path: str, name: str) -> str:
    """Return the path of a struct's field."""
    return f"{path}.{ddl.quoted(name)}".removeprefix(".")


def _below(type: StateType, path: str, name: str) -> str:
    if type.name != "struct":
        return f"{path}[{'' if type.name == 'array' else name}]"
    return field_path(path, name)


@dataclass(frozen=True)
class _Comparison:
    """Notes what a change consists of, while the types in both types are compared."""

    change: TypeChange
    ignored: Callable[[str], bool]

    def types(self, old: StateType, new: StateType, number: int, path: str) -> None:
        """Compare two types, of which the stored one has that number in preorder."""
        change = self.change
        change.sources.append(number)
        where = f"{path}: " if path else ""
        if not old.is_nested and not new.is_nested:
            if not _widens(old, new):
                change.refused.append(f"{where}{new.ddl} does not hold every {old.ddl}")
        elif old.name != new.name:
            change.refused.append(f"{where}{old.ddl} is no {new.ddl}")
        elif new.name == "struct":
            self._fields(old, new, number, path)
        else:
            number += 1
            if new.name == "map" and not keeps_identity(old.children[0][1], new.children[0][1]):
                change.refused.append(
                    f"{where}keys of maps keep their identity: {old.children[0][1].ddl} does not "
                    f"become {new.children[0][1].ddl}"
                )
            for (name, before), (_, after) in zip(old.children, new.children, strict=True):
                self.types(before, after, number, _below(new, path, name))
                number += _size(before)

    def _fields(self, old: StateType, new: StateType, number: int, path: str) -> None:
        stored: dict[str, tuple[int, StateType]] = {}
        number += 1
        for name, type_ in old.children:
            if not self.ignored(_below(old, path, name)):
                stored[name] = (number, type_)
            number += _size(type_)
        added: dict[str, StateType] = {}
        for name, type_ in new.children:
            at = _below(new, path, name)
            if name in stored:
                source, before = stored.pop(name)
                self.types(before, type_, source, at)
            else:
                added[at] = type_
                self.change.sources += [-1] * _size(type_)
        removed = {_below(old, path, name): type_ for name, (_, type_) in stored.items()}
        self.change.added |= added
        self.change.removed |= removed
        self.change.renamed += [
            (was, now)
            for was, before in removed.items()
            for now, after in added.items()
            if before == after
        ]


def _size(type: StateType) -> int:
    return 1 + sum(_size(child) for _, child in type.children)


def _widens(old: StateType, new: StateType) -> bool:
    if "object" in (old.name, new.name) or {old.name, new.name} == {"timestamp", "timestamp_ntz"}:
        return old == new
    return core.widens((old.code, old.precision, old.scale), (new.code, new.precision, new.scale))


def keeps_identity(old: StateType, new: StateType) -> bool:
    """Whether a map's keys of one type are the same keys in another, also in files."""
    if old.name in _INTEGERS and new.name in _INTEGERS:
        return _INTEGERS.index(old.name) <= _INTEGERS.index(new.name)
    if old.name == new.name == "decimal":
        return old.scale == new.scale and old.precision <= new.precision
    return old == new
