"""An operator's state as of one epoch, read from its files a part at a time.

A part is some key groups of a range: as many as make up a bounded number of bytes, but at least
one. Only the files and blocks of its key groups are read. Values, lists and maps are merged
(`pystate.processor.file_scan`); all else is read into a table of its own. Where only some keys are
asked for, they are looked up first (`pystate.processor.key_files`), and what is found is read so.

Thread safety: a `StateScan` is immutable, and its parts may be read in several threads or
processes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pystate.base.arguments import duplicates
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, restrict
from pystate.checkpoint.state_files import OpenFile, open_file
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError
from pystate.processor.epochs import epoch_of, namespace_of, open_named, operator_of
from pystate.processor.file_scan import can_merge, merged_rows
from pystate.processor.key_files import KeyFiles, fill
from pystate.processor.selection import (
    EVERYTHING,
    Selection,
    WantedKeys,
    explode_rows,
    exploded_fields,
    wanted_groups,
)
from pystate.state.aggregating import AggregatingState
from pystate.state.declaration import State, file_name
from pystate.state.defaults import default_columns, fill_defaults, mark_default
from pystate.state.key_batch import KeyBatch
from pystate.state.kinds import stored_state
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.state.operator_spec import OperatorSpec
from pystate.state.ttl import StateTtl
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import TIMER_DOMAIN, TIMER_MS
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.equality import Flags, present
from pystate.types.keys import parse_key
from pystate.types.state_type import StateType

#: The most bytes of raw state in a part, if it has several key groups.
_PART_BYTES = 64 << 20
_MOST_TIMERS = 1 << 16
#: In an object store keys are looked up in so many ranges at a time.
RANGES_AT_ONCE = 8
Rows = TypeVar("Rows")
_LAST_MS = (1 << 63) - 1


@dataclass(frozen=True)
class StateScan:
    """What is read of an operator's state as of one epoch."""

    storage: CheckpointStorage
    epoch: int
    max_parallelism: int
    """Number of key groups."""
    operator: OperatorState
    namespace: StateType | None
    """The type of its namespaces; None if it has none."""
    selection: Selection = EVERYTHING
    keys: WantedKeys | None = None
    key_groups: frozenset[int] | None = None
    """The key groups to read; None for all."""
    clock: tuple[int | None, int | None] = (None, None)
    """The processing time and the watermark by which states expire."""

    @classmethod
    def of(
        cls,
        storage: CheckpointStorage,
        uid: str | None = None,
        *,
        epoch: int | None = None,
        selection: Selection = EVERYTHING,
        keys: Any = None,
        key_groups: Any = None,
        before: StateScan | None = None,
        history: History | None = None,
    ) -> StateScan:
        """Look at an epoch; parameters and errors are those of `read_state`.

        `before` is of another epoch of that checkpoint, and `history` of its manifests: what is
        known by them is not read again.
        """
        manifest = epoch_of(storage, epoch, history)
        return cls.within(
            storage,
            manifest,
            uid,
            selection=selection,
            keys=keys,
            key_groups=key_groups,
            before=before,
        )

    @classmethod
    def within(
        cls,
        storage: CheckpointStorage,
        manifest: Manifest,
        uid: str | None = None,
        *,
        selection: Selection = EVERYTHING,
        keys: Any = None,
        key_groups: Any = None,
        before: StateScan | None = None,
    ) -> StateScan:
        """Look at the epoch of a manifest that was read."""
        operator = operator_of(storage, manifest, uid)
        groups = wanted_groups(key_groups, manifest.max_parallelism)
        wanted = None
        if keys is not None:
            key = parse_key(list(operator.key_schema))
            wanted = WantedKeys(key, keys, manifest.max_parallelism)
            groups = wanted.key_groups if groups is None else groups & wanted.key_groups
        if before is not None and before._has_files_of(operator):
            namespace = before.namespace
        else:
            namespace = namespace_of(storage, manifest.epoch, operator)
        scan = cls(
            storage,
            manifest.epoch,
            manifest.max_parallelism,
            operator,
            namespace,
            selection,
            wanted,
            groups,
            clock=clock_of(manifest, operator),
        )
        selection.check(scan.states, operator.timers, operator.uid)
        return scan

    def _has_files_of(self, operator: OperatorState) -> bool:
        """Whether the operator, as of another epoch, has one of the files; so it has the key."""
        own = {ref.path for ref in self.operator.files}
        return operator.uid == self.operator.uid and any(ref.path in own for ref in operator.files)

    @cached_property
    def defaults(self) -> dict[str, pa.Array[Any]]:
        """What keys have in states that hold nothing for them."""
        # Of one state alone only the keys are read that have it.
        if not self.selection.defaults or self.selection.state is not None:
            return {}
        return default_columns(self.given, dict(self.operator.defaults))

    @cached_property
    def states(self) -> dict[str, State[Any]]:
        """The declarations of all states, as far as the checkpoint knows them."""
        uid, schema = self.operator.uid, self.operator.state_schema
        ttls = {} if self.selection.expired else dict(self.operator.ttls)
        return {
            name: stored_state(uid, name, spelling).expiring_by(ttls.get(name))
            for name, spelling in schema
        }

    def at(self, older: Manifest) -> StateScan | None:
        """The same of an older epoch: its files, with the states that this one has.

        They have their types and defaults of here, and expire as that epoch says. None if it does
        not have the operator.
        """
        operator = older.operator(self.operator.uid)
        if operator is None:
            return None
        now = self.operator
        # Since a state was renamed, another one may have its former name.
        names = {file_name(*pair): pair[0] for pair in now.state_schema}
        ttls, schema = dict(operator.ttls), dict(operator.state_schema)
        own = (
            (names[file], ttls[name])
            for name, stored in schema.items()
            if name in ttls and (file := file_name(name, stored)) in names
        )
        as_now = replace(
            operator,
            state_schema=now.state_schema,
            defaults=now.defaults,
            ttls=tuple(sorted(own, key=lambda pair: pair[0])),
        )
        return replace(self, epoch=older.epoch, operator=as_now, clock=clock_of(older, operator))

    def split(self, part_bytes: int = 0) -> list[StateScan]:
        """One scan per part, which together have the rows of this one."""
        part_bytes = part_bytes or _PART_BYTES
        parts = []
        for state in self.operator.ranges:
            groups = [
                group
                for group in range(state.first_key_group, state.last_key_group + 1)
                if self.key_groups is None or group in self.key_groups
            ]
            if not groups:
                continue
            # Of some keys little is read, wherever they are.
            parts_wanted = 1 if self.keys is not None else _raw_bytes(state) // part_bytes + 1
            chunks = min(len(groups), parts_wanted)
            for chunk in np.array_split(groups, chunks):
                first, last = int(chunk[0]), int(chunk[-1])
                part = restrict(state, (first, last))
                operator = replace(self.operator, ranges=(part,))
                only = None if self.key_groups is None else frozenset(chunk.tolist())
                parts.append(replace(self, operator=operator, key_groups=only))
        return parts

    @property
    def raw_bytes(self) -> int:
        """About how many bytes of raw state are read."""
        return sum(map(_raw_bytes, self.operator.ranges))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        fields = list(self.backend((0, 0)).arrow_schema)  # it is not opened for that
        fields = fields[: len(self.operator.key_schema) + (self.namespace is not None)]
        if self.selection.timers:
            fields += [pa.field(TIMER_DOMAIN, pa.string()), pa.field(TIMER_MS, pa.int64())]
        elif self.selection.explode:
            name = str(self.selection.state)
            fields += exploded_fields(name, self.states[name])
        else:
            texts = dict(self.operator.defaults) if self.defaults else {}
            fields += [
                mark_default(pa.field(name, self._type_of(d)), texts.get(name))
                for name, d in self.given.items()
            ]
        for name in duplicates(column.name for column in fields):
            raise InvalidArgumentError(
                f"operator {self.operator.uid!r}: a key column and a column of the rows are "
                f"both called {name!r}: read the state without explode, or timers, and take it "
                "apart under other names"
            )
        return pa.schema(fields)

    def batches(
        self, looking: KeyFiles | None = None, *, part_bytes: int = 0, ahead: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows; several parts are read ahead, by default one per processor.

        A part has about `part_bytes` of raw state, by default 64 MB, but at least a key group.
        Keys are looked up by `looking`, some at a time; in an object store in several ranges.
        """
        if self.keys is not None:
            looking = KeyFiles(self.storage) if looking is None else looking
            looks = [
                partial(self._rows_of_keys, state, some, looking)
                for state in self.operator.ranges
                if len(some := self.keys.among(*state.bounds))
            ]
            yield from read_ahead(looks, RANGES_AT_ONCE if looking.is_remote else 1)
            return
        # Loading and reading out release the GIL.
        parts = self.split(part_bytes)
        yield from read_ahead([part._rows for part in parts], ahead or os.cpu_count() or 1)

    @property
    def read(self) -> dict[str, State[Any]]:
        """The states that are read."""
        if self.selection.timers:
            return {}
        only = self.selection.state
        states = {name: d for name, d in self.states.items() if only in (None, name)}
        if self.selection.alone:
            return {name: d for name, d in states.items() if self.selection.gives(name)}
        return states

    @property
    def given(self) -> dict[str, State[Any]]:
        """Those of them that are columns of the rows."""
        return {name: d for name, d in self.read.items() if self.selection.gives(name)}

    def _type_of(self, declaration: State[Any]) -> pa.DataType:
        if self.selection.accumulators and isinstance(declaration, AggregatingState):
            return pa.binary()  # also where all have one width: Spark knows no other type
        return declaration.arrow_type

    def _exported(self, backend: KeyedStateBackend, keys: KeyBatch) -> pa.RecordBatch:
        accumulators = {}
        if self.selection.accumulators:
            # Before the results are read: what has expired may be visible once.
            for name, declaration in self.given.items():
                if isinstance(declaration, AggregatingState):
                    accumulators[name] = backend[name].accumulators(keys).cast(pa.binary())
        rows = backend.exported(keys, None if self.selection.only is None else self.given)
        for name, kept in accumulators.items():
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, pa.field(name, kept.type), kept)
        return rows

    def backend(self, bounds: tuple[int, int]) -> KeyedStateBackend:
        """Make an empty table for some key groups, with the states that are read."""
        operator = OperatorSpec(
            uid=self.operator.uid,
            key=parse_key(list(self.operator.key_schema)),
            states=unused(self.read),
            namespace=self.namespace,
            timers=self.selection.timers,
            max_parallelism=self.max_parallelism,
        )
        return KeyedStateBackend.of(operator, bounds)

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the only part."""
        [state] = self.operator.ranges
        if self.keys is not None:
            yield from self._rows_of_keys(state, self.keys, KeyFiles(self.storage))
            return
        batches = self._merged_rows(state)
        if batches is not None:
            for rows in batches:
                yield from self._shape(rows)
            return
        with self.backend(state.bounds) as backend:
            load_files(self.storage, self.epoch, backend, state, state.files, self.key_groups)
            yield from self._rows_in(backend)

    def _rows_in(self, backend: KeyedStateBackend) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a table that has just been filled."""
        if self.clock != (None, None):
            backend.set_clock(processing_time=self.clock[0], watermark=self.clock[1])
        if self.selection.timers:
            yield from self._timers(backend)
            return
        for keys in backend.existing():
            rows = self._exported(backend, keys)
            if any(state.ttl is not None for state in self.read.values()):
                rows = rows.filter(pa.array(self._exist(backend, keys, rows)))
            yield from self._shape(rows)

    def _exist(self, backend: KeyedStateBackend, keys: KeyBatch, rows: pa.RecordBatch) -> Flags:
        """Whether each key has anything that has not expired: a table keeps what nobody sees."""
        exist = np.zeros(rows.num_rows, np.bool_)
        others = self.read.keys() - self.given.keys()
        more = backend.exported(keys, others) if others else rows
        for name, state in self.read.items():
            column: Any = (more if name in others else rows).column(name)
            elements = isinstance(state, (ListState, MapState))
            exist |= present(column) if elements else np.asarray(column.is_valid())
        for name, state in self.read.items():
            # The result of what is there may be null.
            if isinstance(state, AggregatingState) and not exist.all():
                kept = backend[name].accumulators(keys)
                if isinstance(kept, list):  # the objects of a user's function
                    kept = pa.array([each is not None or None for each in kept], pa.bool_())
                exist |= np.asarray(kept.is_valid())
        return exist

    def _rows_of_keys(
        self, state: RangeState, keys: WantedKeys, looking: KeyFiles
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of keys that are in a range."""
        if self.key_groups is not None and not self.key_groups & keys.key_groups:
            return
        for _, files in looking.found(self.epoch, state, keys):
            if not files:
                continue
            if self._is_merged:
                with ExitStack() as stack:
                    opened = [stack.enter_context(open_file(file)) for file in files]
                    for rows in self._merged(opened, state, state.bounds):
                        yield from self._shape(rows)
                continue
            with self.backend(state.bounds) as backend:
                fill(backend, files, state)
                yield from self._rows_in(backend)

    @property
    def _is_merged(self) -> bool:
        """Whether a merge of files gives the rows."""
        key = parse_key(list(self.operator.key_schema))
        return self.namespace is None and not self.selection.timers and can_merge(key, self.read)

    def _merged(
        self, files: Sequence[OpenFile], state: RangeState, bounds: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        """Merge files of a range, oldest first; `_is_merged` has said that this gives the rows."""
        key = parse_key(list(self.operator.key_schema))
        fields = list(self.schema)[: len(key)]
        fields += [pa.field(name, d.arrow_type) for name, d in self.given.items()]
        schema = pa.schema(fields)
        rows = merged_rows(
            files,
            key,
            self.read,
            bounds,
            self.max_parallelism,
            dict(state.since),
            self.clock,
            self.given,
        )
        return (pa.RecordBatch.from_arrays(columns, schema=schema) for columns in rows)

    def _merged_rows(self, state: RangeState) -> list[pa.RecordBatch] | None:
        """The rows of the only part, if a merge of its files gives them."""
        for ref in state.files:
            # A file that counts for a part only may hold other keys, of which newer files come
            # before it.
            if ref.overlap(state.bounds) not in (None, state.bounds):
                return None
        if not self._is_merged:
            return None
        batches: list[pa.RecordBatch] = []
        for first, last in runs(self.key_groups, *state.bounds):
            with ExitStack() as stack:
                files = []
                for ref in state.files:
                    if first <= ref.last_key_group and ref.first_key_group <= last:
                        file = stack.enter_context(open_named(self.storage, self.epoch, ref))
                        files.append(stack.enter_context(open_file(file, ref)))
                        if first <= ref.first_key_group and ref.last_key_group <= last:
                            files[-1].check(ref)
                if not files:
                    continue
                batches += self._merged(files, state, (first, last))
        return batches

    def _shape(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = self.within_groups(rows)
        if self.defaults:
            rows = fill_defaults(rows, self.defaults)
        if self.selection.explode:
            rows = explode_rows(rows, self.schema)
        if rows.num_rows:
            yield rows

    def within_groups(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the key groups that are asked for: more may have been read."""
        if self.key_groups is None:
            return rows
        columns = rows.columns[: len(self.operator.key_schema)]
        groups = key_groups(hash_keys(columns), self.max_parallelism)
        return rows.filter(pa.array(np.isin(groups, list(self.key_groups))))

    def _timers(self, backend: KeyedStateBackend) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for domain in ("event", "processing"):
            while (due := backend.due_timers(domain, _LAST_MS, _MOST_TIMERS)) is not None:
                columns = list(due.keys.key_arrays())
                if self.namespace is not None:
                    columns.append(due.keys.namespaces())
                columns += [pa.repeat(domain, len(due)), pa.array(due.timestamps)]
                rows = pa.RecordBatch.from_arrays(columns, schema=schema)
                rows = self.within_groups(rows)
                if rows.num_rows:
                    yield rows
                due.fire_all()  # in this table only: the next ones follow


def unused(states: Mapping[str, State[Any]]) -> dict[str, State[Any]]:
    """States whose readers do not count as use, so that they change no table."""
    return {name: _unused(state) for name, state in states.items()}


def _unused(state: State[Any]) -> State[Any]:
    ttl = state.ttl
    if ttl is None or ttl.update == "create_and_write":
        return state
    return state.expiring_by(StateTtl(ttl.duration_ms, visibility=ttl.visibility, time=ttl.time))


def clock_of(manifest: Manifest, operator: OperatorState) -> tuple[int, int | None]:
    """The processing time and the operator's watermark, by which its states expire in an epoch."""
    return manifest.processing_time_ms, operator.watermark_ms


def _raw_bytes(state: RangeState) -> int:
    """About how many bytes of raw state a range's files hold for it."""
    return int(sum(ref.raw_bytes * _share(ref, state) for ref in state.files))


def _share(ref: FileRef, state: RangeState) -> float:
    """Which part of a file's bytes lies in a range, if key groups are equally large."""
    first, last = ref.overlap(state.bounds) or (0, -1)
    return (last - first + 1) / (ref.last_key_group - ref.first_key_group + 1)


def read_ahead(reads: Sequence[Callable[[], Iterator[Rows]]], ahead: int) -> Iterator[Rows]:
    """Yield what each of them does, one after the other; as many are read at a time."""
    ahead = min(ahead, len(reads))
    if ahead <= 1:
        for read in reads:
            yield from read()
        return
    threads = ThreadPoolExecutor(ahead)
    try:
        begun: deque[Future[list[Rows]]] = deque()
        for read in reads:
            begun.append(threads.submit(_all_of, read))
            if len(begun) > ahead:
                yield from begun.popleft().result()
        while begun:
            yield from begun.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


def _all_of(read: Callable[[], Iterator[Rows]]) -> list[Rows]:
    return list(read())


def runs(groups: frozenset[int] | None, first: int, last: int) -> list[tuple[int, int]]:
    """Stretches of a range that together hold the given key groups of it.

    Groups that are not asked for are in them where the stretches would be too many: each is one
    more look at each file.
    """
    if groups is None:
        return [(first, last)]
    inside = sorted(group for group in groups if first <= group <= last)
    stretches = []
    for _, stretch in groupby(enumerate(inside), key=lambda pair: pair[1] - pair[0]):
        members = [group for _, group in stretch]
        stretches.append((members[0], members[-1]))
    most = max(4, (last - first + 1) // 4)
    return stretches if len(stretches) <= most else [(inside[0], inside[-1])]


def load_files(
    storage: CheckpointStorage,
    epoch: int,
    backend: KeyedStateBackend,
    state: RangeState,
    files: tuple[FileRef, ...],
    groups: frozenset[int] | None = None,
) -> None:
    """Apply some files of a range to a backend, oldest first: the part in its key groups.

    States that the backend does not declare are left out. `groups` are those to read, if not all.
    """
    for first, last in runs(groups, *backend.key_group_range):
        for ref in files:
            # After a change of parallelism only a part of a file's rows belongs to the range.
            low = max(ref.first_key_group, state.first_key_group, first)
            high = min(ref.last_key_group, state.last_key_group, last)
            if low > high:
                continue
            with open_named(storage, epoch, ref) as file:
                backend.load(
                    file,
                    first_key_group=low,
                    last_key_group=high,
                    expected=ref,
                    allow_unclaimed_state=True,  # timers, and what was dropped
                    since=dict(state.since),
                )
