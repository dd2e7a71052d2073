"""How many rows are in flight on the loops of a checkpoint, read from its files.

Thread safety: functions without state.
"""

from __future__ import annotations

from typing import Any

from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.refs import COUNT
from pystate.checkpoint.storage import CheckpointStorage
from pystate.processor.selection import Selection
from pystate.processor.state_reader import read_all

__all__ = ["rows_in_flight"]


def rows_in_flight(storage: CheckpointStorage) -> dict[str, int]:
    """Count the rows that the newest epoch has fed, on each loop by its uid.

    Only the counts are kept in memory, and there are not many: one for each bucket of a loop.
    """
    head = read_head(storage)
    counted = {}
    for operator in () if head is None else head.operators:
        if operator.is_loop:
            counts: Any = read_all(storage, operator.uid, selection=Selection(COUNT, False, False))
            counted[operator.uid] = sum(counts[COUNT].to_pylist())
    return counted
