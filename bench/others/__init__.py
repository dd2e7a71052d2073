"""The same work in other engines, in environments of their own, which `make bench-peers` makes.

Each program reads the same rows from files, in a process of its own, and prints its time and its
result. Those of other engines import nothing of this package but `counting`, which lies beside
them, since their environments do not have it.
"""
