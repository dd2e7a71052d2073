"""Processor time of this process and of all that it has started, as Linux counts it.

It is what a job costs, whoever else uses the machine: the driver, Spark's JVM and Python's workers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path


def processor_seconds() -> float:
    """Seconds of all cores so far, of processes that have ended as well."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has ended
            continue
        # The name, in parentheses, may have spaces; what follows begins with the state.
        fields = text[text.rindex(")") + 2 :].split()
        pid = int(path.parent.name)
        children[int(fields[1])].append(pid)
        ticks[pid] = sum(int(field) for field in fields[11:15])
    found, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        found += ticks.get(pid, 0)
        left += children[pid]
    return found / os.sysconf("SC_CLK_TCK")
