"""Outputs of a pipeline that returns several frames."""

from __future__ import annotations

from pathlib import Path

from pystate.spark.sinks.outputs import RESULTS, Outputs
from pystate.spark.sinks.parquet import ParquetSink


def test_each_name_has_a_folder_of_its_own_in_the_checkpoint(tmp_path: Path) -> None:
    given = Outputs(ParquetSink(str(tmp_path / "results")), {}, str(tmp_path), default=True)
    names = [".", "..", "...", ".a", "a/b", "a b", "%2E", "users"]
    found = given.for_names(names)
    folders = found.folders()
    assert len(set(folders)) == len(names)
    assert {str(Path(folder).parent) for folder in folders} == {str(tmp_path / RESULTS)}
    for folder in folders:
        (Path(folder) / "epoch=1").mkdir(parents=True)
    assert sorted(given.of_epoch(1, None).mains) == sorted(names)
