"""Values as JSON, in which a checkpoint's metadata keeps them.

Thread safety: pure functions.
"""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

from pystate.types.state_type import StateType


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
