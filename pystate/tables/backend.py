"""The keyed state backend: registers states, sets keys, seals, restores.

Its parts are in the modules beside this one: ``table`` (states, and the table's life), ``time``
(clock and timers), ``restore`` (load and restore) and ``scan`` (rows out).

Thread safety: a backend belongs to one thread at a time; other threads may use its snapshots and
readers meanwhile.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import pyarrow as pa

from pystate._core.core import key_group, range_bounds, range_of
from pystate.base.arguments import integer, shown
from pystate.checkpoint.state_files import (
    EMPTY_LINEAGE,
    FileInfo,
    Lineage,
    merge_files,
    verify_file,
)
from pystate.errors import InvalidArgumentError, LineageError
from pystate.state.key_batch import KeyBatch
from pystate.tables.options import UNDO_EPOCHS, Identity, TableStats
from pystate.tables.restore import BackendFiles
from pystate.tables.scan import BackendRows
from pystate.tables.snapshots import SealedReader, Snapshot
from pystate.tables.time import BackendTime
from pystate.types.arrays import as_array, hash_keys, key_groups
from pystate.types.keys import KeyLike, key_columns, parse_key

__all__ = [
    "EMPTY_LINEAGE",
    "FileInfo",
    "Identity",
    "KeyLike",
    "KeyedStateBackend",
    "Lineage",
    "SealedReader",
    "Snapshot",
    "TableStats",
    "hash_keys",
    "key_group",
    "key_groups",
    "merge_files",
    "parse_key",
    "range_bounds",
    "range_of",
    "verify_file",
]


class KeyedStateBackend(BackendTime, BackendFiles, BackendRows):
    """The keyed state of one operator for one range of key groups.

    Parameters
    ----------
    key : type, or mapping or list of (name, type)
        The key's type, or its columns.
    states : mapping of str to declaration, optional
        States to register at once.
    max_parallelism : int
        Number of key groups, 1 to 32768; it is stored in every file.
    key_group_range : tuple of int, optional
        First and last key group, both inclusive; all by default.
    home : {"heap", "shared"}
        Memory of this process, or a file at `path` that the host's processes use in turn.
    path : path, optional
        The file of a shared table, best under ``/dev/shm``.
    identity : Identity, optional
        The owner of a shared table; this process by default.
    limit_bytes : int
        The most memory that the table may take. With 0 it has no limit of its own, but shares that
        of the process and its host, by default three quarters of
        the memory of the machine or the container.
    lock_timeout_ms : int
        How long to wait for a shared table that another process holds.
    uid : str
        The operator's name, for errors.
    create : bool
        Whether to make a shared table that does not exist.
    namespace : str or pyarrow.DataType, optional
        The type of namespaces, if states are kept by (key, namespace).
    timers : bool
        Whether keys have timers.

    Attributes
    ----------
    set_current_key : callable
        ``set_current_key(key)`` makes a key current: a value, or a tuple if the key has several
        columns. None is an ordinary key. The key stays current until the next seal or rollback.
    created : bool
        Whether `open` found no table and made an empty one.

    Notes
    -----
    States can be registered until the table is opened; its first use opens it.

    Examples
    --------
    >>> import pyarrow as pa, pystate as ps
    >>> backend = ps.KeyedStateBackend("long")
    >>> n = backend.register("n", ps.ValueState("long", default=0))
    >>> n.add(backend.keys(pa.array([1, 2, 1])), 10)
    >>> backend.set_current_key(1)
    >>> n.value()
    20
    >>> backend.seal().rows
    2
    >>> backend.close()
    """

    # -- keys

    def keys(self, columns: Any, namespaces: Any = None) -> KeyBatch:
        """Hash and look up many keys at once.

        Parameters
        ----------
        columns : array-like, list of array-like, RecordBatch or Table
            The key column, or a list of columns for a key of several. From a record batch or a
            table, the columns that have the key's names are taken. A column is an Arrow array, a
            numpy array, a pandas series or a sequence of Python values.
        namespaces : array-like, optional
            A namespace per key, null for the default one; by default all keys have the default one.

        Raises
        ------
        WrongTypeError
            A column cannot be cast to the key's type without loss; the message names both types.
        WrongKeyGroupError
            A key belongs to another range.
        """
        arrays = []
        for (name, type_), column in zip(self.key, key_columns(self.key, columns), strict=True):
            arrays.append(as_array(column, type_, f"key column {name!r}"))
        if self.namespace is not None:
            rows = len(arrays[0]) if arrays else 0
            spaces = pa.nulls(rows) if namespaces is None else namespaces
            arrays.append(as_array(spaces, self.namespace, "the namespaces"))
        elif namespaces is not None:
            raise InvalidArgumentError("the backend was made without a namespace type")
        self.open()
        return KeyBatch(self._table, arrays, self._key_types())

    def delete(self, keys: Any) -> None:
        """Delete keys with all their states; absent ones are ignored.

        With namespaces, only the states in the batch's namespaces are deleted. Timers are kept.

        Parameters
        ----------
        keys : KeyBatch or what `keys` takes
        """
        batch = keys if isinstance(keys, KeyBatch) else self.keys(keys)
        if batch.table is not self._table:
            raise InvalidArgumentError("the key batch belongs to another backend or store")
        batch.clear(-1)
        for handle in self._states.objects:
            handle.forget(batch)

    def clear_current_key(self) -> None:
        """Make no key current, so that access to a state is an error."""
        self._table.clear_current_key()

    @property
    def current_key(self) -> Any:
        """The current key; without one `NoCurrentKeyError` is raised."""
        return self._table.current_key()

    def set_current_namespace(self, value: Any) -> None:
        """Make a namespace current (None: the default one) and keep the current key.

        It stays current until the next call, even if another key is made current.
        """
        self.open()
        self._table.set_namespace(value)

    @property
    def current_namespace(self) -> Any:
        """The current namespace; None for the default one."""
        return self._table.current_namespace()

    # -- epochs

    @overload
    def seal(
        self, lineage: Lineage | None = None, *, snapshot: Literal[True] = True
    ) -> Snapshot: ...

    @overload
    def seal(self, lineage: Lineage | None = None, *, snapshot: bool) -> Snapshot | None: ...

    def seal(self, lineage: Lineage | None = None, *, snapshot: bool = True) -> Snapshot | None:
        """End the open epoch and begin the next.

        Parameters
        ----------
        lineage : Lineage, optional
            The epoch's name; by default a new one whose parent is the last.
        snapshot : bool
            Whether to return the epoch's changes.

        Returns
        -------
        Snapshot or None
            The epoch's delta, in its own memory.

        Raises
        ------
        PoisonedError
            A write of the epoch failed half way: call `rollback`.
        MemoryLimitError
            There is no memory for the delta; nothing was sealed.
        WrongTypeError
            An object cannot be pickled; nothing was sealed.

        Notes
        -----
        O(rows changed), without the GIL. If states have a time to live, some keys are first scanned
        for expired values. Key batches become stale, and no key stays current.
        """
        if lineage is not None and not isinstance(lineage, Lineage):
            raise InvalidArgumentError(f"seal: lineage is a Lineage, not {shown(lineage)}")
        self.open()
        if snapshot:
            # Never while files are applied: the removals would not be in any delta.
            self.expire()
        name = self._last_lineage().next() if lineage is None else lineage
        sealed = self._seal(name, snapshot)
        return None if sealed is None else Snapshot(sealed)

    def snapshot(self) -> Snapshot:
        """Seal under a fresh lineage; see `seal`."""
        return self.seal()

    def rollback(self, back: int = 0) -> None:
        """Undo the open epoch, and then `back` sealed epochs.

        Parameters
        ----------
        back : int
            Number of sealed epochs to undo, at most 2.

        Raises
        ------
        LineageError
            The undo window does not reach so far; nothing was undone.
        """
        if not 0 <= integer(back, "rollback: back") <= UNDO_EPOCHS:
            raise LineageError(
                f"roll back over {back} sealed epochs: {UNDO_EPOCHS} are the most; restore instead"
            )
        self._table.rollback(back)
        self._discard()

    def lineage(self, back: int = 0) -> Lineage | None:
        """The name of the epoch sealed `back` before the last; None outside the undo window."""
        self.open()
        if not 0 <= integer(back, "lineage: back") <= UNDO_EPOCHS:
            return None
        found = self._table.lineage(back)
        return None if found is None else Lineage(*found)

    def _last_lineage(self) -> Lineage:
        found = self._table.lineage(0)
        return EMPTY_LINEAGE if found is None else Lineage(*found)
