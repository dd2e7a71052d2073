"""Rows out of a backend: what the open epoch touched, all of them as Arrow, or a sealed epoch's.

Thread safety: as the backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pystate._core import core
from pystate.backend.snapshots import SealedReader
from pystate.backend.table import BackendTable
from pystate.state.key_batch import KeyBatch

__all__ = ["BackendRows"]

_SCAN_ROWS = 1 << 16


class BackendRows(BackendTable):
    """The part of `KeyedStateBackend` that gives its rows."""

    def changed(self, max_rows: int = 65536) -> Iterator[KeyBatch]:
        """The keys touched in the open epoch that exist, without looking them up again.

        Parameters
        ----------
        max_rows : int
            Most keys in one batch.

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
        """All rows as of now: key columns, the namespace if there are any, then the states.

        A value is null where it is absent, a list or map empty; of aggregates the result; objects
        are in their pickled form. Defaults are not filled in. Epochs may be sealed while the
        batches are consumed: a row that is there all the time is seen once, one that comes or goes
        may or may not be. Until the iterator ends or is dropped, the table gets no shorter.

        Raises
        ------
        StaleKeyBatchError
            The table was detached meanwhile, or taken back to a sealed epoch.
        """
        for keys in self._rows(_SCAN_ROWS, changed=False):
            arrays = keys.key_arrays()
            if self.namespace is not None:
                arrays = [*arrays, keys.namespaces()]
            arrays += [handle._exported(keys) for handle in self._states.handles.values()]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

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
        """All keys, in no particular order; over seals as `to_batches`."""
        for keys in self._rows(_SCAN_ROWS, changed=False):
            yield from keys.to_pylist()

    def reader(self) -> SealedReader:
        """Read the last sealed epoch, beside the writer, from this or another thread."""
        self.open()
        return SealedReader(
            self._table,
            self.key,
            self.declarations,
            where=self._table.where,
            namespace=self.namespace,
            timers=self._states.has_timers,
        )
