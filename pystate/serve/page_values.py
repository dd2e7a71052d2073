"""Keys and values as the page shows them: JSON of bounded size, and keys out of what was typed.

JSON has one kind of number and no bytes, and a list of a state may have millions of items. So what
JSON cannot say, or a page cannot show, is an object with one telling name: ``{"number": "184..."}``
for a number that JavaScript would round, ``{"bytes": "00ff", "size": 2}``, ``{"time": "2026-11-28
..."}``, ``{"items": [...], "more": 90}``, ``{"entries": [[key, value], ...], "more": 0}``,
``{"fields": [[name, value], ...]}``, ``{"text": "...", "more": 900}``.

Thread safety: functions without state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from pystate.base.arguments import shown
from pystate.errors import WrongTypeError
from pystate.types.keys import KeyColumns, null_marks
from pystate.types.state_type import StateType

#: JavaScript's numbers are exact up to here.
_EXACT = 1 << 53
_MOST_ITEMS = 100
_MOST_TEXT = 2000
_MOST_BYTES = 256
_DEEPEST = 8
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def shown_rows(rows: pa.Table | pa.RecordBatch, columns: Iterable[str] | None = None) -> list[Any]:
    """Each row as a list of values for the page, in the order of the columns.

    Without names they are all columns; two of them may have one name.
    """
    chosen: list[Any] = rows.columns if columns is None else [rows.column(n) for n in columns]
    values = [[shown_value(value) for value in column] for column in chosen]
    return [list(row) for row in zip(*values, strict=True)]


def shown_value(value: Any, depth: int = 0) -> Any:
    """An Arrow scalar as JSON of bounded size."""
    if not value.is_valid:
        return None
    type_ = value.type
    if isinstance(value, (pa.ExtensionScalar, pa.DictionaryScalar)):
        return shown_value(value.value, depth)
    if pa.types.is_map(type_):
        return _collection("entries", value.values, depth)
    if pa.types.is_struct(type_):
        names = [type_.field(i).name for i in range(type_.num_fields)]
        parts = [shown_value(value[i], depth + 1) for i in range(len(names))]
        return {"fields": [list(pair) for pair in zip(names, parts, strict=True)]}
    if isinstance(value, pa.ListScalar):  # of any kind of list
        return _collection("items", value.values, depth)
    return _plain(value, type_)


def _collection(name: str, values: Any, depth: int) -> dict[str, Any]:
    """A list's items or a map's entries, of which the first ones are shown."""
    most = _MOST_ITEMS if depth < _DEEPEST else 0
    some = [] if values is None else values[:most]
    count = 0 if values is None else len(values)
    if name == "entries":
        kept = [[shown_value(each[0], depth + 1), shown_value(each[1], depth + 1)] for each in some]
    else:
        kept = [shown_value(each, depth + 1) for each in some]
    return {name: kept, "more": count - len(kept)}


def _plain(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_boolean(type_):
        return value.as_py()
    if pa.types.is_integer(type_):
        number = value.as_py()
        return number if abs(number) <= _EXACT else {"number": str(number)}
    if pa.types.is_floating(type_):
        number = value.as_py()
        return number if math.isfinite(number) else {"number": str(number)}
    if pa.types.is_decimal(type_):
        return {"number": str(value.as_py())}
    if pa.types.is_date(type_) or pa.types.is_time(type_) or pa.types.is_timestamp(type_):
        return {"time": value.cast(pa.string()).as_py()}
    data = value.as_py()
    if isinstance(data, bytes):
        return {"bytes": data[:_MOST_BYTES].hex(), "size": len(data)}
    text = str(data)  # also of what only SQL has, such as intervals
    if len(text) <= _MOST_TEXT:
        return text
    return {"text": text[:_MOST_TEXT], "more": len(text) - _MOST_TEXT}


def typed_key(key: KeyColumns, texts: Sequence[Any]) -> list[pa.Array[Any]]:
    """The columns of one key, from what was typed for each: text, or None for null.

    Marks of null structs are left out, as `shown_key` does. `WrongTypeError` names the column whose
    text is none of its type.
    """
    columns = asked_columns(key)
    if len(texts) != len(columns):
        names = ", ".join(name for name, _ in columns)
        raise WrongTypeError(
            f"the key has {len(columns)} columns ({names}), and {len(texts)} values came: give one "
            "for each"
        )
    return [_typed(name, type_, text) for (name, type_), text in zip(columns, texts, strict=True)]


def asked_columns(key: KeyColumns) -> list[tuple[str, StateType]]:
    """The columns of a key that somebody gives."""
    marks = null_marks(key)
    return [column for i, column in enumerate(key) if i not in marks]


def _typed(name: str, type_: StateType, text: Any) -> pa.Array[Any]:
    wanted = type_.arrow
    value = None
    if text is not None and not isinstance(text, str):
        raise WrongTypeError(f"key column {name!r}: a text or null is asked for, not {shown(text)}")
    try:
        if text is not None:
            value = _value(wanted, text)
        column: pa.Array[Any] = pa.array([value], wanted)
        return column
    except (pa.ArrowException, ValueError, InvalidOperation, OverflowError) as error:
        raise WrongTypeError(
            f"key column {name!r} is {type_.ddl}, and {shown(text)} is none{_form(wanted)}"
        ) from error


def _value(wanted: pa.DataType, text: str) -> Any:
    if pa.types.is_string(wanted):
        return text
    if pa.types.is_binary(wanted):
        return bytes.fromhex(text)
    text = text.strip()
    if pa.types.is_boolean(wanted):
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(text)
        return text.lower() in _TRUE
    if pa.types.is_decimal(wanted):
        return Decimal(text)
    if pa.types.is_integer(wanted):
        return int(text)
    if pa.types.is_floating(wanted):
        return float(text)
    if pa.types.is_timestamp(wanted) and text.endswith("Z"):
        text = text[:-1] + "+00:00"
    scalar: Any = pa.scalar(text)
    if pa.types.is_timestamp(wanted) and wanted.tz is not None and not _has_zone(text):
        text += "+00:00"
        scalar = pa.scalar(text)
    return scalar.cast(wanted).as_py()


def _has_zone(text: str) -> bool:
    return "+" in text or "-" in text[10:]


def _form(wanted: pa.DataType) -> str:
    if pa.types.is_binary(wanted):
        return ": give its bytes as hexadecimal digits, 00ff"
    if pa.types.is_date(wanted):
        return ": write 2026-11-28"
    if pa.types.is_timestamp(wanted):
        return ": write 2026-11-28 09:30:00, with Z or +01:00 at its end, or in UTC"
    return ""


def key_text(value: Any) -> str | None:
    """What to type for a key column's value, as `typed_key` takes it."""
    if not value.is_valid:
        return None
    if pa.types.is_binary(value.type):
        return bytes(value.as_py()).hex()
    if pa.types.is_boolean(value.type):
        return "true" if value.as_py() else "false"
    if pa.types.is_temporal(value.type) or pa.types.is_string(value.type):
        return str(value.cast(pa.string()).as_py())
    return str(value.as_py())


def key_texts(key: KeyColumns, rows: pa.Table | pa.RecordBatch) -> list[list[str | None]]:
    """For each row what to type for its key."""
    columns = [list(map(key_text, rows.column(name))) for name, _ in asked_columns(key)]
    return [list(row) for row in zip(*columns, strict=True)]
