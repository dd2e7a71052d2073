"""Rows in a folder per value, as Hive lays them out: ``day=2026-01-01/country=DE/``.

A folder's name is text, and readers guess the type of the value in it: the string ``"007"`` is read
as 7. So the output's folder keeps the types, in ``_layout.json``, for `ParquetSink.read`.

Thread safety: functions and types without state.

Invariants
----------
1. A value, or a type, that cannot be read back from the names is refused before it is published.
2. All epochs of a folder have one layout: readers could not read them together otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.spark.base.frame_columns import FrameColumns, column_named
from pystate.spark.base.schemas import names_twice
from pystate.spark.sinks.folders import is_hidden, read_note, save_note

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


#: The columns of a layout, outermost first: (name, type in DDL).
Layout = tuple[tuple[str, str], ...]

_FILE = "_layout.json"
#: What Hive writes for null, and Spark also for an empty string.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_REFUSAL = re.compile(r"pystate cannot lay out '(\d+)'")
#: Types whose values have the same text in every session that writes or reads them.
_TYPES = (
    st.StringType,
    st.BooleanType,
    st.ByteType,
    st.ShortType,
    st.IntegerType,
    st.LongType,
    st.DateType,
    st.DecimalType,
)


class Partitioning:
    """The columns that determine the folders of an output."""

    def __init__(self, columns: Any, owner: str) -> None:
        names = (columns,) if isinstance(columns, str) else columns
        if not isinstance(names, Sequence) or isinstance(names, (bytes, bytearray)):
            raise InvalidArgumentError(
                f"{owner}: partition_by is the name of a column, or a list of them, not "
                f"{shown(columns)}"
            )
        for name in names:
            if not isinstance(name, str) or not name:
                raise InvalidArgumentError(
                    f"{owner}: partition_by has {shown(name)}, which is not the name of a column"
                )
            if is_hidden(f"{name}="):
                raise InvalidArgumentError(
                    f"{owner}: partition_by={name!r}: folders whose names begin with a dot are "
                    "hidden from who reads the output; rename the column"
                )
        twice = names_twice(names)
        if twice:
            raise InvalidArgumentError(
                f"{owner}: partition_by names {', '.join(twice)} more than once"
            )
        self.columns: tuple[str, ...] = tuple(names)
        self._owner = owner

    def layout(self, frame: DataFrame) -> Layout:
        """The layout of a frame."""
        columns = FrameColumns(frame, self._owner)
        layout = []
        for name in self.columns:
            path = columns.find(name, "partition_by")
            if len(path.parts) > 1:
                raise InvalidArgumentError(
                    f"{self._owner}: partition_by={name!r} is a field of a struct: make it a "
                    f"column first, df.withColumn({path.parts[-1]!r}, df[{name!r}])"
                )
            ddl = path.data_type.simpleString()
            collated = isinstance(path.data_type, st.StringType) and ddl != "string"
            if collated or not isinstance(path.data_type, _TYPES):
                raise WrongTypeError(
                    f"{self._owner}: partition_by={name!r} is {ddl}: the name of a folder gives "
                    "back strings, whole numbers, booleans, dates and decimals only; make such a "
                    "column of it, for example with date_format or to_date"
                )
            layout.append((path.parts[0], ddl))
        if layout and len(layout) == len(frame.columns):
            raise InvalidArgumentError(
                f"{self._owner}: partition_by names all columns, and none is left for the files"
            )
        return tuple(layout)

    def with_checked_values(self, frame: DataFrame, layout: Layout) -> DataFrame:
        """The frame, which fails if a value's folder would be read as another value."""
        for i, (name, ddl) in enumerate(layout):
            if ddl == "string":
                column = column_named(name)
                lost = column.isin("", _NULL)
                refuse = F.raise_error(f"pystate cannot lay out '{i}'")
                frame = frame.withColumn(name, F.when(lost, refuse).otherwise(column))
        return frame

    def refusal(self, error: Exception, layout: Layout) -> InvalidArgumentError | None:
        """Return the error to raise if `with_checked_values` has made a write fail."""
        match = _REFUSAL.search(str(error))
        if match is None:
            return None
        name = layout[int(match[1])][0]
        return InvalidArgumentError(
            f"{self._owner}: partition_by={name!r}: a row has '' (or {_NULL!r}) there, and whoever "
            f"reads the output would find null; write null if that is meant, F.nullif('{name}', "
            "F.lit('')), or another word"
        )


def read_layout(root: str) -> Layout | None:
    """The layout of an output's folder; None if there is no layout file."""
    try:
        columns = read_note(os.path.join(root, _FILE), "partition_by")
    except FileNotFoundError:
        return None
    return tuple((str(name), str(ddl)) for name, ddl in columns)


def save_layout(root: str, layout: Layout) -> None:
    """Store the layout of an output's folder durably."""
    if read_layout(root) != layout:
        save_note(os.path.join(root, _FILE), "partition_by", layout)


def with_types(schema: st.StructType, layout: Layout) -> st.StructType:
    """A schema with the types of a layout instead of those that a reader has guessed."""
    types = dict(layout)
    return st.StructType(
        [
            st.StructField(field.name, _parse_type(types[field.name]))
            if field.name in types
            else field
            for field in schema.fields
        ]
    )


def _parse_type(ddl: str) -> st.DataType:
    struct = st.StructType.fromDDL(f"x {ddl}")
    assert isinstance(struct, st.StructType)
    return struct.fields[0].dataType
