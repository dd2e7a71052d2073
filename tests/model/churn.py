"""Churn of a store on disk with ten times more rows than memory has room for, and its memory.

Keys come, are changed twice, are read and go, as long as one likes; how many are there stays the
same, and what each must hold follows from how old it is. ``python -m tests.model.churn --seconds 60
--mib 64 --folder /var/tmp/churn`` runs it by hand, and says what the kernel counts of its memory.

With ``--group`` it is in a control group of its own for memory. Once a small store has lived and
gone it limits the group to what the interpreter and its libraries have taken by then, and as much
as ``--most`` says. Pages of files that were read or written count for a group, and the kernel takes
them back, so that the group's own peak is always its limit: what the process cannot give back is
looked at instead, several times a second.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import pystate as ps
from pystate.base.memory import memory_use
from pystate.store import Store
from tests.control_groups import Group
from tests.model.large_store import MIB, Longs, Words, bytes_in, equal, keys_of

#: Memory of a row that is here, and how many times as many there are as would fit.
ROW_BYTES, TIMES = 45, 10
#: Keys of a batch, per byte of the limit; their arrays are the caller's, and small beside it.
BATCH_PART = 4000
SAMPLES_S = 0.02


@dataclass
class Said:
    """What a run says in the end."""

    keys: int = 0
    rounds: int = 0
    base_bytes: int = 0
    most_bytes: int = 0
    """What the process could not give back at once, less what it had before."""
    most_used: int = 0
    """What the library itself counted at most, between two batches."""
    group_limit_bytes: int = 0
    group_most_bytes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0
    live: int = 0


def own_bytes(group: Group | None) -> int:
    """Memory that cannot be given back, of the group or of this process."""
    if group is not None:
        return group.kept_bytes()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


class Watch(threading.Thread):
    """Looks at the memory of this process over and over."""

    def __init__(self, group: Group | None) -> None:
        super().__init__(daemon=True)
        self.group, self.most = group, 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(SAMPLES_S):
            self.most = max(self.most, own_bytes(self.group))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


class Churn:
    """Numbers grow: some come, those that are older by a quarter and by a half are changed, the
    oldest go.
    """

    def __init__(self, store: Store, live: int, batch: int) -> None:
        self.store, self.batch = store, batch
        self.live = live // (4 * batch) * 4 * batch or 4 * batch
        self.next = 0
        self.rounds = 0
        self.keys = 0

    def numbers(self, back: int) -> Words:
        first = max(self.next - back, 0)
        return np.arange(first, max(self.next + self.batch - back, 0), dtype=np.uint64)

    def fill(self) -> None:
        """Have all at once what so many rounds would leave."""
        self.next = self.live
        for at, first in enumerate(range(0, self.live, self.batch), 1):
            numbers = np.arange(first, first + self.batch, dtype=np.uint64)
            keys = self.store.keys(pa.array(keys_of(numbers)))
            totals, lasts = self.due(numbers, self.age(numbers))
            self.store["total"].add(keys, pa.array(totals))
            self.store["last"].update_all(keys, pa.array(lasts))
            if at % 16 == 0:
                self.store.checkpoint()
        self.store.checkpoint()

    def round(self) -> None:
        for back, amount in ((0, 1), (self.live // 4, 10), (self.live // 2, 100)):
            numbers = self.numbers(back)
            if len(numbers):
                keys = self.store.keys(pa.array(keys_of(numbers)))
                self.store["total"].add(keys, amount)
                self.store["last"].update_all(keys, pa.array(numbers.view(np.int64) + amount))
                self.keys += len(numbers)
        gone = self.numbers(self.live)
        if len(gone):
            self.store.delete(self.store.keys(pa.array(keys_of(gone))))
        self.next += self.batch
        self.keys += len(gone)
        if self.rounds % 4 == 3:
            self.check()
        self.store.checkpoint()
        self.rounds += 1

    def check(self) -> None:
        """Read keys of all ages, some that are gone, and some that do not exist yet."""
        step = max(self.live // self.batch, 1)
        begin = max(self.next - self.live - self.batch, 0) + self.rounds % step
        numbers = np.arange(begin, self.next + self.batch, step, dtype=np.uint64)
        keys = self.store.keys(pa.array(keys_of(numbers)))
        age = self.age(numbers)
        there = (age >= 0) & (age < self.live)
        totals, lasts = self.store["total"].values(keys), self.store["last"].values(keys)
        assert np.array_equal(np.asarray(lasts.is_valid()), there), "keys came back, or are lost"
        due = self.due(numbers, age)
        kept = numbers[there]
        found = np.asarray(totals)[there], np.asarray(lasts.drop_null())
        equal("churn", kept, found, (due[0][there], due[1][there]))
        self.keys += len(numbers)

    def age(self, numbers: Words) -> Longs:
        """How many others came after the batch of each; below 0 if it has not come."""
        return (self.next - 1 - numbers.view(np.int64)) // self.batch * self.batch

    def due(self, numbers: Words, age: Longs) -> tuple[Longs, Longs]:
        changes = (age >= self.live // 4).astype(np.int64) + (age >= self.live // 2)
        return np.array([1, 11, 111])[changes], numbers.view(np.int64) + 10**changes

    def check_all(self) -> None:
        """Compare all rows; nothing is in the files that is gone."""
        count = 0
        for batch in self.store._backend.to_batches():
            totals = np.asarray(batch.column("total"))
            lasts = np.asarray(batch.column("last"))
            changes = np.searchsorted([1, 11, 111], totals)
            numbers = (lasts - 10**changes).view(np.uint64)
            assert np.array_equal(keys_of(numbers), np.asarray(batch.column("key")))
            age = self.age(numbers)
            assert ((age >= 0) & (age < self.live)).all(), "a key that is gone"
            equal("scan", numbers, (totals, lasts), self.due(numbers, age))
            count += len(numbers)
        due = min(self.live, self.next)
        assert count == due, f"{count:,} keys, not {due:,}"


def opened(folder: Path, limit_bytes: int) -> Store:
    states = {"total": ps.ValueState("long", default=0), "last": ps.ValueState("long")}
    return ps.open(
        folder, key="long", states=states, home="disk", limit_bytes=limit_bytes, retained=1
    )


def run(
    folder: Path,
    seconds: float,
    limit_bytes: int,
    group: Group | None = None,
    most_bytes: int = 0,
    *,
    own_limit: bool = True,
) -> Said:
    """Churn for so long after all keys are there; without `own_limit` the process has the limit."""
    batch = max(limit_bytes // BATCH_PART, 1000)
    with opened(folder / "before", MIB) as store:
        # What is imported and made when it is first needed is here now.
        small = Churn(store, 4000, 100)
        for _ in range(50):
            small.round()
        small.check_all()
    gc.collect()
    pa.default_memory_pool().release_unused()
    said = Said(base_bytes=own_bytes(group))
    if group is not None:
        said.group_limit_bytes = said.base_bytes + most_bytes
        group.limit(said.group_limit_bytes)
    with ExitStack() as stack:
        watch = stack.enter_context(Watch(group))
        store = stack.enter_context(opened(folder / "store", limit_bytes if own_limit else 0))
        churn = Churn(store, TIMES * limit_bytes // ROW_BYTES, batch)
        churn.fill()
        churn.check_all()
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            churn.round()
            said.most_used = max(said.most_used, memory_use().private_bytes)
        said.seconds = time.monotonic() - began
        churn.check_all()
    said.keys, said.rounds, said.live = churn.keys, churn.rounds, churn.live
    said.most_bytes = watch.most - said.base_bytes
    said.disk_bytes = bytes_in(folder / "store" / "state")
    if group is not None:
        said.group_most_bytes = group.most_bytes()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--group", type=Path, help="this process is in it, and in no other")
    parser.add_argument("--most", type=int, help="how many bytes it may have beside its libraries")
    parser.add_argument(
        "--process", action="store_true", help="the process has the limit, and not the store"
    )
    given = parser.parse_args()
    group = None if given.group is None else Group(given.group)
    limit = given.mib * MIB
    most, own = given.most or limit * 21 // 20, not given.process
    said = run(given.folder, given.seconds, limit, group, most, own_limit=own)
    print(json.dumps(asdict(said)))


if __name__ == "__main__":
    main()
