"""An epoch's state as tables for a SQL engine, which are read only when a statement names them.

A table is a dataset of pyarrow, which is what engines know how to ask: they hand it the columns
that they need and the filter that rows must pass. Where the filter gives the key, keys are looked
up; else all rows are read. Either way the filter is applied to each batch.

Thread safety: the names are immutable; a table's rows may be read in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from pystate.errors import DeclarationError, QueryError
from pystate.processor.selection import EVERYTHING, Selection
from pystate.query.connection import View
from pystate.query.sql.filters import compared_columns, wanted_keys
from pystate.state.kinds import stored_state
from pystate.state.list import ListState
from pystate.state.map import MapState

#: The table of the epochs, and what follows an operator's uid for the table of its timers.
EPOCHS, _TIMERS = "epochs", "timers"


@dataclass(frozen=True)
class TableName:
    """What a table has: an operator's rows, the elements of one of its states, or its timers."""

    name: str
    uid: str | None
    """None for the table of the epochs."""
    selection: Selection = EVERYTHING

    @property
    def holds(self) -> str:
        """What its rows are, for a list of tables."""
        if self.uid is None:
            return "the retained epochs"
        if self.selection.timers:
            return f"the timers of {self.uid!r}"
        if self.selection.explode:
            return f"the elements of state {self.selection.state!r} of {self.uid!r}"
        return f"the state of {self.uid!r}, a row per key"


def table_names(view: View) -> dict[str, TableName]:
    """The tables of an epoch by name.

    A uid is the name of a table, whatever else would have that name.
    """
    found = [TableName(uid, uid) for uid in view.uids]
    for uid in view.uids:
        operator = view.operator(uid)
        if operator.timers:
            found.append(TableName(f"{uid}__{_TIMERS}", uid, Selection(timers=True)))
        for state, spelling in operator.state_schema:
            with suppress(DeclarationError):  # of a later version
                if isinstance(stored_state(uid, state, spelling), (ListState, MapState)):
                    selection = Selection(state=state, explode=True)
                    found.append(TableName(f"{uid}__{state}", uid, selection))
    found.append(TableName(EPOCHS, None))
    # The first one of a name has it.
    tables = {table.name: table for table in reversed(found)}
    return dict(sorted(tables.items(), key=lambda item: (item[1].uid is None, item[0])))


class Watch:
    """What one statement's tables and its caller tell each other while it runs."""

    def __init__(self) -> None:
        self.stopped = ""
        """Why nothing more is to be read."""
        self.error: BaseException | None = None
        """What a table could not read: the engine only says that there was an error."""

    def over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, until nothing more is to be read."""
        while not self.stopped:
            try:
                rows = next(batches, None)
            except BaseException as error:
                self.error = error
                raise
            if rows is None:
                return
            yield rows
        raise InterruptedError(self.stopped)


class StateTable(ds.Dataset):
    """The rows of a table, as a SQL engine asks for them."""

    def __init__(self, view: View, table: TableName, epochs: Callable[[], pa.Table], watch: Watch):
        # The base has no part in it: its own constructor makes nothing.
        self._view, self._table, self._watch = view, table, watch
        self._epochs = epochs() if table.uid is None else None
        self._key = 0 if table.uid is None else len(view.operator(table.uid).key_schema)
        stored = self._stored_schema()
        self._states = frozenset(stored.names[self._key :]) & self._all_states()
        """Columns that are read only if they are asked for."""
        self._stored = stored.names
        told = told_apart(stored.names, fold=str.lower)
        self._schema = pa.schema(map(pa.Field.with_name, stored, told))

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(self, columns: Any = None, filter: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """What gives some columns of the rows that pass a filter."""
        names = self._schema.names if columns is None else list(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        return _Scanner(schema, lambda: self._watch.over(self._read(names, schema, filter)))

    def _read(self, names: list[str], schema: pa.Schema, passing: Any) -> Iterator[pa.RecordBatch]:
        keys, compared = None, frozenset[str]()
        if passing is not None:
            if self._key:
                keys = wanted_keys(passing, pa.schema(list(self._schema)[: self._key]))
            compared = compared_columns(passing, self._schema.names)
        read, only = [], set()
        for column, stored_name in zip(self._schema, self._stored, strict=True):
            if stored_name not in self._states:
                read.append(column)
            elif column.name in compared or column.name in names:
                read.append(column)
                only.add(stored_name)
        read_schema = pa.schema(read)
        for stored in self._batches(frozenset(only), keys):
            rows = pa.RecordBatch.from_arrays(stored.columns, schema=read_schema)
            if passing is None:
                yield pa.RecordBatch.from_arrays([rows.column(n) for n in names], schema=schema)
                continue
            passed = pa.Table.from_batches([rows]).filter(passing).select(names)
            yield from passed.to_batches()

    def _batches(
        self, only: frozenset[str], keys: list[pa.Array[Any]] | None
    ) -> Iterator[pa.RecordBatch]:
        """All rows, or those of some keys, with only some of the states."""
        table = self._table
        if table.uid is None:
            assert self._epochs is not None
            return iter(self._epochs.to_batches())
        if keys is not None and not len(keys[0]):
            return iter(())
        selection = table.selection
        if only != self._states:
            selection = replace(selection, only=only)
        return self._view.rows(table.uid, selection, keys=keys)

    def _stored_schema(self) -> pa.Schema:
        table = self._table
        if table.uid is None:
            assert self._epochs is not None
            return self._epochs.schema
        if table.selection is EVERYTHING:
            return self._view.lookup(table.uid).schema
        return self._view.scan(table.uid, table.selection).schema

    def _all_states(self) -> frozenset[str]:
        if self._table.uid is None or self._table.selection is not EVERYTHING:
            return frozenset()
        return frozenset(name for name, _ in self._view.operator(self._table.uid).state_schema)


@dataclass(frozen=True)
class _Scanner:
    """What an engine asks for rows: once."""

    projected_schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.read())


def told_apart(names: list[str], *, fold: Callable[[str], str] = str) -> list[str]:
    """Names each of which is there once, as `fold` sees them: `n`, `n_1`."""
    taken, given = set(map(fold, names)), set[str]()
    apart = []
    for name in names:
        unique, count = name, 0
        while fold(unique) in given or (count and fold(unique) in taken):
            count += 1
            unique = f"{name}_{count}"
        given.add(fold(unique))
        apart.append(unique)
    return apart


def named_in_any_case(name: str, tables: Mapping[str, TableName]) -> TableName | None:
    """The table that a statement means; SQL does not see the case of names."""
    if name in tables:
        return tables[name]
    alike = [known for known in tables if known.lower() == name.lower()]
    if len(alike) > 1:
        raise QueryError(
            f"sql: which table is {name!r}? There are {', '.join(map(repr, alike))}: write it as "
            'one of them, in double quotes: "..."'
        )
    return tables[alike[0]] if alike else None
