"""The output of an operator: its declared columns, and the conversion of rows and batches to them.

If an Arrow batch differs from the declared schema, Spark's error names neither the column nor the
type. Here every column is cast, or refused with its name and both types.

Thread safety: all objects are immutable.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from pystate._core import calls
from pystate.base.arguments import NO_INSTANT, duplicates, shortened, text
from pystate.base.arguments import shown as described
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    PystateError,
    WrongTypeError,
)
from pystate.operators.runtime.rows import READABLE
from pystate.types.arrays import as_floats
from pystate.types.nested import NestedCodec
from pystate.types.state_type import TypeLike, is_spark_type, parse_type

#: Columns: ``"tailnum string, legs long not null"``, types by name, or an Arrow schema.
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SchemaLike: TypeAlias = "str | Mapping[str, TypeLike] | pa.Schema | StructType"
#: In an error, the place of the row that it is about.
_PLACE = "_row"
_COLUMN = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s*:\s*|\s+)(.+?)(\s+not\s+null)?\s*", re.I | re.S
)
#: Rows that are emitted one by one are collected up to this number, and then output as a batch.
OUTPUT_ROWS = 16_384
#: Takes a tag and a piece of that side output.
Side: TypeAlias = Callable[[str, Any], None]
#: The exceptions that a value may raise that does not fit its column.
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)
_NUMBERS = (int, float, np.number)
_FRACTIONS = (float, np.floating, Decimal)
#: Rows of exactly these types have no names.
BY_PLACE = frozenset([tuple, list])
_AS_IT_IS = (-1,)


class Output(Protocol):
    """Converts yielded rows; `OutputColumns` and `RowsAsYielded` implement it."""

    def collector(self) -> calls.Emitted:
        """What rows are collected in until `pieces` outputs them."""

    def pieces(self, emitted: calls.Emitted) -> Iterator[Any]:
        """Pieces of output from collected rows, which are taken."""

    def from_rows(self, rows: list[Any]) -> Any:
        """One piece of output from rows."""

    def from_value(self, value: object) -> list[Any]:
        """Pieces of output from a value that a vectorised function yielded."""


class OutputColumns:
    """The declared result of an operator, and the conversion of values to its types.

    Nulls are refused in a column that is not nullable. Messages name the owner, e.g. ``"operator
    'aircraft'"``, and types by `ddl` or else as Arrow does.
    """

    def __init__(self, schema: pa.Schema, owner: str, ddl: Sequence[str] | None = None) -> None:
        self.owner = owner
        self.required = tuple(not field.nullable for field in schema)
        self.names = tuple(schema.names)
        self.ddl = tuple(map(str, schema.types)) if ddl is None else tuple(ddl)
        self.schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        self._nested = tuple(NestedColumn.of(field.name, field.type) for field in schema)
        plain = map(READABLE.get, schema.types)
        #: The types of the columns that are made in the core, as long as values fit exactly.
        self._codes = [0 if type_ is None else type_.code for type_ in plain]

    def collector(self) -> calls.Emitted:
        """What rows are collected in until `pieces` outputs them."""
        return calls.Emitted(self._codes)

    def pieces(self, emitted: calls.Emitted) -> Iterator[pa.RecordBatch]:
        """Batches of collected rows, which are taken; raises what `from_rows` does.

        Its errors name the key whose row it was.
        """
        taken = 0
        for part in emitted.take():
            with _named_key(emitted, taken):
                if isinstance(part, list):
                    taken += len(part)
                    batch = self.from_rows(part)
                else:
                    rows, columns = part
                    taken += rows
                    arrays = [self._collected(i, rows, column) for i, column in enumerate(columns)]
                    batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            yield batch

    def _collected(self, index: int, rows: int, column: Any) -> pa.Array[Any]:
        if isinstance(column, list):
            return self._array(index, column)
        nulls, validity, values, offsets = column
        parts = [validity, values] if offsets is None else [validity, offsets, values]
        buffers = [None if part is None else pa.py_buffer(part) for part in parts]
        kind = self.schema.field(index).type
        return self._checked(index, pa.Array.from_buffers(kind, rows, buffers, nulls))

    def from_rows(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Turn rows that a function yielded into a batch.

        The values of a `Row`, a mapping or a named tuple are taken by name, those of a tuple or
        list by position. A row that is none of these, has other names or another number of values,
        or a value that its column cannot hold, is a WrongTypeError that names the column, the value
        and both types.
        """
        kinds = set(map(type, rows))
        if kinds - BY_PLACE:
            rows = self._ordered(rows)
            self._require_tuples(rows)
        if set(map(len, rows)) - {len(self.names)}:
            place = next(i for i, row in enumerate(rows) if len(row) != len(self.names))
            wrong = rows[place]
            raise _of_row(
                f"{self.owner} yielded {len(wrong)} values, {shown(wrong)}; its schema has "
                f"{len(self.names)} columns: {', '.join(self.names)}",
                place,
            )
        if not rows:
            return self.empty()
        if kinds != {tuple}:
            rows = list(map(tuple, rows))
        # zip(*rows) would make an iterator per row, and Python's garbage collector would visit
        # each.
        arrays = [self._array(i, [row[i] for row in rows]) for i in range(len(self.names))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _ordered(self, rows: Sequence[Any]) -> list[Any]:
        try:
            return list(in_order(rows, self.names, self.owner))
        except WrongTypeError:
            for place, row in enumerate(rows):
                try:
                    list(in_order([row], self.names, self.owner))
                except WrongTypeError as error:
                    raise _of_row(str(error), place) from None
            raise

    def _require_tuples(self, rows: Sequence[Any]) -> None:
        for place, row in enumerate(rows):
            if not isinstance(row, (tuple, list)):
                raise _of_row(
                    f"{self.owner} yielded {shown(row)}: yield a tuple with a value for each of "
                    f"{', '.join(self.names)}; or a Row, dict or named tuple of these names",
                    place,
                )

    def empty(self) -> pa.RecordBatch:
        """A batch without rows."""
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self.schema], schema=self.schema
        )

    def from_value(self, value: object) -> list[pa.RecordBatch]:
        """Turn a value that a vectorised function yielded into batches of the declared types.

        It is a batch, a table, or a mapping from column name to array; columns are matched by name.
        """
        if isinstance(value, pa.RecordBatch):
            return [self._cast_batch(value)]
        table = _table(value, self.owner)
        return [self._cast_batch(batch) for batch in table.combine_chunks().to_batches()]

    def _array(self, index: int, values: Sequence[Any]) -> pa.Array[Any]:
        try:
            array = self._made(index, values)
        except _MISFITS as error:
            misfit = self._misfit(index, values)
            got, reason, place = misfit or ("values of several types", error, None)
            raise _of_row(
                f"{self.owner}: column {self.names[index]!r} is declared {self.ddl[index]} and "
                f"got {got}: {reason}",
                place,
            ) from None
        return self._checked(index, array)

    def _made(self, index: int, values: Sequence[Any]) -> pa.Array[Any]:
        nested = self._nested[index]
        if nested is not None:
            return nested.array(values)
        return _exact_array(values, self.schema.field(index).type)

    def _misfit(self, index: int, values: Sequence[Any]) -> tuple[str, Exception, int] | None:
        """The first value that by itself does not fit, the reason, and its place."""
        for place, value in enumerate(values):
            try:
                self._made(index, [value])
            except _MISFITS as error:
                return f"{shown(value)} of type {type(value).__qualname__}", error, place
        return None

    def _cast_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self.schema) and not any(self.required):
            return batch
        if sorted(batch.schema.names) != sorted(self.names):
            raise WrongTypeError(
                f"{self.owner} yielded columns {', '.join(batch.schema.names)}; its schema has "
                f"{', '.join(self.names)}"
            )
        arrays = [
            self._checked(i, self._cast(i, batch.column(name))) for i, name in enumerate(self.names)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _cast(self, index: int, array: pa.Array[Any]) -> pa.Array[Any]:
        wanted = self.schema.field(index).type
        if array.type == wanted:
            return array
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        reason: object = "it would lose or change values"
        if castable(array.type, wanted):
            try:
                return _cast(array, wanted)
            except (pa.ArrowException, OverflowError) as error:
                reason = error
        raise WrongTypeError(
            f"{self.owner}: column {self.names[index]!r} is declared {self.ddl[index]} and got "
            f"Arrow type {array.type}, which is not cast: {reason}"
        )

    def _checked(self, index: int, array: pa.Array[Any]) -> pa.Array[Any]:
        if self.required[index] and array.null_count:
            raise _of_row(
                f"{self.owner}: column {self.names[index]!r} is declared not null and got a null",
                array.is_null().to_pylist().index(True),
            )
        return array


def _of_row(message: str, row: int | None) -> WrongTypeError:
    """An error about a row, whose place among those that were given it remembers."""
    error = WrongTypeError(message)
    vars(error)[_PLACE] = row
    return error


def place_of(error: WrongTypeError) -> int | None:
    """Which of some rows an error is about, if it is known."""
    place: int | None = vars(error).get(_PLACE)
    return place


@contextmanager
def _named_key(emitted: calls.Emitted, taken: int) -> Iterator[None]:
    """Let an error about a row name its key; `taken` rows came before those of the block."""
    try:
        yield
    except WrongTypeError as error:
        row = place_of(error)
        key = None if row is None else emitted.key_of(taken + row)
        if key is None:
            raise
        raise WrongTypeError(f"{error}; yielded for key {shown(key)}") from None


def parse_columns(schema: SchemaLike, owner: str) -> OutputColumns:
    """Read declared columns without Spark.

    They are DDL such as ``"tailnum string, legs long not null"``; types by column name; an Arrow
    schema, whose columns may have any type; or a Spark schema.
    """
    ddl: list[str] | None = None
    if isinstance(schema, str):
        schema, ddl = _parse_ddl(schema, owner)
    elif isinstance(schema, Mapping):
        types = {n: parse_type(t, f"{owner}: column {n!r}") for n, t in schema.items()}
        schema, ddl = (
            pa.schema([(n, t.arrow) for n, t in types.items()]),
            [*map(str, types.values())],
        )
    elif is_spark_type(schema) and hasattr(schema, "fields"):
        schema, ddl = _of_spark(schema, owner)
    if not isinstance(schema, pa.Schema):
        raise InvalidArgumentError(
            f"{owner}: columns are DDL such as 'key string, n long', types by name, or a schema of "
            f"pyarrow or pyspark, not {schema!r:.80}"
        )
    names = [name.lower() for name in schema.names]
    twice = sorted(duplicates(names))
    if twice:
        raise InvalidArgumentError(f"{owner}: schema names {', '.join(twice)} more than once")
    return OutputColumns(schema, owner, ddl)


def parse_sides(
    declared: Sequence[str] | Mapping[str, SchemaLike], owner: str
) -> dict[str, Output]:
    """Read declared side outputs: tags whose rows are not converted, or columns by tag."""
    if isinstance(declared, (str, bytes)) or not isinstance(declared, Iterable):
        raise InvalidArgumentError(
            f"{owner}: side_outputs is a list of tags, or a dict of their columns, not "
            f"{described(declared)}"
        )
    for tag in declared:
        text(tag, f"{owner}: side_outputs: a tag")
    if not isinstance(declared, Mapping):
        return {tag: RowsAsYielded(owner=f"{owner}, side output {tag!r}") for tag in declared}
    return {
        tag: parse_columns(schema, f"{owner}, side output {tag!r}")
        for tag, schema in declared.items()
    }


def _parse_ddl(text: str, owner: str) -> tuple[pa.Schema, list[str]]:
    fields, ddl = [], []
    for part in _split(text):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise InvalidArgumentError(
                f"{owner}: schema {text!r:.200} does not parse at {part.strip()!r:.80}: write "
                "name type, name type"
            )
        name = match[2] or match[1].replace("``", "`")
        parsed = parse_type(match[3], f"{owner}: column {name!r}")
        fields.append(pa.field(name, parsed.arrow, nullable=match[4] is None))
        ddl.append(parsed.ddl)
    return pa.schema(fields), ddl


def _of_spark(schema: Any, owner: str) -> tuple[pa.Schema, list[str]]:
    types = [parse_type(f.dataType, f"{owner}: column {f.name!r}") for f in schema.fields]
    fields = [
        pa.field(field.name, parsed.arrow, nullable=field.nullable)
        for field, parsed in zip(schema.fields, types, strict=True)
    ]
    return pa.schema(fields), [parsed.ddl for parsed in types]


def _split(text: str) -> list[str]:
    """The parts between the commas that are not inside brackets or backticks."""
    parts, depth, quoted, begin = [], 0, False, 0
    for i, char in enumerate(text):
        if char == "`":
            quoted = not quoted
        elif not quoted:
            depth += (char in "<(") - (char in ">)")
            if char == "," and depth == 0:
                parts.append(text[begin:i])
                begin = i + 1
    return [*parts, text[begin:]]


class RowsAsYielded:
    """Passes on the Python objects that a function yields, if they match the columns of `check`."""

    def __init__(self, check: OutputColumns | None = None, owner: str = "the function") -> None:
        self._check = check
        self._owner = owner

    def collector(self) -> calls.Emitted:
        """What rows are collected in until `pieces` outputs them."""
        return calls.Emitted(None)

    def pieces(self, emitted: calls.Emitted) -> Iterator[list[Any]]:
        """Collected rows, which are taken."""
        taken = 0
        for part in emitted.take():
            assert isinstance(part, list), "nothing is taken apart"
            with _named_key(emitted, taken):
                rows = self.from_rows(part)
            taken += len(part)
            yield rows

    def from_rows(self, rows: list[Any]) -> list[Any]:
        """The rows themselves."""
        if self._check is not None and rows:
            self._check.from_rows(rows)
        return rows

    def from_value(self, value: object) -> list[Any]:
        """The batches of a vectorised function, unchanged."""
        if self._check is not None:
            return self._check.from_value(value)
        if not isinstance(value, pa.RecordBatch):
            _table(value, self._owner)
        return [value]


class SideOutputs:
    """Collects rows for side outputs until they fill a batch.

    `is_batch` tells which values are batches. `describe` says of a row's emitter, which is handed
    in with it, who has emitted it; see `emitted_by`. `late_tag` is that of late rows, if they are
    written aside.
    """

    def __init__(
        self,
        outputs: Mapping[str, Output],
        side: Side | None,
        owner: str,
        is_batch: Callable[[Any], bool],
        describe: Callable[[Any, bool], str | None],
        late_tag: str | None = None,
    ) -> None:
        if side is None and (outputs or late_tag is not None):
            raise InvalidArgumentError(f"{owner} has side outputs and nowhere to go")
        self._outputs = outputs
        self._side = side or _nowhere
        self._owner = owner
        self._is_batch = is_batch
        self._describe = describe
        self._rows: dict[str, list[Any]] = {tag: [] for tag in outputs}
        self._emitters: dict[str, list[Any]] = {tag: [] for tag in outputs}

    def output(self, tag: str, row: Any, emitter: Any = None) -> None:
        """Take a row or a batch."""
        rows = self._rows.get(tag)
        if rows is None:
            known = ", ".join(map(repr, self._rows)) or "none"
            raise InvalidArgumentError(
                f"{self._owner}: no side output {tag!r:.80} is declared; declared: {known}"
            )
        if self._is_batch(row):
            with emitted_by([emitter], self._describe):
                pieces = self._outputs[tag].from_value(row)
            for piece in pieces:
                self._side(tag, piece)
            return
        rows.append(row)
        self._emitters[tag].append(emitter)
        if len(rows) >= OUTPUT_ROWS:
            self._flush(tag)

    def late(self, tag: str, rows: pa.RecordBatch) -> None:
        """Output late rows, with the columns that are declared for the tag, if there are any."""
        declared = self._outputs.get(tag)
        for piece in [rows] if declared is None else declared.from_value(rows):
            self._side(tag, piece)

    def flush(self) -> None:
        """Output all that is left."""
        for tag in self._rows:
            self._flush(tag)

    def _flush(self, tag: str) -> None:
        rows, emitters = self._rows[tag], self._emitters[tag]
        if rows:
            self._rows[tag], self._emitters[tag] = [], []
            with emitted_by(emitters, self._describe):
                piece = self._outputs[tag].from_rows(rows)
            self._side(tag, piece)


@contextmanager
def emitted_by(
    emitters: Sequence[Any], describe: Callable[[Any, bool], str | None]
) -> Iterator[None]:
    """Let an error about one of some rows say who has emitted it.

    `describe` takes the row's emitter, and whether it is known to be that row's; it returns what
    follows on "emitted", or None to add nothing.
    """
    try:
        yield
    except WrongTypeError as error:
        place = 0 if len(emitters) == 1 else place_of(error)
        by = describe(emitters[-1 if place is None else place], place is not None)
        if by is None:
            raise
        raise WrongTypeError(f"{error}; emitted{by}") from None


def written_at(called: object) -> str:
    """Where a function is written, in brackets; nothing if that is not known."""
    code = getattr(called, "__code__", None)
    return "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"


def _nowhere(tag: str, piece: Any) -> None:
    raise AssertionError(f"nothing is declared for {tag!r}")


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps the meaning; a safe cast then checks whether it keeps each value.

    Numbers are cast to numbers and text to text; numbers and text are never cast to each other.
    """
    if source == target or at.is_null(source):
        return True
    if at.is_nested(source):
        return _nested_castable(source, target)
    families = (_is_number, _is_text, _is_bytes, _is_day_or_instant)
    return any(member(source) and member(target) for member in families)


def _nested_castable(source: Any, target: Any) -> bool:
    if type(source) is not type(target):
        return False
    if at.is_struct(source):
        given = {source.field(i).name: source.field(i).type for i in range(source.num_fields)}
        wanted = [target.field(i) for i in range(target.num_fields)]
        return all(f.name not in given or castable(given[f.name], f.type) for f in wanted)
    if at.is_map(source):
        return castable(source.key_type, target.key_type) and castable(
            source.item_type, target.item_type
        )
    return at.is_union(source) or castable(source.value_type, target.value_type)


def _is_number(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_integer(arrow_type) or at.is_floating(arrow_type) or at.is_decimal(arrow_type)
    )


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_string(arrow_type) or at.is_large_string(arrow_type) or at.is_string_view(arrow_type)
    )


def _is_bytes(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_binary(arrow_type)
        or at.is_large_binary(arrow_type)
        or at.is_fixed_size_binary(arrow_type)
        or at.is_binary_view(arrow_type)
    )


def _is_day_or_instant(arrow_type: pa.DataType) -> bool:
    return bool(at.is_date(arrow_type) or at.is_timestamp(arrow_type))


#: Python types that Arrow would accept for these columns, although a batch of them is refused.
_REFUSED: dict[type, Callable[[pa.DataType], bool]] = {
    bool: lambda t: bool(at.is_floating(t) or at.is_decimal(t)),
    str: _is_bytes,
    bytes: _is_text,
}


def _exact_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array[Any]:
    """An array of the values, for types where `pyarrow.array` would round, truncate or guess.

    `pyarrow.array` truncates floats to integers and datetimes to dates, and takes a datetime
    without a time zone as UTC. `NestedColumn` handles nested types.
    """
    kinds = set(map(type, values)) - {type(None)}
    if at.is_integer(arrow_type) and not all(map(_is_integer, kinds)):
        values = [_whole(value, arrow_type) for value in values]
    for kind, refused in _REFUSED.items():
        if any(issubclass(given, kind) for given in kinds) and refused(arrow_type):
            raise TypeError(f"{kind.__name__} is not taken for {arrow_type}")
    if at.is_temporal(arrow_type) and any(issubclass(given, _NUMBERS) for given in kinds):
        raise TypeError(
            "a number is no instant: milliseconds since 1970 become a datetime with "
            "datetime.fromtimestamp(ms / 1000, timezone.utc)"
        )
    if at.is_date(arrow_type) and any(issubclass(kind, datetime.datetime) for kind in kinds):
        raise TypeError("a datetime is no date: take its date()")
    if at.is_timestamp(arrow_type):
        for value in values:
            if isinstance(value, datetime.datetime) and (value.tzinfo is None) != (
                arrow_type.tz is None
            ):
                raise TypeError(
                    "drop the time zone, or declare timestamp"
                    if arrow_type.tz is None
                    else f"{NO_INSTANT}, or declare timestamp_ntz"
                )
    array: pa.Array[Any] = pa.array(values, type=arrow_type)
    if at.is_float32(arrow_type):
        return as_floats(array, pa.array(values, type=pa.float64()))
    return array


def _is_integer(kind: type) -> bool:
    # A duration of numpy's is one of its integers.
    return issubclass(kind, (int, np.integer)) and not issubclass(kind, (bool, np.timedelta64))


def _whole(value: Any, arrow_type: pa.DataType) -> Any:
    """A value of a column of integers, which is taken or refused by itself.

    Arrow would decide by the other values, too: it infers one type for all of them.
    """
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, _FRACTIONS):
        whole = int(value)
        if whole == value:
            return whole
        raise ValueError("it is no whole number")
    if value is None or _is_integer(type(value)):
        return value
    raise TypeError(f"{type(value).__name__} is not cast to {arrow_type}")


def _cast(array: pa.Array[Any], arrow_type: pa.DataType) -> pa.Array[Any]:
    cast: pa.Array[Any] = pc.cast(array, arrow_type, safe=True)
    # For floats only, a safe cast does not check the range.
    narrowed = at.is_float32(arrow_type) and at.is_float64(array.type)
    return as_floats(cast, array) if narrowed else cast


def _table(value: object, owner: str) -> pa.Table:
    if isinstance(value, pa.Table):
        return value
    if not isinstance(value, Mapping):
        raise WrongTypeError(
            f"{owner} yielded {shown(value)}: yield a pyarrow RecordBatch, a Table, or a "
            "dict of arrays"
        )
    try:
        return pa.table({str(name): column for name, column in value.items()})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise WrongTypeError(
            f"{owner} got {shown(value)}: a dict is a batch, with an array of the same length for "
            f"each column; a row is a tuple ({error})"
        ) from None


# -- rows with names


def names_of(row: object) -> tuple[Any, ...] | None:
    """The names of a row's values; None if they only have positions.

    A mapping, a named tuple, and a `Row` of Spark or of pystate have names.
    """
    if isinstance(row, Mapping):
        return tuple(row)
    if isinstance(row, tuple):
        # Spark stores the names on the row; a row without names is a tuple to Spark, too.
        names = getattr(type(row), "_fields", None) or getattr(row, "__fields__", None)
        return None if names is None else tuple(names)
    return None


def in_order(rows: Iterable[Any], names: tuple[str, ...], owner: str) -> Iterator[Any]:
    """Rows with a value for each of `names`: reordered by name if they have names, else unchanged.

    A row that has names, but not exactly these, is a WrongTypeError.
    """
    for row in rows:
        given = None if type(row) in BY_PLACE else names_of(row)
        if given is None:
            yield row
            continue
        places = _places(given, names)
        if places is None:
            _refuse(row, given, names, owner)
        values = tuple(row.values()) if isinstance(row, Mapping) else row
        yield values if places == _AS_IT_IS else tuple([values[i] for i in places])


@lru_cache(maxsize=256)
def _places(given: tuple[Any, ...], names: tuple[str, ...]) -> tuple[int, ...] | None:
    """The position of each name's value; None if the names are not the same."""
    if given == names:
        return _AS_IT_IS
    if len(given) != len(names) or set(given) != set(names):
        return None
    places = {name: place for place, name in enumerate(given)}
    return tuple(places[name] for name in names)


def _refuse(row: Any, given: Sequence[Any], names: Sequence[str], owner: str) -> NoReturn:
    twice, mine, theirs = duplicates(given), set(given), set(names)
    unknown = [name for name in given if name not in theirs]
    missing = [name for name in names if name not in mine]
    wrong = [
        f"{what} {', '.join(map(repr, bad))}"
        for what, bad in (
            ("has no", missing),
            ("has an unknown", unknown),
            ("has twice", twice),
        )
        if bad
    ]
    raise WrongTypeError(
        f"{owner} yielded {shown(row)}, which {' and '.join(wrong)}: a row with names has exactly "
        f"those of the schema, {', '.join(names)}; a tuple goes by position"
    )


def shown(value: object) -> str:
    """A value in one line of a message."""
    return shortened(repr(value).replace("\n", " "))


# -- nested columns


class NestedColumn:
    """Makes arrays of one nested type, under the same rules as states.

    Arrow itself would take a named tuple by position, truncate floats inside to integers, and
    accept a datetime without a time zone as UTC and a number as an instant. So each value is
    converted to the bytes that a state would keep, and back: a map's entries come out in the order
    of its keys. That takes 1.2 to 2 times as long as `pyarrow.array` for dicts and lists, and up to
    8 times for structs as tuples. A field of the type that is not nullable refuses nulls.
    """

    def __init__(self, name: str, arrow_type: pa.DataType, codec: NestedCodec) -> None:
        self._arrow_type = arrow_type
        self._codec = codec
        self._label = f"state {name!r}"

    @classmethod
    def of(cls, name: str, arrow_type: pa.DataType) -> NestedColumn | None:
        """Make it for a column; None if the type is not nested, or unknown to states."""
        if not at.is_nested(arrow_type):
            return None
        try:
            return cls(name, arrow_type, NestedCodec(arrow_type, name))
        except DeclarationError:
            return None

    def array(self, values: Sequence[Any]) -> pa.Array[Any]:
        """An array of the values; the error about one begins with the field's path."""
        try:
            encoded = self._codec.encode_array(values)
        except PystateError as error:
            raise WrongTypeError(self._reason(str(error))) from None
        return _as_declared(self._codec.decode_array(encoded), self._arrow_type, "")

    def _reason(self, message: str) -> str:
        """The part of a state's error after the state's name and type."""
        message = message.removeprefix(self._label).removeprefix(f" is {self._codec.type.ddl}")
        return message.removeprefix(": ").removesuffix("; nothing was written")


def _as_declared(array: Any, wanted: Any, path: str) -> pa.Array[Any]:
    """The array with the declared names and nullability of its fields."""
    kind = array.type
    if kind.equals(wanted):
        return array  # type: ignore[no-any-return]
    if at.is_struct(kind) and at.is_struct(wanted):
        fields = [wanted.field(i) for i in range(wanted.num_fields)]
        children = [
            _child(array.field(i), field, f"{path}.{field.name}", array.is_valid())
            for i, field in enumerate(fields)
        ]
    elif at.is_map(kind) and at.is_map(wanted):
        pairs = [
            _child(array.keys, wanted.key_field, f"{path}.key"),
            _child(array.items, wanted.item_field, f"{path}.value"),
        ]
        entries = pa.struct([wanted.key_field, wanted.item_field])
        children = [pa.Array.from_buffers(entries, len(pairs[0]), [None], 0, children=pairs)]
    elif at.is_list(kind) and at.is_list(wanted):
        children = [_child(array.values, wanted.value_field, f"{path}[]")]
    else:
        # Large strings and large lists, and lists of a fixed size.
        cast: pa.Array[Any] = pc.cast(array, wanted)
        return cast
    own = array.buffers()[: 1 if at.is_struct(kind) else 2]
    return pa.Array.from_buffers(wanted, len(array), own, array.null_count, children=children)


def _child(
    array: pa.Array[Any], field: Any, path: str, parents: pa.Array[Any] | None = None
) -> pa.Array[Any]:
    if not field.nullable and array.null_count:
        nulls: Any = array.is_null()
        # The fields of a null struct are null, too.
        if parents is None or pc.any(pc.call_function("and", [nulls, parents])).as_py():
            raise WrongTypeError(
                f"field {path.removeprefix('.')} is declared not null and got a null"
            )
    return _as_declared(array, field.type, path)
