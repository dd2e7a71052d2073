"""Side outputs: files that tasks write, and what the driver makes of them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystate.epochs.range_report import RangeReport, SideFile
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.spark.sinks.commits import commit
from pystate.spark.sinks.outputs import Outputs
from pystate.spark.sinks.parquet import ParquetSink
from pystate.spark.tasks.parquet_file import SideFiles


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def report(index: int, files: tuple[SideFile, ...]) -> RangeReport:
    return RangeReport("op", index, "e", "0" * 32, "0" * 32, None, side_files=files)


def written(sink: ParquetSink, index: int, *values: int, tag: str = "late") -> RangeReport:
    files = SideFiles({tag: sink.task_folder(3, "abc")}, index)
    for value in values:
        files.write(tag, batch(value))
    return report(index, files.finish())


def values(folder: Path) -> list[int]:
    return sorted(pq.read_table(folder)["v"].to_pylist())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("**/*") if path.is_file())


def test_reported_files_are_committed_and_no_others(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "late")
    outputs = Outputs(ParquetSink(tmp_path / "main"), {"late": sink})
    outputs.begin(3, "abc")
    reports = [written(sink, 0, 1, 2), written(sink, 1, 3), written(sink, 2)]
    # Another attempt at range 1, which does not count, ends before the driver looks...
    written(sink, 1, 99)
    assert reports[2].side_files == ()
    [transaction] = outputs.stage_sides([*reports, reports[0]], 3, "abc")
    # ... and one of range 2 long after.
    written(sink, 2, 98)
    assert not list((tmp_path / "late").glob("epoch*"))
    for _ in range(2):
        commit(transaction)
        assert values(tmp_path / "late" / "epoch=3") == [1, 2, 3]
    assert sink.epochs() == [3]
    assert not list((tmp_path / "late" / "_staging").iterdir())
    with pytest.raises(CheckpointError, match="output of another checkpoint"):
        outputs.begin(3, "abc")


def test_a_tag_without_rows_has_no_transaction(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "late")
    outputs = Outputs(ParquetSink(tmp_path / "main"), {"late": sink})
    assert outputs.stage_sides([written(sink, 0)], 3, "abc") == []
    assert not (tmp_path / "late").exists()


def test_a_discarded_evaluation_leaves_nothing(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "late")
    outputs = Outputs(ParquetSink(tmp_path / "main"), {"late": sink})
    reports = [written(sink, 0, 1), written(sink, 1, 2)]
    outputs.abort(3, "abc")
    assert names(tmp_path) == []
    with pytest.raises(CheckpointError, match=r"is not there.*all hosts share"):
        outputs.stage_sides(reports, 3, "abc")
    outputs.abort(3, "abc")
    reports = [written(sink, 0, 1)]
    outputs.stage_sides(reports, 3, "abc")
    outputs.abort(3, "abc")
    assert names(tmp_path) == []


def test_a_file_that_is_not_what_its_task_wrote(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    [file] = written(sink, 0, 1).side_files
    path = Path(sink.task_folder(3, "abc")) / file.name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"has {file.file_bytes - 1} bytes"):
        sink.stage_files([(file.name, file.file_bytes)], 3, "abc")


def test_a_task_that_fails_removes_its_files(tmp_path: Path) -> None:
    files = SideFiles({"a": str(tmp_path), "b": str(tmp_path)}, 7)
    files.write("a", batch(1))
    files.write("b", batch(2))
    files.write("b", batch())
    assert len(names(tmp_path)) == 2
    files.discard()
    assert names(tmp_path) == []
    finished = SideFiles({"a": str(tmp_path)}, 7)
    finished.write("a", batch(5, 6))
    [file] = finished.finish()
    assert (file.tag, file.rows) == ("a", 2) and file.name.startswith("part-00007-")
    assert os.path.getsize(tmp_path / file.name) == file.file_bytes
    finished.discard()
    assert names(tmp_path) == []


def test_all_types_come_back(tmp_path: Path) -> None:
    import datetime
    from decimal import Decimal

    row: dict[str, Any] = {
        "t": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
        "d": datetime.date(1969, 1, 1),
        "p": Decimal("1.50"),
        "l": [{"a": 1}, None],
        "n": None,
    }
    schema = pa.schema(
        {
            "t": pa.timestamp("us", "UTC"),
            "d": pa.date32(),
            "p": pa.decimal128(10, 2),
            "l": pa.list_(pa.struct({"a": pa.int32()})),
            "n": pa.string(),
        }
    )
    files = SideFiles({"a": str(tmp_path)}, 0)
    files.write("a", pa.RecordBatch.from_pylist([row], schema))
    [file] = files.finish()
    assert pq.read_table(tmp_path / file.name).to_pylist() == [row]


def test_sinks_that_do_not_fit(tmp_path: Path) -> None:
    main, late = ParquetSink(tmp_path / "main"), ParquetSink(tmp_path / "late")
    with pytest.raises(InvalidArgumentError, match=r"the job's sink both write to"):
        Outputs(main, {"late": ParquetSink(tmp_path / "main")})
    with pytest.raises(InvalidArgumentError, match=r"'b'.*'a'.* both write to"):
        Outputs(main, {"a": late, "b": late})
    within = ParquetSink(tmp_path / "main" / "late" / "x")
    for outputs in ((main, {"a": within}), (within, {"a": main}), ({"a": within, "b": main}, {})):
        with pytest.raises(InvalidArgumentError, match=r"x, which is within .*main, where "):
            Outputs(*outputs)
    (tmp_path / "link").symlink_to(tmp_path / "main")
    with pytest.raises(InvalidArgumentError, match="by symbolic links"):
        Outputs(main, {"a": ParquetSink(tmp_path / "link")})
    with pytest.raises(InvalidArgumentError, match=r"link/late, which is within .*main"):
        Outputs(main, {"a": ParquetSink(tmp_path / "link" / "late")})
    # The name of one begins with that of the other.
    Outputs(main, {"a": ParquetSink(tmp_path / "main-late")})


def test_reports_with_side_files_can_be_pickled(tmp_path: Path) -> None:
    one = written(ParquetSink(tmp_path), 0, 1)
    assert pickle.loads(pickle.dumps(one)) == one
