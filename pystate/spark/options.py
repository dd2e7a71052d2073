"""The options of a `Job`, checked and in one form.

Thread safety: immutable.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pystate.arguments import flag, integer, text
from pystate.backend.options import TableOptions
from pystate.spark.arguments import checked_count, checked_home
from pystate.types.durations import Duration, milliseconds

__all__ = ["JobOptions", "checked_options"]


@dataclass(frozen=True)
class JobOptions:
    """The options of a `Job`, whose documentation says what they mean."""

    name: str
    max_parallelism: int | None
    parallelism: int | None
    """Parallelism of a run; None for Spark's default."""
    retained: int
    allow_unclaimed_state: bool
    max_evaluations: int
    max_clock_step_ms: int
    allow_time_back: bool
    epoch_timeout_ms: int | None
    tables: TableOptions


def checked_options(
    name: str,
    *,
    max_parallelism: int | None,
    parallelism: int | None,
    retained: int,
    allow_unclaimed_state: bool,
    memory_limit_bytes: int,
    shared_tables: bool,
    table_home: str | os.PathLike[str],
    max_evaluations: int,
    max_clock_step: Duration,
    allow_time_back: bool,
    epoch_timeout: Duration | None,
    allow_pickle: bool,
) -> JobOptions:
    """Check what a user gave to `Job`.

    Raises
    ------
    InvalidArgumentError
        An option has an invalid value; the message names the job and the option.
    """
    text(name, "Job: name", ": Job('flights', checkpoint='/data/flights')")
    owner = f"job {name!r}"
    timeout_ms = None
    if epoch_timeout is not None:
        timeout_ms = milliseconds(epoch_timeout, f"{owner}: epoch_timeout", least=1)
    return JobOptions(
        name=name,
        max_parallelism=checked_count(max_parallelism, f"{owner}: max_parallelism"),
        parallelism=checked_count(parallelism, f"{owner}: parallelism"),
        retained=integer(retained, f"{owner}: retained", least=1),
        allow_unclaimed_state=flag(allow_unclaimed_state, f"{owner}: allow_unclaimed_state"),
        max_evaluations=integer(max_evaluations, f"{owner}: max_evaluations", least=1),
        max_clock_step_ms=milliseconds(max_clock_step, f"{owner}: max_clock_step", least=1),
        allow_time_back=flag(allow_time_back, f"{owner}: allow_time_back"),
        epoch_timeout_ms=timeout_ms,
        tables=TableOptions(
            checked_home(table_home, flag(shared_tables, f"{owner}: shared_tables"), owner),
            integer(memory_limit_bytes, f"{owner}: memory_limit_bytes", least=0),
            allow_pickle=flag(allow_pickle, f"{owner}: allow_pickle"),
        ),
    )
