"""Deliver messages to servers that fail at times: try again later, and give up in the end.

A delivery that fails goes back to the queue: it is fed to a loop (``job.feedback``), waits there
for 1, 3, 7, ... epochs, and is tried again. After the last try it goes to the side output ``dead``,
the dead letters, with the answers that it got. What waits is in the checkpoint, like all state, so
that no delivery is lost or tried twice, whatever is killed.

The messages come as a stream. What is still waiting when the stream has ended goes round the loop
until it is empty: ``job.run_until_empty``. In a stream that goes on, ``heartbeat`` makes such
epochs while no message comes.

The messages, and which servers fail when, are made up, always the same. At the end plain Python
does the same work, and all deliveries and dead letters are compared.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.examples._console import Table, message
from pystate.examples._driver import Run, example, in_epochs, parser, positive, published, verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

#: The table of epochs.
COLUMNS = {
    "epoch": "epoch",
    "rows": "rows",
    "waiting": "flight",
    "dead": "aside",
    "checkpoint": "checkpoint",
    "seconds": "seconds",
}
MESSAGE: dict[str, pa.DataType] = {"id": pa.int64(), "server": pa.string()}
#: The answers of servers, by the last digit of a made-up number.
ANSWERS = ("ok",) * 5 + ("timeout", "timeout", "busy", "busy", "not found")
TRIED = "id long, server string, tries int, answer string"
WAITING = "id long, server string, tries int, epochs_left int"
DEAD = "id long, server string, answers array<string>"


def deliver(number: int, server: str, tries: int) -> str:
    """Try to deliver a message: what its server answers."""
    return ANSWERS[zlib.crc32(f"{server} {number} {tries}".encode()) % len(ANSWERS)]


class Deliveries(ps.KeyedProcessFunction):
    """The tries of one message, until it is delivered or given up."""

    answers = ps.ListState("string")

    def __init__(self, most: int) -> None:
        self.most = most

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        """Try once."""
        answer = deliver(key, row.server, row.tries)
        if answer != "ok":
            self.answers.add(answer)
            if row.tries == self.most or answer == "not found":
                ctx.output("dead", (key, row.server, self.answers.get()))
                answer = "given up"
        if answer in ("ok", "given up"):
            self.answers.clear()
        yield key, row.server, row.tries, answer


def pipeline(messages: DataFrame, job: Job, most_tries: int = 4) -> DataFrame:
    """From one epoch's messages, and those that wait, to what was delivered."""
    from pyspark.sql import functions as F

    loop = job.feedback("retries", WAITING, uid="waiting")
    first = messages.selectExpr("id", "server", "1 AS tries", "0 AS epochs_left")
    waiting = first.unionByName(loop.rows())
    due = job.key_by(waiting.where("epochs_left = 0"), "id", uid="deliveries")
    function = Deliveries(most_tries)
    tried = due.process(function, schema=TRIED, side_outputs={"dead": DEAD}).localCheckpoint()
    again = tried.where("answer NOT IN ('ok', 'given up')").select(
        "id",
        "server",
        (F.col("tries") + 1).alias("tries"),
        # The more often it has failed, the longer it waits.
        (F.pow(F.lit(2), F.col("tries")) - 2).cast("int").alias("epochs_left"),
    )
    later = waiting.where("epochs_left > 0").withColumn("epochs_left", F.expr("epochs_left - 1"))
    loop.feed(again.unionByName(later))
    return tried.where("answer = 'ok'").select("id", "server", "tries")


def made_up(count: int) -> list[dict[str, Any]]:
    """Make up some messages."""
    return [{"id": number, "server": f"server-{number * 7 % 23}"} for number in range(count)]


def expected(
    messages: list[dict[str, Any]], most_tries: int
) -> tuple[list[tuple[int, str, int]], list[tuple[int, str, tuple[str, ...]]]]:
    """Do the same in plain Python: what is delivered, and what is given up."""
    delivered, dead = [], []
    for each in messages:
        number, server = each["id"], each["server"]
        answers: list[str] = []
        for tries in range(1, most_tries + 1):
            answer = deliver(number, server, tries)
            if answer == "ok":
                delivered.append((number, server, tries))
                break
            answers.append(answer)
            if answer == "not found":
                break
        if answer != "ok":
            dead.append((number, server, tuple(answers)))
    return delivered, dead


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("retries", __doc__, epochs=5)
    options.add_argument(
        "--messages", type=positive, default=500, metavar="N", help="how many (default: 500)"
    )
    options.add_argument(
        "--tries", type=positive, default=4, metavar="N", help="the most of a message (default: 4)"
    )
    return example(options.parse_args(arguments), "retries", _run, columns=COLUMNS)


def _run(run: Run) -> int:
    messages = made_up(run.options.messages)
    epochs = in_epochs(messages, MESSAGE, run.options.epochs)
    message(f"{len(messages):,} messages in {len(epochs)} epochs")
    tries = run.options.tries

    def delivering(messages: DataFrame, job: Job) -> DataFrame:
        return pipeline(messages, job, tries)

    with run.session() as session:
        job, sink, dead = run.job(), run.sink("delivered"), run.sink("dead")
        run.read(job, run.stream(session, epochs), delivering, sink, dead=dead)
        nothing = session.range(0).selectExpr("id", "CAST(NULL AS string) AS server")
        job.run_until_empty(
            nothing,
            delivering,
            run_key="the end",
            sink=sink,
            side_outputs={"dead": dead},
            on_epoch=run.show,
        )
        job.close()
    delivered, given_up = expected(messages, tries)
    letters = [(row["id"], row["server"], tuple(row["answers"])) for row in published(dead)]
    if not verified(
        ("the delivery", (tuple(row.values()) for row in published(sink)), delivered),
        ("the dead letter", letters, given_up),
        ("the waiting message", job.in_flight().items(), [("waiting", 0)]),
    ):
        return 1
    table = Table(tries=6, delivered=10)
    for count, deliveries in sorted(Counter(row[-1] for row in delivered).items()):
        table.add(tries=count, delivered=f"{deliveries:,}")
    message(
        f"verified: {len(delivered):,} messages delivered and {len(given_up):,} given up, as in "
        "plain Python"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
