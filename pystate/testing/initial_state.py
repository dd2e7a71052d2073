"""The state that a harness begins with, out of tables.

Thread safety: a function without state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from pystate.base.arguments import shown
from pystate.errors import WrongTypeError
from pystate.processor.state_writer import check_columns
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.range_rows import put_rows, put_timers
from pystate.testing.range_tables import RangeTables
from pystate.types.ddl import path_parts
from pystate.types.keys import leaf, marked_struct

__all__ = ["as_table", "begin_with_state"]


def as_table(given: Any, what: str) -> pa.Table:
    """Rows as a table.

    Raises
    ------
    WrongTypeError
        It cannot be made into one.
    """
    try:
        return given if isinstance(given, pa.Table) else pa.table(given)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise WrongTypeError(
            f"{what} is a pyarrow.Table, a pandas DataFrame, or a dict of columns, not "
            f"{shown(given)}: {error}"
        ) from error


def _with_key_columns(table: pa.Table, operator: OperatorSpec) -> pa.Table:
    """The table with the key's columns in place of structs; a mark that is left out is null."""
    structs = set()
    for name, _ in operator.key:
        if name in table.column_names:
            continue
        struct = marked_struct(name)
        first = path_parts(struct or name)[0]
        if first in table.column_names:
            table = table.append_column(name, leaf(table, name))
            structs.add(first)
        elif struct is not None:
            table = table.append_column(name, pa.nulls(len(table), pa.bool_()))
    return table.drop_columns([*structs])


def begin_with_state(ranges: RangeTables, operator: OperatorSpec, state: Any, timers: Any) -> None:
    """Put states and timers into tables, as an epoch of its own.

    Parameters
    ----------
    ranges : RangeTables
        The tables, which are empty.
    operator : OperatorSpec
        The operator.
    state : Table, or what `pyarrow.table` takes, or None
        A row per key, with some or all of the states.
    timers : Table, or what `pyarrow.table` takes, or None
        A row per timer.

    Raises
    ------
    InvalidArgumentError
        A column is missing or unknown.
    WrongTypeError
        A column has another type than its state.
    """
    with ranges.epoch(lambda: None):
        for given, of_timers in ((state, False), (timers, True)):
            if given is None:
                continue
            what = f"operator {operator.uid!r}: initial_{'timers' if of_timers else 'state'}"
            table = _with_key_columns(as_table(given, what), operator)
            kept = {name: d for name, d in operator.states.items() if name in table.column_names}
            some = replace(operator, states=kept)
            table = table.select(check_columns(some, table.column_names, timers=of_timers))
            for batch in table.combine_chunks().to_batches():
                columns = [batch.column(name) for name, _ in operator.key]
                for share, part in zip(ranges, ranges.parts(batch, columns), strict=True):
                    if part is None:
                        continue
                    rows = pa.Table.from_batches([part])
                    if of_timers:
                        put_timers(share.backend, rows)
                    else:
                        put_rows(share.backend, rows, list(kept))
