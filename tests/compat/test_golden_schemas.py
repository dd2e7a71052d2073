"""Files of an earlier program must open for ever as a later program declares their states.

``tests/compat/schemas1`` was written once by ``python -m tests.compat.test_golden_schemas
schemas1`` and is never written again: a change of the format gets a folder of its own.
"""

from __future__ import annotations

import datetime
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.errors import SchemaError
from tests.compat import page_visits
from tests.compat.page_visits import Visit

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("schemas*"))
NOW, HOUR_MS = 1_000_000, 3_600_000
HOUR, DAY = ps.StateTtl(hours=1), ps.StateTtl(hours=24)
KEYS = range(20)


def before(*, timed: bool) -> dict[str, Any]:
    """The declarations of the program that wrote the files."""
    hour = HOUR if timed else None
    return {
        "n": ps.ValueState("int"),
        "day": ps.ValueState("date"),
        "place": ps.ValueState("struct<a:int,b:string,c:float,day:date>"),
        "flat": ps.ValueState("struct<x:short,y:int>"),
        "list": ps.ListState("struct<x:short,y:string>"),
        "numbers": ps.ListState("int", ttl=hour),
        "map": ps.MapState("int", "struct<p:int,q:array<int>>"),
        "rates": ps.MapState("short", "float", ttl=hour),
        "mean": ps.AggregatingState(ps.Mean(), "int"),
        "worst": ps.ReducingState("int", max),
        "visit": ps.ValueState(object),
        "visits": ps.ListState(object),
        "dropped": ps.ValueState("string"),
        "lasting": ps.ValueState("long"),
        "passing": ps.ValueState("long", ttl=hour),
        "longer": ps.ValueState("long", ttl=hour),
    }


def after(*, timed: bool) -> dict[str, Any]:
    """Those of the program that reads them."""
    hour, day = (HOUR, DAY) if timed else (None, None)
    return {
        "n": ps.ValueState("long"),
        "day": ps.ValueState("timestamp"),
        "place": ps.ValueState("struct<extra:array<string>,day:timestamp,c:double,a:long>"),
        "flat": ps.ValueState("struct<y:long,z:double,x:int>"),
        "list": ps.ListState("struct<z:map<string,int>,x:long,y:string>", ttl=hour),
        "numbers": ps.ListState("decimal(14,2)"),
        "map": ps.MapState("long", "struct<q:array<long>,p:decimal(12,2)>", ttl=hour),
        "rates": ps.MapState("int", "double"),
        "mean": ps.AggregatingState(ps.Mean(), "long"),
        "worst": ps.ReducingState("long", max),
        "visit": ps.ValueState(object),
        "visits": ps.ListState(object),
        "added": ps.ValueState("string"),
        "lasting": ps.ValueState("long", ttl=hour),
        "passing": ps.ValueState("long"),
        "longer": ps.ValueState("long", ttl=day),
    }


def at(i: int) -> datetime.date:
    return datetime.date(1969, 12, 20) + datetime.timedelta(days=i)


def midnight(i: int) -> datetime.datetime:
    day = at(i)
    return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.timezone.utc)


@contextmanager
def as_version(version: int) -> Iterator[type[Any]]:
    """The class as it was in version 0 or 1, to make and to pickle its objects."""
    if version == 1:
        Visit.state_version = 1
        yield Visit
        Visit.state_version = 2
    else:
        old = type("Visit", (), {"__module__": page_visits.__name__})
        page_visits.Visit = old  # type: ignore[misc]
        yield old
        page_visits.Visit = Visit  # type: ignore[misc]


def visit(cls: type[Any], v: int) -> Any:
    made = cls.__new__(cls)
    made.page = f"/{v}"
    if cls is Visit:
        made.seconds = v
    return made


def fill(states: Any, cls: type[Any], i: int, factor: int) -> None:
    """Write a key's states, as the first program does."""
    v = i * factor
    states.set_current_key(i)
    states["n"].update(v)
    states["day"].update(at(v))
    text = None if i % 5 == 0 else f"b {v} " * (i % 4)
    states["place"].update(None if i == 9 else {"a": v, "b": text, "c": v / 4, "day": at(v)})
    states["flat"].update({"x": -v, "y": None if i % 3 else v})
    states["list"].add({"x": v, "y": f"y {v}"})
    states["list"].add({"x": None, "y": None})
    states["numbers"].add_all([v, -v, 2**31 - 1])
    states["map"].put(-i, {"p": v, "q": [v, None] * (i % 3)})
    states["map"].put(i + 1, {"p": None, "q": None})
    states["rates"].put(i % 7, v / 8)
    states["mean"].add(v)
    states["worst"].add(v)
    states["visit"].update(visit(cls, v))
    states["visits"].add(visit(cls, v))
    for name in ("lasting", "passing", "longer"):
        states[name].update(v)
    states["dropped"].update("gone")


def expected(i: int) -> dict[str, Any]:
    """What the later program finds; odd keys were written twice."""
    values = [i, i * 3] if i % 2 else [i]
    v = values[-1]
    place = {"extra": None, "day": midnight(v), "c": v / 4, "a": v}
    ms = [0, v * 1000][: len(values)]
    return {
        "n": v,
        "day": midnight(v),
        "place": None if i == 9 else place,
        "flat": {"y": None if i % 3 else v, "z": None, "x": -v},
        "list": [
            item
            for value in values
            for item in (
                {"z": None, "x": value, "y": f"y {value}"},
                {"z": None, "x": None, "y": None},
            )
        ],
        "numbers": [Decimal(n) for value in values for n in (value, -value, 2**31 - 1)],
        "map": {
            -i: {"q": [v, None] * (i % 3), "p": Decimal(v)},
            i + 1: {"q": None, "p": None},
        },
        "rates": {i % 7: v / 8},
        "mean": sum(values) / len(values),
        "worst": v,
        "visit": Visit(f"/{v}", ms[-1], []),
        "visits": [Visit(f"/{value}", m, []) for value, m in zip(values, ms, strict=True)],
        "added": None,
        "lasting": v,
        "passing": v,
        "longer": v,
    }


def found(states: Any) -> dict[str, Any]:
    """A key's states, as the later program reads them."""
    read: dict[str, Any] = {}
    for name, declared in after(timed=False).items():
        handle = states[name]
        if isinstance(declared, ps.ListState):
            read[name] = list(handle.get())
        elif isinstance(declared, ps.MapState):
            read[name] = dict(handle.items())
        elif isinstance(declared, ps.ValueState):
            read[name] = handle.value()
        else:
            read[name] = handle.get()
    return read


def check(states: Any, keys: Any = KEYS, **changed: Any) -> None:
    for i in keys:
        states.set_current_key(i)
        assert found(states) == {**expected(i), **changed}, i


#: The first epoch writes all keys, the second the odd ones, with other values.
EPOCHS = ((KEYS, 1), (KEYS[1::2], 3))


def make(folder: Path) -> None:
    with ps.open(folder / "store", key="long", states=before(timed=False)) as store:
        for version, (keys, factor) in enumerate(EPOCHS):
            with as_version(version) as cls:
                for i in keys:
                    fill(store, cls, i, factor)
                store.checkpoint()
    paths = [folder / "1.delta", folder / "2.delta"]
    with ps.KeyedStateBackend("long", states=before(timed=True)) as backend:
        backend.set_clock(processing_time=NOW)
        for version, (keys, factor) in enumerate(EPOCHS):
            with as_version(version) as cls, paths[version].open("wb") as out:
                for i in keys:
                    fill(backend, cls, i, factor)
                with backend.seal() as snapshot:
                    snapshot.write(out)
    with (folder / "merged.base").open("wb") as out:
        ps.merge_files(paths, out)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_opens_as_a_later_program_declares_it(version: str, tmp_path: Path) -> None:
    folder, states = tmp_path / "store", after(timed=False)
    shutil.copytree(HERE / version / "store", folder)
    with pytest.raises(SchemaError, match=r"'place': stored as struct<a:int,.*short does not hold"):
        ps.open(folder, key="long", states={**states, "place": ps.ValueState("struct<a:short>")})
    with ps.open(folder, key="long", states=states, allow_unclaimed_state=True) as store:
        check(store)
        store.set_current_key(3)
        store["n"].update(2**40)
        store["added"].update("here")
        store.checkpoint()
    with ps.open(folder, key="long", states=states) as store:
        check(store, [i for i in KEYS if i != 3])
        check(store, [3], n=2**40, added="here")
    # A field that comes back has nothing of what the files still hold.
    again = ps.ValueState("struct<extra:array<string>,day:timestamp,c:double,a:long,b:string>")
    with ps.open(folder, key="long", states={**states, "place": again}) as store:
        store.set_current_key(1)
        assert store["place"].value() == {**expected(1)["place"], "b": None}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("files", [["1.delta", "2.delta"], ["merged.base"]])
def test_files_are_read_as_a_later_program_declares_them(version: str, files: list[str]) -> None:
    paths = [HERE / version / file for file in files]
    with ps.KeyedStateBackend("long", states=after(timed=True)) as backend:
        backend.set_clock(processing_time=NOW)
        backend.restore(paths, allow_unclaimed_state=True)
        check(backend)
        # What had a time to live and has none stays; what has one now goes after it.
        backend.set_clock(processing_time=NOW + HOUR_MS)
        check(backend, lasting=None, list=[], map={})
        backend.set_clock(processing_time=NOW + 24 * HOUR_MS)
        check(backend, lasting=None, longer=None, list=[], map={})


def test_there_is_a_version() -> None:
    assert VERSIONS == ["schemas1"]


if __name__ == "__main__":
    make(HERE / sys.argv[1])
