"""Checks of whole checkpoints in the background, for the page: `verify`, with its progress.

Thread safety: any thread.

Invariants
----------
1. One checkpoint is checked at a time, by one thread, so that a check is never more than a part of
   what the machine can do.
2. A check that was stopped, or whose server ends, leaves nothing behind: it only reads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from pystate.errors import InUseError, PystateError
from pystate.maintenance.verification import KINDS, Verification, verify
from pystate.serve.page_data import JobView

_MOST_FINDINGS = 200


class _StoppedError(Exception):
    """Somebody does not want the check any more."""


@dataclass
class _Check:
    state: str = "running"
    """``running``, ``done``, ``failed`` or ``stopped``."""
    started_ms: int = 0
    ended_ms: int | None = None
    read_bytes: int = 0
    all_bytes: int | None = None
    error: str | None = None
    result: dict[str, Any] | None = None


class Checks:
    """Runs `verify` for the page, and keeps the last result of each checkpoint."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, _Check] = {}
        self._running: str | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, view: JobView) -> dict[str, Any]:
        """Begin to check a checkpoint, unless that runs already.

        `InUseError`: another one is checked.
        """
        with self._lock:
            if self._running == view.name:
                return self._told(view.name)
            if self._running is not None:
                raise InUseError(
                    f"{self._running!r} is being checked: wait for its end, or stop it there"
                )
            self._running = view.name
            self._checks[view.name] = check = _Check(started_ms=time.time_ns() // 1_000_000)
            self._stopping.clear()
            self._thread = threading.Thread(
                target=self._run, args=(view, check), name="pystate-verify", daemon=True
            )
            self._thread.start()
            return self._told(view.name)

    def progress(self, view: JobView) -> dict[str, Any]:
        """How far the last check of a checkpoint is, or what it has found."""
        with self._lock:
            return self._told(view.name)

    def stop(self, view: JobView) -> dict[str, Any]:
        """End a check that runs; it ends after the file that it reads."""
        with self._lock:
            if self._running == view.name:
                self._stopping.set()
            return self._told(view.name)

    def close(self) -> None:
        """End what runs, and wait for it."""
        self._stopping.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _told(self, name: str) -> dict[str, Any]:
        check = self._checks.get(name)
        return {"state": "none"} if check is None else asdict(check)

    def _run(self, view: JobView, check: _Check) -> None:
        def progress(done: int, of: int) -> None:
            if self._stopping.is_set():
                raise _StoppedError
            check.read_bytes, check.all_bytes = done, of

        state = "failed"
        try:
            check.result = _told_of(verify(view.location, jobs=1, progress=progress), view)
            state = "done"
        except _StoppedError:
            state = "stopped"
        except (PystateError, OSError) as error:
            check.error = view.without_place(str(error))
        finally:
            with self._lock:
                check.state, check.ended_ms = state, time.time_ns() // 1_000_000
                self._running = None


def _told_of(found: Verification, view: JobView) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "epochs": found.epochs,
        "good_epochs": found.good_epochs,
        "files": found.files,
        "size_bytes": found.size_bytes,
        "errors": len(found.errors),
        "findings": [
            {
                "path": each.path,
                "kind": each.kind,
                "meaning": KINDS.get(each.kind, ""),
                "message": view.without_place(each.message),
                "epochs": each.epochs,
                "uid": each.uid,
                "ranges": each.ranges,
                "key_groups": each.key_groups,
                "size_bytes": each.size_bytes,
                "is_error": each.is_error,
            }
            for each in found.findings[:_MOST_FINDINGS]
        ],
        "more_findings": max(0, len(found.findings) - _MOST_FINDINGS),
    }
