"""Operators: functions, windows and joins, and how they run over one task's rows."""
