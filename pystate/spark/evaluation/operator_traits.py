"""What a job's evaluations find out about its operators, for those that follow.

Among it is whether an operator's rows are combined before the shuffle, where the user leaves it
open. It pays if there are many rows to a key, and costs time otherwise; both ways give the same
results and the same state. So the last epoch decides: how many rows there were, and how many rows
of state they changed. With combined rows it is seen how many came. A job begins without.

Thread safety: belongs to the thread that runs the epochs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pystate.epochs.range_report import RangeReport
from pystate.operators.runtime.partial_rows import COMBINED_ROWS
from pystate.redaction import logger

_LOG = logger("pystate.spark.evaluation.operator_traits")

#: Of fewer rows it does not matter.
_LEAST_ROWS = 50_000
#: There must be so many rows to each changed row of state before rows are combined,
_BEGINS = 4
#: and so many to each that comes after it, or they are no longer.
_GOES_ON = 2
#: After it did not pay, so many epochs pass until it may be tried again; each time twice as many.
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 1024


@dataclass
class _Operator:
    combines: bool = False
    pause: int = _FIRST_PAUSE
    waits: int = 0


class CombinePolicy:
    """Remembers what the epochs of a job have shown."""

    def __init__(self) -> None:
        self._operators: dict[str, _Operator] = {}

    def combines(self, uid: str) -> bool:
        """Whether the rows of an operator are to be combined in this epoch."""
        return self._operators.setdefault(uid, _Operator()).combines

    def note(self, reports: Iterable[RangeReport]) -> None:
        """Take what the reports of a published epoch say."""
        rows: dict[str, int] = {}
        changed: dict[str, int] = {}
        combined: dict[str, int] = {}
        for report in reports:
            uid, metrics = report.uid, report.metrics
            if uid not in self._operators:
                continue
            rows[uid] = rows.get(uid, 0) + int(metrics.get("rows_in", 0))
            changed[uid] = changed.get(uid, 0) + int(metrics.get("rows_changed", 0))
            if COMBINED_ROWS in metrics:
                combined[uid] = combined.get(uid, 0) + int(metrics[COMBINED_ROWS])
        for uid, number in rows.items():
            self._note(uid, number, changed[uid], combined.get(uid))

    def _note(self, uid: str, rows: int, changed: int, combined: int | None) -> None:
        operator = self._operators[uid]
        if combined is not None:
            if rows < _GOES_ON * combined:
                operator.combines = False
                operator.waits, operator.pause = operator.pause, operator.pause * 2
                operator.pause = min(operator.pause, _LONGEST_PAUSE)
                _LOG.info("operator %r: %d rows combined gave %d: no longer", uid, rows, combined)
            elif rows < _LEAST_ROWS:
                operator.combines = False
            return
        if operator.waits:
            operator.waits -= 1
        elif rows >= _LEAST_ROWS and rows >= _BEGINS * max(changed, 1):
            operator.combines = True
            _LOG.info(
                "operator %r: %d rows changed %d rows of state: rows are combined before the "
                "shuffle from now on",
                uid,
                rows,
                changed,
            )


@dataclass(frozen=True)
class OperatorTraits:
    """What is known of operators, by uid. It is lost with the driver, and found out again."""

    materialised: set[str] = field(default_factory=set)
    """Those whose output was read more than once, or not to its end."""
    announced: set[str] = field(default_factory=set)
    """Those whose rows could not be counted, so that marker rows announce their ranges."""
    kept: set[str] = field(default_factory=set)
    """Those whose tasks say how old what they keep is: a watermark waits for it."""
    combining: CombinePolicy = field(default_factory=CombinePolicy)
    """Those whose rows are combined before the shuffle."""
    begun: set[str] = field(default_factory=set)
    """Those of which it was said that they begin with nothing any more."""
    plain_keys: set[str] = field(default_factory=set)
    """Those of which it was said that their keys do not tell null structs from structs of nulls."""
