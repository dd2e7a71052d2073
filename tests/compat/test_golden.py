"""Files of every format version that was released must open for ever, with the same content.

``tests/compat/v1`` was written once by ``python tests/compat/test_golden.py v1`` and is never
written again: a change of the format gets a folder of its own. Its number is the manifests'.
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
from pystate.checkpoint.manifest import FORMAT_VERSION

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))
KEY = [("line", "string"), ("number", "int")]
Rows = dict[tuple[str | None, int | None], dict[str, Any]]


def states() -> dict[str, ps.ValueState]:
    return {
        "n": ps.ValueState("long", default=0),
        "text": ps.ValueState("string"),
        "day": ps.ValueState("date"),
        "price": ps.ValueState("decimal(10,2)"),
        "ratio": ps.ValueState("double"),
        "open": ps.ValueState("boolean"),
        "anything": ps.ValueState(object),
    }


def first_rows() -> Rows:
    rows: Rows = {}
    for i in range(40):
        key = (None if i == 7 else f"line {i % 5}", None if i == 11 else i)
        rows[key] = {
            "n": i * 1_000_000_007,
            "text": "é" * (i * 3),
            "day": datetime.date(2026, 1, 1) + datetime.timedelta(days=i),
            "price": Decimal(i * 7 - 100) / 100,
            "ratio": i / 3,
            "open": i % 2 == 0,
            "anything": {"i": i, "list": list(range(i % 4))},
        }
        if i % 6 == 0:
            del rows[key]["text"]
    return rows


def last_rows() -> Rows:
    """What the second checkpoint leaves: some rows changed, some gone, one new."""
    rows = first_rows()
    for key in list(rows)[::9]:
        del rows[key]
    for key in list(rows)[::4]:
        rows[key]["n"] = -1
        rows[key].pop("ratio")
    rows["new", 1] = {"text": "only this"}
    return rows


def write(store: ps.Store, before: Rows, after: Rows) -> None:
    for key in before.keys() | after.keys():
        store.set_current_key(key)
        for name in states():
            store[name].update(after.get(key, {}).get(name))
    store.checkpoint()


def content(store: ps.Store) -> Rows:
    rows: Rows = {}
    for key in store:
        store.set_current_key(key)
        values = {name: store[name].value() for name in states()}
        if values["n"] == 0 and key == ("new", 1):
            del values["n"]  # the default of an absent state
        rows[key] = {name: value for name, value in values.items() if value is not None}
    return rows


def make(folder: Path) -> None:
    with ps.open(folder / "store", key=KEY, states=states()) as store:
        write(store, {}, first_rows())
        write(store, first_rows(), last_rows())
    deltas = sorted((folder / "store").rglob("*.delta"))
    with open(folder / "merged.base", "wb") as out:
        ps.merge_files(deltas, out)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_opens_with_its_content(version: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / version / "store", tmp_path / "store")
    with ps.open(tmp_path / "store", key=KEY, states=states()) as store:
        assert content(store) == last_rows()
        write(store, last_rows(), first_rows())
    with ps.open(tmp_path / "store", key=KEY, states=states()) as store:
        assert content(store) == first_rows()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_base_restores_its_content(version: str) -> None:
    path = HERE / version / "merged.base"
    assert ps.verify_file(path).rows == len(last_rows())
    backend = ps.KeyedStateBackend(KEY, states=states())
    backend.restore([path])
    assert {tuple(key) for key in backend} == last_rows().keys()
    backend.close()


def test_there_is_a_version() -> None:
    assert [f"v{number}" for number in range(1, FORMAT_VERSION + 1)] == VERSIONS


if __name__ == "__main__":
    make(HERE / sys.argv[1])
