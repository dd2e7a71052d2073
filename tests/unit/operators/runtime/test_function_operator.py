"""Functions over batches: shapes, event time, late rows, side outputs."""

from __future__ import annotations

import pickle
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.base.notes import notes_of
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    NoCurrentKeyError,
    WrongTypeError,
)
from pystate.operators.functions.binding import has_timers
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.output import (
    OUTPUT_ROWS,
    OutputColumns,
    RowsAsYielded,
    parse_columns,
)
from pystate.operators.runtime.task import TaskContext
from pystate.testing import Harness

COLUMNS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])


class Count(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + row.v)
        yield key, self.n.value(), ctx.timestamp


class CountRows(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + sum(batch.column("v").to_pylist()))
        yield key, self.n.value(), ctx.timestamp


class CountVector(ps.VectorizedFunction):
    n = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.add(keys, batch.column("v"))
        return {"k": batch.column("k"), "n": self.n.values(keys), "t": [ctx.timestamp] * len(keys)}


def of(process: Any, base: Any = ps.KeyedProcessFunction, name: str = "Of", **more: Any) -> Any:
    """A function with a number, and with these members."""
    return type(name, (base,), {"n": ps.ValueState("long"), "process": process, **more})()


class Run:
    """One epoch of a function over rows (k, v, at)."""

    def __init__(
        self,
        function: Any,
        *batches: Sequence[tuple[Any, ...]],
        output: Any = None,
        watermark: int | None = None,
        time: OperatorTime | None = None,
        drain: bool = False,
        **options: Any,
    ) -> None:
        self.sides: dict[str, list[Any]] = {}
        spec = FunctionSpec(
            function, ("k",), ("k", "v", "at"), output or RowsAsYielded(), **options
        )
        if type(function).__qualname__ in globals():
            spec = pickle.loads(pickle.dumps(spec))
        with ps.KeyedStateBackend(
            {"k": "string"}, timers=has_timers(function), uid="one"
        ) as backend:
            time = time or OperatorTime(watermark, watermark)
            self.task = TaskContext(
                backend, processing_time=5_000, time=time, drain=drain, side=self._side
            )
            self.runtime = FunctionOperator(spec)
            self.runtime.open(self.task)
            pieces: list[Any] = []
            try:
                for rows in batches:
                    arrays = [
                        pa.array([row[i] for row in rows], field.type)
                        for i, field in enumerate(COLUMNS)
                    ]
                    pieces += self.runtime.process(pa.record_batch(arrays, schema=COLUMNS))
                pieces += self.runtime.finish()
                self.state = {
                    key: backend["n"].value()
                    for key in backend
                    if backend.set_current_key(key) is None
                }
            finally:
                self.runtime.close()
        self.pieces = pieces

    def _side(self, tag: str, piece: Any) -> None:
        self.sides.setdefault(tag, []).append(piece)

    @property
    def rows(self) -> list[Any]:
        return [row for piece in self.pieces for row in piece]


ROWS = [("a", 1, 10), ("b", 2, 20), ("a", 3, None)]


# -- shapes


def test_rows_one_by_one_by_key_and_in_batches() -> None:
    batches = ROWS[:2], ROWS[2:]
    assert Run(Count(), *batches).rows == [("a", 1, None), ("b", 2, None), ("a", 4, None)]
    run = Run(CountRows(), *batches)
    assert (run.rows, run.state) == ([("a", 4, None), ("b", 2, None)], {"a": 4, "b": 2})
    [first, second] = Run(CountVector(), *batches).pieces
    assert first["n"].to_pylist() == [1, 2] and second["n"].to_pylist() == [4]


BATCH = pa.record_batch({"k": ["a"], "n": [1]})


def returning(value: Any, method: str) -> Any:
    """A function of which one method returns a value."""
    vectorized = method.startswith("vectorized.")
    members: dict[str, Any] = {
        "n": ps.ValueState("long"),
        method.removeprefix("vectorized."): lambda *_: value,
    }
    if method == "on_timer":
        members["process"] = lambda self, key, row, ctx: ctx.register_processing_time_timer(0)
    return type("Odd", (ps.VectorizedFunction if vectorized else ps.KeyedProcessFunction,), members)


@pytest.mark.parametrize("method", ["process", "process_rows", "on_timer"])
@pytest.mark.parametrize(
    "value",
    [("a", 1), (("a", 1),), 5, "ab", b"ab", {"k": ["a"]}, BATCH, pa.table(BATCH)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_returned_in_place_of_rows_is_refused(method: str, value: Any) -> None:
    function = returning(value, method)()
    batch = isinstance(value, (pa.RecordBatch, pa.Table))
    end = "a VectorizedFunction emits batches" if batch else "return a list of them"
    for output in (RowsAsYielded(), parse_columns("k string, n long", "operator 'one'")):
        with pytest.raises(WrongTypeError, match=end) as raised:
            Run(function, ROWS, output=output)
        text = str(raised.value)
        assert text.startswith(f"operator 'one': Odd.{method} returned ")
        assert f" of type {type(value).__name__}: " in text and "\n" not in text
        assert "yield rows" in text and text.endswith(end)
    with Harness(function, key="k", uid="one") as harness:
        # Seen through by what injects failures, too.
        harness.fail_after(5)
        with pytest.raises(WrongTypeError, match=rf"'one': Odd.{method} returned"):
            harness.process([{"k": "a", "v": 1}])
        harness.fail_after(0)
        with pytest.raises(WrongTypeError, match=rf"'one': Odd.{method} returned"):
            harness.process([{"k": "a", "v": 1}])


@pytest.mark.parametrize("method", ["process", "process_rows", "on_timer"])
def test_whatever_can_be_gone_through_is_returned(method: str) -> None:
    rows = [("a", 1), ("b", 2)]
    for value in (rows, deque(rows), dict.fromkeys(rows).keys(), (), [], None):
        found = Run(returning(value, method)(), [("a", 1, 10)]).rows
        assert found == list(value or [])


def failing(**methods: Any) -> ps.KeyedProcessFunction:
    """A function that writes a text into a number's state where a value is 3."""

    def fail(self: Any, value: Any) -> None:
        if value == 3:
            self.n.update("wrong")

    members = {"n": ps.ValueState("int", default=0), "fail": fail, **methods}
    return type("Failing", (ps.KeyedProcessFunction,), members)()  # type: ignore[no-any-return]


class OneColumn(ps.KeyedProcessFunction):
    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield (key,)


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (failing(process=lambda f, key, row, ctx: f.fail(row.v)), "process of {}: key 'c'"),
        (
            failing(process_rows=lambda f, key, batch, ctx: f.fail(batch["v"][0].as_py())),
            "process_rows of {}: key 'c'",
        ),
        (
            failing(
                process=lambda f, key, row, ctx: ctx.register_processing_time_timer(row.v),
                on_timer=lambda f, key, timestamp, ctx: f.fail(timestamp),
            ),
            "on_timer of {}: key 'c', timer 3",
        ),
    ],
)
def test_an_error_of_a_call_says_where_it_happened(function: Any, where: str) -> None:
    with pytest.raises(WrongTypeError, match="state 'n' is int") as raised:
        Run(function, [("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("d", 4, 4)])
    assert notes_of(raised.value) == ["in Failing." + where.format("operator 'one'")]


def test_an_error_of_the_output_names_the_key_and_the_place_of_the_function() -> None:
    columns = parse_columns("k string, n long", "operator 'one'")
    by = rf"by OneColumn.process \({re.escape(__file__)}, line \d+\)"
    with pytest.raises(
        WrongTypeError, match=f"yielded 1 values.*; yielded for key 'a' {by}"
    ) as raised:
        Run(OneColumn(), [("a", 1, 1)], output=columns)
    assert not notes_of(raised.value)


class Misspelt(ps.KeyedProcessFunction):
    clicks = ps.ValueState("int", default=0)
    seen = ps.ValueState("int")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        if row.v == 1:
            self.click.update(1)  # type: ignore[attr-defined]
        row.v.bit_lenght()


def test_a_misspelt_state_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match="no attribute 'click'") as raised:
        Run(Misspelt(), [("a", 1, 1)])
    assert notes_of(raised.value) == [
        "in Misspelt.process of operator 'one': key 'a'; states of Misspelt: 'clicks', 'seen'; "
        "did you mean 'clicks'?"
    ]
    assert not hasattr(Misspelt(), "click")
    with pytest.raises(AttributeError, match="bit_lenght") as raised:
        Run(Misspelt(), [("a", 2, 1)])
    assert notes_of(raised.value) == ["in Misspelt.process of operator 'one': key 'a'"]


class FailingVector(ps.VectorizedFunction):
    def process(self, keys: ps.KeyBatch, rows: Any, ctx: ps.RuntimeContext) -> Any:
        yield {"k": rows.column("k"), "n": [1 // 0]}


def test_an_error_of_a_batch_says_where_it_happened() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        Run(FailingVector(), [("a", 1, 1), ("b", 2, 2)])
    assert notes_of(raised.value) == [
        "in FailingVector.process of operator 'one': a batch of 2 rows"
    ]


class Typed(ps.KeyedProcessFunction):
    """Yields a text for a number of one key, by the way that is said."""

    n = ps.ValueState("long", default=0)

    def __init__(self, way: str) -> None:
        self.way = way

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        if self.way == "timer":
            ctx.register_processing_time_timer(1)
            return []
        wrong = {"value": "x", "null": None, "row": {"k": key, "n": "x"}}
        good: list[Any] = [(key, 1), (key, 2)]
        if key == "c":
            good.insert(1, wrong["row"] if self.way == "row" else (key, wrong[self.way]))
        return good

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, "x" if key == "c" else 1


@pytest.mark.parametrize(
    ("way", "what", "method"),
    [
        ("value", "declared long and got 'x' of type str", "process"),
        ("row", "declared long and got 'x' of type str", "process"),
        ("null", "declared not null and got a null", "process"),
        ("timer", "declared long and got 'x' of type str", "on_timer"),
    ],
)
def test_a_wrong_value_names_its_key_among_many(way: str, what: str, method: str) -> None:
    columns = parse_columns("k string, n long not null", "operator 'one'")
    match = f"operator 'one': column 'n' is {what}.*; yielded for key 'c' by Typed.{method} "
    with pytest.raises(WrongTypeError, match=match):
        Run(Typed(way), [(k, 1, 1) for k in "abcd"], output=columns)


def keyless(base: Any = ps.KeyedProcessFunction, **methods: Any) -> Any:
    """A function of which a method uses a state while no key is current."""
    fired = "on_timer" if base is ps.KeyedProcessFunction else "on_timers"
    methods[fired] = lambda self, keys, timestamps, ctx: self.n.value()
    return of(methods.pop("process", lambda *_: None), base, "Keyless", **methods)


def vector(process: Any) -> Any:
    return keyless(ps.VectorizedFunction, process=process)


def selecting(self: Any, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: Any) -> None:
    if batch.num_rows == 2:
        keys.select(1)
    self.n.update(7)


def yielding(self: Any, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: Any) -> Any:
    yield {"n": [self.n.value()]}


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (keyless(open=lambda self, ctx: self.n.value()), "none is in open"),
        (keyless(open=lambda self, ctx: self.n.update(1)), "none is in open"),
        (
            keyless(open=lambda self, ctx: ctx.register_processing_time_timer(1)),
            "none is in open",
        ),
        (vector(lambda self, *_: self.n.update(1)), r"values\(keys\) or .* keys.select\(i\)"),
        (vector(yielding), r"values\(keys\) or .* keys.select\(i\)"),
        (
            vector(lambda self, keys, rows, ctx: ctx.register_processing_time_timers(keys, 0)),
            r"values\(keys\) or .* keys.select\(i\)",
        ),
    ],
)
def test_without_a_key_a_function_is_told_what_it_can_do(function: Any, advice: str) -> None:
    with pytest.raises(NoCurrentKeyError, match=f"no key is current: .*{advice}") as raised:
        Run(function, ROWS)
    assert "set_current_key" not in str(raised.value)


def test_a_vectorised_function_selects_a_rows_key_for_the_call() -> None:
    assert Run(vector(selecting), ROWS[:2]).state == {"b": 7}
    with pytest.raises(NoCurrentKeyError, match=r"keys.select\(i\)"):
        Run(vector(selecting), ROWS[:2], ROWS[:1])


@pytest.mark.parametrize("value", [5, "ab"])
def test_what_is_no_batch_is_refused(value: Any) -> None:
    with pytest.raises(WrongTypeError, match=f"'one': Odd.process returned {value!r} .* Record"):
        Run(returning(value, "vectorized.process")(), ROWS)
    assert len(Run(returning((BATCH, BATCH), "vectorized.process")(), ROWS).pieces) == 2


@pytest.mark.parametrize("function", [Count(), CountRows(), CountVector()])
def test_an_epoch_without_rows(function: Any) -> None:
    assert Run(function).pieces == []
    assert Run(function, []).pieces == []


def test_many_emitted_rows_leave_in_pieces() -> None:
    many = of(lambda self, key, row, ctx: iter([(1,)] * (OUTPUT_ROWS // 2 + 1)))
    sizes = [len(piece) for piece in Run(many, ROWS * 2).pieces]
    assert sizes == [OUTPUT_ROWS + 2] * 3


def test_columns_are_checked() -> None:
    columns = OutputColumns(pa.schema([("k", pa.string()), ("n", pa.int32())]), "operator 'one'")
    with pytest.raises(WrongTypeError, match=r"operator 'one' yielded 3 values.*2 columns: k, n"):
        Run(Count(), ROWS, output=columns)
    assert Run(Count(), ROWS, output=RowsAsYielded()).rows
    with pytest.raises(WrongTypeError, match="2 columns"):
        Run(Count(), ROWS, output=RowsAsYielded(columns))


# -- event time


def test_the_timestamp_is_each_rows_own() -> None:
    run = Run(Count(), ROWS, event_time="at")
    assert run.rows == [("a", 1, 10), ("b", 2, 20), ("a", 4, None)]
    assert (run.task.latest["input"], run.task.late_rows) == (20, 0)
    assert run.runtime.context.timestamp is None


@pytest.mark.parametrize("function", [CountRows(), CountVector()])
def test_a_call_with_several_rows_has_no_timestamp(function: Any) -> None:
    run = Run(function, ROWS, event_time="at")
    assert run.runtime.context.timestamp is None and run.task.latest["input"] == 20


def test_without_rows_there_is_no_event_time() -> None:
    assert Run(Count(), event_time="at").task.latest == {}
    assert Run(Count(), [("a", 1, None)], event_time="at").task.latest == {"input": None}


def test_late_rows_are_counted_and_handled_like_others() -> None:
    run = Run(Count(), ROWS, [("b", 4, 3)], event_time="at", watermark=20)
    assert run.task.late_rows == 2
    assert run.state == {"a": 4, "b": 6}


class Between(ps.KeyedProcessFunction):
    """Yields the watermarks that it sees; the value expires in event time."""

    n = ps.ValueState("long", default=0, ttl=ps.StateTtl(milliseconds=15, time="event"))

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        return self.put(key, row.v, ctx)

    def put(self, key: Any, value: int, ctx: ps.RuntimeContext) -> Any:
        self.n.update(value)
        for timestamp in (40, 41):
            ctx.register_event_time_timer(timestamp)
        yield key, value, ctx.watermark

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, self.n.value(), ctx.watermark, timestamp


class BetweenRows(Between):
    """Handles the rows of a key at the end of the input."""

    process = ps.KeyedProcessFunction.process

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        return self.put(key, batch.column("v")[0].as_py(), ctx)


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("function", [Between(), BetweenRows()])
def test_rows_are_judged_by_the_late_bound_and_timers_fire_up_to_the_watermark(
    function: Any, drain: bool
) -> None:
    mark = ps.MAX_WATERMARK if drain else 40
    run = Run(
        function,
        [("a", 7, 20), ("b", 8, 19)],
        event_time="at",
        late="drop",
        time=OperatorTime(20, 40),
        drain=drain,
    )
    assert run.task.late_rows == 1
    fired = [("a", 7, mark, 40), ("a", 7, mark, 41)] if drain else [("a", 7, 40, 40)]
    assert run.rows == [("a", 7, 20), *fired]
    # The clock of times to live is the late bound: by the watermark the value had expired.
    assert run.state == {"a": 7}


@pytest.mark.parametrize("word", ["late", "drop"])
@pytest.mark.parametrize("function", [Count(), CountRows(), CountVector()])
def test_late_rows_are_counted_and_dropped_or_go_to_their_side_output(
    function: Any, word: str
) -> None:
    batches = [ROWS, [("b", 4, 3)], [("b", 8, 20)]]
    run = Run(function, *batches, event_time="at", watermark=20, late=word)
    assert (run.task.late_rows, run.task.latest["input"]) == (2, 20)
    assert run.state == {"a": 3, "b": 10}
    if word == "drop":
        assert run.sides == {}
    else:
        late = pa.Table.from_batches(run.sides["late"])
        assert late.schema == COLUMNS
        assert [tuple(row.values()) for row in late.to_pylist()] == [("a", 1, 10), ("b", 4, 3)]
    run = Run(function, *batches, event_time="at", late=word)
    assert (run.task.late_rows, run.state) == (0, {"a": 4, "b": 14})


def test_late_rows_take_the_declared_columns() -> None:
    columns = OutputColumns(
        pa.schema([("at", pa.int64()), ("v", pa.int16()), ("k", pa.string())]), "side output"
    )
    run = Run(
        Count(),
        ROWS,
        event_time="at",
        watermark=20,
        late="late",
        side_outputs={"late": columns},
    )
    [late] = run.sides["late"]
    assert late.to_pylist() == [{"at": 10, "v": 1, "k": "a"}]


def test_times_that_make_no_sense() -> None:
    with pytest.raises(InvalidArgumentError, match=r"event_time='when' is not a column.*k, v, at"):
        Run(Count(), event_time="when")
    with pytest.raises(InvalidArgumentError, match=r"late='late': .*event_time"):
        Run(Count(), late="late")
    with pytest.raises(WrongTypeError, match=r"operator 'one': event-time column 'k': .*string"):
        Run(Count(), ROWS, event_time="k")


# -- side outputs


class Router(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.output("even" if row.v % 2 == 0 else "odd", (key, row.v))


class VectorRouter(ps.VectorizedFunction):
    n = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        ctx.output("all", batch.select(["v", "k"]))
        ctx.output("all", {"v": [7], "k": ["dict"]})


def side(tag: str) -> OutputColumns:
    columns = pa.schema([("k", pa.string()), ("v", pa.int16())])
    return OutputColumns(columns, f"operator 'one', side output {tag!r}")


def test_side_outputs_are_typed_batches() -> None:
    run = Run(Router(), ROWS[:2], ROWS[2:], side_outputs={t: side(t) for t in ("even", "odd")})
    [even], [odd] = run.sides["even"], run.sides["odd"]
    assert even.schema == odd.schema == side("odd").schema
    assert even.to_pylist() == [{"k": "b", "v": 2}]
    assert odd.to_pylist() == [{"k": "a", "v": 1}, {"k": "a", "v": 3}]
    assert run.rows == []


def test_a_side_output_takes_batches() -> None:
    run = Run(VectorRouter(), ROWS, side_outputs={"all": side("all")})
    rows = [tuple(row.values()) for piece in run.sides["all"] for row in piece.to_pylist()]
    assert rows == [("a", 1), ("b", 2), ("a", 3), ("dict", 7)]


def test_side_outputs_leave_in_pieces() -> None:
    rows = [("a", 1, 0)] * (OUTPUT_ROWS + 1)
    run = Run(Router(), rows, side_outputs={"odd": side("odd")})
    assert [piece.num_rows for piece in run.sides["odd"]] == [OUTPUT_ROWS, 1]


def test_an_unknown_tag_lists_those_that_are_declared() -> None:
    with pytest.raises(InvalidArgumentError, match=r"no side output 'odd' .*declared: 'even', 'x'"):
        Run(Router(), ROWS, side_outputs={"even": side("even"), "x": side("x")})
    with pytest.raises(InvalidArgumentError, match="declared: none"):
        Run(Router(), ROWS)


def test_a_wrong_row_names_the_side_output() -> None:
    wrong = of(lambda self, key, row, ctx: ctx.output("bad", (key, "x")))
    with pytest.raises(WrongTypeError, match="side output 'bad': column 'v' is declared int16"):
        Run(wrong, ROWS, side_outputs={"bad": side("bad")})


class Aside(ps.KeyedProcessFunction):
    """Emits what does not fit, of one key."""

    n = ps.ValueState("long", default=0)

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def emit(self, key: Any, ctx: ps.RuntimeContext) -> None:
        ctx.output("bad", (key, 1))
        ctx.output("bad", self.wrong if key == "c" else (key, 2))


class AsideRow(Aside):
    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        self.emit(key, ctx)


class AsideRows(Aside):
    def process_rows(self, key: Any, batch: Any, ctx: ps.RuntimeContext) -> None:
        self.emit(key, ctx)


class AsideTimer(Aside):
    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_processing_time_timer(1)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> None:
        self.emit(key, ctx)


@pytest.mark.parametrize("wrong", [("c", "x"), {"k": "c", "w": 1}, ("c",), 7])
@pytest.mark.parametrize(
    ("kind", "method"),
    [(AsideRow, "process"), (AsideRows, "process_rows"), (AsideTimer, "on_timer")],
)
def test_a_wrong_row_of_a_side_output_names_its_key_and_method(
    kind: Any, method: str, wrong: Any
) -> None:
    line = getattr(kind, method).__code__.co_firstlineno
    match = (
        "^operator 'one', side output 'bad'.*; emitted for key 'c' by "
        rf"{kind.__name__}\.{method} \({re.escape(__file__)}, line {line}\)$"
    )
    with pytest.raises(WrongTypeError, match=match):
        Run(kind(wrong), [(k, 1, 1) for k in "abcd"], side_outputs={"bad": side("bad")})


class AsideBatch(ps.VectorizedFunction):
    def process(self, keys: Any, batch: Any, ctx: ps.RuntimeContext) -> None:
        ctx.output("bad", {"k": ["a"], "v": ["x"]})


def test_a_wrong_batch_of_a_side_output_names_its_method() -> None:
    with pytest.raises(WrongTypeError, match=r"side output 'bad': .*; emitted by AsideBatch\.proc"):
        Run(AsideBatch(), ROWS, side_outputs={"bad": side("bad")})


def test_side_outputs_need_somewhere_to_go() -> None:
    spec = FunctionSpec(Count(), ("k",), ("k",), RowsAsYielded(), side_outputs={"x": side("x")})
    with pytest.raises(InvalidArgumentError, match="side outputs and nowhere to go"):
        FunctionOperator(spec).open(TaskContext(ps.KeyedStateBackend({"k": "string"})))


# -- what a context refuses


def test_a_context_of_no_task() -> None:
    context = ps.RuntimeContext("one", 1, (0, 127), 1, 128, 0)
    with pytest.raises(InvalidArgumentError, match="belongs to no running task"):
        context.output("x", (1,))
    with pytest.raises(InvalidArgumentError, match="belongs to no running task"):
        context.register_event_time_timer(1)
    assert pickle.loads(pickle.dumps(context)) == context


def test_timers_of_a_function_without_on_timer() -> None:
    rows = of(lambda self, key, row, ctx: ctx.register_processing_time_timer(0), name="Rows")
    vector = of(
        lambda self, keys, batch, ctx: ctx.register_event_time_timers(keys, 1),
        ps.VectorizedFunction,
        "Vector",
    )
    with pytest.raises(DeclarationError, match=r"Rows uses timers and has no on_timer\(self, key"):
        Run(rows, ROWS)
    with pytest.raises(DeclarationError, match=r"Vector uses timers and has no on_timers\(self"):
        Run(vector, ROWS)


def test_namespaces_are_declared() -> None:
    undeclared = of(lambda self, key, row, ctx: ctx.set_namespace(1), name="Undeclared")
    wrong = of(Count.process, name="Wrong", namespace=object)
    with pytest.raises(DeclarationError, match="Undeclared declares no namespace"):
        Run(undeclared, ROWS)
    with pytest.raises(DeclarationError, match=r"Wrong\.namespace: objects are no namespaces"):
        Run(wrong, ROWS)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.timestamp("us", "UTC"), 1_700_000_000_000),
        (pa.timestamp("us"), 1.5),
        (pa.date32(), 19_000),
        (pa.float64(), True),
        (pa.float32(), 1e300),
        (pa.binary(), "text"),
        (pa.string(), b"bytes"),
    ],
)
def test_a_row_may_hold_what_a_batch_may(type: pa.DataType, value: Any) -> None:
    columns = OutputColumns(pa.schema([("x", type)]), "operator 'one'")
    with pytest.raises(WrongTypeError, match="column 'x' is declared"):
        columns.from_rows([(None,), (value,)])
    with pytest.raises(WrongTypeError, match="column 'x' is declared"):
        columns.from_value({"x": pa.array([value])})


@pytest.mark.slow
def test_rows_of_a_task_may_take_more_than_32_bits_of_text() -> None:
    rows, seen = 6, []

    class Wide(ps.KeyedProcessFunction):
        n = ps.ValueState("long")

        def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
            self.n.update(batch.num_rows)
            seen.append((key, batch.schema.field("k").type, len(batch.column("k")[0].as_py())))

    text = "x" * (400 << 20)
    spec = FunctionSpec(Wide(), ("v",), ("k", "v"), RowsAsYielded())
    with ps.KeyedStateBackend("long") as made:
        runtime = FunctionOperator(spec)
        runtime.open(TaskContext(made))
        for i in range(rows):
            batch = {"k": pa.array([text]), "v": pa.array([i])}
            assert list(runtime.process(pa.RecordBatch.from_pydict(batch))) == []
        assert list(runtime.finish()) == []
        runtime.close()
    assert seen == [(i, pa.string(), len(text)) for i in range(rows)]


def test_open_and_close_bracket_the_task_and_their_errors_say_whose_they_are() -> None:
    seen: list[str] = []

    def noting(name: str) -> Any:
        def method(self: Any, *context: Any) -> None:
            seen.append(f"{name} {'' if name == 'close' else context[-1].uid}")
            if name == failing:
                raise OSError("no")

        return method

    for failing, calls in (
        ("open", ["open one"]),
        ("process", ["open one", "process one", "close "]),
        ("close", ["open one", "process one", "close "]),
    ):
        methods = {name: noting(name) for name in ("open", "process", "close")}
        function = type("Fails", (Count,), methods)()
        with pytest.raises(OSError, match="no") as raised:
            Run(function, ROWS[:1])
        where = ": key 'a'" if failing == "process" else ""
        assert notes_of(raised.value) == [f"in Fails.{failing} of operator 'one'{where}"]
        assert seen == calls
        seen.clear()
