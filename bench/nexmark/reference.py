"""What each query means, and its result over all events, recomputed at once by DuckDB.

All times are event time in milliseconds since 1970, except those of q12. A window contains its
start and not its end; windows begin at whole multiples of their slide since 1970, and a window
without rows has no result. Nothing is late: every event counts. Where a stream would correct a
result, the last correction is what is given here. Prices are whole cents.

=====  =============================================================================================
q3     Who sells in the states of `Parameters.states`, and which auctions of the category: a row per
       auction of that category whose seller registered with such a state, whenever that was.
q4     What an auction of a category brings on average. A bid is valid if its time is neither before
       the auction opened nor after it expired; both ends count. The price of an auction is its
       highest valid bid; auctions without one are left out. The average is rounded down.
q5     In each sliding window, the auctions with most bids; all of them, if there are several.
q7     In each tumbling window, the bids of the highest price; all of them, if there are several.
q8     In each tumbling window, the persons who registered and opened an auction within it.
q9     For each auction its winning bid: the valid bid (see q4) with the highest price; of several,
       the earliest, and then the one with the smallest bidder.
q11    For each bidder the sessions of bids, and how many bids each has. A bid belongs to the same
       session as the bidder's previous one if it is at most `Parameters.gap_ms` later, so that
       sessions neither overlap nor touch. A session ends that gap after its last bid.
q12    How many bids each bidder made in each tumbling window of processing time. The events have to
       say when each bid was processed, in the column `processed_ms` of `bid`: the processing time
       of the epoch that it was part of.
q18    For each bidder and auction the last bid: the one with the largest time; of several, the one
       with the largest (price, channel, url, extra), compared in this order.
q19    For each auction its bids of the highest prices, at most `Parameters.top`, with their rank
       from 1 on. Of equal prices the earlier is first, then the smaller bidder, then the larger
       extra.
q20    Each bid with its auction, of the auctions of the category, whenever either was made.
=====  =============================================================================================

The results are tables in a canonical order of columns and rows, which `canonical` gives to the
result of any other implementation, so that right ones are equal. Text is compared by its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from bench.nexmark.generate import KINDS, Events

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Source: TypeAlias = "pa.Table | ds.Dataset"


@dataclass(frozen=True)
class Parameters:
    """The constants: windows of q5, q7, q8 and q12, sessions of q11, ranks of q19, filters."""

    window_ms: int = 10_000
    slide_ms: int = 2_000
    gap_ms: int = 10_000
    top: int = 10
    category: int = 10
    states: tuple[str, ...] = ("OR", "ID", "CA")


TEXTS = {"name", "city", "state", "channel", "url", "extra", "item_name"}
"""Columns of results that are text; all others are long."""


@dataclass(frozen=True)
class Query:
    """A query, as DuckDB computes it.

    `reads` are kinds of events, `columns` those of its result; in `sql` the names of parameters
    stand after dollar signs.
    """

    title: str
    reads: tuple[str, ...]
    columns: str
    sql: str

    @property
    def schema(self) -> pa.Schema:
        """The schema of its result."""
        names = self.columns.split()
        return pa.schema([(one, pa.string() if one in TEXTS else pa.int64()) for one in names])


_VALID = "b.auction = a.id AND b.at_ms BETWEEN a.at_ms AND a.expires_ms"
_TUMBLING = "at_ms // $window_ms * $window_ms"

QUERIES: Mapping[str, Query] = {
    "q3": Query(
        "local item suggestion",
        ("person", "auction"),
        "name city state auction",
        """
        SELECT p.name, p.city, p.state, a.id AS auction
        FROM auction AS a JOIN person AS p ON a.seller = p.id
        WHERE a.category = $category AND list_contains($states, p.state)
        """,
    ),
    "q4": Query(
        "average price per category",
        ("auction", "bid"),
        "category auctions total average",
        f"""
        WITH won AS (
            SELECT a.id, a.category, max(b.price) AS price
            FROM auction AS a JOIN bid AS b ON {_VALID} GROUP BY a.id, a.category
        )
        SELECT category, count(*) AS auctions, sum(price) AS total,
               sum(price) // count(*) AS average
        FROM won GROUP BY category
        """,
    ),
    "q5": Query(
        "hot items",
        ("bid",),
        "start_ms end_ms auction bids",
        """
        WITH counted AS (
            SELECT at_ms // $slide_ms * $slide_ms - back * $slide_ms AS start_ms, auction,
                   count(*) AS bids
            FROM bid, range(($window_ms + $slide_ms - 1) // $slide_ms) AS steps(back)
            WHERE at_ms // $slide_ms * $slide_ms - back * $slide_ms + $window_ms > at_ms
            GROUP BY ALL
        )
        SELECT start_ms, start_ms + $window_ms AS end_ms, auction, bids FROM counted
        QUALIFY bids = max(bids) OVER (PARTITION BY start_ms)
        """,
    ),
    "q7": Query(
        "highest bid",
        ("bid",),
        "start_ms end_ms auction bidder price at_ms",
        f"""
        SELECT {_TUMBLING} AS start_ms, {_TUMBLING} + $window_ms AS end_ms, auction, bidder, price,
               at_ms
        FROM bid QUALIFY price = max(price) OVER (PARTITION BY {_TUMBLING})
        """,
    ),
    "q8": Query(
        "new sellers",
        ("person", "auction"),
        "start_ms end_ms person name",
        f"""
        WITH registered AS (SELECT id, name, {_TUMBLING} AS start_ms FROM person),
             opened AS (SELECT DISTINCT seller, {_TUMBLING} AS start_ms FROM auction)
        SELECT r.start_ms, r.start_ms + $window_ms AS end_ms, r.id AS person, r.name
        FROM registered AS r JOIN opened AS o ON o.seller = r.id AND o.start_ms = r.start_ms
        """,
    ),
    "q9": Query(
        "winning bids",
        ("auction", "bid"),
        "auction seller category opened_ms expires_ms bidder price at_ms",
        f"""
        SELECT a.id AS auction, a.seller, a.category, a.at_ms AS opened_ms, a.expires_ms, b.bidder,
               b.price, b.at_ms
        FROM auction AS a JOIN bid AS b ON {_VALID}
        QUALIFY row_number() OVER (
            PARTITION BY a.id ORDER BY b.price DESC, b.at_ms ASC, b.bidder ASC
        ) = 1
        """,
    ),
    "q11": Query(
        "sessions of bidders",
        ("bid",),
        "bidder start_ms end_ms bids",
        """
        WITH paused AS (
            SELECT bidder, at_ms,
                   at_ms - lag(at_ms) OVER (PARTITION BY bidder ORDER BY at_ms) > $gap_ms AS pause
            FROM bid
        ), numbered AS (
            SELECT bidder, at_ms, count(*) FILTER (pause) OVER (
                PARTITION BY bidder ORDER BY at_ms RANGE UNBOUNDED PRECEDING
            ) AS session
            FROM paused
        )
        SELECT bidder, min(at_ms) AS start_ms, max(at_ms) + $gap_ms AS end_ms, count(*) AS bids
        FROM numbered GROUP BY bidder, session
        """,
    ),
    "q12": Query(
        "bids per window of processing time",
        ("bid",),
        "bidder start_ms end_ms bids",
        """
        SELECT bidder, processed_ms // $window_ms * $window_ms AS start_ms,
               processed_ms // $window_ms * $window_ms + $window_ms AS end_ms, count(*) AS bids
        FROM bid GROUP BY ALL
        """,
    ),
    "q18": Query(
        "last bid of each bidder on each auction",
        ("bid",),
        "bidder auction at_ms price channel url extra",
        """
        SELECT bidder, auction, at_ms, price, channel, url, extra FROM bid
        QUALIFY row_number() OVER (
            PARTITION BY bidder, auction
            ORDER BY at_ms DESC, price DESC, channel DESC, url DESC, extra DESC
        ) = 1
        """,
    ),
    "q19": Query(
        "highest bids of each auction",
        ("bid",),
        "auction rank bidder price at_ms extra",
        """
        SELECT auction, row_number() OVER (
                   PARTITION BY auction ORDER BY price DESC, at_ms ASC, bidder ASC, extra DESC
               ) AS rank, bidder, price, at_ms, extra
        FROM bid QUALIFY rank <= $top
        """,
    ),
    "q20": Query(
        "bids with their auctions",
        ("auction", "bid"),
        "auction bidder price at_ms channel url item_name seller category opened_ms expires_ms",
        """
        SELECT b.auction, b.bidder, b.price, b.at_ms, b.channel, b.url, a.item_name, a.seller,
               a.category, a.at_ms AS opened_ms, a.expires_ms
        FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.category = $category
        """,
    ),
}
"""All queries by name."""


def stored(folder: Path) -> dict[str, Source]:
    """The events that `generate.write` wrote into a folder, by kind; they are read when needed."""
    return {kind: ds.dataset(folder / kind, format="parquet") for kind in KINDS}


def expected(
    name: str, events: Events | Mapping[str, Source], parameters: Parameters = Parameters()
) -> pa.Table:
    """The right result of a query over all events, in canonical order.

    All kinds that the query reads are needed; for q12, `bid` has another column, `processed_ms`.
    """
    query = QUERIES[name]
    given = events._asdict() if isinstance(events, Events) else events
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        for kind in query.reads:
            connection.register(f"{kind}_events", given[kind])
            expires = ", epoch_ms(expires) AS expires_ms" if kind == "auction" else ""
            connection.execute(
                f"CREATE VIEW {kind} AS "
                f"SELECT *, epoch_ms(date_time) AS at_ms{expires} FROM {kind}_events"
            )
        return canonical(
            name, connection.sql(with_constants(query.sql, parameters)).to_arrow_table()
        )


def with_constants(sql: str, parameters: Parameters) -> str:
    """A query's text with the parameters' values in it."""
    values: dict[str, Any] = {**vars(parameters), "states": list(parameters.states)}
    for name, value in values.items():
        sql = sql.replace(f"${name}", str(value))
    return sql


def canonical(name: str, result: pa.Table) -> pa.Table:
    """A result of a query, with the columns and types of the reference, and its rows in order.

    Right results of the same query over the same events are equal; columns may come in any order,
    and integers may have another type.
    """
    schema = QUERIES[name].schema
    table = result.select(schema.names).cast(schema)
    order: Any = [(column, "ascending") for column in schema.names]
    return table.sort_by(order).combine_chunks()
