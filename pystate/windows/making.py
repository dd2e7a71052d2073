"""Which operator runs which kind of windows.

A function without state.
"""

from __future__ import annotations

from typing import Any

from pystate.windows.assigners import CountWindow, Global, Session
from pystate.windows.counted import CountOperator
from pystate.windows.operator import WindowOperator
from pystate.windows.sessions import SessionOperator
from pystate.windows.sliced import SlicedOperator
from pystate.windows.specification import WindowSpec
from pystate.windows.tumbling import GlobalOperator, TumblingOperator

__all__ = ["make_operator"]


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
