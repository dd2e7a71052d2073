"""Removes what no epoch needs any more.

Thread safety: `collect_orphans` may run beside everything else.

Why nothing that matters is removed
-----------------------------------
1. Files are listed first, manifests second, ownership is checked third. A driver that took over
   later builds on manifests that were there at the second step, and makes files that were not
   there at the first.
2. Files of epochs after the newest manifest, finished or not, may belong to a running evaluation
   and stay. Those of other epochs can only be named by a manifest already, or by a base merge of
   this process, which is passed in as `live`.
3. A grace period on top of that covers attempts that outlive their evaluation.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable

from pystate.errors import CheckpointError
from pystate.history import retained_epochs
from pystate.manifest import Manifest, manifest_path
from pystate.storage import CheckpointStorage, final_name

__all__ = ["collect_orphans", "delete_files"]

_LOG = logging.getLogger("pystate.retention")
_STATE = "state"
_STATE_FILE = re.compile(r".*/(\d{8,})-[0-9a-f]+\.(?:delta|base)")
_FOLDERS = ("manifests", "owners", "runs")
# For leftovers of small files, whose writers cannot be told dead from alive.
_LEAST_GRACE_MS = 60_000


def collect_orphans(
    storage: CheckpointStorage,
    *,
    grace_ms: int,
    live: Callable[[], Collection[str]],
    check_owner: Callable[[], None],
    now_ms: int | None = None,
) -> int:
    """Delete state files that no manifest names, and leftovers of unfinished writes.

    Parameters
    ----------
    storage : CheckpointStorage
        The checkpoint.
    grace_ms : int
        Younger files stay.
    live : callable
        Returns the paths that a base merge of this process may still hand to a manifest.
    check_owner : callable
        Raises `FencedError` where this driver is not the owner any more.
    now_ms : int, optional
        The time by the storage's clock; now by default.

    Returns
    -------
    int
        Number of files deleted.

    Raises
    ------
    CheckpointError
        A retained manifest cannot be read; nothing was deleted. `FencedError` likewise.
    """
    files = storage.list(_STATE) + storage.list(_STATE, temporary=True)
    others = [entry for folder in _FOLDERS for entry in storage.list(folder, temporary=True)]
    protected = set(live())
    epochs = retained_epochs(storage)
    for epoch in epochs:
        path = manifest_path(epoch)
        try:
            protected |= Manifest.decode(storage.read_bytes(path), path).paths
        except FileNotFoundError:
            return 0  # retired a moment ago: the next collection sees the new list
    check_owner()
    newest = epochs[-1] if epochs else 0
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    small_ms = max(grace_ms, _LEAST_GRACE_MS)
    doomed = [entry.path for entry in others if entry.modified_ms <= now_ms - small_ms]
    for entry in files:
        final = final_name(entry.path)
        match = _STATE_FILE.fullmatch(final)
        if (
            match is not None
            and int(match[1]) <= newest
            and final not in protected
            and entry.modified_ms <= now_ms - grace_ms
        ):
            doomed.append(entry.path)
    return delete_files(storage, doomed)


def delete_files(storage: CheckpointStorage, paths: Iterable[str]) -> int:
    """Delete files, going on past those that cannot be; return how many were there."""
    count = 0
    for path in paths:
        try:
            count += storage.delete(path)
        except CheckpointError as error:
            _LOG.warning("%s; the next collection tries again", error)
    return count
