"""The queries as pipelines of pystate, as its users write them.

A query reads one stream, in which events of several kinds are rows with their `kind`, and says
which of their columns it needs: Spark reads no others. Rows of those with a `key` replace earlier
ones of the same key, as in Spark's update mode.

Where all rows of a window, or all windows of one end, come in one epoch, what follows is plain
Spark over that epoch: the hottest auctions of q5, and the highest of the highest bids of q7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

import pystate as ps

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from bench.nexmark.generate import Plan
    from bench.nexmark.reference import Parameters
    from pystate.spark import Job, KeyedFrame

Events: TypeAlias = "Mapping[str, DataFrame]"

BID = ("auction", "bidder", "price", "at_ms")
SHARDS = 8
"""Parts of a window of q7 that are computed on their own."""


@dataclass(frozen=True)
class Call:
    """What a query is built with, in one epoch: its events by kind, and how late they may be."""

    job: Job
    events: Events
    parameters: Parameters
    plan: Plan

    def keyed(self, frame: DataFrame, *keys: str, uid: str | None = None) -> KeyedFrame:
        """Events by key, in event time."""
        delay = self.plan.disorder_ms
        return self.job.key_by(frame, *keys, uid=uid, event_time="date_time", allowed_delay=delay)


@dataclass(frozen=True)
class PystateQuery:
    """A query as pystate computes it: a pipeline that gives the columns of the reference.

    `columns` are those that it reads of each kind. With a `key`, the rows of a key are replaced by
    later ones. With `drain` the last rows need the end of the input, for they come when the
    watermark passes.
    """

    build: Callable[[Call], DataFrame]
    columns: Mapping[str, str]
    key: tuple[str, ...] = ()
    drain: bool = False

    def stream(self, streams: Events) -> DataFrame:
        """The one stream that it reads."""
        parts = [
            streams[kind].select(F.lit(kind).alias("kind"), *names.split())
            for kind, names in self.columns.items()
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.unionByName(part, allowMissingColumns=True)
        return whole if len(parts) > 1 else whole.drop("kind")

    def pipeline(self, parameters: Parameters, plan: Plan) -> Callable[[DataFrame, Job], DataFrame]:
        """The function for `Job.start`."""

        def run(rows: DataFrame, job: Job) -> DataFrame:
            events = dict.fromkeys(self.columns, rows)
            if len(self.columns) > 1:
                events = {
                    kind: rows.where(F.col("kind") == kind).select(*names.split())
                    for kind, names in self.columns.items()
                }
            return self.build(Call(job, events, parameters, plan))

        return run


def _ms(column: Column | str) -> Column:
    return F.unix_millis(F.col(column) if isinstance(column, str) else column)


class LocalSales(ps.KeyedCoProcessFunction):
    """The auctions of a seller, with where the seller lives; either may come first."""

    person = ps.ValueState("struct<name:string,city:string,state:string>")
    waiting = ps.ListState("long")

    def process_left(self, key: int, auction: Any, ctx: ps.RuntimeContext) -> Iterator[Any]:
        """Emit the auction, or let it wait for its seller."""
        person = self.person.value()
        if person is None:
            self.waiting.add(auction["id"])
        else:
            yield *person.values(), auction["id"]

    def process_right(self, key: int, person: Any, ctx: ps.RuntimeContext) -> Iterator[Any]:
        """Remember the seller, and emit the auctions that wait."""
        known = {name: person[name] for name in ("name", "city", "state")}
        self.person.update(known)
        for auction in self.waiting.get():
            yield *known.values(), auction
        self.waiting.clear()


def _q3(call: Call) -> DataFrame:
    person = call.events["person"].where(F.col("state").isin(*call.parameters.states))
    auction = call.events["auction"].where(F.col("category") == call.parameters.category)
    left = call.job.key_by(auction, "seller", uid="sales")
    right = call.job.key_by(person, "id")
    return left.connect(right).process(
        LocalSales(), schema="name string, city string, state string, auction long"
    )


def _valid(call: Call) -> DataFrame:
    """The valid bids, with their auctions."""
    auction = call.events["auction"].withColumn("opened_ms", _ms("date_time"))
    auction = auction.select("*", _ms("expires").alias("expires_ms")).drop("expires")
    bid = call.events["bid"].withColumnRenamed("date_time", "at")
    left = call.keyed(auction, "id", uid="valid")
    right = call.job.key_by(bid, "auction", event_time="at", allowed_delay=call.plan.disorder_ms)
    joined = left.interval_join(right, 0, call.plan.longest_auction_ms)
    return joined.where(_ms("at") <= F.col("expires_ms"))


def _q4(call: Call) -> DataFrame:
    length = (F.col("expires_ms") - F.col("opened_ms") + 1).alias("open_ms")
    bids = _valid(call).select("id", "category", "date_time", length, "price")
    # All bids of an auction have its time and length: its session is from then until it expires.
    keyed = call.job.key_by(bids, "id", "category", uid="prices", event_time="date_time")
    won = keyed.window(ps.Session(column="open_ms")).aggregate(price=ps.max("price"))
    found = call.job.key_by(won, "category", uid="averages").aggregate(
        auctions=ps.count(), total=ps.sum("price")
    )
    return found.withColumn("average", F.expr("total div auctions"))


def _q5(call: Call) -> DataFrame:
    sliding = ps.Sliding(call.parameters.window_ms, call.parameters.slide_ms)
    keyed = call.keyed(call.events["bid"], "auction", uid="hot")
    counted = keyed.window(sliding).aggregate(bids=ps.count())
    # Spark keeps the first ranks of each of its tasks before it shuffles.
    rank = F.rank().over(Window.partitionBy("window_start").orderBy(F.desc("bids")))
    return counted.withColumn("rank", rank).where("rank = 1").drop("rank")


class Highest(ps.VectorizedFunction):
    """The bids of the highest price of a key, at the end of its window."""

    highest = ps.ValueState("long")
    bids = ps.ListState("struct<auction:long,bidder:long,price:long,at_ms:long>")

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        """Keep the bids that are the highest so far."""
        price = batch.column("price")
        self.highest.max(keys, price)
        best = pc.equal(price, self.highest.values(keys))
        ends = pc.add(batch.column("start_ms"), self.window_ms)
        ctx.register_event_time_timers(keys, pc.if_else(best, ends, None))
        # A list for each row, which is empty if the row is not among the best.
        offsets = np.concatenate([[0], np.cumsum(best.to_numpy(zero_copy_only=False))])
        bids = batch.select(list(BID)).filter(best)
        items = pa.StructArray.from_arrays(bids.columns, names=bids.schema.names)
        self.bids.extend(keys, pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items))

    def on_timers(
        self, keys: ps.KeyBatch, timestamps: Any, ctx: ps.RuntimeContext
    ) -> pa.RecordBatch:
        """Emit the highest bids of keys whose window is over."""
        lists = self.bids.lists(keys)
        bids = lists.flatten()
        owner = pc.list_parent_indices(lists)
        # Bids that were the highest until a higher one came are in the list, too.
        best = pc.equal(bids.field("price"), self.highest.values(keys).take(owner))
        self.bids.clear_all(keys)
        self.highest.clear_all(keys)
        start = keys.key_arrays()[0].take(owner)
        found = [start, *bids.flatten()]
        return pa.RecordBatch.from_arrays(found, names=["start_ms", *BID]).filter(best)


def _q7(call: Call) -> DataFrame:
    window_ms = call.parameters.window_ms
    at = _ms("date_time")
    bid = call.events["bid"].select(
        "auction",
        "bidder",
        "price",
        "date_time",
        at.alias("at_ms"),
        (at - F.pmod(at, F.lit(window_ms))).alias("start_ms"),
        F.pmod("price", F.lit(SHARDS)).alias("shard"),
    )
    schema = "start_ms long, auction long, bidder long, price long, at_ms long"
    each = call.keyed(bid, "start_ms", "shard", uid="highest").process(Highest(window_ms), schema)
    most = F.max("price").over(Window.partitionBy("start_ms"))
    highest = each.withColumn("most", most).where("price = most").drop("most")
    return highest.withColumn("end_ms", F.col("start_ms") + window_ms)


def _q8(call: Call) -> DataFrame:
    window_ms = call.parameters.window_ms
    opened = call.events["auction"].select("seller", F.col("date_time").alias("opened"))
    left = call.keyed(call.events["person"], "id", uid="both")
    right = call.job.key_by(
        opened, "seller", event_time="opened", allowed_delay=call.plan.disorder_ms
    )
    start = (_ms("date_time") - F.pmod(_ms("date_time"), F.lit(window_ms))).alias("start_ms")
    near = left.interval_join(right, -window_ms, window_ms).select("*", start)
    both = near.where((_ms("opened") >= F.col("start_ms"))
                      & (_ms("opened") < F.col("start_ms") + window_ms))  # fmt: skip
    once = call.job.key_by(both, "id", uid="once", event_time="date_time").deduplicate(window_ms)
    end = (F.col("start_ms") + window_ms).alias("end_ms")
    return once.select("start_ms", end, F.col("id").alias("person"), "name")


def _q9(call: Call) -> DataFrame:
    bids = _valid(call).withColumn("at_ms", _ms("at")).drop("at", "date_time")
    best = call.job.key_by(bids, "id", uid="best").top(
        1, by=["price", "at_ms", "bidder"], descending=[True, False, False]
    )
    return best.withColumnRenamed("id", "auction")


def _q11(call: Call) -> DataFrame:
    keyed = call.keyed(call.events["bid"], "bidder", uid="sessions")
    return keyed.window(ps.Session(call.parameters.gap_ms)).aggregate(bids=ps.count())


def _q12(call: Call) -> DataFrame:
    keyed = call.job.key_by(call.events["bid"], "bidder", uid="counts")
    tumbling = ps.Tumbling(call.parameters.window_ms)
    windows = keyed.window(tumbling, time="processing", emit="update")
    return windows.aggregate(bids=ps.count())


def _q18(call: Call) -> DataFrame:
    bid = call.events["bid"].withColumn("at_ms", _ms("date_time")).drop("date_time")
    keyed = call.job.key_by(bid, "bidder", "auction", uid="last")
    return keyed.top(1, by=["at_ms", "price", "channel", "url", "extra"])


def _q19(call: Call) -> DataFrame:
    bid = call.events["bid"].withColumn("at_ms", _ms("date_time")).drop("date_time")
    return call.job.key_by(bid, "auction", uid="best").top(
        call.parameters.top,
        by=["price", "at_ms", "bidder", "extra"],
        descending=[True, False, False, True],
    )


def _q20(call: Call) -> DataFrame:
    auction = call.events["auction"].where(F.col("category") == call.parameters.category)
    opened = auction.select("*", _ms("date_time").alias("opened_ms"),
                            _ms("expires").alias("expires_ms")).drop("expires")  # fmt: skip
    bid = call.events["bid"].withColumn("at_ms", _ms("date_time"))
    bid = bid.withColumnRenamed("date_time", "at")
    left = call.keyed(opened, "id", uid="auctions")
    right = call.job.key_by(bid, "auction", event_time="at", allowed_delay=call.plan.disorder_ms)
    # Whenever either was made: within a hundred years of each other.
    joined = left.interval_join(right, "-36500 days", "36500 days")
    return joined.withColumnRenamed("id", "auction")


JOBS: Mapping[str, PystateQuery] = {
    "q3": PystateQuery(_q3, {"auction": "id seller category", "person": "id name city state"}),
    "q4": PystateQuery(
        _q4,
        {"auction": "id category date_time expires", "bid": "auction price date_time"},
        key=("category",),
        drain=True,
    ),
    "q5": PystateQuery(_q5, {"bid": "auction date_time"}, drain=True),
    "q7": PystateQuery(_q7, {"bid": "auction bidder price date_time"}, drain=True),
    "q8": PystateQuery(_q8, {"person": "id name date_time", "auction": "seller date_time"}),
    "q9": PystateQuery(
        _q9,
        {
            "auction": "id seller category date_time expires",
            "bid": "auction bidder price date_time",
        },
        key=("auction",),
    ),
    "q11": PystateQuery(_q11, {"bid": "bidder date_time"}, drain=True),
    "q12": PystateQuery(_q12, {"bid": "bidder date_time"}, key=("bidder", "start_ms")),
    "q18": PystateQuery(
        _q18, {"bid": "auction bidder price date_time channel url extra"}, key=("bidder", "auction")
    ),
    "q19": PystateQuery(
        _q19, {"bid": "auction bidder price date_time extra"}, key=("auction", "rank")
    ),
    "q20": PystateQuery(
        _q20,
        {
            "auction": "id item_name seller category date_time expires",
            "bid": "auction bidder price date_time channel url",
        },
    ),
}
"""All queries by name."""
