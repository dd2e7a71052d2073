"""The changes of all epochs, done to a dict one after the other, are the state of the newest."""

from __future__ import annotations

import copy
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import DiskMergePolicy
from pystate.query.follow import EpochChanges, follow
from tests.drawn import THOROUGH, drawn
from tests.model.test_changes import EPOCHS, state_at
from tests.model.test_merges import (
    ALL,
    Model,
    Operator,
    redeclare,
    run,
    some_rows,
)
from tests.model.test_merges import follow as apply

ANY: dict[str, Any] = {"allow_unclaimed_state": True}
#: What a consumer has: a key's states, all of them.
Known = dict[int, dict[str, Any]]


def replay(known: Known, changes: EpochChanges) -> None:
    """Do what an epoch has changed to what a consumer knows, and check that it fits."""
    trim(known, {field.name for field in changes.schema("op").field("after").type})
    seen = set()
    for uid, batch in changes:
        assert uid == "op"
        for row in batch.to_pylist():
            key, before, after = row["k"], plain(row["before"]), plain(row["after"])
            assert key not in seen
            seen.add(key)
            assert before == known.pop(key, None), row
            assert row["change"] == ("delete" if after is None else "put")
            if after is not None:
                known[key] = after


def trim(known: Known, names: set[str]) -> None:
    """Forget states that were dropped, and keys that have no other."""
    for key, row in list(known.items()):
        known[key] = {name: value for name, value in row.items() if name in names}
        if not known[key]:
            del known[key]


def plain(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a key has, without what is empty."""
    if row is None:
        return None
    found = {}
    for name, value in row.items():
        if value:
            pairs = isinstance(value, list) and isinstance(value[0], tuple)
            found[name] = sorted(value) if pairs else value
    return found


def wanted(model: Model) -> Known:
    return {k: row for k in model if (row := plain(state_at(model[k]))) is not None}


@drawn(12)
@given(
    epochs=EPOCHS,
    lag=st.integers(1, 3),
    slices=st.booleans(),
)
def test_a_follower_knows_the_state_of_each_epoch(
    epochs: list[Any], lag: int, slices: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(Path(folder))
        operator = Operator(storage)
        options: dict[str, Any] = {"retained": lag}
        if slices:
            options["merge_policy"] = DiskMergePolicy(min_deltas=2, max_deltas=3, keep_deltas=1)
        models: list[Model] = [{}]
        known: Known = {}
        coordinator = operator.coordinator(2, **options)
        follower = None
        for parallelism, rows in epochs:
            if parallelism is not None:
                coordinator.close()
                coordinator = operator.coordinator(parallelism, **options)
            run(coordinator, operator, rows)
            models.append(copy.deepcopy(models[-1]))
            apply(models[-1], rows, ALL, timers=True)
            if follower is None:
                follower = follow(storage, 0)
            if (len(models) - 1) % lag:
                continue
            while (changes := follower.next(0)) is not None:
                replay(known, changes)
                assert known == wanted(models[changes.epoch])
            assert follower.epoch == len(models) - 1
        coordinator.close()


@pytest.mark.parametrize("seed", range(40 if THOROUGH else 6))
def test_states_come_and_go_while_they_are_followed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    storage = LocalStorage(tmp_path)
    operator, model, known = Operator(storage), {}, {}  # type: tuple[Operator, Model, Known]
    operator.base_part = rng.choice((0.1, 0.5))
    coordinator = operator.coordinator(rng.choice((1, 2, 3)), retained=2, **ANY)
    follower = follow(storage, 0)
    for epoch in range(1, 25):
        if rng.random() < 0.25:
            redeclare(rng, operator, model)
            coordinator.close()
            coordinator = operator.coordinator(rng.choice((1, 2, 3, 5)), retained=2, **ANY)
        rows = some_rows(rng, epoch)
        run(coordinator, operator, rows)
        apply(model, rows, operator.states, operator.timers)
        changes = follower.next(0)
        assert changes is not None and changes.epoch == epoch
        replay(known, changes)
        now = {
            key: {
                name: sorted(value.items()) if isinstance(value, dict) else value
                for name, value in row.items()
                if name != "timers"
            }
            for key, row in model.items()
        }
        assert known == {key: row for key, row in now.items() if row}, epoch
    coordinator.close()


def test_only_what_was_written_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However files were merged, and the parallelism changed, in between."""

    def refused(*_: Any) -> Any:
        raise AssertionError("all keys are compared")

    operator = Operator(LocalStorage(tmp_path))
    coordinator = operator.coordinator(2, retained=50)
    bases = set()
    for number in range(24):
        if number in (8, 16):
            coordinator.close()
            coordinator = operator.coordinator(3 if number == 8 else 1, retained=50)
        rows = [(key, "put", number + 1) for key in range(0, 24, 1 + number % 5)]
        head = run(coordinator, operator, rows)
        bases |= {state.base for state in head.operators[0].ranges}
    coordinator.close()
    assert len(bases) > 4
    monkeypatch.setattr("pystate.processor.change_scan._Part.compare_all", refused)
    for old in range(1, 24):
        for new in range(old + 1, 25):
            ps.changes(tmp_path, "op", from_epoch=old, to_epoch=new)
