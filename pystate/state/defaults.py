"""Declared defaults in rows of state: what a function sees where nothing is stored.

A default is filled into the rows that are read, and never into state. A column that may have got
one says so in its metadata, so that rows which are read and written again store no defaults: what
is equal to the default becomes absent, which is the same to every function.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.state.declaration import State
from pystate.types.equality import Flags, present, same_rows

#: In the metadata of a column: the default, as a checkpoint keeps it.
DEFAULT = "pystate.default"


def default_columns(
    states: Mapping[str, State[Any]], defaults: Mapping[str, str]
) -> dict[str, pa.Array[Any]]:
    """The defaults of those states that have one, each as a column of one row."""
    return {
        name: state.default_column(defaults[name], name)
        for name, state in states.items()
        if name in defaults
    }


def mark_default(field: pa.Field[Any], text: str | None) -> pa.Field[Any]:
    """A state's column with the note that it has this default where nothing is stored."""
    return field if text is None else field.with_metadata({DEFAULT: text})


def default_of(field: pa.Field[Any]) -> str | None:
    """What `mark_default` has noted."""
    text = (field.metadata or {}).get(DEFAULT.encode())
    return None if text is None else text.decode()


def fill_defaults(
    rows: pa.RecordBatch, defaults: Mapping[str, pa.Array[Any]], exist: Flags | None = None
) -> pa.RecordBatch:
    """Give the rows of keys that exist, by default all, the defaults of what they do not have."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for name, default in defaults.items():
        column = columns[name]
        if column.null_count:
            absent = np.asarray(column.is_null())
            columns[name] = _replace_rows(
                column, absent if exist is None else absent & exist, default
            )
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)


def without_defaults(
    columns: Mapping[str, Any], defaults: Mapping[str, pa.Array[Any]]
) -> dict[str, Any]:
    """The inverse of `fill_defaults`, for the columns of an operator's states.

    A row that would have no state at all keeps its values: it was read because it has some.
    """
    kept = {name: present(column) for name, column in columns.items()}
    equal = {}
    for name, default in defaults.items():
        column = columns[name]
        try:
            same = default.cast(column.type).take(np.zeros(len(column), np.int64))
        except pa.ArrowException:  # the default is no value of that type
            continue
        equal[name] = kept[name] & same_rows(column, same)
        kept[name] = kept[name] & ~equal[name]
    exists = np.logical_or.reduce(list(kept.values()))
    rest = dict(columns)
    for name, flags in equal.items():
        nothing: pa.Array[Any] = pa.array([None], rest[name].type)
        rest[name] = _replace_rows(rest[name], flags & exists, nothing)
    return rest


def _replace_rows(column: Any, where: Flags, value: pa.Array[Any]) -> Any:
    """A column with another value in some rows."""
    places = np.where(where, len(column), np.arange(len(column)))
    return pa.concat_arrays([column, value]).take(pa.array(places))
