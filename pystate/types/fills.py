"""What fields that were added to structs have where nothing was stored of them; values as JSON.

A default is kept as JSON in a checkpoint's metadata, from the epoch on in which its field was
added: a program that declares another default later changes nothing that has one.

Thread safety: pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any, TypeAlias

from pystate.types.conversion import field_path
from pystate.types.nested import NestedCodec
from pystate.types.state_type import StateType

#: Defaults of fields, as JSON, by their paths.
Fills: TypeAlias = Mapping[str, Any]

_MARK = "="


def fills_of(type: StateType, default: Any, path: str = "") -> dict[str, Any]:
    """Return the defaults of a struct's fields, at any depth, from a default of the whole."""
    fills: dict[str, Any] = {}
    if type.name != "struct" or default is None:
        return fills
    for name, child in type.children:
        value = default[name]
        if value is not None:
            at = field_path(path, name)
            fills[at] = to_json(child, value)
            fills |= fills_of(child, value, at)
    return fills


def pin(path: str, value: Any) -> str:
    """Return what a checkpoint's metadata keeps of a field's default, behind the state's ``#``."""
    return _MARK + json.dumps([path, value], separators=(",", ":"))


def unpin(text: str) -> tuple[str, Any] | None:
    """Return the path and the default that `pin` was given; None for a path alone."""
    if not text.startswith(_MARK):
        return None
    path, value = json.loads(text[len(_MARK) :])
    return path, value


def fill_of(
    type: StateType, added: Iterable[str], name: str, since: Mapping[str, int]
) -> bytes | None:
    """A value of the type in which `added` fields have their defaults; None if all are null.

    `since` says from which epoch on states and fields count, with what `pin` gave.
    """
    marks: dict[str, tuple[int, Any]] = {}
    for key, epoch in since.items():
        state, _, text = key.partition("#")
        if state != name or not text:
            continue
        pin_ = unpin(text)
        path, value = (text, None) if pin_ is None else pin_
        if path not in marks or pin_ is not None:
            marks[path] = (epoch, value)
    paths = frozenset(added)
    if not any(value is not None for _, value in marks.values()):
        return None
    value = _fill(type, "", paths, marks, None)
    return None if value is None else NestedCodec(type, name).pack(value)


def _fill(
    type: StateType,
    path: str,
    added: frozenset[str],
    marks: Mapping[str, tuple[int, Any]],
    above: tuple[int, Any] | None,
) -> dict[str, Any] | None:
    """A struct's value; `above` is the default that it has, None for what was stored."""
    struct: dict[str, Any] = {}
    for name, child in type.children:
        at = field_path(path, name)
        own = marks.get(at)
        mine = None
        if above is not None:
            # A field that was added later than its struct has a default of its own.
            mine = (above[0], above[1].get(name))
            mine = own if own is not None and own[0] > above[0] else mine
        elif at in added:
            mine = own if own is not None else (0, None)
        if child.name == "struct" and (mine is None or mine[1] is not None):
            struct[name] = _fill(child, at, added, marks, mine)
        elif mine is not None:
            struct[name] = from_json(child, mine[1])
    if above is None and all(value is None for value in struct.values()):
        return None
    return struct


def to_json(type: StateType, value: Any) -> Any:
    """What `json.dumps` takes for a value of a type; objects have no such form."""
    if value is None:
        return None
    if type.name == "struct":
        return {name: to_json(child, value[name]) for name, child in type.children}
    if type.name == "array":
        return [to_json(type.children[0][1], item) for item in value]
    if type.name == "map":
        (_, key), (_, held) = type.children
        return [[to_json(key, k), to_json(held, v)] for k, v in value.items()]
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value.hex() if isinstance(value, bytes) else value


def from_json(type: StateType, value: Any) -> Any:
    """The value of which `to_json` gave this: for the type, or for one that became it since."""
    if value is None:
        return None
    if type.name == "struct":
        return {name: from_json(child, value.get(name)) for name, child in type.children}
    if type.name == "array":
        return [from_json(type.children[0][1], item) for item in value]
    if type.name == "map":
        (_, key), (_, held) = type.children
        return {from_json(key, k): from_json(held, v) for k, v in value}
    if type.name == "decimal":
        return Decimal(value)
    if type.name in ("float", "double"):
        return float(value)
    if type.name == "date":
        return date.fromisoformat(value)
    if type.name in ("timestamp", "timestamp_ntz"):
        return _instant(type.name, value)
    return bytes.fromhex(value) if type.name == "binary" else value


def _instant(name: str, value: str) -> datetime:
    if "T" in value:
        return datetime.fromisoformat(value)
    zone = timezone.utc if name == "timestamp" else None
    return datetime.combine(date.fromisoformat(value), time(), zone)
