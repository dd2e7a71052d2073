"""Follow orders through a state machine, and put illegal steps aside.

An order is placed and waits for payment, is paid, shipped and accepted; until it is shipped it may
be cancelled:

    pending payment --> paid --> shipped --> accepted
           |              |
           +--------------+----> cancelled

Each event names an order and its new status. A step that is not an arrow above (shipped before it
was paid, paid twice, anything after the end) changes nothing, and goes to the side output
``illegal`` with the status that the order had. An order that has ended is emitted with all of its
steps, which are kept in a list of structs until then.

The state of an order expires after 30 days, by event time: state that is not touched is removed
from memory and from the checkpoints by itself (``ps.StateTtl``).

The input is made up, always the same. At the end a dictionary does the same work in plain Python,
and everything is compared: the orders that ended, the illegal steps, and the open orders.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.examples._console import Table, message
from pystate.examples._driver import Run, example, in_epochs, parser, positive, published, verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

#: For each status those that may follow; None is the status of an order that is not known yet.
NEXT: dict[str | None, tuple[str, ...]] = {
    None: ("pending payment",),
    "pending payment": ("paid", "cancelled"),
    "paid": ("shipped", "cancelled"),
    "shipped": ("accepted",),
    "accepted": (),
    "cancelled": (),
}
EVENT: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "order_id": pa.int64(),
    "status": pa.string(),
    "at": pa.timestamp("us", "UTC"),
}
MONTH = ps.StateTtl(days=30, time="event")
ENDED = "order_id long, outcome string, steps array<struct<status: string, at: timestamp>>"
ILLEGAL = "number long, order_id long, status string, refused string"


class OrderMachine(ps.KeyedProcessFunction):
    """The state machine of one order."""

    status = ps.ValueState("string", ttl=MONTH)
    steps = ps.ListState("struct<status: string, at: timestamp>", ttl=MONTH)

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        """Take a step if it is legal."""
        status = self.status.value()
        if row.status not in NEXT[status]:
            ctx.output("illegal", (row.number, key, status, row.status))
            return
        self.status.update(row.status)
        self.steps.add({"status": row.status, "at": row.at})
        if not NEXT[row.status]:
            yield key, row.status, self.steps.get()
            self.steps.clear()


def pipeline(events: DataFrame, job: Job) -> DataFrame:
    """From one epoch's events to the orders that end in it."""
    orders = job.key_by(events, "order_id", uid="orders", order_by="number", event_time="at")
    return orders.process(OrderMachine(), schema=ENDED, side_outputs={"illegal": ILLEGAL})


def make_events(orders: int) -> list[dict[str, Any]]:
    """Make the events of some orders, most of which take only legal steps."""
    rng = random.Random(2015)
    start = datetime(2015, 5, 17, tzinfo=timezone.utc)
    events: list[tuple[datetime, int, str]] = []
    statuses = [status for status in NEXT if status is not None]
    for order in range(orders):
        at = start + timedelta(seconds=rng.randrange(86_400))
        status: str | None = None
        while NEXT[status] and rng.random() < 0.95:
            # Now and then a step that may be wrong, seldom a cancellation.
            wanted = NEXT[status][-1 if rng.random() < 0.1 else 0]
            step = rng.choice(statuses) if rng.random() < 0.05 else wanted
            events.append((at, order, step))
            status = step if step in NEXT[status] else status
            at += timedelta(seconds=rng.randrange(1, 7200))
        if rng.random() < 0.02:
            events.append((at, order, rng.choice(statuses)))
    events.sort()
    return [
        {"number": number, "order_id": order, "status": status, "at": at}
        for number, (at, order, status) in enumerate(events)
    ]


def recompute(
    events: list[dict[str, Any]],
) -> tuple[dict[int, list[dict[str, Any]]], list[tuple[Any, ...]]]:
    """Do the same with a dictionary: the steps of each order, and the illegal ones."""
    steps: dict[int, list[dict[str, Any]]] = {}
    illegal = []
    for event in events:
        number, order, wanted, at = event.values()
        taken = steps.setdefault(order, [])
        status = taken[-1]["status"] if taken else None
        if wanted in NEXT[status]:
            taken.append({"status": wanted, "at": at})
        else:
            illegal.append((number, order, status, wanted))
    return {order: taken for order, taken in steps.items() if taken}, illegal


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("orders", __doc__)
    options.add_argument(
        "--orders", type=positive, default=5000, metavar="N", help="orders (default: 5000)"
    )
    return example(options.parse_args(arguments), "orders", _run)


def _run(run: Run) -> int:
    events = make_events(run.options.orders)
    message(f"{len(events):,} events of {run.options.orders:,} orders")
    with run.session() as session:
        job, ended, illegal = run.job(), run.sink("ended"), run.sink("illegal")
        stream = run.stream(session, in_epochs(events, EVENT, run.options.epochs))
        run.read(job, stream, pipeline, ended, illegal=illegal)
    return _verify(job, published(ended), published(illegal), *recompute(events))


def _verify(
    job: Job,
    ended: list[dict[str, Any]],
    illegal: list[dict[str, Any]],
    wanted: dict[int, list[dict[str, Any]]],
    wanted_illegal: list[tuple[Any, ...]],
) -> int:
    def listed(order: int, steps: list[dict[str, Any]]) -> tuple[Any, ...]:
        return order, *(tuple(step.values()) for step in steps)

    over = {order: steps for order, steps in wanted.items() if not NEXT[steps[-1]["status"]]}
    going = {order: steps for order, steps in wanted.items() if order not in over}
    state = job.read_state("orders").to_pylist()
    kept = [listed(row["order_id"], row["steps"]) for row in state if row["steps"]]
    known = [(row["order_id"], row["status"]) for row in state]
    if not verified(
        ("ended order", [listed(row["order_id"], row["steps"]) for row in ended],
         [listed(*item) for item in over.items()]),
        ("illegal step", [tuple(row.values()) for row in illegal], wanted_illegal),
        ("open order", kept, [listed(*item) for item in going.items()]),
        ("status of order", known, [(order, s[-1]["status"]) for order, s in wanted.items()]),
    ):  # fmt: skip
        return 1
    table = Table(orders=8, status=16)
    for status, count in Counter(status for _, status in known).most_common():
        table.add(orders=f"{count:,}", status=status)
    message(
        f"verified: {len(over):,} orders that ended, {len(going):,} that go on, and "
        f"{len(illegal):,} illegal steps, as a dictionary has them"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
