"""Rows as a test writes them, turned into the record batches that an operator sees.

Thread safety: an `InputRows` belongs to one harness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from pystate.base.arguments import nearest, shown
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.output import OutputColumns, SchemaLike, names_of, parse_columns
from pystate.types.keys import KeyColumns, leaves, parse_key
from pystate.types.state_type import parse_type

_OWNER = "the harness's input"
_HINT = "the first rows decide what columns there are and of what types, unless columns= says it"


class InputRows:
    """Turns rows, all of which have the key columns, into batches of one schema.

    By default the columns are those of the first rows; one that held only nulls so far gets its
    type later.
    """

    def __init__(self, key: Sequence[str], columns: SchemaLike | None = None) -> None:
        self._key = key
        #: As far as they are known; assigning an earlier value undoes what was learned since.
        self.columns = None if columns is None else parse_columns(columns, _OWNER)
        self._are_declared = columns is not None

    @property
    def schema(self) -> pa.Schema | None:
        """The columns, as far as they are known."""
        return None if self.columns is None else self.columns.schema

    @property
    def declared(self) -> pa.Schema:
        """The columns, which were given."""
        assert self.columns is not None
        return self.columns.schema

    def batch(self, rows: Any) -> pa.RecordBatch | None:
        """One batch of all rows; None if there are none.

        Tuples are named tuples, or are taken by position if the columns are known. A column that a
        mapping leaves out is null, except for key columns, which it must have.
        """
        if type(rows).__module__.split(".")[0] == "pandas" and hasattr(rows, "columns"):
            rows = pa.Table.from_pandas(rows, preserve_index=False)
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, pa.Table):
            return self._of_table(rows)
        if isinstance(rows, Mapping):
            rows = [rows]
        if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
            raise InvalidArgumentError(
                f"{_OWNER} is rows: dicts, tuples, a pyarrow RecordBatch or Table, or a pandas "
                f"DataFrame, not {rows!r:.80}"
            )
        rows = list(rows)
        return self._of_rows(rows) if rows else None

    def _of_table(self, table: pa.Table) -> pa.RecordBatch | None:
        if self.columns is None:
            self.columns = OutputColumns(table.schema.remove_metadata(), f"{_OWNER} ({_HINT})")
        self._check(table.schema.names)
        self._refine(lambda name: table.schema.field(name).type)
        if not table.num_rows:
            return None
        [batch] = self.columns.from_value(table.select(list(self.columns.names)))
        return batch

    def _of_rows(self, rows: Sequence[Any]) -> pa.RecordBatch:
        if self.columns is None:
            names = list(dict.fromkeys(name for row in rows for name in self._names(row)))
            nulls = pa.schema([(name, pa.null()) for name in names])
            self.columns = OutputColumns(nulls, f"{_OWNER} ({_HINT})")
        columns = self.columns
        tuples = [self._tuple(row, columns.names) for row in rows]
        self._refine(lambda name: _inferred([t[columns.names.index(name)] for t in tuples]))
        return self.columns.from_rows(tuples)

    def _names(self, row: Any) -> Iterable[str]:
        names = names_of(row)
        if names is None:
            raise InvalidArgumentError(
                f"{_OWNER}: {row!r:.80} does not say which value is which column: write dicts or "
                "named tuples, or give the harness columns='key string, n long'"
            )
        return names

    def _tuple(self, row: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        its_names = names_of(row)
        if its_names is not None:
            values = row.values() if isinstance(row, Mapping) else row
            given = dict(zip(its_names, values, strict=True))
            if not given.keys() <= set(names):
                self._check(given)
            for name in self._key:
                if name not in given and name in names:
                    raise InvalidArgumentError(
                        f"{_OWNER}: {row!r:.80} lacks the key column {name!r}; of a row whose key "
                        f"is null write {{{name!r}: None}}"
                    )
            return tuple(given.get(name) for name in names)
        if not isinstance(row, (tuple, list)) or len(row) != len(names):
            raise InvalidArgumentError(
                f"{_OWNER}: {row!r:.80} is no row of {len(names)} columns: {', '.join(names)}"
            )
        return tuple(row)

    def _check(self, names: Iterable[str]) -> None:
        assert self.columns is not None
        names = list(names)
        if sorted(names) != sorted(self.columns.names):
            why = "" if self._are_declared else f"; {_HINT}"
            raise InvalidArgumentError(
                f"{_OWNER} has the columns {', '.join(map(str, names))}, not "
                f"{', '.join(self.columns.names)}{why}"
            )

    def _refine(self, type_of: Any) -> None:
        """Give types to columns that held only nulls."""
        columns = self.columns
        assert columns is not None
        if any(map(at.is_null, columns.schema.types)):
            fields = [
                (f.name, type_of(f.name) if at.is_null(f.type) else f.type) for f in columns.schema
            ]
            self.columns = OutputColumns(pa.schema(fields), columns.owner)


def _inferred(values: Sequence[Any]) -> pa.DataType:
    try:
        type_: pa.DataType = pa.array(values).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{_OWNER}: no one type for {list(values)!r:.80}: {error}; give the harness columns="
        ) from error
    # An instant's time zone is only a way to write it.
    if at.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp("us", "UTC")
    return type_


def as_table(given: Any, what: str) -> pa.Table:
    """Rows as a table; `what` names them if they cannot be made into one."""
    try:
        return given if isinstance(given, pa.Table) else pa.table(given)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise WrongTypeError(
            f"{what} is a pyarrow.Table, a pandas DataFrame, or a dict of columns, not "
            f"{shown(given)}: {error}"
        ) from error


def key_of(schema: pa.Schema, names: Iterable[str]) -> KeyColumns:
    """The key columns of rows with this schema, all of which must be there, with their types."""
    columns = []
    for name in names:
        if name not in schema.names:
            raise InvalidArgumentError(
                f"key column {name!r} is not among {', '.join(schema.names)}"
                f"{nearest(name, schema.names)}"
            )
        kind = schema.field(name).type
        if at.is_null(kind):
            raise InvalidArgumentError(
                f"key column {name!r} holds only nulls so far: say its type, "
                f"key={{{name!r}: 'string'}}"
            )
        columns += leaves(name, parse_type(kind, f"key column {name!r}"))
    return parse_key(columns)
