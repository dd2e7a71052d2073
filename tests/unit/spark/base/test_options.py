"""What a job's options become for those that work with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pystate.epochs.merge_policy import DiskMergePolicy, MergePolicy
from pystate.errors import InvalidArgumentError
from pystate.spark import Job
from pystate.spark.base import options as module
from pystate.spark.base.arguments import checked_home
from pystate.spark.base.options import JobOptions
from pystate.tables.options import DISK


def options_of(monkeypatch: pytest.MonkeyPatch, root: Path, home: str) -> JobOptions:
    found: list[JobOptions] = []
    made = module.JobOptions.__post_init__

    def note(self: JobOptions) -> None:
        made(self)
        found.append(self)

    monkeypatch.setattr(module.JobOptions, "__post_init__", note)
    Job("job", checkpoint=str(root / "ck"), table_home=home)
    return found[-1]


def test_files_are_merged_as_tables_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options_of(monkeypatch, tmp_path, "heap").merge_policy == MergePolicy()
    made = options_of(monkeypatch, tmp_path, DISK)
    assert made.tables.on_disk
    assert made.merge_policy == DiskMergePolicy(block_bytes=made.tables.guided_block_bytes)
    assert made.merge_policy is not None and made.merge_policy.with_guides


def test_what_does_not_go_with_tables_on_disk(tmp_path: Path) -> None:
    assert checked_home(DISK, True) == DISK
    with pytest.raises(InvalidArgumentError, match=r"shared_tables=False keeps .* not in disk"):
        checked_home(DISK, False)
    with pytest.raises(InvalidArgumentError, match="memory_limit_bytes of tables on disk is 0, or"):
        Job("job", checkpoint=tmp_path / "ck", table_home=DISK, memory_limit_bytes=1000)
    with pytest.raises(InvalidArgumentError, match="disk_bytes is 0, or 67108864 at least, not 5"):
        Job("job", checkpoint=tmp_path / "ck", table_home=DISK, disk_bytes=5)
