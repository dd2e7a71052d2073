"""Keys whose states change at random, for tests that compare ways to read them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pystate as ps


def keyed(number: int) -> str | None:
    """The key of that number."""
    return None if number == 7 else f"key {number}"


#: How a number changes a state, by the state's name.
CHANGES: Mapping[str, Callable[[Any, int], None]] = {
    "v": lambda state, n: state.update(n) if n % 5 else state.clear(),
    "text": lambda state, n: state.update("t" * n),
    "flag": lambda state, n: state.update(n % 2 == 0),
    "price": lambda state, n: state.update(Decimal(n) / 4) if n % 3 else state.clear(),
    "pair": lambda state, n: state.update({"a": n, "b": ["b", None]}),
    "list": lambda state, n: state.add(str(n)) if n % 3 else state.update(["x"] * (n % 9 // 3)),
    "longs": lambda state, n: state.add_all(range(n % 7)) if n % 3 else state.clear(),
    "map": lambda state, n: state.put(n % 5, n / 2) if n % 3 else state.clear(),
    "names": lambda state, n: (
        state.put(str(n % 9), None if n % 2 else "n") if n % 3 else state.remove(str(n % 9))
    ),
    "count": lambda state, n: state.add(n),
    "mean": lambda state, n: state.add(n),
    "most": lambda state, n: state.add(n),
    "thing": lambda state, n: state.update((n, "thing")),
}


def change(
    backend: ps.KeyedStateBackend,
    draw: random.Random,
    numbers: Sequence[int],
    *,
    timers: bool = False,
) -> None:
    """Change some of the keys with these numbers: a state, or a timer, or the key is deleted."""
    names = sorted(backend.declarations)
    for _ in range(60):
        key, number = keyed(draw.choice(numbers)), draw.randrange(1000)
        backend.set_current_key(key)
        if backend.namespace is not None:
            backend.set_current_namespace(draw.choice([None, 1, 2, 30]))
        match draw.randrange(10):
            case 0:
                backend.delete(backend.keys([key]))
            case 1 if timers:
                backend.register_timer("event" if number % 2 else "processing", number)
            case _:
                name = draw.choice(names)
                CHANGES[name](backend[name], number)
