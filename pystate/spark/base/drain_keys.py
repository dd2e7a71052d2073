"""The run keys of the epochs that drain a stream.

An epoch that drains is a run whose key names the epoch before it. So it is computed only once, even
if the query is started again without new input.

Thread safety: functions without state.
"""

from __future__ import annotations

from pystate.base.arguments import text
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError

_PREFIX = "pystate drain after epoch "


def drains_a_stream(run_key: str | None) -> bool:
    """Whether a run key is that of an epoch that drains a stream."""
    return run_key is not None and run_key.startswith(_PREFIX)


def drain_key(storage: CheckpointStorage) -> str | None:
    """The run key of the epoch that drains a checkpoint; None if the checkpoint has no epoch.

    If the newest epoch has drained already, it is that epoch's key.
    """
    head = read_head(storage)
    if head is None:
        return None
    return head.run_key if drains_a_stream(head.run_key) else f"{_PREFIX}{head.epoch}"


def checked_run_key(run_key: str | None) -> str | None:
    """Return a user's run key, which may be None; refuse one of the keys made here."""
    if run_key is not None and drains_a_stream(text(run_key, "run_key")):
        raise InvalidArgumentError(
            f"run_key={run_key!r:.80}: run keys that begin like this are reserved for epochs "
            "that drain a stream: take another one, with drain=True if the run is to drain"
        )
    return run_key
