"""Two inputs of a pipeline by the same key, to which a function of two inputs is applied.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from pyspark import cloudpickle
from pyspark.sql import types as st

from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.functions.base import KeyedCoProcessFunction, VectorizedCoFunction
from pystate.operators.functions.binding import for_tasks, operator_spec, require_state
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec, RightInput
from pystate.operators.runtime.late_rows import DROP_LATE, PROCESS_LATE, LateLike
from pystate.operators.windows.assigners import Assigner
from pystate.spark.base.arguments import side_columns
from pystate.spark.base.schemas import key_leaves, key_schema, output_columns, parse_schema
from pystate.spark.evaluation.initial import Given
from pystate.spark.operators.apply import Application, apply
from pystate.spark.operators.broadcast import BroadcastFrame, BroadcastFrames
from pystate.spark.operators.joined import (
    JoinedFrame,
    asof_join,
    earlier_rows,
    interval_join,
    invalid_rows,
    late_inputs,
    one_uid,
    united,
    window_join,
)
from pystate.spark.tasks.arrivals import UnitedRows
from pystate.types.durations import Duration
from pystate.types.keys import parse_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Connectable", "ConnectedFrames"]


def _fields(schema: st.StructType, keys: Sequence[str]) -> list[str]:
    return [name for name, _ in key_leaves(schema, keys, marked=False)]


class ConnectedFrames:
    """Two inputs with keys of the same types, made by `KeyedFrame.connect`.

    Parameters
    ----------
    left, right : JoinedFrame
        The inputs.
    """

    def __init__(self, left: JoinedFrame, right: JoinedFrame) -> None:
        self._uid = one_uid(left, right)
        self._owner = f"operator {self._uid!r}"
        if left.ordered or right.ordered:
            raise InvalidArgumentError(
                f"{self._owner}: rows of two inputs come in no order; leave order_by out of key_by"
            )
        self._left, self._right = left, right
        self._key = key_schema(left.frame.schema, left.keys, self._owner)
        other = key_schema(right.frame.schema, right.keys, self._owner)
        for frame, keys, found in ((left, left.keys, self._key), (right, right.keys, other)):
            if tuple(name for name, _ in found) != keys:
                raise WrongTypeError(
                    f"{self._owner}: a key of two inputs is no struct: use its fields, "
                    f"key_by(df, {', '.join(map(repr, _fields(frame.frame.schema, keys)))}) of "
                    f"{', '.join(frame.frame.columns)}"
                )
        if [ddl for _, ddl in self._key] != [ddl for _, ddl in other]:
            one, two = (", ".join(" ".join(pair) for pair in keys) for keys in (self._key, other))
            raise WrongTypeError(
                f"{self._owner}: the left input has the key {one}, the right one {two}: both see "
                "one key's state, so that their types are the same; cast one of them"
            )

    def process(
        self,
        function: KeyedCoProcessFunction | VectorizedCoFunction,
        schema: str | st.StructType,
        *,
        side_outputs: Mapping[str, str | st.StructType] | None = None,
        late: LateLike = "process",
        initial_state: Given | None = None,
        initial_timers: Given | None = None,
    ) -> DataFrame:
        """Run a function over the rows of both inputs.

        Parameters
        ----------
        function : KeyedCoProcessFunction or VectorizedCoFunction
            An instance; it is pickled to the workers.
        schema : str or StructType
            The columns that it yields, as DDL.
        side_outputs : mapping from tag to str or StructType, optional
            As in `KeyedFrame.process`.
        late : {"process", "drop"}, str or mapping
            What happens to rows below the watermark, the smaller one of both inputs: the function
            handles them, or they are dropped, or go to the side output of a tag. One word for both
            inputs, or ``{"left": …, "right": …}``. A tag has the columns of its input; a tag for
            both has those of both, and nulls. Late rows are always counted.
        initial_state, initial_timers : DataFrame or callable, optional
            As in `KeyedFrame.process`; the key has the names of the left input.

        Returns
        -------
        DataFrame
            What the function yields.

        Notes
        -----
        Rows of the two inputs come in no particular order, neither within one nor between them.
        """
        owner, left, right = self._owner, self._left, self._right
        declared = parse_schema(schema, owner)
        for each in (left, right):
            output_columns(each.frame.schema, f"{owner}: its input")
        sides = side_columns(side_outputs, owner)
        lates = late_inputs(late, (left, right), owner, processes=True, sides=tuple(sides))
        if isinstance(late, Mapping) and "right" in late and right.event_time is None:
            raise InvalidArgumentError(
                f"{owner}: late={late!r}: rows of the right input are late by their event time: "
                "name its column, key_by(..., event_time='column')"
            )
        words = {
            side: PROCESS_LATE if word == PROCESS_LATE else DROP_LATE
            for side, word in lates.words.items()
        }
        others = tuple(
            [name for name in each.frame.columns if name not in each.keys] for each in (left, right)
        )
        spec = FunctionSpec(
            function,
            key=left.keys,
            columns=(*left.keys, *others[0]),
            output=output_columns(declared, owner),
            event_time=left.event_time,
            side_outputs=sides,
            late=words["left"],
            right=RightInput(
                right.keys, (*right.keys, *others[1]), right.event_time, words["right"]
            ),
        )
        require_state(function, owner)
        for_tasks(function, cloudpickle.dumps)
        key, both = left.keys, (others[0], others[1])
        return apply(
            left.evaluation,
            Application(
                operator_spec(function, self._uid, parse_key(self._key)),
                self._key,
                partial(FunctionOperator, spec, lates),
                [left.frame, right.frame],
                partial(united, (left, right), key, both),
                declared,
                inputs=[replace(left.input, name="left"), replace(right.input, name="right")],
                sides={**{tag: columns.schema for tag, columns in sides.items()}, **lates.schemas},
                invalid=invalid_rows((left, right), owner),
                earlier=earlier_rows((left, right)),
                state=initial_state,
                timers=initial_timers,
                arrivals=UnitedRows({"left": (key, both[0]), "right": (right.keys, both[1])}),
            ),
        )


class Connectable:
    """The methods of `KeyedFrame` that take another input."""

    def _joined(self) -> JoinedFrame:
        raise NotImplementedError

    def _broadcast(self, rules: BroadcastFrame) -> BroadcastFrames:
        raise NotImplementedError

    def _refuse_all_updates(self, method: str, problem: str) -> None:
        raise NotImplementedError

    def _of_rows_only(self, method: str) -> JoinedFrame:
        """The input of a join, which has no use for updates.

        Raises
        ------
        InvalidArgumentError
            It holds some.
        """
        self._refuse_all_updates(method, "what was joined with an earlier row cannot be taken back")
        return self._joined()

    @overload
    def connect(self, right: Connectable) -> ConnectedFrames: ...
    @overload
    def connect(self, right: BroadcastFrame) -> BroadcastFrames: ...
    def connect(self, right: Connectable | BroadcastFrame) -> ConnectedFrames | BroadcastFrames:
        """Give a function this input and another one.

        Parameters
        ----------
        right : KeyedFrame or BroadcastFrame
            The other input: one with a key of the same types, whose `key_by` may leave out the uid;
            or what `Job.broadcast` returns.

        Returns
        -------
        ConnectedFrames or BroadcastFrames
            Call `process` on it, with a `KeyedCoProcessFunction` or a `VectorizedCoFunction`; or
            with a `KeyedBroadcastProcessFunction` if `right` is a broadcast.

        Raises
        ------
        WrongTypeError
            The keys have different types.
        """
        if isinstance(right, BroadcastFrame):
            return self._broadcast(right)
        other = "job.key_by(...) or job.broadcast(...)"
        return ConnectedFrames(self._joined(), _other(right, "connect", other))

    def interval_join(
        self,
        right: Connectable,
        lower: Duration,
        upper: Duration,
        *,
        how: Literal["inner", "left", "right", "full"] = "inner",
        suffixes: tuple[str, str] | None = None,
        late: LateLike = "drop",
    ) -> DataFrame:
        """Join rows of two inputs with equal keys whose times are close to each other.

        Parameters
        ----------
        right : KeyedFrame
            The other input; its key columns have the same types. Both have an event time.
        lower, upper : str, timedelta or int
            A pair of rows matches if the right one's time minus the left one's is between these,
            both included: ``"-5 minutes"``, ``"10 minutes"``; a timedelta; or milliseconds.
        how : {"inner", "left", "right", "full"}
            The inputs whose rows are emitted even if they match none, with nulls; once the
            watermark says that none can come any more.
        suffixes : tuple of str, optional
            Added to the names of columns that both inputs have, besides the key.
        late : "drop", str or mapping
            What happens to late rows: they are dropped, or go to the side output of a tag, with the
            columns of their input. ``{"left": "late_orders", "right": "late_clicks"}`` names one
            for each input or for one of them; a tag for both has the columns of both, and nulls.

        Returns
        -------
        DataFrame
            The key under its left names, then the left input's other columns, then the right
            input's.

        Raises
        ------
        InvalidArgumentError
            An input has no event time, two columns would have the same name, or the bounds are no
            interval.
        WrongTypeError
            The keys have different types.

        Notes
        -----
        As in SQL, a null in a key equals nothing, and neither does a row without a time match any;
        an outer join emits such rows at once. Late rows are counted. A pair is emitted in the epoch
        in which the second of its rows comes. A row without a partner is emitted up to a quarter of
        the interval's width, or an eighth of a second, after that would be possible, and rows leave
        the state up to twice its width after it, since they leave together.
        """
        return interval_join(
            self._of_rows_only("interval_join"),
            _other(right, "interval_join", refuses=True),
            lower,
            upper,
            how,
            suffixes,
            late,
        )

    def asof_join(
        self,
        right: Connectable,
        *,
        how: Literal["inner", "left"] = "inner",
        tolerance: Duration | None = None,
        suffixes: tuple[str, str] | None = None,
        late: LateLike = "drop",
    ) -> DataFrame:
        """Join each row with the newest row of a slowly changing table that is not after it.

        Parameters
        ----------
        right : KeyedFrame
            The table's versions: a row holds from its event time until the next one of its key. Of
            rows of the same time the last that came holds.
        how : {"inner", "left"}
            ``"left"`` also emits rows for which there is no version, with nulls.
        tolerance : str, timedelta or int, optional
            How much older than a row its version may be; older versions then leave the state.
        suffixes : tuple of str, optional
            Added to the names of columns that both inputs have, besides the key.
        late : "drop", str or mapping
            As in `interval_join`.

        Returns
        -------
        DataFrame
            As for `interval_join`; each left row at most once.

        Raises
        ------
        InvalidArgumentError, WrongTypeError
            As for `interval_join`.

        Notes
        -----
        A row is emitted once the watermark has passed it: until then an earlier version could come.
        Nulls and late rows are treated as in `interval_join`.
        """
        return asof_join(
            self._of_rows_only("asof_join"),
            _other(right, "asof_join", refuses=True),
            how,
            tolerance,
            suffixes,
            late,
        )

    def join(
        self,
        right: Connectable,
        *,
        window: Assigner,
        how: Literal["inner", "left", "right", "full"] = "inner",
        suffixes: tuple[str, str] | None = None,
        late: LateLike = "drop",
    ) -> DataFrame:
        """Join rows of two inputs with equal keys that are in the same window.

        Parameters
        ----------
        right : KeyedFrame
            The other input; its key columns have the same types. Both have an event time.
        window : Tumbling, Sliding, Cumulating or Session
            The windows. A session is one of both inputs together: their rows prolong it alike.
        how : {"inner", "left", "right", "full"}
            The inputs whose rows are emitted even if their window has no partner for them, with
            nulls.
        suffixes : tuple of str, optional
            Added to the names of columns that both inputs have, besides the key.
        late : "drop", str or mapping
            As in `interval_join`; of rows for which all of their windows are over.

        Returns
        -------
        DataFrame
            The key under its left names, ``window_start`` and ``window_end``, then the left input's
            other columns, then the right input's. Start and end are of the type of the left
            input's event time.

        Raises
        ------
        InvalidArgumentError
            An input has no event time, two columns would have the same name, or the windows do not
            go by time.
        WrongTypeError
            The keys have different types.

        Notes
        -----
        A window is joined once, when the watermark, the smaller one of both inputs, has reached its
        end. In windows that overlap a pair is emitted for each window that it is in. A null in a
        key equals nothing: an outer join emits such a row with its window. A row without a time is
        in no window.
        """
        return window_join(
            self._of_rows_only("join"),
            _other(right, "join", refuses=True),
            window,
            how,
            suffixes,
            late,
        )


def _other(
    right: Any, method: str, takes: str = "job.key_by(...)", *, refuses: bool = False
) -> JoinedFrame:
    """The other input of a method, which may refuse updates."""
    if not isinstance(right, Connectable):
        raise InvalidArgumentError(f"{method} takes another input, {takes}, not {shown(right)}")
    return right._of_rows_only(method) if refuses else right._joined()
