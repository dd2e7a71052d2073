"""A processor for the test harness.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pystate.arguments import flag, text
from pystate.errors import InvalidArgumentError
from pystate.spark.ported.forms import Form, RowForm
from pystate.spark.ported.function import Options, PortedFunction, ported
from pystate.spark.ported.modes import time_mode_of

__all__ = ["adapt"]


def adapt(
    processor: Any,
    key: str | Sequence[str],
    *,
    time_mode: str = "None",
    frames: bool = False,
    uid: str = "harness",
) -> PortedFunction:
    """Make a function of an unchanged `StatefulProcessor`, to run in `ps.testing.Harness`.

    Parameters
    ----------
    processor : StatefulProcessor
        An instance.
    key : str or sequence of str
        The key columns, as the harness gets them.
    time_mode : {"None", "ProcessingTime", "EventTime"}
        Spark's time mode.
    frames : bool
        Whether it takes and yields frames of pandas, as in `transformWithStateInPandas`; the time
        zone of these is UTC.
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
    form: Form = RowForm()
    if flag(frames, f"{owner}: frames"):
        # Rows alone need no pandas.
        from pystate.spark.ported.frames import FrameForm

        form = FrameForm("UTC")
    return ported(processor, Options(uid, time_mode_of(time_mode, owner), names, form))
