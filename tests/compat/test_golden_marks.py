"""The marks of retired epochs must tell for ever up to which epoch run keys are kept.

``tests/compat/marks1`` was written once by ``python -m tests.compat.test_golden_marks marks1`` and
is never written again: a change of the form gets a folder of its own. The marks of versions before
it are empty, and tell nothing.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pystate.checkpoint.manifest_log import check_runs, mark_retired
from pystate.checkpoint.run_keys import RunKeys
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("marks*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_marks_tell_of_run_keys(version: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / version, tmp_path / "copy")
    storage = LocalStorage(tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"runs/ are lost that hold .* from epoch 1 on"):
        check_runs(storage)
    RunKeys(storage).add("three", 3)
    assert check_runs(storage) == 3


def test_empty_marks_tell_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("manifests/00000004.retired", b"")
    assert check_runs(storage) == 0


if __name__ == "__main__":
    made = LocalStorage(HERE / sys.argv[1])
    mark_retired(made, RunKeys(made), 4, None, 3)
    shutil.rmtree(HERE / sys.argv[1] / "runs")
