"""Count the requests for each URL in a web server's access log.

Reads a log in the combined (or common) format, plain or gzip, in pieces of one epoch each, and
keeps the counts in pystate: after every epoch they are the counts since the beginning. A line that
is not in the format is counted under its reason, and never ends the run.

With ``--checkpoint`` the counts are kept: started again with a log that has grown, it continues
with the first line that was not counted.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, cast

import pystate as ps
from pystate.errors import PystateError
from pystate.examples._console import Table, message
from pystate.examples._driver import Run, example, parser

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

#: host, identity, user, time, request, status, bytes; the combined format has two more.
LINE = (
    r'^\S+ \S+ \S+ \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)'
    r'(?: "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*")?\s*$'
)
REQUEST = r"^[A-Z]+ (\S+)(?: HTTP/[\d.]+)?$"


#: The table of epochs.
COLUMNS = {
    "epoch": "epoch",
    "lines": "rows",
    "keys": "keys",
    "checkpoint": "checkpoint",
    "seconds": "seconds",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("access_log", __doc__, epochs=None)
    options.add_argument("path", help="the log, plain or gzip")
    options.add_argument(
        "--top", type=int, default=10, metavar="N", help="URLs shown (default: 10)"
    )
    options.add_argument(
        "--lines", type=int, default=2500, metavar="N", help="lines of an epoch (default: 2500)"
    )
    return example(options.parse_args(arguments), "access-log", _run, columns=COLUMNS)


def _run(run: Run) -> int:
    path = run.options.path
    _check_readable(path)
    with run.session() as session, run.job() as job:
        for first, piece in _pieces(path, run.options.lines, _line_count(job)):
            job.run_epoch(
                session.createDataFrame([(line,) for line in piece], "line string"),
                pipeline,
                run_key=f"from line {first}",
                on_epoch=run.show,
            )
        if not run.table.rows:
            message(f"{path}: no line that was not counted before")
        if job.latest_epoch() is not None:
            _report(job, run.options.top)
        return 0


def pipeline(lines: DataFrame, job: Job) -> DataFrame:
    """From one epoch's lines to the counts of its URLs, and of lines that are not requests."""
    from pyspark.sql import functions as F

    fields = lines.select(
        F.regexp_extract("line", LINE, 2).alias("request"),
        F.regexp_extract("line", LINE, 4).alias("size"),
        F.col("line").rlike(LINE).alias("is_line"),
    )
    parsed = fields.select(
        F.regexp_extract("request", REQUEST, 1).alias("url"),
        F.expr("try_cast(size AS BIGINT)").alias("bytes"),
        F.when(~F.col("is_line"), "not a line of the combined log format")
        .when(~F.col("request").rlike(REQUEST), "not an HTTP request")
        .alias("reason"),
    )
    good, bad = parsed.where("reason IS NULL"), parsed.where("reason IS NOT NULL")
    urls = job.key_by(good, "url", uid="urls").aggregate(requests=ps.count(), bytes=ps.sum("bytes"))
    reasons = job.key_by(bad, "reason", uid="malformed").aggregate(lines=ps.count())
    return urls.selectExpr("url", "requests", "bytes").unionByName(
        reasons.selectExpr("NULL AS url", "lines AS requests", "NULL AS bytes")
    )


def _line_count(job: Job) -> int:
    """How many lines were counted: an epoch counts all of its lines, or none."""
    if job.latest_epoch() is None:
        return 0
    lines = 0
    for uid, column in (("urls", "requests"), ("malformed", "lines")):
        lines += sum(row[column] for row in job.read_state(uid).to_pylist())
    return lines


def _report(job: Job, top: int) -> None:
    urls = job.read_state("urls").to_pylist()
    malformed = job.read_state("malformed").to_pylist()
    urls.sort(key=lambda row: (-row["requests"], row["url"]))
    requests = sum(row["requests"] for row in urls)
    message(f"{requests:,} requests for {len(urls):,} URLs")
    counts = Table(requests=9, bytes=13, url=-1)
    for row in urls[:top]:
        counts.add(requests=f"{row['requests']:,}", bytes=f"{row['bytes'] or 0:,}", url=row["url"])
    bad = sum(row["lines"] for row in malformed)
    message(f"{bad:,} malformed {'line' if bad == 1 else 'lines'}" + (":" if bad else ""))
    for row in sorted(malformed, key=lambda row: -row["lines"]):
        message(f"  {row['lines']:,} {row['reason']}")


def _pieces(path: str, size: int, counted: int) -> Iterator[tuple[int, list[str]]]:
    """The lines after those counted, in pieces, each with the number of its first line."""
    with _open(path) as file:
        skipped = sum(1 for _ in islice(file, counted))
        if skipped < counted:
            raise LogError(
                f"{path} has {skipped:,} lines, fewer than the {counted:,} that were counted: for "
                "another log use another --checkpoint"
            )
        while piece := list(islice(file, size)):
            # Bytes that are not UTF-8 are replaced: at worst they make a line malformed.
            yield counted, [line.rstrip(b"\r\n").decode("utf-8", "replace") for line in piece]
            counted += len(piece)


def _open(path: str) -> BinaryIO:
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if is_gzip else open(path, "rb")


class LogError(PystateError, OSError):
    """The log cannot be read, or is another one."""


def _check_readable(path: str) -> None:
    try:
        with _open(path) as file:
            file.read(1)
    except (OSError, EOFError) as error:
        raise LogError(f"{path}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
