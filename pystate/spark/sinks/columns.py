"""The columns of an output's folder, which those of each epoch must fit.

Readers read all epochs together, with one type for each column. So the folder keeps the columns of
all its epochs, in ``_columns.json``: each with the type that it has in all of them. A later epoch
may have more columns, or lack some; where an epoch has no such column, its rows have null there.

Thread safety: functions without state.

Invariants
----------
1. What does not fit is refused before it is published.
2. The note is written before the first epoch that it describes is visible, and so never has less
   than the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import types as st

from pystate.errors import InvalidArgumentError
from pystate.spark.sinks.folders import data_files, read_note, save_note

_FILE = "_columns.json"
#: Where a file of Spark has its schema.
ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
#: What says of a type only whether there may be nulls, or nothing that readers look at.
_INSIGNIFICANT = ("nullable", "containsNull", "valueContainsNull", "metadata")


def as_columns(schema: st.StructType, without: Iterable[str] = ()) -> st.StructType:
    """The columns as readers see them: all may be null, and none has metadata."""
    left_out = {name.lower() for name in without}
    return st.StructType(
        [
            st.StructField(field.name, field.dataType)
            for field in schema.fields
            if field.name.lower() not in left_out
        ]
    )


def read_columns(root: str) -> st.StructType | None:
    """The columns of an output's folder by its note; None if it has none."""
    try:
        content = read_note(os.path.join(root, _FILE), "columns")
    except FileNotFoundError:
        return None
    return st.StructType.fromJson(content)


def save_columns(root: str, content: Any) -> None:
    """Store the columns of an output's folder durably; `content` is a schema's JSON."""
    if read_columns(root) != st.StructType.fromJson(content):
        save_note(os.path.join(root, _FILE), "columns", content)


def fit_columns(stored: st.StructType | None, given: st.StructType, owner: str) -> st.StructType:
    """The columns of a folder that has the `stored` ones, after an epoch with those `given`."""
    if stored is None:
        return given
    known = {field.name.lower(): field for field in stored.fields}
    added = []
    for field in given.fields:
        before = known.get(field.name.lower())
        if before is None:
            added.append(field)
        elif before.name != field.name:
            raise InvalidArgumentError(
                f"{owner}: column {field.name!r} was called {before.name!r} in earlier epochs, and "
                "readers would take only one of them: keep to that spelling, "
                f"df.withColumnRenamed({field.name!r}, {before.name!r}), or use another folder"
            )
        elif _kind(before.dataType) != _kind(field.dataType):
            old, new = before.dataType.simpleString(), field.dataType.simpleString()
            raise InvalidArgumentError(
                f"{owner}: column {field.name!r} is {new:.300}, and in earlier epochs it was "
                f"{old:.300}: nobody could read both together; cast it to that type, give the "
                "column another name, or use another folder"
            )
    return st.StructType([*stored.fields, *added]) if added else stored


def _kind(data_type: st.DataType) -> object:
    """A type but for its nullability."""
    return _strip(data_type.jsonValue())


def _strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _strip(item) for name, item in value.items() if name not in _INSIGNIFICANT}
    return [_strip(item) for item in value] if isinstance(value, list) else value


def columns_of_file(path: str) -> st.StructType:
    """The columns of a Parquet file."""
    from pyarrow.parquet import read_schema
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = read_schema(path)
    of_spark = (schema.metadata or {}).get(ROW_METADATA)
    if of_spark is not None:
        return as_columns(st.StructType.fromJson(json.loads(of_spark)))
    return as_columns(from_arrow_schema(schema, prefer_timestamp_ntz=True))


def columns_of_files(folders: Sequence[str], levels: int) -> st.StructType | None:
    """The columns of the epochs of a folder without a note, from a file of each."""
    together: st.StructType | None = None
    for folder in folders:
        files = data_files(folder, levels)
        if not files:
            continue
        columns = columns_of_file(os.path.join(folder, files[0][0]))
        try:
            together = fit_columns(together, columns, folder)
        except InvalidArgumentError:
            # They do not fit already; what comes next is to fit the newest ones.
            together = columns
    return together
