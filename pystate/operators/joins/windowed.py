"""The windowed join: rows of two inputs with equal keys that are in the same window.

The rows of both inputs are kept in the windows of one operator, each input's in a list of its own.
When a window is over, each left row of a key meets each right row.

Thread safety: as `pystate.operators.runtime.task`.

Invariants
----------
1. A window is joined once, when the watermark reaches its end, and is then removed; rows for which
   all windows are over by then are late.
2. Rows with a null in their key are kept like others, since they are without a partner in their
   window; they meet nothing. Rows without a time are in no window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.checkpoint.refs import INPUT
from pystate.epochs.watermarks import Holds
from pystate.errors import InvalidArgumentError
from pystate.operators.joins.inputs import JoinInput
from pystate.operators.joins.operator import How, JoinOperator, JoinSpec
from pystate.operators.runtime.grouping import expand
from pystate.operators.runtime.late_rows import SIDES, LateInputs, SideName
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import Aligned, Session
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.row_windows import KeptRows, Loaded, RowColumns, WindowRowsSpec
from pystate.operators.windows.specification import (
    END,
    START,
    WindowOptions,
    in_local_times,
    is_local,
    time_type_of,
    window_options,
)
from pystate.state.declaration import State
from pystate.types.key_codes import Ints, longs
from pystate.types.state_type import parse_type

#: Columns beside the input's: its time in milliseconds, and the row's place in its batch.
_TIME, _PLACE = "__pystate_time", "__pystate_place"
_KEY = "__pystate_key_"
#: The side output of the operator over windows.
_LATE = "late"
#: The most rows of an output batch.
_ROWS = 1 << 16


def join_window(windows: Any, owner: str) -> WindowOptions:
    """Check the windows of a join."""
    options = window_options(windows, owner, event_time=_TIME)
    kind = options.windows
    if isinstance(kind, Session) and kind.gap_column is not None:
        raise InvalidArgumentError(
            f"{owner}: join: sessions of two inputs have one gap: write ps.Session('30 min'), not "
            "a column"
        )
    if not isinstance(kind, Aligned | Session):
        raise InvalidArgumentError(
            f"{owner}: join: {type(kind).__name__} windows do not go by time, so that rows of two "
            "inputs are in no window together: use Tumbling, Sliding, Cumulating or Session; or "
            "connect(...).process(...)"
        )
    return options


def window_time_type(left: JoinInput) -> pa.DataType:
    """The type of ``window_start`` and ``window_end``: that of the left input's event time."""
    options = window_options(Session(1), left.owner, event_time=left.event_time)
    fields = [(name, type_.arrow) for name, type_ in (*left.key, *left.columns)]
    return time_type_of(options, pa.schema(fields), left.owner)


def _time_type(given: JoinInput) -> pa.DataType:
    """The type of an input's event time."""
    return dict((*given.key, *given.columns))[given.event_time].arrow


@dataclass(frozen=True)
class WindowJoinSpec(JoinSpec):
    """A windowed join, over windows that `join_window` has checked.

    In the result ``window_start`` and ``window_end`` follow on the key columns.
    """

    left: JoinInput
    right: JoinInput
    options: WindowOptions
    how: How
    output: OutputColumns

    def __post_init__(self) -> None:
        """Have windows of a zone in local times, if both inputs have these."""
        windows = self.options.windows
        if not isinstance(windows, Aligned) or windows.zone is None:
            return
        left, right = (_time_type(each) for each in (self.left, self.right))
        if is_local(left) != is_local(right):
            local, other = (left, right) if is_local(left) else (right, left)
            raise InvalidArgumentError(
                f"{self.left.owner}: join: windows in zone {windows.zone!r} over event times of "
                f"type {local}, which are local times, and {other}, which are instants: a local "
                "time is no instant; cast one of them"
            )
        object.__setattr__(self, "options", in_local_times(self.options, left))

    def make(self, late: LateInputs | None = None) -> WindowJoin:
        """See `JoinSpec.make`."""
        return WindowJoin(self, late)

    def holds(self) -> Holds:
        """How the result's watermark is behind that of the join."""
        return self.options.holds()

    @property
    def keeps(self) -> bool:
        """Whether that depends on what is kept."""
        return self.options.keeps

    @property
    def rows(self) -> WindowRowsSpec:
        """The windows and what is kept in them."""
        key = tuple(f"{_KEY}{i}" for i in range(len(self.left.key)))
        time = (_TIME, parse_type("long"))
        # A list needs a column, even of rows that are nothing but a key.
        kept = tuple(KeptRows(side, self.input(side).columns or (time,)) for side in SIDES)
        return WindowRowsSpec(self.options, key, (), 0, window_time_type(self.left), kept)

    def states(self) -> dict[str, State[Any]]:
        """The states of the join."""
        return self.rows.states()


class WindowJoin(JoinOperator):
    """One task's run of a windowed join; see `JoinOperator`.

    It gives the rows of both inputs to one operator over windows, which has a context of its own:
    late is a row of which all windows are over. Its table has namespaces of the type long, and
    timers.
    """

    _spec: WindowJoinSpec

    def __init__(self, spec: WindowJoinSpec, late: LateInputs | None = None) -> None:
        super().__init__(spec, late)
        self._rows = spec.rows
        self._key = self._rows.key
        self._windows = make_operator(self._rows, _LATE)
        self._now: tuple[SideName, pa.RecordBatch] | None = None

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        self._of_windows = TaskContext(task.backend, side=self._late_rows)
        self._of_windows.time, self._of_windows.tells_kept = task.time, task.tells_kept
        self._windows.open(self._of_windows)
        columns = self._windows.columns
        assert isinstance(columns, RowColumns)
        self._columns = columns

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Put rows of an input into their windows."""
        side: SideName = "left" if input == "left" else "right"
        spec = self._spec.input(side)
        first, last = self._rows.reach()
        batch, times = self._invalid[side].timed(rows, spec.times(rows), first, last, known=True)
        ready = spec.ready(batch, times)
        self._task.saw(pc.max(times).as_py(), input=side)
        arrays = [*ready.keys, *ready.values, ready.times, longs(np.arange(len(ready)))]
        names = [*self._key, *spec.names, _TIME, _PLACE]
        self._now = side, batch
        self._columns.input = SIDES.index(side)
        for windows in self._windows.process(pa.RecordBatch.from_arrays(arrays, names=names)):
            yield from self._joined(windows)

    def _late_rows(self, tag: str, rows: pa.RecordBatch) -> None:
        assert self._now is not None
        side, batch = self._now
        self._late[side].take_out(batch.take(rows.column(_PLACE)))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Join the windows that are over."""
        self._of_windows.time, self._of_windows.drain = self._task.time, self._task.drain
        for windows in self._windows.finish():
            yield from self._joined(windows)
        self._task.kept = self._of_windows.kept

    def close(self) -> None:
        """Free what windows are put together in."""
        self._windows.close()

    # -- results

    def _joined(self, windows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for loaded in self._columns.load():
            part = windows.slice(loaded.begin, loaded.end - loaded.begin)
            heads = [*part.columns]
            lefts, rights = (np.diff(offsets) for offsets in loaded.offsets)
            meets = np.ones(len(lefts), bool)
            for column in heads[: len(self._key)]:
                if column.null_count:
                    meets &= column.is_valid().to_numpy(zero_copy_only=False)
            yield from self._pairs(heads, loaded, np.where(meets, lefts * rights, 0), rights)
            for number, others in ((0, rights), (1, lefts)):
                if self._spec.outer(SIDES[number]):
                    yield from self._alone(number, heads, loaded, ~meets | (others == 0))

    def _pairs(
        self, heads: list[pa.Array[Any]], loaded: Loaded, pairs: Ints, rights: Ints
    ) -> Iterator[pa.RecordBatch]:
        """All pairs of rows of each window, of which there are `pairs`; some at a time."""
        ends = np.cumsum(pairs)
        total = int(ends[-1]) if len(ends) else 0
        one, two = loaded.offsets
        for begin in range(0, total, _ROWS):
            number = np.arange(begin, min(begin + _ROWS, total))
            window = np.searchsorted(ends, number, "right")
            nth: Ints = number - (ends - pairs)[window]
            per_left: Ints = rights[window]
            left: Ints = one[window] + nth // per_left
            right: Ints = two[window] + nth % per_left
            mine, others = (self._values(loaded, number) for number in (0, 1))
            yield from self._result.pairs("left", heads, mine, left, others, right, window)

    def _alone(
        self, number: int, heads: list[pa.Array[Any]], loaded: Loaded, which: Any
    ) -> Iterator[pa.RecordBatch]:
        """The rows of an input in some windows, in which they have no partner."""
        offsets, windows = loaded.offsets[number], np.flatnonzero(which)
        of, rows = expand(offsets[windows], np.diff(offsets)[windows])
        mine = self._values(loaded, number)
        yield from self._result.alone(SIDES[number], heads, mine, rows, windows[of])

    def _values(self, loaded: Loaded, number: int) -> list[pa.Array[Any]]:
        return loaded.values[number][: len(self._spec.input(SIDES[number]).columns)]


def window_names(names: tuple[str, ...], keys: int, owner: str) -> tuple[str, ...]:
    """The columns of the result, those of the window after the key."""
    for name in names:
        if name.lower() in (START, END):
            raise InvalidArgumentError(
                f"{owner}: join: {name!r} is a column of the result that says which window it is: "
                "rename the input's"
            )
    return (*names[:keys], START, END, *names[keys:])
