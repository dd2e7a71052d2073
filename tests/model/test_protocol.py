"""Epochs over real tables with losers, replays, restarts, merges and rescales, against a dict."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pystate._core.core import key_group
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.refs import RangeState
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.range_report import RangeReport
from pystate.tables.host import TableHome, choose_home
from pystate.types.arrays import hash_keys
from tests.conftest import coordinator_of
from tests.peer import Worker

KEY = (("k", "bigint"),)
STATE = (("n", "bigint"), ("s", "string"))
KEYS = 60
GROUPS = {k: key_group(int(h), 128) for k, h in enumerate(hash_keys([pa.array(range(KEYS))]))}


class Cluster:
    """A driver and the hosts that it may send a range to."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = str(root / "ck")
        self.rng = random.Random(seed)
        homes = []
        for name in ("host1", "host2"):
            (root / name).mkdir()
            homes.append(choose_home(bytes(32), shm=str(root / name), least_bytes=0))
        # Two processes of the first host, one of the second, and one without shared tables.
        self.workers = [
            Worker(self.root, home, lock_timeout_ms=0)
            for home in (homes[0], homes[0], homes[1], TableHome(None, None))
        ]
        self.how: dict[str, int] = {}

    def coordinator(self, parallelism: int) -> Coordinator:
        return coordinator_of(
            LocalStorage(self.root),
            job="model",
            parallelism=parallelism,
            retained=2,
            orphan_grace_ms=0,
            merge_policy=MergePolicy(
                min_deltas=3, max_deltas=5, keep_deltas=1, base_part=self.rng.choice((0.5, 100))
            ),
        )

    def attempt(
        self, state: RangeState, counts: dict[int, int], epoch: Epoch, *, fails: bool = False
    ) -> RangeReport | None:
        """One task attempt on some host."""
        worker = self.rng.choice(self.workers)
        worker.attach(state)
        how = worker.attachment.how
        self.how[how] = self.how.get(how, 0) + 1
        mine = {
            k: n
            for k, n in counts.items()
            if state.first_key_group <= GROUPS[k] <= state.last_key_group
        }
        if mine:
            worker.add(mine)
        if fails:
            worker.release()
            return None
        if not mine and self.rng.random() < 0.5:
            worker.release()
            return RangeReport("op", state.index, epoch.evaluation_id, state.id, state.id, None)
        ref = worker.seal(epoch.number)
        worker.release()
        return RangeReport("op", state.index, epoch.evaluation_id, ref.id, state.id, ref)

    def evaluate(self, epoch: Epoch, counts: dict[int, int]) -> Sequence[Any]:
        """A job with losers: wrong results that must never be seen again."""
        wrong = dict.fromkeys(self.rng.sample(range(KEYS), 5), 1000000)
        late: list[RangeState] = []
        for state in epoch.declare("op", key_schema=KEY, state_schema=STATE):
            for _ in range(self.rng.choice((0, 0, 0, 1, 2))):
                self.attempt(state, wrong, epoch, fails=self.rng.random() < 0.3)
            report = self.attempt(state, counts, epoch)
            assert report is not None and epoch.report(report)
            if self.rng.random() < 0.2:
                late.append(state)
        if self.rng.random() < 0.15 and not epoch.discarded_evaluations:
            raise RuntimeError("executor lost")
        for state in late:
            self.attempt(state, wrong, epoch)
        return ()

    def read(self, manifest: Manifest) -> dict[int, int]:
        """The state by the manifest's files alone."""
        found: dict[int, int] = {}
        operator = manifest.operator("op")
        assert operator is not None
        for state in operator.ranges:
            reader = Worker(self.root, TableHome(None, None))
            reader.attach(state)
            part = reader.read()
            assert not part.keys() & found.keys()
            found |= part
            reader.stop()
        return found

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(tmp_path, request.param)
    yield made
    made.stop()


def check(cluster: Cluster, seed: int, epochs: int) -> None:
    rng = random.Random(f"input {seed}")
    model: dict[int, int] = {}
    parallelism, merged = 2, False
    coordinator = cluster.coordinator(parallelism)
    query = str(uuid.uuid4())
    for number in range(epochs):
        chance = rng.random()
        if chance < 0.2:
            coordinator.close()
            if chance < 0.05:
                parallelism = rng.choice((1, 2, 3, 7))
            coordinator = cluster.coordinator(parallelism)
        counts = {k: rng.randrange(1, 100) for k in rng.sample(range(KEYS), rng.choice((0, 3, 20)))}
        for _ in range(rng.choice((1, 1, 2))):  # replayed after its manifest: nothing happens
            coordinator.run(
                lambda epoch, counts=counts: cluster.evaluate(epoch, counts),  # type: ignore[misc]
                query_id=query,
                batch_id=number,
                offsets_hash=str(number),
                processing_time_ms=number,
            )
        for key, count in counts.items():
            model[key] = model.get(key, 0) + count
        if rng.random() < 0.3:
            coordinator.maintain()
        if number % 5 == 4:
            head = read_head(coordinator.storage)
            assert head is not None and head.epoch == number + 1
            assert cluster.read(head) == model
            merged |= any(state.base is not None for state in head.operators[0].ranges)
    coordinator.maintain()
    head = read_head(coordinator.storage)
    assert head is not None and cluster.read(head) == model
    assert merged
    coordinator.close()


@pytest.mark.parametrize(("cluster", "seed"), [(n, n) for n in range(3)], indirect=["cluster"])
def test_losers_never_win(cluster: Cluster, seed: int) -> None:
    check(cluster, seed, 30)
    assert cluster.how.keys() >= {"current", "undone", "caught up", "restored"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "seed"), [(n, n) for n in range(100, 130)], indirect=["cluster"]
)
def test_losers_never_win_for_long(cluster: Cluster, seed: int) -> None:
    check(cluster, seed, 200)
