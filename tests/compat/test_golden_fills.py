"""A checkpoint with defaults of fields that were added must be read for ever with their values.

``tests/compat/fills1`` was written once by ``python -m tests.compat.test_golden_fills fills1`` and
is never written again: a change of the form gets a folder of its own.
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
from tests.program import Program, state_in

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("fills*"))
ADDED: dict[str, tuple[str, Any]] = {
    "text": ("string", 'a "text" é'),
    "data": ("binary", b"\x00\xff"),
    "on": ("boolean", True),
    "small": ("byte", -128),
    "number": ("long", 2**63 - 1),
    "half": ("float", 0.5),
    "third": ("double", 1 / 3),
    "price": ("decimal(20,2)", Decimal("-123456789012345678.25")),
    "day": ("date", datetime.date(1969, 12, 31)),
    "at": ("timestamp", datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc)),
    "clock": ("timestamp_ntz", datetime.datetime(1960, 1, 2, 3)),
    "tags": ("array<string>", ["a", None]),
    "days": ("map<int,date>", {1: datetime.date(2026, 1, 1)}),
    "more.`fields.in`": ("struct<x:int,y:string>", {"x": 7, "y": None}),
}


def later(**changed: Any) -> dict[str, Any]:
    """The declaration that adds all of the fields, one of them to a struct in the struct."""
    top = {name: spec for name, spec in ADDED.items() if "." not in name}
    [inner] = (spec for name, spec in ADDED.items() if "." in name)
    fields = ",".join(f"{name}:{type_}" for name, (type_, _) in top.items())
    default = {name: value for name, (_, value) in top.items()}
    default["more"] = {"n": None, "fields.in": inner[1]}
    type_ = f"struct<{fields},more:struct<`fields.in`:{inner[0]},n:int>,a:long>"
    return {"s": ps.ValueState(type_, {**default, **changed})}


def expected(i: int) -> dict[str, Any]:
    values = {name: value for name, (_, value) in ADDED.items() if "." not in name}
    values["days"] = list(values["days"].items())
    more = {"fields.in": {"x": 7, "y": None}, "n": i}
    return {"s": {**values, "more": None if i == 2 else more, "a": i}}


def make(root: Path) -> None:
    states = {"s": ps.ValueState("struct<a:int,more:struct<n:int>>")}
    rows = {i: {"s": {"a": i, "more": None if i == 2 else {"n": i}}} for i in range(6)}
    Program(root, states, 1).run(0, rows)
    Program(root, later(), 1).run(1, {9: {"s": {"a": 9}}}, retained=1)
    shutil.rmtree(root / "evaluations", ignore_errors=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_are_read_and_kept(version: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(HERE / version, folder)
    wanted = {i: expected(i) for i in range(6)}
    wanted[9] = {"s": {**dict.fromkeys(wanted[0]["s"]), "a": 9}}
    assert state_in(folder) == wanted
    program = Program(folder, later(text="other", number=1), 3)
    program.run(2, {8: {"s": {"a": 8}}})
    wanted[8] = {"s": {**dict.fromkeys(wanted[0]["s"]), "a": 8}}
    assert state_in(folder) == wanted
    assert ps.verify(folder).ok


def test_there_is_a_version() -> None:
    assert VERSIONS == ["fills1"]


if __name__ == "__main__":
    make(HERE / sys.argv[1])
