"""One key's list and map, grown from a thousand elements to a million.

Access to a random element waits for memory if there are a million elements, and not if there are a
thousand, in any container. So each ratio is shown beside that of Python's own container.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import seal
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from pystate import KeyedStateBackend
    from pystate.state.declaration import State

ADDED = 1_000
"""Elements of an epoch."""
LIMIT = "<= 1.5x"
AT_ONCE = 50_000
"""Elements of an epoch while the key is only grown."""


@dataclass(frozen=True)
class Kind:
    """A container that grows: `add` adds elements, from numpy columns of names and values."""

    name: str
    state: State[Any]
    add: Callable[[KeyedStateBackend, Any, Any], None]
    in_order: bool
    peer: Callable[[Any, Any, Any], None]


ONE_KEY = pa.array(np.zeros(AT_ONCE, np.int64))


def one_key(rows: int) -> pa.Array[Any]:
    """The same key for all rows."""
    return ONE_KEY.slice(0, rows)


def append(backend: KeyedStateBackend, names: Any, values: Any) -> None:
    backend["grown"].append(backend.keys(one_key(len(values))), values)


def append_one_by_one(backend: KeyedStateBackend, names: Any, values: Any) -> None:
    backend.set_current_key(0)
    add = backend["grown"].add
    for value in values:
        add(value)


def put(backend: KeyedStateBackend, names: Any, values: Any) -> None:
    backend["grown"].put_entries(backend.keys(one_key(len(values))), names, values)


def put_one_by_one(backend: KeyedStateBackend, names: Any, values: Any) -> None:
    backend.set_current_key(0)
    put_entry = backend["grown"].put
    for name, value in zip(names, values, strict=True):
        put_entry(name, value)


def append_to_list(kept: Any, names: Any, values: Any) -> None:
    add = kept.setdefault(0, []).append
    for value in values:
        add(value)


def put_into_dict(kept: Any, names: Any, values: Any) -> None:
    found = kept.setdefault(0, {})
    for name, value in zip(names, values, strict=True):
        found[name] = value


LIST, MAP = ps.ListState("long"), ps.MapState("long", "long")
KINDS = (
    Kind("list append, a batch at a time", LIST, append, True, append_to_list),
    Kind("list append, one at a time", LIST, append_one_by_one, True, append_to_list),
    Kind("map put, ascending keys, a batch at a time", MAP, put, True, put_into_dict),
    Kind("map put, ascending keys, one at a time", MAP, put_one_by_one, True, put_into_dict),
    Kind("map put, random keys, a batch at a time", MAP, put, False, put_into_dict),
    Kind("map put, random keys, one at a time", MAP, put_one_by_one, False, put_into_dict),
)


class Names:
    """Map keys without repetition."""

    def __init__(self, in_order: bool) -> None:
        self.in_order = in_order
        self.given = 0

    def take(self, n: int) -> Any:
        """The next n."""
        first, self.given = self.given, self.given + n
        names = np.arange(first, first + n, dtype=np.int64)
        # Multiplication by an odd number maps 64-bit numbers one to one.
        return names if self.in_order else names * np.int64(-7046029254386353131)


@dataclass
class Measured:
    """Times per element, round by round."""

    ns: list[float]
    peer_ns: list[float]
    delta_bytes: list[float]


def timed(run: Callable[[], object]) -> float:
    """Nanoseconds of processor time for each of an epoch's elements."""
    start = time.process_time_ns()
    run()
    return (time.process_time_ns() - start) / ADDED


def grow(backend: KeyedStateBackend, kept: Any, kind: Kind, names: Names, to: int) -> None:
    """Grow both sides to `to` elements."""
    # The size is read, and not counted from `names`, because some epochs were undone.
    while (there := len(kept.get(0, ()))) < to:
        more = names.take(min(AT_ONCE, to - there))
        (put if kind.state == MAP else append)(backend, more, more)
        kind.peer(kept, more.tolist(), more.tolist())
        seal(backend)
    check_size(backend, kept, to)


def check_size(backend: KeyedStateBackend, kept: Any, size: int) -> None:
    """Make sure that both sides have the size at which a row claims to be measured."""
    backend.set_current_key(0)
    if (sizes := (len(backend["grown"]), len(kept[0]))) != (size, size):
        raise AssertionError(f"measured at {sizes[0]:,} and {sizes[1]:,} elements, not {size:,}")


def measure_kind(scale: Scale, kind: Kind) -> dict[int, Measured]:
    """Time epochs that add some elements at each size; they are undone, so that the size stays."""
    backend = ps.KeyedStateBackend(key="long", states={"grown": kind.state})
    names = Names(kind.in_order)
    kept: dict[int, Any] = {}
    scalar = "one at a time" in kind.name
    found = {}
    for size in scale.grown:
        grow(backend, kept, kind, names, size)
        measured = found[size] = Measured([], [], [])
        for current in range(-2, 3 * scale.rounds):
            more = names.take(ADDED)
            listed = more.tolist()
            columns = (listed, listed) if scalar else (pa.array(more), pa.array(more))
            ns = timed(partial(kind.add, backend, *columns))
            snapshot = backend.seal()
            peer_ns = timed(partial(kind.peer, kept, listed, listed))
            if current >= 0:
                measured.ns.append(ns)
                measured.peer_ns.append(peer_ns)
                measured.delta_bytes.append(snapshot.raw_bytes / ADDED)
            snapshot.close()
            backend.rollback(1)
            undo_peer(kept[0], listed)
        check_size(backend, kept, size)
    backend.close()
    return found


def undo_peer(kept: Any, listed: list[int]) -> None:
    """Remove the last elements again."""
    if isinstance(kept, list):
        del kept[-len(listed) :]
    else:
        for name in listed:
            del kept[name]


def growth(scale: Scale) -> list[Row]:
    """Run it for a list and a map."""
    rows = []
    for kind in KINDS:
        gc.collect()
        gc.disable()
        try:
            found = measure_kind(scale, kind)
        finally:
            gc.enable()
        first, peer = found[scale.grown[0]], f"at {scale.grown[0]:,}"
        for size, measured in found.items():
            what = f"{kind.name}, at {size:,}"
            row = Row("growth", what, Spread.of(measured.ns), "ns")
            if measured is not first:
                theirs = statistics.median(measured.peer_ns) / statistics.median(first.peer_ns)
                python = f"{peer}; Python's own {theirs:.2g}x"
                row = replace(row, peer=python, ratio=over(measured.ns, first.ns), expected=LIMIT)
            rows.append(row)
        figure, ratio = (
            Spread.of(measured.delta_bytes),
            over(measured.delta_bytes, first.delta_bytes),
        )
        rows.append(Row("growth", f"{what}: delta", figure, "bytes", peer, ratio, LIMIT))
    return rows


def over(large: list[float], small: list[float]) -> Spread:
    """A ratio to the small case's median."""
    base = statistics.median(small)
    return Spread.of(one / base for one in large)
