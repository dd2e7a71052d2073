"""What rows a scan is asked for: conditions on columns, in the form that pyarrow's readers take.

A list of conditions (column, op, value) holds where all of them do; a list of such lists where all
of one of them do. Where each of the lists gives the key, by equality or ``in``, the keys are looked
up; whatever else it says is asked of the rows that are found.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pystate.base.arguments import duplicates, nearest, shown
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.types.arrays import as_array
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

_EQUAL, _IN, _NOT_IN, _UNEQUAL = "==", "in", "not in", "!="
_FUNCTIONS = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_OPS = ("=", *_FUNCTIONS, _IN, _NOT_IN)
_EXAMPLE = "write [('n', '>', 3)], or a list of such lists, of which one has to hold"
#: More keys than these are not looked up one by one.
MOST_KEYS = 1 << 20


@dataclass(frozen=True)
class Condition:
    """One column compared with a value, or with several."""

    column: str
    op: str
    values: pa.Array[Any]
    """Of the column's type; one, but for ``in`` and ``not in``."""

    def mask(self, column: Any) -> Any:
        """Whether it holds, row by row; null, which does not count, where that is not known."""
        if self.op in (_IN, _NOT_IN):
            among = pc.call_function("is_in", [column], pc.SetLookupOptions(self.values))
            return among if self.op == _IN else pc.call_function("invert", [among])
        if self.values.null_count:
            return pc.call_function("is_null" if self.op == _EQUAL else "is_valid", [column])
        return pc.call_function(_FUNCTIONS[self.op], [column, self.values[0]])


@dataclass(frozen=True)
class Where:
    """Lists of conditions, of which one has to hold."""

    lists: tuple[tuple[Condition, ...], ...]

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are compared."""
        return frozenset(condition.column for some in self.lists for condition in some)

    def passes_over(self, absent: Mapping[str, pa.Array[Any]]) -> bool:
        """Whether it holds for no row that has nothing of these states.

        `absent` is what each of them then has, as a column of one row.
        """
        return all(
            any(
                c.column in absent and c.mask(absent[c.column])[0].as_py() is not True
                for c in conditions
            )
            for conditions in self.lists
        )

    def among(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those of some rows for which it holds."""
        anywhere = None
        for conditions in self.lists:
            everywhere = None
            for condition in conditions:
                mask = condition.mask(rows.column(condition.column))
                everywhere = (
                    mask
                    if everywhere is None
                    else pc.call_function("and_kleene", [everywhere, mask])
                )
            anywhere = (
                everywhere
                if anywhere is None
                else pc.call_function("or_kleene", [anywhere, everywhere])
            )
        return rows if anywhere is None else rows.filter(anywhere)

    def keys(self, key: KeyColumns) -> list[pa.Array[Any]] | None:
        """The columns of all keys that can be among the rows; None if too many can."""
        given: list[list[pa.Array[Any]]] = []
        for conditions in self.lists:
            values = [_only_values(conditions, name) for name, _ in key]
            if any(column is None for column in values):
                return None
            given.append([column for column in values if column is not None])
        if sum(prod(map(len, values)) for values in given) > MOST_KEYS:
            return None
        if len(key) == 1:
            return [pa.concat_arrays([values for [values] in given])]
        found = [keys for values in given for keys in product(*values)]
        columns = zip(*found, strict=True) if found else [()] * len(key)
        return [
            pa.array(list(column), type_.arrow)
            for column, (_, type_) in zip(columns, key, strict=True)
        ]


def _only_values(conditions: Sequence[Condition], column: str) -> pa.Array[Any] | None:
    """The values that a column can have where conditions hold; None if these are not said."""
    for condition in conditions:
        if condition.column == column and condition.op in (_EQUAL, _IN):
            return condition.values
    return None


def parse_where(where: Any, types: Mapping[str, StateType | None], uid: str) -> Where | None:
    """Check conditions, whose columns have these types; None: a column cannot be compared."""
    if where is None:
        return None
    if not isinstance(where, (list, tuple)) or not where:
        raise InvalidArgumentError(f"where is a list of conditions, not {shown(where)}: {_EXAMPLE}")
    lists = [where] if _is_condition(where[0]) else where
    if _is_condition(where):
        lists = [[where]]
    parsed = []
    for conditions in lists:
        if not isinstance(conditions, (list, tuple)) or not conditions:
            raise InvalidArgumentError(
                f"where: {shown(conditions)} is no list of conditions: {_EXAMPLE}"
            )
        parsed.append(tuple(_condition(condition, types, uid) for condition in conditions))
    return Where(tuple(parsed))


def _is_condition(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and len(given) == 3 and isinstance(given[0], str)


def _condition(given: Any, types: Mapping[str, StateType | None], uid: str) -> Condition:
    if not _is_condition(given):
        raise InvalidArgumentError(f"where: {shown(given)} is no condition: {_EXAMPLE}")
    column, op, value = given
    if column not in types:
        raise unknown_column_error(column, types, uid)
    if op not in _OPS:
        raise InvalidArgumentError(
            f"where: {op!r:.80} is no comparison of column {column!r}; there are "
            f"{', '.join(map(repr, _OPS))}"
        )
    op, type_ = _EQUAL if op == "=" else op, types[column]
    if type_ is None:
        raise InvalidArgumentError(
            f"where: column {column!r} of operator {uid!r} is nested, or an object, and cannot be "
            "compared: compare others, and filter the rows"
        )
    what = f"where: column {column!r} of operator {uid!r}"
    if op in (_IN, _NOT_IN):
        if not isinstance(value, (list, tuple, set, frozenset, range, pa.Array, pa.ChunkedArray)):
            raise InvalidArgumentError(f"{what}: {op!r} takes a list of values, not {shown(value)}")
        values = list(value) if isinstance(value, (set, frozenset, range)) else value
    else:
        values = [value.as_py() if isinstance(value, pa.Scalar) else value]
    array = as_array(values, type_, what)
    if array.null_count and op not in (_EQUAL, _UNEQUAL, _IN, _NOT_IN):
        raise WrongTypeError(f"{what}: nothing is less or more than None: compare by '==' or '!='")
    return Condition(column, op, array)


def unknown_column_error(name: object, known: Mapping[str, Any], uid: str) -> InvalidArgumentError:
    """The error to raise for a column that an operator's rows do not have."""
    listed = ", ".join(map(repr, known)) or "none"
    return InvalidArgumentError(
        f"operator {uid!r} has no column {name!r:.80}; it has {listed}{nearest(name, known)}"
    )


def checked_names(names: Any, known: Mapping[str, Any], uid: str, what: str) -> list[str]:
    """Some of the columns, each once."""
    if not isinstance(names, (list, tuple)):
        raise InvalidArgumentError(f"{what} is a list of names, not {shown(names)}")
    for name in names:
        if name not in known:
            raise unknown_column_error(name, known, uid)
    for name in duplicates(names):
        raise InvalidArgumentError(f"{what}: {name!r} is there twice")
    return list(names)
