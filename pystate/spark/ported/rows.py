"""Rows of Spark's class, made of Arrow batches, and batches made of such rows.

What a processor gets is what Spark's own workers would give it: a struct in a row is a dict, a map
a list of pairs, and a timestamp has the session's time zone. In states and in the keys of timers,
where Spark takes another way, a struct is a `Row`, and a timestamp has no time zone but is local.

Thread safety: immutable, but for `use_quick_rows`.
"""

from __future__ import annotations

import keyword
import sys
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as at
from pyspark.errors import PySparkValueError
from pyspark.sql import Row
from pyspark.sql.types import StructType

from pystate._core import calls, core, ported
from pystate.errors import WrongTypeError
from pystate.operators.runtime.output import OutputColumns, shown
from pystate.operators.runtime.rows import READABLE
from pystate.spark.base.schemas import output_columns
from pystate.types.arrays import datetimes, reference

#: Rows that are turned into Python objects at once.
_PIECE = 16_384


@lru_cache(maxsize=1024)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """A class of Spark's rows with those fields: the names are the class's, not each row's.

    So a row costs no more than its tuple, and a field is found without a search. A row that is
    pickled becomes one of Spark's own class.
    """
    positions: dict[str, int] = {}
    for i, name in enumerate(names):
        positions.setdefault(name, i)
    members: dict[str, Any] = {
        "__slots__": (),
        "__fields__": list(names),
        "__positions__": positions,
        "__other_item__": _other_item,
        "__module__": Row.__module__,
        "__qualname__": "Row",
    }
    # namedtuple's own field descriptors read a slot in C.
    getters = namedtuple("getters", [f"field{i}" for i in range(len(names))])  # type: ignore[misc]
    for name, i in positions.items():
        usable = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
        if usable and not hasattr(tuple, name) and name not in Row.__dict__:
            members[name] = getters.__dict__[f"field{i}"]
    return type("Row", (_Named,), members)


#: Spark's row with the core's way of finding a field.
_Named: Any = calls.named_tuple(Row)


def _other_item(row: Row, item: Any) -> Any:
    """The item if it is neither an int nor a field's name."""
    if isinstance(item, (int, slice)):
        return tuple.__getitem__(row, item)
    raise PySparkValueError(item)


class RowMaker:
    """Makes the rows of batches with the given columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._row = row_class(tuple(names))
        self._width = len(names)

    def source(self, batch: pa.RecordBatch, order: np.ndarray[Any, Any]) -> calls.RowSource:
        """The rows of a batch in another order, whose columns are read piece by piece."""

        def refill(i: int) -> None:
            begin = i - i % _PIECE
            piece = batch.take(pa.array(order[begin : begin + _PIECE]))
            source.fill(begin, list(map(_readable, piece.columns)))

        source = calls.RowSource(self._row, self._width, refill)
        return source


def _readable(array: pa.Array[Any]) -> core.ArrayRef | list[Any]:
    plain = READABLE.get(array.type)
    return arrow_values(array) if plain is None else reference(array, plain)


def arrow_values(array: pa.Array[Any]) -> list[Any]:
    """The values of an array as Spark's workers give them to a processor: years 1 to 9999 only."""
    plain = READABLE.get(array.type)
    if plain is not None:
        return calls.ColumnReader(reference(array, plain)).to_list()
    if not (at.is_timestamp(array.type) and array.type.unit == "us"):
        values: list[Any] = array.to_pylist()
        return values
    try:
        instants = datetimes(array)
    except OverflowError as error:
        raise WrongTypeError(
            f"{error} microseconds since 1970 is no timestamp that Python can hold (years 1 to "
            "9999); filter such rows out"
        ) from None
    if array.type.tz in (None, "UTC"):
        return instants
    zone = pa.lib.string_to_tzinfo(array.type.tz)
    return [None if value is None else value.astimezone(zone) for value in instants]


class Form(Protocol):
    """How rows are given to a processor, and how its output is collected."""

    collected: int
    """So many of what the processor yields are turned into a batch."""
    wanted: str
    """What the processor is to yield, for errors."""

    def keys(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The keys of some rows, of which these are the key columns."""

    def groups(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], ends: Sequence[int]
    ) -> Iterator[Iterator[Any]]:
        """For each key what its processor gets, with its `num_rows`.

        The next key's is asked for after its call.
        """


class RowForm:
    """Rows as `Row` objects, as in `transformWithState`."""

    # Rows of Spark's class that are not taken apart are four objects each: many of them keep the
    # garbage collector busy.
    collected = 4096
    wanted = "yield rows, each of them a Row with names, or return a list of them"

    def keys(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The keys of some rows, of which these are the key columns."""
        return zip(*map(arrow_values, rows.columns), strict=True)

    def groups(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], ends: Sequence[int]
    ) -> Iterator[Iterator[Any]]:
        """An iterator of rows for each key."""
        source = RowMaker(rows.schema.names).source(rows, order)
        begin = 0
        for end in ends:
            own = source.rows(begin, end)
            yield own
            # A processor that has kept it gets no more of it.
            own.stop()
            begin = end


class RowOutput(OutputColumns):
    """The declared output of a processor that yields rows, converted as Spark converts them.

    A field is taken by its name: one that the schema does not have is dropped, and one that the row
    does not have is null.
    """

    @classmethod
    def of(cls, schema: StructType, owner: str) -> RowOutput:
        """The output with these columns."""
        columns = output_columns(schema, owner)
        fields = zip(columns.schema, columns.required, strict=True)
        wanted = pa.schema([field.with_nullable(not required) for field, required in fields])
        return cls(wanted, owner, columns.ddl)

    def collector(self) -> calls.Emitted:
        """What rows are collected in: those that name exactly the columns are taken apart."""
        return calls.Emitted(self._codes, Row, [sys.intern(name) for name in self.names])

    def from_rows(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Turn rows that a processor yielded into a batch."""
        if not rows:
            return self.empty()
        names = list(self.names)
        try:
            # Those of `Row("a", "b")(1, 2)` are a Row.
            fields = [tuple(row.__fields__) for row in rows]
        except AttributeError:
            self._refuse(rows)
        if set(fields) != {self.names}:
            rows = [tuple(_by_name(row, names)) for row in rows]
        else:
            rows = list(map(tuple, rows))
        arrays = [self._array(i, [row[i] for row in rows]) for i in range(len(names))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _made(self, index: int, values: Sequence[Any]) -> pa.Array[Any]:
        arrow_type = self.schema.field(index).type
        if at.is_nested(arrow_type):
            values = list(map(as_dicts, values))
        array: pa.Array[Any] = pa.array(values, type=arrow_type)
        return array

    def _refuse(self, rows: Iterable[Any]) -> None:
        wrong = next(row for row in rows if not hasattr(row, "__fields__"))
        raise WrongTypeError(
            f"{self.owner} yielded {shown(wrong)} of type {type(wrong).__qualname__}: a processor "
            f"yields rows with names, Row({', '.join(f'{name}=...' for name in self.names)})"
        )


def _by_name(row: Row, names: Sequence[str]) -> Iterator[Any]:
    return map(dict(zip(row.__fields__, tuple(row), strict=False)).get, names)


def as_dicts(value: Any) -> Any:
    """A value with dicts in place of rows, as `Row.asDict(True)` makes them."""
    if isinstance(value, Row):
        return value.asDict(True) if hasattr(value, "__fields__") else tuple(value)
    if type(value) is list:
        return list(map(as_dicts, value))
    if type(value) is dict:
        return {key: as_dicts(each) for key, each in value.items()}
    return value


def use_quick_rows() -> None:
    """Make Spark's `Row(name=value, ...)` in one step of the core, in workers that run a processor.

    A processor makes a row for each row that it yields, and Spark's class does so in Python: two
    calls, two lists and a check of each attribute that is set, which takes longer than all the rest
    that the operator does for a row. The rows are the same. Outside of tasks, as in tests, the
    class is the caller's own. Called by the worker's one thread that runs tasks.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        use_quick_rows_of(Row)


def use_quick_rows_of(kind: Any) -> bool:
    """The same for a class of rows; return False, and change nothing, if it is not Spark's."""
    slow = kind.__dict__.get("__new__")
    if not isinstance(slow, staticmethod) or not ported.set_quick_rows(kind, True):
        return False
    if not _same(kind, slow.__func__):
        ported.set_quick_rows(kind, False)
        return False
    return True


def _same(kind: Any, slow: Any) -> bool:
    """Whether both make the same: also of a later version of Spark, whose rows may be others."""
    given = {"b": 1, "a": None}
    rows = [kind(**given), slow(kind, **given)]
    facts = [(type(row), tuple(row), vars(row), type(row.__fields__)) for row in rows]
    return facts[0] == facts[1] == (kind, (1, None), {"__fields__": ["b", "a"]}, list)
