"""What happens to a harness before an epoch."""

from __future__ import annotations

from typing import Any


def disturbed(harness: Any, act: str, operator: Any, rows: int = 0, timers: int = 0) -> Any:
    """The harness after a failure was arranged, or after a restart: `restore 3` with 3 ranges."""
    if act in ("seal", "publish"):
        harness.fail_at(act)
    elif act == "rows":
        harness.fail_after(rows)
    elif act == "timers":
        harness.fail_after(timers=timers)
    elif act:
        snapshot = harness.snapshot()
        harness.close()
        return type(harness).restore(snapshot, operator, parallelism=int(act.split()[1]))
    return harness
