"""The events of the auction house, and the results that the queries are compared with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.nexmark import generate

pytest.importorskip("duckdb", reason="needs the package duckdb: pip install duckdb")

from bench.nexmark import reference
from bench.nexmark.generate import FIRST_ID, GROUP, KINDS, SCHEMAS, Events, Generator, Plan
from bench.nexmark.reference import QUERIES, Parameters, canonical, expected

PLAN = Plan(100_000)


@pytest.fixture(scope="module")
def events() -> Events:
    return Generator(PLAN).chunk(0, PLAN.events)


def joined(chunks: list[Events]) -> Events:
    return Events(*map(pa.concat_tables, zip(*chunks, strict=True)))


def equal(one: Events, other: Events) -> bool:
    return all(a.equals(b) for a, b in zip(one, other, strict=True))


def ms(table: pa.Table, name: str = "date_time") -> Any:
    micros = table[name].cast(pa.int64()).to_numpy()
    assert not np.any(micros % 1000)
    return micros // 1000


# -- the generator


def test_a_seed_says_all(events: Events) -> None:
    assert equal(events, Generator(Plan(100_000)).chunk(0, PLAN.events))
    other = Generator(Plan(100_000, seed=2)).chunk(0, PLAN.events)
    assert not any(a.equals(b) for a, b in zip(events, other, strict=True))


@pytest.mark.parametrize("size", [3, 49, 50, 333])
def test_chunks_of_any_size_hold_the_same(size: int) -> None:
    generator = Generator(Plan(1_000))
    assert equal(joined(list(generator.chunks(size))), generator.chunk(0, 1_000))


def test_proportions_and_schemas(events: Events) -> None:
    assert [table.num_rows for table in events] == [2_000, 6_000, 92_000]
    for kind, table in zip(KINDS, events, strict=True):
        assert table.schema.equals(SCHEMAS[kind])
        assert all(column.null_count == 0 for column in table.columns)


def test_ids_follow_each_other_and_what_is_named_exists(events: Events) -> None:
    for table in (events.person, events.auction):
        ids = table["id"].to_numpy()
        assert ids.tolist() == list(range(FIRST_ID, FIRST_ID + table.num_rows))
    # The newest person and auction when each event was made.
    persons = FIRST_ID + np.arange(events.auction.num_rows) // 3
    assert np.all(events.auction["seller"].to_numpy() <= persons)
    assert events.auction["seller"].to_numpy().min() == FIRST_ID
    groups = np.arange(events.bid.num_rows) // 46
    assert np.all(events.bid["bidder"].to_numpy() <= FIRST_ID + groups)
    assert np.all(events.bid["auction"].to_numpy() <= FIRST_ID + groups * 3 + 2)


@pytest.mark.parametrize("disorder_ms", [0, 5, 1_000])
def test_disorder_is_bounded_and_there(disorder_ms: int) -> None:
    plan = Plan(50_000, disorder_ms=disorder_ms)
    events = Generator(plan).chunk(0, plan.events)
    place = np.arange(plan.events) % GROUP
    times = np.empty(plan.events, np.int64)
    for kind, there in zip(events, (place < 1, (place > 0) & (place < 4), place > 3), strict=True):
        times[there] = ms(kind)
    behind = np.maximum.accumulate(times) - times
    assert behind.max() <= disorder_ms
    assert behind.max() >= 0.8 * disorder_ms
    assert times.min() >= plan.first_ms - disorder_ms
    assert times.max() <= plan.first_ms + plan.events * 1_000 // plan.events_per_second


def test_few_keys_are_hot(events: Events) -> None:
    for name, share in (("auction", 0.5), ("bidder", 0.75)):
        _, counts = np.unique(events.bid[name].to_numpy(), return_counts=True)
        hottest = np.sort(counts)[::-1][: len(counts) // 50]
        assert abs(hottest.sum() / counts.sum() - share) < 0.1
    texts = events.bid["channel"].to_pylist()
    hot = sum(not text.startswith("channel-") for text in texts)
    assert abs(hot / len(texts) - 0.5) < 0.01


def test_prices_and_lengths_are_in_range(events: Events) -> None:
    prices = events.bid["price"].to_numpy()
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    assert abs(np.mean(prices < 100_000) - 0.5) < 0.01
    lengths = ms(events.auction, "expires") - ms(events.auction)
    assert lengths.min() >= 1
    assert lengths.max() <= PLAN.longest_auction_ms
    assert np.all(events.auction["reserve"].to_numpy() > events.auction["initial_bid"].to_numpy())


def test_files_hold_the_events(tmp_path: Path) -> None:
    assert generate.write(Plan(1_000), tmp_path, 300, parts=2) == [300, 300, 300, 100]
    files = sorted((tmp_path / "bid").iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.stem for path in files[:3]] == ["00000-0", "00000-1", "00001-0"]
    found = Events(**{kind: data.to_table() for kind, data in reference.stored(tmp_path).items()})
    assert equal(found, Generator(Plan(1_000)).chunk(0, 1_000))
    assert expected("q9", reference.stored(tmp_path)).equals(expected("q9", found))


# -- the references, on events made by hand


def table(kind: str, rows: list[dict[str, Any]], **more: Any) -> pa.Table:
    """Rows with defaults; times are in milliseconds."""
    columns: dict[str, Any] = {}
    for field in SCHEMAS[kind]:
        default: Any = "" if field.type == pa.string() else 0
        values = [row.get(field.name, default) for row in rows]
        if pa.types.is_timestamp(field.type):
            values = [value * 1000 for value in values]
        columns[field.name] = pa.array(values, field.type)
    return pa.table({**columns, **{name: pa.array(values) for name, values in more.items()}})


def bids(*rows: tuple[int, int, int, int], **more: Any) -> pa.Table:
    """Bids of (auction, bidder, price, time)."""
    names = ("auction", "bidder", "price", "date_time")
    return table("bid", [dict(zip(names, row, strict=True)) for row in rows], **more)


def auctions(*rows: tuple[int, int, int, int, int]) -> pa.Table:
    """Auctions of (id, seller, category, time, expires)."""
    names = ("id", "seller", "category", "date_time", "expires")
    return table("auction", [dict(zip(names, row, strict=True)) for row in rows])


def persons(*rows: tuple[int, str, str, int]) -> pa.Table:
    """Persons of (id, name, state, time)."""
    names = ("id", "name", "state", "date_time")
    return table("person", [dict(zip(names, row, strict=True)) for row in rows])


def result(name: str, parameters: Parameters | None = None, **events: pa.Table) -> list[Any]:
    """The rows of a result, as tuples."""
    given = () if parameters is None else (parameters,)
    found = expected(name, events, *given)
    assert found.schema.equals(QUERIES[name].schema)
    return [tuple(row.values()) for row in found.to_pylist()]


def test_q3_joins_whatever_comes_first() -> None:
    found = result(
        "q3",
        person=persons((1, "a", "OR", 50), (2, "b", "NV", 0), (3, "c", "CA", 0), (4, "d", "ID", 0)),
        auction=auctions((7, 1, 10, 5, 9), (8, 1, 11, 5, 9), (9, 2, 10, 5, 9), (5, 3, 10, 5, 9)),
    )
    assert found == [("a", "", "OR", 7), ("c", "", "CA", 5)]


VALIDITY = {
    "auction": auctions((1, 70, 10, 100, 200), (2, 71, 10, 100, 200), (3, 72, 11, 0, 10)),
    "bid": bids(
        (1, 5, 900, 99),
        (1, 5, 300, 100),
        (1, 6, 400, 200),
        (1, 4, 400, 150),
        (1, 3, 400, 150),
        (1, 5, 901, 201),
        (2, 5, 301, 150),
        (3, 5, 1, 11),
        (4, 5, 1, 11),
    ),
}


def test_q4_counts_valid_bids_and_rounds_down() -> None:
    assert result("q4", **VALIDITY) == [(10, 2, 701, 350)]


def test_q9_prefers_the_price_then_the_time_then_the_bidder() -> None:
    assert result("q9", **VALIDITY) == [
        (1, 70, 10, 100, 200, 3, 400, 150),
        (2, 71, 10, 100, 200, 5, 301, 150),
    ]


def test_q5_gives_all_of_the_hottest_in_each_window() -> None:
    bid = bids((1, 0, 1, 10), (1, 0, 1, 11), (2, 0, 1, 12), (2, 0, 1, 13), (3, 0, 1, 14))
    assert result("q5", Parameters(window_ms=4, slide_ms=2), bid=bid) == [
        (8, 12, 1, 2),
        (10, 14, 1, 2),
        (10, 14, 2, 2),
        (12, 16, 2, 2),
        (14, 18, 3, 1),
    ]


def test_q5_with_a_window_that_is_no_multiple_of_its_slide() -> None:
    bid = bids((1, 0, 1, 10), (2, 0, 1, 11))
    assert result("q5", Parameters(window_ms=3, slide_ms=2), bid=bid) == [
        (8, 11, 1, 1),
        (10, 13, 1, 1),
        (10, 13, 2, 1),
    ]


def test_q7_gives_all_of_the_highest_in_each_window() -> None:
    bid = bids((1, 5, 7, 9), (1, 5, 8, 10), (2, 6, 8, 19), (3, 6, 7, 15), (3, 6, 1, 20))
    assert result("q7", Parameters(window_ms=10), bid=bid) == [
        (0, 10, 1, 5, 7, 9),
        (10, 20, 1, 5, 8, 10),
        (10, 20, 2, 6, 8, 19),
        (20, 30, 3, 6, 1, 20),
    ]


def test_q8_needs_both_in_one_window() -> None:
    found = result(
        "q8",
        Parameters(window_ms=10),
        person=persons((1, "a", "", 9), (2, "b", "", 10), (3, "c", "", 11), (4, "d", "", 12)),
        auction=auctions((1, 1, 0, 10, 0), (2, 2, 0, 19, 0), (3, 2, 0, 11, 0), (4, 3, 0, 20, 0)),
    )
    assert found == [(10, 20, 2, "b")]


def test_q11_sessions_do_not_touch() -> None:
    bid = bids((1, 1, 1, 16), (1, 1, 1, 0), (1, 1, 1, 5), (1, 2, 1, 5), (1, 1, 1, 5))
    assert result("q11", Parameters(gap_ms=5), bid=bid) == [
        (1, 0, 10, 3),
        (1, 16, 21, 1),
        (2, 5, 10, 1),
    ]


def test_q12_counts_by_the_time_of_processing() -> None:
    rows = [(1, 1, 1, 99), (1, 1, 1, 0), (1, 1, 1, 0), (1, 2, 1, 0)]
    bid = bids(*rows, processed_ms=[19, 20, 10, 29])
    assert result("q12", Parameters(window_ms=10), bid=bid) == [
        (1, 10, 20, 2),
        (1, 20, 30, 1),
        (2, 20, 30, 1),
    ]


def test_q18_keeps_the_last_and_of_equal_times_the_largest() -> None:
    bid = bids((1, 1, 9, 5), (1, 1, 2, 6), (1, 1, 3, 6), (2, 1, 4, 0), (1, 2, 5, 0))
    assert [row[:4] for row in result("q18", bid=bid)] == [(1, 1, 6, 3), (1, 2, 0, 4), (2, 1, 0, 5)]


def test_q19_ranks_by_price_then_time_then_bidder() -> None:
    bid = bids((1, 1, 5, 3), (1, 3, 5, 2), (1, 2, 5, 2), (1, 9, 9, 9), (2, 1, 1, 1))
    assert [row[:5] for row in result("q19", Parameters(top=3), bid=bid)] == [
        (1, 1, 9, 9, 9),
        (1, 2, 2, 5, 2),
        (1, 3, 3, 5, 2),
        (2, 1, 1, 1, 1),
    ]


def test_q20_joins_at_any_time_and_filters() -> None:
    found = result(
        "q20",
        auction=auctions((1, 70, 10, 100, 200), (2, 71, 11, 0, 500)),
        bid=bids((1, 5, 7, 1), (2, 5, 7, 1), (3, 5, 7, 1), (1, 6, 8, 900)),
    )
    assert [(row[0], row[1], row[2], row[3], row[7]) for row in found] == [
        (1, 5, 7, 1, 70),
        (1, 6, 8, 900, 70),
    ]


@pytest.mark.parametrize("name", QUERIES)
def test_each_query_has_a_result(events: Events, name: str) -> None:
    bid = events.bid
    if name == "q12":
        bid = bid.append_column("processed_ms", pa.array(np.arange(bid.num_rows)))
    given = events._replace(bid=bid)
    whole = expected(name, given)
    assert whole.num_rows > 0
    # Only what is said to be read is needed, and the order of events says nothing.
    kinds = {kind: getattr(given, kind) for kind in QUERIES[name].reads}
    rng = np.random.default_rng(1)
    mixed = {kind: t.take(rng.permutation(t.num_rows)) for kind, t in kinds.items()}
    assert expected(name, mixed).equals(whole)


def test_results_of_others_are_brought_into_order() -> None:
    right = expected("q12", {"bid": bids((1, 2, 1, 0), (1, 1, 1, 0), processed_ms=[5, 5])})
    other = pa.table(
        {
            "more": ["", ""],
            "bids": pa.array([1, 1], pa.int32()),
            "end_ms": [10_000, 10_000],
            "start_ms": [0, 0],
            "bidder": [2, 1],
        }
    )
    assert canonical("q12", other).equals(right)
    with pytest.raises(KeyError):
        canonical("q12", other.drop_columns("bids"))


# -- the same queries on Spark

ROOT = Path(__file__).parents[2]

REFUSAL = """
from pyspark.errors import AnalysisException

from bench.nexmark.generate import Plan
from bench.nexmark.reference import Parameters
from bench.nexmark.run import write_input
from bench.nexmark.spark_sql import REFUSED, streams
from bench.spark_jobs import session, started

with session() as (spark, folder):
    given = write_input(Plan(2_000), folder / "input", 1_000)
    for name, (query, _) in REFUSED.items():
        made = streams(spark, folder / "input" / "closed", given.plan, 2, watermark=True)
        for mode in ("append", "update", "complete"):
            writer = query.build(made, Parameters(), given.plan).writeStream.outputMode(mode)
            try:
                started(writer.foreachBatch(lambda frame, batch: None), folder / name / mode)
            except AnalysisException as error:
                print(name, mode, error.getCondition())
            else:
                raise AssertionError(f"{name} was started in {mode} mode")
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def test_every_query_is_one_of_those_that_spark_can_or_cannot_express() -> None:
    pytest.importorskip("pyspark")
    from bench.nexmark.spark_sql import REFUSED, STREAMS

    assert sorted([*STREAMS, *REFUSED]) == sorted(QUERIES)


@pytest.mark.slow
def test_pystate_and_spark_find_the_same() -> None:
    done = python("-m", "bench.nexmark", "--events", "60000", "--chunk", "15000")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:-1]] == list(QUERIES)
    assert done.stdout.count("  right\n") == len(QUERIES)


@pytest.mark.slow
def test_spark_refuses_what_is_said_to_be_refused() -> None:
    done = python("-c", REFUSAL)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["q4", mode] for mode in ("append", "update", "complete")
    ]
