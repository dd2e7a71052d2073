"""Epochs that take several steps, and in which timers are due: as in memory, whatever fails."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pystate.checkpoint.refs import FileRef, RangeState, empty_range
from pystate.checkpoint.state_files import Lineage
from pystate.spark.tasks.steps import TaskSteps
from pystate.state.list import ListState
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.host import TableHome
from tests.peer import KEY, STATES, Worker

ALL = {**STATES, "items": ListState("long")}
#: Timers that are handed out at once, and keys that are changed at once.
SOME = 250
DOMAINS: tuple[Any, ...] = ("event", "processing")
Fired = list[tuple[str, int, int, int]]


class FailedError(Exception):
    """The task has failed."""


def change(backend: KeyedStateBackend, epoch: int, seed: int, fails_after: int = 1 << 40) -> Fired:
    """An epoch; what fired. `fails_after`: so many portions of keys or timers."""
    rng, fired, done = random.Random(f"{seed} {epoch}"), Fired(), 0
    first = rng.randrange(3000)

    def pass_portion() -> None:
        nonlocal done
        done += 1
        if done > fails_after:
            raise FailedError

    for begin in range(first, first + 3000, SOME):
        keys = pa.array(range(begin, begin + SOME), pa.int64())
        batch = backend.prefetch(keys)
        backend["n"].add(batch, 1)
        backend["s"].update_all(batch, pa.array([f"<{epoch}>" * 120] * SOME))
        for domain in DOMAINS:
            # Those of many keys have one time, and some keys have several timers.
            times = [epoch * 100 + (k * 7 % 13) * 20 if k % 3 else epoch * 100 for k in range(SOME)]
            backend.register_timers(batch, domain, pa.array(times, pa.int64()))
        pass_portion()
    for domain in DOMAINS:
        while (due := backend.due_timers(domain, epoch * 100 - 10, SOME)) is not None:
            names = due.keys.key_arrays()[0].to_pylist()
            times = due.timestamps.tolist()
            due.fire_all()
            backend["n"].add(due.keys, 1000)
            backend["items"].extend(due.keys, [[at] for at in times])
            again = [at + 150 if at % 40 == 0 and at % 150 else None for at in times]
            backend.register_timers(due.keys, domain, pa.array(again, pa.int64()))
            fired += [(domain, at, key, 0) for key, at in zip(names, times, strict=True)]
            pass_portion()
    return sorted(fired)


def rows_of(backend: KeyedStateBackend) -> dict[int, Any]:
    rows = backend.to_arrow().to_pylist()
    # Which of a key's timers fires first at one time is a matter of the domain alone.
    return {row["k"]: (row["n"], row["s"], sorted(row["items"] or ())) for row in rows}


class OnDisk:
    """A range's tasks, with files of the epochs that have ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base, self.taken = folder, empty_range(0, 128, 1), 0
        self.bases: list[RangeState] = [self.base]
        self.worker = self.started()

    def started(self) -> Worker:
        options: dict[str, Any] = {"table_home": "disk", "limit_bytes": 2 << 20, "groups": 128}
        home = TableHome(None, None)
        return Worker(str(self.folder / "ck"), home, states=ALL, timers=True, **options)

    def killed(self, back: int) -> None:
        """The process has died; the job goes on from an earlier epoch."""
        self.worker.stop()
        self.worker = self.started()
        del self.bases[len(self.bases) - back :]
        self.base = self.bases[-1]

    def run(self, epoch: int, seed: int, fails_after: int = 1 << 40) -> Fired:
        self.worker.attach(self.base)
        backend = self.worker.attachment.backend
        parent = bytes.fromhex(self.base.id)
        steps = TaskSteps(backend, str(self.folder / "steps"), Lineage(bytes(16), parent, 1))
        try:
            fired = change(backend, epoch, seed, fails_after)
            snapshot = None
            if backend.dirty:
                snapshot = backend.seal(Lineage(os.urandom(16), steps.last, 1))
            changes = steps.changes(snapshot)
            path = f"state/op/{changes.lineage.id.hex()}.delta"
            with self.worker.storage.create(path) as out:
                ref = FileRef.from_info(path, changes.write(out))
            changes.close()
        finally:
            self.taken += steps.taken
            steps.close()
            self.worker.release()
        self.base = dataclasses.replace(self.base, id=ref.id, deltas=(*self.base.deltas, ref))
        self.bases.append(self.base)
        return fired

    def rows(self) -> dict[int, Any]:
        self.worker.attach(self.base)
        found = rows_of(self.worker.attachment.backend)
        self.worker.release()
        return found


@pytest.mark.parametrize("seed", [1, 2])
def test_what_fails_is_done_again(seed: int, tmp_path: Path) -> None:
    """A task fails before, among and after the timers that are due; processes are killed."""
    disk, rng = OnDisk(tmp_path), random.Random(seed)
    heap = KeyedStateBackend(KEY, states=ALL, timers=True, max_parallelism=128)
    wanted: list[tuple[Fired, dict[int, Any]]] = []
    for epoch in range(1, 5):
        fired = change(heap, epoch, seed)
        heap.seal(snapshot=False)
        wanted.append((fired, rows_of(heap)))
    heap.close()
    assert sum(len(fired) for fired, _ in wanted) > 5000
    epoch = 1
    went_back = failed = failed_stepped = 0
    while epoch <= len(wanted):
        fired, rows = wanted[epoch - 1]
        portions = 12 + len(fired) // SOME
        before, disk.taken = disk.taken, 0
        for fails_after in sorted(rng.sample(range(1, portions), 2)):
            with pytest.raises(FailedError):
                disk.run(epoch, seed, fails_after)
            failed += 1
            failed_stepped += fails_after > 12 and disk.taken > 0
            if rng.random() < 0.5:
                disk.killed(0)
        assert disk.run(epoch, seed) == fired, epoch
        assert disk.taken > 1
        disk.taken += before
        assert disk.rows() == rows, epoch
        if epoch in (3, 4) and went_back < 2:
            # What was held is lost with the host.
            back = 2 if epoch == 3 else 1
            disk.killed(back)
            epoch -= back
            went_back += 1
        epoch += 1
    disk.worker.stop()
    assert went_back == 2 and failed_stepped > 3
    assert not [*(tmp_path / "steps").iterdir()]
