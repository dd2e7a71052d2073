"""Processors of Spark's kind without time: values, lists and maps, and what is made of them.

They show what a call returns by its `repr`, so that a tuple, a row and a list are told apart.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType

Rows = Iterable[Any]
Out = Iterator[Any]


def in_order(rows: Rows) -> list[Any]:
    """A key's rows in the order of their numbers; neither engine promises one."""
    return sorted(rows, key=lambda row: row.i)


class Processor(StatefulProcessor):
    """Keeps the handle, and needs no closing."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.declare(handle)

    def declare(self, handle: Any) -> None: ...

    def close(self) -> None: ...


class Counting(Processor):
    """A value that counts."""

    def declare(self, handle: Any) -> None:
        self.n = handle.getValueState("n", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        n = self.n.get()[0] if self.n.exists() else 0
        n += sum(1 for _ in rows)
        self.n.update((n,))
        yield Row(k=key[0], n=n)


class Mean(Processor):
    """A value of two fields; rows without a number are left out."""

    def declare(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n long, total double")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        n, total = self.sums.get() or (0, 0.0)
        for row in rows:
            if row.x is not None:
                n, total = n + 1, total + row.x
        if n:
            self.sums.update((n, total))
            yield Row(k=key[0], n=n, mean=total / n)


class Lists(Processor):
    """All that a list can do, as its rows' `op` says."""

    def declare(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v long, s string")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            item = (row.v, row.op)
            if row.op in ("add", "get"):
                self.items.appendValue(item)
            elif row.op == "more":
                self.items.appendList([item, (row.i, None), (None, "é")])
            elif row.op == "put":
                self.items.put([item, (row.i, "put")])
            elif row.op in ("remove", "clear"):
                self.items.clear()
            yield Row(
                k=key[0], i=row.i, there=self.items.exists(), items=repr(list(self.items.get()))
            )


class Maps(Processor):
    """All that a map can do."""

    def declare(self, handle: Any) -> None:
        self.counts = handle.getMapState("counts", "v long", "n long, last string")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            entry = (-1 if row.v is None else row.v % 5,)
            before = self.counts.containsKey(entry), self.counts.getValue(entry)
            if row.op in ("add", "more", "put", "get"):
                n = before[1][0] if before[1] else 0
                self.counts.updateValue(entry, (n + 1, row.op))
            elif row.op == "remove":
                self.counts.removeKey(entry)
            elif row.op == "clear":
                self.counts.clear()
            yield Row(
                k=key[0],
                i=row.i,
                before=repr(before),
                there=self.counts.exists(),
                pairs=repr(sorted(self.counts.iterator())),
                keys=repr(sorted(self.counts.keys())),
                values=repr(sorted(self.counts.values())),
            )


class Several(Processor):
    """Three states that know of one another."""

    def declare(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "i long, op string")
        self.path = handle.getListState("path", "op string")
        self.seen = handle.getMapState("seen", "op string, odd boolean", "times array<long>")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            entry = (row.op, row.i % 2 == 1)
            times = self.seen.getValue(entry)
            times = [*times[0], row.i] if times else [row.i]
            self.seen.updateValue(entry, (times,))
            if self.last.get() is None or self.last.get()[1] != row.op:
                self.path.appendValue((row.op,))
            self.last.update((row.i, row.op))
            if row.op == "clear":
                self.path.put([("clear",)])
                self.seen.removeKey(("add", True))
        path = [op for (op,) in self.path.get()]
        yield Row(k=key[0], path=path, seen=repr(sorted(self.seen.iterator())))


class Named(NamedTuple):
    """A value that is a named tuple."""

    n: Any
    s: Any


class Likenesses(Processor):
    """Values of other kinds than plain tuples: rows, lists, named tuples, numpy's numbers."""

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n long, s string")
        self.items = handle.getListState("items", "n long, s string")
        self.map = handle.getMapState("map", "n int", "x double")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            n = row.i
            kinds: list[Any] = [
                Row(n=n, s="row"),
                Named(n, "named"),
                [n, "list"],
                (np.int64(n), "numpy"),
            ]
            self.value.update(kinds[n % 4])
            self.items.appendList(kinds[: 1 + n % 3])
            self.map.updateValue((np.int32(n % 7),), [np.float64(n) / 2])
            got = self.value.get()
            yield Row(
                k=key[0],
                i=n,
                value=repr(got),
                kind=type(got).__name__,
                items=repr(list(self.items.get())),
                map=repr(sorted(self.map.iterator())),
            )


RICH = (
    "b boolean, y tinyint, h smallint, n int, l long, f float, d double, c decimal(20,4), "
    "s string, z binary, day date, at timestamp, "
    "p struct<x:int,q:struct<s:string,a:array<int>>>, a array<struct<u:string,v:long>>, "
    "m map<string,long>, mm map<string,struct<w:double>>, aa array<array<string>>"
)


def rich(n: int) -> tuple[Any, ...]:
    """A value of each type; every third number leaves half of the fields empty."""
    value = (
        n % 2 == 0,
        n % 100,
        -n,
        n * 1000,
        n << 40,
        n / 4,
        n / 3,
        Decimal(n) / 16,
        ["plain", "ünïcode", "日本", "", "a\0b"][n % 5],
        bytearray(b"\x00\xff" * (n % 3)),
        dt.date(1999, 12, 31) + dt.timedelta(days=n * 37),
        dt.datetime(1969, 7, 20, 20, 17, 40, 123456) + dt.timedelta(days=n * 370, seconds=n),
        Row(x=n, q=Row(s=None if n % 2 else str(n), a=[n, None])),
        [Row(u=str(j), v=j) for j in range(n % 4)],
        {str(j): j * n for j in range(n % 3)},
        {str(j): Row(w=j / 2) for j in range(n % 3)},
        [["x"] * (n % 3), [], [None]],
    )
    return tuple(None if n % 3 == 0 and j % 2 else field for j, field in enumerate(value))


class Rich(Processor):
    """A value, a list and a map whose fields are of every type."""

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", RICH)
        self.items = handle.getListState("items", RICH)
        self.map = handle.getMapState(
            "map", "s string, day date, c decimal(10,2)", "p struct<a:array<int>,z:binary>"
        )

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        before = self.value.get()
        for row in in_order(rows):
            value = rich(row.i % 50)
            self.value.update(value)
            self.items.appendValue(value)
            entry = (value[8] or "none", dt.date(2024, 1, 1 + row.i % 9), Decimal(row.i % 4))
            self.map.updateValue(entry, (Row(a=[row.i, None], z=b"\x01"),))
        yield Row(
            k=key[0],
            before=repr(before),
            value=repr(self.value.get()),
            items=repr(list(self.items.get())),
            map=repr(sorted(self.map.iterator(), key=repr)),
        )


class Composite(Processor):
    """Keys of several columns, with nulls in them."""

    def declare(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long, key string")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        n = self.n.get()[0] if self.n.exists() else 0
        n += len(list(rows))
        self.n.update((n, repr(key)))
        yield Row(k=key[0], j=key[1], n=n, key=repr(key), kind=type(key).__name__)


class Deduplicated(Processor):
    """The first row of each value passes."""

    def declare(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "op string, v long", "i long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            entry = (row.op, row.v or 0)
            if not self.seen.containsKey(entry):
                self.seen.updateValue(entry, (row.i,))
                yield Row(k=key[0], i=row.i, op=row.op, v=row.v)


class Largest(Processor):
    """The three largest values, and what was pushed out."""

    def declare(self, handle: Any) -> None:
        self.best = handle.getListState("best", "x double, i long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        found = list(self.best.get()) + [(row.x, row.i) for row in rows if row.x is not None]
        found.sort(reverse=True)
        self.best.put(found[:3])
        for rank, (x, i) in enumerate(found[:3]):
            yield Row(k=key[0], rank=rank, x=x, i=i)
        for x, i in found[3:]:
            yield Row(k=key[0], rank=-1, x=x, i=i)


class Orders(Processor):
    """The life of an order: new, paid, sent; anything else is an error that is reported."""

    STEPS: ClassVar = {("", "add"): "new", ("new", "put"): "paid", ("paid", "more"): "sent"}

    def declare(self, handle: Any) -> None:
        self.stage = handle.getValueState("stage", "name string, since long")
        self.faults = handle.getListState("faults", "stage string, op string")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            stage = self.stage.get()
            name = stage[0] if stage else ""
            after = self.STEPS.get((name, row.op))
            if row.op == "clear":
                self.stage.clear()
                self.faults.clear()
                yield Row(k=key[0], i=row.i, was=name, now=None, faults=0)
            elif after is None:
                self.faults.appendValue((name, row.op))
            else:
                self.stage.update((after, row.i))
                faults = sum(1 for _ in self.faults.get())
                yield Row(k=key[0], i=row.i, was=name, now=after, faults=faults)


class Silent(Processor):
    """Keeps state, and has no output."""

    def declare(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        self.n.update(((self.n.get() or (0,))[0] + len(list(rows)),))
        return iter([])


class Talkative(Processor):
    """Many rows of one row, from a list's iterator and not from a generator; no state at all."""

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        return iter([Row(k=key[0], i=row.i, j=j) for row in rows for j in range(row.i % 30)])


class Empty(Processor):
    """What is asked of states that have nothing, and done to them."""

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n long")
        self.items = handle.getListState("items", "n long")
        self.map = handle.getMapState("map", "n long", "s string")

    def look(self) -> str:
        return repr(
            (
                self.value.exists(),
                self.value.get(),
                self.items.exists(),
                list(self.items.get()),
                self.map.exists(),
                list(self.map.iterator()),
                list(self.map.keys()),
                list(self.map.values()),
                self.map.containsKey((1,)),
                self.map.getValue((1,)),
            )
        )

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        looks = [self.look()]
        self.value.clear()
        self.items.clear()
        self.map.clear()
        self.map.removeKey((1,))
        looks.append(self.look())
        self.value.update((None,))
        self.items.appendValue((None,))
        self.map.updateValue((1,), (None,))
        looks.append(self.look())
        self.value.clear()
        self.items.clear()
        self.map.removeKey((1,))
        looks.append(self.look())
        yield Row(k=key[0], looks=looks)


class Partial(Processor):
    """Values some of whose fields are None."""

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "v long, op string, x double")
        self.map = handle.getMapState("map", "i long", "v long, x double")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            before = self.value.get()
            self.value.update((row.v, None if row.i % 2 else row.op, row.x))
            self.map.updateValue((row.i % 3,), (row.v, row.x))
            yield Row(k=key[0], i=row.i, v=row.v, x=row.x, before=repr(before))


class Fresh(Processor):
    """Attributes that `init` makes begin anew with each batch."""

    def __init__(self, bonus: int) -> None:
        self.bonus = bonus

    def declare(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")
        self.calls: dict[Any, int] = {}

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        self.calls[key] = self.calls.get(key, 0) + 1
        total = (self.total.get() or (0,))[0] + self.bonus
        self.total.update((total,))
        yield Row(k=key[0], calls=self.calls[key], total=total)


class Hasty(Processor):
    """Reads one row of each key, and leaves the others."""

    def declare(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        row = next(iter(rows))
        n = (self.n.get() or (0,))[0] + 1
        self.n.update((n,))
        yield Row(k=key[0], n=n, same=row.k == key[0])


class Shown(Processor):
    """What a row is like: its fields, by name and by position, and its values' types."""

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in rows:
            yield Row(
                k=key[0],
                fields=list(row.__fields__),
                # A time zone's own name differs; see `docs/from-spark.md`.
                row=repr(row[:6] + row[7:]),
                at=f"{row.t.isoformat()} {row.t.tzname()}",
                same=row["v"] == row[4] == row.v,
                whole=repr(sorted(row.asDict())),
            )


class Dropped(Processor):
    """A state that another version had is deleted; one that never was is not missed."""

    def declare(self, handle: Any) -> None:
        handle.deleteIfExists("former")
        handle.deleteIfExists("never")
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        self.n.update(((self.n.get() or (0,))[0] + len(list(rows)),))
        yield Row(k=key[0], n=self.n.get()[0])


class Nested(Processor):
    """Iterators that are read side by side, and while the state changes."""

    def declare(self, handle: Any) -> None:
        self.items = handle.getListState("items", "n long")
        self.map = handle.getMapState("map", "n long", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            self.items.appendValue((row.i,))
            self.map.updateValue((row.i % 6,), (row.i,))
        pairs = [(a[0], b[0]) for a in self.items.get() for b in self.items.get()]
        keys, values = self.map.keys, self.map.values
        crossed = sorted((k[0], v[0]) for k in keys() for v in values())
        first = next(self.items.get())[0]
        yield Row(k=key[0], first=first, pairs=repr(pairs[:200]), crossed=repr(crossed))
        self.items.put([(n,) for n in range(1 + first % 5)])


class Later(Processor):
    """Rows that are read, and states that change, between the rows that are emitted."""

    def declare(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for _ in rows:
            n = (self.n.get() or (0,))[0]
            yield Row(k=key[0], n=n)
            self.n.update((n + 1,))


class TextSchema(Processor):
    """Schemas as objects and as text, output as objects; names in other letters."""

    SCHEMA = StructType([StructField("näme", StringType()), StructField("select", LongType())])

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self.SCHEMA)
        self.map = handle.getMapState("map_of_Ünïcode", self.SCHEMA, self.SCHEMA)

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            self.value.update((row.op, row.i))
            self.map.updateValue((row.op, row.i % 2), self.value.get())
        yield Row(k=key[0], last=repr(self.value.get()), map=repr(sorted(self.map.iterator())))
