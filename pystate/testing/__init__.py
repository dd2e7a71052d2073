"""Stateful functions in a unit test: no Spark, no Java."""

from pystate.testing.harness import Harness, HarnessSnapshot

__all__ = ["Harness", "HarnessSnapshot"]
