"""A processor for the test harness.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pystate.base.arguments import flag, text
from pystate.errors import InvalidArgumentError
from pystate.spark.ported.function import Options, PortedFunction, ported_function
from pystate.spark.ported.handle import time_mode_of
from pystate.spark.ported.rows import Form, RowForm


def adapt(
    processor: Any,
    key: str | Sequence[str],
    *,
    time_mode: str = "None",
    frames: bool = False,
    initial_state: Any = None,
    state_schema: Any = None,
    timeout: str | None = None,
    uid: str = "harness",
) -> PortedFunction:
    """Make a function of what Spark's stateful operators run, for `ps.testing.Harness`.

    Parameters
    ----------
    processor : StatefulProcessor or callable
        An instance, unchanged; or a function of `applyInPandasWithState`, with `state_schema`.
    key : str or sequence of str
        The key columns, as the harness gets them.
    time_mode : {"None", "ProcessingTime", "EventTime"}
        Spark's time mode.
    frames : bool
        Whether it takes and yields frames of pandas, as in `transformWithStateInPandas`; the time
        zone of these is UTC.
    initial_state : rows, optional
        The rows that `handleInitialState` gets before the harness's first epoch, in any form that
        `Harness.process` takes; they have the key columns under the same names.
    state_schema : str or StructType, optional
        The fields of the state of a function of `applyInPandasWithState`. It takes and yields
        frames, and the clock is that of its timeout.
    timeout : {"NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"}, optional
        The timeout of such a function; none by default.
    uid : str
        The operator's name in errors.

    Returns
    -------
    KeyedProcessFunction
        A function for `Harness`, which needs no Spark session.

    Raises
    ------
    StatefulProcessorError
        The processor's `init` asks for what cannot be.

    Examples
    --------
    >>> import pystate as ps
    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming import StatefulProcessor
    >>> class Count(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.n = handle.getValueState("n", "n long")
    ...
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         n = (self.n.get() or (0,))[0] + sum(1 for _ in rows)
    ...         self.n.update((n,))
    ...         yield Row(user=key[0], n=n)
    ...
    ...     def close(self):
    ...         pass
    >>> with ps.testing.Harness(adapt(Count(), "user"), key="user") as harness:
    ...     harness.process([{"user": "ada"}, {"user": "bob"}, {"user": "ada"}])
    ...     harness.process([{"user": "ada"}])
    [Row(user='ada', n=2), Row(user='bob', n=1)]
    [Row(user='ada', n=3)]
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"adapt: key is the name of a column, or several, not {key!r}")
    owner = f"operator {text(uid, 'adapt: uid')!r}"
    if state_schema is not None or timeout is not None:
        return _with_group_state(processor, names, state_schema, timeout, initial_state, owner, uid)
    form: Form = RowForm()
    if flag(frames, f"{owner}: frames"):
        # Rows alone need no pandas.
        from pystate.spark.ported.frames import FrameForm

        form = FrameForm("UTC")
    function = ported_function(processor, Options(uid, time_mode_of(time_mode, owner), names, form))
    return function if initial_state is None else function.beginning_with(initial_state)


def _with_group_state(
    function: Any,
    key: tuple[str, ...],
    schema: Any,
    timeout: str | None,
    initial_state: Any,
    owner: str,
    uid: str,
) -> PortedFunction:
    """A function of `applyInPandasWithState`."""
    # Rows alone need no pandas.
    from pystate.spark.ported.frames import FrameForm
    from pystate.spark.ported.group_state import GroupStateProcessor, checked_timeout, mode_of

    if schema is None or not callable(function) or isinstance(function, StatefulProcessor):
        raise InvalidArgumentError(
            f"{owner}: state_schema and timeout are of a function of applyInPandasWithState, "
            "function(key, frames, state): give it, and state_schema='n long'"
        )
    if initial_state is not None:
        raise InvalidArgumentError(
            f"{owner}: a function of applyInPandasWithState has no initial_state; set states with "
            "Harness.set_state"
        )
    given = checked_timeout(timeout or "NoTimeout", owner)
    processor = GroupStateProcessor(function, schema, given, None, False, owner)
    return ported_function(processor, Options(uid, mode_of(given), key, FrameForm("UTC")))
