"""The files that tasks write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystate.spark.tasks import parquet_file
from pystate.spark.tasks.parquet_file import ParquetFile, part_name

SCHEMA = pa.schema([pa.field("n", pa.int64())], {"by": "a test"})


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=SCHEMA)


def test_rows_come_in_their_order_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_file, "_GROUP_BYTES", 8_000)
    sizes = [10, 999, 0, 3_000, 1, 400, 400, 400, 5, 2_000]
    file = ParquetFile(str(tmp_path / "a" / "b"), "f.parquet", SCHEMA, {"store_schema": False})
    end = 0
    for size in sizes:
        file.write(batch(*range(end, end + size)))
        end += size
    size_bytes = file.finish()
    path = tmp_path / "a" / "b" / "f.parquet"
    assert file.rows == end and path.stat().st_size == size_bytes
    found = pq.ParquetFile(path)
    assert found.read().column("n").to_pylist() == list(range(end))
    assert found.metadata.metadata == {b"by": b"a test"}
    assert 2 <= found.num_row_groups < len(sizes)


def test_a_batch_may_change_after_it_was_written(tmp_path: Path) -> None:
    numbers = np.arange(5)
    rows = pa.RecordBatch.from_arrays([pa.array(numbers)], schema=SCHEMA)
    file = ParquetFile(str(tmp_path), "f.parquet", SCHEMA)
    for _ in range(2):
        file.write(rows)
        numbers += 10
        assert rows.column(0)[0].as_py() == numbers[0], "the batch has the array's memory"
    file.finish()
    found = pq.read_table(tmp_path / "f.parquet").column("n").to_pylist()
    assert found == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_a_file_without_rows_has_its_columns(tmp_path: Path) -> None:
    file = ParquetFile(str(tmp_path), "f.parquet", SCHEMA)
    file.finish()
    assert pq.read_table(tmp_path / "f.parquet").schema.equals(SCHEMA)


@pytest.mark.parametrize("written", [0, 1])
def test_a_discarded_file_is_gone(tmp_path: Path, written: int) -> None:
    file = ParquetFile(str(tmp_path), "f.parquet", SCHEMA)
    for number in range(written):
        file.write(batch(number))
    file.discard()
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = ParquetFile(str(tmp_path), "f.parquet", SCHEMA)
    file.write(batch(1))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*f\.parquet"):
        file.finish()
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_names_are_never_the_same() -> None:
    names = {part_name(7) for _ in range(100)}
    assert len(names) == 100 and all(name.startswith("part-00007-") for name in names)


@pytest.mark.parametrize("options", [{"compression": "strange"}, {"strange": 1}])
def test_without_a_writer_there_is_no_file(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises((pa.ArrowException, TypeError), match="strange"):
        ParquetFile(str(tmp_path), "f.parquet", SCHEMA, options)
    assert not any(tmp_path.iterdir())
