"""What the handles of reducing and aggregating states share: a value that others are folded into.

Thread safety: a handle belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

import decimal
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from pystate._core import core
from pystate.errors import WrongTypeError
from pystate.state.handle import FOLD_NAMES, NoValue, Objects, StateHandle
from pystate.state.key_batch import KeyBatch
from pystate.state.value import ValueHandle
from pystate.types.arrays import check_rows, is_column

#: More digits than a sum of two decimals of 38 digits can have: the sum is exact, and the column
#: refuses it if it does not fit.
_EXACT = decimal.Context(prec=100)


class Fold(NoValue, StateHandle):
    """Base of reducing and aggregating handles: a value that others are folded into.

    `_kept` is that value's own handle; None if the core keeps an accumulator.
    """

    _kept: ValueHandle | None = None
    _reads = "get()"
    _changes = "add(value)"
    _others = FOLD_NAMES

    @property
    def objects(self) -> Objects | None:
        """The objects of the value that is kept."""
        return None if self._kept is None else self._kept.objects

    @property
    def _holder(self) -> Any:
        """The handle of the value that is kept."""
        return self._kept

    def __init__(self, table: core.Table, column: int, name: str) -> None:
        self.table = table
        self.column = column
        self.name = name

    @abstractmethod
    def add(self, value: Any, /) -> None:
        """Add a value to the current key's."""

    @abstractmethod
    def get(self) -> Any:
        """The current key's result; None if nothing was added."""

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' values. A key whose last state is cleared ceases to exist."""
        if self._kept is None:
            super().clear_all(keys)
        else:
            self._kept.clear_all(keys)

    @abstractmethod
    def _merge(self, kept: Any) -> None:
        """Merge the state of another namespace into that of the current one."""

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Merge the current key's state of the source namespaces into the target's, in order.

        The current namespace does not change.

        Parameters
        ----------
        target : object
            A namespace; None for the default one.
        sources : iterable of object
            Other namespaces; their state is removed.
        """
        current, turn = self.table.current_namespace(), self.table.turn
        target, sources = self.table.merged_namespaces(target, sources)
        self.table.check_turn(turn, self.name)
        try:
            for source in sources:
                self.table.set_namespace(source)
                kept = self._holder.value()
                if kept is None:
                    continue
                self.table.set_namespace(target)
                self._merge(kept)
                self.table.set_namespace(source)
                self._holder.clear()
        finally:
            self.table.set_namespace(current)

    def _fold_all(self, keys: KeyBatch, values: list[Any], step: Callable[[Any, Any], Any]) -> None:
        """Fold a value into each key's, in order: a repeated key sees its earlier rows.

        For rows without a value nothing is written, and no time moves.
        """
        assert self._kept is not None
        check_rows(values, len(self._checked(keys)), f"state {self.name!r}")
        rows = [i for i, value in enumerate(values) if value is not None]
        if len(rows) < len(values):
            at = pa.array(rows, pa.int64())
            columns = [column.take(at) for column in keys._columns()]
            keys, values = KeyBatch(keys.table, columns, keys._types), [values[i] for i in rows]
        names = keys._normal_keys()
        latest: dict[Any, Any] = {}
        for name, old in zip(names, as_list(self._kept.values(keys)), strict=True):
            latest.setdefault(name, old)
        for name, value in zip(names, values, strict=True):
            latest[name] = step(latest[name], value)
        self._kept.update_all(keys, [latest[name] for name in names])

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' values, or their results if no values are kept; objects in pickled form."""
        assert self._kept is not None
        return self._kept._exported(keys)

    def _refuse_none(self, value: Any) -> None:
        if value is None:
            raise WrongTypeError(f"state {self.name!r}: None cannot be added")

    def __reduce__(self) -> Any:
        raise WrongTypeError(f"state {self.name!r}: a handle cannot be pickled or copied")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def sum_of(a: Any, b: Any) -> Any:
    """The sum of two values."""
    # Python rounds decimals to 28 digits.
    if isinstance(a, decimal.Decimal) and isinstance(b, decimal.Decimal):
        return _EXACT.add(a, b)
    return a + b


def as_list(values: Any) -> list[Any]:
    """A column or sequence as Python values."""
    if is_column(values) and not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = pa.array(values)
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def less(a: Any, b: Any) -> bool:
    """Whether `a` comes before `b`."""
    # NaN is larger than any number, as in Spark.
    if a != a:
        return False
    return bool(b != b or a < b)


def smaller(a: Any, b: Any) -> Any:
    """The one that comes first."""
    return b if less(b, a) else a


def larger(a: Any, b: Any) -> Any:
    """The one that comes last."""
    return b if less(a, b) else a
