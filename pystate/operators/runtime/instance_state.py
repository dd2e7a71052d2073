"""The operator state of one instance: its row in the table of its key-group range.

Whoever runs an instance (a task on Spark, a harness) makes an `InstanceState` in each epoch. If the
number of instances has changed since the last one, it first calls `redistribute` on each of them,
with a table of all old rows. From then on the table has the row of its own instance, and no other.

Thread safety: an `InstanceState` belongs to its table's thread, and to one epoch.

Invariants
----------
1. All instances redistribute in the same epoch, the first one after the change, from the same old
   rows.
2. A redistribution is an ordinary change of the open epoch, which depends only on the old rows and
   the instance: repeated or replayed, it gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pystate.base.arguments import duplicates
from pystate.errors import (
    CheckpointError,
    DeclarationError,
    InvalidArgumentError,
    WrongTypeError,
)
from pystate.operators.runtime.task import TaskContext
from pystate.state.declaration import State
from pystate.state.operator_spec import OperatorSpec
from pystate.state.operator_state import (
    INSTANCE_KEY,
    Instance,
    InstanceRow,
    KeylessState,
    OldRows,
    OperatorListState,
    put_items,
)
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.range_rows import put_rows


def instance_spec(
    uid: str, states: Mapping[str, KeylessState[Any]], max_parallelism: int = 128
) -> OperatorSpec:
    """Return what determines the tables of an operator whose instances have states."""
    return OperatorSpec(
        uid=uid,
        key=INSTANCE_KEY,
        states={name: declaration.kept() for name, declaration in states.items()},
        max_parallelism=max_parallelism,
        instances=True,
    )


def checked_items(
    names: Sequence[str], states: Mapping[str, KeylessState[Any]], what: str
) -> list[str]:
    """Check which states the columns of a beginning, which `what` names, are items of."""
    lists = [name for name, state in states.items() if isinstance(state, OperatorListState)]
    twice = duplicates(names)
    for name in names:
        if name not in lists or name in twice:
            kind = f"is a {type(states[name]).__name__}" if name in states else "is no state"
            kind = "is there twice" if name in lists else kind
            raise InvalidArgumentError(
                f"{what}: the column {name!r} {kind}: each column has the items of a list, an "
                f"item in each row; the function's lists are "
                f"{', '.join(map(repr, lists)) or 'none'}"
            )
    if not names:
        raise InvalidArgumentError(
            f"{what} has no column: name one after each list that begins with items"
        )
    return list(names)


def begin_with_items(
    backend: KeyedStateBackend, instance: Instance, rows: pa.RecordBatch, what: str
) -> None:
    """Append items to the lists that a range begins with; the first epoch divides them.

    The table, made from `instance_spec`, has all key groups of the instance. The rows have a column
    of items for each of some lists; null is no item, and objects are pickled. `what` names them in
    errors.
    """
    key = [pa.array([part], pa.int32()) for part in instance.beginning]
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        items: Any = column.drop_null()
        if not len(items):
            continue
        try:
            if not backend.declarations[name].type.is_object:
                put_items(backend[name], backend.keys(key), items)
                continue
            parts = dict(zip((n for n, _ in INSTANCE_KEY), key, strict=True))
            lists = pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)
            put_rows(backend, pa.table({**parts, name: lists}), [name])
        except WrongTypeError as error:
            raise WrongTypeError(f"{what}: {error}") from error


class InstanceState:
    """The states of an instance in one epoch, in a table made from `instance_spec`.

    `redistributed` says whether they were divided anew, because the number of instances has
    changed.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        instance: Instance,
        states: Mapping[str, KeylessState[Any]],
    ) -> None:
        self.instance = instance
        self.redistributed = False
        self._backend = backend
        self._states = states
        self._own = InstanceRow(
            instance, lambda: self._backend.keys([[part] for part in instance.key])
        )
        self._stored = {n: backend.register(n, d.stored()) for n, d in states.items()}
        self._handles = {n: d.opened(self._stored[n], self._own) for n, d in states.items()}

    @classmethod
    def of_task(cls, task: TaskContext, states: Mapping[str, KeylessState[Any]]) -> InstanceState:
        """The state of a task's instance, open; redistributed, if it is to be."""
        state = cls(task.backend, task.instance, states)
        if task.old is not None:
            with task.old() as old:
                state.redistribute(old)
        state.open()
        return state

    def open(self) -> None:
        """Make the instance's row current, so that the handles can be used.

        Rows of other instances, which were not redistributed, are a CheckpointError.
        """
        rows = _rows(self._backend)
        if any(row != self.instance.key for row in rows):
            if self.instance.parallelism > 1:
                raise CheckpointError(
                    f"operator {self._backend.uid!r}, instance {self.instance.index} of "
                    f"{self.instance.parallelism}: its table has state of other instances, "
                    f"{', '.join(f'{i} of {n}' for i, n, _ in sorted(rows)[:8])}: restore it with "
                    "another parallelism, which redistributes it"
                )
            # The only instance needs nothing from other tables.
            self.redistribute(self._backend)
        self._backend.set_current_key(self.instance.key)

    def redistribute(self, old: KeyedStateBackend) -> None:
        """Replace what the table has by the instance's share of all old rows.

        `old` has the rows of all old instances; it may be the instance's own table.
        """
        shares = self._shares(old)
        for keys in list(self._backend.existing()):
            self._backend.delete(keys)
        self._backend.set_current_key(self.instance.key)
        for name, share in shares.items():
            self._states[name].put(self._stored[name], self._own.keys, share)

    def _shares(self, old: KeyedStateBackend) -> dict[str, Any]:
        rows = sorted(_rows(old), key=lambda row: (row[1], row[0], row[2]))
        if not rows:
            return {}
        columns = zip(*rows, strict=True)
        keys = old.keys([pa.array(column, pa.int32()) for column in columns])
        kept = all(count == self.instance.parallelism for _, count, _ in rows)
        self.redistributed = not kept
        old_rows, start = OldRows(keys, kept), 0
        shares = {}
        for name, declaration in self._states.items():
            handle = old.register(name, declaration.stored())
            shares[name], start = declaration.share(handle, old_rows, self.instance, start)
        return shares

    @property
    def read_only(self) -> bool:
        """Whether broadcast states cannot be changed now."""
        return self._own.read_only

    @read_only.setter
    def read_only(self, value: bool) -> None:
        self._own.read_only = value

    def register(self, name: str, declaration: State[Any]) -> Any:
        """Return the handle of a declared state, for `pystate.operators.functions.binding.bind`."""
        if self._states.get(name) != declaration:
            raise DeclarationError(f"state {name!r} is not one that the instance was made with")
        return self._handles[name]

    def __getitem__(self, name: str) -> Any:
        return self._handles[name]


def _rows(backend: KeyedStateBackend) -> list[tuple[int, int, int]]:
    """The keys of all rows of a table."""
    rows: list[tuple[int, int, int]] = []
    for keys in backend.existing():
        rows += keys.to_pylist()
    return rows
