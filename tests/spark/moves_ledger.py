"""What a job that moves amounts between accounts has after each epoch, computed anew.

There are two operators, each with as many accounts; the sum of all is the same after every epoch.
An account that has nothing left is removed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

__all__ = ["ACCOUNTS", "TOTAL", "UIDS", "Account", "Ledger", "Row", "States", "accounts_in"]

UIDS = ("home", "away")
ACCOUNTS, BEGIN = 64, 1_000
TOTAL = len(UIDS) * ACCOUNTS * BEGIN
#: Moves of an epoch; account 0 of either operator is in one of each epoch, and is never emptied.
MOVES, COINS, MOST = 12, 4, 40


class Row(NamedTuple):
    """What an account gets, or gives."""

    uid: str
    k: int
    coin: int
    v: int
    epoch: int


class Account(NamedTuple):
    """What an account has: its balance is the sum of its parts, by coin; the epoch changed it."""

    balance: int
    stamp: int
    parts: tuple[tuple[int, int], ...]


States = Mapping[str, Mapping[int, Account]]


class Ledger:
    """The rows and the state of each epoch, from 1, which a seed draws."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: list[States] = [{uid: {} for uid in UIDS}]
        self._rows: list[list[Row]] = [[]]

    def at(self, epoch: int) -> States:
        """The accounts after an epoch, by operator."""
        self._reach(epoch)
        return self._states[epoch]

    def rows(self, epoch: int) -> list[Row]:
        """The input of an epoch; no account comes twice."""
        self._reach(epoch)
        return self._rows[epoch]

    def _reach(self, epoch: int) -> None:
        while len(self._states) <= epoch:
            before = self._states[-1]
            rows = self._drawn(len(self._states), before)
            after = {uid: dict(before[uid]) for uid in UIDS}
            for row in rows:
                account = _moved(after[row.uid].pop(row.k, None), row)
                if account is not None:
                    after[row.uid][row.k] = account
            assert sum(a.balance for one in after.values() for a in one.values()) == TOTAL
            self._rows.append(rows)
            self._states.append(after)

    def _drawn(self, epoch: int, states: States) -> list[Row]:
        if epoch == 1:
            return [Row(uid, k, 0, BEGIN, epoch) for uid in UIDS for k in range(ACCOUNTS)]
        rng = random.Random(f"{self._seed} {epoch}")
        rows = []
        drawn = [[0, *rng.sample(range(1, ACCOUNTS), MOVES)] for _ in UIDS]
        for keys in zip(*drawn, strict=True):
            sides = [*zip(UIDS, keys, strict=True)]
            rng.shuffle(sides)
            has = [states[uid][k].balance if k in states[uid] else 0 for uid, k in sides]
            is_marker = keys[0] == 0
            if has[0] <= is_marker:
                sides.reverse()
                has.reverse()
            if has[0] <= is_marker:
                continue
            amount = min(rng.randint(1, MOST), has[0] - is_marker)
            if rng.random() < 0.2 and not is_marker:
                amount = has[0]
            coin = rng.randrange(COINS)
            for (uid, k), v in zip(sides, (-amount, amount), strict=True):
                rows.append(Row(uid, k, coin, v, epoch))
        return rows


def _moved(account: Account | None, row: Row) -> Account | None:
    parts = dict(account.parts) if account else {}
    parts[row.coin] = parts.get(row.coin, 0) + row.v
    left = tuple(sorted((coin, v) for coin, v in parts.items() if v))
    balance = (account.balance if account else 0) + row.v
    return Account(balance, row.epoch, left) if balance else None


def accounts_in(rows: pa.Table | pa.RecordBatch) -> dict[int, Account]:
    """The accounts of rows that were read; who is not there is null in all columns."""
    found = {}
    for row in rows.to_pylist():
        if row["stamp"] is None:
            assert row["balance"] is None and not row["parts"], row
        else:
            assert row["k"] not in found, row
            found[row["k"]] = account_of(row)
    return found


def account_of(states: Mapping[str, Any]) -> Account:
    """An account from the values of its states."""
    return Account(states["balance"], states["stamp"], tuple(sorted(states["parts"] or ())))
