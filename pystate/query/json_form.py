"""The JSON form of keys and states: what answers have, and what requests may send.

Each value has one form, which JSON can say and from which the value comes back without loss:

- null, and values of type boolean, string, byte, short and int, are JSON's own;
- a long, and any other whole number, is a number up to 2^53 - 1, as far as JavaScript and many
  parsers count, and a string of digits beyond it, in both directions of zero;
- a float or double is a number; what is none is the string ``"NaN"``, ``"Infinity"`` or
  ``"-Infinity"``;
- a decimal is a string with all of its digits;
- a date is ``"2026-11-20"``; a timestamp is ``"2026-11-20T08:00:00Z"``, and has six digits of a
  second where it has any; a timestamp without a time zone is the same without the Z;
- binary, and an object, which is its pickled bytes, is a string in Base64;
- an array is a list, a struct an object, and a map a list of pairs, since its keys may be of any
  type.

In requests a number may also be given as a string, and a string in Base64 with or without padding.

Thread safety: functions without state.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.types.keys import marked_struct

#: The largest whole number that all parsers of JSON read as it is.
SAFE = (1 << 53) - 1
_NO_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_DATE = re.compile(r"[+-]?\d{4,6}-\d\d-\d\d")
_INSTANT = re.compile(
    r"(?P<day>[+-]?\d{4,6}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
#: A year before year 1 whose digits are fewer than four.
_YEAR = re.compile(r"^-(\d{1,3})(?=-)")
_WHOLE = re.compile(r"[+-]?\d{1,40}")
Values = list[Any]


# -- values to JSON


def rows_of(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """A row per object, by the names of the columns.

    Examples
    --------
    >>> rows_of(pa.table({"key": [2**53, None], "n": [float("nan"), 1.5]}))
    [{'key': '9007199254740992', 'n': 'NaN'}, {'key': None, 'n': 1.5}]
    """
    names = rows.schema.names
    if not names:
        return [{} for _ in range(rows.num_rows)]
    columns = [values_of(column) for column in rows.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def lines_of(rows: pa.RecordBatch) -> bytes:
    """A row per line, each a JSON object."""
    encode = _ENCODER.encode
    return "".join(f"{encode(row)}\n" for row in rows_of(rows)).encode()


def document(value: Any) -> bytes:
    """A JSON document of what is in JSON's form already."""
    return _ENCODER.encode(value).encode()


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def values_of(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> Values:
    """The values of a column in the form that JSON has."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in values_of(chunk)]
    return _writer(column.type)(column)


def _writer(type: pa.DataType) -> Callable[[Any], Values]:
    """What makes the form of columns of a type."""
    types = pa.types
    if types.is_integer(type):
        return _whole_values if type.bit_width == 64 else _own_values
    if types.is_string(type) or types.is_boolean(type) or types.is_large_string(type):
        return _own_values
    if types.is_floating(type):
        return _float_values
    for is_of, write in _WRITERS:
        if is_of(type):
            return write
    return _other_values


def _own_values(column: pa.Array[Any]) -> Values:
    return column.to_pylist()


def _whole_values(column: pa.Array[Any]) -> Values:
    return [v if v is None or -SAFE <= v <= SAFE else str(v) for v in column.to_pylist()]


def _float_values(column: Any) -> Values:
    values = column.to_pylist()
    if column.type.bit_width < 64:  # the digits that tell it from its neighbours, and no more
        values = [v if v is None else float(str(np.float32(v))) for v in values]
    # A value that is none is unequal to itself, or infinite.
    return [v if v is None or v - v == 0 else _no_number(v) for v in values]


def _no_number(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _decimal_values(column: pa.Array[Any]) -> Values:
    return [None if value is None else format(value, "f") for value in column.to_pylist()]


def _binary_values(column: pa.Array[Any]) -> Values:
    return [None if v is None else base64.b64encode(v).decode("ascii") for v in column.to_pylist()]


def _date_values(column: pa.Array[Any]) -> Values:
    days = column.cast(pa.date32()).cast(pa.int32())
    return _texts(days, "D", "")


def _timestamp_values(column: Any) -> Values:
    zone = "" if column.type.tz is None else "Z"
    unit: Any = "ns" if column.type.unit == "ns" else "us"
    counts = column.cast(pa.timestamp(unit, column.type.tz)).cast(pa.int64())
    return _texts(counts, unit, zone)


def _texts(counts: Any, unit: str, zone: str) -> Values:
    """Instants as ISO 8601 has them, of any year."""
    numbers = counts.fill_null(0).to_numpy(zero_copy_only=False).astype("int64")
    texts = np.datetime_as_string(numbers.view(f"datetime64[{unit}]")).tolist()
    nulls = counts.is_null().to_pylist()
    return [
        None if null else _YEAR.sub(_four_digits, re.sub(r"\.0+$", "", text)) + zone
        for text, null in zip(texts, nulls, strict=True)
    ]


def _four_digits(year: re.Match[str]) -> str:
    return f"-{year[1]:0>4}"


def _list_values(column: Any) -> Values:
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    if isinstance(column, pa.MapArray):
        keys = values_of(column.keys.slice(first, last - first))
        items = values_of(column.items.slice(first, last - first))
        values: Values = [[key, item] for key, item in zip(keys, items, strict=True)]
    else:
        values = values_of(column.values.slice(first, last - first))
    nulls = column.is_null().to_pylist()
    return [
        None if null else values[at - first : end - first]
        for null, at, end in zip(nulls, offsets, offsets[1:], strict=False)
    ]


def _struct_values(column: Any) -> Values:
    names = [field.name for field in column.type]
    fields = [values_of(field) for field in column.flatten()]
    nulls = column.is_null().to_pylist()
    rows = zip(*fields, strict=True) if fields else (() for _ in nulls)
    return [
        None if null else dict(zip(names, row, strict=True))
        for null, row in zip(nulls, rows, strict=True)
    ]


def _dictionary_values(column: Any) -> Values:
    return values_of(column.dictionary_decode())


def _extension_values(column: Any) -> Values:
    return values_of(column.storage)


def _other_values(column: pa.Array[Any]) -> Values:
    """What no state is of, but the result of a query may be, as text."""
    return [None if value is None else str(value) for value in column.to_pylist()]


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Values]], ...] = (
    (pa.types.is_timestamp, _timestamp_values),
    (pa.types.is_date, _date_values),
    (pa.types.is_decimal, _decimal_values),
    (pa.types.is_binary, _binary_values),
    (pa.types.is_large_binary, _binary_values),
    (pa.types.is_fixed_size_binary, _binary_values),
    (pa.types.is_struct, _struct_values),
    (pa.types.is_map, _list_values),
    (pa.types.is_list, _list_values),
    (pa.types.is_large_list, _list_values),
    (pa.types.is_fixed_size_list, _list_values),
    (pa.types.is_dictionary, _dictionary_values),
    (lambda type: isinstance(type, pa.ExtensionType), _extension_values),
)


# -- JSON to values


def column_of(values: Sequence[Any], type: pa.DataType, what: str) -> pa.Array[Any]:
    """A column of values in the form of JSON; `WrongTypeError` if one is of another type.

    Examples
    --------
    >>> column_of(["9007199254740993", 7, None], pa.int64(), "key column 'id'").to_pylist()
    [9007199254740993, 7, None]
    """
    read = _reader(type, what)
    plain = [None if value is None else read(value) for value in values]
    try:
        return pa.array(plain, type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise WrongTypeError(f"{what} is of type {type}: {error}") from error


def value_of_text(text: str, type: pa.DataType, what: str) -> Any:
    """The value that a text stands for, in the form of JSON: the text itself where it is one."""
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return text
    quoted = (pa.types.is_binary, pa.types.is_decimal, pa.types.is_temporal)
    if text != "null" and any(is_of(type) for is_of in quoted):
        return text
    if text in _NO_NUMBERS:
        return text
    return parsed(text, what)


def parsed(text: str | bytes, what: str) -> Any:
    """Parse a JSON document; `InvalidArgumentError` if it is none."""
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidArgumentError(f"{what} is not JSON: {said}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON: write it as a string")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _reader(type: pa.DataType, what: str) -> Callable[[Any], Any]:
    """What makes a value of a type from its form."""
    types = pa.types
    for is_of, read in _READERS:
        if is_of(type):
            return lambda value: read(value, type, what)
    if types.is_list(type):
        element = _reader(type.value_type, what)
        return lambda value: [_or_none(element, v) for v in _given(list, value, type, what)]
    if types.is_map(type):
        key, item = _reader(type.key_type, what), _reader(type.item_type, what)
        return lambda value: [
            (key(pair[0]), _or_none(item, pair[1])) for pair in _pairs(value, type, what)
        ]
    if types.is_struct(type):
        fields = {field.name: _reader(field.type, what) for field in type}
        return lambda value: _fields(value, fields, type, what)
    raise WrongTypeError(f"{what} is of type {type}, which has no form in JSON")


def _or_none(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _given(kind: type, value: Any, type: pa.DataType, what: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WrongTypeError(f"{what} is of type {type}, not {shown(value)}")
    return value


def _whole(value: Any, type: pa.DataType, what: str) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= SAFE:
        return int(value)
    number: int = _given(int, value, type, what)
    return number


def _float(value: Any, type: pa.DataType, what: str) -> float:
    if isinstance(value, str):
        if value in _NO_NUMBERS:
            return _NO_NUMBERS[value]
        try:
            return float(value)
        except ValueError:
            raise WrongTypeError(f"{what} is of type {type}, not {shown(value)}") from None
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise WrongTypeError(f"{what} is of type {type}, not {shown(value)}") from None
    number: float = _given(float, value, type, what)
    return number


def _decimal(value: Any, type: pa.DataType, what: str) -> Decimal:
    try:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            number = Decimal(str(value))
            if number.is_finite() and abs(number.adjusted()) < 100:
                return number
    except InvalidOperation:
        pass
    raise WrongTypeError(f"{what} is of type {type}, not {shown(value)}")


def _bytes(value: Any, type: pa.DataType, what: str) -> bytes:
    text = _given(str, value, type, what)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise WrongTypeError(
            f"{what} is of type {type}, of which JSON has Base64, not {shown(value)}: {error}"
        ) from error


def _date(value: Any, type: pa.DataType, what: str) -> int:
    text = _given(str, value, type, what)
    if _DATE.fullmatch(text):
        try:
            return int(np.datetime64(text, "D").astype("int64"))
        except ValueError:
            pass
    raise WrongTypeError(f"{what} is of type date, such as 2026-11-20, not {shown(value)}")


def _timestamp(value: Any, type: Any, what: str) -> int:
    text = _given(str, value, type, what)
    found = _INSTANT.fullmatch(text)
    example = "2026-11-20T08:00:00" + ("" if type.tz is None else "Z")
    wrong = WrongTypeError(f"{what} is a timestamp such as {example}, not {shown(value)}")
    if found is None or (found["zone"] is None) != (type.tz is None):
        raise wrong
    try:
        instant = np.datetime64(f"{found['day']}T{found['time']}", "us")
    except ValueError:
        raise wrong from None
    zone = found["zone"] or "Z"
    offset = 0
    if zone != "Z":
        digits = zone[1:].replace(":", "")
        offset = (int(digits[:2]) * 60 + int(digits[2:])) * (-1 if zone[0] == "-" else 1)
    micros = int(instant.astype("int64")) - offset * 60_000_000
    return micros * 1000 if type.unit == "ns" else micros


def _boolean(value: Any, type: pa.DataType, what: str) -> bool:
    truth: bool = _given(bool, value, type, what)
    return truth


def _text(value: Any, type: pa.DataType, what: str) -> str:
    text: str = _given(str, value, type, what)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WrongTypeError(f"{what}: half of a character is no text: {shown(value)}") from error
    return text


def _pairs(value: Any, type: pa.DataType, what: str) -> list[Any]:
    pairs: list[Any] = _given(list, value, type, what)
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] is None:
            raise WrongTypeError(f"{what}: a map is a list of pairs, not {shown(value)}")
    return pairs


def _fields(
    value: Any, fields: dict[str, Callable[[Any], Any]], type: pa.DataType, what: str
) -> dict[str, Any]:
    given = _given(dict, value, type, what)
    for name in given:
        if name not in fields:
            raise WrongTypeError(f"{what} is of type {type}, which has no field {name!r:.80}")
    return {name: _or_none(read, given.get(name)) for name, read in fields.items()}


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, Any, str], Any]], ...] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _whole),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_string, _text),
    (pa.types.is_large_string, _text),
    (pa.types.is_binary, _bytes),
    (pa.types.is_large_binary, _bytes),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
)


# -- keys


def keys_of(rows: Sequence[Any], schema: pa.Schema) -> list[pa.Array[Any]]:
    """The key columns of keys in the form of JSON: `schema` is theirs.

    A key of one column is its value, or a list of one; a key of several is a list of their values,
    or an object by their names. Columns that say whether a struct is null may be left out.
    """
    columns: list[Values] = [[] for _ in schema]
    marks = {name for name in schema.names if _is_mark(name, schema)}
    for row in rows:
        for column, value in zip(columns, _key_values(row, schema, marks), strict=True):
            column.append(value)
    return [
        column_of(values, field.type, f"key column {field.name!r}")
        for values, field in zip(columns, schema, strict=True)
    ]


def key_of_text(text: str, schema: pa.Schema) -> Any:
    """The key that a text stands for, in the form of JSON: of several columns a list in JSON."""
    if len(schema) == 1:
        return [value_of_text(text, schema.field(0).type, f"key column {schema.names[0]!r}")]
    return parsed(text, f"key {shown(text)}, which has the columns {_columns(schema)},")


def _key_values(row: Any, schema: pa.Schema, marks: set[str]) -> list[Any]:
    names = schema.names
    if isinstance(row, dict):
        if set(names) - marks <= set(row) <= set(names):
            return [row.get(name) for name in names]
    elif isinstance(row, list):
        if len(row) == len(names):
            return row
        if len(row) == len(names) - len(marks):
            rest = iter(row)
            return [None if name in marks else next(rest) for name in names]
    elif len(names) == 1:
        return [row]
    raise WrongTypeError(
        f"a key has the columns {_columns(schema)}: give a list of {len(names)} values, not "
        f"{shown(row)}"
    )


def _is_mark(name: str, schema: pa.Schema) -> bool:
    """Whether a column only tells a null struct from one whose fields are null."""
    return marked_struct(name) is not None and pa.types.is_boolean(schema.field(name).type)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
