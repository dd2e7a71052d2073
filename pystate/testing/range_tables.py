"""The tables of a harness: one for each range of key groups, as a job's tasks have them.

Thread safety: all objects belong to one thread.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core.core import range_bounds
from pystate.base.arguments import choice
from pystate.checkpoint.job_file import check_schemas
from pystate.checkpoint.refs import Schema
from pystate.checkpoint.state_files import EMPTY_LINEAGE, Lineage, Source, merge_files
from pystate.epochs.schema_match import lost_timers
from pystate.errors import InvalidArgumentError
from pystate.processor.state_writer import check_columns
from pystate.state.aggregating import AggregatingState
from pystate.state.evolution import same_content
from pystate.state.operator_spec import OperatorSpec, declared_fills
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow
from pystate.tables.options import DISK, TableOptions
from pystate.tables.range_rows import put_rows, put_timers
from pystate.tables.timers import TimeDomain
from pystate.testing.input_rows import as_table
from pystate.types.arrays import as_array, hash_keys, key_groups
from pystate.types.ddl import path_parts
from pystate.types.keys import key_columns, leaf, marked_struct

#: Of a table on disk so many files of epochs are merged into one.
_MOST_FILES = 8


class TableFiles(tuple[bytes, ...]):
    """The files of tables, with what a checkpoint's metadata says of an operator."""

    key: Schema
    states: Schema
    has_timers: bool

    @classmethod
    def of(cls, files: Iterable[bytes], operator: OperatorSpec, has_timers: bool) -> TableFiles:
        """The files of an operator's tables."""
        made = cls(files)
        made.key = tuple((name, type_.ddl) for name, type_ in operator.key)
        made.states = operator.stored_states()
        made.has_timers = has_timers
        return made


def continued(
    operator: OperatorSpec, stored: TableFiles, allow_unclaimed_state: bool
) -> OperatorSpec:
    """The operator with its names in files, if it may continue what was stored.

    Otherwise it raises the `SchemaError` or `UnclaimedStateError` of a checkpoint's operator.
    """
    operator = operator.continuing(stored.states)
    check_schemas(
        operator.uid,
        (stored.key, stored.states),
        (tuple((name, type_.ddl) for name, type_ in operator.key), operator.stored_states()),
        allow_unclaimed_state=allow_unclaimed_state,
    )
    if stored.has_timers and not operator.timers and not allow_unclaimed_state:
        raise lost_timers(operator.uid)
    return operator


def checked_home(home: Any, owner: str) -> str:
    """Return where a harness has its tables; refuse any other place."""
    return choice(home, f"{owner}: table_home", ("heap", DISK))


class _Named(io.BytesIO):
    """A file that errors name."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


@dataclass
class RangeTable:
    """One task's range of key groups: its table, and the files that its epochs wrote."""

    first: int
    last: int
    backend: KeyedStateBackend
    files: list[bytes] = field(default_factory=list)
    written: dict[bytes, str] = field(default_factory=dict)
    """Where the files are, of a table on disk."""


class RangeTables:
    """All tables of an operator.

    Those on disk begin each epoch without a row in memory, as after a restart.
    """

    def __init__(self, operator: OperatorSpec, parallelism: int, home: str = "heap") -> None:
        self.key = operator.key
        self._table_options = TableOptions(home)
        self.on_disk = self._table_options.on_disk
        self._folder: str | None = None
        self._remove_folder: Callable[[], object] = lambda: None
        self._max_parallelism = operator.max_parallelism
        #: The operator, with its names in files.
        self.operator = operator
        #: The operator as of the last epoch, while the files are older ones of another.
        self._stored: TableFiles | None = None
        self._ranges: list[RangeTable] = []
        for index in range(parallelism):
            bounds = range_bounds(index, operator.max_parallelism, parallelism)
            self._ranges.append(RangeTable(*bounds, self._backend(bounds)))

    def _backend(self, bounds: tuple[int, int]) -> KeyedStateBackend:
        backend = KeyedStateBackend.of(self.operator, bounds, self._table_options)
        backend.open()
        return backend

    def __iter__(self) -> Iterator[RangeTable]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def index(self, table: RangeTable) -> int:
        """The number of a range."""
        return next(i for i, each in enumerate(self._ranges) if each is table)

    def parts(
        self, rows: pa.RecordBatch, columns: Iterable[Any] | None = None
    ) -> Iterator[pa.RecordBatch | None]:
        """The rows of each range; `columns` are their key columns, if these have other names."""
        if len(self._ranges) == 1:
            yield rows if rows.num_rows else None
            return
        if columns is None:
            columns = key_columns(self.key, rows)
        owners = self._owners(columns)
        for index in range(len(self._ranges)):
            own = np.flatnonzero(owners == index).astype(np.int64)
            yield rows.take(pa.array(own, pa.int64())) if len(own) else None

    def find(self, key: Any) -> RangeTable:
        """The range of one key, which is a tuple if it has several columns."""
        values = (key,) if len(self.key) == 1 else key
        if not isinstance(values, tuple) or len(values) != len(self.key):
            names = ", ".join(name for name, _ in self.key)
            raise InvalidArgumentError(f"the key {key!r:.80} is no tuple of {names}")
        return self._ranges[int(self._owners([[value] for value in values])[0])]

    def look(self, name: str, key: Any, namespace: Any) -> Any:
        """One state of one key, as a Python value; nothing is changed."""
        backend: Any = self.find(key).backend
        backend.set_current_key(key)
        try:
            if namespace is not None or backend.namespace is not None:
                backend.set_current_namespace(namespace)
            handle = backend[name]
            if hasattr(handle, "value"):
                return handle.value()
            if hasattr(handle, "items"):
                return dict(handle.items())
            value = handle.get()
            return list(value) if isinstance(value, Iterator) else value
        finally:
            backend.rollback()

    def put(self, name: str, key: Any, namespace: Any, value: Any, processing_time: int) -> None:
        """Set one state of one key, as an epoch of its own."""
        backend: Any = self.find(key).backend
        with self.epoch(lambda: None):
            backend.set_clock(processing_time=processing_time)
            backend.set_current_key(key)
            if namespace is not None or backend.namespace is not None:
                backend.set_current_namespace(namespace)
            handle = backend[name]
            handle.clear()
            if value is None:
                return
            if hasattr(handle, "put_all"):
                handle.put_all(value)
            elif hasattr(handle, "update"):
                handle.update(value)
            elif isinstance(backend.declarations[name], AggregatingState):
                for each in value:
                    handle.add(each)
            else:
                handle.add(value)

    def begin_with_state(self, state: Any, timers: Any) -> None:
        """Put tables of states and timers, or what `pyarrow.table` takes, into the empty tables."""
        operator = self.operator
        with self.epoch(lambda: None):
            for given, of_timers in ((state, False), (timers, True)):
                if given is None:
                    continue
                what = f"operator {operator.uid!r}: initial_{'timers' if of_timers else 'state'}"
                stored = _with_key_columns(as_table(given, what), operator)
                kept = {
                    name: d for name, d in operator.states.items() if name in stored.column_names
                }
                some = replace(operator, states=kept)
                stored = stored.select(check_columns(some, stored.column_names, timers=of_timers))
                for batch in stored.combine_chunks().to_batches():
                    columns = [batch.column(name) for name, _ in operator.key]
                    for table, part in zip(self, self.parts(batch, columns), strict=True):
                        if part is None:
                            continue
                        rows = pa.Table.from_batches([part])
                        if of_timers:
                            put_timers(table.backend, rows)
                        else:
                            put_rows(table.backend, rows, list(kept))

    def next_timer(self, domain: TimeDomain) -> int | None:
        """When the earliest timer is due, in milliseconds since 1970."""
        due = [table.backend.next_timer(domain) for table in self._ranges]
        return min((time_ms for time_ms in due if time_ms is not None), default=None)

    def _owners(self, columns: Iterable[Any]) -> np.ndarray[Any, Any]:
        arrays = [
            as_array(column, type_, f"key column {name!r}")
            for (name, type_), column in zip(self.key, columns, strict=True)
        ]
        groups = key_groups(hash_keys(arrays), self._max_parallelism).astype(np.int64)
        owners: np.ndarray[Any, Any] = groups * len(self._ranges) // self._max_parallelism
        return owners

    def _tables(self) -> list[RangeTable]:
        """All tables that an epoch seals."""
        return self._ranges

    @contextmanager
    def epoch(self, sealed: Callable[[], None]) -> Iterator[None]:
        """Seal all tables when the block ends, or roll all of them back if anything fails.

        `sealed` is called when the tables are sealed; it may still fail.
        """
        done: list[RangeTable] = []
        files = []
        try:
            yield
            for table in self._tables():
                table.backend.expire()
                if table.backend.dirty:
                    out = io.BytesIO()
                    with table.backend.seal() as snapshot:
                        done.append(table)
                        snapshot.write(out)
                    files.append((table, out.getvalue()))
                else:
                    table.backend.end_idle_epoch()
            sealed()
        except BaseException:
            for table in self._tables():
                if table in done and table.backend.below.files:
                    self._begin_cold(table, table.backend.lineage(1))
                else:
                    table.backend.rollback(1 if table in done else 0)
            raise
        for table, data in files:
            table.files.append(data)
            if table.backend.below.on_disk and len(table.files) > _MOST_FILES:
                self._merged([table])
        if self._stored is not None:
            # States and fields that this epoch did not have are gone, as in a checkpoint.
            self._stored = None
            for table in self._ranges:
                table.files = self._anew(table)
        for table in self._ranges:
            self._begin_cold(table, table.backend.lineage())

    def _begin_cold(self, table: RangeTable, lineage: Lineage | None) -> None:
        """Have a table on disk begin without rows in memory, above its files."""
        below = table.backend.below
        if not below.on_disk or lineage is None or lineage == EMPTY_LINEAGE:
            return
        before, table.written = table.written, {}
        for data in table.files:
            table.written[data] = before.pop(data) if data in before else self._file(data)
        bounds = table.first, table.last
        below.reset(lineage, [FileBelow(path, *bounds) for path in table.written.values()])
        for path in before.values():
            os.unlink(path)

    def _file(self, data: bytes) -> str:
        """Write a file of a table on disk; return its path."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="pystate-")
            self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, True)
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        with open(descriptor, "wb") as out:
            out.write(data)
        return path

    def _anew(self, table: RangeTable) -> list[bytes]:
        """A range's files, with what its table holds and nothing else."""
        if table.backend.below.on_disk:
            return self._merged_below(table, [io.BytesIO(data) for data in table.files])
        with KeyedStateBackend.of(self.operator, (table.first, table.last)) as copy:
            copy.copy_from(table.backend, table.first, table.last)
            if not copy.dirty:
                return []
            out = io.BytesIO()
            with copy.seal(table.backend.lineage()) as snapshot:
                snapshot.write(out)
            return [out.getvalue()]

    def _merged_below(self, table: RangeTable, files: Sequence[Source]) -> list[bytes]:
        """Files as one in which a table on disk looks rows up."""
        if not files:
            return []
        out = io.BytesIO()
        with KeyedStateBackend.of(
            self.operator, (table.first, table.last), self._table_options
        ) as backend:
            backend.below.merge(files, out, table.backend.lineage() or EMPTY_LINEAGE)
        return [out.getvalue()]

    def files(self) -> TableFiles:
        """The state as of the last epoch: one file for each range that has state."""
        if self._stored is not None:
            return self._stored
        timers = self.operator.timers and any(
            self.next_timer(domain) is not None for domain in ("event", "processing")
        )
        return TableFiles.of(self._merged(self._ranges), self.operator, timers)

    def _merged(self, shares: Sequence[RangeTable]) -> tuple[bytes, ...]:
        for table in shares:
            if len(table.files) > 1:
                out = io.BytesIO()
                since = declared_fills(table.backend.declarations)
                merge_files([io.BytesIO(data) for data in table.files], out, since=since)
                table.files = [out.getvalue()]
        return tuple(data for table in shares for data in table.files)

    def restore(self, files: Iterable[bytes], allow_unclaimed_state: bool) -> None:
        """Fill the tables, which must be empty, from files of any ranges; see `continued`."""
        known = files if isinstance(files, TableFiles) else None
        files = list(files)
        if known is not None:
            self._continue(known, allow_unclaimed_state)
            allow_unclaimed_state = True  # the rest was compared
        what = f"operator {self.operator.uid!r}, the snapshot"
        for table in self._ranges:
            named = [_Named(data, what) for data in files]
            if table.backend.below.on_disk:
                table.backend.below.check_files(named, [None] * len(named), allow_unclaimed_state)
                table.files = self._merged_below(table, named)
                if table.files:
                    self._begin_cold(table, EMPTY_LINEAGE.next())
                continue
            table.backend.restore(named, allow_unclaimed_state=allow_unclaimed_state)
            out = io.BytesIO()
            if files:
                merge_files(
                    [io.BytesIO(data) for data in files],
                    out,
                    first_key_group=table.first,
                    last_key_group=table.last,
                )
                table.files = [out.getvalue()]

    def _continue(self, stored: TableFiles, allow_unclaimed_state: bool) -> None:
        """Compare what was stored with what is declared, and take over the names in files."""
        before = self.operator
        self.operator = continued(before, stored, allow_unclaimed_state)
        if not same_content(stored.states, self.operator.stored_states()) or (
            stored.has_timers and not before.timers
        ):
            self._stored = stored
        if self.operator.stored_states() != before.stored_states():
            for table in self._ranges:
                table.backend.close()
                table.backend = self._backend((table.first, table.last))

    def close(self) -> None:
        """Free all tables."""
        for table in self._tables():
            table.backend.close()
        self._remove_folder()
        self._folder = None


def _with_key_columns(table: pa.Table, operator: OperatorSpec) -> pa.Table:
    """The table with the key's columns in place of structs; a mark that is left out is null."""
    structs = set()
    for name, _ in operator.key:
        if name in table.column_names:
            continue
        struct = marked_struct(name)
        first = path_parts(struct or name)[0]
        if first in table.column_names:
            table = table.append_column(name, leaf(table, name))
            structs.add(first)
        elif struct is not None:
            table = table.append_column(name, pa.nulls(len(table), pa.bool_()))
    return table.drop_columns([*structs])
