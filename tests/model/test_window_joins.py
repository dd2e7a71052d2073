"""Windowed joins, against all pairs of all rows by window: late, killed, restored, rescaled."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.errors import InvalidArgumentError
from pystate.operators.joins import windowed
from pystate.operators.joins.windowed import WindowJoin, WindowJoinSpec, join_window, window_names
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.operators.runtime.late_rows import LateInputs
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.windows import kinds, operator, row_windows
from pystate.operators.windows.assigners import (
    CountWindow,
    Cumulating,
    Global,
    Session,
    Sliding,
    Tumbling,
)
from tests.drawn import drawn
from tests.model.joined import Driver, Row, batch, inputs
from tests.model.test_joins import NAMES, streams
from tests.range_backends import HeapRanges, on_disk
from tests.unit.operators.windows.windows_world import cumulating, sliding

KINDS: list[tuple[Any, Any]] = [
    (Tumbling(1000), sliding(1000, 1000)),
    (Sliding(2000, 800), sliding(2000, 800)),
    (Cumulating(500, 1500), cumulating(500, 1500)),
    (Session(700), None),
]


def spec_of(windows: Any, how: Any) -> WindowJoinSpec:
    left, right, output = inputs()
    names = window_names(output.names, 2, "test")
    types = [*output.schema.types[:2], pa.int64(), pa.int64(), *output.schema.types[2:]]
    columns = OutputColumns(pa.schema(zip(names, types, strict=True)), "operator 'j'")
    return WindowJoinSpec(left, right, join_window(windows, "test"), how, columns)


@pytest.fixture(params=["whole", "pieces"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything at once, or a few rows at a time."""
    if request.param == "pieces":
        monkeypatch.setattr(windowed, "_ROWS", 2)
        monkeypatch.setattr(row_windows, "LOADED_ROWS", 2)
        for module in (kinds, operator):
            monkeypatch.setattr(module, "FIRED_ROWS", 3)


def sessions_of(rows: list[tuple[str, Row]], gap: int) -> list[tuple[Any, int, int, Any]]:
    """Rows of both inputs by session: key, start, end and rows."""
    found: list[list[Any]] = []
    for side, row in sorted(rows, key=lambda each: each[1][2]):
        key, time = row[:2], row[2]
        near = [s for s in found if s[0] == key and time <= s[2]]
        if near:
            [session] = near
            session[2] = max(session[2], time + gap)
            session[3].append((side, row))
        else:
            found.append([key, time, time + gap, [(side, row)]])
    return [tuple(each) for each in found]  # type: ignore[misc]


class Rows:
    """The rows that were not too late, by window; sessions are removed once they are over."""

    def __init__(self, windows: Any, of: Any) -> None:
        self.windows, self.of = windows, of
        # A row at the very end of a session belongs to it, which is then over a moment later.
        self.past = 1 if of is None else 0
        self.bound: int | None = None
        self.rows: list[tuple[str, Row]] = []
        self.late: list[tuple[str, int]] = []
        self.found: Counter[Any] = Counter()

    def ends(self, time: int) -> list[tuple[int, int]]:
        if self.of is None:
            return [(time, time + self.windows.gap_ms)]
        found: list[tuple[int, int]] = self.of(time)
        return found

    def add(self, side: str, row: Row) -> None:
        if row[2] is None:
            return
        if self.bound is not None and all(
            end + self.past <= self.bound for _, end in self.ends(row[2])
        ):
            self.late.append((side, row[3]))
        else:
            self.rows.append((side, row))

    def advance(self, watermark: int | None, how: str) -> None:
        before = self.bound
        self.bound = watermark if before is None else max(before, watermark or before)
        if self.bound is None:
            return
        groups: dict[Any, list[Any]] = {}
        if self.of is None:
            for key, start, end, rows in sessions_of(self.rows, self.windows.gap_ms):
                groups[key, start, end] = rows
        else:
            for side, row in self.rows:
                for start, end in self.of(row[2]):
                    groups.setdefault((row[:2], start, end), []).append((side, row))
        for (key, start, end), rows in groups.items():
            over_at = end + self.past
            if over_at > self.bound or (before is not None and over_at <= before):
                continue
            ids = {s: [row[3] for side, row in rows if side == s] for s in ("left", "right")}
            null = None in key
            pairs = [] if null else [(a, b) for a in ids["left"] for b in ids["right"]]
            if how in ("left", "full") and (null or not ids["right"]):
                pairs += [(a, None) for a in ids["left"]]
            if how in ("right", "full") and (null or not ids["left"]):
                pairs += [(None, b) for b in ids["right"]]
            self.found.update((*key, start, end, *pair) for pair in pairs)
        if self.of is None:
            over = [r for n, rows in groups.items() if n[2] + self.past <= self.bound for r in rows]
            self.rows = [each for each in self.rows if each not in over]


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize(("windows", "of"), KINDS, ids=lambda k: repr(k)[:12])
def test_equals_a_recomputation(windows: Any, of: Any, how: str) -> None:
    @drawn(25)
    @given(streams())
    def check(stream: list[Any]) -> None:
        compare(windows, of, how, stream)

    check()


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize(("windows", "of"), KINDS[1::2], ids=lambda k: repr(k)[:12])
def test_on_disk(windows: Any, of: Any, how: str) -> None:
    @drawn(30)
    @given(st.integers(0, 1 << 30), streams())
    def check(seed: int, stream: list[Any]) -> None:
        with on_disk(seed) as ranges:
            compare(windows, of, how, stream, ranges)

    check()


def compare(
    windows: Any, of: Any, how: str, stream: list[Any], ranges: HeapRanges | None = None
) -> None:
    """A join and its recomputation over a stream."""
    spec = spec_of(windows, how)
    delay, epochs = stream
    late: list[tuple[str, int]] = []

    def note(side: Any, rows: pa.RecordBatch) -> None:
        assert rows.schema == batch(side, []).schema
        late.extend((side, i) for i in rows.column("lid" if side == "left" else "rid").to_pylist())

    schemas = {side: batch(side, []).schema for side in ("left", "right")}
    lates = LateInputs({"left": "left", "right": "right"}, schemas)
    make = partial(WindowJoin, spec, lates)
    driver = Driver(spec.states(), spec.left.key, make, side=note, ranges=ranges)
    model = Rows(windows, of)
    out: list[dict[str, Any]] = []
    latest = None
    for pieces, act in epochs:
        for side, rows in pieces:
            for row in rows:
                model.add(side, row)
        times = [row[2] for _, rows in pieces for row in rows if row[2] is not None]
        latest = max([*times, *([] if latest is None else [latest])], default=None)
        watermark = None if latest is None else latest - delay
        model.advance(watermark, how)
        late_before = list(late)
        batches = [(side, batch(side, rows)) for side, rows in pieces]
        out += driver.epoch(batches, watermark, NAMES, fails=act == "fail")
        if act == "fail":  # the attempt that failed has named its late rows, too
            late[:] = late_before + late[len(late_before) :][: (len(late) - len(late_before)) // 2]
        if act == "restart":
            driver.restart(len(driver.backends))
        elif act.startswith("rescale"):
            driver.restart(int(act.split()[1]))
    model.advance(MAX_WATERMARK, how)
    out += driver.epoch([], MAX_WATERMARK, NAMES)
    assert driver.keys() == 0
    assert sorted(late) == sorted(model.late)
    assert driver.late == len(late)
    driver.close()
    columns = ("k", "z", "window_start", "window_end", "lid", "rid")
    assert Counter(tuple(row[c] for c in columns) for row in out) == model.found
    for row in out:
        assert row["word"] == (None if row["lid"] is None else f"w{row['lid']}")


@pytest.mark.parametrize("windows", [CountWindow(3), Global(), Session(column="gap"), "1 hour"])
def test_windows_that_cannot_join(windows: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="test: "):
        join_window(windows, "test")


def test_a_column_with_the_name_of_a_windows() -> None:
    with pytest.raises(InvalidArgumentError, match="Window_Start"):
        window_names(("k", "Window_Start"), 1, "test")
