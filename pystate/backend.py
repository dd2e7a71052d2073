"""The keyed state backend: registers states, sets keys, seals, restores.

Thread safety: a backend belongs to one thread at a time; its snapshots and readers do not belong
to it and may be used beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from pystate import _core
from pystate._core import key_group, range_bounds, range_of
from pystate.arrays import as_array, decoded, hash_keys, key_groups
from pystate.columns import NAMESPACE, core_schema
from pystate.declarations import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from pystate.elements import ListHandle, MapHandle
from pystate.errors import (
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
from pystate.folds import AggregatingHandle, ReducingHandle
from pystate.handles import KeyBatch, ValueHandle
from pystate.keys import KeyColumns, KeyLike, describe, key_columns, parse_key
from pystate.registry import StateRegistry
from pystate.snapshots import SealedReader, Snapshot
from pystate.tables import (
    UNDO_EPOCHS,
    Identity,
    TableStats,
    checked_parallelism,
    checked_range,
)
from pystate.timers import DueTimers, TimeDomain, Timers
from pystate.types import StateType, TypeLike, parse_type, refuse_nested_key

if TYPE_CHECKING:
    from typing_extensions import Self

_SCAN_ROWS = 1 << 16
#: Keys looked through for what has expired at each seal: so many at least, and this part of them.
_LEAST_EXPIRED, _EXPIRED_PART = 4096, 64

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
    states : mapping of str to declaration, optional
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
    namespace : str or pyarrow.DataType, optional
        The type of namespaces, if states are kept by (key, namespace).
    timers : bool
        Whether keys have timers.

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
        states: Mapping[str, State] | None = None,
        max_parallelism: int = 128,
        key_group_range: tuple[int, int] | None = None,
        home: Literal["heap", "shared", "disk"] = "heap",
        path: str | os.PathLike[str] | None = None,
        identity: Identity | None = None,
        limit_bytes: int = 0,
        lock_timeout_ms: int = 6000,
        uid: str = "",
        create: bool = True,
        namespace: TypeLike | None = None,
        timers: bool = False,
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
        self.namespace = None if namespace is None else _namespace_type(namespace)
        where = f"operator {uid!r}" if uid else "backend"
        self._table = _core.Table(where, self.open)
        self.set_current_key = self._table.set_current_key
        self._states = StateRegistry(self._table, frozenset(name for name, _ in self.key), timers)
        self._timers = Timers(self._table)
        self._swept = False  # in the open epoch
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

    @overload
    def register(self, name: str, declaration: ValueState) -> ValueHandle: ...

    @overload
    def register(self, name: str, declaration: ListState) -> ListHandle: ...

    @overload
    def register(self, name: str, declaration: MapState) -> MapHandle: ...

    @overload
    def register(self, name: str, declaration: ReducingState) -> ReducingHandle: ...

    @overload
    def register(self, name: str, declaration: AggregatingState) -> AggregatingHandle: ...

    @overload
    def register(self, name: str, declaration: State) -> Any: ...

    def register(self, name: str, declaration: State) -> Any:
        """Declare a state and get its handle; the same declaration again gives the same handle.

        Raises
        ------
        DeclarationError
            The name is taken by another declaration or a key column, or the table is open already.
        """
        return self._states.register(name, declaration)

    @property
    def states(self) -> Mapping[str, Any]:
        """The handles by name."""
        return self._states.handles

    @property
    def declarations(self) -> Mapping[str, State]:
        """The declarations by name, in the order of the table's columns."""
        return self._states.declarations

    @property
    def is_open(self) -> bool:
        """Whether the table exists in this process."""
        return self._table.is_open

    def __getitem__(self, name: str) -> Any:
        return self._states.handles[name]

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
            core_schema(self.key, self.namespace, self._states.columns),
            self.max_parallelism,
            first,
            last,
            self._limit_bytes,
            self.path,
            identity,
            self._lock_timeout_ms,
            self._create,
        )
        self._states.set_ttl()

    def _key_columns(self) -> KeyColumns:
        """The key's columns, and its namespace's."""
        if self.namespace is None:
            return self.key
        return (*self.key, (NAMESPACE, self.namespace))

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

    def keys(self, columns: Any, namespaces: Any = None) -> KeyBatch:
        """Hash and look up many keys at once.

        Parameters
        ----------
        columns : array-like, list of array-like, RecordBatch or Table
            The key column, or a column for each of several; of a record batch or table the columns
            that have the key's names. Arrow arrays, numpy arrays, pandas series and sequences of
            Python values are columns.
        namespaces : array-like, optional
            A namespace per key, null for the default one; by default all have that.

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
        if self.namespace is not None:
            rows = len(arrays[0]) if arrays else 0
            spaces = pa.nulls(rows, self.namespace.arrow) if namespaces is None else namespaces
            arrays.append(as_array(spaces, self.namespace, "the namespaces"))
        elif namespaces is not None:
            raise InvalidArgumentError("the backend was made without a namespace type")
        self.open()
        return KeyBatch(self._table, arrays, self._key_types())

    def _key_types(self) -> list[StateType]:
        return [type_ for _, type_ in self._key_columns()]

    def delete(self, keys: Any) -> None:
        """Delete keys with all their states; absent ones are ignored.

        Of keys with namespaces those of the batch alone. Timers stay.

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
        return self._rows(max_rows, changed=True)

    def _rows(self, max_rows: int, *, changed: bool) -> Iterator[KeyBatch]:
        self.open()
        self._flush()
        cursor = 0
        while True:
            batch = KeyBatch(self._table, None, self._key_types())
            following = batch.take_rows(cursor, max_rows, changed)
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

    def set_current_namespace(self, value: Any) -> None:
        """Make a namespace current, None the default one; the current key stays.

        It stays until the next call, also where another key is made current.
        """
        self.open()
        self._table.set_namespace(value)

    @property
    def current_namespace(self) -> Any:
        """The current namespace, None for the default one."""
        return self._table.current_namespace()

    # -- time

    def set_clock(
        self,
        *,
        processing_time: int | None = None,
        watermark: int | None = None,
        event_time: int | None = None,
    ) -> None:
        """Tell what time it is: the only source of it for times to live.

        Parameters
        ----------
        processing_time, watermark : int, optional
            The epoch's, in milliseconds since 1970; None: not known.
        event_time : int, optional
            Of the row at hand, at which event-time states count as written.
        """
        self.open()
        self._table.set_clock(processing_time, watermark, event_time)

    def expire(self) -> int:
        """Remove what has expired from some of the keys, once an epoch; `seal` does it too.

        Returns
        -------
        int
            How many values and elements went.

        Notes
        -----
        Looks at 4096 keys at least, and at a 64th of them, in turn with later epochs.
        """
        if self._swept or not self._states.expires:
            return 0
        self.open()
        self._flush()
        self._swept = True
        return self._table.expire(max(_LEAST_EXPIRED, self._table.stats()[1] // _EXPIRED_PART))

    def register_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """Register a timer of the current key and namespace, in milliseconds since 1970."""
        self._timers.register(domain, timestamp)

    def delete_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """Delete a timer of the current key and namespace, if there is one."""
        self._timers.delete(domain, timestamp)

    def register_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Register a timer per key; a null registers none."""
        self._timers.register_all(keys, domain, timestamps)

    def delete_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Delete a timer per key; those that are not there are ignored."""
        self._timers.delete_all(keys, domain, timestamps)

    def next_timer(self, domain: TimeDomain) -> int | None:
        """The time of the earliest timer, None without any."""
        self.open()
        return self._timers.next(domain) if self._states.has_timers else None

    def due_timers(self, domain: TimeDomain, until: int, most: int = 4096) -> DueTimers | None:
        """Look for timers that are due.

        Parameters
        ----------
        domain : {"event", "processing"}
            Which clock.
        until : int
            Its time, in milliseconds since 1970.
        most : int
            How many at once.

        Returns
        -------
        DueTimers or None
            ``keys`` (a `KeyBatch`), ``timestamps``, ``fire(i)``, ``fire_all()``, ``stale``. Those
            of a key come in order. None where none is due.
        """
        self.open()
        return self._timers.due(domain, until, most, self._key_types())

    # -- epochs

    @property
    def dirty(self) -> bool:
        """Whether the open epoch has touched anything."""
        return self._table.dirty() or any(handle.dirty for handle in self._states.objects)

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
        O(rows changed), without the GIL. Where states have a time to live, some keys are looked
        through for what has expired before. Key batches become stale and no key stays current.
        """
        self.open()
        self._flush()
        if snapshot:
            # Never while files are applied: what went then would be in no delta.
            self.expire()
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
        for handle in self._states.objects:
            handle.flush(self._batch_of)

    def _batch_of(self, names: list[Any]) -> KeyBatch:
        spaces: list[Any] = []
        if self.namespace is not None:
            names, spaces = [name for name, _ in names], [space for _, space in names]
        columns = [names] if len(self.key) == 1 else list(zip(*names, strict=True))
        if self.namespace is not None:
            columns.append(spaces)
        arrays = [
            pa.array(column, type_.arrow)
            for column, (_, type_) in zip(columns, self._key_columns(), strict=True)
        ]
        return KeyBatch(self._table, arrays, self._key_types())

    def _discard(self) -> None:
        self._swept = False
        for handle in self._states.objects:
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
                reader,
                self.key,
                self.namespace,
                self._states.columns,
                self.max_parallelism,
                allow_unclaimed_state,
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
        """All rows as of now: key columns, the namespace if there are any, then the states.

        A value is null where it is absent, a list or map empty; of aggregates the result; objects
        are in their pickled form. Defaults are not filled in. A row that is written while the
        batches are consumed may or may not be seen.
        """
        for keys in self._rows(_SCAN_ROWS, changed=False):
            arrays = keys.key_arrays()
            if self.namespace is not None:
                arrays = [*arrays, keys.namespaces()]
            arrays += [_stored(handle, keys) for handle in self.states.values()]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema())

    def to_arrow(self) -> pa.Table:
        """All rows as one table; see `to_batches`."""
        return pa.Table.from_batches(self.to_batches(), self._arrow_schema())

    def _arrow_schema(self) -> pa.Schema:
        keys = [pa.field(name, type_.arrow) for name, type_ in self._key_columns()]
        states = [pa.field(name, _arrow_type(d)) for name, d in self.declarations.items()]
        return pa.schema([*keys, *states])

    def __iter__(self) -> Iterator[Any]:
        """All keys, in no particular order."""
        for keys in self._rows(_SCAN_ROWS, changed=False):
            yield from keys.to_pylist()

    def __len__(self) -> int:
        """Number of keys."""
        return self.stats().keys

    def __bool__(self) -> bool:
        return True

    def stats(self) -> TableStats:
        """The table's size; objects that wait to be pickled are written first."""
        self.open()
        self._flush()
        return TableStats(*self._table.stats())

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


def _namespace_type(type: TypeLike) -> StateType:
    return refuse_nested_key(parse_type(type, "the namespace"), "the namespace")


def _stored(handle: Any, keys: KeyBatch) -> Any:
    """A state of many keys as a column, without defaults; objects as they are pickled."""
    handle = getattr(handle, "_kept", handle)
    if isinstance(handle, ListHandle):
        return handle.lists(keys, raw=True)
    if isinstance(handle, MapHandle):
        return handle.maps(keys, raw=True)
    if isinstance(handle, ValueHandle):
        return decoded(handle._stored(keys), handle.type, handle.codec)
    return handle.results(keys)


def _arrow_type(declaration: State) -> pa.DataType:
    type_ = declaration.type.arrow
    if isinstance(declaration, ListState):
        return pa.list_(type_)
    if isinstance(declaration, MapState):
        return pa.map_(declaration.key_type.arrow, type_)
    if isinstance(declaration, AggregatingState) and declaration.bound is not None:
        return declaration.bound.result_type
    return type_
