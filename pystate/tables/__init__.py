"""Live state: a table with its clock and timers, and how it is sealed and restored."""
