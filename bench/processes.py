"""Processor time of this process and of all that it has started, as Linux counts it.

It is what a job costs, whoever else uses the machine: the driver, Spark's JVM and Python's workers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path


class ProcessorTime:
    """Counts from when it is made; without what a process did that has ended meanwhile."""

    def __init__(self) -> None:
        self._before = _ticks()

    def seconds(self) -> float:
        """Seconds of all cores since then."""
        gone = sum(ticks - self._before.get(pid, 0) for pid, ticks in _ticks().items())
        return gone / os.sysconf("SC_CLK_TCK")


def _ticks() -> dict[int, int]:
    """The processor time of each process."""
    children: dict[int, list[int]] = defaultdict(list)
    every: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has ended
            continue
        # The name, in parentheses, may have spaces; what follows begins with the state.
        fields = text[text.rindex(")") + 2 :].split()
        pid = int(path.parent.name)
        children[int(fields[1])].append(pid)
        every[pid] = int(fields[11]) + int(fields[12])
    found, left = {}, [os.getpid()]
    while left:
        pid = left.pop()
        left += children[pid]
        if pid in every:
            found[pid] = every[pid]
    return found
