"""The same work in other engines, each in an environment of its own, which `make bench-peers` makes.

Each program reads the same rows from a file, in a process of its own, and prints its result as
JSON. Programs import nothing of this package, since their environments do not have it.
"""
