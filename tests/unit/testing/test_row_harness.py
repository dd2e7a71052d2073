"""The harness of `deduplicate` and `top`."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, WrongTypeError
from tests.lag import Lag
from tests.unit.testing.disturbed import disturbed

pytestmark = pytest.mark.usefixtures("table_home")


@pytest.mark.parametrize("act", ["", "rows", "publish", "restore 1", "restore 3"])
def test_top(act: str) -> None:
    """Random rows are those of tests/model; here an epoch is disturbed, and rows came before."""
    operator = ps.testing.Top(2, by="n", descending=[False])
    harness = ps.testing.RowHarness(
        operator,
        "k",
        columns="k string, n long, i long",
        initial_rows=[("a", 5, -1), (None, 1, -1)],
    )
    assert harness.process([("a", 7, 0)]) == [("a", 5, -1, 1), ("a", 7, 0, 2)]
    with disturbed(harness, act, operator) as harness:
        found = harness.process([("a", 5, 1), ("a", 9, 1), (None, 0, 1), ("b", 3, 1)])
        assert sorted(map(tuple, found), key=repr) == [
            *(("a", 5, -1, 1), ("a", 5, 1, 2), ("b", 3, 1, 1)),
            *((None, 0, 1, 1), (None, 1, -1, 2)),
        ]
        assert sorted(harness.keys(), key=repr) == ["a", "b", None]


def test_deduplicate_by_event_time_with_earlier_rows() -> None:
    with ps.testing.RowHarness(
        ps.testing.Deduplicate("10 s"),
        ["id"],
        columns="id string, at long",
        event_time="at",
        allowed_delay="2 s",
        late="late",
        initial_rows=[("a", 5_000), ("b", 9_000)],
        parallelism=2,
    ) as harness:
        assert harness.watermark == 7_000 and harness.output == []
        found = harness.process([("a", 15_000), ("a", 14_999), ("b", 18_999), ("c", 6_999)])
        assert sorted(map(tuple, found)) == [("a", 15_000)]
        assert harness.side_output("late") == [("c", 6_999)] and harness.late_rows == 1
        harness.advance_watermark(60_000)
        assert harness.kept == 0
        assert repr(harness) == "<RowHarness of DeduplicateSpec after 2 epochs>"


def test_deduplicate_by_processing_time() -> None:
    with ps.testing.RowHarness(
        ps.testing.Deduplicate("1 min", keep="last"), "id", columns="id string, v long"
    ) as harness:
        assert harness.process([("a", 1), ("a", 2)]) == [("a", 2)]
        assert harness.process([("a", 3)]) == [("a", 3)]
        harness.advance_processing_time(dt.timedelta(minutes=2))
        with pytest.raises(InvalidArgumentError, match="never goes back"):
            harness.advance_processing_time(5)


def test_bad_arguments() -> None:
    def make(operator: Any, **given: Any) -> None:
        options: dict[str, Any] = {"columns": "k string, n long, s array<long>"} | given
        ps.testing.RowHarness(operator, "k", **options).close()

    make(ps.testing.Top(1, ["n"]))
    for operator, match in (
        (7, "no ps.testing.Deduplicate or Top"),
        (ps.testing.Top(0, "n"), "k"),
        (ps.testing.Top(1, "s"), "'s' is list<.*, which has no order here"),
        (ps.testing.Top(1, "m"), "top: by: 'm' is not a column; columns: k, n, s"),
        (ps.testing.Top(1, ["n", "k"]), "'k' is a column of the key"),
        (ps.testing.Top(1, ["n", "n"]), "twice"),
        (ps.testing.Top(1, "n", rank="N"), "the input has a column 'N'"),
        (ps.testing.Top(1, ["n"], [True, False]), "2 values for 1"),
        (ps.testing.Deduplicate(0), "within"),
        (ps.testing.Deduplicate(keep="middle"), "keep"),  # type: ignore[arg-type]
    ):
        with pytest.raises((InvalidArgumentError, WrongTypeError), match=match):
            make(operator)
    with pytest.raises(InvalidArgumentError, match=r"is not a column; .*did you mean 'at'\?"):
        make(ps.testing.Deduplicate(), columns="k string, at timestamp", event_time="att")
    with pytest.raises(InvalidArgumentError, match="event_time='column'"):
        make(ps.testing.Deduplicate(), late="drop")
    with (
        ps.testing.RowHarness(ps.testing.Deduplicate(), "k", columns="k string") as harness,
        pytest.raises(InvalidArgumentError, match="timers"),
    ):
        harness.fail_after(timers=1)


@pytest.mark.parametrize("seed", range(4))
def test_top_of_updates_equals_a_recomputation(seed: int) -> None:
    """Counts go up and down, and only the newest row of a thing counts, also within an epoch."""
    generator = random.Random(seed)
    top = ps.testing.Top(2, by=["n", "url"], by_key=["url", "hour"])
    columns = "hour long, url string, at timestamp, n double"
    newest: dict[tuple[Any, Any], Any] = {}
    table: dict[tuple[Any, int], tuple[Any, ...]] = {}
    run = ps.testing.RowHarness(top, "hour", columns=columns, parallelism=2, batch_rows=3)
    try:
        for _ in range(6):
            rows = [
                (
                    generator.choice([1, 2, None]),
                    generator.choice(["a", "b", "c", None]),
                    None,
                    generator.choice([1.0, 2.0, 3.5, float("nan"), None]),
                )
                for _ in range(generator.randrange(7))
            ]
            newest.update({(row[0], row[1]): row[3] for row in rows})
            if generator.random() < 0.3:
                run.fail_at("publish")
            for hour, url, _, n, rank in run.process(rows):
                table[hour, rank] = url, n
            if generator.random() < 0.3:
                run = disturbed(run, "restore 3", top)
    finally:
        run.close()
    found = {at: (url, repr(n)) for at, (url, n) in table.items()}
    assert found == {
        (hour, rank): (url, repr(n))
        for hour in {hour for hour, _ in newest}
        for rank, (url, n) in enumerate(best_of(newest, hour), 1)
    }


def best_of(newest: dict[tuple[Any, Any], Any], hour: Any) -> list[tuple[Any, Any]]:
    """The two best: NaN above all numbers, nulls last, then by the text."""

    def order(item: tuple[Any, Any]) -> tuple[Any, ...]:
        url, n = item
        return (
            n is not None,
            0 if n is None else n != n,
            0.0 if n is None or n != n else n,
            url is not None,
            url or "",
        )

    rows = [(url, n) for (of, url), n in newest.items() if of == hour]
    return sorted(rows, key=order, reverse=True)[:2]


def test_the_columns_that_say_which_row_replaces_which_exist() -> None:
    top = ps.testing.Top(2, by="n", by_key="link")
    with pytest.raises(InvalidArgumentError, match=r"by_key: 'link' is not a column; .* url, n"):
        ps.testing.RowHarness(top, "hour", columns="hour long, url string, n long")


def test_an_operation_that_the_harness_does_not_know() -> None:
    with ps.testing.RowHarness(
        Lag("n"), "k", columns="k struct<a: long>, n long", parallelism=3
    ) as harness:
        assert harness.process([({"a": 1}, 5), ({"a": 1}, 6), ({"a": 2}, 7)]) == [
            ((1,), 5, None),
            ((1,), 6, 5),
            ((2,), 7, None),
        ]
        assert harness.process([({"a": 1}, 8)]) == [((1,), 8, 6)]
