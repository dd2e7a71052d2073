"""What changed between two epochs, key by key.

An epoch's files continue those of the epochs before it, until a merge replaces some. Where the
older epoch's files are the beginning of the newer one's, the deltas after them say which keys may
have changed. Of the files that both have, only the key groups of these keys are read, and once.
Where only some keys are asked for, they are looked up in both epochs. Elsewhere both epochs' states
are read.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pystate.base.arguments import integer
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, restrict
from pystate.checkpoint.state_files import open_file
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError, SchemaError
from pystate.processor.epochs import epoch_of, open_named, storage_at
from pystate.processor.key_files import KeyFiles, fill
from pystate.processor.scan import RANGES_AT_ONCE, StateScan, load_files, read_ahead
from pystate.processor.selection import Selection, WantedKeys
from pystate.state.declaration import file_name
from pystate.state.defaults import fill_defaults
from pystate.state.evolution import stored_change
from pystate.state.key_batch import KeyBatch
from pystate.tables.backend import KeyedStateBackend
from pystate.types.equality import present, same_rows

_BEGINNING = 0


def changes(
    location: str | os.PathLike[str],
    uid: str | None = None,
    *,
    from_epoch: int,
    to_epoch: int | None = None,
    state: str | None = None,
    keys: Any = None,
) -> pa.Table:
    """Find what changed between two retained epochs.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job or store.
    uid : str, optional
        The operator. It may be left out if there is only one.
    from_epoch : int
        The older epoch; 0 for the empty state before the first.
    to_epoch : int, optional
        The newer epoch; by default the newest.
    state : str, optional
        Compare only this state.
    keys : array-like, list of array-like, RecordBatch or Table, optional
        Compare only these keys, given as for `read_state`. Only files and blocks of their key
        groups are read.

    Returns
    -------
    pyarrow.Table
        A row per key (and namespace) whose states differ: the key columns, the column ``namespace``
        if the operator has namespaces, ``change``, ``before`` and ``after``.

        ``change`` is ``delete`` if the key has no state in the newer epoch, else ``put``.
        ``before`` and ``after`` are structs with a field per state of the newer epoch, null where
        the key has no state; with `state` they are the state itself. A list or map is one value: it
        differs as a whole if an element does. Timers do not count.

    Raises
    ------
    CheckpointError
        An epoch is not retained, or has no such operator, or a file is lost.
    CorruptFileError, NewerFormatError
        A file cannot be read; it is named.
    SchemaError
        A state of the older epoch has a type that does not become that of the newer one.
    InvalidArgumentError
        There is no such state, or the epochs are in the wrong order.

    Notes
    -----
    Both sides have the newer epoch's types and defaults. A type that became wider, and fields that
    were removed, make no difference; nor does a field that was added, as long as it is null.

    Where the newer epoch only continues the older one's files, the cost is in the order of the
    changes and the key groups that have any; if files were merged in between, in the order of the
    state. A part of the state of bounded size is in memory at a time, beside the table of changes;
    `scan_changes` does without the table.
    """
    request = _Request("changes", location, uid, from_epoch, to_epoch, state, keys)
    schema, batches = request.batches()
    return pa.Table.from_batches(batches, schema)


def scan_changes(
    location: str | os.PathLike[str],
    uid: str | None = None,
    *,
    from_epoch: int,
    to_epoch: int | None = None,
    state: str | None = None,
    keys: Any = None,
) -> pa.RecordBatchReader:
    """Find what changed between two retained epochs, lazily.

    Parameters
    ----------
    location, uid, from_epoch, to_epoch, state, keys
        As for `changes`.

    Returns
    -------
    pyarrow.RecordBatchReader
        The rows of `changes`, found as they are asked for: a part of the state of bounded size is
        in memory at a time. The reader can be used once.

    Raises
    ------
    CheckpointError, SchemaError, InvalidArgumentError
        As for `changes`. `CheckpointError` is also raised while batches are read, if a running job
        has removed an epoch's files.
    """
    request = _Request("scan_changes", location, uid, from_epoch, to_epoch, state, keys)
    return pa.RecordBatchReader.from_batches(*request.batches())


class _Request(NamedTuple):
    """Arguments of `changes`, and who has got them."""

    caller: str
    location: str | os.PathLike[str]
    uid: str | None
    from_epoch: int
    to_epoch: int | None
    state: str | None
    keys: Any

    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        storage = storage_at(self.location, self.caller)
        first = integer(self.from_epoch, f"{self.caller}: from_epoch", least=0)
        if self.to_epoch is not None:
            integer(self.to_epoch, f"{self.caller}: to_epoch", least=1)
        selection = Selection(self.state)
        new = StateScan.of(
            storage, self.uid, epoch=self.to_epoch, selection=selection, keys=self.keys
        )
        if first > new.epoch:
            raise InvalidArgumentError(
                f"{self.caller}: from_epoch is {first}, and to_epoch {new.epoch}: give the older "
                "one first"
            )
        old = _older(storage, new, first)
        schema = _schema(new)
        looking = KeyFiles(new.storage)
        pairs = [pair.rows for pair in _pairs(old, new, looking)]
        some = new.keys is not None and looking.is_remote
        parts = read_ahead(pairs, RANGES_AT_ONCE if some else 1)
        return schema, (_change_rows(new, schema, *part) for part in parts)


def _older(storage: CheckpointStorage, new: StateScan, first: int) -> StateScan | None:
    """The older epoch; None if the operator had no state in it."""
    if first == _BEGINNING:
        return None
    older = epoch_of(storage, first).operator(new.operator.uid)
    if older is None:
        return None
    _check_types(older, first, new)
    return replace(new, epoch=first, operator=older)


@dataclass(frozen=True)
class _Pair:
    """Some key groups of the two epochs, whose files are the same ones for all of them."""

    new: StateScan
    """The newer epoch; the part of it is `after`."""
    old_epoch: int
    before: RangeState
    after: RangeState
    looking: KeyFiles
    """By which keys are looked up, if only some are asked for."""

    def rows(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield rows before and after, for the same keys in the same order.

        All keys whose states differ are among them, each once.
        """
        old, new = self._files(self.before), self._files(self.after)
        if old and self.before.since == self.after.since and new[: len(old)] == old:
            rest = tuple(new[len(old) :])
            if not rest:
                return
            if self.new.keys is None and all(ref.kind == "delta" for ref in rest):
                yield from self._compare_by_deltas(tuple(old), rest)
                return
        if self.new.keys is None:
            yield from self._compare_all()
        else:
            yield from self._compare_keys(self.new.keys)

    def _files(self, state: RangeState) -> list[FileRef]:
        """The files of these key groups, each restricted to them."""
        counting = ((ref, ref.overlap(self.after.bounds)) for ref in state.files)
        return [restrict(ref, bounds) for ref, bounds in counting if bounds is not None]

    def _table(self) -> KeyedStateBackend:
        return self.new.backend(self.after.bounds)

    def _load(
        self,
        table: KeyedStateBackend,
        state: RangeState,
        files: tuple[FileRef, ...],
        groups: frozenset[int] | None = None,
    ) -> None:
        epoch = self.old_epoch if state is self.before else self.new.epoch
        load_files(self.new.storage, epoch, table, state, files, groups)

    def _compare_by_deltas(
        self, common: tuple[FileRef, ...], rest: tuple[FileRef, ...]
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Compare by the deltas after the files that both epochs have."""
        groups = frozenset(group for ref in rest for group in self._touched_groups(ref))
        # A key that is gone is only seen where it was: a tombstone names keys, but an operator with
        # timers, or other states than the one that is read, keeps the row of a key without states.
        more = self.new.operator.timers or self.new.selection.state is not None
        deletes = more or any(ref.tombstones for ref in rest)
        with self._table() as table:
            self._load(table, self.after, common, groups)
            table.seal(snapshot=False)
            known = [_names(keys) for keys in table.existing()] if deletes else []
            self._load(table, self.after, rest, groups)
            pairs = [(_names(keys), table.exported(keys)) for keys in table.changed()]
            for names in known:
                after = table.exported(_looked_up(table, names))
                gone = pa.array(~_exists(after, table))
                pairs.append(([name.filter(gone) for name in names], after.filter(gone)))
            table.rollback()
            for names, after in pairs:
                yield table.exported(_looked_up(table, names)), after

    def _touched_groups(self, ref: FileRef) -> Iterator[int]:
        """The key groups of which a delta has any record."""
        with (
            open_named(self.new.storage, self.new.epoch, ref) as file,
            open_file(file, ref) as delta,
        ):
            todo = [ref.bounds]
            while todo:
                first, last = todo.pop()
                delta.reader.seek(first, last)
                if delta.reader.count() == (0, 0):
                    continue
                if first == last:
                    yield first
                else:
                    middle = (first + last) // 2
                    todo += [(first, middle), (middle + 1, last)]

    def _compare_all(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Compare all keys."""
        with self._table() as old, self._table() as new:
            self._load(old, self.before, self.before.files)
            self._load(new, self.after, self.after.files)
            yield from _compared(old, new)

    def _compare_keys(self, keys: WantedKeys) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Compare those that are asked for."""
        looking = self.looking
        for some, files in looking.found(self.new.epoch, self.after, keys):
            with self._table() as old, self._table() as new:
                fill(new, files, self.after)
                for _, older in looking.found(self.old_epoch, self.before, some):
                    fill(old, older, self.before)
                yield from _compared(old, new)


def _compared(
    old: KeyedStateBackend, new: KeyedStateBackend
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The rows of two tables, and of the keys that one of them does not have."""
    for keys in new.existing():
        before = old.exported(_looked_up(old, _names(keys)))
        yield before, new.exported(keys)
    for keys in old.existing():
        after = new.exported(_looked_up(new, _names(keys)))
        gone = pa.array(~_exists(after, new))
        yield old.exported(keys).filter(gone), after.filter(gone)


def _check_types(older: OperatorState, epoch: int, new: StateScan) -> None:
    """Make sure that the older epoch's states can be read as the newer one declares them."""
    # Since a state was renamed, another one may have its former name.
    stored = {file_name(*pair): pair[1] for pair in older.state_schema}
    for name, declared in new.operator.state_schema:
        before = stored.get(file_name(name, declared), declared)
        if name not in new.read or before == declared:
            continue
        refused = stored_change(before, declared).types.refused
        if refused:
            raise SchemaError(
                f"changes: operator {older.uid!r}, state {name!r} is {before} in epoch "
                f"{epoch} and {declared} in epoch {new.epoch}: {refused[0]}: read both epochs by "
                "ps.read_state, and compare them"
            )


def _pairs(old: StateScan | None, new: StateScan, looking: KeyFiles) -> Iterator[_Pair]:
    """The parts of the newer epoch, cut where the older one's ranges end."""
    for part in new.split():
        [after] = part.operator.ranges
        empty = RangeState(0, *after.bounds, "")
        for before in (empty,) if old is None else old.operator.ranges:
            bounds = before.overlap(after.bounds)
            if bounds is not None:
                epoch = new.epoch if old is None else old.epoch
                yield _Pair(new, epoch, restrict(before, bounds), restrict(after, bounds), looking)


def _names(keys: KeyBatch) -> list[pa.Array[Any]]:
    """The key columns of a batch, and its namespaces."""
    spaces = [keys.namespaces()] if keys.table.has_namespaces else []
    return [*keys.key_arrays(), *spaces]


def _looked_up(table: KeyedStateBackend, names: list[pa.Array[Any]]) -> KeyBatch:
    if table.namespace is None:
        return table.keys(names)
    return table.keys(names[:-1], names[-1])


def _exists(rows: pa.RecordBatch, table: KeyedStateBackend) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row has any state: a key without any does not exist."""
    exists = np.zeros(rows.num_rows, np.bool_)
    for name in table.declarations:
        exists |= present(rows.column(name))
    return exists


def _schema(new: StateScan) -> pa.Schema:
    rows = new.schema
    taken = len(rows) - len(new.read)
    keys = [rows.field(i) for i in range(taken)]
    for field in keys:
        if field.name in ("change", "before", "after"):
            raise InvalidArgumentError(
                f"changes: operator {new.operator.uid!r} has a key column {field.name!r}, as the "
                "table of changes has: read both epochs by read_state, and compare them"
            )
    if new.selection.state is None:
        kept: pa.DataType = pa.struct([rows.field(i) for i in range(taken, len(rows))])
    else:
        kept = rows.field(taken).type
    return pa.schema(
        [*keys, pa.field("change", pa.string()), *(pa.field(n, kept) for n in ("before", "after"))]
    )


def _change_rows(
    new: StateScan, schema: pa.Schema, before: pa.RecordBatch, after: pa.RecordBatch
) -> pa.RecordBatch:
    """The rows that differ, with what happened to them."""
    taken = after.num_columns - len(new.read)
    before, after = _with_defaults(new, before, taken), _with_defaults(new, after, taken)
    differ = np.zeros(after.num_rows, np.bool_)
    for i in range(taken, after.num_columns):
        differ |= ~same_rows(before.column(i), after.column(i))
    rows = np.flatnonzero(differ)
    before, after = before.take(rows), after.take(rows)
    columns = after.columns[:taken]
    sides: list[pa.Array[Any]] = []
    exist = []
    for side in (before, after):
        states = side.columns[taken:]
        exists = np.zeros(len(rows), np.bool_)
        for state in states:
            exists |= present(state)
        exist.append(exists)
        if new.selection.state is None:
            fields = list(schema.field("after").type)
            sides.append(pa.StructArray.from_arrays(states, fields=fields, mask=pa.array(~exists)))
        else:
            sides.append(_or_null(states[0], exists))
    labels = np.where(exist[1], "put", "delete")
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(labels.tolist(), pa.string()), *sides], schema=schema
    )


def _with_defaults(new: StateScan, side: pa.RecordBatch, taken: int) -> pa.RecordBatch:
    """A side in which keys that exist have what a function sees of them."""
    if not new.defaults:
        return side
    exist = np.logical_or.reduce([present(column) for column in side.columns[taken:]])
    return fill_defaults(side, new.defaults, exist)


def _or_null(state: pa.Array[Any], exists: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array[Any]:
    """A state's column in which what a key does not have is null, and not an empty list or map."""
    places = np.where(exists, np.arange(len(exists)), -1)
    return state.take(pa.array(places, pa.int64(), mask=~exists))
