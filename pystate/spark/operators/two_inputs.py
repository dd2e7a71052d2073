"""Two inputs of one operator by the same key: their rows in one shuffle.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.base.arguments import checked_uid
from pystate.errors import InvalidArgumentError
from pystate.operators.joins.inputs import SideName
from pystate.operators.runtime.late_rows import LateInputs, LateLike
from pystate.operators.runtime.task import Operator
from pystate.spark.base.frame_columns import column_named
from pystate.spark.base.routing import route
from pystate.spark.base.schemas import KeySchema
from pystate.spark.evaluation.initial_state import RowsOf
from pystate.spark.operators.apply import Application
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.tasks.arrivals import UnitedRows
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_spec import OperatorSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

#: The column that says which input a row is of: 0 or 1.
_SIDE = "__pystate_side"
_COLUMN = "__pystate_column_"


@dataclass(frozen=True)
class TwoInputs:
    """The inputs of an operator, whose uid and name in errors are those of both."""

    uid: str
    left: KeyedInput
    right: KeyedInput

    @classmethod
    def of(cls, left: KeyedInput, right: KeyedInput, unordered: str) -> TwoInputs:
        """Check that they make one operator; `unordered` is why their rows have no order."""
        if left.uid is not None and right.uid is not None and left.uid != right.uid:
            raise InvalidArgumentError(
                f"two inputs make one operator, and they have the uids {left.uid!r} and "
                f"{right.uid!r}: give the right one none"
            )
        both = cls(checked_uid(right.uid if left.uid is None else left.uid), left, right)
        if left.order_by or right.order_by:
            raise InvalidArgumentError(f"{both.owner}: {unordered}; leave order_by out of key_by")
        return both

    @property
    def owner(self) -> str:
        """Names the operator in errors."""
        return f"operator {self.uid!r}"

    @property
    def evaluation(self) -> Evaluation:
        """The open epoch."""
        return self.left.evaluation

    @property
    def sides(self) -> Mapping[SideName, KeyedInput]:
        """Both by name."""
        return {"left": self.left, "right": self.right}

    @property
    def keys(self) -> KeySchema:
        """The key in the spelling of checkpoints, under its left names."""
        return self.left.keys

    @property
    def others(self) -> dict[SideName, list[str]]:
        """The columns of each that are not the key's."""
        return {
            side: [name for name in each.frame.columns if name not in each.names]
            for side, each in self.sides.items()
        }

    def late(
        self, late: LateLike, *, processes: bool = False, sides: Sequence[str] = ()
    ) -> LateInputs:
        """What happens to their late rows; see `LateInputs.of`."""
        schemas = {side: each.schema(self.owner) for side, each in self.sides.items()}
        return LateInputs.of(late, schemas, self.owner, processes=processes, sides=sides)

    def application(
        self,
        operator: OperatorSpec,
        make: Callable[[], Operator],
        result: st.StructType,
        sides: Mapping[str, pa.Schema],
    ) -> Application:
        """An operator over both."""
        others = self.others
        return Application(
            operator,
            self.keys,
            make,
            [each.frame for each in self.sides.values()],
            self._united,
            result,
            inputs=[replace(each.input, name=side) for side, each in self.sides.items()],
            sides=sides,
            invalid={side: each.invalid_rows(self.owner) for side, each in self.sides.items()},
            earlier=self._earlier_rows(),
            arrivals=UnitedRows(
                {side: (each.names, others[side]) for side, each in self.sides.items()}
            ),
        )

    def _earlier_rows(self) -> list[RowsOf] | None:
        """The rows before the first epoch; None if neither input has any."""
        earlier = {side: each.earlier_rows(each.columns) for side, each in self.sides.items()}
        if not any(earlier.values()):
            return None
        none = {side: partial(each.frame.where, F.lit(False)) for side, each in self.sides.items()}
        return [
            rows[0]._replace(name=side) if rows else RowsOf(side, none[side], None)
            for side, rows in earlier.items()
        ]

    def _united(
        self, frames: Sequence[DataFrame], plan: OperatorPlan
    ) -> tuple[DataFrame, list[str]]:
        """The rows of both, routed: the key's columns, the side, left's others, right's others.

        A row has nulls where columns are not of its input.
        """
        # Both inputs have their keys under the same numbers, and other columns under their own.
        keys, (left, right) = self.left.names, self.others.values()
        count, cut = len(keys), len(keys) + len(left)
        numbers = [f"{_COLUMN}{i}" for i in range(cut + len(right))]
        selected = [
            frame.select(
                *_numbered(each.names, numbers[:count]),
                F.lit(side).cast("byte").alias(_SIDE),
                *_numbered(rest, own),
            )
            for side, (each, frame, rest, own) in enumerate(
                (
                    (self.left, frames[0], left, numbers[count:cut]),
                    (self.right, frames[1], right, numbers[cut:]),
                )
            )
        ]
        both = selected[0].unionByName(selected[1], allowMissingColumns=True)
        groups, parallelism = plan.operator.max_parallelism, plan.parallelism
        routed = route(both, numbers[:count], groups, parallelism, markers=plan.markers)
        return routed, [*keys, _SIDE, *numbers[count:]]


def _numbered(names: Sequence[str], numbers: Sequence[str]) -> list[Column]:
    """Columns under their numbers."""
    return [column_named(name).alias(number) for name, number in zip(names, numbers, strict=True)]
