"""Cut the requests in a web server's access log into the sessions of its visitors.

A visitor is an address; a session ends when no request came from it for 30 minutes. The lines of a
log are not quite in order of time, since servers write a request when it ends; so a session may
grow at both ends, and two may turn out to be one. Each visitor has a map of open sessions, from the
time of the first request to a struct of the rest, and an event-time timer for the end of each. When
the watermark has reached the end, no earlier request can come, and the session is emitted, once.

Lines that are not in the combined (or common) log format are skipped. Requests that come more than
five minutes late go to a side output.

Kill it at any moment and start it again with the same ``--checkpoint``: the sessions in the end are
the same. They are compared with those that plain Python finds in the whole file; the ones that were
still open when the log ended are in the state.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.examples._console import message
from pystate.examples._driver import Run, example, in_epochs, parser, published, verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

GAP = 30 * 60_000
#: host, time, and bytes of a request.
LINE = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(?:[^"\\]|\\.)*" \d{3} (\d+|-)'
SESSION = "visitor string, first long, last long, requests long, bytes long"


class Visitor(ps.KeyedProcessFunction):
    """The sessions of one visitor that have not ended."""

    open_sessions = ps.MapState("long", "struct<last: long, requests: long, bytes: long>")

    def process(self, key: str, row: Any, ctx: ps.RuntimeContext) -> None:
        """Join a request with the sessions near it: at most one before it and one after it."""
        first = last = row.at
        requests, size = 1, row.bytes
        for start, session in self.open_sessions.items():
            if start - GAP < row.at < session["last"] + GAP:
                self.open_sessions.remove(start)
                ctx.delete_event_time_timer(session["last"] + GAP)
                first, last = min(first, start), max(last, session["last"])
                requests += session["requests"]
                size += session["bytes"]
        self.open_sessions.put(first, {"last": last, "requests": requests, "bytes": size})
        ctx.register_event_time_timer(last + GAP)

    def on_timer(
        self, key: str, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        """Emit the session that has ended."""
        for start, session in self.open_sessions.items():
            if session["last"] + GAP == timestamp:
                self.open_sessions.remove(start)
                yield key, start, *session.values()


def pipeline(lines: DataFrame, job: Job) -> DataFrame:
    """From one epoch's lines to the sessions that end in it."""
    from pyspark.sql import functions as F

    host, time, size = (F.regexp_extract("line", LINE, group) for group in (1, 2, 3))
    # If the line is not a request, the time is empty and this is null.
    at = F.try_to_timestamp(time, F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    requests = lines.select(
        host.alias("visitor"),
        F.unix_millis(at).alias("at"),
        F.coalesce(size.try_cast("long"), F.lit(0)).alias("bytes"),
    )
    visitors = job.key_by(
        requests.where("at IS NOT NULL"),
        "visitor",
        uid="visitors",
        event_time="at",
        allowed_delay="5 minutes",
    )
    return visitors.process(Visitor(), schema=SESSION, late="late")


def parse(line: str) -> tuple[str, int, int] | None:
    """Read a line in plain Python: visitor, time, bytes."""
    match = re.match(LINE, line, re.ASCII)
    if match is None:
        return None
    visitor, time, size = match.groups()
    at = datetime.strptime(time, "%d/%b/%Y:%H:%M:%S %z")
    return visitor, int(at.timestamp()) * 1000, 0 if size == "-" else int(size)


def recompute(requests: list[tuple[str, int, int]]) -> list[tuple[Any, ...]]:
    """Do the same in plain Python, from all requests at once."""
    by_visitor: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for visitor, at, size in requests:
        by_visitor[visitor].append((at, size))
    sessions: list[tuple[Any, ...]] = []
    for visitor, visits in by_visitor.items():
        visits.sort()
        ends = [i for i in range(1, len(visits)) if visits[i][0] - visits[i - 1][0] >= GAP]
        for begin, end in zip([0, *ends], [*ends, len(visits)], strict=True):
            session = visits[begin:end]
            size = sum(map(itemgetter(1), session))
            sessions.append((visitor, session[0][0], session[-1][0], len(session), size))
    return sessions


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("sessions", __doc__, epochs=20)
    options.add_argument("path", help="the log, plain or gzip")
    return example(options.parse_args(arguments), "sessions", _run)


def _run(run: Run) -> int:
    lines = read_lines(run.options.path)
    epochs = in_epochs(
        [{"line": line} for line in lines], {"line": pa.string()}, run.options.epochs
    )
    requests = [request for request in map(parse, lines) if request is not None]
    message(f"{len(lines):,} lines, {len(requests):,} of them requests, in {len(epochs)} epochs")
    with run.session() as session:
        job, ended, late = run.job(), run.sink("sessions"), run.sink("late")
        run.read(job, run.stream(session, epochs), pipeline, ended, late=late)
    too_late = [tuple(row.values()) for row in published(late)]
    for request in too_late:
        requests.remove(request)
    closed = [tuple(row.values()) for row in published(ended)]
    still_open = [
        (row["visitor"], first, *session.values())
        for row in job.read_state("visitors").to_pylist()
        for first, session in row["open_sessions"]
    ]
    wanted = recompute(requests)
    if not verified(("the session", closed + still_open, wanted)):
        return 1
    visitors = len({session[0] for session in wanted})
    message(
        f"verified: {len(wanted):,} sessions of {visitors:,} visitors, {len(still_open):,} of them "
        f"open at the end, are those of the whole file; {len(too_late):,} requests came too late"
    )
    return 0


def read_lines(path: str) -> list[str]:
    """Read a log; bytes that are not UTF-8 are replaced."""
    data = Path(path).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    return data.decode("utf-8", errors="replace").splitlines()


if __name__ == "__main__":
    sys.exit(main())
