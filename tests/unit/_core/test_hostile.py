"""Code of the caller that runs inside of pystate, and does there what it should not.

Between a check and the use of what was checked there is none of it: whatever it does, the answer is
a result or an error, never a crash, and never a value under another key. The cases run in processes
of their own, for where that does not hold they end them.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import PystateError
from tests.forks import FORKS, copied

Action = Callable[["World"], object]


class BoomError(Exception):
    """What the caller's code raises."""


class World:
    """A backend with a state of each kind, keys 1 and 2, and what is to happen in the midst."""

    def __init__(self, action: Action) -> None:
        self.action: Action | None = None
        self.again: Callable[[], object] = lambda: None
        self.backend = ps.KeyedStateBackend(
            {"k": "long"},
            states={
                "n": ps.ValueState("long"),
                "x": ps.ValueState("double"),
                "s": ps.ValueState("string"),
                "p": ps.ValueState("struct<a:int,b:array<string>>"),
                "o": ps.ValueState(object),
                "l": ps.ListState("long"),
                "ls": ps.ListState("string"),
                "lo": ps.ListState(object),
                "m": ps.MapState("string", "long"),
                "mo": ps.MapState("long", object),
                "r": ps.ReducingState("long", self.reduce),
                "ro": ps.ReducingState(object, self.reduce),
                "mean": ps.AggregatingState(ps.Mean(), "long"),
                "sum": ps.AggregatingState(ps.Sum(), "long"),
                "py": ps.AggregatingState(Plus(self), object),
            },
            namespace="string",
            timers=True,
        )
        self.fill()
        self.action = action

    def fill(self) -> None:
        b = self.backend
        for key in (1, 2):
            b.set_current_key(key)
            for name, value in [
                ("n", 1),
                ("x", 1.0),
                ("s", "s" * 20),
                ("p", {"a": 1, "b": ["x" * 30]}),
                ("o", [1]),
            ]:
                b[name].update(value)
            for name, value in [("l", 1), ("ls", "text" * 8), ("lo", [1]), ("r", 1), ("ro", 1)]:
                b[name].add(value)
            b["m"].put("a", 1)
            b["mo"].put(1, [1])
            for name in ("mean", "sum", "py"):
                b[name].add(1)
            b.register_timer("event", 5)
        b.seal().close()
        b.set_current_key(1)

    def strike(self) -> None:
        """Do what it should not, once."""
        action, self.action = self.action, None
        if action is not None:
            action(self)

    def reduce(self, a: Any, b: Any) -> Any:
        self.strike()
        return a + b

    def keys(self) -> ps.KeyBatch:
        return self.backend.keys(pa.array([1, 2]))

    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.backend.to_arrow().to_pylist(), key=repr)


class Plus(ps.AggregateFunction[int, int, int]):
    def __init__(self, world: World) -> None:
        self.world = world

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        self.world.strike()
        return accumulator + value

    def merge(self, a: int, b: int) -> int:
        self.world.strike()
        return a + b

    def result(self, accumulator: int) -> int:
        self.world.strike()
        return accumulator


class Number:
    """A number that strikes when it is asked for."""

    def __init__(self, world: World, value: int = 7) -> None:
        self.world = world
        self.number = value

    def __index__(self) -> int:
        self.world.strike()
        return self.number


class Text:
    """A string, by way of `as_py`."""

    def __init__(self, world: World, text: str = "longer than what fits into a row") -> None:
        self.world = world
        self.text = text

    def as_py(self) -> str:
        self.world.strike()
        return self.text


class Items:
    """An iterable that strikes at its end."""

    def __init__(self, world: World, *items: Any) -> None:
        self.world = world
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        yield from self.items
        self.world.strike()


class Column:
    """A column, by way of Arrow's protocol."""

    def __init__(self, world: World, values: list[Any]) -> None:
        self.world = world
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def to_numpy(self) -> Any:
        return np.array(self.values)

    def __arrow_array__(self, type: Any = None) -> Any:
        self.world.strike()
        return pa.array(self.values)


WORLD: list[World] = []


class Pickled:
    """An object that strikes while it is pickled or unpickled."""

    def __reduce__(self) -> Any:
        WORLD[-1].strike()
        return made, ()


class Unpickled:
    """An object that strikes while it is unpickled."""

    def __reduce__(self) -> Any:
        return struck, ()


def made() -> Any:
    return [1]


def struck() -> Any:
    WORLD[-1].strike()
    return [1]


class Gone:
    """A key that strikes when the table lets go of it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __index__(self) -> int:
        return 1

    def __del__(self) -> None:
        self.world.strike()


class Raw(io.BytesIO):
    """A file that strikes when it is read or written."""

    world: World

    def readinto(self, buffer: Any) -> int:
        self.world.strike()
        return super().readinto(buffer)

    def write(self, data: Any) -> int:
        self.world.strike()
        return super().write(data)


def raw(world: World) -> Raw:
    file = Raw()
    file.world = world
    return file


def written(world: World) -> Raw:
    """A delta file of another backend of the same states."""
    action, world.action = world.action, None
    other = World(lambda w: None)
    other.action = None
    other.backend["n"].update(5)
    file = raw(world)
    other.backend.seal().write(file)
    other.backend.close()
    world.action = action
    file.seek(0)
    return file


def dropped_key(w: World) -> None:
    w.backend.set_current_key(Gone(w))
    w.backend.set_current_key(2)


def read_later(w: World) -> object:
    """An object that was stored is read in the next epoch."""
    action, w.action = w.action, None
    w.backend["o"].update(Unpickled())
    w.backend.seal().close()
    w.backend.set_current_key(1)
    w.action = action
    return w.backend["o"].value()


def read_all_later(w: World) -> object:
    action, w.action = w.action, None
    w.backend["o"].update(Unpickled())
    w.backend.seal().close()
    keys = w.keys()
    w.action = action
    return w.backend["o"].values(keys)


def pickle_one(w: World) -> object:
    w.backend["o"].update(Pickled())
    return w.backend.seal().close()


def sealed(w: World) -> Any:
    return w.backend.reader()


def fired(w: World) -> object:
    """Timers whose keys are asked for one by one."""
    due = w.backend.due_timers("event", 10)
    assert due is not None
    w.strike()
    return due.fire(0), due.stale, len(due)


def walked(w: World) -> list[Any]:
    """Batches of all rows, with the strike between two."""
    batches = w.backend.changed(1)
    w.backend["n"].add(w.keys(), 1)
    found = [next(batches, None)]
    w.strike()
    return [*found, *batches]


CASES: dict[str, Callable[[World], object]] = {
    "set_current_key": lambda w: w.backend.set_current_key(Number(w)),
    "drop a key": dropped_key,
    "set_current_namespace": lambda w: w.backend.set_current_namespace(Text(w)),
    "value.update": lambda w: w.backend["n"].update(Number(w)),
    "value.update text": lambda w: w.backend["s"].update(Text(w)),
    "value.update struct": lambda w: w.backend["p"].update({"a": Number(w), "b": [Text(w)]}),
    "value.update array": lambda w: w.backend["p"].update({"b": np.array([Text(w)])}),
    "object.update, seal": pickle_one,
    "object.value": read_later,
    "object.values": read_all_later,
    "list.add": lambda w: w.backend["l"].add(Number(w)),
    "list.add text": lambda w: w.backend["ls"].add(Text(w)),
    "list.add object": lambda w: w.backend["lo"].add(Pickled()),
    "list.add_all": lambda w: w.backend["l"].add_all(Items(w, 5, 6)),
    "list.add_all numbers": lambda w: w.backend["l"].add_all([5, Number(w)]),
    "list.update": lambda w: w.backend["l"].update(Items(w, 5, 6)),
    "list.update numbers": lambda w: w.backend["l"].update([5, Number(w)]),
    "list.extend": lambda w: w.backend["l"].extend(w.keys(), Items(w, [1], [2])),
    "list.append": lambda w: w.backend["l"].append(w.keys(), Column(w, [1, 2])),
    "list.append objects": lambda w: w.backend["lo"].append(w.keys(), [Pickled(), [2]]),
    "list.merge_namespaces": lambda w: w.backend["l"].merge_namespaces("a", Items(w, "b", None)),
    "map.get": lambda w: w.backend["m"].get(Text(w)),
    "map.put key": lambda w: w.backend["m"].put(Text(w), 1),
    "map.put value": lambda w: w.backend["m"].put("long enough to be stored apart", Number(w)),
    "map.put object": lambda w: w.backend["mo"].put(5, Pickled()),
    "map.put_all": lambda w: w.backend["m"].put_all(Items(w, ("x", 1))),
    "map.put_all values": lambda w: w.backend["m"].put_all({"x": 1, "y": Number(w)}),
    "map.remove": lambda w: w.backend["m"].remove(Text(w, "a")),
    "map.contains": lambda w: Text(w, "a") in w.backend["m"],
    "map.put_entries": lambda w: w.backend["m"].put_entries(w.keys(), Column(w, ["a", "b"]), 1),
    "map.put_entries values": lambda w: w.backend["m"].put_entries(
        w.keys(), ["a", "b"], Column(w, [1, 2])
    ),
    "map.get_entries": lambda w: w.backend["m"].get_entries(w.keys(), Column(w, ["a", "b"])),
    "reducing.add": lambda w: w.backend["r"].add(2),
    "reducing.add number": lambda w: w.backend["r"].add(Number(w)),
    "reducing.add object": lambda w: w.backend["ro"].add(2),
    "reducing.add_all": lambda w: w.backend["r"].add_all(w.keys(), [2, 2]),
    "reducing.add_all objects": lambda w: w.backend["ro"].add_all(w.keys(), [2, 2]),
    "mean.add": lambda w: w.backend["mean"].add(Number(w)),
    "mean.add_all": lambda w: w.backend["mean"].add_all(w.keys(), Column(w, [1, 2])),
    "sum.add": lambda w: w.backend["sum"].add(Number(w)),
    "aggregate.add": lambda w: w.backend["py"].add(2),
    "aggregate.get": lambda w: w.backend["py"].get(),
    "aggregate.add_all": lambda w: w.backend["py"].add_all(w.keys(), [2, 2]),
    "aggregate.results": lambda w: w.backend["py"].results(w.keys()),
    "register_timer": lambda w: w.backend.register_timer("event", Number(w)),
    "delete_timer": lambda w: w.backend.delete_timer("event", Number(w, 5)),
    "register_timers": lambda w: w.backend.register_timers(w.keys(), "event", Number(w)),
    "due_timers": lambda w: w.backend.due_timers("event", Number(w)),
    "fire": fired,
    "keys": lambda w: w.backend.keys(Column(w, [1, 2])),
    "keys in namespaces": lambda w: w.keys().in_namespaces(Column(w, ["a", "b"])),
    "values.update_all": lambda w: w.backend["n"].update_all(w.keys(), Column(w, [1, 2])),
    "values.add": lambda w: w.backend["n"].add(w.keys(), Number(w)),
    "set_clock": lambda w: w.backend.set_clock(watermark=Number(w)),
    "changed": walked,
    "delete": lambda w: w.backend.delete(Column(w, [1, 2])),
    "load": lambda w: w.backend.load(written(w)),
    "snapshot.write": lambda w: w.backend.seal().write(raw(w)),
    "reader.get": lambda w: sealed(w).get(Number(w)),
    "close with a key": lambda w: (w.backend.set_current_key(Gone(w)), w.backend.close()),
}


def again(w: World) -> object:
    return w.again()


def boom(w: World) -> None:
    raise BoomError


def in_thread(w: World) -> None:
    errors: list[BaseException] = []

    def close() -> None:
        try:
            w.backend.close()
        except PystateError as error:
            errors.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()


ACTIONS: dict[str, Action] = {
    "close": lambda w: w.backend.close(),
    "roll back": lambda w: w.backend.rollback(),
    "seal": lambda w: w.backend.seal().close(),
    "another key": lambda w: w.backend.set_current_key(2),
    "no key": lambda w: w.backend.clear_current_key(),
    "another namespace": lambda w: w.backend.set_current_namespace("other"),
    "delete": lambda w: w.backend.delete(pa.array([1, 2])),
    "the same call": again,
    "an error": boom,
    "another thread closes": in_thread,
}

#: What a case may write under key 2 by itself, where the action only made it current.
BOTH = re.compile(r"_all|append|extend|entries|objects|values\.|timers|delete|load|changed")


def under_two(world: World) -> Any:
    """What the batch forms read under key 2, in the default namespace."""
    keys = world.backend.keys(pa.array([2]))
    forms = {
        "values": ("n", "s", "p", "r", "ro", "o"),
        "lists": ("l", "ls", "lo"),
        "maps": ("m", "mo"),
        "results": ("mean", "sum", "py"),
    }
    read = {
        name: getattr(world.backend[name], form)(keys) for form, of in forms.items() for name in of
    }
    return {
        name: found.to_pylist() if isinstance(found, (pa.Array, pa.ChunkedArray)) else found
        for name, found in read.items()
    }


def run_case(case: str, action: str) -> None:
    world = World(ACTIONS[action])
    WORLD.append(world)
    world.again = lambda: CASES[case](world)
    strike, world.action = world.action, None
    before = under_two(world)
    world.backend.set_current_key(1)
    world.action = strike
    with contextlib.suppress(PystateError, BoomError, RecursionError, TypeError):
        CASES[case](world)
    world.action = None
    kept = action == "another key" and not BOTH.search(case)
    if kept and world.backend.is_open:
        assert under_two(world) == before, "written under a key that was made current meanwhile"
    if world.backend.is_open:
        world.rows()
        world.backend.rollback()
        world.rows()
        world.fill()
    world.backend.close()


MANY = 100_000


def beside(name: str) -> None:
    """An operation over many keys while another thread rolls back and reads, and at last closes."""
    backend = ps.KeyedStateBackend("long", states={"s": ps.ValueState("string")}, timers=True)
    keys = backend.keys(pa.array(np.arange(MANY)))
    backend.register_timers(keys, "event", 5)
    backend["s"].update_all(keys, "text" * 8)
    backend.seal().close()
    # A thread that has the GIL keeps it until it gives it away: the other one then runs in between.
    sys.setswitchinterval(100)
    for last in (False, True):
        due = backend.due_timers("event", 10, MANY)
        assert due is not None
        operation = {
            "fire_all": due.fire_all,
            "reader": lambda: [backend.reader().close() for _ in range(100)],
            "values": partial(backend["s"].values, due.keys),
            "keys": due.keys.key_arrays,
        }[name]
        others = [backend.close] if last else [backend.rollback, backend.stats]
        meanwhile(operation, others)
        if not last:
            backend.rollback()
            found = backend.to_arrow()
            assert found.num_rows == MANY
            assert found.column("s").null_count == 0
            again = backend.due_timers("event", 10, MANY)
            assert again is not None
            assert len(again) == MANY
    backend.close()


def meanwhile(operation: Callable[[], object], others: list[Callable[[], object]]) -> None:
    """Call others again and again while a thread is at an operation."""
    started = threading.Event()

    def run() -> None:
        started.set()
        with contextlib.suppress(PystateError):
            operation()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    while thread.is_alive():
        for other in others:
            with contextlib.suppress(PystateError):
                other()
        time.sleep(0)
    thread.join()


BESIDE = ["fire_all", "reader", "values", "keys"]


def main(action: str) -> None:
    if action in BESIDE:
        beside(action)
        return
    for case in CASES:
        print(case, flush=True)
        run_case(case, action)


@pytest.mark.parametrize("action", [*ACTIONS, *BESIDE])
@FORKS
def test_callers_code_in_the_midst(action: str) -> None:
    """Whatever the caller's code does, the process lives and no other key is touched."""
    code, said, wrong = copied(partial(main, action))
    assert code == 0, f"{said.splitlines()[-1:]}: {wrong[-3000:]}"
    assert said.splitlines() == ([] if action in BESIDE else [*CASES])


def test_a_reduce_function_does_not_move_the_key() -> None:
    """The error says so, and what is kept stays."""
    world = World(ACTIONS["another key"])
    with pytest.raises(ps.errors.NoCurrentKeyError, match="made another key current"):
        world.backend["r"].add(1)
    assert world.backend["r"].values(world.keys()).to_pylist() == [1, 1]
    world.backend.close()
