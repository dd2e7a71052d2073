"""The accumulators that the core's aggregators keep per key, and how results are made of them.

csrc/FORMAT.md, "Accumulators", describes the layouts. Pure functions and immutable values, safe
from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.errors import CorruptFileError, InvalidArgumentError
from pystate.state.sketches import estimate
from pystate.types.state_type import StateType

#: The core's numbers for kinds of accumulators, part of the file format; 0: a column operation.
COLUMN, MEAN, VARIANCE, FIRST, LAST, TOP_K, DISTINCT = range(7)

#: What `PST_ADD`, `PST_MIN` and `PST_MAX` do to a column.
Operation: TypeAlias = Literal["add", "min", "max"]

_MOST_FIXED_BYTES = 256

_Words = npt.NDArray[np.uint64]


class Aggregates(Protocol):
    """What an aggregator tells about itself."""

    @property
    def kind(self) -> int:
        """The core's number of the accumulator's kind."""

    @property
    def operation(self) -> Operation | None:
        """The operation on a column, if the aggregate is no more than that."""

    @property
    def parameter(self) -> int:
        """The core's parameter: `k`, or the precision; else 0."""

    @property
    def freedom(self) -> int:
        """The number subtracted from the number of values to get a variance's divisor."""

    def column(self, type: StateType) -> StateType | None:
        """The type of the one column that is kept, for a column operation."""

    def result_type(self, type: StateType) -> pa.DataType:
        """The Arrow type of the results for values of `type`."""


@dataclass(frozen=True, slots=True)
class BoundAggregator:
    """An aggregator and the type of its values: what is kept, and what it means.

    Attributes
    ----------
    aggregator : Aggregator
        The declaration.
    input : StateType
        The values' type.

    Notes
    -----
    The layouts are described byte by byte in csrc/FORMAT.md, "Accumulators".

    Examples
    --------
    >>> import struct
    >>> from pystate.state.aggregators import Mean
    >>> Mean().bind("long").result_of(struct.pack("<QqQ", 4, 10, 0))
    2.5
    """

    aggregator: Aggregates
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
        """Turn a column of accumulators into their results.

        Parameters
        ----------
        states : array-like
            Fixed accumulators: a numpy array of shape (n, width) of bytes, (n, width / 8) of
            words, or (n,) of structures of that width. Variable ones: bytes objects, or an Arrow
            array of them. None, no bytes, and all zero stand for no value.

        Returns
        -------
        pyarrow.Array
            Of `result_type`.

        Raises
        ------
        CorruptFileError
            The aggregator cannot have made these accumulators.
        InvalidArgumentError
            The aggregate is a column operation: its column is the result already.
        """
        if self.aggregator.kind == COLUMN:
            raise InvalidArgumentError(f"{self.aggregator!r} keeps no accumulator")
        if self.width is None:
            listed = states.to_pylist() if isinstance(states, pa.Array) else list(states)
            return self._variable(listed)
        return self._fixed(_as_words(states, self.width))

    def result_of(self, state: bytes | None) -> Any:
        """Turn one accumulator into its result, a Python value or None.

        Raises
        ------
        CorruptFileError, InvalidArgumentError
            As `results`.
        """
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
