"""Stateful functions and other operators in a unit test: no Spark, no Java."""

from pystate.operators.joins.kinds import AsofJoin, IntervalJoin, WindowJoin
from pystate.operators.runtime.deduplicate import Deduplicate
from pystate.operators.runtime.top import Top
from pystate.testing.broadcast import BroadcastHarness
from pystate.testing.harness import Harness
from pystate.testing.instances import ProcessHarness
from pystate.testing.loops import LoopHarness
from pystate.testing.row_operators import RowHarness
from pystate.testing.snapshot import BroadcastSnapshot, HarnessSnapshot, OperatorSnapshot
from pystate.testing.two_inputs import TwoInputHarness
from pystate.testing.windows import WindowHarness


def __dir__() -> list[str]:
    """The interface: modules that are only loaded are not part of it."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


__all__ = [
    "AsofJoin",
    "BroadcastHarness",
    "BroadcastSnapshot",
    "Deduplicate",
    "Harness",
    "HarnessSnapshot",
    "IntervalJoin",
    "LoopHarness",
    "OperatorSnapshot",
    "ProcessHarness",
    "RowHarness",
    "Top",
    "TwoInputHarness",
    "WindowHarness",
    "WindowJoin",
]
