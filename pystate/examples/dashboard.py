"""Show a shop's orders live and since the beginning, on a page of their own, from one state.

A stream of orders runs through one job with three operators:

* ``products`` counts each product's orders and what they cost,
* ``hours`` does so for each hour, as long as orders of that hour can still come: the live part,
* ``history`` keeps the hours that are over, in a map for each product.

A small web server shows them in the browser while the job runs, with ``ps.connect``. All that it
says is of one epoch, so the history and the live part fit: each order is in one of them, and in
none twice. This is what a Lambda architecture has two systems for, a slow one for the past and a
fast one for what came since.

The input is made up, always the same. With each epoch the example asks its own page for the
figures, adds both parts up, and compares them with what plain Python counts in the orders
themselves. It ends when the input has ended; with ``--keep`` the page goes on until Ctrl-C: it asks
nothing of Spark, which has stopped then.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.examples._console import message
from pystate.examples._dashboard_page import Figures, Page, asked
from pystate.examples._driver import Run, example, in_epochs, parser, positive, verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import EpochProgress, Job

#: Products, what they cost in cents, and how often they are ordered.
PRODUCTS = {"tea": (450, 9), "coffee": (620, 7), "cup": (900, 4), "pot": (3200, 2), "tin": (780, 1)}
ORDER: dict[str, pa.DataType] = {
    "product": pa.string(),
    "cents": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
}
BEGIN = datetime(2026, 3, 2, tzinfo=timezone.utc)
#: Orders are at most so much later than orders that came before them.
DISORDER = timedelta(minutes=5)
COUNTED = "product string, hour long, orders long, cents long"
#: Orders and cents by product and hour.
Counts = Mapping[tuple[str, int], tuple[int, int]]


class History(ps.KeyedProcessFunction):
    """The hours of a product that are over, by the time when they began."""

    hours = ps.MapState("long", "struct<orders: long, cents: long>")

    def process(self, key: str, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        """Keep an hour: its window gives it once."""
        self.hours.put(row.hour, {"orders": row.orders, "cents": row.cents})
        yield key, row.hour, row.orders, row.cents


def pipeline(orders: DataFrame, job: Job) -> DataFrame:
    """From one epoch's orders to the hours that are over with it, and the new totals."""
    counts: dict[str, Any] = {"orders": ps.count(), "cents": ps.sum("cents")}
    totals = job.key_by(orders, "product", uid="products").aggregate(**counts)
    live = job.key_by(orders, "product", uid="hours", event_time="at", allowed_delay="10 minutes")
    over = live.window(ps.Tumbling("1 hour")).aggregate(**counts)
    hours = over.selectExpr("product", "unix_millis(window_start) AS hour", "orders", "cents")
    kept = job.key_by(hours, "product", uid="history").process(History(), schema=COUNTED)
    return kept.unionByName(
        totals.selectExpr("product", "CAST(NULL AS LONG) AS hour", "orders", "cents")
    )


def make_orders(count: int) -> list[dict[str, Any]]:
    """Make the orders of three days, more of them by day than by night, almost in order of time."""
    rng = random.Random(2026)
    names, weights = list(PRODUCTS), [weight for _, weight in PRODUCTS.values()]
    orders = []
    for _ in range(count):
        hour = min(23.99, max(0.0, rng.gauss(14, 4)))
        at = BEGIN + timedelta(days=rng.randrange(3), hours=hour)
        name = rng.choices(names, weights)[0]
        cents = PRODUCTS[name][0] * rng.choice((1, 1, 1, 2, 3))
        came = at + timedelta(seconds=rng.uniform(0, DISORDER.total_seconds()))
        orders.append((came, {"product": name, "cents": cents, "at": at}))
    return [order for _, order in sorted(orders, key=lambda each: each[0])]


def recompute(orders: Sequence[Mapping[str, Any]]) -> Counts:
    """Count orders in plain Python."""
    numbers: Counter[tuple[str, int]] = Counter()
    cents: Counter[tuple[str, int]] = Counter()
    for order in orders:
        hour = order["at"].replace(minute=0, second=0, microsecond=0)
        at = order["product"], int(hour.timestamp()) * 1000
        numbers[at] += 1
        cents[at] += order["cents"]
    return {at: (numbers[at], cents[at]) for at in numbers}


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("dashboard", __doc__, epochs=12)
    options.add_argument(
        "--orders", type=positive, default=12_000, metavar="N", help="orders (default: 12000)"
    )
    options.add_argument(
        "--port",
        type=port,
        default=0,
        metavar="N",
        help="where the page is on this machine (default: any that is free)",
    )
    options.add_argument(
        "--keep", action="store_true", help="go on serving the page after the input has ended"
    )
    return example(options.parse_args(arguments), "dashboard", _run)


def port(text: str) -> int:
    """Parse the number of a port; 0 is any that is free."""
    number = int(text)
    if not 0 <= number < 65536:
        raise ValueError
    return number


def _run(run: Run) -> int:
    orders = make_orders(run.options.orders)
    figures = Figures(run.path("checkpoint"))
    with Page(figures, run.options.port) as page:
        message(f"the page: {page.url}")
        checks = Checks(page.url, orders)

        def published(progress: EpochProgress) -> None:
            run.show(progress)
            checks.published(progress.epoch)

        with run.session() as session:
            stream = run.stream(session, in_epochs(orders, ORDER, run.options.epochs))
            run.read(run.job(), stream, pipeline, run.sink("counted"), on_epoch=published)
        if not checks.end():
            return 1
        if run.options.keep:
            message("the page goes on until Ctrl-C")
            _wait()
    return 0


def _wait() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        message("stopped")


class Checks:
    """Compares what the page says with the orders themselves, epoch by epoch."""

    def __init__(self, url: str, orders: Sequence[Mapping[str, Any]]) -> None:
        self._url, self._orders = url, orders
        self._right: set[int] = set()
        self._published: set[int] = set()

    def published(self, epoch: int) -> None:
        """Check an epoch that was published; where it cannot be asked for, `end` says so."""
        self._published.add(epoch)
        self._check(epoch)

    def _check(self, epoch: int | None = None) -> dict[str, Any]:
        """Ask the page for an epoch, by default the newest, and compare it; return its figures."""
        said = asked(self._url, epoch)
        # The stream is read in order: an epoch has counted the first so many orders.
        wanted = recompute(self._orders[: sum(each["orders"] for each in said["products"])])
        by_product: Counter[str] = Counter()
        for (product, _), (number, _) in wanted.items():
            by_product[product] += number
        if verified(
            (f"in epoch {said['epoch']} the hour", _rows(both(said)), _rows(wanted)),
            (
                f"in epoch {said['epoch']} the product",
                [(each["product"], each["orders"]) for each in said["products"]],
                by_product.items(),
            ),
        ):
            self._right.add(said["epoch"])
        return said

    def end(self) -> bool:
        """Check the newest epoch, which must have all orders, and say what was found."""
        said = self._check()
        total, history, live = (said[part]["orders"] for part in ("total", "history", "live"))
        if wrong := {*self._published, said["epoch"]} - self._right:
            message(f"WRONG: the page does not show epoch {min(wrong)} as it was", error=True)
            return False
        if total != len(self._orders):
            message(f"WRONG: {total:,} of {len(self._orders):,} orders are counted", error=True)
            return False
        epochs = "1 epoch" if len(self._right) == 1 else f"each of {len(self._right)} epochs"
        message(
            f"verified: {history:,} orders of the history and {live:,} live ones on the page are "
            f"the {total:,} of the input, hour by hour, as plain Python counts them, in {epochs}"
        )
        return True


def both(said: Mapping[str, Any]) -> Counts:
    """Add up the history and the live part of what the page says."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for part in ("history", "live"):
        for row in said[part]["hours"]:
            at = row["product"], row["hour"]
            orders, cents = found.get(at, (0, 0))
            found[at] = orders + row["orders"], cents + row["cents"]
    return found


def _rows(counts: Counts) -> list[tuple[Any, ...]]:
    return [(*at, *count) for at, count in counts.items()]


if __name__ == "__main__":
    sys.exit(main())
