"""Processors of Spark's kind with timers, with time to live, and with states to begin with."""

from __future__ import annotations

import datetime as dt
from typing import Any

from pyspark.sql import Row

from .processors import Out, Processor, Rows, in_order

SECOND = 1_000
HOUR = 3_600_000


def time_of(row: Any) -> int:
    """A row's time, in milliseconds; the column is a number beside the timestamp."""
    return int(row.ms)


class Sessions(Processor):
    """Sessions by a timer that each row moves."""

    GAP = 4 * SECOND

    def declare(self, handle: Any) -> None:
        self.session = handle.getValueState("session", "start long, last long, n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            now = time_of(row)
            start, last, n = self.session.get() or (now, now, 0)
            if n:
                self.handle.deleteTimer(last + self.GAP)
            start, last = min(start, now), max(last, now)
            self.session.update((start, last, n + 1))
            self.handle.registerTimer(last + self.GAP)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        start, last, n = self.session.get()
        same = expiredTimerInfo.getExpiryTimeInMs() == last + self.GAP
        self.session.clear()
        yield Row(k=key[0], start=start, last=last, n=n, same=same)


class Alarms(Processor):
    """Timers that are registered, registered twice, listed and deleted."""

    def declare(self, handle: Any) -> None:
        self.fired = handle.getListState("fired", "at long")

    def timers(self) -> list[int]:
        # Spark lists them in no order that a user could know.
        return sorted(self.handle.listTimers())

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            at = time_of(row) + 3 * SECOND
            if row.op in ("add", "more", "put"):
                self.handle.registerTimer(at)
                self.handle.registerTimer(at)
                self.handle.registerTimer(at + row.i % 3)
            elif row.op == "remove":
                for timer in self.timers()[:1]:
                    self.handle.deleteTimer(timer)
                self.handle.deleteTimer(at + 12345)
            elif row.op == "clear":
                for timer in self.timers():
                    self.handle.deleteTimer(timer)
            yield Row(k=key[0], at=-row.i, timers=self.timers())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        at = expiredTimerInfo.getExpiryTimeInMs()
        self.fired.appendValue((at,))
        yield Row(k=key[0], at=at, timers=[t for t in self.timers() if t > at])


class Repeated(Processor):
    """A timer that registers the next one, some of which are due at once."""

    def declare(self, handle: Any) -> None:
        self.beats = handle.getValueState("beats", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        if not self.beats.exists():
            self.beats.update((0,))
            self.handle.registerTimer(min(map(time_of, rows)) + SECOND)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        at = expiredTimerInfo.getExpiryTimeInMs()
        n = self.beats.get()[0] + 1
        self.beats.update((n,))
        # Always ahead of the watermark, so that this batch's end does not decide.
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + SECOND * (1 + n % 3))
        yield Row(k=key[0], at=at, n=n)


class Past(Processor):
    """Timers of which some are due when they are registered."""

    def declare(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        watermark = timerValues.getCurrentWatermarkInMs()
        self.n.update((watermark,))
        for step in (-5, 0, 1, 700):
            self.handle.registerTimer(max(watermark + step, 1))
        yield Row(k=key[0], at=0, timers=len(list(self.handle.listTimers())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], at=at, timers=self.n.get()[0])


class Watermarks(Processor):
    """What `getTimerValues` tells of event time, and which rows come through."""

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        watermark = timerValues.getCurrentWatermarkInMs()
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            yield Row(k=key[0], i=row.i, watermark=watermark, now=now > 1_600_000_000_000)


class Quiet(Processor):
    """An alert for a device from which nothing has come for a while, and again after that."""

    LIMIT = 5 * SECOND

    def declare(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "at long, alerts long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        last = max(map(time_of, rows))
        before = self.last.get()
        if before is None or last > before[0]:
            self.last.update((last, 0))
            self.handle.registerTimer(last + self.LIMIT)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        last, alerts = self.last.get()
        if expiredTimerInfo.getExpiryTimeInMs() < last + self.LIMIT:
            return
        if alerts < 2:
            self.last.update((last, alerts + 1))
            ahead = max(timerValues.getCurrentWatermarkInMs(), last + self.LIMIT)
            self.handle.registerTimer(ahead + self.LIMIT)
            yield Row(k=key[0], last=last, alerts=alerts + 1)
        else:
            self.last.clear()


class Bounded(Processor):
    """A buffer by time: rows come out in order once the watermark has passed them."""

    def declare(self, handle: Any) -> None:
        self.buffer = handle.getMapState("buffer", "at long", "is array<long>")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            at = (time_of(row),)
            held = self.buffer.getValue(at)
            self.buffer.updateValue(at, ([*(held[0] if held else []), row.i],))
            self.handle.registerTimer(at[0])
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        at = expiredTimerInfo.getExpiryTimeInMs()
        for i in self.buffer.getValue((at,))[0]:
            yield Row(k=key[0], at=at, i=i)
        self.buffer.removeKey((at,))


class Clocks(Processor):
    """Timers of processing time: one is due at once, one in the next batch, one never."""

    def declare(self, handle: Any) -> None:
        self.set = handle.getMapState("set", "name string", "at long, batch long")
        self.batch = handle.getValueState("batch", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        now = timerValues.getCurrentProcessingTimeInMs()
        n = (self.batch.get() or (0,))[0] + 1
        self.batch.update((n,))
        waiting = [t - now for t in self.handle.listTimers() if t > now + HOUR]
        # The names are the keys of a map that says which timer it was.
        for name, at in (("past", 1), ("next", now + 1), ("never", now + 1000 * HOUR + n)):
            if name != "never" or n == 1:
                self.set.updateValue((name,), (at, n))
                self.handle.registerTimer(at)
        late = timerValues.getCurrentWatermarkInMs()
        yield Row(k=key[0], name="rows", n=n, of=len(waiting), watermark=late)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        at = expiredTimerInfo.getExpiryTimeInMs()
        for (name,), (when, batch) in self.set.iterator():
            if when == at:
                yield Row(k=key[0], name=name, n=self.batch.get()[0], of=batch, watermark=0)


class Brief(Processor):
    """States that live for one batch, and states that outlive the test."""

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "i long", self.ttl_ms)
        self.items = handle.getListState("items", "i long", self.ttl_ms)
        self.map = handle.getMapState("map", "m long", "i long", self.ttl_ms)
        self.kept = handle.getValueState("kept", "n long")

    def look(self) -> str:
        items = [i for (i,) in self.items.get()]
        pairs = sorted(self.map.iterator())
        keys, values = sorted(self.map.keys()), sorted(self.map.values())
        found = [self.value.exists(), self.items.exists(), self.map.exists()]
        one = self.map.containsKey((1,)), self.map.getValue((1,))
        return repr((found, self.value.get(), items, pairs, keys, values, one))

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        n = (self.kept.get() or (0,))[0] + 1
        self.kept.update((n,))
        before = self.look()
        for row in in_order(rows):
            if row.op == "add":
                self.value.update((row.i,))
                self.items.appendValue((row.i,))
            elif row.op == "more":
                self.items.appendList([(row.i,), (row.i + 1,)])
            elif row.op == "put":
                self.items.put([(row.i,)])
            elif row.op == "clear":
                self.value.clear()
                self.items.clear()
                self.map.clear()
            elif row.op == "remove":
                self.map.removeKey((row.i % 3,))
            self.map.updateValue((row.i % 3,), (row.i,))
        yield Row(k=key[0], n=n, before=before, after=self.look())


class Inherited(Processor):
    """Begins with a total and a list from elsewhere, and with a timer."""

    def declare(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, known boolean")
        self.names = handle.getListState("names", "name string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        n = (self.total.get() or (0,))[0]
        self.total.update((n + initialState.n, True))
        self.names.appendValue((initialState.name,))

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        n, known = self.total.get() or (0, False)
        n += len(list(rows))
        self.total.update((n, known))
        names = sorted(name for (name,) in self.names.get())
        yield Row(k=key[0], n=n, known=known, names=names)


class Reminded(Processor):
    """Initial states that register timers."""

    def declare(self, handle: Any) -> None:
        self.due = handle.getMapState("due", "at long", "name string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.due.updateValue((initialState.n,), (initialState.name,))
        self.handle.registerTimer(initialState.n)

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        yield Row(k=key[0], at=-1, name=repr(sorted(self.due.keys())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], at=at, name=self.due.getValue((at,))[0])
        self.due.removeKey((at,))


TENS = "k string, i long, n long, at timestamp"


class Tens(Processor):
    """Counts per ten seconds, emitted at their end: the first link of a chain."""

    def declare(self, handle: Any) -> None:
        self.counts = handle.getMapState("counts", "until long", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in rows:
            end = time_of(row) // (10 * SECOND) * 10 * SECOND + 10 * SECOND
            n = (self.counts.getValue((end,)) or (0,))[0]
            self.counts.updateValue((end,), (n + 1,))
            self.handle.registerTimer(end)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        end = expiredTimerInfo.getExpiryTimeInMs()
        n = self.counts.getValue((end,))[0]
        self.counts.removeKey((end,))
        # A row must not come before the watermark, which has passed the end.
        at = dt.datetime.fromtimestamp(timerValues.getCurrentWatermarkInMs() / 1000 + 1)
        yield Row(k=key[0], i=end, n=n, at=at)


class Totals(Processor):
    """What the first link emits, summed: the second link."""

    def declare(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            n = (self.total.get() or (0,))[0] + row.n
            self.total.update((n,))
            yield Row(k=key[0], i=row.i, total=n)
