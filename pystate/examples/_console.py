"""Helpers of the examples: a quiet Spark session, a growing table, and errors in one line."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pystate.base.installation import extra
from pystate.errors import MissingRequirementError, PystateError

try:
    from rich.console import Console
    from rich.table import Table as RichTable
except ImportError:  # said by failing_softly
    Console = None  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pystate.spark import Job


def message(text: str, *, error: bool = False) -> None:
    """Print a line, an error in red and on the error stream."""
    _console(error=error).print(
        text, style="bold red" if error else None, highlight=False, markup=False, soft_wrap=True
    )


def _console(*, error: bool = False) -> Console:
    if Console is None:
        raise MissingRequirementError(
            "the examples need rich>=13, of the extra 'demo' of pystate-spark: pip install rich, "
            f"or {extra('demo')}"
        )
    return Console(stderr=error)


class Table:
    """A table that is printed row by row, as epochs end."""

    def __init__(self, **widths: int) -> None:
        self._widths = widths
        self.rows = 0

    def add(self, **values: object) -> None:
        """Print a row, the first one below the header."""
        table = RichTable(box=None, show_header=self.rows == 0, padding=(0, 2, 0, 0))
        for name, width in self._widths.items():
            table.add_column(name, justify="right", min_width=width, no_wrap=True)
        table.add_row(*(str(values[name]) for name in self._widths))
        _console().print(table)
        self.rows += 1


@contextlib.contextmanager
def quiet_session(name: str, cores: int, folder: str) -> Iterator[SparkSession]:
    """Start a local Spark that prints nothing, and stop it at the end.

    A failing task is tried up to four times. Spark's log and temporary files go to `folder`.
    """
    # Missing packages are reported in one line, by failing_softly.
    from pystate.spark.base.environment import require_java

    require_java()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    log = os.path.join(folder, "spark.log")
    for name_of_log in ("root", "py4j", "pystate"):
        logger = logging.getLogger(name_of_log)
        logger.addHandler(logging.FileHandler(log, delay=True))
        logger.propagate = False
    scratch = os.path.join(folder, "spark-temporary")
    builder = (
        SparkSession.builder.master(f"local[{cores},4]")
        .appName(name)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", cores)
        # Timestamps that other readers than Spark also read as instants.
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", os.path.join(scratch, "warehouse"))
    )
    try:
        # The JVM logs a trace for every task that is killed and every query that is stopped.
        with _stderr_to(log):
            session = builder.getOrCreate()
    except PySparkException as error:
        raise MissingRequirementError(f"Spark does not start ({error}); its log: {log}") from error
    try:
        yield session
    finally:
        session.stop()
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Send the error output of processes that are started meanwhile to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(log)
        os.close(saved)


def await_query(job: Job, query: StreamingQuery) -> None:
    """Wait for a query; raise the error that ended it, without Spark's report of it."""
    from pyspark.errors import StreamingQueryException

    try:
        query.awaitTermination()
    except StreamingQueryException:
        if job.failure is None:
            raise
        raise job.failure from None
    finally:
        query.stop()


@contextlib.contextmanager
def failing_softly() -> Iterator[None]:
    """If the reason of a failure is known, end the program with one line instead of a trace."""
    try:
        yield
    except MissingRequirementError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; start it again with the same --checkpoint to go on")
    except Exception as error:
        if not _is_known(error):
            raise
        # Java's exception is in the line after py4j's own.
        lines = [line.lstrip(": ") for line in str(error).strip().splitlines()] or [""]
        said = (
            lines[1] if len(lines) > 1 and "error occurred while calling" in lines[0] else lines[0]
        )
        sys.exit(f"{type(error).__name__}: {said}")


def _is_known(error: Exception) -> bool:
    module = type(error).__module__
    return isinstance(error, (PystateError, OSError)) or module.startswith(("pyspark.", "py4j."))
