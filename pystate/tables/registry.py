"""The states of a backend: from declarations to the core's columns and handles.

Thread safety: a registry belongs to its backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pystate._core import core
from pystate.base.arguments import nearest, shown
from pystate.errors import DeclarationError, UnknownStateError
from pystate.state.columns import NAMESPACE, Column, timers_columns
from pystate.state.declaration import MOST_TEXT_BYTES, State
from pystate.state.handle import Objects, StateHandle
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

#: What is added to the name of a state: of the column of its times, or where it is used again.
_SUFFIX_BYTES = 16


class StateRegistry:
    """The declared states of one table, whose handles must be made before it is opened.

    `reserved` are names that no state may have, and what uses them.
    """

    def __init__(self, table: core.Table, reserved: Mapping[str, str], timers: bool) -> None:
        self._table = table
        self._reserved = reserved
        self._timers = timers
        self._columns: list[Column] = []
        self._handles: dict[str, StateHandle] = {}
        self._declarations: dict[str, State[Any]] = {}
        #: The members of `objects` whose values expire.
        self.timed_objects: list[Objects] = []

    @property
    def handles(self) -> Mapping[str, StateHandle]:
        """The handles by name."""
        return MappingProxyType(self._handles)

    @property
    def declarations(self) -> Mapping[str, State[Any]]:
        """The declarations by name."""
        return MappingProxyType(self._declarations)

    @property
    def columns(self) -> list[Column]:
        """The table's state columns, hidden ones included."""
        return [*self._columns, *timers_columns()] if self._timers else list(self._columns)

    @property
    def objects(self) -> Iterator[Objects]:
        """The handles that keep Python objects until they are flushed."""
        for handle in self._handles.values():
            if handle.objects is not None:
                yield handle.objects

    def register(self, name: str, declaration: State[Any]) -> Any:
        """Declare a state and get its handle; declaring it again returns the same handle."""
        if not isinstance(name, str):
            raise DeclarationError(f"a state's name is a string, not {shown(name)}")
        if name in self._handles:
            if self._declarations[name] == declaration:
                return self._handles[name]
            raise DeclarationError(
                f"state {name!r} is registered as {self._declarations[name]!r}, not {declaration!r}"
            )
        if not name or "\0" in name or "#" in name:
            raise DeclarationError(
                f"{name!r} is no name for a state: it is empty, or has a # in it"
            )
        if len(name.encode()) > MOST_TEXT_BYTES - _SUFFIX_BYTES:
            raise DeclarationError(
                f"state {name[:40] + '...'!r}: its name has {len(name.encode())} bytes, and a "
                f"state file keeps at most {MOST_TEXT_BYTES - _SUFFIX_BYTES}"
            )
        if not isinstance(declaration, State):
            raise DeclarationError(
                f"state {name!r}: expected a declaration, got {declaration!r:.80}"
            )
        if name in self._reserved:
            raise DeclarationError(
                f"state {name!r}: {self._reserved[name]} has that name: give the state another one"
            )
        if self._table.is_open:
            raise DeclarationError(
                f"state {name!r}: states are registered before the table's first use"
            )
        columns = declaration.columns(name)
        if len(self.columns) + len(columns) > core.MAX_STATES:
            raise DeclarationError(
                f"an operator has at most {core.MAX_STATES} columns for states; one with a time "
                "to live takes two, and so do timers"
            )
        handle = declaration.handle(self._table, len(self._columns), name)
        self._columns += columns
        self._handles[name] = handle
        self._declarations[name] = declaration
        kept = handle.objects
        if kept is not None and declaration.ttl is not None:
            kept.ttl = declaration.ttl
            self.timed_objects.append(kept)
        return handle

    def set_ttl(self) -> None:
        """Tell the open table how its states expire."""
        for name, declaration in self._declarations.items():
            if declaration.ttl is not None:
                ttl, reference_ms = declaration.ttl, declaration.reference_ms
                kept_ms = ttl.duration_ms if reference_ms is None else reference_ms
                self._table.set_ttl(
                    self._handles[name].column,
                    kept_ms,
                    ttl.granularity_ms,
                    ttl.time == "event",
                    ttl.update == "read_and_write",
                    ttl.visibility == "return_if_not_cleaned_up",
                    ttl.duration_ms - kept_ms,
                    reference_ms is not None,
                )

    @property
    def has_timers(self) -> bool:
        """Whether keys have timers."""
        return self._timers

    @property
    def expires(self) -> bool:
        """Whether any state has a time to live."""
        return any(declaration.ttl is not None for declaration in self._declarations.values())


def unknown_state_error(name: object, known: Iterable[str]) -> UnknownStateError:
    """The error to raise for a state that was not declared."""
    names = list(known)
    listed = ", ".join(map(repr, names)) or "none"
    return UnknownStateError(f"no state {name!r:.80}; declared: {listed}{nearest(name, names)}")


def refuse_pickled(states: Mapping[str, State[Any]], owner: str) -> None:
    """Refuse states whose values would be unpickled when they are read; `owner` is theirs."""
    pickled = [name for name, state in states.items() if state.type.is_object]
    if pickled:
        raise DeclarationError(
            f"{owner}: {', '.join(map(repr, pickled))} would be pickled, and allow_pickle=False "
            "refuses that: whoever can write to a checkpoint could have any code run where its "
            "objects are read. Declare a type, such as 'struct<a:int,b:array<string>>', in place "
            "of object, and one of pystate's aggregators in place of an AggregateFunction"
        )


def reserved_names(key: KeyColumns, namespace: StateType | None) -> dict[str, str]:
    """The names that no state may have, and what uses them."""
    names = dict.fromkeys((name for name, _ in key), "a key column")
    if namespace is not None:
        if NAMESPACE in names:
            raise DeclarationError(
                f"a key column is called {NAMESPACE!r}, as the column of the namespaces is: "
                "give it another name"
            )
        names[NAMESPACE] = "the column of the namespaces"
    return names
