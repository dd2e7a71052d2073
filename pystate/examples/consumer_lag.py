"""How many messages the consumers of a log are behind its producers.

Two streams, one key. Producers report how far each partition of a topic has been written, consumer
groups how far they have read it; the reports of either stream come in any order, and a consumer's
report may come before that of the producer whose messages it read. Both streams are united and
keyed by topic and partition, so that one function sees both, and keeps for each partition

* the end of the log, a ``ps.ReducingState`` with `max`: a late report with an older position
  changes nothing;
* a map from consumer group to position: a put costs only the entry, not the whole map.

The function has the shape `process_rows`: it gets all of a partition's reports of an epoch as one
Arrow batch, reduces them column-wise, and emits a line per consumer group.

The input is made up, always the same. At the end the lag is computed from all reports at once, in
plain Python, and compared.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.examples._console import Table, message
from pystate.examples._driver import Run, example, in_epochs, parser, positive, published, verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

REPORT: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "consumer_group": pa.string(),  # null: a producer's report
    "position": pa.int64(),
}
LAG = "topic string, partition int, consumer_group string, position long, behind long"
TOPICS = {"clicks": 8, "orders": 4, "payments": 4}
GROUPS = {"billing": 0.99, "search": 0.9, "archive": 0.6}  # how fast each reads


class Lag(ps.KeyedProcessFunction):
    """Follows one partition of a topic, and all consumer groups that read it."""

    end = ps.ReducingState("long", max)
    positions = ps.MapState("string", "long")

    def process_rows(
        self, key: tuple[str, int], batch: pa.RecordBatch, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        """Handle all reports of an epoch."""
        newest = pa.table(batch).group_by("consumer_group").aggregate([("position", "max")])
        for report in newest.to_pylist():
            group, position = report["consumer_group"], report["position_max"]
            if group is None:
                self.end.add(position)
            elif position > self.positions.get(group, -1):
                self.positions.put(group, position)
        end = self.end.get()
        if end is not None:
            for group, position in self.positions.items():
                # Until the producer's own report comes, the end is the furthest position of a
                # consumer.
                yield *key, group, position, max(0, end - position)


def pipeline(reports: DataFrame, job: Job) -> DataFrame:
    """From one epoch's reports to the lag of the partitions in them."""
    return job.key_by(reports, "topic", "partition", uid="partitions").process(Lag(), schema=LAG)


def make_reports(minutes: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Make the producers' and the consumers' stream, both out of order, with the second ahead."""
    rng = random.Random(2015)
    producers: list[tuple[float, dict[str, Any]]] = []
    consumers: list[tuple[float, dict[str, Any]]] = []
    for topic, count in TOPICS.items():
        for partition in range(count):
            end = 0
            positions = dict.fromkeys(GROUPS, 0)
            where = {"topic": topic, "partition": partition}
            for minute in range(minutes):
                end += rng.randrange(1000)
                report = {**where, "consumer_group": None, "position": end}
                producers.append((minute + rng.uniform(0, 5), report))
                for group, speed in GROUPS.items():
                    if rng.random() < 0.9:  # or it has an outage
                        positions[group] += int((end - positions[group]) * speed)
                    report = {**where, "consumer_group": group, "position": positions[group]}
                    consumers.append((minute + rng.uniform(-5, 5), report))
    return _in_order_of_arrival(producers), _in_order_of_arrival(consumers)


def _in_order_of_arrival(arrivals: list[tuple[float, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [report for _, report in sorted(arrivals, key=lambda arrival: arrival[0])]


def recompute(reports: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Do the same in plain Python, from all reports at once."""
    newest: dict[tuple[Any, ...], int] = {}
    for topic, partition, group, position in map(dict.values, reports):
        key = topic, partition, group
        newest[key] = max(position, newest.get(key, position))
    return [
        (*key, position, max(0, newest[(*key[:2], None)] - position))
        for key, position in newest.items()
        if key[2] is not None
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("consumer_lag", __doc__)
    options.add_argument(
        "--minutes", type=positive, default=240, metavar="N", help="of reports (default: 240)"
    )
    return example(options.parse_args(arguments), "consumer-lag", _run)


def _run(run: Run) -> int:
    reports = make_reports(run.options.minutes)
    pieces = [in_epochs(stream, REPORT, run.options.epochs) for stream in reports]
    message(f"{len(reports[0]):,} reports of producers, {len(reports[1]):,} of consumers")
    with run.session() as session:
        producers = run.stream(session, pieces[0], "producers")
        consumers = run.stream(session, pieces[1], "consumers")
        job, sink = run.job(), run.sink("lag")
        run.read(job, producers.union(consumers), pipeline, sink)
    wanted = recompute(reports[0] + reports[1])
    newest = {tuple(row.values())[:3]: tuple(row.values()) for row in published(sink)}
    kept = [
        (row["topic"], row["partition"], group, position, max(0, row["end"] - position))
        for row in job.read_state("partitions").to_pylist()
        for group, position in row["positions"]
    ]
    if not verified(
        ("the state of", kept, wanted), ("the newest output of", newest.values(), wanted)
    ):
        return 1
    table = Table(behind=8, consumer_group=14, topic=9, partition=9)
    for topic, partition, group, _, behind in sorted(wanted, key=lambda row: -row[-1])[:5]:
        table.add(behind=f"{behind:,}", consumer_group=group, topic=topic, partition=partition)
    message(
        f"verified: the lag of {len(GROUPS)} consumer groups on {sum(TOPICS.values())} partitions, "
        f"{sum(row[-1] for row in wanted):,} messages in all, is that of a recomputation"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
