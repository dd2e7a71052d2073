"""Windows of which the rows are kept, not aggregates.

The operators are the same, over `RowColumns` in place of `Columns`.

Immutable and picklable; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pystate.operators.windows.assigners import Session
from pystate.operators.windows.columns import ROWS, Columns
from pystate.operators.windows.row_lists import KeptRows, RowColumns
from pystate.operators.windows.specification import (
    OPEN,
    OPEN_TYPE,
    WindowOptions,
    WindowSpec,
    in_local_times,
    time_type_of,
)
from pystate.state.aggregating import AggregatingState
from pystate.state.aggregators import Count
from pystate.state.declaration import State
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend

#: The state of the rows of an operator with one input.
INPUT = "window.input"


@dataclass(frozen=True)
class WindowRowsSpec(WindowSpec):
    """Windows with their rows; it is pickled and sent to the workers.

    Attributes
    ----------
    inputs : tuple of KeptRows
        The rows of each input.
    """

    inputs: tuple[KeptRows, ...] = ()

    @classmethod
    def of_rows(
        cls, options: WindowOptions, key: Sequence[str], schema: pa.Schema, owner: str
    ) -> WindowRowsSpec:
        """Windows over rows of one input.

        Parameters
        ----------
        options : WindowOptions
            The windows.
        key : sequence of str
            The key columns.
        schema : pyarrow.Schema
            The input's columns.
        owner : str
            What errors name.

        Raises
        ------
        InvalidArgumentError, WrongTypeError, DeclarationError
            A column does not exist, or is of a type that cannot be used so, or be kept.
        """
        time_type = time_type_of(options, schema, owner)
        if options.event_time is not None:
            options = in_local_times(options, schema.field(options.event_time).type)
        kept = [(field.name, field.type) for field in schema if field.name not in key]
        return cls(options, tuple(key), (), 0, time_type, (KeptRows.of(INPUT, kept, owner),))

    @property
    def runs(self) -> bool:
        """Rows are never summed up."""
        return False

    def states(self) -> dict[str, State[Any]]:
        """The states, in the order of the table's columns."""
        states: dict[str, State[Any]] = {ROWS: AggregatingState(Count(), "long")}
        for each in self.inputs:
            states |= each.states()
        if isinstance(self.options.windows, Session):
            states[OPEN] = ValueState(OPEN_TYPE)
        return states

    def kept(self, backend: KeyedStateBackend, owner: str) -> Columns:
        """The rows in a backend."""
        return RowColumns(self.inputs, backend, owner)
