"""Looking keys up in a checkpoint again and again, beside the job that adds to it.

Thread safety: any thread. A look-up reads the epoch that is the newest when it begins; a `refresh`
meanwhile is that of the next one. In an object store look-ups wait for their requests at the same
time, and in files on a local disk they search at the same time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.processor.epochs import storage_at, while_retained
from pystate.processor.key_files import BlockCache, KeyFiles
from pystate.processor.key_rows import AskedKeys, KeyRows, OpenFiles
from pystate.processor.scan import StateScan
from pystate.processor.selection import EVERYTHING, Selection, WantedKeys
from pystate.types.keys import parse_key
from pystate.types.state_type import StateType


class StateLookup:
    """Reads the rows of some keys as of one epoch, without a table and without a lock.

    `read_state` with keys gives the same rows; this keeps what it knows of the epoch, and its files
    open, so that the next look-up reads only blocks, and those of them in memory that were read
    last. Beside these memory is a seventh of a byte for each row of the files, another byte and a
    half for rows of deltas, and what is being read: of an object store up to 32 MB at a
    time. Of objects what was read is kept on the local disk, in the folder for temporary files, up
    to 1 GB.

    In a folder a key whose states are values, lists and maps takes some tens of microseconds; other
    keys are read into a table first.

    Parameters
    ----------
    location : str, path or CheckpointStorage
        The checkpoint of a job or store, or a savepoint.
    uid, epoch
        As for `read_state`. Without an epoch the newest one is read, and the next newest one when a
        running job has removed its files. In place of a number it may be a manifest that was read.
    selection : Selection
        Which states are read, and how.
    cache_bytes : int or BlockCache
        How much of what was read of files stays in memory; a `BlockCache` may be that
        of several look-ups.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | CheckpointStorage,
        uid: str | None = None,
        *,
        epoch: int | Manifest | None = None,
        selection: Selection = EVERYTHING,
        cache_bytes: int | BlockCache = 64 << 20,
    ) -> None:
        if isinstance(location, (str, os.PathLike)):
            location = storage_at(location, "StateLookup")
        self._storage, self._uid = location, uid
        self._asked_epoch = epoch.epoch if isinstance(epoch, Manifest) else epoch
        self._selection = selection
        if not isinstance(cache_bytes, BlockCache):
            cache_bytes = BlockCache(cache_bytes)
        self._files = KeyFiles(location, cache_bytes)
        self._history = History(location)
        self._refreshing = threading.Lock()
        scan = self._as_of(epoch) if isinstance(epoch, Manifest) else self._newest(None)
        self._read = _Epoch(scan, self._files)

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._read.scan.epoch

    @property
    def scan(self) -> StateScan:
        """What is known of the epoch that is read, by which all of it can be read."""
        return self._read.scan

    @property
    def schema(self) -> pa.Schema:
        """The columns of `rows`."""
        return self._read.schema

    def refresh(self) -> int:
        """Read the newest epoch from now on, or the one that was asked for; returns its number.

        Only what is new is read of manifests, and files that it shares with the one before stay
        open. The others are closed: until then those that the job has removed take their room on
        the disk, so call this now and then. Look-ups that run go on in the epoch that they began
        with, and may open files of it once more, which the next refresh closes.
        """
        with self._refreshing:
            before = self._read
            scan = self._newest(before.scan)
            after = _Epoch(scan, self._files)
            if before.is_open:
                # What is new is opened here, and not by whoever looks a key up next.
                with suppress(CheckpointError):
                    after.open()
            self._read = after
            self._files.forget(frozenset(ref.path for ref in scan.operator.files))
        return scan.epoch

    def at(self, manifest: Manifest) -> StateLookup:
        """Look keys up as of another epoch of the checkpoint; files that are open are shared.

        A refresh of either closes the files that it does not need itself; `keep` does not.
        """
        other = copy(self)
        other._asked_epoch = manifest.epoch
        other._refreshing, other._history = threading.Lock(), History(self._storage)
        other._read = _Epoch(other._as_of(manifest, self.scan), self._files)
        if self._read.is_open:
            # What is new is opened here, and not by whoever looks a key up next.
            other._read.open()
        return other

    def keep(self, manifests: Iterable[Manifest]) -> None:
        """Close the files that none of these epochs has."""
        operators = (each.operator(self.scan.operator.uid) for each in manifests)
        self._files.forget(frozenset(ref.path for op in operators if op for ref in op.files))

    def rows(
        self,
        keys: Any,
        namespaces: Any = None,
        *,
        selection: Selection | None = None,
    ) -> pa.Table:
        """The rows of those keys that exist, in no particular order.

        Parameters
        ----------
        keys
            As for `read_state`.
        namespaces : array-like, optional
            A namespace per key; without, the rows of all namespaces of the keys are read.
        selection : Selection, optional
            Which states are read this time, and how. What has expired by the epoch's time is not
            there, unless it has `expired`.

        Raises
        ------
        CheckpointError
            The epoch that was asked for is gone, or each newest one was removed while it was read.
        CorruptFileError, NewerFormatError, SystemCallError
            A file cannot be read; it is named, with the place.
        MemoryLimitError
            What is said of one key, or of all that is read at a time, does not fit in memory.
        """
        chosen = self._selection if selection is None else selection
        return self._looked_up(lambda read: read.rows(keys, namespaces, chosen))

    def get(
        self,
        keys: Any,
        namespaces: Any = None,
        *,
        selection: Selection | None = None,
    ) -> pa.Table:
        """The rows of keys in their order, a key's as often as it is asked for.

        Parameters
        ----------
        keys, namespaces, selection
            As for `rows`.

        Returns
        -------
        pyarrow.Table
            A row for each key, whose states are null if the key is not there. Of an operator with
            namespaces and without `namespaces`, a row for each namespace of each key, and none for
            keys that are not there.

        Raises
        ------
        InvalidArgumentError
            It is a look-up of timers, or of elements one by one: `rows` gives these.
        CheckpointError, CorruptFileError, NewerFormatError, SystemCallError, MemoryLimitError
            As for `rows`.
        """
        chosen = self._selection if selection is None else selection
        if chosen.timers or chosen.explode:
            raise InvalidArgumentError(
                "get() gives a row for each key: of timers, and of elements one by one, rows() "
                "gives what there is"
            )
        return self._looked_up(lambda read: read.get(keys, namespaces, chosen))

    def get_at_hand(
        self,
        keys: Any,
        namespaces: Any = None,
        *,
        selection: Selection | None = None,
    ) -> pa.Table | None:
        """What `get` gives, from memory and the page cache alone.

        None if a disk would have to be waited for, or more than a little be read. So it takes no
        longer than some tens of microseconds a key.
        """
        chosen = self._selection if selection is None else selection
        return self._read.at_hand(keys, namespaces, chosen)

    def _looked_up(self, look: Callable[[_Epoch], pa.Table]) -> pa.Table:
        again = False

        def read() -> pa.Table:
            nonlocal again
            if again:
                self.refresh()
            again = True
            return look(self._read)

        return while_retained(self._storage, read, "look keys up", again=self._asked_epoch is None)

    def _as_of(self, manifest: Manifest, before: StateScan | None = None) -> StateScan:
        return StateScan.within(
            self._storage, manifest, self._uid, selection=self._selection, before=before
        )

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
        return while_retained(self._storage, look, "look keys up", again=again)


#: Of so many selections it is kept how their states are read.
_SELECTIONS = 64


class _Epoch:
    """An epoch that is read; any thread."""

    def __init__(self, scan: StateScan, files: KeyFiles) -> None:
        self.scan, self._files = scan, files
        self._key = parse_key(list(scan.operator.key_schema))
        self._opened: tuple[int, OpenFiles | None] | None = None
        self._rows: dict[Selection, KeyRows | None] = {}

    @cached_property
    def schema(self) -> pa.Schema:
        return self.scan.schema

    @property
    def is_open(self) -> bool:
        """Whether keys were looked up."""
        return self._opened is not None and self._opened[0] == os.getpid()

    def open(self) -> OpenFiles | None:
        """Open the files, if keys are looked up in them without a table."""
        opened, process = self._opened, os.getpid()
        if opened is None or opened[0] != process:
            # Two threads may do it at once, which share the files.
            scan = self.scan
            files = self._files.finder(scan.epoch, scan.operator.ranges, scan.max_parallelism)
            self._rows = {}
            self._opened = opened = process, files
        return opened[1]

    def key_rows(self, selection: Selection) -> KeyRows | None:
        """What gives rows without a table, if anything does."""
        files = self.open()
        if files is None:
            return None
        known = self._rows
        if selection not in known:
            scan = replace(self.scan, selection=selection)
            if len(known) >= _SELECTIONS:
                known.clear()
            known[selection] = KeyRows.of(scan, files)
        return known.get(selection)

    def rows(self, keys: Any, namespaces: Any, selection: Selection) -> pa.Table:
        rows = self.key_rows(selection)
        if rows is not None:
            return rows.rows(self._asked(keys, namespaces))
        scan = self.scan
        wanted = WantedKeys(
            self._key,
            keys,
            scan.max_parallelism,
            None if namespaces is None else (self._namespace(), namespaces),
        )
        looked = replace(scan, keys=wanted, key_groups=wanted.key_groups, selection=selection)
        return pa.Table.from_batches(looked.batches(self._files), looked.schema)

    def get(self, keys: Any, namespaces: Any, selection: Selection) -> pa.Table:
        asked = self._asked(keys, namespaces)
        rows = self.key_rows(selection)
        if rows is not None:
            return rows.get(asked)
        columns = asked.arrays[: len(self._key)]
        spaces = None if namespaces is None else asked.arrays[-1]
        return asked.in_order(self.rows(columns, spaces, selection))

    def at_hand(self, keys: Any, namespaces: Any, selection: Selection) -> pa.Table | None:
        rows = self.key_rows(selection) if self.is_open else None
        return None if rows is None else rows.at_hand(self._asked(keys, namespaces))

    def _asked(self, keys: Any, namespaces: Any) -> AskedKeys:
        if namespaces is not None:
            self._namespace()
        return AskedKeys.of(self._key, self.scan.namespace, keys, namespaces)

    def _namespace(self) -> StateType:
        if self.scan.namespace is None:
            raise InvalidArgumentError(f"operator {self.scan.operator.uid!r} has no namespaces")
        return self.scan.namespace
