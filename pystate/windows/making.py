"""Which operator runs which kind of windows.

A function without state.
"""

from __future__ import annotations

from typing import Any

from pystate.backend.keyed import KeyedStateBackend
from pystate.operator.invalid import InvalidRows
from pystate.windows.assigners import CountWindow, Global, Session
from pystate.windows.counted import CountOperator
from pystate.windows.operator import EpochTimes, LateRows, WindowOperator
from pystate.windows.sessions import SessionOperator
from pystate.windows.sliced import SlicedOperator
from pystate.windows.specification import WindowSpec
from pystate.windows.tumbling import GlobalOperator, TumblingOperator

__all__ = ["make_operator"]


def make_operator(
    spec: WindowSpec,
    backend: KeyedStateBackend,
    times: EpochTimes,
    late: LateRows | None = None,
    owner: str = "windows",
    *,
    combined: bool = False,
    invalid: InvalidRows | None = None,
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
    operator: WindowOperator = kind(
        spec, backend, times, late, owner, combined=combined, invalid=invalid
    )
    return operator
