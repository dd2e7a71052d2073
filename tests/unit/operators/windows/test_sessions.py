"""Session windows against a plain recomputation."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.operators.windows.assigners import Session
from tests.drawn import drawn
from tests.unit.operators.windows.test_aligned import ALL, SUMS
from tests.unit.operators.windows.windows_world import SCHEMA, Row, World, as_dict, numbers

GAPS = pa.schema([*SCHEMA, ("gap", pa.int32())])


class Sessions:
    """Sessions recomputed from all rows that were not too late, each time."""

    def __init__(self, lateness: int, emit: str) -> None:
        self.lateness, self.emit = lateness, emit
        self.bound: int | None = None
        self.late: list[Row] = []
        self.sessions: list[tuple[int, int, int, list[Row]]] = []
        self.over: set[tuple[int, int, int]] = set()

    def epoch(self, rows: list[Row], watermark: int) -> dict[Any, Any]:
        changed = set()
        for row in rows:
            key, time, _, gap = row
            if time is None or gap is None:
                continue
            if self.bound is not None and time + gap + self.lateness < self.bound:
                self.late.append(row)
                continue
            start, end, kept = time, time + gap, [row]
            near = [s for s in self.sessions if s[0] == key and s[1] <= end and start <= s[2]]
            for each in near:
                self.sessions.remove(each)
                start, end, kept = min(start, each[1]), max(end, each[2]), each[3] + kept
            self.sessions.append((key, start, end, kept))
            changed |= {id(r) for r in [row]}
        self.bound = watermark
        emitted = {}
        for key, start, end, kept in self.sessions:
            name = key, start, end
            fresh = any(id(row) in changed for row in kept)
            over = end < watermark
            if (self.emit == "update" and fresh) or (
                self.emit == "final" and over and (fresh or name not in self.over)
            ):
                emitted[name] = kept
            if over:
                self.over.add(name)
        self.sessions = [s for s in self.sessions if s[2] + self.lateness >= watermark]
        return emitted


rows = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(st.none(), st.integers(-6, 40)),
        st.one_of(st.none(), st.integers(-9, 9)),
        st.one_of(st.none(), st.integers(1, 9)),
    ),
    max_size=10,
)
epochs = st.lists(
    st.tuples(rows, st.integers(0, 15), st.booleans(), st.sampled_from([None, None, 1, 3, 5])),
    max_size=8,
)


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize("column", [False, True])
@given(
    epochs=epochs,
    lateness=st.sampled_from([0, 0, 3, 25]),
    all_=st.booleans(),
    size=st.integers(1, 9),
)
@drawn(80)
def test_equals_a_recomputation(
    column: bool, emit: str, epochs: Any, lateness: int, all_: bool, size: int
) -> None:
    world = World(
        Session(column="gap") if column else Session(4),
        ALL if all_ else SUMS,
        GAPS,
        allowed_lateness=lateness,
        emit=emit,
        batch_rows=size,
    )
    model = Sessions(lateness, emit)
    compare(world, model, epochs, column, numbers if all_ else totals)


def totals(rows: list[Row]) -> tuple[Any, ...]:
    n, total, *_ = numbers(rows)
    return total, n


def compare(world: World, model: Sessions, epochs: Any, column: bool, results: Any) -> None:
    """Run both over epochs, with crashes and rescales, and to the end."""
    watermark = None
    for given_, later, crash, parallelism in epochs:
        past = (watermark or 0) // 2
        moved: list[Row] = [
            (k, None if t is None else t + past, v, g if column else 4) for k, t, v, g in given_
        ]
        watermark = (-10 if watermark is None else watermark) + later
        if parallelism is not None:
            world.rescale(parallelism)
        found = as_dict(world.epoch(moved, watermark, crash=crash))
        expected = model.epoch(moved, watermark)
        assert found == {name: results(kept) for name, kept in expected.items()}
    assert sorted(world.late, key=repr) == sorted(model.late, key=repr)
    world.epoch([], 10_000)
    assert world.kept() == 0


def test_a_row_joins_two_sessions() -> None:
    world = World(Session(10), SUMS)
    assert world.epoch([(1, 0, 1), (1, 20, 2)], None) == []
    assert world.epoch([(1, 10, 4)], 29) == []
    assert world.epoch([], 30) == []  # a row at 30 would belong to it
    assert world.epoch([], 31) == [(1, 0, 30, 7, 3)]
    assert world.kept() == 0


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_a_row_at_the_end_of_a_session_belongs_to_it_however_rows_are_cut(domain: str) -> None:
    rows = [(1, 0, 1), (2, 10, 2), (1, 10, 4), (2, 11, 8)]
    for cut in range(len(rows) + 1):
        world = World(Session(10), SUMS, processing_time=domain == "processing")
        if domain == "event":
            found = world.epoch(rows[:cut], max([row[1] for row in rows[:cut]], default=None))
            found += world.epoch(rows[cut:], 11) + world.epoch([], 99)
        else:
            found = [row for r in rows for row in world.epoch([r], None, now=r[1])]
            found += world.epoch([], None, now=99)
        if domain == "event":
            assert [row[1:3] for row in sorted(found)] == [(0, 20), (10, 21)]
        assert sorted(row[:1] + row[3:] for row in found) == [(1, 5, 2), (2, 10, 2)]
        assert world.late == [] and world.kept() == 0


def test_a_session_is_kept_until_no_late_row_can_change_it() -> None:
    world = World(Session(10), SUMS, allowed_lateness=5)
    assert world.epoch([(1, 0, 1)], 11) == [(1, 0, 10, 1, 1)]
    assert world.epoch([], 15) == [] and world.kept() > 0
    # 15 is as late as is allowed: a row at 0 still joins the session, and so does one at 10.
    assert world.epoch([(1, 0, 2)], 15) == [(1, 0, 10, 3, 2)]
    assert world.epoch([(1, 10, 4)], 15) == []
    assert world.epoch([], 21) == [(1, 0, 20, 7, 3)]
    assert world.epoch([], 25) == [] and world.kept() > 0
    assert world.epoch([], 26) == [] and world.kept() == 0


def test_timers_of_an_older_version_come_one_earlier() -> None:
    """They were at the end of a session, and at the end of its lateness."""
    world = World(Session(10), SUMS, allowed_lateness=5)
    world.epoch([(1, 0, 1), (2, 3, 1)], None)
    [(_, backend)] = world.ranges
    for keys in list(backend.existing()):
        there = keys.namespaces().is_valid()
        starts = keys.namespaces().filter(there)
        some = backend.keys([a.filter(there) for a in keys.key_arrays()], starts)
        ends = pa.array(starts.to_numpy() + 10)
        backend.delete_timers(some, "event", pa.array(ends.to_numpy() + 1))
        backend.register_timers(some, "event", ends)
    assert world.epoch([], 10) == []
    assert world.epoch([], 14) == [(1, 0, 10, 1, 1), (2, 3, 13, 1, 1)]
    assert backend.next_timer("event") == 16
    backend.delete_timers(backend.keys([pa.array([1])], pa.array([0])), "event", pa.array([16]))
    backend.register_timers(backend.keys([pa.array([1])], pa.array([0])), "event", pa.array([15]))
    assert world.epoch([], 15) == [] and backend.next_timer("event") == 16
    assert world.epoch([], 30) == [] and world.kept() == 0


def test_a_session_whose_timers_come_due_together_is_emitted_once() -> None:
    world = World(Session(4), SUMS, allowed_lateness=20)
    assert world.epoch([(1, 0, 1)], 5) == [(1, 0, 4, 1, 1)]
    # Late rows prolong it beyond the time at which it would have been removed, which has a timer.
    late = [(1, time, 10) for time in range(4, 28, 4)]
    assert world.epoch(late, 40) == [(1, 0, 28, 61, 7)]
    assert world.epoch([], 48) == [] and world.kept() > 0
    assert world.epoch([], 49) == [] and world.kept() == 0


def test_times_at_the_ends_of_the_type() -> None:
    world = World(Session(10), SUMS)
    ends = [-(2**63), -(2**63) + 5, 2**63 - 1, 2**63 - 4, 0]
    world.epoch([(1, time, 1) for time in ends], None)
    found = world.epoch([], 2**63 - 1)
    # The others would be in sessions that end, or are kept until, beyond 64 bits.
    assert found == [(1, 0, 10, 1, 1)]
    assert world.timeless == 4


LONG_GAPS = GAPS.set(3, pa.field("gap", pa.int64()))


def test_a_gap_that_is_too_long_for_its_time_concerns_no_other_row() -> None:
    world = World(Session(column="gap"), SUMS, LONG_GAPS)
    far = (1 << 63) - (1 << 61)
    world.epoch([(1, far, 1, 1 << 59), (1, far, 2, 5)], None)
    assert world.epoch([], (1 << 63) - 1) == [(1, far, far + 5, 2, 1)]
    assert world.timeless == 1


def test_own_and_core_aggregates_are_merged() -> None:
    class Words(ps.AggregateFunction[int, list[int], str]):
        def create(self) -> list[int]:
            return []

        def add(self, accumulator: list[int], value: int) -> list[int]:
            accumulator.append(value)
            return accumulator

        def merge(self, a: list[int], b: list[int]) -> list[int]:
            a.extend(b)
            return a

        def result(self, accumulator: list[int]) -> str:
            return ",".join(map(str, sorted(accumulator)))

    aggregates = {
        "words": (Words(), "v", "string"),
        "top": (ps.TopK(2), "v"),
        "wide": (ps.TopK(200), "v"),
        "distinct": (ps.ApproxDistinct(), "v"),
        "spread": (ps.Variance(sample=False), "v"),
        "mean": ps.mean("v"),
    }
    world = World(Session(10), aggregates)
    world.epoch([(1, 0, 1), (1, 20, 2), (2, 0, None)], None)
    world.rescale(3)
    world.epoch([(1, 10, 6)], None)
    [one, two] = sorted(world.epoch([], 99))
    assert one == (1, 0, 30, "1,2,6", [6, 2], [6, 2, 1], 3, pytest.approx(14 / 3), 3.0)
    assert two == (2, 0, 10, None, [], [], 0, None, None)


@given(epochs=epochs, size=st.integers(2, 9))
@drawn(60)
def test_a_key_of_two_columns_is_as_one_of_one(epochs: Any, size: int) -> None:
    pairs = pa.schema([*GAPS, ("j", pa.int64())])
    one = World(Session(column="gap"), SUMS, GAPS, batch_rows=size)
    two = World(Session(column="gap"), SUMS, pairs, key=("k", "j"), batch_rows=size)
    watermark = -10
    for given_, later, crash, parallelism in epochs:
        watermark += later
        if parallelism is not None:
            one.rescale(parallelism)
            two.rescale(parallelism)
        # Neither column says the key: most pairs of their values do not occur.
        rows: list[Row] = [(k // 2, t, v, g, -k) for k, t, v, g in given_]
        found = two.epoch(rows, watermark, crash=crash)
        expected = one.epoch(given_, watermark)
        assert as_dict([(-j, *rest) for _, j, *rest in found]) == as_dict(expected)
    two.epoch([], 10_000)
    assert two.kept() == 0
