"""The harness for windowed aggregations."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, SchemaError

COLUMNS = "user string, at timestamp, v long"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def after(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


def test_rows_times_and_late_rows() -> None:
    with made(KINDS["aggregates"], allowed_lateness="10 min") as harness:
        assert harness.process([("a", after(1), 1), ("a", after(12), 2)]) == []
        # As in a job, what an epoch's rows have ended is emitted by the next one.
        assert harness.process([{"user": "a", "at": after(16), "v": 4}]) == []
        assert harness.watermark == after(11).timestamp() * 1000
        [one] = harness.process([])
        assert one == ("a", after(0), after(10), 1, 1) and one.window_start == after(0)
        [again] = harness.process([("a", after(2), 8)])
        assert again == ("a", after(0), after(10), 2, 9) and harness.late_rows == 1
        assert harness.process([("a", after(30), 0)]) == []
        [two] = harness.process([("a", after(3), 9)])
        assert two[3:] == (2, 6)
        assert harness.late == [("a", after(3), 9)] and harness.late_rows == 2
        assert harness.kept == 2
        assert [row[3:] for row in harness.drain()] == [(1, 0)]
        assert [row[3:] for row in harness.output] == [(1, 1), (2, 9), (2, 6), (1, 0)]


LATE_KINDS: dict[str, dict[str, Any]] = {
    "aggregate": {"aggregates": {"n": ps.count()}},
    "process": {
        "process": lambda key, window, batch: [(key, batch.num_rows)],
        "schema": "user string, n long",
        "side_outputs": ["own"],
    },
}


@pytest.mark.parametrize("kind", LATE_KINDS)
def test_rows_that_are_too_late_go_to_a_side_output(kind: str) -> None:
    with made(LATE_KINDS[kind], late="late") as harness:
        harness.process([("a", after(1), 1), ("a", after(20), 2)])
        assert harness.side_output("late") == []
        harness.fail_at("publish")
        [first] = harness.process([("a", after(2), 3), ("a", after(21), 4)])
        assert first[-1] == 1
        [late] = harness.side_output("late")
        assert late == ("a", after(2), 3) and late.v == 3
        assert harness.late == [late] == harness.side_outputs["late"]
        snapshot = harness.snapshot()
    with ps.testing.WindowHarness.restore(snapshot, ps.Tumbling("10 min")) as restored:
        restored.process([("a", after(3), 5)])
        assert [row.v for row in restored.side_output("late")] == [5]
    with made(LATE_KINDS[kind]) as dropping:
        dropping.process([("a", after(20), 2)])
        dropping.process([("a", after(2), 3)])
        assert len(dropping.late) == 1 and "late" not in dropping.side_outputs


@pytest.mark.parametrize(
    ("late", "message"),
    [
        ("process", "late is 'drop' or the tag of a side output: .* allowed_lateness= says"),
        ("own", "'own' is the tag of rows that are too late"),
        (3, "late is a string, not 3"),
    ],
)
def test_a_choice_for_late_rows_that_windows_do_not_take(late: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        made(LATE_KINDS["process"], late=late)


def test_processing_time_and_updates() -> None:
    with ps.testing.WindowHarness(
        ps.Tumbling("1 min"), {"n": ps.count()}, "user", columns="user string", time="processing"
    ) as harness:
        assert harness.process([("a",), ("a",)]) == []
        [row] = harness.advance_processing_time(dt.timedelta(minutes=1))
        assert row[3] == 2
    with pytest.raises(InvalidArgumentError, match="event time"):
        ps.testing.WindowHarness(
            ps.Tumbling("1 min"), {"n": ps.count()}, "user", columns="user string"
        )


EARLIER = [("a", after(1), 1), ("b", after(2), 4), ("a", after(12), 2), ("a", after(16), 5)]


@pytest.mark.parametrize("windows", [ps.Tumbling("10 min"), ps.Session("3 min")])
@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize("by_function", [False, True])
def test_rows_before_the_first_epoch(windows: Any, emit: Any, by_function: bool) -> None:
    given: dict[str, Any] = {"aggregates": {"n": ps.count(), "v": ps.sum("v")}}
    if by_function:

        def process(key: Any, window: Any, rows: Any, ctx: Any) -> Any:
            ctx.output("sizes", (len(rows),))
            yield key, window.start, rows.num_rows, sum(rows.column("v").to_pylist())

        given = {"process": process, "schema": "k string, at long, n long, v long"}
        given["side_outputs"] = ["sizes"]

    def make(**more: Any) -> ps.testing.WindowHarness:
        return ps.testing.WindowHarness(
            windows,
            key="user",
            columns=COLUMNS,
            event_time="at",
            allowed_delay="5 min",
            allowed_lateness="1 min",
            emit=emit,
            **given,
            **more,
        )

    with make(initial_rows=EARLIER) as begun, make() as plain:
        plain.process(EARLIER)
        plain.process([])
        assert begun.epoch == 0 and begun.output == [] and plain.epoch == 2
        assert begun.late == [] and not any(begun.side_outputs.values())
        assert begun.watermark == plain.watermark == after(11).timestamp() * 1000
        assert begun.kept == plain.kept
        sides = {tag: len(rows) for tag, rows in plain.side_outputs.items()}
        # The last one is late: its window was over before the first epoch.
        rows = [("a", after(17), 7), ("b", after(30), 9), ("b", after(2), 1)]
        assert begun.process(rows) == plain.process(rows)
        assert len(begun.late) == 1 and begun.late == plain.late
        found = begun.advance_watermark(after(90))
        assert found == plain.advance_watermark(after(90)) and bool(found) == (emit == "final")
        for tag, count in sides.items():
            assert begun.side_outputs[tag] == plain.side_outputs[tag][count:]
    with pytest.raises(InvalidArgumentError, match="the harness's input"):
        make(initial_rows=3)


def mean(key: Any, window: Any, rows: Any, ctx: Any) -> Any:
    ctx.output("sizes", (len(rows),))
    yield key, window.start, sum(rows.column("v").to_pylist()) / len(rows)


KINDS: dict[str, dict[str, Any]] = {
    "aggregates": {"aggregates": {"n": ps.count(), "v": ps.sum("v")}},
    "function": {
        "process": mean,
        "schema": "k string, at long, mean double",
        "side_outputs": {"sizes": "n long"},
    },
}


def made(given: dict[str, Any], **more: Any) -> ps.testing.WindowHarness:
    return ps.testing.WindowHarness(
        ps.Tumbling("10 min"),
        key="user",
        columns=COLUMNS,
        event_time="at",
        allowed_delay="5 min",
        **given,
        **more,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_from_a_snapshot_with_another_parallelism(kind: str) -> None:
    rows = [(f"u{i % 7}", after(i), i) for i in range(20)]
    with made(KINDS[kind], parallelism=2) as harness:
        harness.process(rows)
        snapshot = harness.snapshot()
        assert snapshot.epoch == 1
        expected = sorted(harness.process([("u0", after(1), 5)]))
        late = harness.late_rows
        sides = {tag: sorted(found) for tag, found in harness.side_outputs.items()}
    assert expected and late
    for parallelism in (1, 3):
        with ps.testing.WindowHarness.restore(
            pickle.loads(pickle.dumps(snapshot)), ps.Tumbling("10 min"), parallelism=parallelism
        ) as harness:
            assert (harness.epoch, harness.output) == (1, [])
            assert sorted(harness.process([("u0", after(1), 5)])) == expected
            assert harness.late_rows == late
            assert {t: sorted(found) for t, found in harness.side_outputs.items()} == sides


def test_windows_may_get_another_aggregate_over_the_same_state() -> None:
    with made({"aggregates": {"v": ps.sum("v")}}) as harness:
        harness.process([("a", after(1), 3), ("a", after(2), 4)])
        snapshot = harness.snapshot()
    restore = ps.testing.WindowHarness.restore
    with restore(snapshot, ps.Tumbling("10 min"), {"v": ps.sum("v")}) as harness:
        assert [row.v for row in harness.drain()] == [7]
    # A maximum is kept in a column of the same type, and is no sum.
    with pytest.raises(SchemaError, match=r"^operator '.*', state '.*': stored as Sum\(\) of "):
        restore(snapshot, ps.Tumbling("10 min"), {"v": ps.max("v")})
    with pytest.raises(InvalidArgumentError, match="restore takes what snapshot"):
        restore("a snapshot", ps.Tumbling("10 min"))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["seal", "publish", 2])
def test_an_epoch_that_fails_is_computed_again(kind: str, point: Any) -> None:
    rows = [("a", after(i), i) for i in range(20)]
    with made(KINDS[kind]) as plain, made(KINDS[kind]) as harness:
        for epoch in (rows, rows[-1:]):
            if isinstance(point, int):
                harness.fail_after(point - 1)
            else:
                harness.fail_at(point)
            assert harness.process(epoch) == plain.process(epoch)
        assert (harness.failures, plain.failures) == (2, 0)
        assert harness.late == plain.late and harness.side_outputs == plain.side_outputs
        assert harness.late_rows == plain.late_rows
