"""A checkpoint knows what keys without a value have.

``tests/compat/defaults1`` was written once by ``python tests/compat/test_golden_defaults.py
defaults1`` and is never written again: a change of the form gets a folder of its own.
"""

from __future__ import annotations

import datetime
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pystate as ps

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("defaults*"))


def states(n: int) -> dict[str, ps.State[Any]]:
    return {
        "n": ps.ValueState("long", default=n),
        "ratio": ps.ValueState("double", default=float("inf")),
        "text": ps.ValueState("string", default="é"),
        "raw": ps.ValueState("binary", default=b"\x00\xff"),
        "price": ps.ValueState("decimal(10,2)", default=Decimal("-1.50")),
        "day": ps.ValueState("date", default=datetime.date(2026, 1, 2)),
        "at": ps.ValueState("timestamp", default=datetime.datetime(2026, 1, 2, tzinfo=UTC)),
        "place": ps.ValueState(
            "struct<x:double,tags:array<string>,by:map<string,int>>",
            default={"x": 0.5, "tags": ["a", None], "by": {"k": 1}},
        ),
        "count": ps.AggregatingState(ps.Count(), "long"),
        "none": ps.ValueState("long"),
        "seen": ps.ListState("long"),
    }


UTC = datetime.timezone.utc
ABSENT = {
    "n": 1,
    "ratio": float("inf"),
    "text": "é",
    "raw": b"\x00\xff",
    "price": Decimal("-1.50"),
    "day": datetime.date(2026, 1, 2),
    "at": datetime.datetime(2026, 1, 2, tzinfo=UTC),
    "place": {"x": 0.5, "tags": ["a", None], "by": [("k", 1)]},
    "count": 0,
    "none": None,
}


def make(folder: Path) -> None:
    for n in (1, 2):  # the second epoch's program has another default
        with ps.open(folder, key="long", states=states(n)) as store:
            store.set_current_key(1)
            store["seen"].add(n)
            store.set_current_key(2)
            store["n"].update(n)  # what is stored is equal to the default
            store.checkpoint()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_absent_has_its_default(version: str) -> None:
    for epoch, seen in ((1, [1]), (2, [1, 2])):
        rows = ps.read_state(HERE / version, epoch=epoch).sort_by("key").to_pylist()
        assert rows[0] == {"key": 1, **ABSENT, "n": epoch, "seen": seen}
        assert rows[1] == {"key": 2, **ABSENT, "n": epoch, "seen": []}
        stored = ps.read_state(HERE / version, epoch=epoch, defaults=False).sort_by("key")
        nothing = dict.fromkeys(ABSENT)
        assert stored.to_pylist() == [
            {"key": 1, **nothing, "seen": seen},
            {"key": 2, **nothing, "n": epoch, "seen": []},
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_it_goes_on(version: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / version, tmp_path / "store")
    with ps.open(tmp_path / "store", key="long", states=states(3)) as store:
        store.set_current_key(1)
        assert store["n"].value() == 3
        store["seen"].add(3)
        store.checkpoint()
    assert ps.read_state(tmp_path / "store", keys=[1])["n"].to_pylist() == [3]


def test_an_older_checkpoint_has_nulls() -> None:
    rows = ps.read_state(HERE / "v6" / "store")
    assert rows["n"].null_count == 1


def test_there_is_a_version() -> None:
    assert VERSIONS == ["defaults1"]


if __name__ == "__main__":
    make(HERE / sys.argv[1])
