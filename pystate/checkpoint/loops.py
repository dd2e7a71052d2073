"""How the loops of a checkpoint are known: operators whose state is rows in flight.

Thread safety: a function without state.
"""

from __future__ import annotations

from pystate.checkpoint.refs import OperatorState

__all__ = ["BUCKET", "COUNT", "LOOP_KEY", "is_loop"]

#: The key column, which tells them from other operators: no column of a user begins so.
BUCKET = "__pystate_bucket"
#: The state that has the number of a bucket's rows.
COUNT = "count"
#: The key as checkpoints spell it.
LOOP_KEY = ((BUCKET, "long"),)


def is_loop(operator: OperatorState) -> bool:
    """Whether an operator's state is the rows in flight on a loop."""
    return [name for name, _ in operator.key_schema] == [BUCKET]
