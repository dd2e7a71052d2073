"""The core and Spark SQL give every key the same hash and the same key group."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from pystate import hash_keys, key_group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 6000
SEED = 20130101
T = TypeVar("T")


def with_nulls(rng: random.Random, values: Sequence[T]) -> list[T | None]:
    return [None if rng.random() < 0.1 else value for value in values]


def integers(rng: random.Random, bits: int, type_: pa.DataType) -> pa.Array:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    edges = [low, low + 1, -2, -1, 0, 1, 2, high - 1, high]
    noise = [rng.randint(low, high) >> rng.randrange(bits) for _ in range(ROWS - len(edges))]
    return pa.array(with_nulls(rng, edges + noise), type_)


def moments(rng: random.Random, bound: int, storage: pa.DataType, type_: pa.DataType) -> pa.Array:
    values = [0, -1, 1, -bound, bound]
    values += [rng.randint(-bound, bound) for _ in range(ROWS - len(values))]
    return pa.array(with_nulls(rng, values), storage).cast(type_)


def floats(rng: random.Random, bits: int) -> pa.Array:
    """All bit patterns: both zeros, infinities, subnormals, NaNs of either sign and payload."""
    exponent = 0xFF << 23 if bits == 32 else 0x7FF << 52
    sign = 1 << (bits - 1)
    quiet = 1 << (22 if bits == 32 else 51)
    patterns = [0, 1, exponent, exponent | 1, exponent | quiet, exponent | quiet | 1]
    patterns += [p | sign for p in patterns]
    patterns += [rng.getrandbits(bits) for _ in range(ROWS - len(patterns))]
    unsigned, signed = (np.uint32, np.float32) if bits == 32 else (np.uint64, np.float64)
    mask = np.array([rng.random() < 0.1 for _ in patterns])
    return pa.array(np.array(patterns, dtype=unsigned).view(signed), mask=mask, from_pandas=False)


def decimals(rng: random.Random, precision: int, scale: int) -> pa.Array:
    top = 10**precision - 1
    powers = [1 << bits for bits in range(7, 127, 8)]
    edges = [0, 1, -1, top, -top]
    edges += [e for p in powers for e in (p - 1, p, -p, -p - 1) if abs(e) <= top]
    noise = [
        rng.randint(-top, top) // 10 ** rng.randrange(precision) for _ in range(ROWS - len(edges))
    ]
    context = Context(prec=60)
    values = [Decimal(u).scaleb(-scale, context) for u in edges + noise]
    return pa.array(with_nulls(rng, values), pa.decimal128(precision, scale))


def strings(rng: random.Random) -> pa.Array:
    letters = "a\0é漢😀z"
    values = ["".join(rng.choices(letters, k=rng.randrange(70))) for _ in range(ROWS)]
    return pa.array(with_nulls(rng, values), pa.string())


def binaries(rng: random.Random) -> pa.Array:
    values = [rng.randbytes(size % 140) for size in range(ROWS)]
    return pa.array(with_nulls(rng, values), pa.binary())


def booleans(rng: random.Random) -> pa.Array:
    return pa.array(with_nulls(rng, [rng.random() < 0.5 for _ in range(ROWS)]), pa.bool_())


MAKERS: dict[str, Callable[[random.Random], pa.Array]] = {
    "boolean": booleans,
    "byte": lambda rng: integers(rng, 8, pa.int8()),
    "short": lambda rng: integers(rng, 16, pa.int16()),
    "int": lambda rng: integers(rng, 32, pa.int32()),
    "long": lambda rng: integers(rng, 64, pa.int64()),
    "float": lambda rng: floats(rng, 32),
    "double": lambda rng: floats(rng, 64),
    "date": lambda rng: moments(rng, 700_000, pa.int32(), pa.date32()),
    "timestamp": lambda rng: moments(rng, 6 * 10**16, pa.int64(), pa.timestamp("us", "UTC")),
    "timestamp_ntz": lambda rng: moments(rng, 6 * 10**16, pa.int64(), pa.timestamp("us")),
    "decimal_1_0": lambda rng: decimals(rng, 1, 0),
    "decimal_9_2": lambda rng: decimals(rng, 9, 2),
    "decimal_18_6": lambda rng: decimals(rng, 18, 6),
    "decimal_19_0": lambda rng: decimals(rng, 19, 0),
    "decimal_25_10": lambda rng: decimals(rng, 25, 10),
    "decimal_38_0": lambda rng: decimals(rng, 38, 0),
    "decimal_38_38": lambda rng: decimals(rng, 38, 38),
    "string": strings,
    "binary": binaries,
}


@pytest.fixture(scope="module")
def columns() -> dict[str, pa.Array]:
    rng = random.Random(SEED)
    return {name: maker(rng) for name, maker in MAKERS.items()}


def several(case: int) -> tuple[list[str], int]:
    """A drawn key, and into how many groups it goes."""
    rng = random.Random(SEED + case)
    names = rng.sample(list(MAKERS), rng.randint(2, 7))
    return names, rng.choice([1, 7, 100, 1000, 32768])


KEYS = {**{name: ([name], 128) for name in MAKERS}, **{str(i): several(i) for i in range(8)}}


@pytest.fixture(scope="module")
def sparks(spark: SparkSession, columns: dict[str, pa.Array]) -> pa.Table:
    """Spark's xxhash64 and key group of each key, row by row."""
    from pyspark.sql import functions as f

    chosen = []
    for key, (names, max_parallelism) in KEYS.items():
        value = f.xxhash64(*names)
        group = f.pmod(value, f.lit(max_parallelism)).cast("int")
        chosen += [value.alias(f"{key} hash"), group.alias(f"{key} group")]
    return spark.createDataFrame(pa.table(columns)).select(*chosen).toArrow()


@pytest.mark.parametrize("key", KEYS)
def test_keys_hash_as_sparks_do(sparks: pa.Table, columns: dict[str, pa.Array], key: str) -> None:
    names, max_parallelism = KEYS[key]
    keys = {name: columns[name] for name in names}
    hashes = sparks[f"{key} hash"].to_numpy().view(np.uint64)
    groups = sparks[f"{key} group"].to_numpy()
    ours = hash_keys(list(keys.values()))
    different = np.flatnonzero(ours != hashes)
    if len(different):
        row = int(different[0])
        key = {name: column[row] for name, column in keys.items()}
        pytest.fail(f"{len(different)} keys hash differently, first row {row}: {key}")
    assert [key_group(int(h), max_parallelism) for h in ours] == groups.tolist()


def test_a_null_leaves_the_seed(columns: dict[str, pa.Array]) -> None:
    nothing = pa.nulls(ROWS, pa.int64())
    assert set(hash_keys([nothing]).tolist()) == {42}
    for column in columns.values():
        assert (hash_keys([nothing, column]) == hash_keys([column])).all()


def test_slices_hash_like_copies(columns: dict[str, pa.Array]) -> None:
    for name, column in columns.items():
        whole = hash_keys([column])
        part = hash_keys([column.slice(1013, 999)])
        assert (part == whole[1013 : 1013 + 999]).all(), name
