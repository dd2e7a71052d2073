"""A store on disk is killed at each of its changes to the folder, in steps, checkpoints and merges.

It comes back at its last checkpoint, without a trace of what was written after that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.store import Store
from tests.drawn import THOROUGH
from tests.forks import FORKS, forked

EPOCHS, KEYS = 2, 400
STATES = {"n": ps.ValueState("long", default=0), "text": ps.ValueState("string")}


def opened(folder: Path) -> Store:
    return ps.open(folder, key="long", states=STATES, home="disk", limit_bytes=1 << 20)


def apply(store: Store, epoch: int) -> None:
    """Change all keys, whose state is more than memory holds."""
    for first in range(0, KEYS, 20):
        keys = store.keys(range(first, first + 20))
        store["n"].add(keys, epoch)
        store["text"].update_all(keys, f"{epoch}" * 4000)
    store.delete(range(epoch * 10, epoch * 10 + 5))


def model(epochs: int) -> dict[int, tuple[int, str]]:
    state: dict[int, tuple[int, str]] = {}
    for epoch in range(1, epochs + 1):
        for key in range(KEYS):
            state[key] = (state.get(key, (0, ""))[0] + epoch, f"{epoch}" * 4000)
        for key in range(epoch * 10, epoch * 10 + 5):
            del state[key]
    return state


def rows(store: Store) -> dict[int, tuple[int, str]]:
    table = store.to_arrow().to_pydict()
    return dict(zip(table["key"], zip(table["n"], table["text"], strict=True), strict=True))


class Killed:
    """Kills this process before its change number `at` of a folder; counts them."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        for name in ("create", "publish", "delete"):
            setattr(LocalStorage, name, self.before(getattr(LocalStorage, name)))
        os.replace = self.before(os.replace)

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
            return call(*args, **named)

        return wrapped


def work(folder: Path, at: int, said: int) -> None:
    killed = Killed(at)
    with opened(folder) as store:
        while store.epoch < EPOCHS:
            apply(store, store.epoch + 1)
            os.write(said, b"%d\n" % store.checkpoint())
    os.write(said, b"calls %d\n" % killed.count)


def run(folder: Path, at: int) -> list[str]:
    """What a process says that is killed before its change number `at`."""
    source, said = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    child = forked((null, null, 2), lambda: work(folder, at, said))
    os.close(said)
    os.close(null)
    with open(source) as lines:
        words = lines.read().split("\n")[:-1]
    os.waitpid(child, 0)
    return words


@FORKS
@pytest.mark.drawn
def test_a_store_that_is_killed_anywhere_is_at_its_last_checkpoint(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", -1)
    assert whole[:-1] == [str(epoch) for epoch in range(1, EPOCHS + 1)]
    calls = int(whole[-1].split()[1])
    assert calls > 20
    models = [model(epoch) for epoch in range(EPOCHS + 1)]
    for at in range(0, calls, 1 if THOROUGH else 4):
        folder = tmp_path / str(at)
        said = run(folder, at)
        promised = int(said[-1]) if said else 0
        with opened(folder) as store:
            assert promised <= store.epoch <= promised + 1, at
            assert rows(store) == models[store.epoch], at
            named = {
                path for e in store._history.epochs for path in store._history.manifest(e).paths
            }
            found = {
                str(p.relative_to(folder)) for p in (folder / "state").rglob("*") if p.is_file()
            }
            assert found == named, at
