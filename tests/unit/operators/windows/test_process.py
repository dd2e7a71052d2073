"""Functions over the rows of windows, against a plain recomputation; and what they may return."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.base.notes import notes_of
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.operators.functions.windows import window_shape
from pystate.operators.windows import kinds, operator, row_windows, slices
from pystate.operators.windows.assigners import (
    Assigner,
    CountWindow,
    Global,
    Session,
    Sliding,
    Tumbling,
)
from pystate.operators.windows.specification import WindowOptions, WindowSpec
from pystate.testing import WindowHarness
from tests.drawn import drawn
from tests.range_backends import DiskRanges
from tests.unit.operators.windows.test_aligned import ALL, KINDS, compare
from tests.unit.operators.windows.test_aligned import epochs as aligned_epochs
from tests.unit.operators.windows.test_sessions import GAPS, Sessions
from tests.unit.operators.windows.test_sessions import compare as compare_sessions
from tests.unit.operators.windows.test_sessions import epochs as session_epochs
from tests.unit.operators.windows.windows_world import (
    SCHEMA,
    ManyWorld,
    Model,
    RowsWorld,
    World,
    as_dict,
    numbers,
)

COLUMNS = "k long, t long, v long"


@pytest.fixture(params=["whole", "pieces"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[RowsWorld]:
    """Everything at once, a window at a time; or a few windows at a time, many at once."""
    if request.param == "whole":
        return RowsWorld
    monkeypatch.setattr(row_windows, "LOADED_ROWS", 3)
    for module in (kinds, operator, slices):
        monkeypatch.setattr(module, "FIRED_ROWS", 2)
    return ManyWorld


class Aggregated(World):
    """With the aggregates that give what functions make of the rows."""

    def _spec(self, options: WindowOptions, key: Any, aggregates: Any) -> WindowSpec:
        return super()._spec(options, key, ALL)


@pytest.fixture(params=["aggregates", "rows", "on disk"])
def worlds(request: pytest.FixtureRequest, sizes: type[World], tmp_path: Path) -> Any:
    if request.param == "on disk":
        kind = Aggregated if sizes is RowsWorld else sizes
        return partial(kind, backends=DiskRanges(tmp_path, 3))
    return Aggregated if request.param == "aggregates" else sizes


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize(("windows", "expected"), KINDS, ids=lambda k: repr(k)[:30])
def test_equals_a_recomputation(
    sizes: type[RowsWorld], windows: Assigner, expected: Any, emit: str
) -> None:
    @drawn(12)
    @given(epochs=aligned_epochs, lateness=st.sampled_from([0, 0, 3, 25]), size=st.integers(1, 9))
    def check(epochs: Any, lateness: int, size: int) -> None:
        world = sizes(windows, {}, allowed_lateness=lateness, emit=emit, batch_rows=size)
        compare(world, Model(expected, numbers, lateness, emit), epochs)

    check()


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize("column", [False, True])
def test_sessions(sizes: type[RowsWorld], column: bool, emit: str) -> None:
    @drawn(30)
    @given(epochs=session_epochs, lateness=st.sampled_from([0, 0, 3, 25]), size=st.integers(1, 9))
    def check(epochs: Any, lateness: int, size: int) -> None:
        windows = Session(column="gap") if column else Session(4)
        world = sizes(windows, {}, GAPS, allowed_lateness=lateness, emit=emit, batch_rows=size)
        compare_sessions(world, Sessions(lateness, emit), epochs, column, numbers)

    check()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_count_windows(worlds: type[World], size: int) -> None:
    world = worlds(CountWindow(3), {}, event_time=None, batch_rows=size)
    rows = [(k % 3 if k % 4 else None, None, k) for k in range(50)]
    found: list[Any] = world.epoch(rows[:20], None)
    world.rescale(4)
    found += world.epoch(rows[20:], None, crash=True)
    expected = []
    for key in (None, 0, 1, 2):
        mine = [row for row in rows if row[0] == key]
        whole = len(mine) // 3 * 3
        expected += [(key, None, None, *numbers(mine[i : i + 3])) for i in range(0, whole, 3)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    world.epoch([(key, None, 0) for key in (None, 0, 1, 2) for _ in range(2)], None)


def test_global_windows(worlds: type[World]) -> None:
    world = worlds(Global(), {}, event_time=None, emit="update")
    assert [row[:5] for row in world.epoch([(1, None, 5), (2, None, 6)], None)] == [
        (1, None, None, 1, 5),
        (2, None, None, 1, 6),
    ]
    world.rescale(3)
    assert [row[:5] for row in world.epoch([(1, None, 7)], None)] == [(1, None, None, 2, 12)]
    assert world.epoch([], 1000) == []


@pytest.mark.parametrize(
    "windows", [Tumbling(100), Sliding(100, 50), Sliding(100, 100), Session(60)]
)
def test_early_firings(worlds: type[World], windows: Any) -> None:
    world = worlds(windows, {}, early="10 s")

    def fired(value: int | None, watermark: int, now: int) -> set[Any]:
        rows = [] if value is None else [(1, 54 + value, value)]
        return {row[3:5] for row in world.epoch(rows, watermark, now=now)}

    assert not fired(1, 0, 3_000) and not fired(None, 0, 9_999)
    assert fired(2, 0, 12_000) == {(2, 3)}
    assert not fired(None, 0, 50_000)  # nothing has changed
    fired(4, 0, 51_000)
    assert fired(None, 0, 60_000) == {(3, 7)}
    assert fired(1, 250, 61_000) == {(4, 8)}
    assert not fired(None, 300, 99_000) and world.kept() == 0


@pytest.mark.parametrize("windows", [Tumbling("1 min"), Sliding("1 min", "30 s"), Session("1 min")])
def test_processing_time(worlds: type[World], windows: Any) -> None:
    world = worlds(windows, {}, processing_time=True)
    assert world.epoch([(1, None, 1), (1, None, 2)], None, now=5_000) == []
    found = world.epoch([], None, now=300_000)
    assert {row[3:5] for row in found} == {(2, 3)}
    assert isinstance(world, RowsWorld) or found[0][1].tzinfo is not None
    assert world.kept() == 0


def test_a_row_is_kept_once() -> None:
    world = RowsWorld(Sliding(60, 1), {})
    world.epoch([(1, 30, i) for i in range(500)], 0)
    _, backend = world.ranges[0]
    assert backend.stats().keys == 2  # the slice, and the key's timer
    found = as_dict(world.epoch([], 1_000))
    assert len(found) == 60 and {n for n, *_ in found.values()} == {500}
    assert world.kept() == 0


def harness(process: Any, schema: str = "k long, n long", **more: Any) -> WindowHarness:
    options: dict[str, Any] = {"key": "k", "columns": COLUMNS, "event_time": "t", **more}
    return WindowHarness(Tumbling(10), process=process, schema=schema, **options)


def test_rows_of_a_key_alone() -> None:
    with WindowHarness(
        CountWindow(2),
        process=lambda key, window, rows: [(key, len(rows))],
        schema="k long, n long",
        key="k",
        columns="k long",
    ) as harness:
        assert harness.process([(1,), (1,), (1,), (2,)]) == [(1, 2)]
        assert harness.process([(2,)]) == [(2, 2)]


class Spread(ps.WindowFunction):
    #: Of all copies: each epoch works on one.
    calls: ClassVar[list[str]] = []

    def open(self, ctx: ps.WindowContext) -> None:
        self.calls.append(f"open {ctx.uid} {ctx.watermark}")

    def close(self) -> None:
        self.calls.append("close")

    def process(self, key: Any, window: Any, batch: pa.RecordBatch, ctx: Any) -> Iterator[Any]:
        self.calls.append(f"{key} {window.start_time:%S}-{window.end_time:%S} at {ctx.watermark}")
        low = pc.min(batch.column("v")).as_py()
        yield {"low": low, "key": key, "end": window.end}
        yield pa.record_batch({"end": [window.end + 1], "low": [low], "key": [key]})
        yield key, window.end + 2, low
        ctx.output("big", (key, len(batch)))


def test_a_function_in_the_harness() -> None:
    function = Spread()
    with WindowHarness(
        Tumbling("10 s"),
        process=function,
        schema="key long, end long, low long",
        key="k",
        columns=COLUMNS,
        event_time="t",
        side_outputs={"big": "key long, n long"},
    ) as harness:
        assert harness.process([(1, 1_000, 5), (1, 2_000, 3), (2, 19_000, 4)]) == []
        function.calls.clear()
        assert harness.advance_watermark(10_000) == [(1, 10_000, 3), (1, 10_001, 3), (1, 10_002, 3)]
        assert function.calls == ["open harness 10000", "1 00-10 at 10000", "close"]
        assert harness.side_outputs == {"big": [(1, 2)]}
        assert harness.process([(1, 9_000, 0)]) == []
        assert harness.late == [(1, 9_000, 0)]
        assert harness.kept == 1


def test_an_epoch_that_fails_changes_nothing() -> None:
    fails = [True]

    def process(key: Any, window: Any, batch: pa.RecordBatch, ctx: Any) -> Any:
        ctx.output("aside", (key,))
        if fails[0]:
            raise RuntimeError("once")
        return [(key, batch.num_rows)]

    with harness(process, side_outputs=["aside"]) as windows:
        windows.process([(1, 5, 5)])
        with pytest.raises(RuntimeError, match="once") as error:
            windows.advance_watermark(10)
        assert "key 1, window 0 to 10" in str(notes_of(error.value))
        assert windows.side_outputs == {"aside": []} and windows.watermark is None
        fails[0] = False
        assert windows.advance_watermark(10) == [(1, 1)]
        assert windows.side_outputs == {"aside": [(1,)]}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((1, 2), "returned"),
        (7, "yield rows"),
        ({"k": 1}, "yield rows"),
        ([(1, "x")], "declared long"),
        ([(1,)], "2 columns"),
        (pa.record_batch({"z": [1]}), "yielded columns z"),
    ],
)
def test_what_cannot_be_returned(returned: Any, message: str) -> None:
    with harness(lambda *_: returned) as windows:
        windows.process([(1, 5, 5)])
        with pytest.raises(WrongTypeError, match=message):
            windows.advance_watermark(10)


@pytest.mark.parametrize("wrong", [(2, "x"), {"k": 2, "m": 1}, pa.record_batch({"k": ["x"]})])
@pytest.mark.parametrize("aside", [True, False])
def test_a_wrong_row_names_its_key_and_window(aside: bool, wrong: Any) -> None:
    def process(key: Any, window: Any, batch: pa.RecordBatch, ctx: Any) -> Any:
        row = wrong if key == 2 else (key, 1)
        if not aside:
            return [row]
        ctx.output("aside", row)
        return []

    with harness(process, side_outputs={"aside": "k long, n long"}) as windows:
        windows.process([(key, 5, 5) for key in (1, 2, 3)])
        line = process.__code__.co_firstlineno
        place = rf"process \({re.escape(__file__)}, line {line}\)"
        match = f"; emitted for key 2, window 0 to 10 by {place}"
        with pytest.raises(WrongTypeError, match=match) as raised:
            windows.advance_watermark(10)
        assert ("side output 'aside'" in str(raised.value)) == aside


def test_a_side_output_that_is_not_declared() -> None:
    with harness(lambda k, w, b, ctx: ctx.output("x", (1,)), "k long") as windows:
        windows.process([(1, 5, 5)])
        with pytest.raises(InvalidArgumentError, match="no side output 'x'"):
            windows.advance_watermark(10)


class Neither(ps.WindowFunction):
    pass


class Both(Spread):
    def process_windows(self, windows: Any, offsets: Any, batch: Any, ctx: Any) -> Any:
        return None


async def later(key: Any, window: Any, batch: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Spread, "pass an instance"),
        (Neither(), "neither"),
        (Both(), "both"),
        (later, "async"),
        (7, "takes a ps.WindowFunction"),
        (lambda key, batch: None, "is called with"),
    ],
)
def test_what_is_no_function_over_windows(function: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        window_shape(function, "test")


def test_a_function_over_windows_has_no_states() -> None:
    with pytest.raises(DeclarationError, match="no states"):
        type("Kept", (ps.WindowFunction,), {"n": ps.ValueState("long")})


def test_the_harness_takes_one_of_both() -> None:
    for more in ({}, {"aggregates": {"n": ps.count()}, "process": lambda k, w, b: []}):
        with pytest.raises(InvalidArgumentError, match="aggregates or process="):
            WindowHarness(Tumbling(10), key="k", columns=COLUMNS, event_time="t", **more)


def test_many_windows_are_read_in_pieces() -> None:
    class Count(ps.WindowFunction):
        def process_windows(self, windows: Any, offsets: Any, batch: Any, ctx: Any) -> Any:
            assert batch.num_rows <= row_windows.LOADED_ROWS
            sizes.append(windows.num_rows)
            return {"k": windows.column("k"), "n": np.add.reduceat(batch.column("v"), offsets[:-1])}

    sizes: list[int] = []
    rows = 300_000
    keys = np.arange(rows) % 100_000
    with harness(Count(), columns=SCHEMA, batch_rows=1 << 20) as windows:
        batch = pa.record_batch({"k": keys, "t": keys % 7, "v": np.ones(rows, np.int64)})
        assert windows.process(batch) == []
        found = windows.advance_watermark(10)
        assert len(found) == 100_000 and {row.n for row in found} == {3}
        assert max(sizes) <= 32_768
