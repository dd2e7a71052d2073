"""Aggregate functions for aggregating states: the core's own, and any of the user's.

An `Aggregator` is a declaration: immutable, comparable and picklable. Bound to the type of the
values (`BoundAggregator`), it says what the core keeps, and turns accumulators into results, one or
a column at a time. Everything here is safe from any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeAlias, TypeVar

import pyarrow as pa

from pystate.errors import DeclarationError, InvalidArgumentError
from pystate.state.accumulators import (
    COLUMN,
    DISTINCT,
    FIRST,
    LAST,
    MEAN,
    TOP_K,
    VARIANCE,
    BoundAggregator,
    Operation,
)
from pystate.types.state_type import StateType, TypeLike, parse_type

_INTEGERS = ("byte", "short", "int", "long")
_FLOATS = ("float", "double")
_NUMBERS = (*_INTEGERS, *_FLOATS, "decimal")
_ORDERED = (*_NUMBERS, "date", "timestamp", "timestamp_ntz")
_PLAIN = (*_ORDERED, "boolean", "string", "binary")

_MOST_K = 4096


def _is_any(type: StateType) -> bool:
    return True


def _is_number(type: StateType) -> bool:
    return type.name in _NUMBERS


def _is_ordered(type: StateType) -> bool:
    return type.name in _ORDERED


def _is_plain(type: StateType) -> bool:
    return type.name in _PLAIN


def _is_comparable(type: StateType) -> bool:
    return not type.is_object


_Takes: TypeAlias = tuple[Callable[[StateType], bool], str]

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class AggregateFunction(ABC, Generic[V, A, R]):
    """An aggregate in Python, for those that the core does not have.

    The accumulator is any object that can be pickled. It may be changed in place or replaced: the
    object that `add` or `merge` returns is kept. No accumulator is shared between keys. The methods
    may read other states of the current key. A method that makes another key current, or ends the
    epoch, raises `NoCurrentKeyError`, and nothing is written.

    See Also
    --------
    Mean, Variance, TopK, ApproxDistinct : run in the core, a batch at a time.

    Examples
    --------
    >>> class Longest(AggregateFunction[str, str, int]):
    ...     def create(self):
    ...         return ""
    ...
    ...     def add(self, accumulator, value):
    ...         return max(accumulator, value, key=len)
    ...
    ...     def merge(self, a, b):
    ...         return max(a, b, key=len)
    ...
    ...     def result(self, accumulator):
    ...         return len(accumulator)
    >>> longest = Longest()
    >>> longest.result(longest.add(longest.add(longest.create(), "ab"), "abc"))
    3
    """

    @abstractmethod
    def create(self) -> A:
        """Make an empty accumulator; a new object each time."""

    @abstractmethod
    def add(self, accumulator: A, value: V) -> A:
        """Add a value and return the accumulator."""

    @abstractmethod
    def merge(self, a: A, b: A) -> A:
        """Return one accumulator for the values of `a` and then those of `b`.

        Neither is used again: either may be changed and returned.
        """

    @abstractmethod
    def result(self, accumulator: A) -> R:
        """Compute the result. The accumulator stays in use and must not change."""


@dataclass(frozen=True, slots=True)
class Aggregator(ABC):
    """Base of the aggregates that run in the core. Nulls are skipped by all of them."""

    #: The core's number of the accumulator's kind, part of the file format; 0: a column operation.
    kind: ClassVar[int] = COLUMN
    operation: ClassVar[Operation | None] = None
    takes: ClassVar[_Takes] = (_is_number, "numbers")

    @property
    def parameter(self) -> int:
        """The core's parameter: `k`, or the precision; else 0."""
        return 0

    @property
    def freedom(self) -> int:
        """The number subtracted from the number of values to get a variance's divisor."""
        return 0

    def bind(self, type: TypeLike, what: str = "AggregatingState") -> BoundAggregator:
        """Say what is kept for values of a type.

        Parameters
        ----------
        type : str, pyarrow.DataType or StateType
            The type of the added values.
        what : str
            Names the state in errors.

        Raises
        ------
        DeclarationError
            The aggregate does not take the type.

        Examples
        --------
        >>> Mean().bind("long").width
        24
        >>> ApproxDistinct().bind("string").width is None
        True
        """
        parsed = parse_type(type, what)
        takes, described = self.takes
        if not takes(parsed):
            raise DeclarationError(f"{what}: {self!r} takes {described}, not {parsed.ddl}")
        return BoundAggregator(self, parsed)

    def column(self, type: StateType) -> StateType | None:
        """The type of the one column that is kept, for a column operation."""
        return type if self.operation else None

    @abstractmethod
    def result_type(self, type: StateType) -> pa.DataType:
        """The Arrow type of the results for values of `type`."""


@dataclass(frozen=True, slots=True)
class Count(Aggregator):
    """Counts the values of any type that are not null; 0 if there is none."""

    operation: ClassVar[Operation | None] = "add"
    takes: ClassVar[_Takes] = (_is_any, "anything")

    def column(self, type: StateType) -> StateType:
        """A long, to which 1 is added."""
        return StateType("long")

    def result_type(self, type: StateType) -> pa.DataType:
        """A long."""
        return pa.int64()


@dataclass(frozen=True, slots=True)
class Sum(Aggregator):
    """Adds the values up; null if there is none.

    The sum of integers is a long; past its range `StateOverflowError` is raised. The sum of floats
    is a double, added up in the order of arrival. The sum of decimals has ten more digits than they
    have.
    """

    operation: ClassVar[Operation | None] = "add"

    def column(self, type: StateType) -> StateType:
        """A long, a double, or a decimal of ten more digits."""
        if type.name == "decimal":
            return StateType("decimal", min(38, type.precision + 10), type.scale)
        return StateType("long" if type.name in _INTEGERS else "double")

    def result_type(self, type: StateType) -> pa.DataType:
        """The column's."""
        return self.column(type).arrow


@dataclass(frozen=True, slots=True)
class Min(Aggregator):
    """The smallest value, in its own type; null if there is none."""

    operation: ClassVar[Operation | None] = "min"
    takes: ClassVar[_Takes] = (_is_ordered, "numbers, dates and timestamps")

    def result_type(self, type: StateType) -> pa.DataType:
        """The values' own."""
        return type.arrow


@dataclass(frozen=True, slots=True)
class Max(Aggregator):
    """The largest value, in its own type; null if there is none. NaN is larger than any number."""

    operation: ClassVar[Operation | None] = "max"
    takes: ClassVar[_Takes] = (_is_ordered, "numbers, dates and timestamps")

    def result_type(self, type: StateType) -> pa.DataType:
        """The values' own."""
        return type.arrow


@dataclass(frozen=True, slots=True)
class Mean(Aggregator):
    """The arithmetic mean as a double; null if there is no value.

    Notes
    -----
    Integers and decimals are summed exactly in 128 bits; past that range `StateOverflowError` is
    raised. Only the quotient is rounded. Floats are summed as doubles in the order of arrival, so
    that another order may give other last digits.
    """

    kind: ClassVar[int] = MEAN

    def result_type(self, type: StateType) -> pa.DataType:
        """A double."""
        return pa.float64()


@dataclass(frozen=True, slots=True)
class Variance(Aggregator):
    """The variance as a double.

    Parameters
    ----------
    sample : bool
        True: divide by ``n - 1``, which is unbiased for a sample (null below two values). False:
        divide by ``n`` (null without a value).

    Notes
    -----
    The count, the mean and the sum of squared deviations are kept. Values are taken as doubles.

    A value is added by Welford's recurrence (Note on a method for calculating corrected sums of
    squares and products, Technometrics 4(3), 1962). Two accumulators are merged by the formula of
    Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm for computing sample
    variances, Stanford STAN-CS-79-773, 1979).
    """

    sample: bool = True

    kind: ClassVar[int] = VARIANCE

    def __post_init__(self) -> None:
        if not isinstance(self.sample, bool):
            raise InvalidArgumentError(f"Variance: sample is True or False, got {self.sample!r}")

    @property
    def freedom(self) -> int:
        """1 for a sample."""
        return int(self.sample)

    def result_type(self, type: StateType) -> pa.DataType:
        """A double."""
        return pa.float64()


@dataclass(frozen=True, slots=True)
class First(Aggregator):
    """The value that arrived first; null if there is none. Merging prefers the target's."""

    kind: ClassVar[int] = FIRST
    takes: ClassVar[_Takes] = (_is_plain, "plain values")

    def result_type(self, type: StateType) -> pa.DataType:
        """The values' own."""
        return type.arrow


@dataclass(frozen=True, slots=True)
class Last(Aggregator):
    """The value that arrived last; null if there is none. Merging takes the last source's."""

    kind: ClassVar[int] = LAST
    takes: ClassVar[_Takes] = (_is_plain, "plain values")

    def result_type(self, type: StateType) -> pa.DataType:
        """The values' own."""
        return type.arrow


@dataclass(frozen=True, slots=True)
class TopK(Aggregator):
    """The `k` largest values, in descending order, with repetitions. NaN is the largest.

    Parameters
    ----------
    k : int
        1 to 4096. Accumulators of up to 256 bytes (31 longs, 15 decimals) lie in the key's row.
    """

    k: int

    kind: ClassVar[int] = TOP_K
    takes: ClassVar[_Takes] = (_is_ordered, "numbers, dates and timestamps")

    def __post_init__(self) -> None:
        _check_range("TopK", "k", self.k, 1, _MOST_K)

    @property
    def parameter(self) -> int:
        """`k`."""
        return self.k

    def result_type(self, type: StateType) -> pa.DataType:
        """A list of the values' type."""
        return pa.list_(type.arrow)


@dataclass(frozen=True, slots=True)
class ApproxDistinct(Aggregator):
    """Roughly how many distinct values there were, by a HyperLogLog sketch.

    Parameters
    ----------
    precision : int
        4 to 14. The standard error is about ``1.04 / sqrt(2 ** precision)``, 2.3 % at 11; a sketch
        takes at most ``4 + 0.75 * 2 ** precision`` bytes, 1.5 KB at 11.

    See Also
    --------
    pystate.state.sketches.estimate : the estimator and its sources.

    Notes
    -----
    While there are few values, the sketch keeps 3 bytes of each and is off by about 0.1 %. 0.0 and
    -0.0 are one value, and all NaNs are one. Strings count by their bytes.
    """

    precision: int = 11

    kind: ClassVar[int] = DISTINCT
    takes: ClassVar[_Takes] = (_is_comparable, "values that can be compared by their bytes")

    def __post_init__(self) -> None:
        _check_range("ApproxDistinct", "precision", self.precision, 4, 14)

    @property
    def parameter(self) -> int:
        """The precision."""
        return self.precision

    def result_type(self, type: StateType) -> pa.DataType:
        """A long."""
        return pa.int64()


def _check_range(owner: str, name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgumentError(f"{owner}: {name} is an int, {least} to {most}; got {value!r}")
