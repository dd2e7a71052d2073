"""The keyed state backend: states of keys with a clock and timers, sealed, filled and read.

Thread safety: a backend belongs to one thread at a time; other threads may use its snapshots and
readers meanwhile.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import flag, folder_path, integer, mapping, shown
from pystate.base.memory import process_budget
from pystate.checkpoint.state_files import (
    EMPTY_LINEAGE,
    FileIdentity,
    Lineage,
    Source,
    open_file,
    refuse_renames,
)
from pystate.errors import InvalidArgumentError, LineageError, MemoryLimitError, PoisonedError
from pystate.state.columns import NAMESPACE, core_schema
from pystate.state.declaration import State
from pystate.state.handle import Objects
from pystate.state.key_batch import KeyBatch, named_batch, walked
from pystate.state.operator_spec import OperatorSpec, declared_fills
from pystate.tables.below import SCAN_ROWS
from pystate.tables.host import TableIdentity, counted_home, table_identity
from pystate.tables.loading import apply_file
from pystate.tables.options import (
    DISK,
    UNDO_EPOCHS,
    TableOptions,
    TableStats,
    backend_options,
    check_home,
    checked_parallelism,
    checked_range,
)
from pystate.tables.registry import StateRegistry, reserved_names, unknown_state_error
from pystate.tables.rows_below import RowsBelow
from pystate.tables.snapshots import SealedReader, Snapshot
from pystate.tables.timers import DueTimers, TimeDomain, Timers
from pystate.types.arrays import as_array
from pystate.types.keys import KeyColumns, KeyLike, describe, key_columns, parse_key
from pystate.types.state_type import StateType, TypeLike, parse_type, refuse_nested_key

if TYPE_CHECKING:
    from typing_extensions import Self

H = TypeVar("H")

_DEFAULTS = TableOptions()
#: Each seal scans this part of the keys for expired values, but at least this many keys.
_LEAST_EXPIRED, _EXPIRED_PART = 4096, 64


class KeyedStateBackend:
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
    home : {"heap", "shared", "disk"}
        Memory of this process; a file at `path` that the host's processes use in turn; or memory
        of this process for some rows, and state files for the others: see `RowsBelow`.
    path : path, optional
        The file of a shared table, best under ``/dev/shm``. Of a table on disk a folder where
        `restore` puts a base, if it is given files in which no rows can be looked up.
    identity : TableIdentity, optional
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
    where : str
        What errors call the backend, in place of its operator.

    Attributes
    ----------
    set_current_key : callable
        ``set_current_key(key)`` makes a key current: a value, or a tuple if the key has several
        columns. None is an ordinary key. The key stays current until the next seal or rollback.
    below : RowsBelow
        The files in which rows of a table on disk are, and what leaves memory for them.
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

    set_current_key: Callable[[Any], None]

    def __init__(
        self,
        key: KeyLike,
        *,
        states: Mapping[str, State[Any]] | None = None,
        max_parallelism: int = 128,
        key_group_range: tuple[int, int] | None = None,
        home: Literal["heap", "shared", "disk"] = "heap",
        path: str | os.PathLike[str] | None = None,
        identity: TableIdentity | None = None,
        limit_bytes: int = 0,
        lock_timeout_ms: int = 6000,
        uid: str = "",
        create: bool = True,
        namespace: TypeLike | None = None,
        timers: bool = False,
        where: str = "",
    ) -> None:
        for name, text in {"uid": uid, "where": where}.items():
            if not isinstance(text, str):
                raise InvalidArgumentError(f"backend: {name} is a string, not {shown(text)}")
        owner = where or (f"operator {uid!r}" if uid else "backend")
        self.key = parse_key(key)
        self.uid = uid
        self.max_parallelism = checked_parallelism(max_parallelism)
        self.key_group_range = checked_range(key_group_range, max_parallelism)
        self.home = home
        self.path = None if path is None else folder_path(path, f"{owner}: path")
        self.created = False
        #: The file of a shared table.
        self._file = None if home == DISK else self.path
        check_home(home, self.path)
        flag(timers, f"{owner}: timers")
        if identity is not None and not hasattr(identity, "boot_id"):
            raise InvalidArgumentError(f"{owner}: identity is an Identity, not {shown(identity)}")
        self._identity = identity
        self._options = backend_options(home, limit_bytes, lock_timeout_ms, owner)
        self._create = flag(create, f"{owner}: create")
        self.namespace: StateType | None = None
        if namespace is not None:
            what = "the namespace"
            self.namespace = refuse_nested_key(parse_type(namespace, what), what)
        self._table = core.Table(owner, self.open)
        self.set_current_key = self._table.set_current_key
        self._states = StateRegistry(self._table, reserved_names(self.key, self.namespace), timers)
        self._timers = Timers(self._table, self.key_group_range if home == DISK else None)
        self.below = RowsBelow(self, self.home == DISK)
        self._swept = False  # in the open epoch
        self._clock: dict[str, tuple[int | None, ...]] = {}
        given = {} if states is None else states
        example = "states={'n': ps.ValueState('long')}"
        for name, declaration in mapping(given, f"{owner}: states", example).items():
            self.register(name, declaration)

    @classmethod
    def of(
        cls,
        operator: OperatorSpec,
        key_group_range: tuple[int, int] | None = None,
        options: TableOptions = _DEFAULTS,
        *,
        path: str | None = None,
        identity: TableIdentity | None = None,
    ) -> Self:
        """Make the backend of an operator for a range of key groups, by default all.

        With a `path` the table is shared among those whom `identity` admits. Also where the options
        say that tables are on disk, operators of instances have all of their rows in memory.
        """
        on_disk = options.on_disk and not operator.instances
        backend = cls(
            operator.key,
            states=operator.states,
            max_parallelism=operator.max_parallelism,
            key_group_range=key_group_range,
            home=DISK if on_disk else "heap" if path is None else "shared",
            path=None if on_disk else path,
            identity=identity,
            uid=operator.uid,
            namespace=operator.namespace,
            timers=operator.timers,
        )
        if on_disk and path is not None:
            backend._file = os.fspath(path)
        backend._options = options
        backend.below.write_objects_early()
        return backend

    # -- states

    def register(self, name: str, declaration: State[H]) -> H:
        """Declare a state and get its handle; declaring it again returns the same handle.

        Raises
        ------
        DeclarationError
            Another declaration or a key column has the name, or the table is open already.
        """
        handle: H = self._states.register(name, declaration)
        self.below.write_objects_early()
        return handle

    @property
    def states(self) -> Mapping[str, Any]:
        """The handles by name."""
        return self._states.handles

    @property
    def declarations(self) -> Mapping[str, State[Any]]:
        """The declarations by name, in the order of the table's columns."""
        return self._states.declarations

    @property
    def is_open(self) -> bool:
        """Whether the table exists in this process."""
        return self._table.is_open

    def __getitem__(self, name: str) -> Any:
        try:
            return self._states.handles[name]
        except KeyError:
            raise unknown_state_error(name, self._states.handles) from None

    # -- life

    def open(self) -> None:
        """Create the table, or attach a shared one; any other use of the backend does that, too.

        Raises
        ------
        TableBusyError
            Another process held the lock for more than `lock_timeout_ms`.
        TableMismatchError
            The file belongs to another schema, boot or application; it is not changed.
        FileNotFoundError
            There is no file, and `create` is False.
        MemoryLimitError, AddressSpaceError, NoSpaceError, SystemCallError
            Memory was refused.
        """
        if self._table.is_open:
            return
        identity, home = self._identity, None
        path = self._file
        if path is not None:
            home = counted_home(path)
            if identity is None:
                name = os.path.abspath(path)
                identity = table_identity(hashlib.sha256(os.fsencode(name)).digest())
        first, last = self.key_group_range
        self.created = self._table.open(
            core_schema(self.key, self.namespace, self._states.columns),
            self.max_parallelism,
            first,
            last,
            self._options.limit_bytes,
            path,
            identity,
            self._options.lock_timeout_ms,
            self._create,
            process_budget(),
            home,
        )
        self._states.set_ttl()
        self.below.begin()

    def close(self) -> None:
        """Free the table with its batches and readers; an open epoch is lost.

        Snapshots stay valid. Does nothing the second time.

        Raises
        ------
        InUseError
            Another thread is using the table.
        """
        self._table.close()
        self.below.close()
        self._discard()

    def give_way(self, other: KeyedStateBackend) -> None:
        """Close a shared table, which is attached, and have `other` make the next one in its place.

        `other` has the same path, and was not opened. No other process can have the lock before it.
        `InUseError`, `NoSpaceError` and `SystemCallError`: nothing has changed.
        """
        self._table.give_way(other._table)
        self.close()

    def detach(self) -> None:
        """Release a shared table's lock but keep it mapped, so that `attach` is fast.

        An open epoch is rolled back.
        """
        if self._table.dirty():
            self._table.rollback(0)
        self._table.detach()
        self._discard()

    def attach(self, lock_timeout_ms: int | None = None) -> None:
        """Acquire the lock of a detached table again.

        Raises
        ------
        TableBusyError
            Another process held it for too long.
        TableMismatchError
            The file was replaced meanwhile: close this backend and open a new one.
        """
        own_ms = self._options.lock_timeout_ms
        self._table.attach(own_ms if lock_timeout_ms is None else lock_timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        first, last = self.key_group_range
        name = f" {self.uid!r}" if self.uid else ""
        return f"<KeyedStateBackend{name} of {describe(self.key)}, key groups {first} to {last}>"

    # -- size

    @property
    def dirty(self) -> bool:
        """Whether the open epoch has touched anything."""
        return self._table.dirty() or any(handle.dirty for handle in self._states.objects)

    def end_idle_epoch(self) -> None:
        """End an open epoch in which nothing was touched, without a seal.

        Key batches stay valid. Objects that were read are dropped, as in a seal.
        """
        self._discard()

    def __len__(self) -> int:
        """Number of keys, of `to_batches`; a key counts once for each of its namespaces."""
        return self.below.count() if self.below.are_any else self.stats().keys

    def __bool__(self) -> bool:
        return True

    def stats(self) -> TableStats:
        """The table's size; pending objects are pickled and written first."""
        self.open()
        self._flush()
        return TableStats(*self._table.stats())

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

    def prefetch(self, columns: Any, namespaces: Any = None) -> KeyBatch:
        """As `keys`, of a table on disk also bring the keys' rows into memory.

        The first use of a batch of keys does that, too. Whoever is about to make keys current one
        by one calls this before: to look many keys up together takes far less time.

        Raises
        ------
        MemoryLimitError
            The rows of so many keys do not fit in memory together. The error's ``keys`` says how
            many do; nothing has changed.
        """
        keys = self.keys(columns, namespaces)
        keys.check()
        return keys

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

    # -- time and timers

    def set_clock(
        self,
        *,
        processing_time: int | None = None,
        watermark: int | None = None,
        event_time: int | None = None,
    ) -> None:
        """Set the time, the only clock of times to live.

        Parameters
        ----------
        processing_time, watermark : int, optional
            The epoch's times, in milliseconds since 1970; None if not known.
        event_time : int, optional
            The event time of the current row, at which event-time states count as written.
        """
        for name, time in (
            ("processing_time", processing_time),
            ("watermark", watermark),
            ("event_time", event_time),
        ):
            if time is not None and type(time) is not int:
                integer(time, f"set_clock: {name}, in milliseconds since 1970,")
        self.open()
        clock: dict[str, tuple[int | None, ...]] = {
            "processing": (processing_time,),
            "event": (watermark, event_time),
        }
        if clock != self._clock:
            for handle in self._states.timed_objects:
                assert handle.ttl is not None
                if clock[handle.ttl.time] != self._clock.get(handle.ttl.time):
                    # Pending objects were written, and kept ones were read, at the old time.
                    self._flush_one(handle)
                    handle.discard()
            self._clock = clock
        self._table.set_clock(processing_time, watermark, event_time)

    def expire(self) -> int:
        """Remove expired values of some keys, once per epoch; `seal` does it, too.

        Returns
        -------
        int
            Number of removed values and elements.

        Notes
        -----
        Scans 4096 keys and map entries, or a 64th of the keys if that is more, and four for each
        key made since the last scan; later epochs scan the next ones.
        """
        if self._swept or not self._states.expires:
            return 0
        self.open()
        self._flush()
        for handle in self._states.timed_objects:
            handle.discard()
        return self._sweep()

    def _sweep(self) -> int:
        """The same where objects may wait."""
        if self._swept or not self._states.expires:
            return 0
        for handle in self._states.timed_objects:
            handle.drop_read()
        gone = self._table.expire(max(_LEAST_EXPIRED, self._table.stats()[1] // _EXPIRED_PART))
        # A table that is not dirty is not sealed: the next epoch of an idle table scans on.
        self._swept = self.dirty
        return gone

    def sweep_all(self) -> None:
        """`expire` of all keys, which gives a time to what has none, as far as memory allows."""
        try:
            self._table.expire((1 << 64) - 1)
        except (MemoryLimitError, PoisonedError):
            self.rollback()

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
        """Delete a timer per key; absent timers are ignored."""
        self._timers.delete_all(keys, domain, timestamps)

    def next_timer(self, domain: TimeDomain) -> int | None:
        """The time of the earliest timer, or of one in files that was taken away; None: none."""
        self.open()
        return self._timers.next(domain) if self._states.has_timers else None

    def due_timers(self, domain: TimeDomain, until: int, most: int = 4096) -> DueTimers | None:
        """Find timers that are due.

        Parameters
        ----------
        domain : {"event", "processing"}
            The clock.
        until : int
            The clock's time, in milliseconds since 1970.
        most : int
            The most timers to return.

        Returns
        -------
        DueTimers or None
            ``keys`` (a `KeyBatch`), ``timestamps``, ``fire(i)``, ``fire_all()``, ``stale``. Those
            of one key are in order. On disk they may be fewer than `most` though more are due.
            None if no timer is due.

        Raises
        ------
        MemoryLimitError
            Of a table on disk: not one key's row fits in memory beside those that are there.
        """
        self.open()
        return self._timers.due(domain, until, most, self._key_types())

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
        # What objects are written to may be sealed as steps, on which this epoch is then built.
        self._flush()
        if lineage is None:
            last = self._table.lineage(0)
            lineage = (EMPTY_LINEAGE if last is None else Lineage(*last)).next()
        sealed = self._seal(lineage, snapshot)
        return None if sealed is None else Snapshot(sealed, self._options.guided_block_bytes)

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
            The undo window does not reach so far, or files below hold rows; nothing was undone.
        """
        if not 0 <= integer(back, "rollback: back") <= UNDO_EPOCHS:
            raise LineageError(
                f"roll back over {back} sealed epochs: {UNDO_EPOCHS} are the most; restore instead"
            )
        self.below.refuse_return(back)
        self._table.rollback(back)
        self._discard()

    def lineage(self, back: int = 0) -> Lineage | None:
        """The name of the epoch sealed `back` before the last; None outside the undo window."""
        self.open()
        if not 0 <= integer(back, "lineage: back") <= UNDO_EPOCHS:
            return None
        lineage = self._table.lineage(back)
        return None if lineage is None else Lineage(*lineage)

    # -- files

    def load(
        self,
        source: Source,
        *,
        first_key_group: int | None = None,
        last_key_group: int | None = None,
        expected: FileIdentity | None = None,
        allow_unclaimed_state: bool = False,
        since: Mapping[str, int] = MappingProxyType({}),
    ) -> int:
        """Apply a key-group range of one file to the open epoch.

        Parameters
        ----------
        source : path or binary file object
            A delta or base file.
        first_key_group, last_key_group : int, optional
            Inclusive; by default the backend's range. Other blocks are not read.
        expected : FileInfo, optional
            The expected content of the file; its key groups alone are applied.
        allow_unclaimed_state : bool
            Whether states that are not declared are dropped.
        since : mapping of str to int, optional
            For some states the epoch from which on files count: an older state of that name was
            dropped.

        Returns
        -------
        int
            Records applied.

        Raises
        ------
        CorruptFileError, NewerFormatError, CheckpointError
            The file cannot be read. The open epoch must then be rolled back.
        SchemaError, UnclaimedStateError
            The file's key or states are not the backend's; nothing was applied.
        StateOverflowError
            A stored value is out of the range of the type that its state has now, such as a date of
            the year 300 000 as a timestamp. The open epoch must then be rolled back.
        """
        self.open()
        self.below.refuse("load")
        first, last = self.key_group_range
        first = first if first_key_group is None else first_key_group
        last = last if last_key_group is None else last_key_group
        return apply_file(
            self._table,
            source,
            (first, last),
            expected,
            (self.key, self.namespace, self._states.columns, self.max_parallelism),
            allow_unclaimed_state,
            since,
        )

    def copy_from(self, other: KeyedStateBackend, first_key_group: int, last_key_group: int) -> int:
        """Put the rows and timers of some key groups of another table into the open epoch.

        Parameters
        ----------
        other : KeyedStateBackend
            A table of the same declarations, in which nothing is unsealed.
        first_key_group, last_key_group : int
            Inclusive; both tables have them, and this one has no key of them yet.

        Returns
        -------
        int
            Records copied.

        Raises
        ------
        InvalidArgumentError
            A table does not have the key groups, or `other` has an open epoch.
        SchemaError
            The tables' states differ.
        MemoryLimitError, NoSpaceError
            There is no room. The open epoch must then be rolled back.
        """
        self.open()
        other.open()
        self.below.refuse("copy_from")
        return core.copy_rows(other._table, self._table, first_key_group, last_key_group)

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
            A base and the deltas after it, oldest first; only the backend's range of each is read.
        lineage : Lineage, optional
            The lineage that the table gets; by default the last file's.
        expected : iterable of FileInfo, optional
            The expected content of each file, by whoever has compared the declared states with the
            stored ones. Without it, fields of structs that seem to be renamed are refused here.
        allow_unclaimed_state : bool
            Whether states that are not declared are dropped, and what seems renamed.

        Returns
        -------
        int
            Records applied.

        Raises
        ------
        InvalidArgumentError
            The table is not empty.
        CorruptFileError, NewerFormatError, CheckpointError, SchemaError, UnclaimedStateError
            As for `load`; the table is empty again.
        """
        self.open()
        if self.dirty or self.below.files or len(self):
            raise InvalidArgumentError("restore fills an empty table; this one has state")
        if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
            raise InvalidArgumentError(f"restore takes a list of state files, not {shown(files)}")
        files = list(files)
        identities: list[Any] = [None] * len(files) if expected is None else list(expected)
        if files and expected is None:
            refuse_renames(files[-1], self._states.columns, allow_unclaimed_state)
        since = declared_fills(self.declarations)
        if self.home == DISK and files:
            return self.below.restore(files, identities, lineage, allow_unclaimed_state)
        rows = 0
        try:
            for source, identity in zip(files, identities, strict=True):
                rows += self.load(
                    source,
                    expected=identity,
                    allow_unclaimed_state=allow_unclaimed_state,
                    since=since,
                )
            if lineage is None and files:
                with open_file(files[-1]) as opened:
                    lineage = Lineage(*opened.reader.lineage())
            if lineage is not None:
                self._seal(lineage, wanted=False)
        except BaseException:
            self._table.rollback(0)
            raise
        return rows

    # -- rows

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
        InvalidArgumentError
            Of a table on disk: what the epoch changed did not fit in memory, and some of it is in
            files already, of which the table knows no keys.
        """
        noted = self.below.changed(max_rows)
        return self._rows(max_rows, changed=True) if noted is None else noted

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All current rows: key columns, the namespace if there are namespaces, then the states.

        An absent value is null, an absent list or map is empty; an aggregate is given as its
        result, an object in pickled form. Defaults are not filled in. Epochs may be sealed while
        the batches are consumed: a row that exists all the time is returned once; a row that is
        added or removed meanwhile may be returned or not. Until the iterator ends or is dropped,
        the table does not shrink. On the heap reading counts as a use of values with a time to
        live; of a table on disk whose rows lie in files values, lists and maps are given as they
        were when it began, which is none, without what has expired and keys with timers alone.

        Raises
        ------
        StaleKeyBatchError
            The table was detached meanwhile, or rolled back to a sealed epoch.
        """
        if self.below.are_any:
            return self.below.batches()
        if self.home == DISK:
            return self.below.exported_all(self._rows(SCAN_ROWS, changed=False))
        return map(self.exported, self._rows(SCAN_ROWS, changed=False))

    def exported(self, keys: KeyBatch, states: Collection[str] | None = None) -> pa.RecordBatch:
        """The rows of a batch of keys as `to_batches` gives them; absent keys have no state.

        There are columns of the `states` that are named alone, by default of all.
        """
        arrays = list(keys.key_arrays())
        if self.namespace is not None:
            arrays.append(keys.namespaces())
        fields = list(self.arrow_schema)
        kept = fields[: len(arrays)]
        for field, handle in zip(fields[len(arrays) :], self._states.handles.values(), strict=True):
            if states is None or field.name in states:
                arrays.append(handle._exported(keys))
                kept.append(field)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kept))

    def existing(self, max_rows: int = SCAN_ROWS) -> Iterator[KeyBatch]:
        """All keys, with their namespaces, at most so many in a batch; see `to_batches`."""
        return self._rows(max_rows, changed=False)

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
        if not changed and self.below.are_any:
            yield from self.below.keys(max_rows)
            return
        self._flush()
        batches = walked(self._table, max_rows, self._key_types(), changed=changed)
        if self.home != DISK:
            yield from batches
            return
        # Rows must be able to leave while their keys are gone over, and what changed may become a
        # step, so the keys are taken before.
        taken = [batch._columns() for batch in batches]
        for columns in taken:
            yield KeyBatch(self._table, columns, self._key_types())

    def __iter__(self) -> Iterator[Any]:
        """All keys, in no particular order; epochs may be sealed meanwhile, as for `to_batches`."""
        for keys in self._rows(SCAN_ROWS, changed=False):
            yield from keys.to_pylist()

    def reader(self) -> SealedReader:
        """Return a reader of the last sealed epoch, for this thread or another one.

        It sees the rows in memory alone: where others lie in files it says so at the end.
        """
        self.open()
        return SealedReader(
            self._table,
            self.key,
            self.declarations,
            where=self._table.where,
            namespace=self.namespace,
            timers=self._states.has_timers,
        )

    # -- for the other parts

    def _key_columns(self) -> KeyColumns:
        """The key's columns, and its namespace's."""
        if self.namespace is None:
            return self.key
        return (*self.key, (NAMESPACE, self.namespace))

    def _key_types(self) -> list[StateType]:
        return [type_ for _, type_ in self._key_columns()]

    def _seal(self, name: Lineage, wanted: bool, goes_on: bool = False) -> core.Sealed | None:
        """End the open epoch under that name; return its changes if they are wanted.

        With `goes_on` batches of keys stay valid, and objects that wait go on to wait.
        """
        if not goes_on:
            self._flush()
        sealed = self._table.seal(*name, wanted, goes_on)
        self.below.sealed(name)
        if goes_on:
            self._drop_read()
        else:
            self._discard()
        return sealed

    def _flush(self) -> None:
        for handle in self._states.objects:
            self._flush_one(handle)

    def _flush_one(self, handle: Objects) -> None:
        # What does not fit beside the rows that changed may come after a step.
        handle.flush(self._batch_of, self._table.make_way)

    def _batch_of(self, names: list[Any]) -> KeyBatch:
        return named_batch(self._table, names, self._key_types())

    def _drop_read(self) -> None:
        self._swept = False
        for handle in self._states.objects:
            handle.drop_read()

    def _discard(self) -> None:
        self._swept = False
        self.below.ended()
        for handle in self._states.objects:
            handle.discard()
