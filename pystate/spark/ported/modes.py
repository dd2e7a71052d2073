"""Spark's output modes and time modes.

Thread safety: functions without state.
"""

from __future__ import annotations

from typing import Any

from pystate.base.arguments import shown
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.ported.handle import TimeMode


def time_mode_of(given: Any, owner: str) -> TimeMode:
    """Spark's time mode, in any case."""
    modes: tuple[TimeMode, ...] = ("None", "ProcessingTime", "EventTime")
    for mode in modes:
        if isinstance(given, str) and given.lower() == mode.lower():
            return mode
    raise StatefulProcessorError(
        f"{owner}: the time mode is 'None', 'ProcessingTime' or 'EventTime', not {shown(given)}"
    )


def checked_output_mode(given: Any, owner: str) -> None:
    """Refuse an output mode other than append and update."""
    mode = given.lower() if isinstance(given, str) else None
    if mode == "complete":
        raise StatefulProcessorError(
            f"{owner}: the output mode 'Complete' would need all rows of all epochs again: pass "
            "'Append' or 'Update', and keep what a sink should have in states"
        )
    if mode not in ("append", "update"):
        raise StatefulProcessorError(
            f"{owner}: the output mode is 'Append' or 'Update', not {shown(given)}"
        )
