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
STATES: dict[str, Any] = {
    "n": ps.ValueState("bigint", default=0),
    "text": ps.ValueState("string"),
}


@pytest.mark.parametrize("timers", [False, True])
@pytest.mark.parametrize("home", ["heap", "shared"])
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
