"""The queries as streams of Spark's own operators, where these can express them.

A query in append mode reads streams with a watermark, and its rows are final. One in update mode
corrects the rows of a key; the last correction counts. Neither has Python code that runs per row.

What Spark cannot express in one stream is in `REFUSED`, with the reason. Others have a price:

- q9 needs to know how long an auction may last. A group's rows are final when the watermark passes
  its time, and Spark derives from the join's condition how much later a bid may come; it can do so
  only if the condition limits the time of bids by a constant distance from the auction's.
- q18 and q19 keep their groups forever, as the queries ask; and q3 and q20 all rows of their joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as F

from bench.nexmark.generate import COLUMNS, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from bench.nexmark.generate import Plan
    from bench.nexmark.reference import Parameters

Streams: TypeAlias = "Mapping[str, DataFrame]"


@dataclass(frozen=True)
class StreamQuery:
    """A query as Spark computes it: a stream with the columns of the reference.

    With a `key`, the rows of a key are replaced by later ones (update mode). With watermarks, rows
    come when the watermark passes.
    """

    build: Callable[[Streams, Parameters, Plan], DataFrame]
    key: tuple[str, ...] = ()
    watermark: bool = False

    @property
    def mode(self) -> str:
        """Spark's output mode."""
        return "update" if self.key else "append"


def streams(
    spark: SparkSession, folder: Path, plan: Plan, files: int, *, watermark: bool
) -> Streams:
    """Streams of all kinds, with so many files of ``folder/*/<kind>`` in a batch."""
    found = {}
    for kind in KINDS:
        reader = spark.readStream.schema(COLUMNS[kind]).option("maxFilesPerTrigger", files)
        stream = reader.parquet(str(folder / "*" / kind))
        if watermark:
            stream = stream.withWatermark("date_time", f"{plan.disorder_ms} milliseconds")
        found[kind] = stream
    return found


def _ms(column: Column | str) -> Column:
    return F.unix_millis(F.col(column) if isinstance(column, str) else column)


def _bounds(window: str = "window") -> list[Column]:
    """The bounds of a window."""
    return [F.col(f"{window}.{side}").alias(f"window_{side}") for side in ("start", "end")]


def _tumbling(parameters: Parameters, time: str = "date_time") -> Column:
    return F.window(time, f"{parameters.window_ms} milliseconds")


def _q3(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    person = s["person"].filter(F.col("state").isin(*parameters.states))
    auction = s["auction"].filter(F.col("category") == parameters.category)
    sold = auction.select("seller", F.col("id").alias("auction"))
    joined = sold.join(person, F.col("seller") == F.col("id"))
    return joined.select("name", "city", "state", "auction")


def _q4(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    won = _q9(s, parameters, plan).groupBy("category")
    found = won.agg(F.count("*").alias("auctions"), F.sum("price").alias("total"))
    return found.withColumn("average", F.expr("total div auctions"))


def _q5(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    size, slide = (f"{ms} milliseconds" for ms in (parameters.window_ms, parameters.slide_ms))
    counted = s["bid"].groupBy(F.window("date_time", size, slide), "auction")
    each = counted.agg(F.count("*").alias("bids"))
    items = F.collect_list(F.struct("auction", "bids")).alias("items")
    windows = each.groupBy("window").agg(items, F.max("bids").alias("most"))
    hottest = F.filter("items", lambda item: item["bids"] == F.col("most"))
    rows = windows.select("window", F.explode(hottest).alias("item"))
    return rows.select(*_bounds(), "item.auction", "item.bids")


def _q7(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    bid = s["bid"].select(
        _tumbling(parameters), "auction", "bidder", "price", _ms("date_time").alias("at_ms")
    )
    highest = s["bid"].groupBy(_tumbling(parameters)).agg(F.max("price").alias("price"))
    joined = bid.join(highest, ["window", "price"])
    return joined.select(*_bounds(), "auction", "bidder", "price", "at_ms")


def _q8(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    registered = s["person"].groupBy(_tumbling(parameters), "id", "name").agg(F.count("*"))
    opened = s["auction"].groupBy(_tumbling(parameters), F.col("seller").alias("id"))
    joined = registered.join(opened.agg(F.count("*")), ["window", "id"])
    return joined.select(*_bounds(), F.col("id").alias("person"), "name")


def _q9(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    auction = s["auction"].select("id", "seller", "category", "expires", F.col("date_time"))
    bid = s["bid"].select("auction", "bidder", "price", F.col("date_time").alias("at"))
    longest = F.expr(f"INTERVAL {plan.longest_auction_ms} MILLISECONDS")
    valid = (
        (F.col("auction") == F.col("id"))
        & (F.col("at") >= F.col("date_time"))
        & (F.col("at") <= F.col("expires"))
        & (F.col("at") <= F.col("date_time") + longest)
    )
    # A stream may have one column with a watermark: the bid's time goes on as a number.
    rows = auction.join(bid, valid).withColumn("at_ms", _ms("at")).drop("at")
    best = F.max(F.struct("price", -F.col("at_ms"), -F.col("bidder"))).alias("best")
    won = rows.groupBy("auction", "seller", "category", "date_time", "expires").agg(best)
    times = _ms("date_time").alias("opened_ms"), _ms("expires").alias("expires_ms")
    bidder, at = (-F.col(f"best.col{i}") for i in (3, 2))
    named = *times, bidder.alias("bidder"), "best.price", at.alias("at_ms")
    return won.select("auction", "seller", "category", *named)


def _q11(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    gap = F.session_window("date_time", f"{parameters.gap_ms} milliseconds")
    sessions = s["bid"].groupBy(gap.alias("window"), "bidder").agg(F.count("*").alias("bids"))
    return sessions.select("bidder", *_bounds(), "bids")


def _q12(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    bid = s["bid"].select("bidder", F.current_timestamp().alias("processed"))
    window = _tumbling(parameters, "processed")
    counted = bid.groupBy(window, "bidder").agg(F.count("*").alias("bids"))
    return counted.select("bidder", *_bounds(), "bids")


def _q18(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    row = F.struct(_ms("date_time").alias("at_ms"), "price", "channel", "url", "extra")
    return s["bid"].groupBy("bidder", "auction").agg(F.max(row).alias("last")).select(
        "bidder", "auction", "last.*"
    )  # fmt: skip


def _q19(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    bid = s["bid"].withColumn("at_ms", _ms("date_time"))
    row = F.struct("bidder", "price", "at_ms", "extra")
    order = F.struct("price", -F.col("at_ms"), -F.col("bidder"), "extra")
    best = bid.groupBy("auction").agg(F.max_by(row, order, parameters.top).alias("best"))
    ranked = best.select("auction", F.posexplode("best").alias("before", "bid"))
    return ranked.select("auction", (F.col("before") + 1).alias("rank"), "bid.*")


def _q20(s: Streams, parameters: Parameters, plan: Plan) -> DataFrame:
    auction = s["auction"].filter(F.col("category") == parameters.category)
    times = _ms("date_time").alias("opened_ms"), _ms("expires").alias("expires_ms")
    auction = auction.select("id", "item_name", "seller", "category", *times)
    at = _ms("date_time").alias("at_ms")
    bid = s["bid"].select("auction", "bidder", "price", at, "channel", "url")
    return bid.join(auction, F.col("auction") == F.col("id")).drop("id")


STREAMS: Mapping[str, StreamQuery] = {
    "q3": StreamQuery(_q3),
    "q5": StreamQuery(_q5, watermark=True),
    "q7": StreamQuery(_q7, watermark=True),
    "q8": StreamQuery(_q8, watermark=True),
    "q9": StreamQuery(_q9, watermark=True),
    "q11": StreamQuery(_q11, watermark=True),
    "q12": StreamQuery(_q12, key=("bidder", "start_ms")),
    "q18": StreamQuery(_q18, key=("bidder", "auction")),
    "q19": StreamQuery(_q19, key=("auction",)),
    "q20": StreamQuery(_q20),
}
"""What Spark can express."""

REFUSED: Mapping[str, tuple[StreamQuery, str]] = {
    "q4": (
        StreamQuery(_q4, key=("category",), watermark=True),
        "an average over all time of what another aggregation yields: aggregations that follow "
        "each other need append mode, which never emits a group without a window",
    )
}
"""What Spark refuses to start, and why."""
