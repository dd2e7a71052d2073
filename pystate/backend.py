"""The keyed state backend: registers states, sets keys, seals, restores.

Thread safety: a backend belongs to one thread at a time; its snapshots and readers do not belong
to it and may be used beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from pystate import _core
from pystate._core import key_group, range_bounds, range_of
from pystate.arrays import as_array, hash_keys, key_groups
from pystate.declarations import ValueState
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    LineageError,
)
from pystate.files import (
    EMPTY_LINEAGE,
    FileIdentity,
    FileInfo,
    Lineage,
    Source,
    claim,
    merge_files,
    open_file,
    verify_file,
)
from pystate.handles import KeyBatch, ObjectHandle, ValueHandle
from pystate.keys import KeyLike, describe, key_columns, parse_key
from pystate.snapshots import SealedReader, Snapshot, arrow_schema, python_keys, scan_batches
from pystate.tables import (
    UNDO_EPOCHS,
    Identity,
    TableStats,
    checked_parallelism,
    checked_range,
)
from pystate.types import StateType

if TYPE_CHECKING:
    from typing_extensions import Self

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


class KeyedStateBackend:
    """The keyed state of one operator for one range of key groups.

    Parameters
    ----------
    key : type, or mapping or list of (name, type)
        The key's type, or its columns.
    states : mapping of str to ValueState, optional
        Registered at once.
    max_parallelism : int
        Number of key groups, 1 to 32768; stands in every file.
    key_group_range : tuple of int, optional
        First and last key group, both inclusive; all by default.
    home : {"heap", "shared"}
        Memory of this process, or a file at `path` that processes of the host use in turn.
    path : path, optional
        Of a shared table, best under ``/dev/shm``.
    identity : Identity, optional
        Of a shared table; by default it belongs to this process.
    limit_bytes : int
        Most memory to take; 0: three quarters of what the machine or the container has.
    lock_timeout_ms : int
        How long to wait for a shared table that another process holds.
    uid : str
        The operator's name, for errors.
    create : bool
        Whether to make a shared table that is not there.

    Attributes
    ----------
    set_current_key : callable
        ``set_current_key(key)`` makes a key current: a value, or a tuple where the key has several
        columns. None is an ordinary key. It stays current until the next seal or roll back.
    created : bool
        Whether `open` found no table and made an empty one.

    Notes
    -----
    States can be registered until the table is opened, which the first use does.

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

    set_current_key: Callable[[Any], None]

    def __init__(
        self,
        key: KeyLike,
        *,
        states: Mapping[str, ValueState] | None = None,
        max_parallelism: int = 128,
        key_group_range: tuple[int, int] | None = None,
        home: Literal["heap", "shared", "disk"] = "heap",
        path: str | os.PathLike[str] | None = None,
        identity: Identity | None = None,
        limit_bytes: int = 0,
        lock_timeout_ms: int = 6000,
        uid: str = "",
        create: bool = True,
    ) -> None:
        self.key = parse_key(key)
        self.uid = uid
        self.max_parallelism = checked_parallelism(max_parallelism)
        self.key_group_range = checked_range(key_group_range, max_parallelism)
        self.home = home
        self.path = None if path is None else os.fspath(path)
        self.created = False
        self._check_home()
        self._identity = identity
        self._limit_bytes = limit_bytes
        self._lock_timeout_ms = lock_timeout_ms
        self._create = create
        self._handles: dict[str, ValueHandle] = {}
        self._declarations: dict[str, ValueState] = {}
        self._objects: list[ObjectHandle] = []
        where = f"operator {uid!r}" if uid else "backend"
        self._table = _core.Table(where, self.open)
        self.set_current_key = self._table.set_current_key
        for name, declaration in (states or {}).items():
            self.register(name, declaration)

    def _check_home(self) -> None:
        if self.home == "disk":
            raise InvalidArgumentError("home 'disk' is not supported yet: use 'heap' or 'shared'")
        if self.home not in ("heap", "shared"):
            raise InvalidArgumentError(f"home {self.home!r}: it is 'heap' or 'shared'")
        if (self.home == "shared") != (self.path is not None):
            raise InvalidArgumentError("a shared table needs a path, and only it has one")

    # -- states and life

    def register(self, name: str, declaration: ValueState) -> ValueHandle:
        """Declare a state and get its handle; the same declaration again gives the same handle.

        Raises
        ------
        DeclarationError
            The name is taken by another declaration or a key column, or the table is open already.
        """
        if name in self._handles:
            if self._declarations[name] == declaration:
                return self._handles[name]
            raise DeclarationError(
                f"state {name!r} is registered as {self._declarations[name]!r}, not {declaration!r}"
            )
        if not name or "\0" in name:
            raise DeclarationError(f"{name!r} is no name for a state")
        if not isinstance(declaration, ValueState):
            raise DeclarationError(
                f"state {name!r}: expected a ValueState, got {declaration!r:.80}"
            )
        if name in dict(self.key):
            raise DeclarationError(f"state {name!r}: a key column has that name")
        if self._table.is_open:
            raise DeclarationError(
                f"state {name!r}: states are registered before the table's first use"
            )
        if len(self._handles) >= _core.MAX_STATES:
            raise DeclarationError(f"an operator has at most {_core.MAX_STATES} states")
        kind = ObjectHandle if declaration.type.is_object else ValueHandle
        handle = kind(self._table, len(self._handles), name, declaration)
        if isinstance(handle, ObjectHandle):
            self._objects.append(handle)
        self._handles[name] = handle
        self._declarations[name] = declaration
        return handle

    @property
    def states(self) -> Mapping[str, ValueHandle]:
        """The handles by name."""
        return MappingProxyType(self._handles)

    @property
    def declarations(self) -> Mapping[str, ValueState]:
        """The declarations by name, in the order of the table's columns."""
        return MappingProxyType(self._declarations)

    @property
    def is_open(self) -> bool:
        """Whether the table exists in this process."""
        return self._table.is_open

    def __getitem__(self, name: str) -> ValueHandle:
        return self._handles[name]

    def open(self) -> None:
        """Create the table, or attach a shared one; any other use does it too.

        Raises
        ------
        TableBusyError
            Another process held the lock for longer than `lock_timeout_ms`.
        TableMismatchError
            The file belongs to another schema, boot or application; it is left as it is.
        FileNotFoundError
            There is no file, and `create` is False.
        MemoryLimitError, AddressSpaceError, NoSpaceError, SystemCallError
            Memory was refused.
        """
        if self._table.is_open:
            return
        identity = self._identity
        if self.home == "shared" and identity is None:
            from pystate.host import table_identity

            name = os.path.abspath(self.path or "")
            identity = table_identity(hashlib.sha256(os.fsencode(name)).digest())
        first, last = self.key_group_range
        self.created = self._table.open(
            _core.Schema(
                [type_.column(name) for name, type_ in self.key],
                [d.type.column(name, d.default) for name, d in self._declarations.items()],
            ),
            self.max_parallelism,
            first,
            last,
            self._limit_bytes,
            self.path,
            identity,
            self._lock_timeout_ms,
            self._create,
        )

    def close(self) -> None:
        """Free the table, and with it batches and readers; an open epoch is lost.

        Snapshots live on. Does nothing the second time.

        Raises
        ------
        InUseError
            Another thread is at work in the table.
        """
        self._table.close()
        self._discard()

    def detach(self) -> None:
        """Release a shared table's lock but keep it mapped, so that `attach` is fast.

        An open epoch is rolled back.
        """
        if self._table.dirty():
            self._table.rollback(0)
        self._table.detach()
        self._discard()

    def attach(self, lock_timeout_ms: int | None = None) -> None:
        """Take the lock of a detached table again.

        Raises
        ------
        TableBusyError
            Another process held it for too long.
        TableMismatchError
            The file was replaced meanwhile: close this backend and open a new one.
        """
        self._table.attach(self._lock_timeout_ms if lock_timeout_ms is None else lock_timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        first, last = self.key_group_range
        name = f" {self.uid!r}" if self.uid else ""
        return f"<KeyedStateBackend{name} of {describe(self.key)}, key groups {first} to {last}>"

    # -- keys

    def keys(self, columns: Any) -> KeyBatch:
        """Hash and look up many keys at once.

        Parameters
        ----------
        columns : array-like, list of array-like, RecordBatch or Table
            The key column, or a column for each of several; of a record batch or table the columns
            that have the key's names. Arrow arrays, numpy arrays, pandas series and sequences of
            Python values are columns.

        Raises
        ------
        WrongTypeError
            A column cannot be cast to the key's type without loss; both types are named.
        WrongKeyGroupError
            A key belongs to another range.
        """
        arrays = []
        for (name, type_), column in zip(self.key, key_columns(self.key, columns), strict=True):
            arrays.append(as_array(column, type_, f"key column {name!r}"))
        self.open()
        return KeyBatch(self._table, arrays, [type_ for _, type_ in self.key])

    def delete(self, keys: Any) -> None:
        """Delete keys with all their states; absent ones are ignored.

        Parameters
        ----------
        keys : KeyBatch or what `keys` takes
        """
        batch = keys if isinstance(keys, KeyBatch) else self.keys(keys)
        if batch.table is not self._table:
            raise InvalidArgumentError("the key batch belongs to another backend or store")
        batch.clear(-1)
        for handle in self._objects:
            handle.forget(batch)

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
        """
        self.open()
        self._flush()
        cursor = 0
        while True:
            batch = KeyBatch(self._table, None, [type_ for _, type_ in self.key])
            following = batch.take_changed(cursor, max_rows)
            if following is None:
                return
            cursor = following
            yield batch

    def clear_current_key(self) -> None:
        """Leave no key current, so that access to a state is an error."""
        self._table.clear_current_key()

    @property
    def current_key(self) -> Any:
        """The current key; `NoCurrentKeyError` without one."""
        return self._table.current_key()

    # -- epochs

    @property
    def dirty(self) -> bool:
        """Whether the open epoch has touched anything."""
        return self._table.dirty() or any(handle.dirty for handle in self._objects)

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
            The epoch's name; by default a fresh one built on the last.
        snapshot : bool
            Whether what changed is wanted.

        Returns
        -------
        Snapshot or None
            The epoch's delta, in memory of its own.

        Raises
        ------
        PoisonedError
            A write of the epoch failed half way: roll back.
        MemoryLimitError
            There is no memory for the delta; nothing was sealed.
        WrongTypeError
            An object cannot be pickled; nothing was sealed.

        Notes
        -----
        O(rows changed), without the GIL. Key batches become stale and no key stays current.
        """
        self.open()
        self._flush()
        name = self._last_lineage().next() if lineage is None else lineage
        sealed = self._table.seal(*name, snapshot)
        self._discard()
        return None if sealed is None else Snapshot(sealed)

    def snapshot(self) -> Snapshot:
        """Seal under a fresh lineage; see `seal`."""
        return self.seal()

    def rollback(self, back: int = 0) -> None:
        """Undo the open epoch, and then `back` sealed ones (at most 2).

        Raises
        ------
        LineageError
            The undo window does not reach so far; nothing was undone.
        """
        if not 0 <= back <= UNDO_EPOCHS:
            raise LineageError(
                f"roll back over {back} sealed epochs: {UNDO_EPOCHS} are the most; restore instead"
            )
        self._table.rollback(back)
        self._discard()

    def lineage(self, back: int = 0) -> Lineage | None:
        """The name of the sealed epoch `back` before the last; None outside the undo window."""
        self.open()
        if not 0 <= back <= UNDO_EPOCHS:
            return None
        found = self._table.lineage(back)
        return None if found is None else Lineage(*found)

    def _last_lineage(self) -> Lineage:
        return self.lineage() or EMPTY_LINEAGE

    def _flush(self) -> None:
        for handle in self._objects:
            handle.flush(self._batch_of)

    def _batch_of(self, keys: list[Any]) -> KeyBatch:
        columns = [keys] if len(self.key) == 1 else list(zip(*keys, strict=True))
        arrays = [
            pa.array(column, type_.arrow)
            for column, (_, type_) in zip(columns, self.key, strict=True)
        ]
        return KeyBatch(self._table, arrays, [type_ for _, type_ in self.key])

    def _discard(self) -> None:
        for handle in self._objects:
            handle.discard()

    # -- files

    def load(
        self,
        source: Source,
        *,
        first_key_group: int | None = None,
        last_key_group: int | None = None,
        expected: FileIdentity | None = None,
        allow_unclaimed_state: bool = False,
    ) -> int:
        """Apply a range of one file to the open epoch.

        Parameters
        ----------
        source : path or binary file object
            A delta or base file.
        first_key_group, last_key_group : int, optional
            Inclusive; by default the backend's range. Other blocks are not read.
        expected : FileInfo, optional
            What the file must be.
        allow_unclaimed_state : bool
            Whether states that nobody declares are dropped.

        Returns
        -------
        int
            Records applied.

        Raises
        ------
        CorruptFileError, NewerFormatError, CheckpointError
            The file cannot be read. The open epoch is then to be rolled back.
        SchemaError, UnclaimedStateError
            The file's key or states are not the backend's; nothing was applied.
        """
        self.open()
        first, last = self.key_group_range
        first = first if first_key_group is None else first_key_group
        last = last if last_key_group is None else last_key_group
        with open_file(source, expected) as opened:
            reader = opened.reader
            columns = claim(
                reader, self.key, self._types(), self.max_parallelism, allow_unclaimed_state
            )
            info = FileInfo(*reader.info())
            # Of a part only its own blocks are read, each with a checksum of its own.
            if expected and first <= info.first_key_group and info.last_key_group <= last:
                opened.check(expected)
            return self._table.load(reader, first, last, columns)

    def restore(
        self,
        files: Iterable[Source],
        lineage: Lineage | None = None,
        *,
        expected: Iterable[FileIdentity] | None = None,
        allow_unclaimed_state: bool = False,
    ) -> int:
        """Fill an empty table from files and seal it.

        Parameters
        ----------
        files : iterable of path or binary file object
            A base and the deltas after it, oldest first; of each the backend's range is read.
        lineage : Lineage, optional
            What the table then stands at; by default the last file's.
        expected : iterable of FileInfo, optional
            What the files must be, one for each.
        allow_unclaimed_state : bool
            Whether states that nobody declares are dropped.

        Returns
        -------
        int
            Records applied.

        Raises
        ------
        InvalidArgumentError
            The table is not empty.
        CorruptFileError, NewerFormatError, CheckpointError, SchemaError, UnclaimedStateError
            As `load`; the table is empty again.
        """
        self.open()
        if self.dirty or len(self):
            raise InvalidArgumentError("restore fills an empty table; this one has state")
        rows, last = 0, lineage
        files = list(files)
        identities = [None] * len(files) if expected is None else list(expected)
        try:
            for source, identity in zip(files, identities, strict=True):
                rows += self.load(
                    source, expected=identity, allow_unclaimed_state=allow_unclaimed_state
                )
                if lineage is None:
                    with open_file(source) as opened:
                        last = Lineage(*opened.reader.lineage())
            if last is not None:
                self.seal(last, snapshot=False)
        except BaseException:
            self._table.rollback(0)
            raise
        return rows

    # -- all rows

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as of now: key columns, then state columns, null where absent.

        Objects are in their pickled form. Defaults are not filled in. A row that is written while
        the batches are consumed may or may not be seen.
        """
        self.open()
        self._flush()
        return scan_batches(self._table.scan, *self._fields())

    def to_arrow(self) -> pa.Table:
        """All rows as one table; see `to_batches`."""
        return pa.Table.from_batches(self.to_batches(), arrow_schema(*self._fields()))

    def __iter__(self) -> Iterator[Any]:
        """All keys, in no particular order."""
        for batch in self.to_batches():
            yield from python_keys(batch, len(self.key))

    def __len__(self) -> int:
        """Number of keys."""
        return self.stats().keys

    def __bool__(self) -> bool:
        return True

    def _fields(self) -> tuple[list[str], list[StateType]]:
        names = [name for name, _ in self.key] + list(self._declarations)
        types = [t for _, t in self.key] + list(self._types().values())
        return names, types

    def _types(self) -> dict[str, StateType]:
        return {name: d.type for name, d in self._declarations.items()}

    def stats(self) -> TableStats:
        """The table's size; objects that wait to be pickled are written first."""
        self.open()
        self._flush()
        return TableStats(*self._table.stats())

    def reader(self) -> SealedReader:
        """Read the last sealed epoch, beside the writer, from this or another thread."""
        self.open()
        return SealedReader(self._table, self.key, self._declarations, where=self._table.where)
