"""Records of epochs, from version 4 on, must tell for ever which files are an epoch's state.

``tests/compat/records4`` was written once by ``python -m tests.compat.test_golden_records`` and
the folder's name, and is never written again: a later version gets a folder of its own. Its
manifests are left out.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import pystate as ps
from tests.work import Work, read

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("records*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_manifest_is_made_anew(version: str, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(HERE / version, root)
    plan = ps.repair(root, owner_is_gone=True)
    assert (plan.remade, plan.lost, plan.unknown) == (3, (), ())
    assert ps.verify(root).ok
    assert read(root) == {1: 3, 2: 1, 3: 1, 4: 1}
    record = ps.history(root).records[-1]
    assert record.operators[0].since == () and record.run_key == "run 2"


if __name__ == "__main__":
    work = Work(HERE / sys.argv[1])
    with work.coordinator() as driver:
        for number in range(3):
            work.run(driver, {1: 1, number + 2: 1}, run_key=f"run {number}")
    shutil.rmtree(work.root / "manifests")
