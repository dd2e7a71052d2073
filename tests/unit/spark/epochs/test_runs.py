"""Rounds until nothing is in flight: what a driver does that is started again at any moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pystate.errors import LoopNotEmptyError
from pystate.spark.epochs import runs


class Checkpoint:
    """A job whose loop holds one row less after each round."""

    def __init__(self, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: dict[str | None, int] = {}
        self.inputs: list[Any] = []
        self.left = self.first = rows
        self.counted = 0
        monkeypatch.setattr(runs, "no_rows", lambda data: None)

    def run(self, rows: Any, key: str | None) -> Any:
        known = key is not None and key in self.done
        if not known:
            self.inputs.append(rows)
            self.done[key] = len(self.done)
            self.left = max(self.left - 1, 0)
        return SimpleNamespace(already_done=known, run_key=key)

    def in_flight(self, computed: bool) -> dict[str, int]:
        self.counted += not computed
        return {"l": self.left, "m": 0}

    def rounds(self, run_key: str | None = "k", most: int = 100) -> list[Any]:
        found: list[Any] = runs.run_rounds(
            "data",  # type: ignore[arg-type]
            run_key,
            most,
            run=self.run,
            is_done=self.done.__contains__,
            in_flight=self.in_flight,
            owner="job 'j'",
        )
        return found


def test_the_first_round_has_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Checkpoint(3, monkeypatch)
    assert [r.run_key for r in job.rounds()] == ["k, round 0", "k, round 1", "k, round 2"]
    assert job.inputs == ["data", None, None] and job.counted == 0
    # Done is done: the checkpoint is looked at once, and nothing is computed.
    assert [r.already_done for r in job.rounds()] == [True] * 3
    assert len(job.inputs) == 3 and job.counted == 1
    other = Checkpoint(2, monkeypatch)
    assert [r.run_key for r in other.rounds(None)] == [None, None]


@pytest.mark.parametrize("killed", range(1, 4))
def test_a_driver_that_starts_again_goes_on(killed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Checkpoint(4, monkeypatch)
    for number in range(killed):
        job.run("data" if number == 0 else None, f"k, round {number}")
    assert [r.already_done for r in job.rounds()] == [n < killed for n in range(4)]
    assert job.inputs == ["data", None, None, None]


def test_a_bound_on_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Checkpoint(5, monkeypatch)
    message = r"^job 'j': after 2 rounds 3 rows are in flight: 3 on 'l'\. .*nothing is lost.*'k' to"
    for _ in range(2):  # the bound is on all rounds of the key
        with pytest.raises(LoopNotEmptyError, match=message):
            job.rounds(most=2)
        assert len(job.inputs) == 2
    assert len(job.rounds(most=5)) == 5
    # All are done, so that a smaller bound does not matter any more.
    assert len(job.rounds(most=1)) == 5 and len(job.inputs) == 5
