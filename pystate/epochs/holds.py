"""Epochs whose files stay although the epochs are retired, while somebody copies them.

Thread safety: any thread.
"""

from __future__ import annotations

import threading

from pystate.checkpoint.manifest import Manifest


class Holds:
    """What is held at the moment; a driver has one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Manifest] = []
        self._waiting: set[str] = set()

    def hold(self, manifest: Manifest) -> None:
        """Keep an epoch's files."""
        with self._lock:
            self._held.append(manifest)

    def release(self, manifest: Manifest) -> frozenset[str]:
        """End one `hold`; returns the paths that were spared for it and may go now."""
        with self._lock:
            self._held.remove(manifest)
            freed = self._waiting - self._paths()
            self._waiting -= freed
            return frozenset(freed)

    def spare(self, doomed: frozenset[str]) -> frozenset[str]:
        """Return those of the paths that may go now; the others go when they are released."""
        with self._lock:
            held = self._paths() & doomed
            self._waiting |= held
            return doomed - held

    def paths(self) -> frozenset[str]:
        """The paths of all files that are held."""
        with self._lock:
            return self._paths() | self._waiting

    def _paths(self) -> frozenset[str]:
        return frozenset().union(*(manifest.paths for manifest in self._held))
