"""Estimates the number of distinct values in a HyperLogLog sketch.

The core makes and merges sketches (csrc/aggregate/sketch.c); this module estimates. Pure functions,
safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pystate.errors import CorruptFileError

_HEADER = 4
_ENTRY = 3
_SPARSE_BITS = 18
_RANKS = 64

_Floats = npt.NDArray[np.float64]


def estimate(sketches: Sequence[bytes | None], precision: int) -> npt.NDArray[np.int64]:
    """Estimate the number of distinct values in each sketch.

    Parameters
    ----------
    sketches : sequence of bytes or None
        As the core keeps them; empty bytes or None stand for no value.
    precision : int
        The sketches' precision, 4 to 14.

    Returns
    -------
    numpy.ndarray
        Rounded estimates. While a sketch is sparse (at ``precision=11`` up to 512 values) they are
        off by about 0.1 %, later by about ``1.04 / sqrt(2 ** precision)``: 2.3 % at 11.

    Raises
    ------
    CorruptFileError
        Some bytes are not a sketch of that precision.

    Notes
    -----
    The sketch is HyperLogLog [1]_ with a sparse form as in [2]_; the estimate is the improved raw
    estimator of [3]_, which needs no bias tables and no switch between formulas. O(bytes).

    References
    ----------
    .. [1] Flajolet, Fusy, Gandouet, Meunier: HyperLogLog: the analysis of a near-optimal
       cardinality estimation algorithm. AofA 2007.
    .. [2] Heule, Nunkesser, Hall: HyperLogLog in practice. EDBT 2013.
    .. [3] Ertl: New cardinality estimation algorithms for HyperLogLog sketches. arXiv:1702.01284,
       2017, algorithm 6.
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
