"""Functions over the rows of windows: the class that users subclass, and what they are given.

Thread safety: a function and its context belong to one task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pystate.base.arguments import shown
from pystate.errors import DeclarationError, InvalidArgumentError
from pystate.state.declaration import State

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TimeWindow(NamedTuple):
    """Which window it is; a `CountWindow` and a `Global` one have no times.

    Attributes
    ----------
    start, end : int or None
        In milliseconds since 1970. The window contains its start, but not its end.

    Examples
    --------
    >>> TimeWindow(0, 60_000).end_time
    datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.timezone.utc)
    """

    start: int | None
    end: int | None

    @property
    def start_time(self) -> datetime | None:
        """The start as a datetime, in UTC."""
        return None if self.start is None else _EPOCH + timedelta(milliseconds=self.start)

    @property
    def end_time(self) -> datetime | None:
        """The end as a datetime, in UTC."""
        return None if self.end is None else _EPOCH + timedelta(milliseconds=self.end)


def _no_task(tag: str, row: Any) -> None:
    raise InvalidArgumentError("output: the context belongs to no running task")


@dataclass(slots=True)
class WindowContext:
    """What a function over windows learns about its task.

    Attributes
    ----------
    uid : str
        The operator's name in checkpoints.
    processing_time : int
        Milliseconds since 1970; the same for all rows of an epoch and for its replays.
    watermark : int or None
        Milliseconds since 1970: windows that end at it or before are over. None before the first
        row with event time, and without event time.
    """

    uid: str
    processing_time: int
    watermark: int | None = None
    _output: Callable[[str, Any], None] = field(default=_no_task, repr=False, compare=False)

    def output(self, tag: str, row: Any) -> None:
        """Emit a row, or a batch of Arrow, to a side output.

        Raises
        ------
        InvalidArgumentError
            No such side output is declared; the message lists those that are.
        WrongTypeError
            The row does not match the side output's schema; possibly only at the epoch's end.
        """
        self._output(tag, row)


class WindowFunction:
    """A function over the rows of each window that is emitted.

    Write either `process`, for one window at a time, or `process_windows`, for many at once.

    Examples
    --------
    >>> import pystate as ps
    >>> class Spread(ps.WindowFunction):
    ...     def process(self, key, window, batch, ctx: ps.WindowContext):
    ...         prices = batch.column("price").to_pylist()
    ...         yield key, window.start_time, max(prices) - min(prices)
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            if isinstance(value, State):
                raise DeclarationError(
                    f"{cls.__name__}.{name}: a WindowFunction has no states of its own, as a "
                    "window's rows are its state: keep more in a KeyedProcessFunction, which may "
                    "be applied to this operator's output"
                )

    def open(self, ctx: WindowContext) -> None:
        """Prepare for a task, before its first window."""

    def close(self) -> None:
        """Clean up after a task, even if it failed."""

    def process(
        self, key: Any, window: TimeWindow, batch: pa.RecordBatch, ctx: WindowContext
    ) -> Any:
        """Handle the rows of one window.

        Parameters
        ----------
        key : object
            The window's key; a tuple if it has several columns.
        window : TimeWindow
            Its start and end.
        batch : pyarrow.RecordBatch
            Its rows, with all columns of the input.
        ctx : WindowContext
            The context of the task.

        Returns
        -------
        iterable of tuple, Row or dict, or None
            The rows that the operator emits, as those of `KeyedProcessFunction.process`. Batches
            of Arrow may be among them.
        """
        raise DeclarationError(
            f"{type(self).__name__} has no process(self, key, window, batch, ctx)"
        )

    def process_windows(
        self,
        windows: pa.RecordBatch,
        offsets: np.ndarray[Any, Any],
        batch: pa.RecordBatch,
        ctx: WindowContext,
    ) -> Any:
        """Handle the rows of many windows; written instead of `process`.

        Parameters
        ----------
        windows : pyarrow.RecordBatch
            A row for each window: the key columns, ``window_start`` and ``window_end``.
        offsets : numpy.ndarray of int64
            Where the rows of each window begin in `batch`; then the end. No window is empty, so
            that ``numpy.add.reduceat(values, offsets[:-1])`` is the sum of each.
        batch : pyarrow.RecordBatch
            The rows of all windows, one after the other.
        ctx : WindowContext
            The context of the task.

        Returns
        -------
        RecordBatch, Table, dict of arrays, iterable of them, or None
            What the operator emits. Columns are matched by name.
        """
        raise DeclarationError(
            f"{type(self).__name__} has no process_windows(self, windows, offsets, batch, ctx)"
        )


#: A `WindowFunction`, or a callable of (key, window, batch) or (key, window, batch, ctx).
WindowFunctionLike: TypeAlias = "WindowFunction | Callable[..., Any]"
#: How a function is called: for many windows, for one, or for one without the context.
WindowShape: TypeAlias = Literal["windows", "window", "plain"]


def window_shape(function: object, owner: str) -> WindowShape:
    """How a function over windows is called.

    `DeclarationError`: it is none, has none or both of the methods, or takes other arguments.
    """
    if isinstance(function, type) and issubclass(function, WindowFunction):
        raise DeclarationError(f"{owner}: pass an instance: {function.__name__}(...)")
    if not isinstance(function, WindowFunction):
        return _callable_shape(function, owner)
    kind = type(function)
    own = [
        name
        for name in ("process", "process_windows")
        if getattr(kind, name) is not getattr(WindowFunction, name)
    ]
    if len(own) != 1:
        which = "both process and process_windows" if own else "neither process nor process_windows"
        raise DeclarationError(f"{owner}: {kind.__name__} has {which}: write one of them")
    names = (
        ("key", "window", "batch", "ctx")
        if own == ["process"]
        else ("windows", "offsets", "batch", "ctx")
    )
    _refuse_async(getattr(kind, own[0]), owner)
    if not _takes(getattr(function, own[0]), len(names)):
        raise DeclarationError(
            f"{owner}: {kind.__name__}.{own[0]} is called with ({', '.join(names)})"
        )
    return "window" if own == ["process"] else "windows"


def _callable_shape(function: object, owner: str) -> WindowShape:
    if not callable(function):
        raise DeclarationError(
            f"{owner}: window(...).process takes a ps.WindowFunction, or a function of "
            f"(key, window, batch), not {shown(function)}"
        )
    _refuse_async(function, owner)
    if _takes(function, 4):
        return "window"
    if _takes(function, 3):
        return "plain"
    raise DeclarationError(
        f"{owner}: {shown(function)} is called with (key, window, batch), or with "
        "(key, window, batch, ctx)"
    )


def _refuse_async(function: object, owner: str) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(
            f"{owner}: {shown(function)} is async: nothing is awaited; write def"
        )


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin does not say what it takes
        return count == 3
    return True
