"""Aggregators: what they say of themselves, and results against plain recomputation.

`Reference` keeps accumulators as csrc/FORMAT.md describes them, in Python. The bytes in GOLDEN are
the core's: csrc/tests/test_aggregate.c holds it against the same ones.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import math
import pickle
import statistics
import struct
import sys
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.errors import CorruptFileError, DeclarationError, InvalidArgumentError
from pystate.state import aggregators as ag
from pystate.state.aggregators import estimate
from pystate.types.arrays import as_array, hash_keys
from pystate.types.state_type import parse_type

UTC = dt.timezone.utc
LONGS = st.integers(-(2**63), 2**63 - 1)

BUILT_IN = [
    ag.Count(),
    ag.Sum(),
    ag.Min(),
    ag.Max(),
    ag.Mean(),
    ag.Variance(),
    ag.Variance(sample=False),
    ag.First(),
    ag.Last(),
    ag.TopK(3),
    ag.TopK(100),
    ag.ApproxDistinct(),
    ag.ApproxDistinct(4),
]

#: Aggregator, type, values, accumulator.
GOLDEN = [
    (ag.Mean(), "long", [1, -5, 2**62, 2**62], "0400000000000000fcffffffffffff7f" + "00" * 8),
    (ag.Mean(), "double", [0.5, 1.25], "0200000000000000000000000000fc3f"),
    (
        ag.Variance(),
        "int",
        [2, 4, 4, 4, 5, 5, 7, 9],
        "080000000000000000000000000014400000000000004040",
    ),
    (ag.First(), "string", ["abc", "x"], "01616263"),
    (ag.Last(), "short", [3, -7], "0100000000000000f9ffffffffffffff"),
    (ag.TopK(2), "byte", [3, -1, 9], "0200000000000000" + "09000000000000000300000000000000"),
    (ag.ApproxDistinct(4), "long", [1, 2, 3], "0104000081402c03d59ec19fd1"),
    (ag.ApproxDistinct(4), "long", list(range(10)), "01040100021000800004410008002100"),
    (ag.ApproxDistinct(), "string", ["JFK", "EWR", "JFK"], "010b000043d10f01f048"),
]


# ---- the reference -------------------------------------------------------------------------------


def encode(value: object, ddl: str) -> bytes:
    """A value in the form of a cell."""
    if ddl == "double":
        return struct.pack("<d", value)
    if ddl == "float":
        return struct.pack("<fI", value, 0)
    if ddl.startswith("decimal"):
        unscaled = int(Fraction(value) * 10 ** parse_type(ddl).scale)
        return unscaled.to_bytes(16, "little", signed=True)
    if ddl == "date":
        value = (value - dt.date(1970, 1, 1)).days
    elif ddl == "timestamp":
        value = (value - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1)
    return int(value).to_bytes(8, "little", signed=True)


def size_of(ddl: str) -> int:
    return 16 if ddl.startswith("decimal") else 8


def key_of(value: object) -> object:
    return (1, 0) if value != value else (0, value)


def accumulate(aggregator: ag.Aggregator, ddl: str, values: list) -> bytes:
    """What the core keeps of the values."""
    match aggregator:
        case ag.Mean():
            count = struct.pack("<Q", len(values))
            if ddl in ("float", "double"):
                return count + struct.pack("<d", sum(values, 0.0))
            cells = (encode(v, ddl) for v in values)
            total = sum(int.from_bytes(c, "little", signed=True) for c in cells)
            return count + total.to_bytes(16, "little", signed=True)
        case ag.Variance():
            scale = 10 ** parse_type(ddl).scale
            n, mean, m2 = 0, 0.0, 0.0
            for value in values:
                x = float(value * scale)
                n += 1
                away = x - mean
                mean += away / n
                m2 += away * (x - mean)
            return struct.pack("<Qdd", n, mean, m2)
        case ag.First() | ag.Last():
            if not values:
                return b"" if ddl in ("string", "binary") else bytes(size_of(ddl) + 8)
            value = values[0 if isinstance(aggregator, ag.First) else -1]
            if ddl in ("string", "binary"):
                return b"\1" + (value.encode() if ddl == "string" else value)
            return struct.pack("<Q", 1) + encode(value, ddl)
        case ag.TopK(k):
            best = sorted(values, key=key_of, reverse=True)[:k]
            data = b"".join(encode(v, ddl) for v in best)
            size = size_of(ddl)
            if 8 + size * k > 256:
                return data
            return struct.pack("<Q", len(best)) + data.ljust(size * k, b"\0")
        case ag.ApproxDistinct(precision):
            return sketch(hash_keys([pa.array(values, parse_type(ddl).arrow)]), precision)
    raise AssertionError(aggregator)


def sketch(hashes: np.ndarray, precision: int) -> bytes:
    words = {int(h) % 2**64 for h in hashes}
    if not words:
        return b""

    def ranks(bits: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for h in words:
            rest = h % 2 ** (64 - bits)
            index, rank = h >> (64 - bits), 65 - bits - rest.bit_length()
            found[index] = max(found.get(index, 0), rank)
        return found

    entries, size = ranks(18), 3 * 2 ** (precision - 2)
    if 3 * len(entries) <= size:
        body = b"".join(
            (index << 6 | rank).to_bytes(3, "little") for index, rank in sorted(entries.items())
        )
        return bytes([1, precision, 0, 0]) + body
    packed = sum(rank << 6 * index for index, rank in ranks(precision).items())
    return bytes([1, precision, 1, 0]) + packed.to_bytes(size, "little")


def close(a: float | None, b: float | None, scale: float = 0.0) -> bool:
    if a is None or b is None:
        return a is b
    # Below the smallest normal number a result has fewer digits, or none.
    least = sys.float_info.min
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=max(least, 1e-12 * scale))


# ---- declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregator", BUILT_IN, ids=repr)
def test_a_declaration_is_a_value(aggregator: ag.Aggregator) -> None:
    assert pickle.loads(pickle.dumps(aggregator)) == aggregator
    assert copy.deepcopy(aggregator) == aggregator
    assert hash(copy.copy(aggregator)) == hash(aggregator)
    assert eval(repr(aggregator), vars(ag)) == aggregator
    assert [other for other in BUILT_IN if other == aggregator] == [aggregator]
    with pytest.raises((AttributeError, TypeError)):
        aggregator.k = 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("aggregator", "ddl", "said"),
    [
        (ag.Mean(), "string", "Mean() takes numbers, not string"),
        (ag.Variance(), "boolean", "takes numbers, not boolean"),
        (ag.Sum(), "timestamp", "takes numbers"),
        (ag.Min(), "binary", "numbers, dates and timestamps"),
        (ag.TopK(3), "boolean", "TopK(k=3) takes numbers, dates and timestamps, not boolean"),
        (ag.First(), object, "plain values, not object"),
        (ag.ApproxDistinct(), object, "compared by their bytes, not object"),
    ],
)
def test_a_type_that_is_not_taken_is_refused(aggregator, ddl, said: str) -> None:
    with pytest.raises(DeclarationError) as error:
        aggregator.bind(ddl, "state 'delay'")
    assert said in str(error.value)
    assert str(error.value).startswith("state 'delay': ")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ag.TopK(0),
        lambda: ag.TopK(4097),
        lambda: ag.TopK(True),
        lambda: ag.TopK(2.0),
        lambda: ag.ApproxDistinct(3),
        lambda: ag.ApproxDistinct(15),
        lambda: ag.Variance(sample=1),
    ],
)
def test_a_wrong_parameter_is_refused(make) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


@pytest.mark.parametrize(
    ("aggregator", "ddl", "column", "width", "result"),
    [
        (ag.Count(), "string", "long", None, pa.int64()),
        (ag.Count(), object, "long", None, pa.int64()),
        (ag.Sum(), "int", "long", None, pa.int64()),
        (ag.Sum(), "float", "double", None, pa.float64()),
        (ag.Sum(), "decimal(12,2)", "decimal(22,2)", None, pa.decimal128(22, 2)),
        (ag.Sum(), "decimal(38,2)", "decimal(38,2)", None, pa.decimal128(38, 2)),
        (ag.Min(), "date", "date", None, pa.date32()),
        (ag.Max(), "float", "float", None, pa.float32()),
        (ag.Mean(), "long", None, 24, pa.float64()),
        (ag.Mean(), "decimal(5,1)", None, 24, pa.float64()),
        (ag.Mean(), "float", None, 16, pa.float64()),
        (ag.Variance(), "long", None, 24, pa.float64()),
        (ag.First(), "boolean", None, 16, pa.bool_()),
        (ag.Last(), "decimal(5,1)", None, 24, pa.decimal128(5, 1)),
        (ag.Last(), "string", None, None, pa.string()),
        (ag.TopK(31), "long", None, 256, pa.list_(pa.int64())),
        (ag.TopK(32), "long", None, None, pa.list_(pa.int64())),
        (ag.TopK(16), "decimal(5,1)", None, None, pa.list_(pa.decimal128(5, 1))),
        (ag.ApproxDistinct(), "string", None, None, pa.int64()),
    ],
)
def test_what_is_kept(aggregator, ddl, column: str | None, width: int | None, result) -> None:
    bound = aggregator.bind(ddl)
    assert (bound.column and bound.column.ddl) == column
    assert bound.width == width
    assert bound.result_type == result
    assert pickle.loads(pickle.dumps(bound)) == bound


def test_a_column_operation_keeps_no_accumulator() -> None:
    with pytest.raises(InvalidArgumentError, match="keeps no accumulator"):
        ag.Sum().bind("long").results([])


# ---- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("aggregator", "ddl", "values", "state"), GOLDEN)
def test_the_core_and_the_reference_agree(aggregator, ddl, values, state: str) -> None:
    assert accumulate(aggregator, ddl, values).hex() == state
    bound = aggregator.bind(ddl)
    assert bound.width in (None, len(state) // 2)
    assert bound.results([bytes.fromhex(state)] if bound.width is None else _raw(state)) is not None


def _raw(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def results(aggregator: ag.Aggregator, ddl: str, groups: list[list]) -> list:
    """Results of several keys at once; one by one they must be the same."""
    bound = aggregator.bind(ddl)
    states = [accumulate(aggregator, ddl, values) for values in groups]
    if bound.width is None:
        array = bound.results(pa.array([*states, None], pa.binary()))
    else:
        rows = np.frombuffer(b"".join([*states, bytes(bound.width)]), np.uint8)
        array = bound.results(rows.reshape(-1, bound.width))
        words = rows.view(np.uint64).reshape(len(array), -1)
        structures = rows.view(np.dtype([("words", "<u8", bound.width // 8)]))
        for other in (words, structures):
            assert repr(bound.results(other).to_pylist()) == repr(array.to_pylist())
    array.validate(full=True)
    assert array.type == bound.result_type
    listed = array.to_pylist()
    empty = listed.pop()
    assert empty == bound.result_of(None)
    singles = [bound.result_of(state) for state in states]
    assert repr(singles) == repr(listed)
    return listed


@pytest.mark.parametrize(
    ("ddl", "numbers"),
    [
        ("long", LONGS),
        ("decimal(6,2)", st.decimals(-9999, 9999, places=2)),
        ("double", st.floats(-1e12, 1e12)),
    ],
    ids=["long", "decimal", "double"],
)
@given(data=st.data(), sample=st.booleans())
def test_mean_and_variance(
    ddl: str, numbers: st.SearchStrategy[object], data: st.DataObject, sample: bool
) -> None:
    groups = data.draw(st.lists(st.lists(numbers, max_size=20), max_size=5))
    means = results(ag.Mean(), ddl, groups)
    variances = results(ag.Variance(sample), ddl, groups)
    function = statistics.variance if sample else statistics.pvariance
    for mean, variance, values in zip(means, variances, groups, strict=True):
        exact = [Fraction(v) for v in values]
        largest = 0.0 if ddl == "long" else float(max(map(abs, exact), default=0))
        assert close(mean, float(sum(exact) / len(exact)) if exact else None, largest)
        largest = float(max(map(abs, exact), default=0))
        assert close(variance, float(function(exact)) if len(exact) > sample else None, largest**2)


def test_not_a_number_goes_through() -> None:
    got = results(ag.Mean(), "double", [[1.0, math.nan], [math.inf]])
    assert math.isnan(got[0])
    assert got[1] == math.inf


PLAIN = {
    "boolean": st.booleans(),
    "byte": st.integers(-128, 127),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "decimal(38,10)": st.decimals(-(10**20), 10**20, places=10),
    "string": st.text(max_size=8),
    "binary": st.binary(max_size=8),
}


@pytest.mark.parametrize("ddl", PLAIN)
@given(data=st.data())
def test_first_and_last(ddl: str, data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.lists(PLAIN[ddl], max_size=4), max_size=9))
    for aggregator, at in ((ag.First(), 0), (ag.Last(), -1)):
        want = [values[at] if values else None for values in groups]
        assert results(aggregator, ddl, groups) == want


@pytest.mark.parametrize(
    "ddl", [name for name in PLAIN if name not in ("boolean", "string", "binary")]
)
@given(data=st.data(), k=st.sampled_from([1, 3, 31, 32, 100]))
def test_top_k(ddl: str, data: st.DataObject, k: int) -> None:
    groups = data.draw(st.lists(st.lists(PLAIN[ddl], max_size=40), max_size=5))
    want = [sorted(values, reverse=True)[:k] for values in groups]
    assert results(ag.TopK(k), ddl, groups) == want


@pytest.mark.parametrize("precision", range(4, 15))
def test_approximate_distinct(precision: int) -> None:
    counts = [0, 1, 2, 10, 100, 500, 513, 2000, 20000]
    bound = ag.ApproxDistinct(precision).bind("long")
    states = [sketch(hash_keys([np.arange(n) * 7 + n]), precision) for n in counts]
    for n, state, got in zip(counts, states, bound.results(states).to_pylist(), strict=True):
        error = 0.002 if not state or state[2] == 0 else 1.04 / math.sqrt(2**precision)
        assert abs(got - n) <= max(5 * error * n, 0.5)
        assert bound.result_of(state) == got


def test_damaged_accumulators_are_refused() -> None:
    good = sketch(hash_keys([np.arange(5)]), 11)
    bad = [good[:-1], b"\2" + good[1:], good[:2] + b"\1" + good[3:], good[:3], b"\1\5" + good[2:]]
    for state in bad:
        with pytest.raises(CorruptFileError):
            estimate([good, state], 11)
    for aggregator, ddl, state in (
        (ag.TopK(2), "long", struct.pack("<QQQ", 3, 1, 1)),
        (ag.TopK(100), "long", bytes(9)),
        (ag.First(), "string", b"\1\xff"),
        (ag.First(), "binary", b"\0x"),
    ):
        with pytest.raises(CorruptFileError):
            aggregator.bind(ddl).result_of(state)
    with pytest.raises(InvalidArgumentError):
        ag.Mean().bind("long").result_of(bytes(23))


@given(st.binary(max_size=40), st.integers(0, 12))
def test_no_bytes_crash_a_sketch(body: bytes, cut: int) -> None:
    state = (b"\1\4" + body)[: cut + 2] if cut else body
    with contextlib.suppress(CorruptFileError):
        assert estimate([state], 4)[0] >= 0


def test_results_of_many_keys_are_one_array() -> None:
    bound = ag.Mean().bind("long")
    states = np.zeros((1000, 3), np.uint64)
    states[:, 0] = 2
    states[:, 1] = np.arange(1000)
    assert bound.results(states).equals(as_array(np.arange(1000) / 2, parse_type("double"), "x"))
    assert len(bound.results(states[:0])) == 0
    assert len(ag.TopK(2).bind("int").results(states[:0])) == 0


# ---- the user's own ------------------------------------------------------------------------------


def test_a_function_of_the_users_own_has_four_parts() -> None:
    class Half(ag.AggregateFunction[int, int, int]):
        def create(self) -> int:
            return 0

        def add(self, accumulator: int, value: int) -> int:
            return accumulator + value

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]
