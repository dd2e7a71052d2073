"""A restore of many files says that it goes on, and ends half-way once nobody waits for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pystate.checkpoint.refs import RangeState, empty_range
from pystate.errors import EvaluationError
from pystate.tables.host import TableHome, choose_home
from tests.peer import Worker

FILES = 4


@pytest.fixture
def base(tmp_path: Path) -> RangeState:
    """A range with a chain of deltas."""
    worker, state = Worker(str(tmp_path / "ck"), TableHome(None, None)), empty_range(0, 128, 1)
    for number in range(FILES):
        delta = worker.epoch(state, {number: 1, 100: 1}, number + 1)
        state = dataclasses.replace(state, id=delta.id, deltas=(*state.deltas, delta))
    worker.stop()
    return state


@pytest.mark.parametrize("shared", [False, True])
def test_restore(tmp_path: Path, base: RangeState, shared: bool) -> None:
    home = TableHome(None, None)
    if shared:
        home = choose_home(bytes(32), shm=str(tmp_path / "shm"), least_bytes=0)
    worker = Worker(str(tmp_path / "ck"), home)
    signs: list[int] = []

    def go_on() -> None:
        signs.append(1)
        if len(signs) == FILES - 1:
            raise EvaluationError("this evaluation has ended")

    worker.spec = dataclasses.replace(worker.spec, heartbeat=go_on)
    with pytest.raises(EvaluationError, match="has ended"):
        worker.attach(base)
    # Nothing of the half that was read is left, and nobody holds the table.
    assert worker.attach(base) == ("restored", "", FILES)
    assert worker.attachment.rows == 2 * FILES and len(signs) == FILES - 1 + FILES
    assert worker.read() == {**dict.fromkeys(range(FILES), 1), 100: FILES}
    worker.stop()
