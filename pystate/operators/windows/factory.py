"""Which operator runs which kind of windows.

A function without state.
"""

from __future__ import annotations

from typing import Any

from pystate.operators.windows.assigners import CountWindow, Global, Session
from pystate.operators.windows.count_windows import CountOperator
from pystate.operators.windows.operator import WindowOperator
from pystate.operators.windows.sessions import SessionOperator
from pystate.operators.windows.slices import SlicedOperator
from pystate.operators.windows.specification import WindowSpec
from pystate.operators.windows.tumbling import GlobalOperator, TumblingOperator


def make_operator(
    spec: WindowSpec, late_tag: str | None = None, *, combined: bool = False
) -> WindowOperator:
    """Make the operator of a specification; the parameters are those of `WindowOperator`."""
    kind: Any = TumblingOperator
    if spec.shares:
        kind = SlicedOperator
    elif isinstance(spec.options.windows, Session):
        kind = SessionOperator
    elif isinstance(spec.options.windows, CountWindow):
        kind = CountOperator
    elif isinstance(spec.options.windows, Global):
        kind = GlobalOperator
    operator: WindowOperator = kind(spec, late_tag, combined=combined)
    return operator
