"""Leases while jobs retire epochs, readers die, and files are not what they should be."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.leases import LEASES, LeaseBook, LeaseName
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, ClosedError, InvalidArgumentError, RetiredEpochError
from pystate.maintenance.collection import collect
from pystate.maintenance.verification import verify
from pystate.query.follow import follow
from pystate.query.lease import Lease, LeaseFiles
from tests.model.test_follow import replay, wanted
from tests.model.test_merges import ALL, Operator, run
from tests.model.test_merges import follow as apply
from tests.readers import Connect

ROWS = [(key, "put", 3) for key in range(24)]


def retained(path: Path) -> list[int]:
    return sorted(int(f.name[:8]) for f in (path / "manifests").glob("*.manifest"))


def leases(path: Path) -> list[str]:
    return sorted(f.name for f in (path / "manifests/leases").glob("*"))


def test_a_lease_keeps_an_epoch_and_its_files(tmp_path: Path) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(2, retained=2) as coordinator:
        run(coordinator, operator, ROWS)
        with ps.connect(tmp_path) as reader, reader.lease() as lease:
            assert lease.epoch == 1 and len(leases(tmp_path)) == 1
            before = reader["op"].scan().read_all()
            for number in range(12):
                run(coordinator, operator, [(number, "put", number)])
            assert retained(tmp_path) == list(range(1, 14))
            pinned = ps.connect(tmp_path, epoch=1)
            assert pinned["op"].scan().read_all() == before
            assert reader["op"].scan().read_all() == before
            lease.move(12)
            lease.close()
            with pytest.raises(ClosedError, match="has ended"):
                lease.move(13)
        assert leases(tmp_path) == []
        for _ in range(2):
            run(coordinator, operator, [(1, "put", 1)])
        assert retained(tmp_path) == [14, 15]
    assert not verify(tmp_path).findings


def test_a_slow_follower_with_a_lease_gets_each_epoch(tmp_path: Path) -> None:
    operator = Operator(LocalStorage(tmp_path))
    models: list[Any] = [{}]
    known: Any = {}
    with operator.coordinator(2, retained=1) as coordinator:

        def step(rows: Any) -> None:
            run(coordinator, operator, rows)
            model = copy.deepcopy(models[-1])
            apply(model, rows, ALL, timers=True)
            models.append(model)

        step(ROWS)
        with ps.connect(tmp_path) as reader:
            with follow(LocalStorage(tmp_path), 0) as begin:
                replay(known, begin.next(0))  # type: ignore[arg-type]
            follower, late = reader.follow(lease=True), reader.follow()
            for number in range(10):
                step([(number, "put", number + 1), (number + 1, "delete", 0)])
            while (changes := follower.next(0)) is not None:
                replay(known, changes)
                assert known == wanted(models[changes.epoch])
            assert follower.epoch == 11
            follower.close()
            for _ in range(2):
                step([(1, "put", 1)])
            with pytest.raises(RetiredEpochError, match="a lease, or"):
                late.next(0)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"format": "lease", "version": 99}'])
def test_what_is_in_a_lease_does_not_matter(tmp_path: Path, content: bytes) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(1, retained=1) as coordinator:
        run(coordinator, operator, ROWS)
        name = LeaseName(1, 600, "0" * 32)
        (tmp_path / LEASES).mkdir()
        (tmp_path / name.path).write_bytes(content)
        for strange in ("x", f"{'9' * 30}-1-{'0' * 32}.lease", "00000001.lease9"):
            (tmp_path / LEASES / strange).write_bytes(content)
        (tmp_path / LEASES / "folder").mkdir()
        for number in range(5):
            run(coordinator, operator, [(1, "put", number)])
        assert retained(tmp_path) == [1, 2, 3, 4, 5, 6]
        (tmp_path / name.path).unlink()
        run(coordinator, operator, [(1, "put", 1)])
        assert retained(tmp_path)[-1] == 7 and len(retained(tmp_path)) <= 2
    assert not verify(tmp_path).findings


def test_leases_that_cannot_be_listed_fail_no_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> int:
        raise CheckpointError("refused")

    monkeypatch.setattr(LeaseBook, "keep", refused)
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(1, retained=1) as coordinator:
        for number in range(3):
            run(coordinator, operator, [(1, "put", number)])
    assert retained(tmp_path) == [1, 2, 3] and "refused" in caplog.text
    monkeypatch.undo()
    with operator.coordinator(1, retained=1) as coordinator:
        for number in range(3):
            run(coordinator, operator, [(1, "put", number)])
    assert len(retained(tmp_path)) <= 2


HOLDER = """
import sys
import pystate as ps
reader = ps.connect(sys.argv[1])
lease = reader.lease("2 seconds")
print(lease.path, flush=True)
sys.stdin.read()
"""


def test_the_lease_of_a_killed_reader_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(LeaseBook.__init__, "__defaults__", (3_600_000, lambda: now[0]))
    monkeypatch.setattr("pystate.checkpoint.leases._GRACE_S", 5.0)
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(1, retained=1) as coordinator:
        run(coordinator, operator, ROWS)
        command = [sys.executable, "-c", HOLDER, str(tmp_path)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as process:
            assert process.stdout is not None
            path = process.stdout.readline().strip()
            process.kill()
        assert (tmp_path / path).exists()
        run(coordinator, operator, [(1, "put", 1)])
        run(coordinator, operator, [(1, "put", 1)])
        assert retained(tmp_path) == [1, 2, 3]
        now[0] = 2.0
        run(coordinator, operator, [(1, "put", 1)])
        run(coordinator, operator, [(1, "put", 1)])
        assert min(retained(tmp_path)) >= 4 and (tmp_path / path).exists()
        now[0] = 7.0
        run(coordinator, operator, [(1, "put", 1)])
        assert not (tmp_path / path).exists()


def test_what_was_kept_is_retired_a_few_epochs_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pystate.epochs.housekeeping._RETIRED_AT_ONCE", 3)
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(1, retained=1) as coordinator:
        run(coordinator, operator, ROWS)
        lease = Lease(LeaseFiles(LocalStorage(tmp_path)), 1)
        for number in range(9):
            run(coordinator, operator, [(1, "put", number)])
        lease.close()
        left = []
        for number in range(6):
            run(coordinator, operator, [(1, "put", number)])
            left.append(16 - 6 + number - min(retained_above(tmp_path)) + 2)
    assert left[0] > left[1] > left[2] and left[-1] <= 2


def retained_above(path: Path) -> list[int]:
    marks = [int(f.name[:8]) for f in (path / "manifests").glob("*.retired")]
    return [epoch for epoch in retained(path) if epoch > max(marks, default=0)]


def test_a_store_keeps_what_is_leased(tmp_path: Path, connect: Connect) -> None:
    with ps.open(tmp_path, key="long", states={"n": ps.ValueState("long")}, retained=1) as store:

        def step(n: int) -> None:
            store["n"].update_all(store.keys([n]), [n])
            store.checkpoint()

        step(0)
        with connect(tmp_path) as reader, reader.lease():
            for number in range(5):
                step(number)
            assert reader["embedded"].scan().read_all().num_rows == 1
            assert len(retained(tmp_path)) == 6
        for number in range(3):
            step(number)
        assert len(retained(tmp_path)) <= 2


def test_a_lease_that_comes_too_late(tmp_path: Path) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(1, retained=1) as coordinator:
        for number in range(4):
            run(coordinator, operator, [(1, "put", number)])
        with pytest.raises(RetiredEpochError, match="read the state of epoch 4"):
            Lease(LeaseFiles(LocalStorage(tmp_path)), 1)
        with pytest.raises(InvalidArgumentError, match="no epoch 9 yet"):
            Lease(LeaseFiles(LocalStorage(tmp_path)), 9)
        assert leases(tmp_path) == []
        with (
            pytest.raises(InvalidArgumentError, match="cannot go back"),
            Lease(LeaseFiles(LocalStorage(tmp_path)), 4) as lease,
        ):
            lease.move(3)
        for wrong in ("1 ms", "2 days", None):
            with pytest.raises(ps.errors.PystateError, match="lease: duration"):
                Lease(LeaseFiles(LocalStorage(tmp_path)), 4, wrong)  # type: ignore[arg-type]


def test_a_job_without_readers_asks_for_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator(LocalStorage(tmp_path))
    asked: list[str] = []
    real = LocalStorage.list

    def listed(self: LocalStorage, prefix: str, **more: Any) -> Any:
        asked.append(prefix)
        return real(self, prefix, **more)

    with operator.coordinator(1, retained=1) as coordinator:
        run(coordinator, operator, ROWS)
        monkeypatch.setattr(LocalStorage, "list", listed)
        run(coordinator, operator, [(1, "put", 1)])
    assert not [prefix for prefix in asked if "leases" in prefix]


def test_gc_removes_leases_of_dead_readers(tmp_path: Path) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(1, retained=2) as coordinator:
        for number in range(3):
            run(coordinator, operator, [(1, "put", number)])
    dead, alive = LeaseName(2, 60, "1" * 32), LeaseName(2, 60, "2" * 32)
    for lease, age_s in ((dead, 500), (alive, 0)):
        lease.write(operator.storage, {"pid": 1})
        written = os.stat(tmp_path / lease.path).st_mtime
        os.utime(tmp_path / lease.path, (written, written - age_s))
    found = collect(tmp_path, dry_run=True, older_than=0)
    assert dead.path in found.files and alive.path not in found.files
    assert collect(tmp_path, older_than=0).removed == len(found.files)
    assert leases(tmp_path) == [alive.path.rpartition("/")[2]]
    assert retained(tmp_path) == [2, 3]
