"""A store on disk with many times more keys than memory has room for, and churn of one, limited.

Short runs always. ``pytest -m slow tests/model/test_large_store.py`` takes some minutes; what it is
made for needs an hour, a quiet machine, and 20 GB of disk:

    export PYSTATE_LARGE_KEYS=200000000 PYSTATE_LARGE_MIB=512
    export PYSTATE_CHURN_SECONDS=3600 PYSTATE_CHURN_MIB=256
    pytest -m slow -s tests/model/test_large_store.py

`PYSTATE_LARGE_FOLDER` says on which disk, by default that of ``/var/tmp``. The programs are
`tests.model.large_store` and `tests.model.churn`, which can be run by hand, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.control_groups import memory_group
from tests.model import churn
from tests.model.large_store import MIB, Life, keys_of, numbers_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk: files in memory would be no state on disk."""
    parent = os.environ.get("PYSTATE_LARGE_FOLDER", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="pystate-large-", dir=parent) as folder:
        yield Path(folder)


def test_a_number_is_found_again_by_its_key() -> None:
    numbers = np.random.default_rng(1).integers(0, 2**64, 1000, np.uint64, endpoint=False)
    assert np.array_equal(numbers_of(keys_of(numbers)), numbers)
    assert len(np.unique(keys_of(np.arange(1000, dtype=np.uint64)))) == 1000


def test_a_small_one(tmp_path: Path) -> None:
    life = Life(60_000, MIB, tmp_path)
    life.live()
    assert {"inserted", "part 2 updated", "read expired", "scanned made again"} <= {
        part.name for part in life.parts
    }


@pytest.mark.parametrize("wrong", ["total", "last", "deleted", "kept"])
def test_what_is_wrong_is_noticed(tmp_path: Path, wrong: str) -> None:
    life = Life(20_000, MIB, tmp_path)
    life.fill()
    number = np.array([13_503], np.uint64)
    keys = life.store.keys(keys_of(number if wrong != "kept" else number + np.uint64(20_000)))
    if wrong == "deleted":
        life.store.delete(keys)
    elif wrong == "total":
        life.store["total"].add(keys, 1)
    else:
        life.store["last"].update_all(keys, [5])
    life.store.checkpoint()
    if wrong != "kept":
        with pytest.raises(AssertionError, match="13503"):
            life.read("wrong")
    with pytest.raises(AssertionError), life.store.reader() as reader:
        life.scan("wrong", reader.to_batches())
    life.store.close()


@pytest.mark.slow
def test_a_large_one(disk: Path) -> None:
    keys = int(os.environ.get("PYSTATE_LARGE_KEYS", "4000000"))
    mib = int(os.environ.get("PYSTATE_LARGE_MIB", "10"))
    Life(keys, mib * MIB, disk / "store").live()


def test_short_churn(tmp_path: Path) -> None:
    said = churn.run(tmp_path, 0.2, MIB)
    assert said.live > 200_000 and said.keys and said.rounds


#: Beside the limit of a store: the pool of reads, what is gathered, written and merged, arrays of
#: the caller, and what the allocator keeps. Guides and filters come to it: half a byte per row.
BESIDE = 28 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("of", ["process", "store"])
def test_memory_of_churn(disk: Path, of: str) -> None:
    """A limit of the process is one of all that the library takes: 5 % are for what it cannot see.

    One of a store is for its table, whatever is read and merged beside.
    """
    mib = int(os.environ.get("PYSTATE_CHURN_MIB", "128"))
    limit = mib * MIB
    most = limit * 21 // 20
    if of == "store":
        most = limit + BESIDE + churn.TIMES * limit // churn.ROW_BYTES // 2
    command = [sys.executable, "-m", "tests.model.churn", "--mib", str(mib)]
    command += ["--seconds", os.environ.get("PYSTATE_CHURN_SECONDS", "60")]
    command += ["--folder", str(disk), "--most", str(most)]
    environment = {**os.environ}
    if of == "process":
        command.append("--process")
        environment["PYSTATE_MEMORY_LIMIT_BYTES"] = str(limit)
    with memory_group() as group:
        command += ["--group", str(group.folder)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            preexec_fn=group.enter,
            stdout=subprocess.PIPE,
            text=True,
        )
        kills = group.kills()
    print(done.stdout)
    assert done.returncode == 0, f"it ended with {done.returncode}; {kills} killed for memory"
    said = json.loads(done.stdout)
    assert said["most_bytes"] <= most
    assert said["group_most_bytes"] <= said["group_limit_bytes"]
