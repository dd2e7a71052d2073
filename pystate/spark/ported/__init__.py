"""Spark's own stateful processors, unchanged, over pystate's tables."""
