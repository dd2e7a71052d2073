"""States as a checkpoint's metadata spells them, read back.

Pure functions, safe from any thread.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from pystate.errors import DeclarationError
from pystate.state import aggregators
from pystate.state.declarations import AggregatingState, ListState, MapState, State, ValueState

__all__ = ["declared_as"]


_STORED = re.compile(r"(ListState|MapState)\((.*)\)")
_ACCUMULATOR = re.compile(r"#(\w+)\((?:\w+=(\w+))?\) of (.*)")


def declared_as(stored: str) -> State:
    """A declaration whose files are what `State.stored_as` says.

    Raises
    ------
    DeclarationError
        A later version wrote it.
    """
    listed = _STORED.fullmatch(stored)
    if listed:
        kind: Any = ListState if listed[1] == "ListState" else MapState
        *keys, type_ = (ast.literal_eval(p) if p != "object" else object for p in _parts(listed[2]))
        return kind(*keys, type_)  # type: ignore[no-any-return]
    kept = _ACCUMULATOR.fullmatch(stored)
    if kept:
        aggregator = getattr(aggregators, kept[1], None)
        if aggregator is None:
            raise DeclarationError(f"{stored!r}: this version knows no aggregate {kept[1]}")
        arguments = () if kept[2] is None else (ast.literal_eval(kept[2]),)
        return AggregatingState(aggregator(*arguments), kept[3])
    return ValueState(object if stored == "object" else stored)


def _parts(text: str) -> list[str]:
    """Literals between commas that are outside quotes."""
    return re.findall(r"object|'[^']*'|\"[^\"]*\"", text)
