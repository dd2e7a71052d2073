"""Looking keys up in a checkpoint again and again, beside the job that adds to it.

Thread safety: any thread. A look-up reads the epoch that is the newest when it begins; a `refresh`
meanwhile is that of the next one. In an object store look-ups wait for their requests at the same
time. Of files with guides on a local disk one look-up is searched after the other, in an order of
100 µs for a few keys.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError
from pystate.processor.epochs import storage_at, while_retained
from pystate.processor.key_files import KeyFiles
from pystate.processor.scan import StateScan
from pystate.processor.selection import EVERYTHING, Selection, WantedKeys
from pystate.state.declaration import State
from pystate.types.keys import parse_key


class StateLookup:
    """Reads the rows of some keys as of one epoch, without a table and without a lock.

    `read_state` with keys gives the same rows; this keeps what it knows of the epoch, and its files
    open, so that the next look-up reads only blocks. Memory is a seventh of a byte for each row of
    the files with guides, and what is being read: of an object store up to 32 MB at a time. Of
    objects what was read is kept on the local disk, in the folder for temporary files, up to 1 GB.

    Parameters
    ----------
    location : str, path or CheckpointStorage
        The checkpoint of a job or store, or a savepoint.
    uid, epoch
        As for `read_state`. Without an epoch the newest one is read, and the next newest one when a
        running job has removed its files. In place of a number it may be a manifest that was read.
    selection : Selection
        Which states are read, and how.
    declared : mapping of str to State
        States by name as a program declares them. They are read so, and expire by the clock that is
        named: a checkpoint does not know times to live.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | CheckpointStorage,
        uid: str | None = None,
        *,
        epoch: int | Manifest | None = None,
        selection: Selection = EVERYTHING,
        declared: Mapping[str, State[Any]] | None = None,
    ) -> None:
        if isinstance(location, (str, os.PathLike)):
            location = storage_at(location, "StateLookup")
        self._storage, self._uid = location, uid
        self._asked_epoch = epoch.epoch if isinstance(epoch, Manifest) else epoch
        self._selection, self._declared = selection, dict(declared or {})
        self._files = KeyFiles(location)
        self._history = History(location)
        self._refreshing = threading.Lock()
        self._scan = self._as_of(epoch) if isinstance(epoch, Manifest) else self._newest(None)

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._scan.epoch

    @property
    def scan(self) -> StateScan:
        """What is known of the epoch that is read, by which all of it can be read."""
        return self._scan

    @property
    def schema(self) -> pa.Schema:
        """The columns of `rows`."""
        return self._scan.schema

    def refresh(self) -> int:
        """Read the newest epoch from now on, or the one that was asked for; returns its number.

        Only what is new is read of manifests, and files that it shares with the one before stay
        open. The others are closed: until then those that the job has removed take their room on
        the disk, so call this now and then. Look-ups that run go on in the epoch that they began
        with, and may open files of it once more, which the next refresh closes.
        """
        with self._refreshing:
            self._scan = scan = self._newest(self._scan)
            self._files.forget(frozenset(ref.path for ref in scan.operator.files))
        return scan.epoch

    def at(self, manifest: Manifest) -> StateLookup:
        """Look keys up as of another epoch of the checkpoint; files that are open are shared.

        A refresh of either closes the files that it does not need itself; `keep` does not.
        """
        other = copy(self)
        other._asked_epoch = manifest.epoch
        other._refreshing, other._history = threading.Lock(), History(self._storage)
        other._scan = other._as_of(manifest, self._scan)
        return other

    def keep(self, manifests: Iterable[Manifest]) -> None:
        """Close the files that none of these epochs has."""
        operators = (each.operator(self._scan.operator.uid) for each in manifests)
        self._files.forget(frozenset(ref.path for op in operators if op for ref in op.files))

    def rows(
        self,
        keys: Any,
        namespaces: Any = None,
        *,
        clock: tuple[int | None, int | None] = (None, None),
        selection: Selection | None = None,
    ) -> pa.Table:
        """The rows of those keys that exist, in no particular order.

        Parameters
        ----------
        keys
            As for `read_state`.
        namespaces : array-like, optional
            A namespace per key; without, the rows of all namespaces of the keys are read.
        clock : tuple
            The processing time and the watermark, in milliseconds since 1970, by which states that
            were declared with a time to live are hidden; None where one is not known.
        selection : Selection, optional
            Which states are read this time, and how.

        Raises
        ------
        CheckpointError
            The epoch that was asked for is gone, or each newest one was removed while it was read.
        CorruptFileError, NewerFormatError, SystemCallError
            A file cannot be read; it is named, with the place.
        MemoryLimitError
            What is said of one key, or of all that is read at a time, does not fit in memory.
        """
        again = False

        def read() -> pa.Table:
            nonlocal again
            if again:
                self.refresh()
            again = True
            scan = self._scan
            wanted = WantedKeys(
                parse_key(list(scan.operator.key_schema)),
                keys,
                scan.max_parallelism,
                None if namespaces is None else (_namespace_of(scan), namespaces),
            )
            looked = replace(scan, keys=wanted, key_groups=wanted.key_groups, clock=clock)
            if selection is not None:
                looked = replace(looked, selection=selection)
            return pa.Table.from_batches(looked.batches(self._files), looked.schema)

        return while_retained(self._storage, read, "look keys up", again=self._asked_epoch is None)

    def _as_of(self, manifest: Manifest, before: StateScan | None = None) -> StateScan:
        scan = StateScan.within(
            self._storage, manifest, self._uid, selection=self._selection, before=before
        )
        return replace(scan, declared=self._declared)

    def _newest(self, before: StateScan | None) -> StateScan:
        def look() -> StateScan:
            return StateScan.of(
                self._storage,
                self._uid,
                epoch=self._asked_epoch,
                selection=self._selection,
                before=before,
                history=self._history,
            )

        again = self._asked_epoch is None
        scan = while_retained(self._storage, look, "look keys up", again=again)
        return replace(scan, declared=self._declared)


def _namespace_of(scan: StateScan) -> Any:
    if scan.namespace is None:
        raise InvalidArgumentError(f"operator {scan.operator.uid!r} has no namespaces")
    return scan.namespace
