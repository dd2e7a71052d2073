"""Reads rows of a backend: those that the open epoch touched, all as Arrow, or a sealed epoch's.

Thread safety: as the backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.state.key_batch import KeyBatch
from pystate.tables.snapshots import SealedReader
from pystate.tables.table import BackendTable
from pystate.types.arrays import hash_keys

__all__ = ["BackendRows"]

_SCAN_ROWS = 1 << 16


class BackendRows(BackendTable):
    """The part of `KeyedStateBackend` that returns its rows."""

    def changed(self, max_rows: int = 65536) -> Iterator[KeyBatch]:
        """The existing keys that the open epoch has touched, without another lookup.

        Parameters
        ----------
        max_rows : int
            The most keys in one batch.

        Yields
        ------
        KeyBatch
            Each key once, in no particular order. A key that is first written while iterating may
            or may not be seen.

        Raises
        ------
        StaleKeyBatchError
            The epoch has ended meanwhile.
        """
        return self._rows(max_rows, changed=True)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All current rows: key columns, the namespace if there are namespaces, then the states.

        An absent value is null, an absent list or map is empty; an aggregate is given as its
        result, an object in pickled form. Defaults are not filled in. Epochs may be sealed while
        the batches are consumed: a row that exists all the time is returned once; a row that is
        added or removed meanwhile may be returned or not. Until the iterator ends or is dropped,
        the table does not shrink.

        Raises
        ------
        StaleKeyBatchError
            The table was detached meanwhile, or rolled back to a sealed epoch.
        """
        for keys in self._rows(_SCAN_ROWS, changed=False):
            yield self.exported(keys)

    def exported(self, keys: KeyBatch) -> pa.RecordBatch:
        """The rows of a batch of keys as `to_batches` gives them; absent keys have no state."""
        arrays = list(keys.key_arrays())
        if self.namespace is not None:
            arrays.append(keys.namespaces())
        arrays += [handle._exported(keys) for handle in self._states.handles.values()]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def existing(self, max_rows: int = _SCAN_ROWS) -> Iterator[KeyBatch]:
        """All keys, with their namespaces, as `to_batches` gives their rows.

        Parameters
        ----------
        max_rows : int
            The most keys in one batch.
        """
        return self._rows(max_rows, changed=False)

    def found(self, wanted: KeyBatch) -> Iterator[KeyBatch]:
        """Those of some keys that exist, in each of their namespaces.

        Parameters
        ----------
        wanted : KeyBatch
            The keys; their namespaces do not matter.

        Notes
        -----
        O(rows of the table): each key's hash is compared with those that are wanted.
        """
        hashes = np.unique(hash_keys(wanted.key_arrays()))
        names = {self._table.normal_key(key) for key in wanted.to_pylist()}
        for keys in self._rows(_SCAN_ROWS, changed=False):
            arrays = keys.key_arrays()
            likely = np.flatnonzero(np.isin(hash_keys(arrays), hashes))
            few = [array.take(likely) for array in keys._columns()]
            batch = KeyBatch(self._table, few, self._key_types())
            rows = [self._table.normal_key(key) in names for key in batch.to_pylist()]
            if not all(rows):  # another key has the hash of a wanted one
                few = [array.filter(pa.array(rows)) for array in few]
                batch = KeyBatch(self._table, few, self._key_types())
            if len(batch):
                yield batch

    def to_arrow(self) -> pa.Table:
        """All rows as one table; see `to_batches`."""
        return pa.Table.from_batches(self.to_batches(), self.arrow_schema)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of `to_arrow`."""
        keys = [pa.field(name, type_.arrow) for name, type_ in self._key_columns()]
        states = [pa.field(name, d.arrow_type) for name, d in self.declarations.items()]
        return pa.schema([*keys, *states])

    def _rows(self, max_rows: int, *, changed: bool) -> Iterator[KeyBatch]:
        self.open()
        self._flush()
        walk = core.Walk(self._table, changed)
        while True:
            batch = KeyBatch(self._table, None, self._key_types())
            if not batch.take_rows(walk, max_rows):
                return
            yield batch

    def __iter__(self) -> Iterator[Any]:
        """All keys, in no particular order; epochs may be sealed meanwhile, as for `to_batches`."""
        for keys in self._rows(_SCAN_ROWS, changed=False):
            yield from keys.to_pylist()

    def reader(self) -> SealedReader:
        """Return a reader of the last sealed epoch, for this thread or another one."""
        self.open()
        return SealedReader(
            self._table,
            self.key,
            self.declarations,
            where=self._table.where,
            namespace=self.namespace,
            timers=self._states.has_timers,
        )
