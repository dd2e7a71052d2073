"""What a driver does after an epoch: retire old ones, merge deltas, remove files that nobody needs.

Thread safety: a `Housekeeping` belongs to its coordinator's lock; what it submits runs on the
maintenance thread.

Invariants
----------
1. Nothing here can fail an epoch: what did not work is tried again after the next one.
2. What an epoch has retired is removed after the next one is published, which has made it durable
   that the retired epochs do not count.
3. Nothing waits for readers. Their leases keep epochs within the bounds that
   `pystate.checkpoint.leases` names; what was kept for them is retired a few epochs at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from pystate.checkpoint.leases import LeaseBook
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History, Retired
from pystate.checkpoint.refs import RangeState
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.merges import FileMerges, Maintenance
from pystate.epochs.ownership import Ownership, have_ended
from pystate.epochs.range_report import RangeReport
from pystate.epochs.retention import (
    delete_files,
    delete_orphans,
    delete_retired,
    find_abandoned,
    find_orphans,
)
from pystate.errors import CheckpointError, PystateError
from pystate.redaction import logger

_LOG = logger("pystate.epochs.housekeeping")
# Epochs between two searches for orphans; retired files are removed at once, without a search.
_ORPHANS_EVERY = 64
# The most epochs that one epoch retires: each takes a write.
_RETIRED_AT_ONCE = 32


class HeldEpochs:
    """Epochs whose files stay, although they are retired, while somebody copies them.

    Any thread may call it.
    """

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


class Housekeeping:
    """Keeps a checkpoint's folder small."""

    def __init__(
        self,
        storage: CheckpointStorage,
        history: History,
        ownership: Ownership,
        maintenance: Maintenance,
        merges: FileMerges | None,
        *,
        retained: int,
        grace_ms: int,
        lease_ms: int,
    ) -> None:
        self._storage = storage
        self._history = history
        self._ownership = ownership
        self._maintenance = maintenance
        self._merges = merges
        #: Epochs that somebody copies.
        self.held = HeldEpochs()
        self._retained = retained
        self._leases = LeaseBook(lease_ms)
        self._grace_ms = grace_ms
        self._retired = Retired()

    def published(self, manifest: Manifest) -> None:
        """Retire, collect and merge after an epoch."""
        if self._merges is not None:
            self._merges.published(manifest)
            self._merges.plan(manifest)
        retired = self._take_retired()
        self.remove(retired.paths)
        try:
            keep = self._leases.keep(self._history.leases, self._history, self._retained)
            self._retired = self._history.retire(keep, _RETIRED_AT_ONCE)
            self.remove(self._leases.ended())
        except (PystateError, OSError) as error:
            _LOG.warning(
                "epoch %d is published; retiring older ones failed: %s", manifest.epoch, error
            )
        if manifest.epoch % _ORPHANS_EVERY == 0:
            self.search()

    def finish(self) -> None:
        """Remove in the background what the next epoch would remove."""
        retired = self._take_retired()
        if retired != Retired():
            self._maintenance.submit(lambda: delete_retired(self._storage, retired.paths))

    def close(self) -> None:
        """Give up merges that no epoch has adopted, and wait for the maintenance thread."""
        if self._merges is not None:
            self._merges.give_up()
        self.finish()
        self._maintenance.close()
        if self._merges is not None:
            self._merges.discard_unused()

    def _take_retired(self) -> Retired:
        """Return what was retired and may be removed now, but for files that are held."""
        retired, self._retired = self._retired, Retired()
        return retired._replace(files=self.held.spare(retired.files))

    def remove(self, paths: Collection[str]) -> None:
        """Remove files in the background, in their order."""
        if paths:
            self._maintenance.submit(lambda: delete_files(self._storage, paths))

    def abandon(self, head: Manifest | None) -> None:
        """Remove what earlier drivers have left of epochs that none of them has published.

        It is called before this driver's first attempt. If any of those drivers may still publish,
        it does nothing.
        """
        last, term = 0 if head is None else head.term, self._ownership.term
        # The driver of the newest epoch leaves no more than one attempt, which goes with the next
        # epoch. Only drivers that have published nothing leave more and more.
        if last >= term - 1 or not have_ended(self._storage, last, term):
            return
        try:
            # One of them may have published before it ended, but after this driver has looked.
            abandoned = find_abandoned(self._storage)
        except CheckpointError:
            # Manifests are lost, unless a follower has published while files were listed.
            if self._ownership.is_followed():
                return
            raise
        # The listing has no file of a driver that follows only now.
        if not self._ownership.is_followed():
            self._maintenance.submit(lambda: delete_orphans(self._storage, abandoned))

    def discard(self, reports: Iterable[RangeReport], ranges: Iterable[RangeState] = ()) -> None:
        """Remove what tasks of this driver have written, and no manifest names or will name."""
        files = {report.file.path for report in reports if report.file is not None}
        files |= {ref.path for state in ranges for ref in state.files}
        head = self._history.head
        self.remove(files - (head.paths if head is not None else frozenset()))

    def search(self) -> None:
        """Search for orphans in the background."""
        self._maintenance.submit(self._collect_orphans)

    def _collect_orphans(self) -> None:
        orphans = find_orphans(
            self._storage,
            term=self._ownership.term,
            grace_ms=self._grace_ms,
            live=self._live,
            check_owner=self._ownership.check,
        )
        delete_orphans(self._storage, orphans)

    def _live(self) -> frozenset[str]:
        merging = self._merges.live() if self._merges is not None else frozenset()
        return frozenset(merging) | self.held.paths()
