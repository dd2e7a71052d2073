"""One operator's state as of a reader's epoch: keys, pieces of large states, all rows, timers.

Thread safety: any thread. Each call reads one epoch from its begin to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pystate.base.arguments import choice, integer, text
from pystate.errors import InvalidArgumentError
from pystate.processor.epochs import MissingFileError
from pystate.processor.scan import StateScan
from pystate.processor.selection import EVERYTHING, Selection
from pystate.query.connection import Place, View
from pystate.query.entries import Wanted, entries
from pystate.query.filters import Where, checked_names, parse_where, unknown_column_error
from pystate.query.follow import changes_until
from pystate.state.columns import NAMESPACE
from pystate.state.declaration import State
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.tables.timers import TIMER_DOMAIN, TIMER_MS
from pystate.types.arrays import as_array
from pystate.types.keys import key_columns, parse_key
from pystate.types.state_type import StateType

_DOMAINS = ("event", "processing")


class OperatorReader:
    """The state of one operator, as of its reader's epoch; ``reader[uid]`` makes it.

    It moves with its reader: what `StateReader.epoch` says is what each of its calls reads. What
    has expired by that epoch's processing time, or the operator's watermark in it, is not there.

    Attributes
    ----------
    uid : str
        The operator.
    """

    def __init__(self, place: Place, uid: str) -> None:
        self._place, self.uid = place, uid

    @property
    def schema(self) -> pa.Schema:
        """The columns of `get` and `scan`: the key, ``namespace`` if there are any, the states."""
        schema: pa.Schema = self._place.read(lambda view: view.lookup(self.uid).schema)
        return schema

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key."""
        return self._place.view.key_schema(self.uid)

    @property
    def states(self) -> dict[str, State[Any]]:
        """The states by name, with their declarations as far as the checkpoint knows them."""
        return self._place.read(lambda view: view.lookup(self.uid).scan.states)

    def get(
        self, keys: Any, *, states: list[str] | None = None, namespaces: Any = None
    ) -> pa.Table:
        """Look keys up.

        Parameters
        ----------
        keys : array-like, list of array-like, RecordBatch or Table
            The keys, given as for `read_state`: the key column, or a list of columns for a key of
            several; from a record batch or a table the columns that have the key's names.
        states : list of str, optional
            Which states; by default all.
        namespaces : array-like, optional
            A namespace per key, which may be null: the default one.

        Returns
        -------
        pyarrow.Table
            The key columns, ``namespace`` if the operator has namespaces, and the states. A row for
            each key (and namespace) that was asked for, in their order: the states of a key that
            the epoch does not have are null. Of an operator with namespaces, and without
            `namespaces`, a row for each namespace that a key has, and none for absent keys.

        Raises
        ------
        InvalidArgumentError
            There is no such state. `WrongTypeError` if keys are of another type.
        CheckpointError
            Files of the epoch are gone, and those of the next one were removed meanwhile, too.
        CorruptFileError, NewerFormatError
            A file cannot be read; it is named.
        """

        def get(view: View) -> pa.Table:
            look = view.lookup(self.uid).get
            rows = self._looked_up(view, look, keys, states, namespaces)
            assert rows is not None
            return rows

        return self._place.read(get)

    def _get_at_hand(
        self, keys: Any, *, states: list[str] | None = None, namespaces: Any = None
    ) -> pa.Table | None:
        """What `get` gives; None if a disk would have to be waited for, or much be read."""
        self._place.check()
        view = self._place.view
        if not view.is_ready(self.uid):
            return None
        look = view.lookup(self.uid).get_at_hand
        return self._looked_up(view, look, keys, states, namespaces)

    def _looked_up(
        self,
        view: View,
        look: Callable[..., pa.Table | None],
        keys: Any,
        states: list[str] | None,
        namespaces: Any,
    ) -> pa.Table | None:
        scan = view.lookup(self.uid).scan
        if states is not None:
            states = checked_names(states, scan.states, self.uid, "get: states")
        selection = None if states is None else Selection(only=frozenset(states))
        rows = look(keys, namespaces, selection=selection)
        if states is None or rows is None:
            return rows
        kept = len(scan.operator.key_schema) + (scan.namespace is not None)
        return rows.select([*rows.schema.names[:kept], *states])

    def entries(
        self, state: str, key: Any, *, from_: Any = None, to: Any = None, namespace: Any = None
    ) -> pa.RecordBatchReader:
        """Read one key's map or list, or a piece of it, some elements at a time.

        Parameters
        ----------
        state : str
            A state that is a map or a list.
        key : object
            The key; a tuple if it has several columns.
        from_, to : optional
            Of a map only entries whose keys are not less than `from_`, and less than `to`; of a
            list only items from the position `from_` on, and before `to`.
        namespace : optional
            The namespace of the state; the default one if omitted.

        Returns
        -------
        pyarrow.RecordBatchReader
            A row for each element, ``<state>_key`` and ``<state>`` of a map, in the order of its
            keys, and ``<state>_index`` and ``<state>`` of a list; none if the epoch does not have
            the key. The reader can be used once.

        Raises
        ------
        InvalidArgumentError
            There is no such state, or it has no elements. `WrongTypeError` if the key or a bound is
            of another type.
        CheckpointError
            As for `scan`.

        Notes
        -----
        Where the job's tables are on disk, and its checkpoint in a folder, only the blocks are read
        that have what is asked for. Elsewhere the whole map or list is.
        """

        def begin(view: View) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            scan = view.lookup(self.uid).scan
            if text(state, "entries: state") not in scan.states:
                raise unknown_column_error(state, scan.states, self.uid)
            several = len(scan.operator.key_schema) > 1 and isinstance(key, tuple)
            columns: list[Any] = [[part] for part in key] if several else [key]
            if namespace is not None and scan.namespace is None:
                raise InvalidArgumentError(f"operator {self.uid!r} has no namespaces")
            wanted = Wanted(scan, state, _asked(scan, columns, None), namespace)
            wanted.between(from_, to)
            return wanted.schema, entries(view, wanted)

        return self._batches(begin)

    def scan(
        self,
        *,
        columns: list[str] | None = None,
        where: Any = None,
        key_groups: Any = None,
    ) -> pa.RecordBatchReader:
        """Read all rows, or those for which a condition holds, a part at a time.

        Parameters
        ----------
        columns : list of str, optional
            Which columns of `schema`; by default all.
        where : list of (column, op, value), or list of such lists, optional
            Conditions, all of which must hold; of a list of lists all of one list. Ops are ``==``
            (or ``=``), ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in`` and ``not in``, which take a
            list; ``== None`` is true of nulls. Where each list gives the whole key, by ``==`` or
            ``in``, keys are looked up, and nothing else is read.
        key_groups : iterable of int, optional
            Read only these key groups.

        Returns
        -------
        pyarrow.RecordBatchReader
            The rows, in no particular order. They are read as they are asked for; the reader can be
            used once, and reads the epoch that it began with.

        Raises
        ------
        InvalidArgumentError
            There is no such column, or it cannot be compared. `WrongTypeError` if a value is of
            another type than its column.
        CheckpointError
            As for `get`. It is also raised while batches are read, if a running job has removed the
            epoch's files.
        """

        def begin(view: View) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            scan = view.lookup(self.uid).scan
            types = _types_of(scan)
            parsed = parse_where(where, types, self.uid)
            names = list(types)
            if columns is not None:
                names = checked_names(columns, types, self.uid, "scan: columns")
            schema = scan.schema
            wanted = pa.schema([schema.field(name) for name in names])
            keys = None
            if parsed is not None:
                keys = parsed.keys(parse_key(list(scan.operator.key_schema)))
            needed = {*names, *(() if parsed is None else parsed.columns)}
            selection = EVERYTHING
            if not needed.issuperset(scan.states):
                only = frozenset(needed.intersection(scan.states))
                # Where keys are told by a condition on a state, the others need not be read.
                alone = parsed is not None and keys is None and _is_told(scan, parsed, only)
                selection = Selection(only=only, alone=alone)
            found = view.rows(self.uid, selection, keys=keys, key_groups=key_groups)
            return wanted, _projected(found, parsed, names, wanted)

        return self._batches(begin)

    def changes(self, since: int) -> pa.RecordBatchReader:
        """Find what has changed since an epoch, up to that of the reader.

        Parameters
        ----------
        since : int
            A retained epoch; 0 for the empty state before the first.

        Returns
        -------
        pyarrow.RecordBatchReader
            The rows of `pystate.changes`, found as they are asked for: the key columns,
            ``namespace`` if there are any, ``change``, ``before`` and ``after``.

        Raises
        ------
        RetiredEpochError
            The epoch is not retained any more: it says from which one to begin anew.
        InvalidArgumentError
            The epoch is after that of the reader.
        """
        place = self._place
        place.check()
        storage, newer = place.connection.storage, place.view.manifest
        changes = changes_until(storage, since, newer, uids=[self.uid], check=place.check)
        batches = (rows for _, rows in changes)
        return pa.RecordBatchReader.from_batches(changes.schema(self.uid), batches)

    def timers(
        self, *, domain: str | None = None, until: int | None = None
    ) -> pa.RecordBatchReader:
        """Read the timers.

        Parameters
        ----------
        domain : {"event", "processing"}, optional
            Only those of one kind of time.
        until : int, optional
            Only those of that time or earlier, in milliseconds since 1970.

        Returns
        -------
        pyarrow.RecordBatchReader
            A row per timer, in no particular order: the key columns, ``namespace`` if there are
            any, ``timer_domain`` and ``timer_ms``.

        Raises
        ------
        InvalidArgumentError
            The operator has no timers.
        CheckpointError
            As for `scan`.
        """
        conditions: list[Any] = []
        if domain is not None:
            conditions.append((TIMER_DOMAIN, "==", choice(domain, "timers: domain", _DOMAINS)))
        if until is not None:
            conditions.append((TIMER_MS, "<=", integer(until, "timers: until")))

        def begin(view: View) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            selection = Selection(timers=True)
            schema = view.scan(self.uid, selection).schema
            types: dict[str, StateType | None] = {
                TIMER_DOMAIN: StateType("string"),
                TIMER_MS: StateType("long"),
            }
            where = parse_where(conditions or None, types, self.uid)
            found = view.rows(self.uid, selection)
            return schema, _projected(found, where, schema.names, schema)

        return self._batches(begin)

    def _batches(
        self, begin: Callable[[View], tuple[pa.Schema, Iterator[pa.RecordBatch]]]
    ) -> pa.RecordBatchReader:
        """Begin to read, in the next epoch if the files of this one are gone before it began."""

        def started(view: View) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            schema, batches = begin(view)
            first = next(batches, None)
            return schema, self._guarded(view, first, batches)

        schema, batches = self._place.read(started)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _guarded(
        self, view: View, first: pa.RecordBatch | None, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        if first is None:
            return
        yield first
        while True:
            self._place.check()
            try:
                rows = next(batches, None)
            except MissingFileError as error:
                raise self._place.cut_short(view) from error
            if rows is None:
                return
            yield rows

    def __repr__(self) -> str:
        return f"<OperatorReader of {self.uid!r} at epoch {self._place.view.epoch}>"


def _asked(scan: StateScan, keys: Any, namespaces: Any) -> list[pa.Array[Any]]:
    """The columns of the keys that are asked for, and of their namespaces."""
    key = parse_key(list(scan.operator.key_schema))
    columns = [
        as_array(column, type_, f"key column {name!r}")
        for (name, type_), column in zip(key, key_columns(key, keys), strict=True)
    ]
    if namespaces is not None and scan.namespace is not None:
        columns.append(as_array(namespaces, scan.namespace, "the namespaces"))
    return columns


def _types_of(scan: StateScan) -> dict[str, StateType | None]:
    """The columns of an operator's rows; None for those that cannot be compared."""
    types: dict[str, StateType | None] = dict(parse_key(list(scan.operator.key_schema)))
    if scan.namespace is not None:
        types[NAMESPACE] = None if scan.namespace.is_nested else scan.namespace
    for name, state in scan.states.items():
        types[name] = None
        if not isinstance(state, (ListState, MapState)) and not state.type.is_object:
            compared = state.type if state.arrow_type == state.type.arrow else None
            types[name] = None if compared is None or compared.is_nested else compared
    return types


def _is_told(scan: StateScan, where: Where, states: frozenset[str]) -> bool:
    """Whether conditions on some states hold for no key that has nothing of them."""
    scan = replace(scan, selection=Selection(only=states))
    absent: dict[str, Any] = {}
    for name, state in scan.given.items():
        absent[name] = scan.defaults.get(name, pa.array([None], state.arrow_type))
    return where.passes_over(absent)


def _projected(
    batches: Iterator[pa.RecordBatch], where: Where | None, names: list[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        kept = rows if where is None else where.among(rows)
        if kept.num_rows:
            yield pa.RecordBatch.from_arrays([kept.column(name) for name in names], schema=schema)
