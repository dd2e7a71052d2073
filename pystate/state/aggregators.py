"""Aggregate functions for aggregating states: the core's own, and any of the user's.

An `Aggregator` is a declaration: immutable, comparable and picklable. Bound to the type of the
values (`BoundAggregator`), it says what the core keeps, and turns accumulators into results, one or
a column at a time; csrc/FORMAT.md, "Accumulators", describes the layouts byte by byte. Everything
here is safe from any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.errors import CorruptFileError, DeclarationError, InvalidArgumentError
from pystate.types.state_type import StateType, TypeLike, parse_type

#: The core's numbers for kinds of accumulators, part of the file format; 0: a column operation.
COLUMN, MEAN, VARIANCE, FIRST, LAST, TOP_K, DISTINCT = range(7)

#: What `PST_ADD`, `PST_MIN` and `PST_MAX` do to a column.
Operation: TypeAlias = Literal["add", "min", "max"]

_MOST_FIXED_BYTES = 256
#: Of a sketch: bytes of its header and of an entry while it is sparse, the bits of such an entry's
#: index, and how many ranks there are.
_HEADER, _ENTRY, _SPARSE_BITS, _RANKS = 4, 3, 18, 64

_Floats = npt.NDArray[np.float64]
_Words = npt.NDArray[np.uint64]

_INTEGERS = ("byte", "short", "int", "long")
_FLOATS = ("float", "double")
_NUMBERS = (*_INTEGERS, *_FLOATS, "decimal")
_ORDERED_TYPES = (*_NUMBERS, "date", "timestamp", "timestamp_ntz")
_PLAIN = (*_ORDERED_TYPES, "boolean", "string", "binary")
_COMPARABLE = (*_PLAIN, "struct", "array", "map")

_MOST_K = 4096

#: The names of the types that an aggregate takes, and what errors call them.
_Takes: TypeAlias = tuple[tuple[str, ...], str]
_ORDER: _Takes = (_ORDERED_TYPES, "numbers, dates and timestamps")

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
class Aggregator:
    """Base of the aggregates that run in the core. Nulls are skipped by all of them."""

    #: The core's number of the accumulator's kind, part of the file format; 0: a column operation.
    kind: ClassVar[int] = COLUMN
    operation: ClassVar[Operation | None] = None
    takes: ClassVar[_Takes] = (_NUMBERS, "numbers")

    @property
    def parameter(self) -> int:
        """The core's parameter: `k`, or the precision; else 0."""
        return 0

    @property
    def freedom(self) -> int:
        """The number subtracted from the number of values to get a variance's divisor."""
        return 0

    def bind(self, type: TypeLike, what: str = "AggregatingState") -> BoundAggregator:
        """Say what is kept for values of a type; `what` names the state in errors."""
        parsed = parse_type(type, what)
        takes, described = self.takes
        if parsed.name not in takes:
            raise DeclarationError(f"{what}: {self!r} takes {described}, not {parsed.ddl}")
        return BoundAggregator(self, parsed)

    def column(self, type: StateType) -> StateType | None:
        """The type of the one column that is kept, for a column operation."""
        return type if self.operation else None

    def result_type(self, type: StateType) -> pa.DataType:
        """The Arrow type of the results for values of `type`: by default their own."""
        return type.arrow


@dataclass(frozen=True, slots=True)
class Count(Aggregator):
    """Counts the values of any type that are not null; 0 if there is none."""

    operation: ClassVar[Operation | None] = "add"
    takes: ClassVar[_Takes] = ((*_COMPARABLE, "object"), "anything")

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
    takes: ClassVar[_Takes] = _ORDER


@dataclass(frozen=True, slots=True)
class Max(Aggregator):
    """The largest value, in its own type; null if there is none. NaN is larger than any number."""

    operation: ClassVar[Operation | None] = "max"
    takes: ClassVar[_Takes] = _ORDER


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
    takes: ClassVar[_Takes] = (_PLAIN, "plain values")


@dataclass(frozen=True, slots=True)
class Last(Aggregator):
    """The value that arrived last; null if there is none. Merging takes the last source's."""

    kind: ClassVar[int] = LAST
    takes: ClassVar[_Takes] = (_PLAIN, "plain values")


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
    takes: ClassVar[_Takes] = _ORDER

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
    pystate.state.aggregators.estimate : the estimator and its sources.

    Notes
    -----
    While there are few values, the sketch keeps 3 bytes of each and is off by about 0.1 %. 0.0 and
    -0.0 are one value, and all NaNs are one. Strings count by their bytes.
    """

    precision: int = 11

    kind: ClassVar[int] = DISTINCT
    takes: ClassVar[_Takes] = (_COMPARABLE, "values that can be compared by their bytes")

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


@dataclass(frozen=True, slots=True)
class BoundAggregator:
    """An aggregator and the type of its values: what is kept, and what it means.

    >>> import struct
    >>> Mean().bind("long").result_of(struct.pack("<QqQ", 4, 10, 0))
    2.5
    """

    aggregator: Aggregator
    input: StateType

    @property
    def column(self) -> StateType | None:
        """The type of the column whose value is the result; None if there is an accumulator."""
        return self.aggregator.column(self.input)

    @property
    def result_type(self) -> pa.DataType:
        """The Arrow type of the results."""
        return self.aggregator.result_type(self.input)

    @property
    def width(self) -> int | None:
        """Bytes of an accumulator; None for a byte string of varying size."""
        kind, value = self.aggregator.kind, 8 * self._value_words
        if kind == MEAN:
            return 16 if self.input.name in ("float", "double") else 24
        if kind == VARIANCE:
            return 24
        if kind in (FIRST, LAST) and not self.input.is_bytes:
            return 8 + value
        fixed = 8 + value * self.aggregator.parameter
        return fixed if kind == TOP_K and fixed <= _MOST_FIXED_BYTES else None

    @property
    def _value_words(self) -> int:
        return 2 if self.input.name == "decimal" else 1

    def results(self, states: Any) -> pa.Array[Any]:
        """The results of a column of accumulators.

        Fixed accumulators come as a numpy array of shape (n, width) of bytes, (n, width / 8) of
        words, or (n,) of structures of that width; variable ones as bytes objects, or an Arrow
        array of them. None, no bytes, and all zero stand for no value. `CorruptFileError`: the
        aggregator cannot have made them.
        """
        if self.aggregator.kind == COLUMN:
            raise InvalidArgumentError(f"{self.aggregator!r} keeps no accumulator")
        if self.width is None:
            listed = states.to_pylist() if isinstance(states, pa.Array) else list(states)
            return self._variable(listed)
        return self._fixed(_as_words(states, self.width))

    def result_of(self, state: bytes | None) -> Any:
        """The result of one accumulator, a Python value or None; see `results`."""
        if self.width is None:
            return self.results([state])[0].as_py()
        return self.results(np.frombuffer(state or bytes(self.width), np.uint8))[0].as_py()

    def _fixed(self, words: _Words) -> pa.Array[Any]:
        kind = self.aggregator.kind
        if kind == MEAN:
            return self._means(words)
        if kind == VARIANCE:
            return self._variances(words)
        if kind == TOP_K:
            return self._largest(words)
        return _values(words[:, 1:], self.input, words[:, 0] == 0)

    def _means(self, words: _Words) -> pa.Array[Any]:
        count = words[:, 0].astype(np.float64)
        if self.input.name in ("float", "double"):
            return _quotients(words[:, 1].view(np.float64), count)
        unit = 10**self.input.scale
        total, divisor = _wide(words[:, 1], words[:, 2]), count * float(unit)
        means = total / np.where(count, divisor, 1)
        # If both operands are exact, the quotient of two doubles is rounded only once.
        large = (np.abs(total) >= 2.0**53) | (divisor >= 2.0**53)
        for i in np.flatnonzero(large & (count > 0)).tolist():
            exact = (int(words[i, 2].view(np.int64)) << 64) + int(words[i, 1])
            means[i] = exact / (int(words[i, 0]) * unit)
        return pa.array(means, pa.float64(), mask=count <= 0)

    def _variances(self, words: _Words) -> pa.Array[Any]:
        divisor = words[:, 0].astype(np.float64) - self.aggregator.freedom
        return _quotients(words[:, 2].view(np.float64) / 100.0**self.input.scale, divisor)

    def _largest(self, words: _Words) -> pa.Array[Any]:
        k, each = self.aggregator.parameter, self._value_words
        counts = words[:, 0]
        if np.any(counts > k):
            raise CorruptFileError(f"an accumulator of {self.aggregator!r} says it has more values")
        values = words[:, 1:].reshape(-1, k, each)[np.arange(k) < counts[:, None]]
        offsets = np.zeros(len(words) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return self._lists(offsets, values)

    def _lists(self, offsets: npt.NDArray[np.int32], values: _Words) -> pa.Array[Any]:
        flat = _values(values, self.input, np.zeros(len(values), np.bool_))
        return pa.Array.from_buffers(
            self.result_type, len(offsets) - 1, [None, pa.py_buffer(offsets.data)], children=[flat]
        )

    def _variable(self, states: Sequence[bytes | None]) -> pa.Array[Any]:
        kind = self.aggregator.kind
        if kind == DISTINCT:
            return pa.array(estimate(states, self.aggregator.parameter))
        if kind == TOP_K:
            size = 8 * self._value_words
            sizes = [len(state or b"") for state in states]
            if any(n % size or n > size * self.aggregator.parameter for n in sizes):
                raise CorruptFileError(f"an accumulator of {self.aggregator!r} has a wrong size")
            offsets = np.zeros(len(sizes) + 1, np.int32)
            np.cumsum(np.array(sizes, np.int64) // size, out=offsets[1:])
            values = _as_words(np.frombuffer(b"".join(s or b"" for s in states), np.uint8), size)
            return self._lists(offsets, values)
        if any(state and state[0] != 1 for state in states):
            raise CorruptFileError(f"an accumulator of {self.aggregator!r} does not begin with 1")
        try:
            return pa.array(
                [_text(self.input, state[1:]) if state else None for state in states],
                self.input.arrow,
            )
        except UnicodeDecodeError as error:
            raise CorruptFileError(f"an accumulator of {self.aggregator!r}: {error}") from error


def _text(type: StateType, data: bytes) -> str | bytes:
    return data.decode() if type.name == "string" else data


def _as_words(states: Any, width: int) -> _Words:
    array = np.ascontiguousarray(states)
    raw = array.reshape(-1).view(np.uint8)
    if raw.size % width:
        raise InvalidArgumentError(f"accumulators have {width} bytes each, got {raw.size} in all")
    return raw.reshape(-1, width).copy().view(np.uint64)


def _wide(low: _Words, high: _Words) -> npt.NDArray[np.float64]:
    """128-bit integers as doubles; those that fit 64 bits are rounded only once."""
    narrow, top = low.view(np.int64), high.view(np.int64)
    wide = top.astype(np.float64) * 2.0**64 + low.astype(np.float64)
    return np.where(top == narrow >> 63, narrow.astype(np.float64), wide)


def _quotients(total: npt.NDArray[np.float64], count: npt.NDArray[np.float64]) -> pa.Array[Any]:
    none = count <= 0
    return pa.array(total / np.where(none, 1, count), pa.float64(), mask=none)


def _values(words: _Words, type: StateType, none: npt.NDArray[np.bool_]) -> pa.Array[Any]:
    """Values in the form of cells as an Arrow array, null where `none` says so."""
    if type.name == "boolean":
        return pa.array(words[:, 0] != 0, pa.bool_(), mask=none)
    valid = pa.py_buffer(np.packbits(~none, bitorder="little").data)
    if type.name == "decimal":
        data = np.ascontiguousarray(words)
    else:
        narrow = words[:, 0].astype(f"<u{type.arrow.bit_width // 8}")
        data = np.ascontiguousarray(narrow)
    return pa.Array.from_buffers(type.arrow, len(words), [valid, pa.py_buffer(data.data)])


def estimate(sketches: Sequence[bytes | None], precision: int) -> npt.NDArray[np.int64]:
    """Estimate the number of distinct values in each sketch.

    Empty bytes or None stand for no value. While a sketch is sparse (at ``precision=11`` up to 512
    values) the estimates are off by about 0.1 %, later by about ``1.04 / sqrt(2 ** precision)``:
    2.3 % at 11. O(bytes).

    The sketch, which the core makes and merges (csrc/aggregate/sketch.c), is HyperLogLog (Flajolet,
    Fusy, Gandouet, Meunier: HyperLogLog: the analysis of a near-optimal cardinality estimation
    algorithm, AofA 2007) with a sparse form as in Heule, Nunkesser, Hall: HyperLogLog in practice,
    EDBT 2013. The estimate is the improved raw estimator of Ertl: New cardinality estimation
    algorithms for HyperLogLog sketches, arXiv:1702.01284, 2017, algorithm 6, which needs no bias
    tables and no switch between formulas.
    """
    counts = np.zeros((len(sketches), _RANKS), np.float64)
    bits = np.full(len(sketches), precision)
    for i, sketch in enumerate(sketches):
        if not sketch:
            counts[i, 0] = 1 << precision
            continue
        ranks, bits[i] = _ranks(sketch, precision)
        counts[i] = np.bincount(ranks, minlength=_RANKS)
        if bits[i] == _SPARSE_BITS:
            counts[i, 0] += (1 << _SPARSE_BITS) - len(ranks)
    result = np.zeros(len(sketches), np.float64)
    for used in np.unique(bits):
        rows = bits == used
        result[rows] = _ertl(counts[rows], int(used))
    return np.rint(result).astype(np.int64)


def _ranks(sketch: bytes, precision: int) -> tuple[npt.NDArray[np.uint8], int]:
    """The registers that are not zero, or all of them, and the number of index bits."""
    data = np.frombuffer(sketch, np.uint8)
    most = 3 << (precision - 2)
    body = data[_HEADER:]
    if len(data) < _HEADER or data[0] != 1 or data[1] != precision or data[3]:
        raise CorruptFileError(f"no sketch of precision {precision}: {sketch[:8].hex()}")
    if data[2] == 0 and len(body) % _ENTRY == 0 and len(body) <= most:
        return body[::_ENTRY] & np.uint8(63), _SPARSE_BITS
    if data[2] != 1 or len(body) != most:
        raise CorruptFileError(f"a sketch of precision {precision} has not {len(data)} bytes")
    three = body.reshape(-1, 3).astype(np.uint32)
    four = three[:, 0] | three[:, 1] << 8 | three[:, 2] << 16
    registers = four[:, None] >> np.array([0, 6, 12, 18], np.uint32) & 63
    return registers.ravel().astype(np.uint8), precision


def _ertl(counts: _Floats, bits: int) -> _Floats:
    """Cardinality from how many registers hold each rank; a row per sketch."""
    m, q = float(1 << bits), 64 - bits
    z = m * _tau(1 - counts[:, q + 1] / m)
    for rank in range(q, 0, -1):
        z = 0.5 * (z + counts[:, rank])
    z += m * _sigma(counts[:, 0] / m)
    with np.errstate(divide="ignore"):
        estimates: _Floats = m * m / (2 * np.log(2)) / z
    return estimates


def _sigma(x: _Floats) -> _Floats:
    y, z = 1.0, x.copy()
    z[x == 1] = np.inf
    x = np.where(x == 1, 0, x)
    while True:
        x = x * x
        before = z
        z = z + x * y
        y += y
        if np.array_equal(z, before):
            return z


def _tau(x: _Floats) -> _Floats:
    y, z = 1.0, 1 - x
    none = (x == 0) | (x == 1)
    while True:
        x = np.sqrt(x)
        before = z
        y /= 2
        z = z - (1 - x) ** 2 * y
        if np.array_equal(z, before):
            return np.where(none, 0, z / 3)
