"""Manifests that name most of their files in a part: what is written is read, and how much."""

from __future__ import annotations

import dataclasses
import pickle
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

import pystate.checkpoint.parts
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import History, read_head
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.parts import Parts, part_epoch, share
from pystate.checkpoint.refs import (
    EMPTY_ID,
    FileRef,
    OperatorState,
    RangeState,
    empty_range,
    state_path,
)
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.planned_ranges import PlannedRange, PlannedRanges
from pystate.epochs.rescale import plan_rescale
from pystate.errors import CheckpointError, CorruptFileError, InvalidArgumentError, LineageError
from tests.conftest import KEY, STATE, FakeWork

GROUPS = 256


def file_of(
    rng: random.Random, uid: str, state: RangeState, epoch: int, parent: str, kind: str
) -> FileRef:
    name = f"{rng.getrandbits(128):032x}"
    first, last = state.first_key_group, state.last_key_group
    size = rng.randrange(10**6)
    path = state_path(uid, first, last, epoch, name, kind)
    checksum = rng.getrandbits(64)
    return FileRef(path, kind, name, parent, epoch, first, last, size, checksum, size, 1, size)


def grown(rng: random.Random, uid: str, state: RangeState, epoch: int) -> RangeState:
    delta = file_of(rng, uid, state, epoch, state.id, "delta")
    return dataclasses.replace(state, id=delta.id, deltas=(*state.deltas, delta))


def merged(rng: random.Random, uid: str, state: RangeState, keep: int) -> RangeState:
    sources = state.files[: len(state.files) - keep]
    base = file_of(rng, uid, state, sources[-1].epoch, sources[-1].parent, "base")
    base = dataclasses.replace(base, id=state.files[-keep].parent if keep else state.id)
    return dataclasses.replace(state, base=base, deltas=state.files[len(sources) :])


def manifest(epoch: int, operators: tuple[OperatorState, ...], **changes: Any) -> Manifest:
    fields: dict[str, Any] = {"run_id": "r", "term": 1, "host": "h", "library": "l", **changes}
    evaluation, time_ms = f"{epoch:032x}", epoch
    return Manifest(
        epoch=epoch,
        predecessor=epoch - 1,
        evaluation_id=evaluation,
        max_parallelism=GROUPS,
        processing_time_ms=time_ms,
        created_ms=time_ms,
        operators=operators,
        **fields,
    )


def operator_of(uid: str, ranges: tuple[RangeState, ...]) -> OperatorState:
    return OperatorState(uid, len(ranges), KEY, STATE, ranges)


class Written:
    """Publishes manifests as a coordinator does, and counts what that takes."""

    def __init__(self, storage: LocalStorage) -> None:
        self.storage = storage
        self.last: Manifest | None = None
        self.sizes: list[int] = []
        self.parts = 0

    def publish(self, found: Manifest) -> None:
        used = None if self.last is None else self.last.part
        use, part = share(found.operators, found.epoch, f"{found.epoch:x}", used)
        self.last = dataclasses.replace(found, part=use)
        data = self.last.encode()
        if part is not None:
            assert use is not None
            self.storage.replace(use.part.path, part, durable=False)
            self.parts += 1
        self.storage.replace(found.path, data, durable=False)
        self.sizes.append(len(data) + len(part or b""))


def drawn_operator(rng: random.Random, old: OperatorState, epoch: int) -> OperatorState:
    """Anything that may happen to an operator from one epoch to the next."""
    ranges = old.ranges
    if rng.random() < 0.05:
        width = rng.choice((1, 3, 8, 40))
        ranges = plan_rescale(old, width, GROUPS)
    share_changed = rng.choice((0, 0.1, 1))
    changed = []
    for found in ranges:
        state = found
        if rng.random() < share_changed:
            state = grown(rng, old.uid, state, epoch)
        if len(state.files) > rng.randrange(2, 30):
            state = merged(rng, old.uid, state, rng.randrange(min(3, len(state.files))))
        if rng.random() < 0.1:
            state = dataclasses.replace(state, next_event_timer_ms=rng.choice((None, -5, epoch)))
        changed.append(state)
    if rng.random() < 0.05:
        since = rng.choice(((), (("n", epoch),)))
        changed = [dataclasses.replace(state, since=since) for state in changed]
    return dataclasses.replace(old, parallelism=len(changed), ranges=tuple(changed))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("least", [0, 128])
def test_whatever_happens_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, least: int
) -> None:
    monkeypatch.setattr(pystate.checkpoint.parts, "_LEAST_FILES", least)
    rng = random.Random(seed)
    written = Written(LocalStorage(tmp_path))
    operators = tuple(
        operator_of(uid, tuple(empty_range(i, GROUPS, 8) for i in range(8))) for uid in ("a", "b/é")
    )
    kept = Parts(written.storage)
    for epoch in range(1, 40):
        operators = tuple(drawn_operator(rng, operator, epoch) for operator in operators)
        if rng.random() < 0.05:
            operators = operators[::-1]
        expected = manifest(epoch, operators)
        written.publish(expected)
        # By a reader that has just come, and by one that has read those before.
        for parts in (None, kept):
            found = read_manifest(written.storage, expected.path, parts)
            assert found == expected and found.part == written.last.part  # type: ignore[union-attr]
            assert found.encode() == written.last.encode()  # type: ignore[union-attr]
        written.last = found
        named = {ref.path for op in operators for ref in op.files}
        assert found.paths - named == ({found.part.part.path} if found.part else set())
    assert written.parts


@pytest.mark.parametrize(("changing", "most"), [(1.0, 0.1), (0.05, 0.05)])
def test_what_is_written_for_an_epoch(tmp_path: Path, changing: float, most: float) -> None:
    """Far less than all chains; and no epoch writes much more than they take in the short form."""
    rng = random.Random(1)
    written = Written(LocalStorage(tmp_path))
    ranges = tuple(empty_range(i, GROUPS, 100) for i in range(100))
    full = whole = 0
    for epoch in range(1, 100):
        ranges = tuple(
            grown(rng, "op", state, epoch) if epoch < 50 or rng.random() < changing else state
            for state in ranges
        )
        ranges = tuple(
            merged(rng, "op", s, 2) if len(s.deltas) > 40 + s.index % 25 else s for s in ranges
        )
        found = manifest(epoch, (operator_of("op", ranges),))
        written.publish(found)
        if epoch >= 50 and epoch % 10 == 0:
            full += 10 * len(dataclasses.replace(found, format_version=3).encode())
            whole = max(whole, len(found.encode()))
    assert max(written.sizes[49:]) < 1.2 * whole
    assert sum(written.sizes[49:]) < most * full


def test_few_files_take_no_part(tmp_path: Path) -> None:
    written = Written(LocalStorage(tmp_path))
    rng, state = random.Random(1), empty_range(0, GROUPS, 1)
    for epoch in range(1, 100):
        state = grown(rng, "op", state, epoch)
        written.publish(manifest(epoch, (operator_of("op", (state,)),)))
    assert written.parts == 0 and Manifest.decode(written.last.encode(), "m") == written.last  # type: ignore[union-attr]


def part_path(work: FakeWork) -> str:
    [path] = [e.path for e in work.storage.list("manifests") if part_epoch(e.path) is not None]
    return path


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pystate.checkpoint.parts, "_LEAST_FILES", 0)


@pytest.mark.usefixtures("eager")
def test_parts_come_and_go_with_their_manifests(work: FakeWork) -> None:
    seen = set()
    with work.coordinator(retained=2, orphan_grace_ms=0) as coordinator:
        for number in range(20):
            coordinator.run(work.evaluate(str(number)), run_key=str(number))
            coordinator.maintain()
            history = History(work.storage)
            history.refresh()
            named = {history.manifest(e).part.part.path for e in history.epochs}  # type: ignore[union-attr]
            stored = {e.path for e in work.storage.list("manifests") if part_epoch(e.path)}
            assert stored == named
            seen |= named
        lost = f"manifests/{20:08d}-{uuid.uuid4().hex}.part"
        running = f"manifests/{21:08d}-{uuid.uuid4().hex}.part"
        for path in (lost, running):
            work.storage.publish(path, b"")
        coordinator.maintain()
        assert work.storage.exists(running) and not work.storage.exists(lost)
    assert 3 < len(seen) < 15
    with work.coordinator(parallelism=3) as coordinator:
        coordinator.run(work.evaluate("20"))
        # Texts of two old ranges, then the new one's.
        texts = work.text(coordinator.head)  # type: ignore[arg-type]
        assert sorted(set(texts), key=int) == [str(n) for n in range(21)]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("damage", ["lost", "torn", "another"])
def test_damaged_part(work: FakeWork, damage: str) -> None:
    with work.coordinator(retained=1) as coordinator:
        coordinator.run(work.evaluate())
    path = part_path(work)
    data = work.storage.read_bytes(path)
    if damage == "lost":
        work.storage.delete(path)
    elif damage == "torn":
        work.storage.replace(path, data[:-1])
    else:
        content = {"epoch": 1, "operators": []}
        work.storage.replace(path, encode_document("part", 1, content))
    for _ in range(2):
        with pytest.raises(CorruptFileError, match=r"00000001-[0-9a-f]+\.part"):
            read_head(work.storage)
        with work.coordinator() as coordinator, pytest.raises(CorruptFileError):
            coordinator.run(work.evaluate())
    work.storage.replace(path, data)
    with work.coordinator() as coordinator:
        assert coordinator.run(work.evaluate()).epoch == 2
    # Who has only the manifest's own bytes cannot read it, and is told so.
    with pytest.raises(InvalidArgumentError, match="without its part"):
        Manifest.decode(work.storage.read_bytes(manifest_path(1)), "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranges": [None, None]}, "range 0 is not known"),
        ({"ranges": [{}]}, "does not have the 2 ranges"),
        ({"ranges": [{}, {"surprise": 1}]}, "unknown fields"),
        ({"ranges": [{}, {"next": [1]}]}, "times of timers"),
        ({"ranges": [{}, {"next": [1, "2"]}]}, "times of timers"),
        ({"ranges": [{}, {"add": [[1, "a" * 32, 1, "b" * 16, 1, 1]]}]}, "is not a delta"),
        ({"ranges": [{}, {"add": [[1, "a" * 32, 1, "b" * 15, 1, 1, 1]]}]}, "is not a delta"),
        ({"ranges": [{}, {"add": [[1, "A" * 32, 1, "b" * 16, 1, 1, 1]]}]}, "is not a delta"),
        ({"ranges": [{}, {"add": [[1, "a" * 32, -1, "b" * 16, 1, 1, 1]]}]}, "is not a delta"),
        ({"ranges": [{}, {"add": [{}]}]}, "is missing"),
    ],
)
def test_wrong_content_under_a_right_checksum(changes: dict[str, Any], message: str) -> None:
    operator = {
        "uid": "op",
        "parallelism": 2,
        "key_schema": [],
        "state_schema": [],
        "max_event_time_ms": None,
        "timers": False,
        "ranges": [{}, {}],
    }
    for content, error in (({}, None), (changes, message)):
        fields = {"epoch": 3, "operators": [{**operator, **content}]}
        data = encode_document("part", 1, fields)
        path = f"manifests/00000003-{'a' * 32}.part"
        if error is None:
            assert len(pystate.checkpoint.parts.Part.decode(data, path, GROUPS).ranges) == 2
            with pytest.raises(CorruptFileError, match="is of epoch 3"):
                pystate.checkpoint.parts.Part.decode(data, path.replace("3-", "4-"), GROUPS)
            continue
        with pytest.raises(CorruptFileError, match=error):
            pystate.checkpoint.parts.Part.decode(data, path, GROUPS)


# ---- what tasks are told ------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [64, 48])
def test_tasks_read_the_ranges_that_the_driver_planned(tmp_path: Path, parallelism: int) -> None:
    storage = LocalStorage(tmp_path)
    rng = random.Random(1)
    ranges = tuple(empty_range(i, GROUPS, 64) for i in range(64))
    for epoch in range(1, 30):
        ranges = tuple(grown(rng, "op", s, epoch) if s.index % 7 else s for s in ranges)
    ranges = tuple(merged(rng, "op", s, 3) if s.index % 5 == 1 and s.files else s for s in ranges)
    ranges = tuple(dataclasses.replace(s, next_event_timer_ms=s.index or None) for s in ranges)
    operator = operator_of("op", ranges)
    written = Written(storage)
    base = manifest(29, (operator, operator_of("other", ranges)))
    written.publish(base)
    planned = tuple(
        dataclasses.replace(state, since=(("n", 30),))
        for state in plan_rescale(operator, parallelism, GROUPS)
    )
    data = pickle.dumps(PlannedRanges(planned, "op", base, storage, GROUPS))
    assert len(data) < 1500 + 30 * parallelism < len(pickle.dumps(planned)) / 20
    found = pickle.loads(data)
    assert len(found) == parallelism
    for state, wanted in zip(found, planned, strict=True):
        names = ("index", "first_key_group", "last_key_group", "id", "since", "next_event_timer_ms")
        assert all(getattr(state, name) == getattr(wanted, name) for name in names)
        assert state.files == wanted.files
        for ref in (*wanted.files, None):
            table = EMPTY_ID if ref is None else ref.id
            assert state.deltas_after(table) == wanted.deltas_after(table)


def test_a_table_that_stands_where_it_should_reads_nothing(tmp_path: Path) -> None:
    state = grown(random.Random(1), "op", empty_range(0, GROUPS, 1), 1)
    base = manifest(1, (operator_of("op", (state,)),))
    nowhere = LocalStorage(tmp_path / "nowhere")
    [planned] = PlannedRanges((state,), "op", base, nowhere, GROUPS)
    assert planned.deltas_after(state.id) == ()
    with pytest.raises(CheckpointError, match=r"'op', range 0: .*epoch .* is over"):
        planned.deltas_after(EMPTY_ID)
    for before in (None, manifest(1, ())):
        [planned] = PlannedRanges((empty_range(0, GROUPS, 1),), "op", before, nowhere, GROUPS)
        assert planned.files == () == planned.deltas_after(EMPTY_ID)
        assert planned.deltas_after("a" * 32) is None


def test_another_manifest_in_the_place_of_the_base(tmp_path: Path) -> None:
    storage, rng = LocalStorage(tmp_path), random.Random(1)
    states = [grown(rng, "op", empty_range(0, GROUPS, 1), 1) for _ in range(2)]
    base, other = (manifest(1, (operator_of("op", (state,)),)) for state in states)
    storage.publish(other.path, other.encode())
    [planned] = PlannedRanges((states[0],), "op", base, storage, GROUPS)
    assert isinstance(planned, PlannedRange)
    with pytest.raises(LineageError, match=f"has it at {states[1].id}, and not at {states[0].id}"):
        planned.files  # noqa: B018
