"""Watermarks follow the plan: rules one by one, and any pipeline against a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from pystate.checkpoint.refs import KEPT, InputState, OperatorState
from pystate.epochs.range_report import InputSeen
from pystate.epochs.watermarks import Holds, Input, Lag, OperatorTime, Watermarks, smallest
from tests.drawn import drawn

LEAST = -(1 << 63)
Rows = dict[str, tuple[int, int | None]]
"""Per operator: how many rows came, and their largest event time."""


@dataclass
class Job:
    """Epochs of a pipeline of operators with one input each, or with those that are given."""

    pipeline: dict[str, tuple[Input, ...]]
    stored: dict[str, OperatorState] = field(default_factory=dict)
    before_ms: int | None = None

    def epoch(self, now_ms: int, rows: Rows | None = None) -> dict[str, OperatorTime | None]:
        found = Watermarks(self.before_ms, now_ms)
        operators = []
        for uid, inputs in self.pipeline.items():
            stored = self.stored.get(uid)
            found.declare(uid, inputs, stored)
            known = () if stored is None else stored.inputs
            operators.append(OperatorState(uid, 1, (), (), (), inputs=known))
        seen = {uid: [InputSeen("input", *of)] for uid, of in (rows or {}).items()}
        self.stored = {op.uid: op for op in found.after(operators, seen)}
        self.before_ms = now_ms
        return {uid: found.time(uid) for uid in self.pipeline}

    def marks(self) -> dict[str, int | None]:
        return {uid: op.watermark_ms for uid, op in self.stored.items()}


def time(late: int | None, mark: int | None) -> OperatorTime:
    return OperatorTime(late, mark)


SOURCE = Input(event_time=True)


def behind(*uids: str, **how: object) -> Input:
    return Input(upstream=uids, source=False, **how)  # type: ignore[arg-type]


# -- the rules


def test_a_source_is_behind_the_newest_row_of_the_epochs_before() -> None:
    job = Job({"a": (Input(event_time=True, allowed_delay_ms=5),)})
    assert job.epoch(0, {"a": (1, 100)}) == {"a": time(None, None)}
    assert job.epoch(1, {"a": (1, 300)}) == {"a": time(95, 95)}
    assert job.epoch(2, {"a": (1, None)}) == {"a": time(295, 295)}
    assert job.marks() == {"a": 295}
    # Neither a larger delay nor older rows take it back; a smaller delay counts at once.
    job.pipeline["a"] = (Input(event_time=True, allowed_delay_ms=50),)
    assert job.epoch(3, {"a": (1, 7)}) == {"a": time(295, 295)}
    job.pipeline["a"] = (SOURCE,)
    assert job.epoch(4) == {"a": time(300, 300)}


def test_operators_fed_by_others_are_where_these_are_in_the_same_epoch() -> None:
    job = Job({"a": (SOURCE,), "b": (behind("a", event_time=True),), "c": (behind("b"),)})
    assert set(job.epoch(0, {"a": (1, 10)}).values()) == {time(None, None)}
    found = job.epoch(1, {"a": (1, 20)})
    assert found == {"a": time(10, 10), "b": time(None, 10), "c": time(None, 10)}
    found = job.epoch(2)
    assert found == {"a": time(20, 20), "b": time(10, 20), "c": time(10, 20)}
    assert job.marks() == {"a": 20, "b": 20, "c": 20}
    # Only a delay of its own holds it back.
    job.pipeline["c"] = (behind("b", allowed_delay_ms=15),)
    job.epoch(3, {"a": (1, 50)})
    assert job.epoch(4)["c"] == time(20, 35)


def test_the_smallest_of_several() -> None:
    job = Job({"a": (SOURCE,), "b": (SOURCE,), "c": (behind("a", "b"),)})
    job.epoch(0, {"a": (1, 10)})
    assert job.epoch(1, {"b": (1, 5)})["c"] == time(None, None)
    assert job.epoch(2)["c"] == time(None, 5)
    assert job.epoch(3, {"b": (1, 30)})["c"] == time(5, 5)
    assert job.epoch(4)["c"] == time(5, 10)


def test_a_mixed_input_is_behind_its_own_rows_too() -> None:
    mixed = Input(event_time=True, upstream=("a",))
    job = Job({"a": (SOURCE,), "m": (mixed,)})
    job.epoch(0, {"a": (1, 10), "m": (1, 3)})
    assert job.marks()["m"] is None  # nothing of the operator before it is done yet
    assert job.epoch(1, {"m": (1, 90)})["m"] == time(None, 3)
    assert job.marks()["m"] == 10
    assert job.epoch(2, {"a": (1, 70)})["m"] == time(10, 10)
    assert job.epoch(3)["m"] == time(10, 70)


def test_without_event_time_there_is_no_watermark() -> None:
    job = Job(
        {
            "plain": (Input(),),
            "behind it": (behind("plain"),),
            "timed": (SOURCE,),
            "mixed": (Input(upstream=("timed",)),),
            "of both": (behind("timed", "plain"),),
            "timed of both": (behind("timed", "plain", event_time=True),),
            "source": (behind("plain", event_time=True),),
            "one input": (behind("timed"), Input("other")),
        }
    )
    rows = dict.fromkeys(job.pipeline, (1, 10))
    job.epoch(0, rows)
    found = job.epoch(1, rows)
    assert [uid for uid, of in found.items() if of] == ["timed", "timed of both", "source"]
    assert found["source"] == time(10, 10) and found["timed of both"] == time(None, 10)
    # What is not timed any more has no watermark any more.
    job.pipeline["timed"] = (Input(),)
    job.epoch(2, rows)
    assert job.marks()["timed"] is None and smallest(job.stored.values()) == 10


def test_several_inputs_and_those_that_are_idle() -> None:
    left, right = Input("left", event_time=True), Input("right", event_time=True, idle_after_ms=30)
    found = Watermarks(None, 0)
    found.declare("j", (left, right), None)
    operator = OperatorState("j", 1, (), (), ())
    seen = [InputSeen("left", 1, 50), InputSeen("left", 2, 60), InputSeen("right", 1, 10)]
    [operator] = found.after([operator], {"j": seen})
    assert operator.inputs == (InputState("left", 60, 0), InputState("right", 10, 0))
    assert (operator.watermark_ms, operator.max_event_time_ms) == (10, 60)
    marks = []
    for before, now, seen in (
        (0, 29, [InputSeen("left", 1, 70)]),
        (29, 30, [InputSeen("left", 1, 80)]),
        (30, 31, [InputSeen("right", 1, 12)]),
        (31, 70, []),
    ):
        found = Watermarks(before, now)
        found.declare("j", (left, right), operator)
        [operator] = found.after([operator], {"j": seen})
        marks.append((found.time("j"), operator.watermark_ms))
    # It is left out from the end of the epoch on in which it has been without rows for so long.
    assert marks == [(time(10, 10), 10), (time(10, 10), 80), (time(80, 80), 80), (time(80, 80), 80)]
    assert operator.inputs[1] == InputState("right", 12, 31)


def test_an_idle_branch_holds_nothing_back_and_stays_where_it_is() -> None:
    idle = Input(event_time=True, idle_after_ms=30)
    job = Job({"a": (SOURCE,), "b": (idle,), "c": (behind("a", "b"),), "d": (behind("b"),)})
    job.epoch(0, {"a": (1, 10), "b": (1, 5)})
    assert job.epoch(20, {"a": (1, 20)})["c"] == time(None, 5)
    # At the end of this one b has been idle for 30 ms: c may go on where a was.
    assert job.epoch(30, {"a": (1, 30)})["c"] == time(5, 5)
    found = job.epoch(40, {"a": (1, 40)})
    assert found["c"] == time(20, 30) and found["b"] == found["d"] == time(5, 5)
    # A row ends it: the others wait for b again, but do not go back.
    job.epoch(50, {"a": (1, 50), "b": (1, 12)})
    found = job.epoch(60)
    assert (found["b"], found["c"], found["d"]) == (time(12, 12), time(40, 40), time(5, 12))


def test_an_input_that_never_had_rows_is_idle_after_its_first_epoch() -> None:
    idle = Input(event_time=True, idle_after_ms=30)
    job = Job({"a": (SOURCE,), "b": (idle,), "c": (behind("a", "b"),)})
    for now in (1_000, 1_029):
        job.epoch(now, {"a": (1, 10)})
    assert job.epoch(1_030)["c"] == time(None, None)
    assert job.epoch(1_031)["c"] == time(10, 10)
    assert job.marks() == {"a": 10, "b": None, "c": 10}


def test_a_delay_beyond_64_bits() -> None:
    job = Job({"a": (Input(event_time=True, allowed_delay_ms=9),)})
    job.epoch(0, {"a": (1, LEAST + 3)})
    assert job.marks() == {"a": LEAST}


def test_an_output_that_is_behind_holds_back_what_it_feeds() -> None:
    late = behind("a", event_time=True, allowed_delay_ms=2, holds={"a": Lag(7)})
    job = Job({"a": (SOURCE,), "b": (late,), "c": (behind("b"),)})
    job.epoch(0, {"a": (1, 10)})
    assert job.epoch(1, {"a": (1, 20)}) == {
        "a": time(10, 10),
        "b": time(None, 1),
        "c": time(None, 1),
    }
    assert job.epoch(2) == {"a": time(20, 20), "b": time(1, 11), "c": time(1, 11)}
    # A checkpoint from before there were holds goes on from where it is.
    job.pipeline["b"] = (behind("a", holds={"a": Lag(50)}),)
    assert job.epoch(3, {"a": (1, 55)})["b"] == time(11, 11)
    assert job.epoch(4)["b"] == time(11, 11)
    assert job.epoch(5, {"a": (1, LEAST)})["b"] == time(11, 11)
    job.pipeline["b"] = (behind("a"),)
    assert job.epoch(6)["b"] == time(11, 55)


def test_what_an_operator_keeps_holds_back_what_it_feeds() -> None:
    job = Job({"a": (SOURCE,), "b": (behind("a", holds={"a": Lag(3, kept=True)}),)})
    told = iter([None, (8,), (8, None), (30, 14), (None, None), None, None])

    def epoch(latest: int) -> OperatorTime | None:
        kept = next(told)
        found = Watermarks(job.before_ms, 0)
        operators = []
        for uid, inputs in job.pipeline.items():
            stored = job.stored.get(uid)
            found.declare(uid, inputs, stored)
            operators.append(OperatorState(uid, 1, (), (), ()))
            if stored is not None:
                operators[-1] = OperatorState(uid, 1, (), (), (), inputs=stored.inputs)
        parts = [InputSeen("input", 1, latest)]
        parts += [InputSeen(KEPT, 0, each) for each in kept or ()]
        after = found.after(operators, {"a": parts})
        job.stored = {op.uid: op for op in after}
        assert after[0].max_event_time_ms == max(latest, 0)
        return found.time("b")

    assert [epoch(latest) for latest in (10, 20, 30, 40, 50, 60)] == [
        time(None, None),
        time(None, None),  # nobody has said yet what is kept
        time(7, 8),  # 8 is kept
        time(8, 8),
        time(14, 14),
        time(37, 47),  # nothing is kept: only what late rows begin may be older
    ]
    # The tasks of the last epoch were not asked: b waits.
    assert epoch(70) == time(47, 47)


def test_rows_of_a_loop_in_flight_hold_back_what_reads_them() -> None:
    reads = Input(event_time=True, allowed_delay_ms=2, loops=("loop",))
    stored: dict[str, OperatorState] = {}
    found = []
    for latest, in_flight in ((10, None), (20, 5), (30, 25), (40, None), (50, None)):
        marks, operators = Watermarks(0, 0), []
        for uid, inputs in (("loop", ()), ("a", (reads,)), ("b", (behind("a"),))):
            marks.declare(uid, inputs, stored.get(uid))
            known = stored[uid].inputs if uid in stored else ()
            operators.append(OperatorState(uid, 1, (), (), (), inputs=known))
        seen = {"a": [InputSeen("input", 1, latest)], "loop": [InputSeen(KEPT, 0, in_flight)]}
        found.append(marks.time("a"))
        stored = {op.uid: op for op in marks.after(operators, seen)}
        assert stored["loop"].watermark_ms is None
    assert found == [
        time(None, None),
        time(8, 8),
        time(8, 8),  # 5 is late already
        time(25, 25),
        time(38, 38),
    ]


def test_holds_by_column() -> None:
    holds = Holds({"end": None, "start": Lag(1)}, Lag(2))
    assert [holds.of(name) for name in ("end", "start", "other", None)] == [
        None,
        Lag(1),
        Lag(2),
        Lag(2),
    ]


def test_the_smallest_of_a_checkpoint() -> None:
    assert smallest([]) is None
    marks = (None, 7, -3, None)
    assert smallest(OperatorState("x", 1, (), (), (), watermark_ms=m) for m in marks) == -3


# -- any pipeline


def pipelines() -> st.SearchStrategy[dict[str, tuple[Input, ...]]]:
    @st.composite
    def made(draw: st.DrawFn) -> dict[str, tuple[Input, ...]]:
        pipeline: dict[str, tuple[Input, ...]] = {}
        for uid in "abcde"[: draw(st.integers(1, 5))]:
            upstream = draw(st.sets(st.sampled_from(sorted(pipeline)))) if pipeline else set()
            pipeline[uid] = (
                Input(
                    event_time=draw(st.booleans()),
                    allowed_delay_ms=draw(st.sampled_from([0, 0, 5])),
                    idle_after_ms=draw(st.sampled_from([None, 1, 20])),
                    upstream=tuple(sorted(upstream)),
                    source=not upstream or draw(st.booleans()),
                ),
            )
        return pipeline

    return made()


def rows() -> st.SearchStrategy[Rows]:
    some = st.tuples(st.integers(1, 2), st.none() | st.integers(0, 100))
    return st.dictionaries(st.sampled_from("abcde"), some)


class Model:
    """The rules, told by what has happened since the first epoch."""

    def __init__(self, pipeline: dict[str, tuple[Input, ...]]) -> None:
        self.pipeline = {uid: one for uid, (one,) in pipeline.items()}
        self.latest: dict[str, int] = {}
        self.active: dict[str, int] = {}
        self.mark: dict[str, int | None] = dict.fromkeys(pipeline)
        self.now: int | None = None
        self.timed: set[str] = set()
        for uid, one in self.pipeline.items():
            fed = set(one.upstream) & self.timed
            if one.event_time or (fed and not self.of_source(one)):
                self.timed.add(uid)

    def of_source(self, one: Input) -> bool:
        return one.source or not set(one.upstream) <= self.timed

    def at(self, uid: str, reached: dict[str, int | None]) -> tuple[int | None, bool]:
        """Where the operator's input is, and whether it is idle."""
        one, silent_ms = self.pipeline[uid], (self.now or 0) - self.active.get(uid, 1 << 60)
        if one.idle_after_ms is not None and silent_ms >= one.idle_after_ms:
            return None, True
        fed_by = [up for up in one.upstream if up in self.timed]
        waits = [reached[up] for up in fed_by if not self.at(up, reached)[1]]
        if self.of_source(one):
            waits.append(self.latest.get(uid))
        if not waits:
            return None, True
        if None in waits:
            return None, False
        return min(w for w in waits if w is not None) - one.allowed_delay_ms, False

    def epoch(self, now: int, rows: Rows) -> dict[str, OperatorTime | None]:
        reached: dict[str, int | None] = {}
        found: dict[str, OperatorTime | None] = dict.fromkeys(self.pipeline)
        for uid in [uid for uid in self.pipeline if uid in self.timed]:
            here, _ = self.at(uid, reached)
            known = [mark for mark in (self.mark[uid], here) if mark is not None]
            reached[uid] = max(known, default=None)
            follows = set(self.pipeline[uid].upstream) & self.timed
            found[uid] = time(self.mark[uid] if follows else reached[uid], reached[uid])
        for uid in self.pipeline:
            count, latest = rows.get(uid, (0, None))
            if count or uid not in self.active:
                self.active[uid] = now
            if latest is not None:
                self.latest[uid] = max(latest, self.latest.get(uid, latest))
        self.now = now
        for uid in reached:
            here, _ = self.at(uid, reached)
            known = [mark for mark in (reached[uid], here) if mark is not None]
            self.mark[uid] = max(known, default=None)
        return found


def le(one: int | None, other: int | None) -> bool:
    return one is None or (other is not None and one <= other)


@drawn(300)
@given(pipelines(), st.lists(st.tuples(st.integers(0, 12), rows()), min_size=1, max_size=12))
def test_any_pipeline_is_as_the_model_says(
    pipeline: dict[str, tuple[Input, ...]], epochs: Sequence[tuple[int, Rows]]
) -> None:
    job, model, now = Job(pipeline), Model(pipeline), 0
    last: dict[str, OperatorTime | None] = dict.fromkeys(pipeline)
    for pause, seen in epochs:
        now += pause
        stored, before = job.stored, job.before_ms
        found = job.epoch(now, seen)
        assert found == model.epoch(now, seen)
        assert job.marks() == model.mark
        # Computed again it is the same, whatever rows came the first time.
        again = Job(pipeline, stored, before)
        assert again.epoch(now, {"a": (1, 999)}) == found
        for uid, here in found.items():
            then = last[uid]
            if here is not None:
                assert le(here.late_bound_ms, here.watermark_ms)
                assert le(here.watermark_ms, job.marks()[uid])
            if here is not None and then is not None:
                assert le(then.watermark_ms, here.late_bound_ms)
        last = found
