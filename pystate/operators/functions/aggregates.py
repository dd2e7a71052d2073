"""Aggregate functions over a key's rows: `count`, `sum`, `min`, `max` and `mean`.

They only describe what to keep; the Spark job turns each into one or two states that the core
updates a batch at a time. Importing this module loads only the error classes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pystate.errors import InvalidArgumentError

AggregateKind = Literal["count", "sum", "min", "max", "mean"]


class Aggregate(NamedTuple):
    """One aggregate of a keyed stream; without a column it counts rows."""

    kind: AggregateKind
    column: str | None

    def __str__(self) -> str:
        return f"{self.kind}({self.column or ''})"


def count(column: str | None = None) -> Aggregate:
    """Count rows, or the rows whose `column` is not null.

    Examples
    --------
    >>> str(count()), str(count("delay"))
    ('count()', 'count(delay)')
    """
    return Aggregate("count", None if column is None else _checked_column("count", column))


def sum(column: str) -> Aggregate:
    """Sum a column; null until the key has seen a value.

    The sum of integers is a long; past its range `StateOverflowError` is raised, as in ANSI SQL:
    cast the column to a decimal if that may happen. The sum of floats is a double; that of decimals
    has ten more digits than they have.
    """
    return Aggregate("sum", _checked_column("sum", column))


def min(column: str) -> Aggregate:
    """The smallest value of a column, in the column's own type."""
    return Aggregate("min", _checked_column("min", column))


def max(column: str) -> Aggregate:
    """The largest value of a column, in the column's own type; NaN is larger than any number."""
    return Aggregate("max", _checked_column("max", column))


def mean(column: str) -> Aggregate:
    """The mean of a column as a double, kept as a sum and a count."""
    return Aggregate("mean", _checked_column("mean", column))


def _checked_column(kind: str, column: object) -> str:
    if not isinstance(column, str) or not column:
        raise InvalidArgumentError(
            f"{kind}() takes the name of a column, got {column!r}; to aggregate an expression, "
            "add it to the DataFrame with withColumn first"
        )
    return column
