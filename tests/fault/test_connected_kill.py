"""Readers beside a writer that is killed again and again: no half epoch, and no other sum."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.errors import CheckpointError

ACCOUNTS, EACH = 300, 100
_WRITER = """
import random, sys
import pystate as ps

folder, home, seed = sys.argv[1:]
draw = random.Random(int(seed))
states = {"amount": ps.ValueState("long", default=100), "moves": ps.ListState("long")}
with ps.open(folder, key="long", states=states, home=home, retained=5) as store:
    while True:
        for _ in range(40):
            amount = draw.randrange(50)
            for account, sign in ((draw.randrange(300), -1), (draw.randrange(300), 1)):
                store.set_current_key(account)
                store["amount"].update(store["amount"].value() + sign * amount)
                store["moves"].add(sign * amount)
        store.checkpoint()
"""


def look(reader: ps.StateReader, draw: random.Random) -> None:
    """Read all accounts in some way, and find that nothing was lost or made."""
    operator = reader["embedded"]
    if draw.random() < 0.5:
        rows = operator.get(range(ACCOUNTS)).to_pylist()
    else:
        rows = operator.scan().read_all().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    there = [row for row in rows if row["amount"] is not None]
    assert sum(row["amount"] - EACH for row in there) == 0
    assert all(row["amount"] - EACH == sum(row["moves"]) for row in there)


@pytest.mark.parametrize("home", ["heap", "disk"])
def test_readers_never_see_another_sum(tmp_path: Path, home: str) -> None:
    draw, failed, ended = random.Random(home), [], threading.Event()
    looks = [0, 0]

    def read(number: int, reader: ps.StateReader) -> None:
        own = random.Random(number)
        try:
            while not ended.is_set():
                if own.random() < 0.5:
                    reader.refresh()
                try:
                    look(reader, own)
                    looks[number] += 1
                except CheckpointError as error:
                    # A few epochs are here in the time that one look takes.
                    assert "retired while" in str(error)
        except BaseException as error:
            failed.append(error)

    with ps.open(
        tmp_path,
        key="long",
        states={"amount": ps.ValueState("long", default=EACH), "moves": ps.ListState("long")},
        home=home,  # type: ignore[arg-type]
    ) as store:
        store.checkpoint()
    with ps.connect(tmp_path) as reader:
        threads: list[Any] = []
        for number in range(len(looks)):
            threads.append(threading.Thread(target=read, args=(number, ps.connect(tmp_path))))
            threads[-1].start()
        for seed in range(3):
            before = reader.refresh()
            writer = subprocess.Popen(
                [sys.executable, "-c", _WRITER, str(tmp_path), home, str(seed)],
                stderr=subprocess.PIPE,
            )
            try:
                reader.wait_for(epoch=before + draw.randrange(3, 20), timeout="60 seconds")
            finally:
                writer.send_signal(signal.SIGKILL)
                _, said = writer.communicate()
            assert not said, said.decode()
        ended.set()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        reader.refresh()
        look(reader, draw)
        assert min(looks) > 0
