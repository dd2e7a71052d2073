"""Registering states: names, columns, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError

TTL = ps.StateTtl(hours=1)
KINDS: list[ps.State] = [
    ps.ValueState("long"),
    ps.ListState("long"),
    ps.MapState("long", "long"),
    ps.ReducingState("long", max),
    ps.AggregatingState(ps.Mean()),
]


@pytest.fixture
def backend() -> Iterator[ps.KeyedStateBackend]:
    with ps.KeyedStateBackend({"id": "long"}) as made:
        yield made


@pytest.mark.parametrize("name", ["", "a#b", "#timers", "n#time", "a\0b"])
def test_names_that_are_not_the_users(backend: ps.KeyedStateBackend, name: str) -> None:
    with pytest.raises(DeclarationError, match="is no name for a state"):
        backend.register(name, ps.ValueState("long"))


@pytest.mark.parametrize("name", ["n", "ż", "a b", "time", "timers", "x" * 200])
def test_names_that_are(backend: ps.KeyedStateBackend, name: str) -> None:
    handle = backend.register(name, ps.ValueState("long", ttl=TTL))
    backend.set_current_key(1)
    handle.update(5)
    assert backend[name].value() == 5


def test_a_key_columns_name_is_taken(backend: ps.KeyedStateBackend) -> None:
    with pytest.raises(DeclarationError, match="state 'id': a key column has that name"):
        backend.register("id", ps.ListState("long"))


@pytest.mark.parametrize("declaration", KINDS)
def test_the_same_declaration_gives_the_same_handle(
    backend: ps.KeyedStateBackend, declaration: ps.State
) -> None:
    handle = backend.register("n", declaration)
    assert backend.register("n", declaration) is handle
    assert "'n'" in repr(handle)
    with pytest.raises(DeclarationError, match="state 'n' is registered as"):
        backend.register("n", ps.ValueState("string"))


@pytest.mark.parametrize("declaration", [int, "long", None, ps.ValueState, TTL])
def test_what_is_no_declaration_is_named(backend: ps.KeyedStateBackend, declaration: Any) -> None:
    with pytest.raises(DeclarationError, match="state 'n': expected a declaration"):
        backend.register("n", declaration)


@pytest.mark.parametrize("declaration", KINDS)
def test_states_come_before_the_first_use(
    backend: ps.KeyedStateBackend, declaration: ps.State
) -> None:
    backend.set_current_key(1)
    with pytest.raises(DeclarationError, match="'late': states are registered before"):
        backend.register("late", declaration)


@pytest.mark.parametrize(
    ("timers", "ttl", "most"),
    [(False, None, 64), (True, None, 62), (False, TTL, 32), (True, TTL, 31)],
)
def test_sixty_four_columns_and_no_more(timers: bool, ttl: ps.StateTtl | None, most: int) -> None:
    with ps.KeyedStateBackend("long", timers=timers) as backend:
        for i in range(most):
            backend.register(f"s{i}", ps.ListState("long", ttl=ttl))
        with pytest.raises(DeclarationError, match="at most 64 columns"):
            backend.register("more", ps.ListState("long", ttl=ttl))
        backend.set_current_key(1)
        for i in range(most):
            backend[f"s{i}"].add(i)
        assert [backend[f"s{i}"].get() for i in range(most)] == [[i] for i in range(most)]
        if timers:
            backend.register_timer("event", 5)
        backend.rollback(0)
        assert len(backend) == 0
