"""A function of `applyInPandasWithState`, as a processor.

A key's state is one value, and its timeout a value beside it with a timer. Spark writes nothing for
a call that neither updates the state nor sets a timeout: the timeout of an earlier call then stays,
and one that has passed comes again in every batch, until the function sets another or removes the
state.

Thread safety: an object belongs to its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pystate.base.arguments import shown
from pystate.errors import WrongTypeError
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.ported.handle import TimeMode

#: The names of the states.
_STATE, _TIMEOUT = "state", "timeout"


def checked_timeout(given: Any, owner: str) -> str:
    """Spark's timeout configuration."""
    known = (
        GroupStateTimeout.NoTimeout,
        GroupStateTimeout.ProcessingTimeTimeout,
        GroupStateTimeout.EventTimeTimeout,
    )
    if given not in known:
        raise StatefulProcessorError(
            f"{owner}: the timeout is {', '.join(map(repr, known))}, not {shown(given)}"
        )
    return str(given)


def mode_of(timeout: str) -> TimeMode:
    """The time mode in which a timeout of this configuration is a timer."""
    return "EventTime" if timeout == GroupStateTimeout.EventTimeTimeout else "ProcessingTime"


class GroupStateProcessor(StatefulProcessor):
    """Calls a function with its group's state.

    `columns` and `has_watermark` are what a task's input says, unless `columns` is given.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        schema: Any,
        timeout: str,
        columns: Iterable[str] | None,
        has_watermark: bool,
        owner: str,
    ) -> None:
        self._function = function
        self._schema = schema
        self._timeout = timeout
        self._takes_input = columns is None
        self._columns = [] if columns is None else list(columns)
        self._has_watermark = has_watermark
        self._owner = owner

    def takes_input(self, columns: Iterable[str], *, timed: bool) -> None:
        """Take what a task's input is, unless it is known."""
        if self._takes_input:
            self._columns, self._has_watermark = list(columns), timed

    def init(self, handle: Any) -> None:
        """Ask for the states."""
        self._handle = handle
        self._value = handle.getValueState(_STATE, self._schema)
        self._until = handle.getValueState(_TIMEOUT, "until long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Call the function for a key's rows."""
        return self._call(key, rows, timerValues, timed_out=False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        """Call the function for a timeout."""
        empty = [pd.DataFrame(columns=self._columns)]
        yield from self._call(tuple(key), empty, timerValues, timed_out=True)
        now = timerValues.getCurrentWatermarkInMs()
        if self._timeout != GroupStateTimeout.EventTimeTimeout:
            now = timerValues.getCurrentProcessingTimeInMs()
        until = self._until.get()
        if until is not None and until[0] < now < MAX_WATERMARK:
            # It is still there, and comes again with a timer that is not the one that has fired.
            self._handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() - 1)

    def _call(self, key: Any, frames: Any, times: Any, *, timed_out: bool) -> Iterator[Any]:
        value = self._value.get()
        watermark = times.getCurrentWatermarkInMs()
        state = GroupState(
            value,
            times.getCurrentProcessingTimeInMs(),
            watermark if self._has_watermark else GroupState.NO_TIMESTAMP,
            self._timeout,
            timed_out,
            self._has_watermark,
            value is not None,
            False,
            False,
            GroupState.NO_TIMESTAMP,
            b"",
            self._schema,
        )
        result = self._function(key, frames, state)
        if isinstance(result, pd.DataFrame) or not isinstance(result, Iterable):
            raise WrongTypeError(
                f"{self._owner}: the function returned {shown(result)}: yield DataFrames of "
                "pandas, or return a list of them"
            )
        yield from result
        self._keep(state)

    def _keep(self, state: GroupState) -> None:
        """Store what the function has done with its state."""
        timeout = state._timeout_timestamp
        set_anew = timeout != GroupState.NO_TIMESTAMP
        if not (state._updated or state._removed or set_anew):
            return
        if not state.exists:
            self._value.clear()
        elif state._updated:
            self._value.update(tuple(state._value))
        before = self._until.get()
        if before is not None:
            self._handle.deleteTimer(before[0] + 1)
            self._until.clear()
        if set_anew:
            # A timeout is due once the time is after it; at the end of time it no longer is.
            until = min(int(timeout), MAX_WATERMARK)
            self._until.update((until,))
            if until < MAX_WATERMARK:
                self._handle.registerTimer(until + 1)
