"""Pieces of one key's map or list, as a dict and a list have them."""

from __future__ import annotations

import datetime
import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.query import entries as pieces
from tests.readers import Connect

UID = "embedded"
DAY = datetime.date(1970, 1, 1)


def number(draw: random.Random) -> int:
    return draw.choice([-128, -1, 0, 1, 127, draw.randrange(-128, 128)])


KEYS: dict[str, Any] = {
    "byte": number,
    "long": lambda draw: draw.choice([-(1 << 63), (1 << 63) - 1, number(draw)]),
    "string": lambda draw: "".join(draw.choices(["", "a", "ä", "zz", "😀"], k=3)),
    "binary": lambda draw: bytes(draw.choices(range(256), k=draw.randrange(3))),
    "date": lambda draw: DAY + datetime.timedelta(days=number(draw)),
    "double": lambda draw: number(draw) / 4,
    "boolean": lambda draw: draw.random() < 0.5,
}


def piece(rows: pa.RecordBatchReader) -> list[tuple[Any, Any]]:
    return [tuple(row.values()) for row in rows.read_all().to_pylist()]


@pytest.mark.parametrize("home", ["heap", "disk"])
@pytest.mark.parametrize("type_", KEYS)
def test_a_piece_of_a_map_is_that_of_a_dict(
    tmp_path: Path, type_: str, home: Any, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    monkeypatch.setattr(pieces, "ELEMENTS", 4)
    draw = random.Random(type_)
    states = {"m": ps.MapState(type_, "long"), "n": ps.ValueState("long")}
    kept: dict[Any, int] = {}
    with ps.open(tmp_path, key="string", states=states, home=home) as store:
        for _ in range(4):
            store.set_current_key("k")
            for n in range(12):
                key = KEYS[type_](draw)
                if key in kept and draw.random() < 0.4:
                    store["m"].remove(key)
                    del kept[key]
                else:
                    store["m"].put(key, n)
                    kept[key] = n
            store.checkpoint()
    with connect(tmp_path) as reader:
        operator = reader[UID]
        bounds = [None, *(KEYS[type_](draw) for _ in range(6))]
        for first in bounds:
            for end in bounds:
                found = piece(operator.entries("m", "k", from_=first, to=end))
                assert found == [
                    (key, kept[key])
                    for key in sorted(kept)
                    if (first is None or key >= first) and (end is None or key < end)
                ]
        assert piece(operator.entries("m", "other")) == []


@pytest.mark.parametrize("home", ["heap", "disk"])
def test_a_piece_of_a_list_is_a_slice(tmp_path: Path, home: Any, connect: Connect) -> None:
    states = {"l": ps.ListState("struct<a: long, b: array<string>>")}
    items = [{"a": n, "b": [str(n), None]} for n in range(50)]
    with ps.open(tmp_path, key={"a": "long", "b": "string"}, states=states, home=home) as store:
        for at in range(0, 50, 10):
            store.set_current_key((1, None))
            store["l"].add_all(items[at : at + 10])
            store.checkpoint()
    with connect(tmp_path) as reader:
        for first, end in [(None, None), (7, 9), (49, 60), (50, None), (None, 3), (9, 7)]:
            found = piece(reader[UID].entries("l", (1, None), from_=first, to=end))
            assert found == list(enumerate(items))[slice(first, end)]


@pytest.mark.parametrize("home", ["heap", "disk"])
def test_objects_come_as_they_were_pickled(tmp_path: Path, home: Any, connect: Connect) -> None:
    states = {"m": ps.MapState("string", object), "l": ps.ListState(object)}
    with ps.open(tmp_path, key="long", states=states, home=home) as store:
        store.set_current_key(1)
        store["m"].put_all({"a": {1}, "b": None})
        store["l"].add(Refused())
        store.checkpoint()
    with connect(tmp_path) as reader:
        [a, b] = piece(reader[UID].entries("m", 1, from_="a"))
        assert (pickle.loads(a[1]), b) == ({1}, ("b", None))
        [(at, data)] = piece(reader[UID].entries("l", 1))
        assert at == 0 and b"Refused" in data


class Refused:
    """An object that nobody unpickles."""

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("it was unpickled")

    def __getstate__(self) -> Any:
        return {"a": 1}


def test_a_piece_of_a_large_map_is_read_from_its_blocks_alone(tmp_path: Path) -> None:
    count = 30_000
    with ps.open(
        tmp_path, key="string", states={"m": ps.MapState("long", "string")}, home="disk"
    ) as store:
        store.set_current_key("k")
        store["m"].put_all((n, f"{n:0100d}") for n in range(count))
        store.checkpoint()
        size = sum(file.stat().st_size for file in tmp_path.rglob("*.delta"))
    with ps.connect(tmp_path) as reader:
        before = _read_bytes()
        found = piece(reader[UID].entries("m", "k", from_=count // 2, to=count // 2 + 10))
        assert [key for key, _ in found] == list(range(count // 2, count // 2 + 10))
        assert _read_bytes() - before < size / 4


def _read_bytes() -> int:
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return int(text.split("rchar: ")[1].split()[0])


def test_what_is_asked_wrongly(tmp_path: Path, connect: Connect) -> None:
    states = {"m": ps.MapState("string", "long"), "n": ps.ValueState("long")}
    with ps.open(tmp_path, key="long", states=states) as store:
        store.checkpoint()
    with connect(tmp_path) as reader:
        operator = reader[UID]
        with pytest.raises(InvalidArgumentError, match="'n' of operator 'embedded' is neither"):
            operator.entries("n", 1)
        with pytest.raises(InvalidArgumentError, match="no column 'k'; it has 'm', 'n'"):
            operator.entries("k", 1)
        with pytest.raises(WrongTypeError, match="key column 'key' is long"):
            operator.entries("m", "x")
        with pytest.raises(WrongTypeError, match="entries: from_ is string"):
            operator.entries("m", 1, from_=3)
        with pytest.raises(InvalidArgumentError, match="has no namespaces"):
            operator.entries("m", 1, namespace=3)
