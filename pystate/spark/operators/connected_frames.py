"""A user's function over two inputs by the same key: what `KeyedFrame.connect` returns.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql import types as st

from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.functions.base import KeyedCoProcessFunction, VectorizedCoFunction
from pystate.operators.functions.binding import for_tasks, operator_spec, require_state
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec, RightInput
from pystate.operators.runtime.late_rows import DROP_LATE, PROCESS_LATE, LateLike
from pystate.spark.base.arguments import side_columns
from pystate.spark.base.schemas import key_leaves, output_columns, parse_schema
from pystate.spark.evaluation.initial_state import Given
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.operators.two_inputs import TwoInputs
from pystate.types.keys import parse_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ConnectedFrames:
    """Two inputs with keys of the same types, made by `KeyedFrame.connect`."""

    def __init__(self, left: KeyedInput, right: KeyedInput) -> None:
        self._inputs = inputs = TwoInputs.of(left, right, "rows of two inputs come in no order")
        owner = inputs.owner
        for rows in (left, right):
            if [*rows.key_names] != rows.names:
                schema = rows.frame.schema
                fields = [name for name, _ in key_leaves(schema, rows.names, marked=False)]
                raise WrongTypeError(
                    f"{owner}: a key of two inputs is no struct: use its fields, "
                    f"key_by(df, {', '.join(map(repr, fields))}) of "
                    f"{', '.join(rows.frame.columns)}"
                )
        if [ddl for _, ddl in left.keys] != [ddl for _, ddl in right.keys]:
            one, two = (", ".join(map(" ".join, rows.keys)) for rows in (left, right))
            raise WrongTypeError(
                f"{owner}: the left input has the key {one}, the right one {two}: both see "
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
        inputs, owner = self._inputs, self._inputs.owner
        left, right = inputs.left, inputs.right
        declared = parse_schema(schema, owner)
        for rows in (left, right):
            rows.schema(owner)
        sides = side_columns(side_outputs, owner)
        lates = inputs.late(late, processes=True, sides=tuple(sides))
        if isinstance(late, Mapping) and "right" in late and right.event_time is None:
            raise InvalidArgumentError(
                f"{owner}: late={late!r}: rows of the right input are late by their event time: "
                "name its column, key_by(..., event_time='column')"
            )
        words = {
            side: PROCESS_LATE if word == PROCESS_LATE else DROP_LATE
            for side, word in lates.words.items()
        }
        columns = {side: (*rows.names, *inputs.others[side]) for side, rows in inputs.sides.items()}
        spec = FunctionSpec(
            function,
            key=tuple(left.names),
            columns=columns["left"],
            output=output_columns(declared, owner),
            event_time=left.event_time,
            side_outputs=sides,
            late=words["left"],
            right=RightInput(
                tuple(right.names), columns["right"], right.event_time, words["right"]
            ),
        )
        require_state(function, owner)
        for_tasks(function, cloudpickle.dumps)
        applied = inputs.application(
            operator_spec(function, inputs.uid, parse_key(left.keys)),
            partial(FunctionOperator, spec, lates),
            declared,
            {**{tag: columns.schema for tag, columns in sides.items()}, **lates.schemas},
        )
        return apply(
            inputs.evaluation, replace(applied, state=initial_state, timers=initial_timers)
        )
