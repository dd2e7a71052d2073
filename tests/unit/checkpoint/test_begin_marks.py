"""Begin marks: which tasks go on, and which are refused."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint.begin_marks import BeginMarks, Mark, RefusedError
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.retention import delete_orphans, find_orphans
from pystate.errors import EvaluationError


@pytest.fixture
def marks(tmp_path: Path) -> BeginMarks:
    marks = BeginMarks(LocalStorage(tmp_path), 3, "abc")
    marks.open()
    return marks


def mark(**changes: Any) -> Mark:
    fields: dict[str, Any] = {
        "uid": "a/b ü",
        "index": 0,
        "stage": 5,
        "partition": 2,
        "attempt": 0,
        "task": 40,
        "host": "h",
        "process_id": 1,
    }
    return Mark(**{**fields, **changes})


def test_attempts_of_one_partition_go_on(marks: BeginMarks) -> None:
    for attempt, task in ((0, 40), (2, 44), (1, 41)):
        pickle.loads(pickle.dumps(marks)).begin(mark(attempt=attempt, task=task)).go_on()
    marks.begin(mark(index=1, task=40))
    marks.begin(mark(uid="other", stage=9, task=50))
    assert marks.refused() == []
    assert sorted(marks.begun()) == [("a/b ü", 0), ("a/b ü", 1), ("other", 0)]


@pytest.mark.parametrize(
    ("changes", "ran_again"),
    [
        ({"stage": 6, "task": 41}, False),
        ({"stage": 6, "attempt": 1, "task": 41}, False),
        ({"partition": 3, "task": 41}, False),
        ({}, False),  # the same task: a cartesian product with itself
        ({"task": 41}, True),  # the stage runs again, and counts attempts anew
    ],
)
def test_everybody_else_is_refused_and_so_is_who_follows(
    marks: BeginMarks, changes: dict[str, Any], ran_again: bool
) -> None:
    marks.begin(mark())
    with pytest.raises(RefusedError, match=r"'a/b ü', epoch 3, range 0 was begun in stage 5, par"):
        marks.begin(mark(**changes))
    with pytest.raises(RefusedError):
        marks.begin(mark(attempt=1, task=42))
    [refused] = marks.refused()
    assert refused == mark(**changes)
    assert refused.runs_again(marks.begun()["a/b ü", 0].mark) is ran_again


def test_an_attempt_that_was_repeated_is_refused(marks: BeginMarks) -> None:
    marks.begin(mark())
    marks.begin(mark(attempt=1, task=41))
    with pytest.raises(RefusedError):
        marks.begin(mark(attempt=1, task=42))


def test_one_of_many_begins(marks: BeginMarks) -> None:
    begun, refused = [], []
    gate = threading.Barrier(16)

    def begin(stage: int) -> None:
        gate.wait()
        try:
            marks.begin(mark(stage=stage, task=stage))
            begun.append(stage)
        except RefusedError:
            refused.append(stage)

    threads = [threading.Thread(target=begin, args=(stage,)) for stage in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1 and len(refused) == 15


def test_nothing_goes_on_after_the_end(
    marks: BeginMarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = marks.begin(mark())
    marks.close()
    marks.close()
    assert os.listdir(tmp_path / "evaluations") == []
    beginning.go_on()  # it looks from time to time only
    monkeypatch.setattr(LocalStorage, "touch_every_s", 0.0)
    with pytest.raises(EvaluationError, match="this evaluation has ended"):
        beginning.go_on()
    with pytest.raises(EvaluationError, match="not after its epoch"):
        marks.begin(mark(index=1))
    assert os.listdir(tmp_path / "evaluations") == []


def test_signs_of_life(marks: BeginMarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "touch_every_s", 0.0)
    beginning = marks.begin(mark())
    for path in (tmp_path / "evaluations").glob("*/*"):
        os.utime(path, (1, 1))
    assert marks.last_sign_ms() == 1000
    beginning.go_on()
    assert marks.last_sign_ms() > 1000


def test_marks_of_a_driver_that_died_are_collected(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    published, running = BeginMarks(storage, 0, "abc"), BeginMarks(storage, 1, "def")
    for marks in (published, running):
        marks.open()
        marks.begin(mark())

    def collect(now_ms: int) -> None:
        orphans = find_orphans(
            storage, term=1, grace_ms=0, live=frozenset, check_owner=lambda: None, now_ms=now_ms
        )
        delete_orphans(storage, orphans)

    collect(published.last_sign_ms())
    assert len(os.listdir(tmp_path / "evaluations")) == 2
    collect(published.last_sign_ms() + 120_000)
    assert os.listdir(tmp_path / "evaluations") == ["00000001-def"]
