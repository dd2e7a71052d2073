"""How many rows came into a pipeline: counted where its operators read them.

An operator's tasks count what they read. A row that one operator has emitted and another reads has
not come in again, and a row of the input that two operators read has come in once. So inputs that
are fed by other operators do not count, and of several that read the same rows one does. Whether
they read the same is told by their plans, apart from the columns that they choose. If an operator
reads the pipeline's input as it is, its rows are all that came; otherwise those of parts that
differ, as by a filter, are added up.

Thread safety: an `InputFlow` belongs to the thread that runs the epoch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pystate.epochs.range_report import RangeReport
from pystate.epochs.watermarks import Input
from pystate.spark.base.jvm import plan_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_TREE = re.compile(r"^[ :+-]*")
#: Nodes that neither take rows away nor add any.
_KEEPING = ("Project ", "Sort ", "Repartition", "RebalancePartitions", "SubqueryAlias ")
_BROADCAST = "broadcast"


class RowsIn(NamedTuple):
    """What came into a pipeline."""

    rows: int
    late: int | None
    """How many of them were late; None if none has an event time."""


class InputFlow:
    """The inputs of one evaluation's operators."""

    def __init__(self, has_source: Callable[[DataFrame], bool]) -> None:
        self._has_source = has_source
        self._frames: list[DataFrame] = []
        #: The frames that were made when no operator had been declared.
        self._first: set[int] = set()
        self._inputs: dict[str, tuple[Input, ...]] = {}
        self._data: Any = None

    def begin(self, data: Any) -> None:
        """Note the input of the pipeline."""
        self._data = data

    def note(self, frame: DataFrame) -> int:
        """Note a frame that feeds an operator; return its number."""
        if not self._inputs:
            self._first.add(len(self._frames))
        self._frames.append(frame)
        return len(self._frames) - 1

    def declare(self, uid: str, inputs: Sequence[Input]) -> None:
        """Note the inputs of an operator."""
        self._inputs[uid] = tuple(inputs)

    def rows_in(self, reports: Sequence[RangeReport]) -> RowsIn:
        """Add up what the tasks have seen."""
        rows: dict[tuple[str, str], int] = defaultdict(int)
        late: dict[str, int] = defaultdict(int)
        for report in reports:
            if report.uid not in self._inputs:
                continue
            for seen in report.inputs:
                key = report.uid, seen.name
                if seen.name == _BROADCAST:  # each range gets all of them
                    rows[key] = max(rows[key], seen.rows)
                else:
                    rows[key] += seen.rows
            if "late_rows" in report.metrics:
                late[report.uid] += int(report.metrics["late_rows"])
        origins = {key: self._origin(*key) for key in rows}
        outside = {key: origin for key, origin in origins.items() if origin is not None}
        if not outside:
            return RowsIn(0, sum(late.values()) if late else None)
        if len(outside) == 1:
            [(uid, name)] = outside
            return RowsIn(rows[uid, name], late.get(uid))
        signs = {key: self._signature(key, origin) for key, origin in outside.items()}
        whole = _signature(self._data)
        of_sign: dict[str, int] = defaultdict(int)
        for key, sign in signs.items():
            of_sign[sign] = max(of_sign[sign], rows[key])
        late_of: dict[tuple[str, ...], int] = defaultdict(int)
        for uid in late.keys() & {uid for uid, _ in outside}:
            signature = tuple(sorted(sign for (owner, _), sign in signs.items() if owner == uid))
            late_of[signature] = max(late_of[signature], late[uid])
        all_late = None
        if late_of:
            all_late = max(late_of.values()) if whole in of_sign else sum(late_of.values())
        return RowsIn(of_sign.get(whole) or sum(of_sign.values()), all_late)

    def _origin(self, uid: str, name: str) -> int | None:
        """The number of the frame that feeds an input; -1 if it is none, None if operators do."""
        for given in self._inputs[uid]:
            if given.name == name:
                number = given.origin
                if number < 0 or number in self._first or self._has_source(self._frames[number]):
                    return number
                return None
        return -1

    def _signature(self, key: tuple[str, str], origin: int) -> str:
        return repr(key) if origin < 0 else _signature(self._frames[origin])


def _signature(frame: Any) -> str:
    """What determines the rows of a frame, but for its columns; empty if it is no frame."""
    if not hasattr(frame, "_jdf"):
        return ""
    lines = plan_text(frame).splitlines()
    nodes = (_TREE.sub("", line) for line in lines)
    return "\n".join(node for node in nodes if not node.startswith(_KEEPING))
