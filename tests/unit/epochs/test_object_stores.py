"""What keeps drivers apart, and removes what they leave, holds in an object store, too."""

from __future__ import annotations

import time

import pytest

from pystate.checkpoint.begin_marks import EVALUATIONS, BeginMarks
from pystate.checkpoint.object_storage import ObjectStorage
from pystate.checkpoint.parts import MANIFESTS
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.ownership import current_owner, is_running
from pystate.epochs.retention import delete_orphans, find_orphans
from pystate.errors import EvaluationError, FencedError
from tests.conftest import FakeWork
from tests.unit.checkpoint.test_begin_marks import mark


@pytest.fixture
def stored(s3_url: str) -> FakeWork:
    return FakeWork(ObjectStorage(s3_url))


def paths(storage: CheckpointStorage, folder: str) -> list[str]:
    return [entry.path for entry in storage.list(folder) + storage.list(folder, temporary=True)]


def test_a_driver_goes_on_where_another_stopped(stored: FakeWork) -> None:
    first = stored.coordinator()
    for batch, text in enumerate("abc"):
        first.run(stored.evaluate(text), query_id="q", batch_id=batch, offsets_hash=str(batch))
    owner = current_owner(stored.storage)
    assert owner is not None and is_running(stored.storage, owner)
    first.close()
    assert is_running(stored.storage, owner) is False
    second = stored.coordinator()
    again = second.run(stored.evaluate("c"), query_id="q", batch_id=2, offsets_hash="2")
    assert (again.epoch, again.already_done) == (3, True)
    assert second.run(stored.evaluate("d"), query_id="q", batch_id=3, offsets_hash="3").epoch == 4
    second.close()
    assert stored.committed == [1, 2, 3, 4]


def test_of_two_drivers_the_later_one_publishes(stored: FakeWork) -> None:
    first = stored.coordinator()
    first.run(stored.evaluate("a"), run_key="a")
    second = stored.coordinator()
    second.run(stored.evaluate("b"), run_key="b")
    with pytest.raises(FencedError, match=r"checkpoint s3://.* has another owner now: run"):
        first.run(stored.evaluate("x"), run_key="x")
    assert second.run(stored.evaluate("c"), run_key="c").epoch == 3
    second.close()
    first.close()


def test_what_nothing_names_is_collected(stored: FakeWork) -> None:
    storage = stored.storage
    driver = stored.coordinator()
    driver.run(stored.evaluate("a"), run_key="a")
    with pytest.raises(ValueError):
        driver.run(lambda epoch: [stored.reports(epoch), int("x")][:0], run_key="b")
    left = BeginMarks(storage, 1, "abc")
    left.open()
    storage.replace("state/op/.x.1.tmp", b"killed")
    driver.run(stored.evaluate("c"), run_key="c")
    before = len(paths(storage, "state"))
    orphans = find_orphans(
        storage,
        term=1,
        grace_ms=0,
        live=lambda: (),
        check_owner=lambda: None,
        now_ms=time.time_ns() // 1_000_000 + 3_600_000,
    )
    collected = delete_orphans(storage, orphans)
    assert collected >= 1 and len(paths(storage, "state")) == before - collected
    assert paths(storage, EVALUATIONS) == []
    assert len(storage.list(MANIFESTS)) >= 2
    driver.close()


def test_an_evaluation_ends_for_its_tasks(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = BeginMarks(ObjectStorage(s3_url), 3, "abc")
    marks.open()
    beginning = marks.begin(mark())
    beginning.go_on()
    monkeypatch.setattr(ObjectStorage, "touch_every_s", 0.0)
    beginning.go_on()
    assert list(marks.begun()) == [("a/b ü", 0)]
    assert abs(marks.last_sign_ms() - time.time_ns() // 1_000_000) < 60_000
    marks.close()
    with pytest.raises(EvaluationError, match="this evaluation has ended"):
        beginning.go_on()
    with pytest.raises(EvaluationError, match="not after its epoch"):
        marks.begin(mark(index=1))
