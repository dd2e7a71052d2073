"""A program that is killed again and again is followed: each epoch's changes come once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, RetiredEpochError
from pystate.query.follow import Follower, follow

KILLS = 3

# Moves amounts between accounts, whose sum stays the same, until it is killed.
WRITER = """
import random, sys
import pystate as ps
rng = random.Random(int(sys.argv[2]))
states = {"n": ps.ValueState("long", default=0), "l": ps.ListState("long")}
with ps.open(sys.argv[1], key="long", states=states, retained=2) as store:
    if not store.epoch:
        store["n"].update_all(store.keys(range(100)), [10] * 100)
        store.checkpoint()
    for _ in range(20):
        for _ in range(rng.randrange(1, 20)):
            a, b, n = rng.randrange(100), rng.randrange(100), rng.randrange(5)
            for key, step in ((a, -n), (b, n)):
                store.set_current_key(key)
                store["n"].update(store["n"].value() + step)
                store["l"].add(n)
                if rng.random() < 0.2:
                    store["l"].clear()
        print(store.checkpoint(), flush=True)
    sys.stdin.read()
"""


def apply(known: dict[int, Any], changes: Any) -> None:
    for _, batch in changes:
        for row in batch.to_pylist():
            assert row["before"] == known.pop(row["key"], None)
            if row["change"] == "put":
                known[row["key"]] = row["after"]


def state_of(folder: Path, epoch: int) -> dict[int, Any]:
    with ps.connect(folder, epoch=epoch) as reader:
        rows = reader["embedded"].scan().read_all().to_pylist()
    return {row.pop("key"): row for row in rows}


def test_each_epoch_of_a_killed_program_is_given_once(tmp_path: Path) -> None:
    """The program is faster than the reader, and keeps two epochs: a lease keeps the others."""
    known: dict[int, Any] = {}
    follower = None
    for seed in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(seed)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as process:
            assert process.stdout is not None
            last = int(process.stdout.readline())
            if follower is None:
                follower, known = begin(tmp_path)
            while follower.epoch < last + 5:
                changes = follower.next(20)
                assert changes is not None and changes.epoch == follower.epoch + 1
                apply(known, changes)
                assert sum(row["n"] for row in known.values()) == 1000
            process.kill()
    assert follower is not None
    while (changes := follower.next(0)) is not None:
        apply(known, changes)
    assert known == state_of(tmp_path, follower.epoch)
    with ps.connect(tmp_path) as reader:
        assert reader.epoch == follower.epoch
    follower.close()


def begin(folder: Path) -> tuple[Follower, dict[int, Any]]:
    """Where an epoch is retired before it was read, the error says with which to begin anew."""
    with ps.connect(folder) as reader:
        epoch = reader.epoch
    while True:
        try:
            follower = follow(LocalStorage(folder), epoch, poll="10 ms", lease=True)
        except RetiredEpochError as error:
            epoch = error.start_at
            continue
        try:
            return follower, state_of(folder, epoch)
        except CheckpointError:  # the lease came too late
            follower.close()
            with ps.connect(folder) as reader:
                epoch = reader.epoch
