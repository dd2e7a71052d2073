"""Stateful functions in a unit test: no Spark, no Java."""

from pystate.testing.broadcast import BroadcastHarness, BroadcastSnapshot
from pystate.testing.harness import Harness, HarnessSnapshot
from pystate.testing.instances import ProcessHarness
from pystate.testing.windows import WindowHarness

__all__ = [
    "BroadcastHarness",
    "BroadcastSnapshot",
    "Harness",
    "HarnessSnapshot",
    "ProcessHarness",
    "WindowHarness",
]
