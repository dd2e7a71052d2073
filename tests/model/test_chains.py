"""Every operator behind every other one, over rows that are cut into epochs at random.

The rows of the source are not late. So no operator may find a row late, and what all of them emit
must be what they emit if everything comes in one epoch, in which nothing can be late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.refs import KEPT, OperatorState
from pystate.epochs.range_report import InputSeen
from pystate.epochs.watermarks import Holds, Input, OperatorTime, Watermarks
from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.inputs import JoinInput
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.joins.operator import JoinOperator
from pystate.operators.joins.windowed import WindowJoin, WindowJoinSpec, join_window
from pystate.operators.runtime.deduplicate import DeduplicateSpec
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.operators.runtime.top import By, TopSpec
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.sessions import earliest_start
from pystate.operators.windows.specification import WindowSpec, window_options
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.types.keys import parse_key
from pystate.types.state_type import parse_type
from tests.drawn import drawn

#: Key, time and value.
Row = tuple[int, int | None, int]
NAMES = ("k", "t", "v")
SCHEMA = pa.schema([(name, pa.int64()) for name in NAMES])
KEY = parse_key([("k", pa.int64())])


def batch(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ([],) * 3
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), pa.int64()) for column in columns], schema=schema
    )


# -- operators: which column is the event time of the next one is a part of them


@dataclass(frozen=True)
class Kind:
    """An operator; `time` is the column of its output that is the next one's event time."""

    time: str
    sides = 1

    def start(self, backend: Any, time: OperatorTime) -> Any:
        """Return what has `process(side, rows)`, `finish(watermark)` and `late_rows`."""
        raise NotImplementedError

    def operator(self) -> OperatorSpec | None:
        """Its tables, if it has any."""
        return None

    def holds(self) -> Holds:
        return Holds()

    def column(self) -> str | None:
        """The column as a pipeline may find it; None if it is computed from several."""
        return self.time

    def rows(self, out: dict[str, Any]) -> Row:
        """The next one's row."""
        raise NotImplementedError

    def kept(self, backend: Any) -> int | None:
        return None


class Run:
    """An operator's run over one epoch."""

    def __init__(self, operator: Operator, backend: Any, time: OperatorTime) -> None:
        self.task, self.operator = TaskContext(backend, time=time), operator
        operator.open(self.task)

    def process(self, side: str, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
        names, input = NAMES, "input"
        if isinstance(self.operator, JoinOperator):
            names, input = (NAMES if side == "left" else ("k", "t2", "v2")), side
        schema = pa.schema([(name, pa.int64()) for name in names])
        for piece in self.operator.process(batch(rows, schema), input):
            yield from piece.to_pylist()

    def finish(self, watermark: int | None) -> Iterator[dict[str, Any]]:
        assert self.task.time is not None
        self.task.time = replace(self.task.time, watermark_ms=watermark)
        for piece in self.operator.finish():
            yield from piece.to_pylist()

    @property
    def late_rows(self) -> int:
        return self.task.late_rows


@dataclass(frozen=True)
class Window(Kind):
    windows: Any
    lateness: int = 0

    def _spec(self) -> WindowSpec:
        options = window_options(
            self.windows, "test", event_time="t", allowed_lateness=self.lateness
        )
        found = {"total": ps.sum("v"), "first": ps.min("t"), "last": ps.max("t")}
        return WindowSpec.of(options, ["k"], found, SCHEMA, "test")

    def operator(self) -> OperatorSpec:
        return self._spec().operator("w", KEY, 16)

    def start(self, backend: Any, time: OperatorTime) -> Any:
        return Run(make_operator(self._spec()), backend, time)

    def holds(self) -> Holds:
        return self._spec().options.holds()

    def column(self) -> str | None:
        return None if self.time == "middle" else self.time

    def rows(self, out: dict[str, Any]) -> Row:
        out["middle"] = (out["window_start"] + out["window_end"]) // 2
        if self.time == "middle":
            out["middle"] = (out["first"] + out["last"]) // 2
        return out["k"], out[self.time], out["total"] or 0

    def kept(self, backend: Any) -> int | None:
        return earliest_start(backend)


def inputs() -> tuple[JoinInput, JoinInput]:
    left = JoinInput.of("left", ["k"], dict.fromkeys(NAMES, "long").items(), "t", "test")
    columns = dict.fromkeys(("k", "t2", "v2"), "long")
    return left, JoinInput.of("right", ["k"], columns.items(), "t2", "test")


def output(*names: str) -> OutputColumns:
    return OutputColumns(pa.schema([(name, pa.int64()) for name in names]), "test")


@dataclass(frozen=True)
class Joined(Kind):
    sides = 2

    def spec(self) -> Any:
        raise NotImplementedError

    def operator(self) -> OperatorSpec:
        return OperatorSpec("j", KEY, self.spec().states(), parse_type("long"), True, 16)

    def holds(self) -> Holds:
        found: Holds = self.spec().holds()
        return found

    def column(self) -> str | None:
        return None if self.time == "either" else self.time

    def rows(self, out: dict[str, Any]) -> Row:
        times = [time for time in (out["t"], out["t2"]) if time is not None]
        out["either"] = min(times, default=None)
        return out["k"], out[self.time], 31 * (out["v"] or 0) + (out["v2"] or 0)


@dataclass(frozen=True)
class Interval(Joined):
    lower: int
    upper: int
    how: Any

    def spec(self) -> IntervalJoinSpec:
        columns = output("k", "t", "v", "t2", "v2")
        return IntervalJoinSpec(*inputs(), self.lower, self.upper, self.how, columns)

    def start(self, backend: Any, time: OperatorTime) -> Any:
        return Run(IntervalJoin(self.spec()), backend, time)


@dataclass(frozen=True)
class Asof(Joined):
    tolerance: int
    how: Any

    def spec(self) -> AsofJoinSpec:
        columns = output("k", "t", "v", "t2", "v2")
        return AsofJoinSpec(*inputs(), self.how, self.tolerance, columns)

    def start(self, backend: Any, time: OperatorTime) -> Any:
        return Run(AsofJoin(self.spec()), backend, time)


@dataclass(frozen=True)
class JoinedWindows(Joined):
    windows: Any
    how: Any

    def spec(self) -> WindowJoinSpec:
        columns = output("k", "window_start", "window_end", "t", "v", "t2", "v2")
        return WindowJoinSpec(*inputs(), join_window(self.windows, "test"), self.how, columns)

    def start(self, backend: Any, time: OperatorTime) -> Any:
        return Run(WindowJoin(self.spec()), backend, time)

    def kept(self, backend: Any) -> int | None:
        return earliest_start(backend)


@dataclass(frozen=True)
class Distinct(Kind):
    """Passes each row on once."""

    time: str = "t"

    def operator(self) -> OperatorSpec:
        key = parse_key([(name, pa.int64()) for name in NAMES])
        return OperatorSpec("d", key, self._spec().states(), max_parallelism=16)

    def _spec(self) -> DeduplicateSpec:
        return DeduplicateSpec(NAMES, 1_000, event_time="t", late="drop")

    def start(self, backend: Any, time: OperatorTime) -> Any:
        return Run(self._spec().make(), backend, time)

    def rows(self, out: dict[str, Any]) -> Row:
        return out["k"], out["t"], out["v"]


@dataclass(frozen=True)
class Timers(Kind):
    """A function that keeps each row until its timer fires, some time later, and passes it on.

    What it emits has the timer's time.
    """

    time: str = "t"
    after: int = 0
    kept_rows: list[Row] = field(default_factory=list, hash=False, compare=False)

    def start(self, backend: Any, time: OperatorTime) -> Any:
        return TimersRun(self, time)

    def rows(self, out: dict[str, Any]) -> Row:
        return out["k"], out["t"], out["v"]


class TimersRun:
    def __init__(self, kind: Timers, time: OperatorTime) -> None:
        self.kind, self.bound, self.late_rows = kind, time.late_bound_ms, 0

    def process(self, side: str, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
        for k, t, v in rows:
            if t is None:
                continue
            self.late_rows += self.bound is not None and t < self.bound
            self.kind.kept_rows.append((k, t + self.kind.after, v))
        return iter(())

    def finish(self, watermark: int | None) -> Iterator[dict[str, Any]]:
        rows, until = list(self.kind.kept_rows), watermark
        for row in rows if until is not None else ():
            assert until is not None and row[1] is not None
            if row[1] <= until:
                self.kind.kept_rows.remove(row)
                yield dict(zip(NAMES, row, strict=True))


# -- pipelines


@dataclass
class Stage:
    kind: Kind
    #: By input, the stage before it; None for the rows of the source.
    feeds: tuple[int | None, ...]


class Pipeline:
    """Runs a pipeline over epochs, with the watermarks of the coordinator."""

    def __init__(self, stages: Sequence[Stage], delay: int) -> None:
        self.stages, self.delay = stages, delay
        self.stored: dict[str, OperatorState] = {}
        self.learned: set[int] = set()
        self.late: Counter[int] = Counter()
        self.out: list[Counter[Row]] = [Counter() for _ in stages]
        self.backends = []
        for stage in stages:
            spec = stage.kind.operator()
            backend = None if spec is None else KeyedStateBackend.of(spec)
            if backend is not None:
                backend.open()
            self.backends.append(backend)
            if isinstance(stage.kind, Timers):
                stage.kind.kept_rows.clear()

    def close(self) -> None:
        for backend in self.backends:
            if backend is not None:
                backend.close()

    def _inputs(self, number: int) -> list[Input]:
        found = []
        stage = self.stages[number]
        for side, feed in zip(("left", "right"), stage.feeds, strict=False):
            if feed is None:
                found.append(Input(side, event_time=True, allowed_delay_ms=self.delay))
                continue
            kind = self.stages[feed].kind
            hold = kind.holds().of(kind.column())
            if hold is not None and hold.kept:
                self.learned.add(feed)
            holds = {} if hold is None else {str(feed): hold}
            found.append(
                Input(side, event_time=True, upstream=(str(feed),), source=False, holds=holds)
            )
        return found

    def epoch(self, rows: Sequence[Row], *, drain: bool = False, restart: bool = False) -> None:
        if restart:
            self.learned.clear()
        marks = Watermarks(0, 0)
        operators, seen, tell = [], {}, set(self.learned)
        emitted: list[list[Row]] = []
        for number, stage in enumerate(self.stages):
            uid, stored = str(number), self.stored.get(str(number))
            inputs = self._inputs(number)
            marks.declare(uid, inputs, stored)
            known = () if stored is None else stored.inputs
            operators.append(OperatorState(uid, 1, (), (), (), inputs=known))
            time = marks.time(uid)
            assert time is not None
            task = stage.kind.start(self.backends[number], time)
            found: list[dict[str, Any]] = []
            parts = []
            for side, feed in zip(("left", "right"), stage.feeds, strict=False):
                mine = rows if feed is None else emitted[feed]
                if stage.kind.sides == 2 and len(set(stage.feeds)) == 1:
                    mine = [row for row in mine if row[2] % 2 == (side == "right")]
                found += task.process(side, mine)
                times = [row[1] for row in mine if row[1] is not None]
                parts.append(InputSeen(side, len(mine), max(times, default=None)))
            found += task.finish(MAX_WATERMARK if drain else time.watermark_ms)
            self.late[number] += task.late_rows
            backend = self.backends[number]
            if number in tell:
                parts.append(InputSeen(KEPT, 0, stage.kind.kept(backend)))
            seen[uid] = parts
            if backend is not None:
                if backend.dirty:
                    backend.seal(snapshot=False)
                else:
                    backend.end_idle_epoch()
            emitted.append([stage.kind.rows(out) for out in found])
            self.out[number].update(emitted[-1])
        self.stored = {op.uid: op for op in marks.after(operators, seen)}


HOW = st.sampled_from(["inner", "left", "right", "full"])
ALIGNED = st.sampled_from(
    [
        ps.Tumbling(7),
        ps.Tumbling(10, offset=3),
        ps.Sliding(12, 4),
        ps.Sliding(10, 3),
        ps.Cumulating(4, 12),
    ]
)
WINDOWS = ALIGNED | st.integers(1, 6).map(ps.Session)
KINDS: st.SearchStrategy[Kind] = st.one_of(
    st.builds(
        Window,
        st.sampled_from(["window_start", "window_end", "first", "last", "middle"]),
        WINDOWS,
        st.sampled_from([0, 0, 5]),
    ),
    st.tuples(st.integers(-8, 8), st.integers(0, 8)).flatmap(
        lambda bounds: st.builds(
            Interval,
            st.sampled_from(["t", "t2", "either"]),
            st.just(bounds[0]),
            st.just(bounds[0] + bounds[1]),
            HOW,
        )
    ),
    st.builds(
        Asof, st.sampled_from(["t", "t2"]), st.integers(1, 9), st.sampled_from(["inner", "left"])
    ),
    st.builds(
        JoinedWindows,
        st.sampled_from(["window_start", "window_end", "t", "t2", "either"]),
        WINDOWS,
        HOW,
    ),
    st.just(Distinct()),
    st.builds(Timers, st.just("t"), st.integers(0, 6)),
)


@st.composite
def pipelines(draw: st.DrawFn) -> list[Stage]:
    stages: list[Stage] = []
    for number in range(draw(st.integers(2, 3))):
        kind = draw(KINDS)
        feeds: tuple[int | None, ...] = (number - 1 if number else None,)
        if kind.sides == 2:
            # Versions of equal times count in the order in which they come: those of the source.
            other = None if isinstance(kind, Asof) else draw(st.sampled_from([None, feeds[0]]))
            feeds = (*feeds, other)
            if not isinstance(kind, Asof) and draw(st.booleans()):
                feeds = feeds[::-1]
        stages.append(Stage(kind, feeds))
    return stages


@st.composite
def sources(draw: st.DrawFn) -> tuple[int, list[list[Row]]]:
    """How late rows are, and the rows by epoch; no time is there twice."""
    delay = draw(st.integers(0, 4))
    times = draw(st.lists(st.integers(0, 60), max_size=24, unique=True))
    order = sorted(times, key=lambda time: time + draw(st.integers(0, delay)))
    rows = [(draw(st.integers(0, 1)), time, draw(st.integers(0, 5))) for time in order]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=8)))
    bounds = [0, *cuts, len(rows)]
    return delay, [rows[a:b] for a, b in pairwise(bounds)]


def check(stages: list[Stage], delay: int, epochs: list[list[Row]], restarts: list[bool]) -> None:
    whole, cut = Pipeline(stages, delay), None
    try:
        whole.epoch([row for rows in epochs for row in rows], drain=True)
        cut = Pipeline(stages, delay)
        for number, rows in enumerate(epochs):
            restart = restarts[number % len(restarts)]
            cut.epoch(rows, drain=number == len(epochs) - 1, restart=restart)
        assert not +cut.late, [stage.kind for stage in stages]
        assert cut.out == whole.out
    finally:
        for each in (whole, cut):
            if each is not None:
                each.close()


@drawn(150)
@given(pipelines(), sources(), st.lists(st.booleans(), min_size=1, max_size=5))
def test_no_row_is_late_behind_any_operator(
    stages: list[Stage], source: tuple[int, list[list[Row]]], restarts: list[bool]
) -> None:
    check(stages, *source, restarts)


def emitted(
    make: Callable[[], Operator], operator: OperatorSpec, epochs: Any, delay: int
) -> list[dict[Any, Any]]:
    """What one operator emits, in order; its epochs are a second apart."""
    found: list[dict[Any, Any]] = []
    latest: int | None = None
    with KeyedStateBackend.of(operator) as backend:
        for number, rows in enumerate(epochs):
            bound = None if latest is None else latest - delay
            end = MAX_WATERMARK if number == len(epochs) - 1 else bound
            time, task = OperatorTime(bound, end), make()
            task.open(TaskContext(backend, processing_time=number * 1000, time=time))
            pieces = [*task.process(batch(rows)), *task.finish()]
            found += [row for piece in pieces for row in piece.to_pylist()]
            for _, time, _ in rows:
                latest = time if latest is None or time is None else max(latest, time)
            backend.seal(snapshot=False) if backend.dirty else backend.end_idle_epoch()
    return found


def last_emitted(
    make: Callable[[], Operator], operator: OperatorSpec, epochs: Any, delay: int
) -> dict[Any, Any]:
    """What one operator emits at last, by key and window."""
    names = ("k", "window_start", "window_end", "rank")
    rows = emitted(make, operator, epochs, delay)
    return {tuple(map(row.get, names)): row for row in rows}


@drawn(100)
@given(
    WINDOWS,
    st.sampled_from([{"emit": "update"}, {"early": 1_500}, {"allowed_lateness": 4}]),
    sources(),
)
def test_what_windows_emit_at_last_does_not_depend_on_the_cut(
    windows: Any, how: Any, source: tuple[int, list[list[Row]]]
) -> None:
    options = window_options(windows, "test", event_time="t", **how)
    found = {"total": ps.sum("v"), "n": ps.count(), "last": ps.max("t")}
    spec = WindowSpec.of(options, ["k"], found, SCHEMA, "test")

    make = partial(make_operator, spec)
    delay, epochs = source
    operator = spec.operator("w", KEY, 16)
    whole = last_emitted(make, operator, [[row for rows in epochs for row in rows]], delay)
    cut = last_emitted(make, operator, epochs, delay)
    if isinstance(windows, ps.Session):
        # What was emitted of a session before it grew stays, under another start or end.
        cut = {name: out for name, out in cut.items() if name in whole}
    assert cut == whole


@drawn(60)
@given(st.integers(1, 4), st.booleans(), sources())
def test_what_top_emits_at_last_does_not_depend_on_the_cut(
    k: int, descending: bool, source: tuple[int, list[list[Row]]]
) -> None:
    long = parse_type("long")
    spec = TopSpec(("k",), k, (By("v", descending),), (("t", long), ("v", long)), event_time="t")
    operator = OperatorSpec("t", KEY, spec.states(), max_parallelism=16)

    make = spec.make
    delay, epochs = source
    whole = last_emitted(make, operator, [[row for rows in epochs for row in rows]], delay)
    assert last_emitted(make, operator, epochs, delay) == whole


def distinct(
    keep: Any, within: int | None, late: str
) -> tuple[Callable[[], Operator], OperatorSpec]:
    spec = DeduplicateSpec(("k",), within, keep, event_time="t", late=late)
    return spec.make, OperatorSpec("d", KEY, spec.states(), max_parallelism=16)


WITHIN = st.sampled_from([None, 1, 5, 30])
LATE = st.sampled_from(["process", "drop"])


@drawn(150)
@given(WITHIN, LATE, sources(), st.sets(st.integers(0, 23), max_size=6))
def test_the_last_row_of_a_key_does_not_depend_on_the_cut(
    within: int | None, late: str, source: tuple[int, list[list[Row]]], untimed: set[int]
) -> None:
    delay, epochs = source
    if within is not None:
        # A row without a time is as good as late: it is compared with what is remembered.
        untimed = set()
    # Halved, so that times are there twice; values tell the rows apart.
    number = iter(range(100))
    epochs = [
        [(k, None if n in untimed else t // 2, n) for k, t, _ in rows for n in [next(number)]]
        for rows in epochs
        if all(row[1] is not None for row in rows)
    ]
    make, operator = distinct("last", within, late)
    whole = last_emitted(make, operator, [[row for rows in epochs for row in rows]], delay)
    assert last_emitted(make, operator, epochs, delay) == whole
    for (k, *_), row in whole.items():
        mine = [each for rows in epochs for each in rows if each[0] == k]
        last = max(mine, key=lambda each: (-1 if each[1] is None else each[1], each[2]))
        assert tuple(row.values()) == last


@drawn(100)
@given(WITHIN, LATE, sources())
def test_the_first_rows_of_keys_in_order_do_not_depend_on_the_cut(
    within: int | None, late: str, source: tuple[int, list[list[Row]]]
) -> None:
    epochs = source[1]
    rows = iter(sorted((row for rows in epochs for row in rows), key=lambda row: row[1] or 0))
    ordered = [[next(rows) for _ in each] for each in epochs]
    make, operator = distinct("first", within, late)
    whole = emitted(make, operator, [[row for rows in ordered for row in rows]], 0)
    assert Counter(map(str, emitted(make, operator, ordered, 0))) == Counter(map(str, whole))


# A view and a purchase at each time, and a purchase counts some time later.
VIEWS = [[(0, time, 0), (0, time, 1)] for time in range(24)]


@example("t", "t2").via("both columns")
@given(st.sampled_from(["t", "t2", "either"]), st.sampled_from(["t", "t2", "either"]))
@drawn(9)
def test_a_window_behind_two_joins(first: str, second: str) -> None:
    joined = Stage(Interval(first, 3, 5, "full"), (None, None))
    again = Stage(Interval(second, -6, 1, "left"), (0, None))
    check([joined, again, Stage(Window("window_end", ps.Tumbling(4)), (1,))], 0, VIEWS, [False])
