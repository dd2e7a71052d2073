"""Live state: a table, its clock and timers, sealing it and restoring it."""
