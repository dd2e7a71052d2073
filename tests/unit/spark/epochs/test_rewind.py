"""Spark's positions set back to a checkpoint, however often it is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint.manifest import Manifest, QueryProgress
from pystate.checkpoint.source_position import encode_query_id
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError
from pystate.spark.epochs.rewind import MARK, allow_rewinds, rewind


def manifest(batch: int | None) -> Manifest:
    queries = () if batch is None else (QueryProgress("q", batch, "hash", 7),)
    return Manifest(7, 6, "e", "r", 1, "h", 128, 0, 0, "pystate", (), queries=queries)


class Spark:
    """Spark's folder after some batches."""

    def __init__(self, folder: Path, *, first: int, begun: int, ended: int) -> None:
        self.storage = LocalStorage(folder)
        self.storage.replace("spark/metadata", encode_query_id("q"))
        for name, last in (("offsets", begun), ("commits", ended)):
            for batch in range(first, last + 1):
                self.storage.replace(f"spark/{name}/{batch}", b"v1", durable=False)
                self.storage.replace(f"spark/{name}/.{batch}.crc", b"crc", durable=False)

    def batches(self, name: str) -> list[int]:
        paths = [Path(entry.path).name for entry in self.storage.list(f"spark/{name}")]
        numbers = sorted(int(path) for path in paths if path.isdigit())
        # A checksum of a file that is gone would be taken for that of the next file.
        assert {path for path in paths if not path.isdigit()} <= {f".{n}.crc" for n in numbers}
        return numbers


@pytest.mark.parametrize(("begun", "ended"), [(9, 9), (9, 8), (5, 5), (5, 4)])
@pytest.mark.parametrize("last", [None, 4, 5])
def test_to_the_batch_of_the_newest_manifest(
    tmp_path: Path, begun: int, ended: int, last: int | None
) -> None:
    spark = Spark(tmp_path, first=0, begun=begun, ended=ended)
    assert rewind(spark.storage, manifest(last)) == 0  # nothing says that steps may be held
    allow_rewinds(spark.storage, allowed=True)
    newest = -1 if last is None else last
    assert rewind(spark.storage, manifest(last)) == begun - newest
    assert spark.batches("offsets") == list(range(newest + 1))
    assert spark.batches("commits") == list(range(min(newest, ended) + 1))
    assert rewind(spark.storage, manifest(last)) == 0
    allow_rewinds(spark.storage, allowed=False)
    assert not spark.storage.exists(MARK)


def test_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits never run ahead of offsets, and the next call ends what was begun."""

    class Killed(BaseException):
        pass

    steps = 0
    while True:
        spark = Spark(tmp_path / str(steps), first=2, begun=8, ended=7)
        allow_rewinds(spark.storage, allowed=True)
        left, delete = [steps], spark.storage.delete

        def killed(path: str, left: Any = left, delete: Any = delete) -> bool:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return bool(delete(path))

        monkeypatch.setattr(spark.storage, "delete", killed)
        try:
            rewind(spark.storage, manifest(4))
        except Killed:
            names = [entry.path for entry in spark.storage.list("spark")]
            numbers = {
                kind: [int(Path(n).name) for n in names if kind in n and Path(n).name.isdigit()]
                for kind in ("offsets", "commits")
            }
            for found in numbers.values():
                assert sorted(found) == list(range(2, max(found) + 1))
            # The newest commit is that of the manifest's batch or later, and offsets go last.
            assert max(numbers["commits"]) >= 4 and max(numbers["offsets"]) >= 4
            assert max(numbers["offsets"]) == 8 or max(numbers["commits"]) == 4
            monkeypatch.undo()
            rewind(spark.storage, manifest(4))
            assert spark.batches("offsets") == spark.batches("commits") == [2, 3, 4]
            steps += 1
            continue
        break
    assert steps == 2 * (3 + 4)


def test_a_position_that_spark_has_forgotten(tmp_path: Path) -> None:
    spark = Spark(tmp_path, first=5, begun=9, ended=9)
    allow_rewinds(spark.storage, allowed=True)
    with pytest.raises(CheckpointError, match="the newest epoch holds batch 4, but Spark has"):
        rewind(spark.storage, manifest(4))
    assert spark.batches("offsets") == spark.batches("commits") == [5, 6, 7, 8, 9]
