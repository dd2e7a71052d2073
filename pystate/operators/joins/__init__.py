"""Joins of two inputs by key and event time, over a task's keyed state."""
