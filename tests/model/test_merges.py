"""Epochs over all kinds of state while parallelism changes, states come and go, and bases merge."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.state_files import FileInfo, open_file
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.merge_policy import DiskMergePolicy, MergePolicy
from pystate.epochs.range_report import RangeReport
from pystate.maintenance.verification import verify
from pystate.state.declaration import State
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.attach import TableCache
from pystate.tables.host import TableHome, choose_home
from pystate.tables.options import DISK, TableOptions
from pystate.tables.recovery import TableSpec
from pystate.types.keys import parse_key
from tests.conftest import coordinator_of

KEY = (("k", "bigint"),)
KEYS = 24
GROUPS = [ps.key_group(int(h), 128) for h in ps.hash_keys([pa.array(range(KEYS))])]
ALL: dict[str, State] = {
    "v": ps.ValueState("long"),
    "l": ps.ListState("long"),
    "m": ps.MapState("string", "long"),
}
#: What a state's name may stand for at other times.
KINDS: Sequence[State] = [*ALL.values(), ps.ListState("int"), ps.MapState("string", "int")]
#: What one row does: the key, what to do, and a number to do it with.
Row = tuple[int, str, int]
#: A key's states by name, absent ones left out, and its timers.
Model = dict[int, dict[str, Any]]


class Operator:
    """An operator's tasks, as a job would run them."""

    def __init__(self, storage: LocalStorage, home: TableHome | None = None) -> None:
        self.storage = storage
        self.home = home
        self.cache = TableCache()
        self.states = ALL
        self.timers = True
        self.base_part = 0.5
        self.options = TableOptions(allow_unclaimed_state=True)

    def coordinator(self, parallelism: int, **options: Any) -> Coordinator:
        policy = MergePolicy(min_deltas=3, max_deltas=5, keep_deltas=1, base_part=self.base_part)
        options = {"retained": 1, "orphan_grace_ms": 0, "merge_policy": policy, **options}
        return coordinator_of(self.storage, job="model", parallelism=parallelism, **options)

    def evaluate(self, epoch: Epoch, rows: Sequence[Row]) -> tuple[()]:
        stored = tuple((name, state.stored_as()) for name, state in self.states.items())
        for state in epoch.declare("op", key_schema=KEY, state_schema=stored, timers=self.timers):
            epoch.report(self.report(epoch, state, [r for r in rows if holds(state, r[0])]))
        return ()

    def report(self, epoch: Epoch, state: RangeState, rows: Sequence[Row]) -> RangeReport:
        ref, evaluation = None, epoch.evaluation_id
        timers = state.next_event_timer_ms
        if rows:
            with self.attached(state) as backend:
                for row in rows:
                    self.apply(backend, row)
                timers = backend.next_timer("event")
                ref = self.sealed(backend, state, epoch.number) if backend.dirty else None
        return RangeReport(
            "op",
            state.index,
            evaluation,
            state.id if ref is None else ref.id,
            state.id,
            ref,
            next_event_timer_ms=timers,
        )

    def sealed(self, backend: ps.KeyedStateBackend, state: RangeState, epoch: int) -> FileRef:
        lineage = ps.Lineage(uuid.uuid4().bytes, bytes.fromhex(state.id), epoch)
        bounds = state.first_key_group, state.last_key_group
        path = state_path("op", *bounds, epoch, lineage.id.hex(), "delta")
        with backend.seal(lineage) as snapshot, self.storage.create(path) as out:
            info = snapshot.write(out)
        return FileRef.from_info(path, info)

    @contextmanager
    def attached(
        self, state: RangeState, *, from_files: bool = False
    ) -> Iterator[ps.KeyedStateBackend]:
        cache = TableCache() if from_files or self.home is None else self.cache
        spec = TableSpec(
            self.storage,
            TableHome(None, None) if from_files or self.home is None else self.home,
            OperatorSpec("op", parse_key(KEY), self.states, timers=self.timers),
            self.options,
        )
        with cache.attach(spec, state) as attachment:
            yield attachment.backend
        if cache is not self.cache:
            cache.close()

    def apply(self, backend: ps.KeyedStateBackend, row: Row) -> None:
        key, what, number = row
        backend.set_current_key(key)
        if what == "put":
            for name in self.states:
                put(backend[name], number)
            if self.timers:
                backend.register_timer("event", number)
        elif what == "delete":
            for name in self.states:
                backend[name].clear()
        else:
            for name, state in self.states.items():
                if isinstance(state, ps.MapState):
                    backend[name].remove(str(number % 3))
            if self.timers:
                backend.delete_timer("event", number)

    def read(self, manifest: Manifest) -> Model:
        """The state by the manifest's files alone."""
        found: Model = {}
        [operator] = manifest.operators
        for state in operator.ranges:
            with self.attached(state, from_files=True) as backend:
                for key in [k for k in range(KEYS) if holds(state, k)]:
                    backend.set_current_key(key)
                    row = {name: plain(backend[name]) for name in self.states}
                    found[key] = {name: value for name, value in row.items() if value}
                while self.timers and (due := backend.due_timers("event", 1 << 40)):
                    for key, time_ms in zip(due.keys.to_pylist(), due.timestamps, strict=True):
                        found[key].setdefault("timers", set()).add(int(time_ms))
                    due.fire_all()
        return {key: row for key, row in found.items() if row}


def put(handle: Any, number: int) -> None:
    if hasattr(handle, "put"):
        handle.put(str(number % 3), number)
    elif hasattr(handle, "value"):
        handle.update(number)
    else:
        handle.add(number)


def plain(handle: Any) -> Any:
    if hasattr(handle, "value"):
        return handle.value()
    return dict(handle.items()) if hasattr(handle, "items") else list(handle.get())


def holds(state: RangeState, key: int) -> bool:
    return state.first_key_group <= GROUPS[key] <= state.last_key_group


def follow(model: Model, rows: Sequence[Row], states: Mapping[str, State], timers: bool) -> None:
    """Do to the model what `Operator.apply` does to a table."""
    for key, what, number in rows:
        row = model.setdefault(key, {})
        for name, state in states.items():
            if what == "delete":
                row.pop(name, None)
            elif isinstance(state, ps.MapState):
                entries = row.setdefault(name, {})
                entries.pop(str(number % 3), None)
                entries.update({str(number % 3): number} if what == "put" else {})
            elif what == "put" and isinstance(state, ps.ListState):
                row.setdefault(name, []).append(number)
            elif what == "put":
                row[name] = number
        waiting = row.setdefault("timers", set())
        if what == "take":
            waiting.discard(number)
        elif what == "put" and timers:
            waiting.add(number)
    tidy(model)


def tidy(model: Model) -> None:
    for key, row in list(model.items()):
        model[key] = {name: value for name, value in row.items() if value}
        if not model[key]:
            del model[key]


def redeclare(rng: random.Random, operator: Operator, model: Model) -> None:
    """States go, for good; others come, also under their names."""
    gone = [name for name in operator.states if rng.random() < 0.3]
    if operator.timers and rng.random() < 0.3:
        operator.timers = False
        gone.append("timers")
    elif rng.random() < 0.5:
        operator.timers = True
    for row in model.values():
        for name in gone:
            row.pop(name, None)
    tidy(model)
    kept = {name: state for name, state in operator.states.items() if name not in gone}
    new = {name: rng.choice(KINDS) for name in "vlm" if name not in operator.states}
    operator.states = {**kept, **{name: new[name] for name in new if rng.random() < 0.6}}
    operator.states = operator.states or {f"x{rng.randrange(1 << 30)}": ps.ValueState("long")}


def some_rows(rng: random.Random, epoch: int) -> list[Row]:
    """Keys of one corner at a time, so that ranges are idle now and then."""
    keys = rng.sample(range(KEYS), rng.choice((0, 1, 4, 12)))
    return [
        (key, rng.choice(("put", "put", "put", "delete", "take")), rng.randrange(1, 6 + epoch))
        for key in keys
        for _ in range(rng.choice((1, 1, 3)))
    ]


def run(coordinator: Coordinator, operator: Operator, rows: Sequence[Row]) -> Manifest:
    """One epoch, and the merges that it asks for."""
    coordinator.run(lambda epoch: operator.evaluate(epoch, rows))
    coordinator.maintain()
    assert coordinator.head is not None
    return coordinator.head


def test_deletions_of_a_former_range_outlive_merges(tmp_path: Path) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(2) as coordinator:
        run(coordinator, operator, [(key, "put", key) for key in range(20)])
        run(coordinator, operator, [(key, "put", key + 1) for key in range(20)])
        run(coordinator, operator, [(key, "delete", 0) for key in range(20)])
    timers = {key: {"timers": {key, key + 1}} for key in range(20)}
    policy = MergePolicy(min_deltas=3, max_deltas=5, keep_deltas=2)
    with operator.coordinator(1, merge_policy=policy) as coordinator:
        bases = set()
        for number in range(6):
            head = run(coordinator, operator, [(23, "put", number)])
            assert {key: row for key, row in operator.read(head).items() if key < 20} == timers
            bases.add(head.operators[0].ranges[0].base)
    # The first ended among the files of a former range.
    assert len(bases - {None}) > 1


def test_idle_range_takes_no_state_away(tmp_path: Path) -> None:
    """A merge of several former ranges keeps what only some of them have files of."""
    operator = Operator(LocalStorage(tmp_path))
    low = [key for key in range(KEYS) if GROUPS[key] < 64]
    high = next(key for key in range(KEYS) if GROUPS[key] >= 64)
    operator.states = {"v": ALL["v"]}
    with operator.coordinator(2) as coordinator:
        for _ in range(2):
            run(coordinator, operator, [(key, "put", 1) for key in range(KEYS)])
        operator.states = ALL
        run(coordinator, operator, [(key, "put", 2) for key in low])
    with operator.coordinator(1) as coordinator:
        for number in range(3):
            head = run(coordinator, operator, [(high, "put", number)])
    assert head.operators[0].ranges[0].base is not None
    assert [operator.read(head)[key]["l"] for key in low] == [[2]] * len(low)


@pytest.mark.parametrize("seed", range(8))
def test_states_that_come_and_go(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    shared = choose_home(bytes(32), shm=str(tmp_path), least_bytes=0) if seed % 2 else None
    operator = Operator(LocalStorage(tmp_path / "ck"), shared)
    # Deltas become larger deltas in some cases, and bases in others.
    operator.base_part = 100 if seed // 2 % 2 else 0.5
    deltas = 0
    model: Model = {}
    dropping = {"allow_unclaimed_state": True}
    coordinator = operator.coordinator(1 + seed % 3, **dropping)
    for epoch in range(24):
        if epoch and rng.random() < 0.3:
            if rng.random() < 0.3:
                coordinator.close()
                coordinator = operator.coordinator(rng.choice((1, 2, 3)), **dropping)
            redeclare(rng, operator, model)
        rows = some_rows(rng, epoch)
        head = run(coordinator, operator, rows)
        follow(model, rows, operator.states, operator.timers)
        assert operator.read(head) == model, f"epoch {epoch + 1}"
        deltas += merged_deltas(head)
    coordinator.close()
    operator.cache.close()
    assert (deltas > 5) == (operator.base_part > 1)


@pytest.mark.parametrize("seed", range(3))
def test_bases_in_slices(tmp_path: Path, seed: int) -> None:
    """Tables at hand go on with them, and a rescale takes them over."""
    rng = random.Random(seed)
    home = choose_home(bytes(32), shm=str(tmp_path), least_bytes=0)
    operator = Operator(LocalStorage(tmp_path / "ck"), home)
    policy = DiskMergePolicy(
        min_deltas=2, max_deltas=9, keep_deltas=1, base_part=3, slice_above_bytes=0, slice_bytes=1
    )
    model: Model = {}
    coordinator = operator.coordinator(1, merge_policy=policy)
    sliced = caught_up = 0
    for epoch in range(40):
        if epoch > 20 and rng.random() < 0.2:
            coordinator.close()
            coordinator = operator.coordinator(rng.choice((1, 2)), merge_policy=policy)
        rows = some_rows(rng, epoch)
        head = run(coordinator, operator, rows)
        follow(model, rows, ALL, timers=True)
        assert operator.read(head) == model, f"epoch {epoch + 1}"
        for state in head.operators[0].ranges:
            assert state.depth <= 20
            bases = [ref for ref in state.files if ref.kind == "base"]
            sliced += len({ref.path.split("/")[-2] for ref in bases}) > 2
            if state.deltas:
                with operator.attached(state) as backend:
                    caught_up += 1
                    assert backend.lineage().id.hex() == state.id  # type: ignore[union-attr]
    coordinator.close()
    operator.cache.close()
    assert sliced > 10 and caught_up, (sliced, caught_up)
    assert verify(str(tmp_path / "ck")).ok


@pytest.mark.parametrize("sliced", [False, True])
def test_files_of_other_homes_get_guides_first(tmp_path: Path, sliced: bool) -> None:
    """Where a driver of tables on disk goes on; tables in memory then read what there is."""
    rng = random.Random(1)
    operator = Operator(LocalStorage(tmp_path))
    model: Model = {}
    memory, block = operator.options, 8192
    disk = TableOptions(DISK, allow_unclaimed_state=True, block_bytes=block)
    policy = DiskMergePolicy(block_bytes=block, slice_above_bytes=0 if sliced else 1 << 30)

    def blocks(head: Manifest) -> list[int]:
        found = []
        for ref in head.operators[0].files:
            with open_file(tmp_path / ref.path) as opened:
                found.append(FileInfo(*opened.reader.info()).block_bytes)
        return found

    def some_epochs(options: TableOptions, count: int, **more: Any) -> list[list[int]]:
        operator.options = options
        found = []
        with operator.coordinator(2, **more) as coordinator:
            for epoch in range(count):
                rows = [*some_rows(rng, epoch), (1, "put", epoch), (2, "put", epoch)]
                head = run(coordinator, operator, rows)
                follow(model, rows, ALL, timers=True)
                assert operator.read(head) == model
                found.append(blocks(head))
        return found

    [*_, before] = some_epochs(memory, 6)
    assert set(before) == {0}
    first, *_, last = some_epochs(disk, 8, merge_policy=policy)
    assert set(last) == {block}
    assert sliced or first.count(0) < len(before)
    _, *_, last = some_epochs(memory, 6)
    assert set(last) >= {0}
    [*_, last] = some_epochs(disk, 8, merge_policy=policy)
    assert set(last) == {block}


def merged_deltas(head: Manifest) -> int:
    """How many deltas of an epoch were merged from others."""
    return sum(ref.kind == "delta" and "-t" in ref.path for ref in head.operators[0].files)


@pytest.mark.parametrize("seed", range(4))
def test_merges_under_changing_parallelism(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    operator = Operator(LocalStorage(tmp_path))
    operator.base_part = 100 if seed % 2 else 0.5
    model: Model = {}
    coordinator = operator.coordinator(2)
    merged = mixed = 0
    for epoch in range(30):
        if epoch and rng.random() < 0.3:
            coordinator.close()
            coordinator = operator.coordinator(rng.choice((1, 2, 3, 5, 7)))
        rows = some_rows(rng, epoch)
        head = run(coordinator, operator, rows)
        follow(model, rows, ALL, timers=True)
        assert operator.read(head) == model, f"epoch {epoch + 1}"
        for state in head.operators[0].ranges:
            merged += state.base is not None
            mixed += len({(f.first_key_group, f.last_key_group) for f in state.files}) > 1
    coordinator.close()
    assert merged and mixed
