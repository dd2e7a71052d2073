"""A store whose process is killed with SIGKILL comes back at its last checkpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pystate as ps
from tests.drawn import THOROUGH

ROUNDS = int(os.environ.get("PYSTATE_KILLS", "12" if THOROUGH else "5"))
STATES = {"n": ps.ValueState("long", default=0), "text": ps.ValueState("string")}

# Each step touches 200 of 1000 keys, in a way that only the step's number decides. A checkpoint
# follows every step; its number is said only after it is durable.
WORKER = """
import sys
import pyarrow as pa
import pystate as ps
from test_embedded_kill import STATES, apply
with ps.open(sys.argv[1], key="long", states=STATES) as store:
    print("open", store.epoch, flush=True)
    while True:
        apply(store, store.epoch + 1)
        print(store.checkpoint(), flush=True)
"""

# Owns the store, has forked a child that outlives it, and dies.
PARENT = """
import os, signal, sys
import pystate as ps
from test_embedded_kill import STATES
store = ps.open(sys.argv[1], key="long", states=STATES)
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""


def keys_of(step: int) -> list[int]:
    return [(step * 7919 + i * 31) % 1000 for i in range(200)]


def apply(store: ps.Store, step: int) -> None:
    keys = keys_of(step)
    store["n"].add(store.keys(keys), step)
    store["text"].update_all(store.keys(keys[:50]), [f"step {step} " * (k % 5) for k in keys[:50]])
    store.delete(keys[150:170])


def model(steps: int) -> dict[int, tuple[int | None, str | None]]:
    state: dict[int, tuple[int | None, str | None]] = {}
    for step in range(1, steps + 1):
        keys = keys_of(step)
        for key in keys:
            n, text = state.get(key, (None, None))
            state[key] = ((n or 0) + step, text)
        for key in keys[:50]:
            state[key] = (state[key][0], f"step {step} " * (key % 5))
        for key in keys[150:170]:
            state.pop(key, None)
    return state


def rows(store: ps.Store) -> dict[int, tuple[int | None, str | None]]:
    table = store.to_arrow().to_pydict()
    return dict(zip(table["key"], zip(table["n"], table["text"], strict=True), strict=True))


def last_number_said(printed: str, otherwise: int) -> int:
    """The number in the last whole line; what a kill cut off after it says nothing."""
    lines = printed.rpartition("\n")[0].split()
    return int(lines[-1]) if lines else otherwise


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.drawn
def test_a_killed_store_is_at_its_last_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(20260720)
    promised = 0
    for _ in range(ROUNDS):
        process = start(WORKER, tmp_path)
        assert process.stdout is not None
        try:
            word, epoch = process.stdout.readline().split()
            assert word == "open"
            assert int(epoch) >= promised
            for _ in range(rng.randrange(1, 12)):
                promised = int(process.stdout.readline())
            # Anywhere within the next checkpoint or two.
            time.sleep(rng.random() * 0.02)
        finally:
            process.kill()
            rest, _ = process.communicate()
        promised = last_number_said(rest, promised)
        with ps.open(tmp_path, key="long", states=STATES) as store:
            # The manifest may have been published just before its number was said.
            assert promised <= store.epoch <= promised + 1
            promised = store.epoch
            assert rows(store) == model(store.epoch)
        leftovers = list(tmp_path.rglob("*.tmp"))
        assert leftovers == []
    assert promised >= ROUNDS


def test_a_line_that_was_cut_off_does_not_hide_the_lines_before_it() -> None:
    # Unbuffered, Python writes a line and its end one after the other.
    assert last_number_said("18\n19\n20", 17) == 19
    assert last_number_said("18\n19\n", 17) == 19
    assert last_number_said("18", 17) == 17
    assert last_number_said("", 17) == 17


def test_a_child_of_a_killed_owner_does_not_keep_the_lock(tmp_path: Path) -> None:
    process = start(PARENT, tmp_path)
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[1])
    try:
        with pytest.raises(ps.errors.TableBusyError, match=str(process.pid)):
            ps.open(tmp_path, key="long", states=STATES)
        process.kill()
        process.wait()
        with ps.open(tmp_path, key="long", states=STATES, lock_timeout_ms=10_000) as store:
            assert store.epoch == 0
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
