"""Every command over a checkpoint of every format version: what it writes is read back.

Whoever upgrades takes a savepoint of the old checkpoint first, or rescales, repairs or rewrites it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import SchemaError
from pystate.processor.state_writer import StateRows
from tests.conftest import coordinator_of

HERE = Path(__file__).parent
GOLDEN = sorted(
    str(path.parent.relative_to(HERE))
    for path in HERE.rglob("job.json")
    if (path.parent / "manifests").is_dir()  # of the others none is opened before it is repaired
)


def rows(folder: Path, epoch: int | None = None) -> list[str]:
    """All rows of the operator that every golden checkpoint has, in an order of their own."""
    uid = ps.describe(folder).operators[0].uid
    return sorted(map(repr, ps.read_state(folder, uid, epoch=epoch).to_pylist()))


def taken(folder: Path) -> Path:
    ps.savepoint(folder, folder.parent / "savepoint")
    return folder.parent / "savepoint"


def savepoint(folder: Path) -> Path:
    return taken(folder)


def savepoint_of_a_savepoint(folder: Path) -> Path:
    ps.rescale(taken(folder), folder.parent / "again", max_parallelism=256)
    return folder.parent / "again"


def rescale(folder: Path) -> Path:
    ps.rescale(folder, folder.parent / "wide", max_parallelism=1024)
    return folder.parent / "wide"


def restore(folder: Path) -> Path:
    """A job begins with a savepoint, and has an epoch of its own."""
    storage = LocalStorage(folder.parent / "begun")
    assert begin_with(LocalStorage(taken(folder)), storage, job="begun")
    return go_on(folder.parent / "begun", "begun")


def checkpoint(folder: Path) -> Path:
    """The store is opened and has a checkpoint of its own, or the job an epoch."""
    found = ps.describe(folder)
    if found.owner is not None:
        return go_on(folder, found.job)
    [operator] = found.operators
    states = StateRows.read(folder).states
    for retained in (3, 1):
        with ps.open(folder, key=list(operator.key.items()), states=states) as opened:
            assert len(opened) == len(rows(folder))
            opened.set_current_key(next(iter(opened)))
            for name, state in states.items():  # the key is written, but nothing of it changes
                value = opened[name].value() if isinstance(state, ps.ValueState) else None
                if isinstance(value, int):
                    opened[name].update(value)
            assert opened.checkpoint() > found.epochs[-1], retained
    return folder


def go_on(folder: Path, job: str) -> Path:
    for number in range(2):
        with coordinator_of(
            LocalStorage(folder),
            job=job,
            parallelism=2,
            retained=1,
            commit_sinks=lambda manifest: None,
            allow_unclaimed_state=True,
        ) as driver:
            driver.run(lambda epoch: (), run_key=f"run {number}")
            driver.maintain()
    return folder


def write(folder: Path) -> Path:
    """Another operator is written beside it, and then left out again."""
    other = StateRows({"k": [1, 2], "n": [3, 4]}, {"k": "long"}, {"n": ps.ValueState("long")})
    base, made = taken(folder), folder.parent / "written"
    ps.write_state(made, {"zzz": other}, base=base)
    assert ps.read_state(made, "zzz").num_rows == 2
    ps.write_state(folder.parent / "removed", {}, base=made, remove=["zzz"])
    assert [o.uid for o in ps.describe(folder.parent / "removed").operators] != ["zzz"]
    return folder.parent / "removed"


def rewrite(folder: Path) -> Path:
    """The operator's own rows are read and written."""
    uid = ps.describe(folder).operators[0].uid
    ps.write_state(
        folder.parent / "rewritten", {uid: StateRows.read(folder, uid)}, base=taken(folder)
    )
    return folder.parent / "rewritten"


def repair(folder: Path) -> Path:
    latest = folder / "manifests" / "latest"
    latest.write_bytes(b"[" + latest.read_bytes()[1:])
    (folder / "state" / f"{0:08d}-{'ab' * 16}.delta").write_bytes(b"an orphan")
    assert ps.repair(folder, owner_is_gone=True).marks == ("manifests/latest",)
    return folder


def repair_of_an_epoch(folder: Path) -> Path:
    """The newest epoch is made anew, or given up where there is one before it."""
    epochs = ps.describe(folder).epochs
    if len(epochs) > 1:
        copy = folder.parent / "damaged"
        shutil.copytree(folder, copy)
        (copy / "manifests" / f"{epochs[-1]:08d}.manifest").unlink()
        done = ps.repair(copy, owner_is_gone=True)
        assert done.good_epoch == (done.remade or epochs[-2])
        assert rows(copy) == rows(folder, done.good_epoch) and ps.verify(copy).ok
    return folder


def collect(folder: Path) -> Path:
    ps.collect(folder, older_than=0, owner_is_gone=True)
    return folder


def look(folder: Path) -> Path:
    """Whatever only reads."""
    uid, epochs = ps.describe(folder).operators[0].uid, ps.describe(folder).epochs
    assert {record.epoch for record in ps.history(folder).records} <= set(range(epochs[-1] + 1))
    assert set(ps.state_metadata(folder)["epoch"].to_pylist()) == {*epochs}
    scanned = [row for batch in ps.scan_state(folder, uid) for row in batch.to_pylist()]
    assert sorted(map(repr, scanned)) == rows(folder)
    if len(epochs) > 1:
        with suppress(SchemaError):  # where a state became one of another kind meanwhile
            assert ps.changes(folder, uid, from_epoch=epochs[0]).num_rows
    ps.export_state(folder, folder.parent / "exported", uid)
    parts = (folder.parent / "exported").rglob("*.parquet")
    assert sum(pq.read_metadata(part).num_rows for part in parts) == len(rows(folder))
    return folder


COMMANDS = (
    savepoint,
    savepoint_of_a_savepoint,
    rescale,
    restore,
    checkpoint,
    write,
    rewrite,
    repair,
    repair_of_an_epoch,
    collect,
    look,
)


#: What meets each format whatever wrote it; the others read and write it as these do.
EVERYWHERE = (rescale, checkpoint, rewrite, look)
CASES = [
    pytest.param(golden, command, marks=[] if is_ordinary else [pytest.mark.slow])
    for golden in GOLDEN
    for command in COMMANDS
    for is_ordinary in [command in EVERYWHERE or golden in (GOLDEN[0], GOLDEN[-1])]
]


@pytest.mark.parametrize(("golden", "command"), CASES)
def test_what_a_command_writes_is_read_back(
    golden: str, command: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "golden"
    shutil.copytree(HERE / golden, folder)
    before = rows(folder)
    assert before and ps.verify(folder).ok
    made = command(folder)
    assert rows(made) == before
    assert ps.verify(made).ok
    if made != folder:
        assert rows(folder) == before and ps.verify(folder).ok
