"""How many clicks per hour become purchases, whatever order the events come in.

A purchase is converted by the same user's last click in the hour before it. Click and purchase come
minutes apart, in any order, and mostly in different batches. So when a purchase comes, its click
may still be on the way. Event time settles it: the events of a user wait in state, and a timer at
the purchase's own time fires once the watermark has passed it, when all earlier events have been
seen. A click gets a timer, too, at the time from which on it is too old for any purchase; then it
is dropped.

There are two stateful operators in one pipeline, and each epoch commits both or none:

* ``users``, a function per row with a list of clicks, a map of purchases, and timers;
* ``hours``, a vectorised function with a `ps.Count` and a `ps.Mean` that run in the core. It
  registers a processing-time timer for each hour that it sees. However often that is registered, it
  is one timer, so that an hour is emitted once per epoch.

Events that come later than the allowed delay go to a side output.

The input is made up, always the same. At the end the conversions are found in plain Python, from
all events except the late ones, and compared. Purchases that still wait for the watermark are in
the state, and are compared, too.
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.examples._console import Table, message
from pystate.examples._driver import Run, example, in_epochs, parser, positive, published, verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

MINUTE = 60_000
HOUR = 60 * MINUTE
START = 1_431_820_800_000  # 2015-05-17 00:00 UTC
#: An event's time is in milliseconds since 1970.
EVENT: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "user": pa.int64(),
    "kind": pa.string(),
    "at": pa.int64(),
}
CONVERSION = "user long, clicked long, bought long"
CONVERTED = "hour long, conversions long, mean_wait_ms double"


class Users(ps.KeyedProcessFunction):
    """Finds the click that led to each purchase of a user."""

    clicks = ps.ListState("long")
    purchases = ps.MapState("long", "long")  # number of the event -> time

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> None:
        """Keep an event until its time has come."""
        if row.kind == "click":
            self.clicks.add(row.at)
            ctx.register_event_time_timer(row.at + HOUR)
        else:
            self.purchases.put(row.id, row.at)
            ctx.register_event_time_timer(row.at)

    def on_timer(
        self, key: int, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        """Handle the event at `timestamp`: all earlier events have been seen."""
        clicks = self.clicks.get()
        recent = [at for at in clicks if at > timestamp - HOUR]
        if len(recent) < len(clicks):
            self.clicks.update(recent)
        clicked = max((at for at in recent if at < timestamp), default=None)
        for number, at in self.purchases.items():
            if at == timestamp:
                self.purchases.remove(number)
                if clicked is not None:
                    yield key, clicked, at


class Hours(ps.VectorizedFunction):
    """Counts the conversions of each hour, and how long they took."""

    conversions = ps.AggregatingState(ps.Count(), "long")
    wait = ps.AggregatingState(ps.Mean(), "long")

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        """Add a batch of conversions."""
        self.conversions.add_all(keys, 1)
        self.wait.add_all(keys, batch["wait_ms"])
        ctx.register_processing_time_timers(keys, ctx.processing_time)

    def on_timers(
        self, keys: ps.KeyBatch, timestamps: Any, ctx: ps.RuntimeContext
    ) -> dict[str, pa.Array[Any]]:
        """Emit the hours of this epoch."""
        return {
            "hour": keys.key_arrays()[0],
            "conversions": self.conversions.results(keys),
            "mean_wait_ms": self.wait.results(keys),
        }


def pipeline(events: DataFrame, job: Job) -> DataFrame:
    """From one epoch's events to the hours whose numbers change."""
    users = job.key_by(events, "user", uid="users", event_time="at", allowed_delay="10 minutes")
    bought = users.process(Users(), schema=CONVERSION, late="late")
    waits = bought.selectExpr(f"bought DIV {HOUR} * {HOUR} AS hour", "bought - clicked AS wait_ms")
    return job.key_by(waits, "hour", uid="hours").process(Hours(), schema=CONVERTED)


def make_events(users: int) -> list[dict[str, Any]]:
    """Make half a day of clicks and purchases, in the order in which they arrive."""
    rng = random.Random(2015)
    arrivals = []
    for number in range(users * 10):
        # A click, or a purchase that may or may not have one before it.
        at = START + rng.randrange(12 * HOUR)
        kind = "click" if rng.random() < 0.7 else "purchase"
        event = {"id": number, "user": rng.randrange(users), "kind": kind, "at": at}
        delay = rng.randrange(3 * HOUR if rng.random() < 0.01 else 9 * MINUTE)
        arrivals.append((at + delay, number, event))
    return [event for _, _, event in sorted(arrivals, key=lambda arrival: arrival[:2])]


def recompute(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Do the same in plain Python, from all events at once."""
    clicks: dict[int, list[int]] = defaultdict(list)
    waits: dict[int, list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event["at"]):
        user, at = event["user"], event["at"]
        if event["kind"] == "click":
            clicks[user].append(at)
        else:
            before = bisect_left(clicks[user], at)
            if before and clicks[user][before - 1] > at - HOUR:
                waits[at // HOUR * HOUR].append(at - clicks[user][before - 1])
    return [(hour, len(times), sum(times) / len(times)) for hour, times in waits.items()]


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("conversions", __doc__)
    options.add_argument(
        "--users", type=positive, default=2000, metavar="N", help="ten events each (default: 2000)"
    )
    return example(options.parse_args(arguments), "conversions", _run)


def _run(run: Run) -> int:
    events = make_events(run.options.users)
    message(f"{len(events):,} clicks and purchases of {run.options.users:,} users in half a day")
    with run.session() as session:
        job, hours, late = run.job(), run.sink("hours"), run.sink("late")
        stream = run.stream(session, in_epochs(events, EVENT, run.options.epochs))
        run.read(job, stream, pipeline, hours, late=late)
    too_late = {row["id"] for row in published(late)}
    waiting = {id for row in job.read_state("users").to_pylist() for id, _ in row["purchases"]}
    settled = [event for event in events if event["id"] not in too_late | waiting]
    wanted = recompute(settled)
    kept = [tuple(row.values()) for row in job.read_state("hours").to_pylist()]
    newest = {row["hour"]: tuple(row.values()) for row in published(hours)}
    if not verified(
        ("the state of", kept, wanted), ("the newest output of", newest.values(), wanted)
    ):
        return 1
    table = Table(hour=6, conversions=12, mean_wait=10)
    for hour, count, wait in sorted(wanted):
        shown = f"{(hour - START) // HOUR:02d}:00"
        table.add(hour=shown, conversions=f"{count:,}", mean_wait=f"{wait / MINUTE:.1f} min")
    message(
        f"verified: {sum(row[1] for row in wanted):,} conversions as in a recomputation; "
        f"{len(waiting):,} purchases wait for the watermark, {len(too_late):,} events came too late"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
