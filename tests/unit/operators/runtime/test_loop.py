"""The rows of a loop in a table: what is fed is read, once, whatever it is."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from pystate.errors import DeclarationError, WrongTypeError
from pystate.operators.runtime.loop import LoopSpec, LoopTable, buckets
from pystate.tables.backend import KeyedStateBackend
from tests.drawn import drawn

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int32())),
        ("o", pa.struct([("x", pa.float64())])),
    ]
)
SPEC = LoopSpec.of([(field.name, field.type) for field in SCHEMA], "loop 'l'")
ROW = hs.fixed_dictionaries(
    {
        "n": hs.none() | hs.integers(-(2**63), 2**63 - 1),
        "s": hs.none() | hs.text(max_size=3),
        "l": hs.none() | hs.lists(hs.none() | hs.integers(-9, 9), max_size=2),
        "o": hs.none() | hs.fixed_dictionaries({"x": hs.none() | hs.floats(allow_nan=False)}),
    }
)


def made(spec: LoopSpec = SPEC) -> KeyedStateBackend:
    return KeyedStateBackend.of(spec.operator("l"))


def shown(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr([row[name] for name in SCHEMA.names]) for row in rows)


def read(table: LoopTable) -> list[str]:
    return shown([row for batch in table.rows() for row in batch.to_pylist()])


def feed(table: LoopTable, rows: list[dict[str, Any]], numbers: Iterator[int]) -> None:
    bucket = pa.array([next(numbers) for _ in rows], pa.int64())
    table.feed(bucket, pa.RecordBatch.from_pylist(rows, SCHEMA))


@drawn(60)
@given(hs.lists(hs.lists(hs.lists(ROW, max_size=6), max_size=3), max_size=5), hs.integers(1, 7))
def test_each_epoch_reads_what_the_one_before_fed(
    epochs: list[list[list[dict[str, Any]]]], width: int
) -> None:
    """Also from the files of its deltas alone, and after an attempt that was rolled back."""
    files = []
    with made() as backend:
        wanted: list[str] = []
        numbers = iter(int(i) for i in np.random.default_rng(1).integers(0, width, 1000))
        for batches in epochs:
            for attempt in range(2):
                table = LoopTable(SPEC, backend)
                assert read(table) == wanted
                table.clear()
                for rows in batches[attempt:]:
                    feed(table, rows, numbers)
                if attempt == 0:
                    backend.rollback()
            wanted = shown([row for rows in batches[1:] for row in rows])
            out = io.BytesIO()
            with backend.seal() as snapshot:
                snapshot.write(out)
            files.append(out.getvalue())
            with made() as restored:
                restored.restore([io.BytesIO(data) for data in files])
                assert read(LoopTable(SPEC, restored)) == wanted
        assert backend.stats().keys <= width


def test_many_rows_are_read_in_batches() -> None:
    spec = LoopSpec.of([("n", "long")], "loop 'l'")
    rows = pa.record_batch({"n": pa.array(np.arange(150_000))})
    for number in (np.arange(150_000) % 5000, np.zeros(150_000, np.int64)):
        with made(spec) as backend:
            table = LoopTable(spec, backend)
            table.feed(pa.array(number), rows)
            found = list(table.rows())
            assert max(batch.num_rows for batch in found) <= 1 << 16
            values = np.sort(np.concatenate([batch["n"].to_numpy() for batch in found]))
            assert np.array_equal(values, np.arange(150_000))


def test_a_range_has_many_buckets() -> None:
    assert buckets(1) == 4096
    assert buckets(1000) == 32_000


def test_columns_are_checked() -> None:
    with pytest.raises(DeclarationError, match=r"^loop 'l': .*columns none: name at least one"):
        LoopSpec.of([], "loop 'l'")
    with pytest.raises(DeclarationError, match="columns a, a"):
        LoopSpec.of([("a", "int"), ("a", "int")], "loop 'l'")
    with made() as backend, pytest.raises(WrongTypeError, match=r"^loop 'l': column 'n'"):
        wrong = pa.record_batch({name: pa.array(["x"]) for name in SCHEMA.names})
        LoopTable(SPEC, backend).feed(pa.array([1]), wrong)
