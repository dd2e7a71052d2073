"""Runs a stateful operator over one task's rows, without Spark."""
