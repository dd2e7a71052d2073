"""What most keys have left goes back, wherever the bytes of those that stay lie."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pystate as ps

KEYS, MOST_EPOCHS = 300_000, 6000
EVERY = 20  # one in so many keys stays
STATES: dict[str, Any] = {"n": ps.ValueState("bigint", default=0), "text": ps.ValueState("string")}


@pytest.mark.parametrize(
    ("home", "timers"),
    [
        ("heap", False),
        ("shared", True),
        pytest.param("heap", True, marks=pytest.mark.slow),
        pytest.param("shared", False, marks=pytest.mark.slow),
    ],
)
def test_long_keys_leave_spans_that_are_mostly_free(
    home: str, timers: bool, tmp_path: Path
) -> None:
    shared: dict[str, Any] = {"home": "shared", "path": tmp_path / "t.table"}
    options = shared if home == "shared" else {}
    keys = [f"user-{number:020d}-{'x' * (number % 24)}" for number in range(KEYS)]
    stay = sorted(random.Random(1).sample(range(KEYS), KEYS // EVERY))
    gone = sorted(set(range(KEYS)).difference(stay))
    random.Random(2).shuffle(gone)
    with (
        ps.KeyedStateBackend("string", states=STATES, timers=True) as fresh,
        ps.KeyedStateBackend("string", states=STATES, timers=True, **options) as table,
    ):

        def fill(backend: ps.KeyedStateBackend, numbers: list[int]) -> None:
            for start in range(0, len(numbers), 10_000):
                some = numbers[start : start + 10_000]
                with closing(backend.keys([keys[number] for number in some])) as batch:
                    backend["n"].add(batch, some)
                    backend["text"].update_all(batch, ["y" * (number % 90) for number in some])
                    if timers:
                        backend.register_timers(batch, "event", np.array(some) % 977)
                backend.seal(snapshot=False)

        fill(fresh, stay)
        bound = 1.5 * fresh.stats().committed_bytes + (6 << 20)
        fill(table, list(range(KEYS)))
        assert table.stats().committed_bytes > 2 * bound
        for start in range(0, len(gone), 10_000):
            some = gone[start : start + 10_000]
            with closing(table.keys([keys[number] for number in some])) as batch:
                table.delete(batch)
                if timers:
                    table.delete_timers(batch, "event", np.array(some) % 977)
            table.seal(snapshot=False)
        for _ in range(MOST_EPOCHS):
            with closing(table.keys([keys[stay[0]]])) as batch:
                table["n"].add(batch, 1)
            table.seal(snapshot=False)
            if table.stats().committed_bytes <= bound:
                break
        assert table.stats().committed_bytes <= bound, table.stats()
        with closing(table.keys([keys[number] for number in stay[1:]])) as batch:
            assert table["n"].values(batch).to_pylist() == stay[1:]
            texts = ["y" * (number % 90) for number in stay[1:]]
            assert table["text"].values(batch).to_pylist() == texts
        due = table.due_timers("event", 2000, KEYS)
        found = [] if due is None else list(zip(due.keys.to_pylist(), due.timestamps, strict=True))
        wanted = [(keys[number], number % 977) for number in stay] if timers else []
        assert sorted(found) == sorted(wanted)


def test_rows_move_once_their_key_group_has_fewer_timers() -> None:
    """A cut begins while there are too many to look through, and goes on soon after that."""
    states: dict[str, Any] = {"n": ps.ValueState("bigint", default=0)}
    with ps.KeyedStateBackend("long", states=states, timers=True, max_parallelism=1) as table:

        def change(first: int, last: int, stay: bool) -> None:
            for start in range(first, last, 10_000):
                some = np.arange(start, min(start + 10_000, last))
                with closing(table.keys(some)) as batch:
                    if stay:
                        table["n"].add(batch, 1)
                        table.register_timers(batch, "event", some)
                    else:
                        table.delete(batch)
                        table.delete_timers(batch, "event", some)
                table.seal(snapshot=False)

        def idle(epochs: int) -> int:
            for _ in range(epochs):
                change(99_999, 100_000, True)
            return table.stats().slots

        change(0, 100_000, True)
        change(0, 60_000, False)
        assert idle(150) == 100_000  # forty thousand timers: none is moved
        change(60_000, 99_980, False)
        assert idle(250) < 1000
        assert sorted(table) == list(range(99_980, 100_000))
        due = table.due_timers("event", 10**6, 100)
        assert due is not None and sorted(due.timestamps) == list(range(99_980, 100_000))
