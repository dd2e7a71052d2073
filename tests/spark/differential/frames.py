"""Processors over pandas frames, and functions for `applyInPandasWithState`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from .processors import Processor

Frames = Iterable[pd.DataFrame]
Out = Iterator[pd.DataFrame]


class FrameCount(Processor):
    """A count and a sum of frames, of which a key may get several."""

    def declare(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n long, total double")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Out:
        n, total = self.sums.get() or (0, 0.0)
        for frame in rows:
            n += len(frame)
            total += frame["x"].sum()
        self.sums.update((n, total))
        yield pd.DataFrame({"k": key, "n": n, "total": [total]})


class FrameShapes(Processor):
    """Frames of several rows, with columns in another order, one after the other."""

    def declare(self, handle: Any) -> None:
        self.items = handle.getListState("items", "i long, v double")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Out:
        frame = pd.concat(list(rows)).sort_values("i")
        found = [(int(i), float(v)) for i, v in frame[["i", "v"]].itertuples(index=False)]
        self.items.appendList(found[:2])
        yield pd.DataFrame({"n": [len(found)] * 2, "i": [0, 1], "k": [key[0]] * 2})
        items = list(self.items.get())
        yield pd.DataFrame({"k": key[0], "i": [i for i, _ in items], "n": len(items)})


class FrameTypes(Processor):
    """What a frame is like: columns, types, and values of numpy and pandas kept as state."""

    def declare(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "i long, x double, t timestamp, op string")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Out:
        before = self.last.get()
        frame = pd.concat(list(rows)).sort_values("i").reset_index(drop=True)
        row = frame.iloc[-1]
        self.last.update((row["i"], row["x"], row["t"], row["op"]))
        yield pd.DataFrame(
            {
                "k": [key[0]],
                "types": [repr(dict(frame.dtypes.astype(str)))],
                "before": [repr(before)],
                "after": [repr(self.last.get())],
                "t": [row["t"]],
            }
        )


class FrameTimers(Processor):
    """Sessions by timers, in frames."""

    GAP = 4_000

    def declare(self, handle: Any) -> None:
        self.times = handle.getListState("times", "ms long")

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Out:
        for frame in rows:
            self.times.appendList([(int(ms),) for ms in frame["ms"]])
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(max(ms for (ms,) in self.times.get()) + self.GAP)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        times = sorted(ms for (ms,) in self.times.get())
        self.times.clear()
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"k": [key[0]], "start": times[:1], "end": [at], "n": [len(times)]})


class FrameInherited(Processor):
    """Begins with frames of another table."""

    def declare(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, names string")

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        names = ",".join(sorted(initialState["name"]))
        self.total.update((int(initialState["n"].sum()), names))

    def handleInputRows(self, key: Any, rows: Frames, timerValues: Any) -> Out:
        n, names = self.total.get() or (0, "")
        n += sum(len(frame) for frame in rows)
        self.total.update((n, names))
        yield pd.DataFrame({"k": key, "n": [n], "names": [names]})


def counted(key: Any, frames: Frames, state: Any) -> Out:
    """A count without a timeout, taken away when it has become large."""
    n, total = state.get if state.exists else (0, 0.0)
    option = repr(state.getOption)
    for frame in frames:
        n, total = n + len(frame), total + float(frame["x"].sum())
    if n > 25:
        state.remove()
    else:
        state.update((n, total))
    shown = repr((state.exists, state.getOption, state.hasTimedOut))
    yield pd.DataFrame({"k": [key[0]], "n": [n], "before": [option], "after": [shown]})


def closed(key: Any, frames: Frames, state: Any) -> Out:
    """Sessions by a timeout of event time."""
    if state.hasTimedOut:
        first, last, n = state.get
        state.remove()
        rows = sum(map(len, frames))
        yield pd.DataFrame({"k": [key[0]], "first": [first], "last": [last], "n": [n + rows]})
        return
    first, last, n = state.getOption or (1 << 60, 0, 0)
    for frame in frames:
        first, last = min(first, int(frame["ms"].min())), max(last, int(frame["ms"].max()))
        n += len(frame)
    state.update((first, last, n))
    state.setTimeoutTimestamp(max(last, state.getCurrentWatermarkMs() + 1) + 3_000)
    yield pd.DataFrame({"k": [], "first": [], "last": [], "n": []})


def expiring(key: Any, frames: Frames, state: Any) -> Out:
    """A timeout of processing time: in the next batch for one key, never for the others."""
    if state.hasTimedOut:
        n = state.get[0]
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-n], "now": [True]})
        return
    n = (state.getOption or (0,))[0] + sum(map(len, frames))
    state.update((n,))
    state.setTimeoutDuration(1 if key[0] in ("a", "rare") else 3_600_000)
    now = state.getCurrentProcessingTimeMs() > 1_600_000_000_000
    yield pd.DataFrame({"k": [key[0]], "n": [n], "now": [now]})
