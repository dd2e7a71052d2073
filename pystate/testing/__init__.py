"""Stateful functions in a unit test: no Spark, no Java."""

from pystate.testing.harness import Harness, HarnessSnapshot
from pystate.testing.loops import LoopHarness
from pystate.testing.windows import WindowHarness

__all__ = ["Harness", "HarnessSnapshot", "LoopHarness", "WindowHarness"]
