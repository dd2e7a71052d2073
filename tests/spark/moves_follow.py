"""Follows the job of `moves_job.py`, and writes each epoch's changes to a file of its own.

``python moves_follow.py FOLDER``. It may be killed at any moment, and goes on behind the last epoch
that is whole. A file that is there already is an error: its epoch came twice. It ends with the
epoch that the file ``last`` says.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pystate as ps
from pystate.errors import RetiredEpochError
from pystate.processor.epochs import NotHeldError
from pystate.query.lease import Lease
from pystate.query.reader import StateReader
from tests.spark.moves_ledger import UIDS, Account, States, account_of, accounts_in

__all__ = ["FOLLOWED", "replayed"]

LEASE = "1 minute"
FOLLOWED = "followed"


def write(folder: Path, epoch: int, said: Any) -> None:
    """Write all of an epoch, or nothing; `FileExistsError` if it is there."""
    temporary = folder / f".{epoch}-{os.getpid()}"
    temporary.write_text(json.dumps(said))
    os.link(temporary, folder / f"{epoch:08d}.json")
    temporary.unlink()


def epochs_in(folder: Path) -> list[int]:
    """The epochs that are whole."""
    return sorted(int(path.stem) for path in folder.glob("*.json"))


def begin(reader: StateReader, out: Path) -> tuple[int, Lease]:
    """Write the state to begin with, of an epoch that is kept until it is followed."""
    while True:
        epoch = reader.refresh()
        with reader.at(epoch) as pinned:
            try:
                lease = pinned.lease(LEASE)
                # The job learns of it as it publishes its next epoch.
                reader.wait_for(epoch=epoch + 2, timeout=LEASE)
                state = {uid: accounts_in(pinned[uid].scan().read_all()) for uid in UIDS}
            except (NotHeldError, RetiredEpochError):
                continue
        write(out, epoch, {uid: [*one.items()] for uid, one in state.items()})
        return epoch, lease


def main(folder: Path) -> None:
    """Go on where the process before has ended."""
    out = folder / FOLLOWED
    out.mkdir(exist_ok=True)
    last = folder / "last"
    with ExitStack() as stack:
        reader = stack.enter_context(ps.connect(folder / "checkpoint"))
        # The lease of the process that was killed keeps its last epoch until now.
        epochs = epochs_in(out)
        since, lease = (epochs[-1], None) if epochs else begin(reader, out)
        follower = stack.enter_context(reader.follow(since=since, lease=LEASE))
        if lease is not None:
            lease.close()
        while not (last.exists() and since >= int(last.read_text())):
            changes = follower.next(timeout=0.2)
            if changes is None:
                continue
            assert changes.epoch == since + 1, (changes, since)
            rows = [[uid, row] for uid, batch in changes for row in batch.to_pylist()]
            since = changes.epoch
            write(out, since, rows)


def replayed(folder: Path) -> tuple[int, dict[int, States]]:
    """The first epoch, and the state of each one from it on, from the changes alone."""
    out = folder / FOLLOWED
    epochs = epochs_in(out)
    assert epochs == [*range(epochs[0], epochs[-1] + 1)], "an epoch is missing"
    begun = json.loads((out / f"{epochs[0]:08d}.json").read_text())
    state = {uid: {k: _account(account) for k, account in begun[uid]} for uid in UIDS}
    found: dict[int, States] = {epochs[0]: {uid: dict(state[uid]) for uid in UIDS}}
    for epoch in epochs[1:]:
        seen = set()
        for uid, row in json.loads((out / f"{epoch:08d}.json").read_text()):
            k, before, after = row["k"], row["before"], row["after"]
            assert (uid, k) not in seen, f"epoch {epoch}: {uid} {k} comes twice"
            seen.add((uid, k))
            had = state[uid].pop(k, None)
            assert (before and _changed(before)) == had, (epoch, uid, row, had)
            assert (row["change"] == "delete") == (after is None), (epoch, uid, row)
            if after is not None:
                state[uid][k] = _changed(after)
        found[epoch] = {uid: dict(state[uid]) for uid in UIDS}
    return epochs[0], found


def _account(values: Any) -> Account:
    balance, stamp, parts = values
    return Account(balance, stamp, tuple((coin, v) for coin, v in parts))


def _changed(states: Any) -> Account:
    return account_of({**states, "parts": [(coin, v) for coin, v in states["parts"]]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
