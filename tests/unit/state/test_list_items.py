"""An index and a slice of a list give what a Python list's give, and make no other items."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import pystate as ps
from pystate.state import objects

COUNTS = [0, 1, 7, 2000]
PLACES = [None, 0, 1, 3, 1999, 5000, -1, -2, -1999, -5000]
TYPES: dict[str, tuple[Any, Any]] = {
    "long": ("long", lambda i: i),
    "string": ("string", lambda i: "x" * (i % 40) + str(i)),
    "struct": ("struct<a:long,b:string>", lambda i: {"a": i, "b": str(i)}),
    "object": (object, lambda i: (i, "x")),
}


@pytest.fixture(params=[(name, ttl) for name in TYPES for ttl in (False, True)], ids=str)
def given(request: Any) -> Iterator[tuple[ps.KeyedStateBackend, Any, Any]]:
    name, ttl = request.param
    type_, make = TYPES[name]
    state = ps.ListState(type_, ttl=ps.StateTtl(hours=1) if ttl else None)
    with ps.KeyedStateBackend("int", states={"l": state}) as backend:
        backend.set_clock(processing_time=1000)
        yield backend, make, ttl


def test_they_are_those_of_a_list(given: Any) -> None:
    backend, make, timed = given
    items = backend["l"]
    for count in COUNTS:
        backend.set_current_key(count)
        wanted = [make(i) for i in range(count)]
        for item in wanted:
            items.add(item)
        for start, stop in itertools.product(PLACES, repeat=2):
            for step in (None, 3, -1):
                assert items[start:stop:step] == wanted[start:stop:step]
        for place in PLACES[1:]:
            if -count <= place < count:  # type: ignore[operator]
                assert items[place] == wanted[place]
            else:
                with pytest.raises(IndexError, match=f"'l': index {place} in a list of {count} "):
                    items[place]
    if timed:
        backend.set_clock(processing_time=2000)
        items.add(make(7))
        backend.set_clock(processing_time=1000 + 3_600_000)
        assert items[-1] == items[0] == make(7)


def test_a_trimmed_list_begins_at_zero() -> None:
    state = ps.ListState("long", ttl=ps.StateTtl(hours=1))
    with ps.KeyedStateBackend("int", states={"l": state}) as backend:
        backend.set_clock(processing_time=0)
        backend.set_current_key(1)
        for i in range(5000):
            backend["l"].add(i)
        backend.seal().close()
        backend.set_clock(processing_time=3_000_000)
        backend.set_current_key(1)
        backend["l"].add(5000)
        backend.seal().close()
        backend.set_clock(processing_time=3_600_000)
        backend.expire()
        backend.set_current_key(1)
        assert (backend["l"][0], backend["l"][-1], backend["l"][:]) == (5000, 5000, [5000])


@pytest.mark.parametrize("wrong", ["a", None, 1.0])
def test_other_indices_are_refused(wrong: Any) -> None:
    with ps.KeyedStateBackend("int", states={"l": ps.ListState("long")}) as backend:
        backend.set_current_key(1)
        with pytest.raises(TypeError, match="state 'l': a list's index is an int or a slice"):
            backend["l"][wrong]


def test_no_other_items_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(name: str, data: bytes) -> Any:
        made.append(name)
        return objects.unpickled(name, data)

    monkeypatch.setattr("pystate.state.handle.unpickled", counted)
    with ps.KeyedStateBackend("int", states={"l": ps.ListState(object)}) as backend:
        backend.set_current_key(1)
        backend["l"].add_all((i,) for i in range(1000))
        assert backend["l"][-1] == (999,) and backend["l"][500:502] == [(500,), (501,)]
    assert len(made) == 3
