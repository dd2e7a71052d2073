"""Jobs drawn and disturbed at random: a short round, and an hour; both are slow tests.

``pytest -m slow tests/spark/test_chaos.py``; ``PYSTATE_CHAOS_SECONDS`` and ``PYSTATE_CHAOS_SEED``
choose how long and where to begin. The program is `tests.spark.chaos`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark import chaos
from tests.spark.chaos_model import Found, MismatchError, Plan, check, input_rows

from .conftest import ROOT

PLAN = Plan(
    seed="model",
    stream=False,
    rdd=False,
    ordered=True,
    side=True,
    groups=True,
    alarms=True,
    actions=False,
    batches=3,
    rows=20,
    keys=7,
    pad=0,
    delay_ms=0,
)


def seed() -> int:
    if os.environ.get("CI"):
        return 1
    return int(os.environ.get("PYSTATE_CHAOS_SEED") or time.time_ns() % 2**32)


@pytest.mark.slow
def test_short() -> None:
    done = chaos.run(f"{seed()}/short", batches=4, disturbances=2)
    assert done["epochs"] == 4


@pytest.mark.slow
def test_hour() -> None:
    seconds = os.environ.get("PYSTATE_CHAOS_SECONDS", "3600")
    command = [sys.executable, "-m", "tests.spark.chaos", "--seed", str(seed())]
    subprocess.run([*command, "--seconds", seconds], cwd=ROOT, check=True)


# ---- what the comparison notices ---------------------------------------------------------------


def ideal() -> Found:
    """What a job without any fault leaves."""
    epochs = [input_rows(PLAN, batch) for batch in range(PLAN.batches)]
    stamps: dict[int, dict[str, Any]] = {}
    groups: dict[int, dict[str, Any]] = {}
    alarms: dict[str, dict[str, Any]] = {}
    waiting: set[tuple[str, int]] = set()
    out: dict[int, list[Any]] = {}
    side: dict[int, list[Any]] = {}
    latest: int | None = None
    for epoch, rows in enumerate(epochs, 1):
        out[epoch], side[epoch] = [], []
        for row in rows:
            key = stamps.setdefault(
                row.k, {"k": row.k, "n": 0, "total": 0, "pad": None, "stamps": []}
            )
            key["n"], key["total"] = key["n"] + 1, key["total"] + row.v
            cell = [key["n"], key["total"], row.seq * 3]
            key["stamps"].append((row.seq, cell))
            out[epoch].append(("row", row.k, row.seq, *cell))
            if row.seq % 2:
                side[epoch].append((row.k, row.seq, cell[2]))
            group = groups.setdefault(row.k % 5, {"g": row.k % 5, "n": 0, "most": 0, "total": 0})
            group["n"], group["total"] = group["n"] + 1, group["total"] + row.seq
            group["most"] = max(group["most"], row.seq)
            name = f"a{row.k % 11}"
            alarms.setdefault(name, {"name": name, "rung": 0, "marks": []})
            waiting.add((name, row.t + 10))
        for g in {row.k % 5 for row in rows}:
            group = groups[g]
            out[epoch].append(("group", g, group["most"], group["n"], group["total"], None))
        for name, at in sorted(w for w in waiting if latest is not None and w[1] <= latest):
            waiting.remove((name, at))
            alarm = alarms[name]
            alarm["rung"] += 1
            alarm["marks"].append((alarm["rung"], [at, at * 7]))
            out[epoch].append(("alarm", int(name[1:]), at, alarm["rung"], latest, at * 7))
        latest = max([row.t for row in rows] + ([] if latest is None else [latest]))
    tables = {"stamps": stamps, "groups": groups, "alarms": alarms}
    states = {uid: list(table.values()) for uid, table in tables.items()}
    return Found(epochs, out, side, states, ["all"] * PLAN.batches)


def other_stamp(found: Found) -> None:
    found.out[2][0] = (*found.out[2][0][:5], 12345)


def other_count(found: Found) -> None:
    found.states["stamps"][0]["stamps"][0][1][0] += 1


def lost_key(found: Found) -> None:
    found.states["stamps"].pop()


def lost_group(found: Found) -> None:
    found.states["groups"][0]["n"] -= 1


def lost_alarm(found: Found) -> None:
    alarm = next(row for row in found.states["alarms"] if row["rung"])
    alarm["rung"] -= 1


def epochs_in_another_order(found: Found) -> None:
    found.out[1], found.out[2] = found.out[2], found.out[1]


FAULTS: dict[str, Callable[[Found], Any]] = {
    "a row of another evaluation": other_stamp,
    "a row is lost": lambda found: found.out[3].pop(),
    "a row is there twice": lambda found: found.out[1].append(found.out[1][0]),
    "an epoch is lost": lambda found: found.out.pop(3),
    "epochs in another order": epochs_in_another_order,
    "a row of a side output is lost": lambda found: found.side[1].pop(),
    "the state counts twice": other_count,
    "a key is lost": lost_key,
    "a group is lost": lost_group,
    "an alarm is lost": lost_alarm,
}


def test_the_comparison_accepts_what_is_right() -> None:
    found = ideal()
    check(PLAN, found)
    assert {row[0] for rows in found.out.values() for row in rows} == {"row", "group", "alarm"}
    found.rules[:] = ["some", "and three", "all"]
    found.out[1].pop()
    found.out[2].extend(found.out[2][:3])
    check(PLAN, found)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_notices(fault: str) -> None:
    found = ideal()
    FAULTS[fault](found)
    with pytest.raises(MismatchError):
        check(PLAN, found)
