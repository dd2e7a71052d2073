"""The table of a backend: its options, how it is opened and released, and its key columns.

Thread safety: as the backend.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import choice, flag, folder_path, integer, mapping, shown
from pystate.base.memory import process_budget
from pystate.checkpoint.state_files import Lineage
from pystate.errors import DeclarationError, InvalidArgumentError
from pystate.state.columns import NAMESPACE, core_schema
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.state.operator_spec import OperatorSpec
from pystate.state.registry import StateRegistry, unknown_state
from pystate.tables.options import (
    Identity,
    TableOptions,
    TableStats,
    checked_parallelism,
    checked_range,
)
from pystate.tables.timers import Timers
from pystate.types.keys import KeyColumns, KeyLike, describe, parse_key
from pystate.types.state_type import StateType, TypeLike, parse_type, refuse_nested_key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BackendTable"]


_MOST = (1 << 63) - 1

H = TypeVar("H")
_DEFAULTS = TableOptions()


class BackendTable:
    """The part of `KeyedStateBackend` that its other parts build on.

    Attributes
    ----------
    key : tuple of (name, StateType)
        The key's columns.
    namespace : StateType or None
        The type of its namespaces.

    See Also
    --------
    pystate.KeyedStateBackend : describes the parameters.
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
        identity: Identity | None = None,
        limit_bytes: int = 0,
        lock_timeout_ms: int = 6000,
        uid: str = "",
        create: bool = True,
        namespace: TypeLike | None = None,
        timers: bool = False,
    ) -> None:
        if not isinstance(uid, str):
            raise InvalidArgumentError(f"backend: uid is a string, not {shown(uid)}")
        owner = f"operator {uid!r}" if uid else "backend"
        self.key = parse_key(key)
        self.uid = uid
        self.max_parallelism = checked_parallelism(max_parallelism)
        self.key_group_range = checked_range(key_group_range, max_parallelism)
        self.home = home
        self.path = None if path is None else folder_path(path, f"{owner}: path")
        self.created = False
        self._check_home()
        if identity is not None and not hasattr(identity, "boot_id"):
            raise InvalidArgumentError(f"{owner}: identity is an Identity, not {shown(identity)}")
        self._identity = identity
        self._limit_bytes = integer(limit_bytes, f"{owner}: limit_bytes", least=0, most=_MOST)
        self._lock_timeout_ms = integer(
            lock_timeout_ms, f"{owner}: lock_timeout_ms", least=0, most=_MOST
        )
        self._create = flag(create, f"{owner}: create")
        self.namespace = None if namespace is None else _namespace_type(namespace)
        self._table = core.Table(owner, self.open)
        self.set_current_key = self._table.set_current_key
        self._states = StateRegistry(
            self._table, self._reserved_names(), flag(timers, f"{owner}: timers")
        )
        self._timers = Timers(self._table)
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
        identity: Identity | None = None,
    ) -> Self:
        """Make the backend of an operator for a range of key groups.

        Parameters
        ----------
        operator : OperatorSpec
            Determines what the table holds.
        key_group_range : tuple of int, optional
            First and last key group, both inclusive; all by default.
        options : TableOptions
            How the table is kept.
        path : str, optional
            The file of a shared table; without a path the table is private to this process.
        identity : Identity, optional
            Who may use a shared table.
        """
        return cls(
            operator.key,
            states=operator.states,
            max_parallelism=operator.max_parallelism,
            key_group_range=key_group_range,
            home="heap" if path is None else "shared",
            path=path,
            identity=identity,
            limit_bytes=options.limit_bytes,
            lock_timeout_ms=options.lock_timeout_ms,
            uid=operator.uid,
            namespace=operator.namespace,
            timers=operator.timers,
        )

    def _reserved_names(self) -> dict[str, str]:
        names = dict.fromkeys((name for name, _ in self.key), "a key column")
        if self.namespace is not None:
            if NAMESPACE in names:
                raise DeclarationError(
                    f"a key column is called {NAMESPACE!r}, as the column of the namespaces is: "
                    "give it another name"
                )
            names[NAMESPACE] = "the column of the namespaces"
        return names

    def _check_home(self) -> None:
        if self.home == "disk":
            raise InvalidArgumentError("home 'disk' is not supported yet: use 'heap' or 'shared'")
        choice(self.home, "home", ("heap", "shared"))
        if (self.home == "shared") != (self.path is not None):
            raise InvalidArgumentError("a shared table needs a path, and only it has one")

    # -- states

    def register(self, name: str, declaration: State[H]) -> H:
        """Declare a state and get its handle; declaring it again returns the same handle.

        Raises
        ------
        DeclarationError
            Another declaration or a key column has the name, or the table is open already.
        """
        handle: H = self._states.register(name, declaration)
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
            raise unknown_state(name, self._states.handles) from None

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
        if self.path is not None:
            from pystate.tables.host import counted_home, table_identity

            home = counted_home(self.path)
            if identity is None:
                name = os.path.abspath(self.path)
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
            process_budget(),
            home,
        )
        self._states.set_ttl()

    def close(self) -> None:
        """Free the table with its batches and readers; an open epoch is lost.

        Snapshots stay valid. Does nothing the second time.

        Raises
        ------
        InUseError
            Another thread is using the table.
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
        """Acquire the lock of a detached table again.

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
        """Number of keys; a key counts once for each of its namespaces."""
        return self.stats().keys

    def __bool__(self) -> bool:
        return True

    def stats(self) -> TableStats:
        """The table's size; pending objects are pickled and written first."""
        self.open()
        self._flush()
        return TableStats(*self._table.stats())

    # -- for the other parts

    def _key_columns(self) -> KeyColumns:
        """The key's columns, and its namespace's."""
        if self.namespace is None:
            return self.key
        return (*self.key, (NAMESPACE, self.namespace))

    def _key_types(self) -> list[StateType]:
        return [type_ for _, type_ in self._key_columns()]

    def _seal(self, name: Lineage, wanted: bool) -> core.Sealed | None:
        """End the open epoch under that name; return its changes if they are wanted."""
        self._flush()
        sealed = self._table.seal(*name, wanted)
        self._discard()
        return sealed

    def _flush(self) -> None:
        for handle in self._states.objects:
            handle.flush(self._batch_of)

    def _batch_of(self, names: list[Any]) -> KeyBatch:
        spaces: list[Any] = []
        if self.namespace is not None:
            names, spaces = [name for name, _ in names], [space for _, space in names]
        columns: list[Any] = [names]
        if len(self.key) > 1:
            columns = list(zip(*names, strict=True))
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


def _namespace_type(type: TypeLike) -> StateType:
    return refuse_nested_key(parse_type(type, "the namespace"), "the namespace")
