"""Asks the job of `moves_job.py` for its state, and compares each answer with a recomputation.

``python moves_query.py FOLDER SEED NUMBER QUERIES PAUSE URL`` asks until so many queries were
answered, and the file ``disturbed`` is there, in turn of the files and of a server, PAUSE seconds
apart. What was counted is in ``queries-NUMBER.json``. An answer that is none of one epoch ends it
with an error. A query is one statement, or what is read of one operator; answers of both operators
are compared together. A process of an odd NUMBER moves to the newest epoch only where it must: its
epochs are retired while it reads them.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pystate as ps
from pystate.checkpoint.manifest_log import list_manifests
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, CorruptFileError, FencedError, NewerFormatError
from pystate.query.follow import EpochChanges
from pystate.query.reader import StateReader
from tests.spark.moves_ledger import ACCOUNTS, TOTAL, UIDS, Ledger, accounts_in

__all__ = ["KINDS"]

#: Errors that are no retired epoch's.
NEVER = (CorruptFileError, FencedError, NewerFormatError)
CACHE_BYTES = 1 << 20
PLACES = ("files", "server")
SUM = (
    "select (select sum(balance) from home) + (select sum(balance) from away) as total, "
    "(select max(stamp) from home where k = 0) as home, "
    "(select max(stamp) from away where k = 0) as away"
)
JOIN = (
    "select h.k, h.balance as home, a.balance as away, h.stamp as home_stamp, "
    "a.stamp as away_stamp from home h full join away a on h.k = a.k"
)
PARTS = (
    "select sum(parts) as total from (select parts from home__parts "
    "union all select parts from away__parts)"
)


class MovedError(Exception):
    """The epoch was retired meanwhile, and the reader has moved to another one."""


class Queries:
    """Readers of one job, and what their answers should be."""

    def __init__(self, folder: Path, seed: int, number: int, url: str) -> None:
        self._folder, self._ledger = folder, Ledger(seed)
        self._rng = random.Random(f"{seed} queries {number}")
        self._files = ps.connect(folder / "checkpoint", cache_bytes=CACHE_BYTES)
        self._server = ps.connect(url)
        self.counted: Counter[str] = Counter()
        self._asked, self._is_lazy = 0, number % 2 == 1
        # Of each kind one, before any is drawn.
        self._due = [
            (kind, where)
            for kind, (_, weights) in KINDS.items()
            for where, weight in zip(PLACES, weights, strict=True)
            if weight
        ]
        self._rng.shuffle(self._due)

    def close(self) -> None:
        """Close the readers."""
        self._server.close()
        self._files.close()

    def ask(self) -> int:
        """Ask once, and check what is answered; how many queries were."""
        kind, where = self._due.pop() if self._due else self._drawn()
        reader = self._files if where == "files" else self._server
        self._asked = reader.epoch
        try:
            answered = KINDS[kind][0](self, reader)
        except MovedError:
            self.counted[f"{where}: {kind}: moved"] += 1
        except CheckpointError as error:
            if kind == "savepoint" or isinstance(error, NEVER) or not self._is_retired(error):
                raise
            self.counted[f"{where}: {kind}: retired"] += 1
        else:
            self.counted[f"{where}: {kind}"] += 1
            return answered
        return 0

    def _is_retired(self, error: CheckpointError) -> bool:
        """Whether the epoch that was asked is gone, and the error says so."""
        said = any(word in str(error) for word in ("retired", "retain more", "retained"))
        retained = list_manifests(LocalStorage(self._folder / "checkpoint")).epochs
        return said and self._asked not in retained

    def _drawn(self) -> tuple[str, str]:
        where = self._rng.choice(("files", "files", *PLACES))
        weights = [weight[PLACES.index(where)] for _, weight in KINDS.values()]
        return self._rng.choices([*KINDS], weights)[0], where

    # ---- one kind of query each ------------------------------------------------------------------

    def refreshed(self, reader: StateReader) -> int:
        """Go to the newest epoch: epochs never go back."""
        before = reader.epoch
        assert before <= self._begun(reader) == reader.epoch, (before, reader)
        return 0

    def get(self, reader: StateReader) -> int:
        """Look all accounts up, in the epoch of the reader."""
        epoch = self._begun(reader)
        found = self._all(reader)
        self._check_moved(reader, epoch, found)
        self._check(found, epoch)
        return len(found)

    def some(self, reader: StateReader) -> int:
        """Look some accounts up, in their order, without refreshing."""
        epoch, keys = reader.epoch, self._rng.sample(range(-2, ACCOUNTS), 5)
        found = {uid: reader[uid].get(keys) for uid in UIDS}
        self._require(reader, epoch)
        for uid, rows in found.items():
            assert rows["k"].to_pylist() == keys
            accounts = self._ledger.at(epoch)[uid]
            assert accounts_in(rows) == {k: accounts[k] for k in keys if k in accounts}, epoch
        return len(found)

    def scan(self, reader: StateReader) -> int:
        """Read all accounts."""
        epoch = self._begun(reader)
        found = {uid: accounts_in(reader[uid].scan().read_all()) for uid in UIDS}
        self._check_moved(reader, epoch, found)
        self._check(found, epoch)
        return len(found)

    def where(self, reader: StateReader) -> int:
        """Read the accounts for which a condition holds."""
        epoch = self._begun(reader)
        least = self._rng.randrange(2_000)
        for uid in UIDS:
            rows = reader[uid].scan(columns=["k"], where=[("balance", ">=", least)]).read_all()
            self._require(reader, epoch)
            accounts = self._ledger.at(epoch)[uid]
            wanted = [k for k, account in accounts.items() if account.balance >= least]
            assert sorted(row["k"] for row in rows.to_pylist()) == sorted(wanted), (uid, epoch)
        return len(UIDS)

    def entries(self, reader: StateReader) -> int:
        """Read the parts of an account."""
        epoch, k = reader.epoch, self._rng.randrange(ACCOUNTS)
        for uid in UIDS:
            rows = reader[uid].entries("parts", k).read_all()
            self._require(reader, epoch)
            account = self._ledger.at(epoch)[uid].get(k)
            wanted = account.parts if account is not None else ()
            assert (*zip(*rows.to_pydict().values(), strict=True),) == wanted, (uid, k, epoch)
        return len(UIDS)

    def at(self, reader: StateReader) -> int:
        """Look all accounts up in a retained epoch."""
        epoch = self._asked = self._rng.choice(_epochs(reader))
        with reader.at(epoch) as pinned:
            found = self._all(pinned)
            assert pinned.epoch == epoch
        self._check(found, epoch)
        return len(found)

    def sql(self, reader: StateReader) -> int:
        """Add up in a statement, which does not say its epoch: account 0 does."""
        [row] = reader.sql(SUM).to_pylist()
        assert row["total"] == TOTAL and row["home"] == row["away"], row
        return 1

    def join(self, reader: StateReader) -> int:
        """Join both operators."""
        rows = {row["k"]: row for row in reader.sql(JOIN).to_pylist() if row["k"] is not None}
        [epoch] = {rows[0]["home_stamp"], rows[0]["away_stamp"]}
        home, away = (self._ledger.at(epoch)[uid] for uid in UIDS)
        assert sorted(rows) == sorted(home)
        for k, row in rows.items():
            assert row["home"] == home[k].balance, (epoch, row)
            assert row["away"] == (away[k].balance if k in away else None), (epoch, row)
        return 1

    def parts(self, reader: StateReader) -> int:
        """Add the elements of maps up in a statement."""
        [row] = reader.sql(PARTS).to_pylist()
        assert row["total"] == TOTAL, row
        return 1

    def changes(self, reader: StateReader) -> int:
        """Find what has changed between two epochs."""
        epochs = _epochs(reader)
        self._asked = epochs[0]
        with reader.at(epochs[-1]) as newest:
            found = newest.changes(since=epochs[0])
            assert (found.since, found.epoch) == (epochs[0], epochs[-1])
            self._check_changes(found)
        return len(UIDS)

    def _check_changes(self, found: EpochChanges) -> None:
        before, after = self._ledger.at(found.since), self._ledger.at(found.epoch)
        for uid in UIDS:
            rows = found.read(uid).to_pylist() if uid in found.uids else []
            changed = {k for k in range(ACCOUNTS) if before[uid].get(k) != after[uid].get(k)}
            assert sorted(row["k"] for row in rows) == sorted(changed), (uid, found)

    def savepoint(self, reader: StateReader) -> int:
        """Read a savepoint."""
        places = [path.parent for path in self._folder.glob("savepoints/*/savepoint.json")]
        if not places:
            raise MovedError
        with ps.connect(self._rng.choice(places)) as saved:
            self._check(self._all(saved), saved.epoch)
        return len(UIDS)

    # ---- what all have in common -----------------------------------------------------------------

    def _begun(self, reader: StateReader) -> int:
        self._asked = reader.epoch if self._is_lazy else reader.refresh()
        return self._asked

    def _all(self, reader: StateReader) -> Mapping[str, Any]:
        return {uid: accounts_in(reader[uid].get([*range(ACCOUNTS)])) for uid in UIDS}

    def _require(self, reader: StateReader, epoch: int) -> None:
        if reader.epoch != epoch:
            assert reader.epoch > epoch, (reader, epoch)
            raise MovedError

    def _check_moved(self, reader: StateReader, epoch: int, found: Mapping[str, Any]) -> None:
        """Where the reader has moved, each operator is as of one epoch, the last as of its own."""
        if reader.epoch != epoch:
            home, away = (found[uid][0].stamp for uid in UIDS)
            assert home in (epoch, away) and epoch < away == reader.epoch, (epoch, home, reader)
            for uid, stamp in zip(UIDS, (home, away), strict=True):
                assert found[uid] == self._ledger.at(stamp)[uid], (epoch, uid, found)
            raise MovedError

    def _check(self, found: Mapping[str, Any], epoch: int) -> None:
        total = sum(a.balance for accounts in found.values() for a in accounts.values())
        stamps = {uid: found[uid][0].stamp for uid in UIDS}
        assert total == TOTAL, f"epoch {epoch}: the sum is {total}, of epochs {stamps}"
        assert set(stamps.values()) == {epoch}, f"epoch {epoch}: account 0 is of {stamps}"
        assert found == self._ledger.at(epoch), f"epoch {epoch}: {found}"


def _epochs(reader: StateReader) -> list[int]:
    return [row["epoch"] for row in reader.epochs().to_pylist()]


#: How often each kind is asked of files, and of a server: there each statement is a process.
KINDS: dict[str, tuple[Callable[[Queries, StateReader], int], tuple[float, float]]] = {
    "refresh": (Queries.refreshed, (10, 10)),
    "get": (Queries.get, (15, 15)),
    "some": (Queries.some, (60, 60)),
    "scan": (Queries.scan, (10, 10)),
    "where": (Queries.where, (5, 5)),
    "entries": (Queries.entries, (10, 10)),
    "at": (Queries.at, (10, 10)),
    "sql": (Queries.sql, (1, 0.1)),
    "join": (Queries.join, (1, 0.1)),
    "parts": (Queries.parts, (1, 0.1)),
    "changes": (Queries.changes, (4, 0)),
    "savepoint": (Queries.savepoint, (4, 0)),
}


def main(folder: Path, seed: int, number: int, count: int, pause_s: float, url: str) -> None:
    """Ask, and write down what was counted."""
    queries = Queries(folder, seed, number, url)
    answered, told = 0, 0
    while answered < count or not (folder / "disturbed").exists():
        answered += queries.ask()
        if answered >= count:
            (folder / f"asked-{number}").touch()
        if answered >= told + 1000:
            told = answered
            print(answered, json.dumps(queries.counted), flush=True)
        time.sleep(pause_s)
    queries.close()
    said = {"answered": answered, "counted": queries.counted}
    (folder / f"queries-{number}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    where, seed, number, count, pause, url = sys.argv[1:]
    main(Path(where), int(seed), int(number), int(count), float(pause), url)
