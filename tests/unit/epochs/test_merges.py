"""Which files are merged, and how epochs adopt what was merged."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import pystate as ps
import pystate.epochs.merges
from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.storage import CheckpointStorage, FileEntry
from pystate.epochs.epoch import Epoch
from pystate.epochs.merge_policy import DiskMergePolicy, MergePolicy
from pystate.epochs.merges import Maintenance
from pystate.errors import CheckpointError, CorruptFileError
from pystate.state.expiring import Expiring
from tests.conftest import KEY, STATE, FakeWork
from tests.unit.epochs.test_merge_policy import delta

EAGER = MergePolicy(min_deltas=3, max_deltas=8, keep_deltas=1)


def fake_merge(
    storage: CheckpointStorage,
    sources: tuple[FileRef, ...],
    merged_id: str,
    output: str,
    first_key_group: int,
    last_key_group: int,
    kind: str = "base",
    **_: Any,
) -> FileRef:
    """Joins the texts of `FakeWork`, separated by commas."""
    text = b",".join(storage.read_bytes(source.path) for source in sources)
    storage.publish(output, text)
    parent = sources[0 if kind == "delta" else -1].parent
    at = (sources[-1].epoch, first_key_group, last_key_group)
    return FileRef(output, kind, merged_id, parent, *at, len(text), 0, 1, 0, len(text))


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pystate.epochs.merges, "merge_range", fake_merge)


class SlowMerge:
    """A merge that begins, and goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.finished = (threading.Event() for _ in range(3))
        self.note: Callable[[int], object] = len
        monkeypatch.setattr(pystate.epochs.merges, "merge_range", self.merge)

    def merge(self, *arguments: Any, **options: Any) -> FileRef:
        self.note = options["note"]
        self.begun.set()
        assert self.go_on.wait(60)
        self.finished.set()
        return fake_merge(*arguments, **options)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowMerge:
    return SlowMerge(monkeypatch)


def bases(work: FakeWork) -> list[FileEntry]:
    return [entry for entry in work.storage.list("state") if entry.path.endswith(".base")]


def run(coordinator: Any, work: FakeWork, *texts: str) -> None:
    for text in texts:
        coordinator.run(work.evaluate(text))


# ---- merges -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("merging")
def test_merged_base_is_adopted_by_the_next_epoch(work: FakeWork) -> None:
    with work.coordinator(merge_policy=EAGER, retained=1, orphan_grace_ms=0) as coordinator:
        run(coordinator, work, "a", "b", "c")
        coordinator.maintain()
        assert work.text(coordinator.head) == ["a", "b", "c"]  # type: ignore[arg-type]
        run(coordinator, work, "d")
        assert work.text(coordinator.head) == ["a,b", "c", "d"]  # type: ignore[arg-type]
        (operator,) = coordinator.head.operators  # type: ignore[union-attr]
        state = operator.ranges[0]
        assert state.base is not None and state.base.id == state.deltas[0].parent
        assert state.deltas_after(state.base.id) == state.deltas
        coordinator.maintain()
        stored = {entry.path for entry in work.storage.list("state")}
        planned = stored - coordinator.head.paths  # type: ignore[union-attr]
        assert all(path.endswith(".base") for path in planned)
        run(coordinator, work, "e", "f", "g")
        coordinator.maintain()
        run(coordinator, work, "h")
        texts = work.text(coordinator.head)  # type: ignore[arg-type]
        assert ",".join(texts) == "a,b,c,d,e,f,g,h" and len(texts) <= 5


@pytest.mark.parametrize("on_disk", [True, False])
def test_bases_on_disk_leave_out_what_has_expired(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    """By the clock of the epoch that plans them; deltas, and other homes' files, keep all."""
    given: list[tuple[str, Expiring | None]] = []

    def merge(*arguments: Any, **options: Any) -> FileRef:
        given.append((options["kind"], options["expiring"]))
        return fake_merge(*arguments, **options)

    def evaluate(epoch: Epoch) -> list[Any]:
        states = {"n": ps.ValueState("long", ttl=ps.StateTtl(seconds=1))}
        declared = Expiring.of(states, None, None)
        other = epoch.declare("other", key_schema=KEY, state_schema=STATE)
        ranges = epoch.declare("op", key_schema=KEY, state_schema=STATE, expiring=declared)
        for uid, state in [*(("op", s) for s in ranges), *(("other", s) for s in other)]:
            assert epoch.report(work.write(uid, state, epoch.number, "x", epoch.evaluation_id))
        return []

    monkeypatch.setattr(pystate.epochs.merges, "merge_range", merge)
    policy = DiskMergePolicy(min_deltas=3, keep_deltas=1) if on_disk else EAGER
    with work.coordinator(merge_policy=policy, parallelism=1) as coordinator:
        times = []
        for _ in range(4):
            coordinator.run(evaluate)
            assert coordinator.head is not None
            times.append(coordinator.head.processing_time_ms)
            coordinator.maintain()
    expiring = [one for kind, one in given if kind == "base" and one is not None]
    assert len(given) >= 2 and len(expiring) == (on_disk and len(given) // 2)
    for one in expiring:
        assert one.processing_ms in times and one.watermark_ms is None
        assert one.settings == (("n", (1000, False, False, 0)),)


@pytest.mark.usefixtures("merging")
def test_restart_takes_up_nothing_of_an_unfinished_merge(work: FakeWork) -> None:
    with work.coordinator(merge_policy=EAGER, orphan_grace_ms=0) as coordinator:
        run(coordinator, work, "a", "b", "c")
        coordinator.maintain()
        assert bases(work)
    assert not bases(work)
    with work.coordinator(merge_policy=None, orphan_grace_ms=0) as coordinator:
        run(coordinator, work, "d")
        coordinator.maintain()
        assert work.text(coordinator.head) == ["a", "b", "c", "d"]  # type: ignore[arg-type]
        assert not bases(work)


@pytest.mark.parametrize("merge_s", [0, 0.02])
@pytest.mark.parametrize("rescaled", [False, True])
def test_drivers_of_one_epoch_each_keep_the_chain_short(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch, merge_s: float, rescaled: bool
) -> None:
    """Also where a merge takes longer than the epoch beside it."""

    def merge(*arguments: Any, **options: Any) -> FileRef:
        time.sleep(merge_s)
        return fake_merge(*arguments, **options)

    monkeypatch.setattr(pystate.epochs.merges, "merge_range", merge)
    texts = [str(number) for number in range(30)]
    for number, text in enumerate(texts):
        parallelism = 1 + number // 5 % 2 if rescaled else 1
        options: Any = {"parallelism": parallelism, "retained": 1, "orphan_grace_ms": 10**9}
        with work.coordinator(merge_policy=EAGER, **options) as coordinator:
            run(coordinator, work, text)
        head = coordinator.head
        assert head is not None
        for state in head.operators[0].ranges:
            assert len(state.deltas) <= EAGER.max_deltas
        assert {e.path for e in bases(work)} <= head.paths
        if not rescaled:
            assert ",".join(work.text(head)) == ",".join(texts[: number + 1])


def test_merge_that_is_given_up_leaves_nothing(work: FakeWork) -> None:
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        backend["n"].update_all(backend.keys(range(9)), range(9))
        path = "state/op/00000-00127/00000001-0.delta"
        with work.storage.create(path) as out:
            ref = FileRef.from_info(path, backend.seal().write(out))
    given_up, written = threading.Event(), list[int]()
    arguments: Any = (work.storage, (ref,), ref.id, path + ".base", 0, 127)
    options: Any = {"given_up": given_up, "note": written.append}
    merged = pystate.epochs.merges.merge_range(*arguments, **options)
    assert merged.rows == 9 and sum(written) == merged.file_bytes
    assert work.storage.delete(path + ".base")
    given_up.set()
    with pytest.raises(CheckpointError, match="given up"):
        pystate.epochs.merges.merge_range(*arguments, given_up=given_up)
    assert [e.path for e in work.storage.list("")] == [path]
    assert not work.storage.list("", temporary=True)


def test_epoch_waits_for_a_merge_rather_than_grow_without_bound(
    work: FakeWork, slow: SlowMerge
) -> None:
    policy = dataclasses.replace(EAGER, max_deltas=4, most_deltas=7)
    with work.coordinator(merge_policy=policy, parallelism=1) as coordinator:
        run(coordinator, work, *"abcdef")
        assert work.text(coordinator.head) == list("abcdef")  # type: ignore[arg-type]
        timer = threading.Timer(0.1, slow.go_on.set)
        timer.start()
        run(coordinator, work, "g")
        assert work.text(coordinator.head) == ["a,b", *"cdefg"]  # type: ignore[arg-type]
        timer.join()


def test_an_epoch_that_waits_says_for_what(
    work: FakeWork,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    slow: SlowMerge,
) -> None:
    """Whose merge it is, and how far; and again while it goes on."""
    monkeypatch.setattr(pystate.epochs.merges, "_WARN_AFTER_S", 0.0)
    monkeypatch.setattr(pystate.epochs.merges, "_WARN_AGAIN_S", 0.01)

    def waits(record: logging.LogRecord) -> bool:
        slow.note(1_500_000)
        warned.append(record.getMessage())
        if len(warned) == 2:
            slow.go_on.set()
        return True

    warned: list[str] = []
    logger = logging.getLogger("pystate.epochs.merges")
    logger.addFilter(waits)
    policy = dataclasses.replace(EAGER, max_deltas=4, most_deltas=4)
    try:
        with work.coordinator(merge_policy=policy, parallelism=1) as coordinator:
            run(coordinator, work, *"abc")
            assert slow.begun.wait(60)
            run(coordinator, work, "d")
            assert work.text(coordinator.head) == ["a,b", "c", "d"]  # type: ignore[arg-type]
    finally:
        logger.removeFilter(waits)
    assert "operator 'op', key groups 0 to 127: the epoch waits for a merge" in warned[0]
    assert "has 4 deltas: 0.0 of about 0.0 MB" in warned[0] and "1.5 of about" in warned[1]


def test_merge_never_blocks_an_epoch(work: FakeWork, slow: SlowMerge) -> None:
    with work.coordinator(merge_policy=EAGER, parallelism=1) as coordinator:
        run(coordinator, work, "a", "b", "c")
        assert slow.begun.wait(60)
        run(coordinator, work, "d", "e")
        assert work.text(coordinator.head) == ["a", "b", "c", "d", "e"]  # type: ignore[arg-type]
        slow.go_on.set()
        coordinator.maintain()
        run(coordinator, work, "f")
        assert work.text(coordinator.head) == ["a,b", "c", "d", "e", "f"]  # type: ignore[arg-type]


def test_close_joins_the_thread(work: FakeWork, slow: SlowMerge) -> None:
    coordinator = work.coordinator(merge_policy=EAGER, parallelism=1)
    run(coordinator, work, "a", "b", "c")
    assert slow.begun.wait(60)
    threading.Timer(0.05, slow.go_on.set).start()
    coordinator.close()
    assert slow.finished.is_set()
    assert not [t for t in threading.enumerate() if t.name == "pystate-maintenance"]


def test_failed_merge_is_not_tried_at_every_epoch(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def broken(*arguments: Any, **options: Any) -> FileRef:
        calls.append(1)
        raise CorruptFileError("state/x is damaged")

    monkeypatch.setattr(pystate.epochs.merges, "merge_range", broken)
    with work.coordinator(merge_policy=EAGER, parallelism=1) as coordinator:
        for _ in range(20):
            run(coordinator, work, "x")
            coordinator.maintain()
        assert len(calls) == 2
        assert "state/x is damaged" in caplog.text


@pytest.mark.usefixtures("merging")
def test_merge_that_comes_too_late_is_dropped(work: FakeWork) -> None:
    """The chain changed under it: another parallelism."""
    options = {"merge_policy": EAGER, "parallelism": 1, "orphan_grace_ms": 10**9}
    with work.coordinator(**options) as coordinator:
        run(coordinator, work, "a", "b", "c")
        coordinator.maintain()
        coordinator.parallelism = 2
        run(coordinator, work, "d")
        assert work.text(coordinator.head) == ["a", "b", "c", "d"]  # type: ignore[arg-type]
        coordinator.maintain()
        assert coordinator._merges is not None
        late = [e.path for e in work.storage.list("state") if e.path.endswith(".base")]
        assert {p.split("/")[2] for p in late} <= {"00000-00063", "00064-00127"}


@pytest.mark.usefixtures("merging")
def test_base_replaces_only_the_files_it_was_made_from(work: FakeWork) -> None:
    """Another driver has published in between, with a base of its own."""
    with work.coordinator(merge_policy=EAGER, parallelism=1) as coordinator:
        run(coordinator, work, "a", "b", "c")
        coordinator.maintain()
        assert coordinator.head is not None and coordinator._merges is not None
        (operator,) = coordinator.head.operators
        (state,) = operator.ranges
        (adopted,) = coordinator._merges.adopt((operator,))
        assert adopted.ranges[0].base is not None
        other = dataclasses.replace(state, base=delta(2, 10), deltas=state.deltas[2:])
        changed = dataclasses.replace(operator, ranges=(other,))
        assert coordinator._merges.adopt((changed,)) == (changed,)
        coordinator._merges.published(dataclasses.replace(coordinator.head, operators=(changed,)))
        assert coordinator._merges.live() == frozenset()


def test_operators_take_turns(work: FakeWork, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with many ranges does not keep the others waiting."""
    order: list[str] = []

    def noted(*arguments: Any, **options: Any) -> FileRef:
        order.append(arguments[3].split("/")[1])
        return fake_merge(*arguments, **options)

    monkeypatch.setattr(pystate.epochs.merges, "merge_range", noted)
    with work.coordinator(merge_policy=EAGER, parallelism=6) as coordinator:
        coordinator.run(work.evaluate("a", uids=("big",)))
        coordinator.run(work.evaluate("b", uids=("big",)))
        submit, tasks = coordinator._maintenance.submit, []
        monkeypatch.setattr(coordinator._maintenance, "submit", tasks.append)
        for number in range(3):
            coordinator.run(work.evaluate(f"{number}", uids=("big", "small")))
        for task in tasks:
            submit(task)
        coordinator._maintenance.wait()
    assert order[:6] == ["big", "small", "big", "small", "big", "small"] and len(order) == 12


def test_thread_ends_when_there_is_nothing_to_do(caplog: pytest.LogCaptureFixture) -> None:
    maintenance = Maintenance()
    done: list[int] = []
    for number in range(3):
        maintenance.submit(lambda n=number: done.append(n))  # type: ignore[misc]
    maintenance.submit(lambda: 1 // 0)
    maintenance.submit(lambda: done.append(3))
    maintenance.wait()
    assert done == [0, 1, 2, 3] and "ZeroDivisionError" in caplog.text
    maintenance.submit(lambda: done.append(4))
    maintenance.close()
    maintenance.submit(lambda: done.append(5))
    maintenance.wait()
    assert 5 not in done
