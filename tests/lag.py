"""An operation on rows that nothing but this file knows: each row with the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import pystate as ps
from pystate.checkpoint.refs import INPUT
from pystate.operators.runtime.row_operator import (
    Added,
    Columns,
    RowInput,
    RowOperation,
    RowOperator,
    RowSpec,
    columns_of,
)
from pystate.operators.runtime.task import TaskContext
from pystate.state.declaration import State


@dataclass(frozen=True)
class Lag(RowOperation):
    """Adds the value that a column had in the row of the key before."""

    column: str

    method = "lag"

    def spec(self, rows: RowInput) -> LagSpec:
        what = f"{rows.owner}: lag"
        [name] = rows.find(self.column, "lag: column")
        columns = rows.stored_columns(what)
        return LagSpec(rows.key, name, columns, rows.event_time, rows.late)


@dataclass(frozen=True)
class LagSpec(RowSpec):
    key: tuple[str, ...]
    column: str
    columns: Columns
    event_time: str | None
    late: str

    def states(self) -> Mapping[str, State[Any]]:
        return {"last": ps.ValueState(dict(self.columns)[self.column].ddl)}

    def make(self) -> RowOperator:
        return LagRows(self)

    @property
    def added(self) -> tuple[Added]:
        return (Added("before", dict(self.columns)[self.column]),)


class LagRows(RowOperator):
    _spec: LagSpec

    def open(self, task: TaskContext) -> None:
        super().open(task)
        self._last = self._backend.register("last", self._spec.states()["last"])

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        spec, rows = self._spec, self.on_time(rows)
        if not rows.num_rows:
            return
        given = columns_of(rows, spec.key)
        keys = self._backend.keys(given)
        own, last, before = rows.column(spec.column), {}, []
        stored = self._last.values(keys).to_pylist()
        for key, old, value in zip(
            keys.first_rows().tolist(), stored, own.to_pylist(), strict=True
        ):
            before.append(last.get(key, old))
            last[key] = value
        self._last.update_all(keys, own)
        names = [name for name, _ in spec.columns]
        arrays = [*given, *map(rows.column, names), pa.array(before, own.type)]
        yield pa.RecordBatch.from_arrays(arrays, names=[*spec.key, *names, "before"])
