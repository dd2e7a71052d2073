"""Who owns a checkpoint, and whether that driver still runs."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.ownership import Ownership, current_owner, is_running


def _own(root: str) -> None:
    Ownership(LocalStorage(root), "other").acquire()
    os._exit(0)


def test_a_driver_runs_until_it_closes_or_ends(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    own = Ownership(storage, "own")
    own.acquire()
    owner = current_owner(storage)
    assert owner is not None and is_running(storage, owner) is True
    assert is_running(storage, replace(owner, host="elsewhere")) is None
    # The process of that number began after the driver.
    assert is_running(storage, replace(owner, started_ms=1)) is False
    own.close()
    assert is_running(storage, owner) is False
    assert is_running(storage, replace(owner, host="elsewhere")) is False
    other = multiprocessing.get_context("fork").Process(target=_own, args=(str(tmp_path),))
    other.start()
    other.join()
    killed = current_owner(storage)
    assert killed is not None and killed.term == 2 and is_running(storage, killed) is False
