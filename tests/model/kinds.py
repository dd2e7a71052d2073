"""Every kind of state beside its model: each operation is done on both, each read is compared."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

import pystate as ps
from tests.model.containers import Cached, Clock, Entries, Items, Kind, Row, Value

Draw = st.DataObject


def plain(values: Any) -> list[Any]:
    return values if isinstance(values, list) else values.to_pylist()


def maybe_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values, values, values)


def one_each(data: Draw, values: st.SearchStrategy[Any], rows: list[Row]) -> list[Any]:
    return data.draw(st.lists(values, min_size=len(rows), max_size=len(rows)), label="values")


@dataclass
class Spec:
    """A state to test: how it is declared, and what does it on both sides."""

    make: Callable[[ps.StateTtl | None], ps.State]
    driver: type[Driver]
    values: st.SearchStrategy[Any]
    more: dict[str, Any] = field(default_factory=dict)


class Driver:
    """The operations of a kind."""

    kind: Kind

    def __init__(self, name: str, spec: Spec, ttl: ps.StateTtl | None, clock: Clock) -> None:
        self.name = name
        self.spec = spec
        self.declaration = spec.make(ttl)
        self.kind = self.model(name, clock, ttl)

    def model(self, name: str, clock: Clock, ttl: ps.StateTtl | None) -> Kind:
        raise NotImplementedError

    def scalar(self, data: Draw, handle: Any, row: Row) -> None:
        """Something with the current key, which is `row`."""
        raise NotImplementedError

    def vector(self, data: Draw, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        """Something with many keys."""
        raise NotImplementedError

    def check(self, kind: Any, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        """Compare all rows."""
        raise NotImplementedError

    def column(self, kind: Any, row: Row, stored: Any) -> None:
        """Compare a row of `to_arrow`."""
        raise NotImplementedError

    def merge(self, handle: Any, target: Row, sources: list[Row]) -> None:
        """Only of those that merge."""
        raise NotImplementedError

    merges = False


class ValueDriver(Driver):
    def model(self, name: str, clock: Clock, ttl: ps.StateTtl | None) -> Value:
        kind = Cached if self.declaration.type.is_object else Value
        made = kind(name, clock, ttl)
        made.default = self.declaration.default  # type: ignore[attr-defined]
        return made

    def scalar(self, data: Draw, handle: Any, row: Row) -> None:
        kind: Any = self.kind
        what = data.draw(
            st.sampled_from(["update", "update", "value", "clear", "none"]), label="do"
        )
        if what == "update":
            value = data.draw(self.spec.values, label="value")
            handle.update(value)
            kind.write(row, value)
        elif what == "value":
            assert handle.value() == kind.read(row)
        elif what == "clear":
            handle.clear()
            kind.write(row, None)
        else:
            handle.update(None)
            kind.write(row, None)

    def vector(self, data: Draw, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        kind: Any = self.kind
        choices = ["update_all", "update_all", "clear_all"]
        choices += self.spec.more.get("operations", [])
        what = data.draw(st.sampled_from(choices), label="do")
        if what == "clear_all":
            handle.clear_all(keys)
            for row in rows:
                kind.clear(row)
            return
        one, scalar = maybe_null(self.spec.values), self.spec.more.get("scalar", False)
        if len(rows) > 1 and scalar and data.draw(st.booleans(), label="a scalar"):
            values = [data.draw(one, label="value")] * len(rows)
            getattr(handle, what)(keys, values[0])
        else:
            values = one_each(data, one, rows)
            getattr(handle, what)(keys, values)
        for row, value in zip(rows, values, strict=True):
            if what == "update_all":
                kind.write(row, value)
            elif value is not None:
                kind.store(row, self.applied(what, kind, row, value))

    def applied(self, what: str, kind: Any, row: Row, value: Any) -> Any:
        old = kind.unhidden(row)
        if what == "add":
            return (kind.default or 0 if old is None else old) + value
        return value if old is None else {"min": min, "max": max}[what](old, value)

    def check(self, kind: Any, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        assert plain(handle.values(keys)) == kind.read_all(rows), self.name

    def column(self, kind: Any, row: Row, stored: Any) -> None:
        wanted = kind.read(row) if kind.is_visible(row) else None
        if stored is not None and self.declaration.type.is_object:
            stored = pickle.loads(stored)
        assert stored == wanted, self.name


class ListDriver(Driver):
    merges = True

    def model(self, name: str, clock: Clock, ttl: ps.StateTtl | None) -> Items:
        return Items(name, clock, ttl)

    def scalar(self, data: Draw, handle: Any, row: Row) -> None:
        kind: Any = self.kind
        choices = ["add", "add", "add_all", "update", "clear", "get", "part"]
        what = data.draw(st.sampled_from(choices), label="do")
        if what == "add":
            items = [data.draw(self.spec.values, label="item")]
            handle.add(items[0])
        elif what == "get":
            found = handle.get()
            assert len(handle) == len(found)
            kind.agree(row, found)
            return
        elif what == "part":
            self.part(data, handle, row)
            return
        elif what == "clear":
            handle.clear()
            kind.clear(row)
            return
        else:
            items = data.draw(st.lists(self.spec.values, max_size=20), label="items")
            getattr(handle, what)(items)
            if what == "update":
                kind.clear(row)
        for item in items:
            kind.append(row, item)

    def part(self, data: Draw, handle: Any, row: Row) -> None:
        """An item or a slice, with which all of the list is read."""
        kind: Any = self.kind
        count = len(handle)
        if not count:
            return
        at = data.draw(st.integers(-count, count - 1), label="at")
        is_slice = data.draw(st.booleans(), label="slice")
        found = handle[at:] if is_slice else handle[at]
        if kind.is_lenient:
            kind.trim(row, count)
        items = kind.read(row)
        assert found == (items[at:] if is_slice else items[at]), self.name

    def vector(self, data: Draw, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        kind: Any = self.kind
        choices = ["append", "append", "extend", "clear_all"]
        what = data.draw(st.sampled_from(choices), label="do")
        if what == "clear_all":
            handle.clear_all(keys)
            for row in rows:
                kind.clear(row)
            return
        if what == "append":
            items = one_each(data, self.spec.values, rows)
            handle.append(keys, items)
            lists = [[item] for item in items]
        else:
            lists = one_each(data, maybe_null(st.lists(self.spec.values, max_size=4)), rows)
            handle.extend(keys, lists)
        for row, some in zip(rows, lists, strict=True):
            for item in some or ():
                kind.append(row, item)

    def check(self, kind: Any, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        for row, found in zip(rows, plain(handle.lists(keys)), strict=True):
            kind.agree(row, found)

    def column(self, kind: Any, row: Row, stored: Any) -> None:
        if self.declaration.type.is_object:
            stored = [pickle.loads(item) for item in stored]
        kind.agree(row, stored)

    def merge(self, handle: Any, target: Row, sources: list[Row]) -> None:
        kind: Any = self.kind
        before = {row: handle_items(handle, row) for row in {*sources, target}}
        for row, found in before.items():
            kind.agree(row, found)
        handle.merge_namespaces(target[1], [row[1] for row in sources])
        for row in sources:
            if row != target:
                kind.move(row, target)


def handle_items(handle: Any, row: Row) -> list[Any]:
    current = handle.table.current_namespace()
    handle.table.set_namespace(row[1])
    found: list[Any] = handle.get()
    handle.table.set_namespace(current)
    return found


class MapDriver(Driver):
    def model(self, name: str, clock: Clock, ttl: ps.StateTtl | None) -> Entries:
        return Entries(name, clock, ttl)

    @property
    def keys(self) -> st.SearchStrategy[Any]:
        found: st.SearchStrategy[Any] = self.spec.more["keys"]
        return found

    def scalar(self, data: Draw, handle: Any, row: Row) -> None:
        kind: Any = self.kind
        choices = ["put", "put", "put", "put_all", "remove", "get", "contains", "walk", "clear"]
        what = data.draw(st.sampled_from(choices), label="do")
        if what == "walk":
            self.walk(kind, handle, row)
        elif what == "clear":
            handle.clear()
            kind.clear(row)
        elif what == "put_all":
            entries = st.dictionaries(self.keys, maybe_null(self.spec.values), max_size=20)
            given = data.draw(entries, label="entries")
            handle.put_all(given)
            for key, value in given.items():
                kind.put(row, key, value)
        else:
            self.one(data, handle, row, what)

    def one(self, data: Draw, handle: Any, row: Row, what: str) -> None:
        kind: Any = self.kind
        key = data.draw(self.keys, label="map key")
        if what == "put":
            value = data.draw(maybe_null(self.spec.values), label="value")
            handle.put(key, value)
            kind.put(row, key, value)
        elif what == "remove":
            handle.remove(key)
            kind.remove(row, key)
        elif what == "get":
            assert handle.get(key) == kind.get(row, key)
        else:
            there = kind.contains(row, key)
            assert handle.contains(key) == there

    def walk(self, kind: Any, handle: Any, row: Row) -> None:
        wanted = kind.read(row)
        found = handle.items()
        assert dict(found) == wanted and len(found) == len(wanted) == len(handle)
        assert handle.keys() == [key for key, _ in found] == list(handle)
        assert handle.values() == [value for _, value in found]
        assert handle.is_empty() == (not wanted)
        if handle.key_type.is_bytes:
            assert handle.keys() == sorted(wanted, key=lambda key: key.encode())

    def vector(self, data: Draw, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        kind: Any = self.kind
        choices = ["put_entries", "put_entries", "remove_entries", "get_entries", "clear_all"]
        what = data.draw(st.sampled_from(choices), label="do")
        if what == "clear_all":
            handle.clear_all(keys)
            for row in rows:
                kind.clear(row)
            return
        at = one_each(data, self.keys, rows)
        if what == "put_entries":
            values = one_each(data, maybe_null(self.spec.values), rows)
            handle.put_entries(keys, at, values)
            for row, key, value in zip(rows, at, values, strict=True):
                kind.put(row, key, value)
        elif what == "remove_entries":
            handle.remove_entries(keys, at)
            for row, key in zip(rows, at, strict=True):
                kind.remove(row, key)
        else:
            found = plain(handle.get_entries(keys, at))
            assert found == kind.get_all(zip(rows, at, strict=True))

    def check(self, kind: Any, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        found = plain(handle.maps(keys))
        assert [dict(entries) for entries in found] == kind.read_all(rows), self.name

    def column(self, kind: Any, row: Row, stored: Any) -> None:
        if self.declaration.type.is_object:
            stored = [(k, None if v is None else pickle.loads(v)) for k, v in stored]
        assert dict(stored) == kind.read(row) and len(stored) == len(dict(stored)), self.name


class FoldDriver(Driver):
    """Reducing and aggregating states: the model keeps an accumulator as a value.

    `how` says who runs them: "column" and "core" in C, "python" a row at a time.
    """

    merges = True

    def model(self, name: str, clock: Clock, ttl: ps.StateTtl | None) -> Value:
        kept = getattr(self.declaration, "bound", None)
        is_object = kept is None and self.declaration.type.is_object
        return (Cached if is_object else Value)(name, clock, ttl)

    def plus(self, old: Any, value: Any) -> Any:
        return self.spec.more["plus"](old, value)

    def result(self, old: Any) -> Any:
        make = self.spec.more.get("result")
        if make is None:
            return old
        return make(old)

    def same(self, found: Any, wanted: Any) -> bool:
        if isinstance(wanted, float) and found is not None:
            return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
        return bool(found == wanted)

    def scalar(self, data: Draw, handle: Any, row: Row) -> None:
        kind: Any = self.kind
        what = data.draw(st.sampled_from(["add", "add", "add", "get", "clear"]), label="do")
        if what == "add":
            value = data.draw(self.spec.values, label="value")
            handle.add(value)
            how = self.spec.more["how"]
            old = kind.unhidden(row) if how == "core" else kind.read(row)
            kind.write(row, self.plus(old, value))
        elif what == "get":
            assert self.same(handle.get(), self.result(kind.read(row))), self.name
        else:
            handle.clear()
            # The handle's own, not that of all keys: objects wait.
            kind.write(row, None)

    def vector(self, data: Draw, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        kind: Any = self.kind
        if data.draw(st.integers(0, 5), label="clear_all") == 5:
            handle.clear_all(keys)
            for row in rows:
                kind.clear(row)
            return
        values = one_each(data, maybe_null(self.spec.values), rows)
        handle.add_all(keys, values)
        how = self.spec.more["how"]
        if how == "python":
            # A row without a value is neither read nor written: no time of it moves.
            given = [(r, v) for r, v in zip(rows, values, strict=True) if v is not None]
            latest = {row: kind.read(row) for row, _ in given}
            for row, value in given:
                latest[row] = self.plus(latest[row], value)
            for row, _ in given:
                kind.write(row, latest[row])
            return
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                write = kind.store if how == "column" else kind.write
                write(row, self.plus(kind.unhidden(row), value))

    def check(self, kind: Any, handle: Any, keys: ps.KeyBatch, rows: list[Row]) -> None:
        read = getattr(handle, "results", None) or handle.values
        for row, found in zip(rows, plain(read(keys)), strict=True):
            wanted = self.result(kind.read(row))
            assert self.same(found, wanted), (self.name, row, found, wanted)

    def column(self, kind: Any, row: Row, stored: Any) -> None:
        accumulator = kind.read(row)
        if isinstance(kind, Cached):
            found = None if stored is None else pickle.loads(stored)
            assert found == accumulator, self.name
            return
        reducing = isinstance(self.declaration, ps.ReducingState)
        bound = None if reducing else self.declaration.bound  # type: ignore[attr-defined]
        wanted = accumulator if bound is None or bound.column else self.result(accumulator)
        assert self.same(stored, wanted), (self.name, row, stored, wanted)

    def merge(self, handle: Any, target: Row, sources: list[Row]) -> None:
        kind: Any = self.kind
        handle.merge_namespaces(target[1], [row[1] for row in sources])
        merge = self.spec.more["merge"]
        how = self.spec.more["how"]
        for row in sources:
            if row == target:
                continue
            mine = kind.read(row)
            if mine is None:
                continue
            kind.write(row, None)
            theirs = kind.unhidden(target) if how == "core" else kind.read(target)
            kind.write(target, mine if theirs is None else merge(theirs, mine))
