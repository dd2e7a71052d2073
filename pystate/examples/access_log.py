"""Count the requests for each URL in a web server's access log.

Reads a log in the combined (or common) format, plain or gzip, in pieces, one epoch each, and keeps
the counts in pystate: after every epoch they are the counts since the beginning. A line that is not
in the format is counted under its reason, and never ends the run.

With ``--checkpoint`` the counts are kept: started again with a log that has grown, it goes on with
the first line that was not counted.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, cast

import pystate as ps
from pystate.errors import PystateError
from pystate.examples._console import Table, failing_softly, message, quiet_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import EpochProgress, Job

#: host, identity, user, time, request, status, bytes, and in the combined format two more.
LINE = (
    r'^\S+ \S+ \S+ \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)'
    r'(?: "(?:[^"\\]|\\.)*" "(?:[^"\\]|\\.)*")?\s*$'
)
REQUEST = r"^[A-Z]+ (\S+)(?: HTTP/[\d.]+)?$"


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = _parse(arguments)
    work = options.checkpoint or tempfile.mkdtemp(prefix="pystate-access-log-")
    os.makedirs(work, exist_ok=True)
    try:
        with failing_softly():
            return _run(options, work)
    finally:
        if options.checkpoint is None:
            shutil.rmtree(work, ignore_errors=True)


def _run(options: argparse.Namespace, work: str) -> int:
    from pystate.spark import Job

    _check_readable(options.path)
    table = Table(epoch=6, lines=9, keys=9, checkpoint=11, seconds=8)
    with quiet_session("pystate access log", options.cores, work) as session:
        checkpoint = os.path.join(work, "checkpoint")
        with Job("access-log", checkpoint=checkpoint, parallelism=options.cores) as job:
            counted = _counted(job)
            for first, piece in _pieces(options.path, options.lines, counted):
                job.run_epoch(
                    session.createDataFrame([(line,) for line in piece], "line string"),
                    lambda frame: _pipeline(job, frame),
                    run_key=f"from line {first}",
                    on_epoch=lambda progress: _show(table, progress),
                )
            if not table.rows:
                message(f"{options.path}: no line that was not counted before")
            if job.latest_epoch() is not None:
                _report(job, options.top)
            return 0


def _pipeline(job: Job, frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    fields = frame.select(
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


def _show(table: Table, progress: EpochProgress) -> None:
    table.add(
        epoch=progress.epoch,
        lines=f"{progress.rows_in:,}",
        keys=f"{progress.keys:,}",
        checkpoint=f"{progress.checkpoint_bytes / 1024:,.1f} KiB",
        seconds=f"{progress.total_ms / 1000:.2f}",
    )


def _counted(job: Job) -> int:
    """How many lines the state stands for: an epoch counts all of its lines, or none."""
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
    """The lines after those counted, so many at a time, each with its first line's number."""
    with _open(path) as file:
        skipped = sum(1 for _ in islice(file, counted))
        if skipped < counted:
            raise LogError(
                f"{path} has {skipped:,} lines, fewer than the {counted:,} that were counted: for "
                "another log use another --checkpoint"
            )
        while piece := list(islice(file, size)):
            # Bytes that are no UTF-8 are replaced: they make a line malformed at most.
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


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m pystate.examples.access_log",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", help="the log, plain or gzip")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="URLs shown (default: 10)")
    parser.add_argument(
        "--lines", type=int, default=2500, metavar="N", help="lines of an epoch (default: 2500)"
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="keep the counts here")
    parser.add_argument(
        "--cores", type=int, default=2, metavar="N", help="tasks at a time (default: 2)"
    )
    options = parser.parse_args(arguments)
    if options.checkpoint is not None:
        options.checkpoint = os.path.abspath(options.checkpoint)
    return options


if __name__ == "__main__":
    sys.exit(main())
