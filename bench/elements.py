"""Lists, maps, reduced values, means and timers, a batch at a time and a key at a time.

Every kind has the same number of elements, on both sides, so that caches have the same effect. The
processor time of the process is measured, for all its threads: the question is about one core.
"""

from __future__ import annotations

import operator
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench import peers
from bench.keyed import count, in_batches, random_keys, seal
from bench.measure import Row, Scale, Work, by_turns, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pystate import KeyedStateBackend
    from pystate.state.declaration import State

    Works = dict[str, Work]

LONG_LIST = 100
"""Items of the lists that are read."""
ENTRIES = 10
"""Entries of a map, and items of a list that is appended to."""
SCALAR_SHARE = 4
"""With one key at a time, this part of the rows is enough."""


def random_values(rows: int, below: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Uniform values, the same for both sides."""
    return np.random.default_rng(seed).integers(0, below, rows)


def batches_of(*columns: np.ndarray[Any, Any]) -> list[tuple[pa.Array[Any], ...]]:
    """Slices of several columns."""
    return list(zip(*(in_batches(pa.array(column)) for column in columns), strict=True))


def repeated(n_keys: int, times: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Each key several times: as rows in rounds, each of which has every key once."""
    for _ in range(times):
        yield np.arange(n_keys, dtype=np.int64)


def backend_of(**states: State[Any]) -> KeyedStateBackend:
    """A heap table with a long key."""
    return ps.KeyedStateBackend(key="long", states=states)


def works_of(
    backend: KeyedStateBackend,
    scalar: bool,
    batch: Callable[[], object],
    one_by_one: Callable[[], object],
    before: Callable[[], object] = nothing,
) -> Works:
    """Changes a batch at a time, without and with the seal that ends an epoch, or one by one."""

    def end_epoch() -> None:
        seal(backend)

    def batch_and_seal() -> None:
        batch()
        seal(backend)

    if scalar:
        return {"pystate": Work(one_by_one, before, end_epoch)}
    return {
        "pystate": Work(batch, before, end_epoch),
        "pystate, seal timed": Work(batch_and_seal, before),
    }


# ---- lists


def filled_lists(n_keys: int, length: int) -> KeyedStateBackend:
    """Lists of `length` items, which were added one by one."""
    backend = backend_of(items=ps.ListState("long"))
    for column in repeated(n_keys, length):
        for keys in in_batches(pa.array(column)):
            backend["items"].append(backend.keys(keys), keys)
    seal(backend)
    return backend


def list_in_dict(n_keys: int, length: int) -> dict[int, list[int]]:
    """The same in a dict, whose items were also added one by one."""
    lists: dict[int, list[int]] = defaultdict(list)
    for column in repeated(n_keys, length):
        names = column.tolist()
        peers.append_to_lists(lists, names, names)
    return lists


def append_works(scale: Scale, scalar: bool) -> Works:
    """A list append."""
    n_keys, rows = scale.elements // ENTRIES, rows_of(scale, scalar)
    keys, values = random_keys(n_keys, rows), random_values(rows, 1 << 40, 43)
    backend = filled_lists(n_keys, ENTRIES)
    items, batches = backend["items"], batches_of(keys, values)
    keys_list, values_list = keys.tolist(), values.tolist()
    kept = list_in_dict(n_keys, ENTRIES)

    def append() -> None:
        for names, added in batches:
            items.append(backend.keys(names), added)

    def append_one_by_one() -> None:
        for k, v in zip(keys_list, values_list, strict=True):
            backend.set_current_key(k)
            items.add(v)

    # Lists would grow from round to round, so both sides are reset.
    def restart_dict() -> None:
        kept.clear()
        kept.update(list_in_dict(n_keys, ENTRIES))

    works = works_of(backend, scalar, append, append_one_by_one)
    works["pystate"] = replace(works["pystate"], after=backend.rollback)
    if not scalar:
        timed = works["pystate, seal timed"]
        works["pystate, seal timed"] = replace(timed, after=lambda: backend.rollback(1))
    append_to_dict = partial(peers.append_to_lists, kept, keys_list, values_list)
    return {**works, "dict of lists": Work(append_to_dict, after=restart_dict)}


def read_works(scale: Scale, scalar: bool, *, summed: bool) -> Works:
    """A read of a list of 100."""
    n_keys, rows = scale.elements // LONG_LIST, rows_of(scale, scalar) // 25
    keys = random_keys(n_keys, rows)
    backend = filled_lists(n_keys, LONG_LIST)
    items, batches = backend["items"], batches_of(keys)
    keys_list = keys.tolist()
    kept = list_in_dict(n_keys, LONG_LIST)

    def read() -> list[Any]:
        return [items.lists(backend.keys(names)) for (names,) in batches]

    def read_and_sum() -> list[Any]:
        sums = []
        for (names,) in batches:
            lists = items.lists(backend.keys(names))
            starts = lists.offsets.to_numpy()[:-1]
            sums.append(np.add.reduceat(lists.values.to_numpy(), starts))
        return sums

    def one_by_one(read_current: Callable[[], Any]) -> list[Any]:
        found = []
        for k in keys_list:
            backend.set_current_key(k)
            found.append(read_current())
        return found

    def sum_one_by_one() -> list[int]:
        found = []
        for k in keys_list:
            backend.set_current_key(k)
            found.append(sum(items.get()))
        return found

    if summed:
        ours = Work(sum_one_by_one if scalar else read_and_sum)
        return {"pystate": ours, "dict of lists": Work(partial(peers.sum_lists, kept, keys_list))}
    works = {"pystate": Work(partial(one_by_one, items.get) if scalar else read)}
    if scalar:
        works["pystate, as an array"] = Work(partial(one_by_one, items.to_numpy))
    return {**works, "dict of lists": Work(partial(peers.copy_lists, kept, keys_list))}


# ---- maps


def filled_maps(n_keys: int) -> tuple[KeyedStateBackend, dict[int, dict[int, int]]]:
    """Maps of 10 entries, and the same in a dict."""
    backend = backend_of(entries=ps.MapState("long", "long"))
    kept: dict[int, dict[int, int]] = defaultdict(dict)
    for name, column in enumerate(repeated(n_keys, ENTRIES)):
        for keys in in_batches(pa.array(column)):
            names = pa.array(np.full(len(keys), name, np.int64))
            backend["entries"].put_entries(backend.keys(keys), names, keys)
        keys_list = column.tolist()
        peers.put_into_maps(kept, keys_list, [name] * n_keys, keys_list)
    seal(backend)
    return backend, kept


def put_works(scale: Scale, scalar: bool) -> Works:
    """A map put that changes an entry."""
    n_keys, rows = scale.elements // ENTRIES, rows_of(scale, scalar)
    keys, names = random_keys(n_keys, rows), random_values(rows, ENTRIES, 44)
    values = random_values(rows, 1 << 40, 43)
    backend, kept = filled_maps(n_keys)
    entries = backend["entries"]
    keys_list, names_list = keys.tolist(), names.tolist()
    batches: list[tuple[pa.Array[Any], ...]] = []
    values_list: list[int] = []

    def change() -> None:
        # Otherwise every round after the first would put the existing values.
        np.add(values, 1, out=values)
        batches[:] = batches_of(keys, names, values)
        values_list[:] = values.tolist()

    def put() -> None:
        for keyed, named, changed in batches:
            entries.put_entries(backend.keys(keyed), named, changed)

    def put_one_by_one() -> None:
        for k, name, v in zip(keys_list, names_list, values_list, strict=True):
            backend.set_current_key(k)
            entries.put(name, v)

    put_into_dict = partial(peers.put_into_maps, kept, keys_list, names_list, values_list)
    works = works_of(backend, scalar, put, put_one_by_one, change)
    return {**works, "dict of dicts": Work(put_into_dict, before=change)}


def get_works(scale: Scale, scalar: bool) -> Works:
    """A map get."""
    n_keys, rows = scale.elements // ENTRIES, rows_of(scale, scalar)
    keys, names = random_keys(n_keys, rows), random_values(rows, ENTRIES, 44)
    backend, kept = filled_maps(n_keys)
    entries, batches = backend["entries"], batches_of(keys, names)
    lists = keys.tolist(), names.tolist()

    def get() -> list[Any]:
        return [entries.get_entries(backend.keys(keyed), named) for keyed, named in batches]

    def get_one_by_one() -> list[Any]:
        found = []
        for k, name in zip(*lists, strict=True):
            backend.set_current_key(k)
            found.append(entries.get(name))
        return found

    ours = Work(get_one_by_one if scalar else get)
    return {"pystate": ours, "dict of dicts": Work(partial(peers.get_from_maps, kept, *lists))}


# ---- reduced values and aggregates


def add_works(scale: Scale, scalar: bool, *, mean: bool) -> Works:
    """A sum, or a mean of doubles."""
    n_keys, rows = scale.elements, rows_of(scale, scalar)
    keys: Any = random_keys(n_keys, rows)
    values: Any = random_values(rows, 1_000, 43)
    state: State[Any] = ps.ReducingState("long", operator.add)
    if mean:
        values = values.astype(np.float64)
        state = ps.AggregatingState(ps.Mean(), "double")
    backend = backend_of(total=state)
    total, batches = backend["total"], batches_of(keys, values)
    for names in in_batches(pa.array(np.arange(n_keys, dtype=np.int64))):
        total.add_all(backend.keys(names), pa.array(np.zeros(len(names), values.dtype)))
    seal(backend)
    lists = keys.tolist(), values.tolist()

    def add() -> None:
        for names, added in batches:
            total.add_all(backend.keys(names), added)

    def add_one_by_one() -> None:
        for k, v in zip(*lists, strict=True):
            backend.set_current_key(k)
            total.add(v)

    peer: Callable[[], object]
    if mean:
        peer = partial(peers.mean_in_dict, dict.fromkeys(range(n_keys), (0.0, 0)), *lists)
    else:
        sums: dict[int, int] = defaultdict(int, dict.fromkeys(range(n_keys), 0))
        peer = partial(peers.sum_in_dict, sums, *lists)
    return {**works_of(backend, scalar, add, add_one_by_one), "dict": Work(peer)}


# ---- timers


class TimerRounds:
    """Timers: per tick one is registered and one fires, so that their number is constant."""

    def __init__(self, scale: Scale, scalar: bool) -> None:
        self.n_keys, self.rows = scale.elements // 4, rows_of(scale, scalar) // 2
        self.span = scale.elements
        self.rng = np.random.default_rng(47)
        self.now = 0
        # Times up to `span` ticks after the registration, of which a part has passed.
        self.keys = self.rng.integers(0, self.n_keys, self.span // 2)
        left = self.span * (1 - np.sqrt(self.rng.random(self.span // 2)))
        self.times = 1 + left.astype(np.int64)

    def advance(self) -> None:
        """Advance the time, and make as many timers to register as there were ticks."""
        self.now += self.rows
        self.keys = self.rng.integers(0, self.n_keys, self.rows)
        self.times = self.now + 1 + self.rng.integers(0, self.span, self.rows)


def timer_works(scale: Scale, scalar: bool) -> Works:
    """Registering timers, and firing those that are due."""
    ours, theirs = TimerRounds(scale, scalar), TimerRounds(scale, scalar)
    # Keys with timers usually have other states, so their rows exist.
    backend = ps.KeyedStateBackend(key="long", states={"n": ps.ValueState("long")}, timers=True)
    count(backend, in_batches(pa.array(np.arange(ours.n_keys, dtype=np.int64))))
    heap: list[peers.Timer] = []
    there: set[peers.Timer] = set()

    def register() -> None:
        for names, times in batches_of(ours.keys, ours.times):
            backend.register_timers(backend.keys(names), "event", times)

    def register_and_fire() -> None:
        register()
        while (due := backend.due_timers("event", ours.now, 65_536)) is not None:
            due.fire_all()

    def register_and_fire_one_by_one() -> None:
        for k, moment in ours_lists[0]:
            backend.set_current_key(k)
            backend.register_timer("event", moment)
        fired: list[tuple[int, int]] = []
        while (due := backend.due_timers("event", ours.now, 8_192)) is not None:
            names = due.keys.key_arrays()[0].to_numpy().tolist()
            for i, timer in enumerate(zip(names, due.timestamps.tolist(), strict=True)):
                if due.fire(i):
                    fired.append(timer)

    ours_lists: list[list[tuple[int, int]]] = [[]]
    lists: list[tuple[list[int], list[int]]] = [([], [])]

    def advance_ours() -> None:
        seal(backend)
        ours.advance()
        ours_lists[0] = list(zip(ours.keys.tolist(), ours.times.tolist(), strict=True))

    def advance_theirs() -> None:
        theirs.advance()
        lists[0] = theirs.keys.tolist(), theirs.times.tolist()

    def in_heap() -> None:
        fired: list[tuple[int, int]] = []
        peers.register_timers(heap, there, *lists[0])
        peers.fire_timers(heap, there, theirs.now, lambda k, moment: fired.append((k, moment)))

    register()
    peers.register_timers(heap, there, theirs.keys.tolist(), theirs.times.tolist())
    run = register_and_fire_one_by_one if scalar else register_and_fire
    return {
        "pystate": Work(run, before=advance_ours),
        "heapq and set": Work(in_heap, before=advance_theirs),
    }


# ---- the question


def rows_of(scale: Scale, scalar: bool) -> int:
    """Rows of a round."""
    return scale.element_rows // (SCALAR_SHARE if scalar else 1)


KINDS: dict[str, tuple[Callable[[Scale, bool], Works], int]] = {
    "list append": (append_works, 1),
    "read of a 100-element list": (partial(read_works, summed=False), 25),
    "read of a 100-element list, summed": (partial(read_works, summed=True), 25),
    "map put, 10 entries": (put_works, 1),
    "map get, 10 entries": (get_works, 1),
    "reducing add": (partial(add_works, mean=False), 1),
    "aggregating mean": (partial(add_works, mean=True), 1),
    "timer register + fire": (timer_works, 2),
}
"""The works of a kind, and by how much to divide the rows of a round."""


def elements(scale: Scale) -> list[Row]:
    """All benchmarks of this module, at the sizes of the scale."""
    rows = []
    for scalar in (False, True):
        how, goal = ("a key", ">= 0.5x") if scalar else ("a batch", ">= 8x")
        for what, (make, share) in KINDS.items():
            works = make(scale, scalar)
            *_, peer = works
            timings = by_turns(works, scale.rounds, clock=time.process_time)
            for name in works:
                row = timings.row(
                    name,
                    "collections",
                    f"{what}, {how} at a time: {name}",
                    rows_of(scale, scalar) // share,
                    "M/s",
                    lead=None if name == peer else (name, peer),
                    peer=peer,
                    expected="" if name == peer else goal,
                )
                rows.append(row)
    return rows
