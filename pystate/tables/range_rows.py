"""Rows that become the state file of one range of key groups.

Thread safety: functions without state.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.checkpoint.refs import (
    EMPTY_ID,
    FileRef,
    RangeState,
    empty_range,
    state_path,
)
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.state.aggregating import AggregatingState
from pystate.state.columns import NAMESPACE
from pystate.state.defaults import default_columns, default_of, without_defaults
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import TIMER_DOMAIN, TIMER_MS, TimeDomain
from pystate.types.arrays import as_array, hash_keys, reference
from pystate.types.equality import lengths_of
from pystate.types.state_type import StateType

#: Why a column of results is no state, for a declaration.
NOT_ITS_RESULT = (
    "what {!r} keeps does not follow from its result: give it as "
    "read_state(..., accumulators=True) does, or keep counts and sums in states of their own"
)


TIMER_DOMAINS: tuple[TimeDomain, ...] = ("event", "processing")
_BATCH_ROWS = 1 << 17
_BINARY = StateType("binary")
_LONG = StateType("long")


def write_range(
    storage: CheckpointStorage,
    operator: OperatorSpec,
    index: int,
    parallelism: int,
    epoch: int,
    rows: pa.Table,
    timers: pa.Table | None,
) -> RangeState:
    """Write rows and timers of one of `parallelism` ranges into a state file of a savepoint.

    A row has key columns, the namespace, and all states of a key; a timer has key columns, the
    namespace, domain and time. `InvalidArgumentError`: a key stands in two rows, or a timer is
    none; `WrongTypeError`: a column is of another type than its state; `WrongKeyGroupError`: a row
    is of another range.
    """
    state = empty_range(index, operator.max_parallelism, parallelism)
    with KeyedStateBackend.of(operator, state.bounds) as backend:
        _check_unique(backend, rows)
        put_rows(backend, rows, list(operator.states))
        if timers is not None:
            put_timers(backend, timers)
        return sealed_range(storage, backend, state, operator.uid, epoch)


def put_rows(backend: KeyedStateBackend, rows: pa.Table, states: Sequence[str]) -> None:
    """Store `states` of rows, each of another key: key columns, the namespace, the states."""
    for part in _parts(rows):
        keys, part = _keys(backend, part), _stored_rows(backend, part, states)
        for name in states:
            try:
                _store_column(backend, keys, part, name)
            except WrongTypeError as error:
                raise WrongTypeError(f"operator {backend.uid!r}, {error}") from error


def put_timers(backend: KeyedStateBackend, timers: pa.Table) -> None:
    """Register timers: key columns, the namespace, domain and time."""
    for part in _parts(timers):
        _register(backend, part)


def sealed_range(
    storage: CheckpointStorage, backend: KeyedStateBackend, state: RangeState, uid: str, epoch: int
) -> RangeState:
    """Seal a table in which nothing was sealed before, and write its file.

    `state` is the empty range; it is returned as it is if nothing is in the table.
    """
    if not backend.dirty:
        return state
    lineage = Lineage(uuid.uuid4().bytes, bytes.fromhex(EMPTY_ID), epoch)
    path = state_path(uid, *state.bounds, epoch, lineage.id.hex(), "delta")
    first = [backend.next_timer(domain) for domain in TIMER_DOMAINS]
    with backend.seal(lineage) as snapshot, storage.create(path) as out:
        info = snapshot.write(out)
    return replace(
        state,
        id=info.id,
        deltas=(FileRef.from_info(path, info),),
        next_event_timer_ms=first[0],
        next_processing_timer_ms=first[1],
    )


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _BATCH_ROWS):
        yield rows.slice(start, _BATCH_ROWS)


def _stored_rows(backend: KeyedStateBackend, rows: pa.Table, states: Sequence[str]) -> pa.Table:
    """The rows without the defaults that reading them has filled in."""
    noted = {name: default_of(rows.schema.field(name)) for name in states}
    texts = {name: text for name, text in noted.items() if text is not None}
    if not texts:
        return rows
    defaults = default_columns({name: backend.declarations[name] for name in texts}, texts)
    columns = {name: _column(rows, name) for name in states}
    for name, column in without_defaults(columns, defaults).items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _column(rows: pa.Table, name: str) -> Any:
    """A column in one piece, not a slice."""
    chunks: Any = rows.column(name)
    return pa.concat_arrays(chunks.chunks) if chunks.num_chunks else chunks.combine_chunks()


def _keys(backend: KeyedStateBackend, rows: pa.Table) -> KeyBatch:
    spaces = None if backend.namespace is None else _column(rows, NAMESPACE)
    return backend.keys([_column(rows, name) for name, _ in backend.key], spaces)


def _check_unique(backend: KeyedStateBackend, rows: pa.Table) -> None:
    names = [name for name, _ in backend.key]
    columns = [
        as_array(_column(rows, name), type_, f"key column {name!r}") for name, type_ in backend.key
    ]
    hashes = hash_keys(columns)
    order = np.argsort(hashes, kind="stable")
    equal = hashes[order][1:] == hashes[order][:-1]
    likely = np.unique(np.concatenate([order[1:][equal], order[:-1][equal]]))
    # Rows of one hash are of one key, of which each has another namespace, or of several keys.
    seen = set()
    few = rows.take(pa.array(likely, pa.int64()))
    batch = _keys(backend, few)
    for i, name in enumerate(batch._normal_keys()):
        if name in seen:
            key = dict(
                zip(names, [column[i].as_py() for column in batch.key_arrays()], strict=True)
            )
            space = "" if backend.namespace is None else f" in namespace {batch.namespace_at(i)!r}"
            raise InvalidArgumentError(
                f"operator {backend.uid!r}: the key {key}{space} stands in two rows: one row has "
                "all states of a key"
            )
        seen.add(name)


def _store_column(backend: KeyedStateBackend, keys: KeyBatch, rows: pa.Table, name: str) -> None:
    """Store a state's column; objects are pickled bytes."""
    declaration, handle = backend.declarations[name], backend[name]
    column: Any = _column(rows, name)
    what = f"operator {backend.uid!r}, state {name!r}"
    pickled = declaration.type.is_object
    if isinstance(declaration, ListState):
        lists = _of_kind(column, pa.list_(_stored_type(declaration.type)), what)
        if not pickled:
            handle.extend(keys, lists)
            return
        offsets = np.zeros(len(lists) + 1, np.int32)
        np.cumsum(np.asarray(lists.value_lengths().fill_null(0)), out=offsets[1:])
        items = reference(as_array(lists.flatten(), _BINARY, what), declaration.type)
        handle.append_lists(keys, offsets.ctypes.data, items)
    elif isinstance(declaration, MapState):
        type_ = pa.map_(declaration.key_type.arrow, _stored_type(declaration.type))
        maps = _of_kind(column, type_, what)
        lengths = np.where(np.asarray(maps.is_valid()), lengths_of(maps), 0)
        entries = maps.filter(maps.is_valid())
        owner = np.repeat(np.arange(len(lengths)), lengths)
        several = _keys(backend, rows.take(pa.array(owner, pa.int64())))
        if not pickled:
            handle.put_entries(several, entries.keys, entries.items)
            return
        names = as_array(entries.keys, declaration.key_type, what)
        values = as_array(entries.items, _BINARY, what)
        handle.put_all_entries(
            several, reference(names, declaration.key_type), reference(values, declaration.type)
        )
    elif isinstance(declaration, AggregatingState) and not pickled and handle._kept is None:
        if not is_kept(column.type):
            raise DeclarationError(f"{what}: {NOT_ITS_RESULT.format(declaration)}")
        try:
            kept = column.cast(declaration.accumulator_type)
        except pa.ArrowInvalid as error:
            raise WrongTypeError(
                f"state {name!r}: bytes that {declaration!r} cannot have kept: {error}"
            ) from None
        handle.merge_all(keys, kept)
        handle.results(keys)  # bytes that the aggregate cannot have kept are an error
    elif pickled:
        keys.put(handle.column, reference(as_array(column, _BINARY, what), declaration.type))
    else:
        # Of a fold the value's own handle.
        (getattr(handle, "_kept", None) or handle).update_all(keys, column)


def is_kept(type_: pa.DataType) -> bool:
    """Whether a column of this type may have what an aggregate keeps."""
    return pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_)


def _stored_type(type_: StateType) -> pa.DataType:
    return pa.binary() if type_.is_object else type_.arrow


def _of_kind(column: Any, type_: pa.DataType, what: str) -> Any:
    """A column of lists or maps, in one array that is not a slice."""
    if pa.types.is_null(column.type) or column.type != type_:
        try:
            column = column.cast(type_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidArgumentError(
                f"{what}: a column of {column.type} is not {type_}: {error}"
            ) from error
    return column


def _register(backend: KeyedStateBackend, rows: pa.Table) -> None:
    domains = as_array(_column(rows, TIMER_DOMAIN), StateType("string"), TIMER_DOMAIN).to_pylist()
    times = as_array(_column(rows, TIMER_MS), _LONG, TIMER_MS)
    for i, domain in enumerate(domains):
        if domain not in TIMER_DOMAINS or not times[i].is_valid:
            raise InvalidArgumentError(
                f"operator {backend.uid!r}: a timer has {TIMER_DOMAIN} {domain!r} and {TIMER_MS} "
                f"{times[i].as_py()}: they are 'event' or 'processing', and a time"
            )
    for domain in TIMER_DOMAINS:
        wanted = [each == domain for each in domains]
        if any(wanted):
            keys = _keys(backend, rows.filter(pa.array(wanted)))
            backend.register_timers(keys, domain, times.filter(pa.array(wanted)))
