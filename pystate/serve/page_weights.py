"""Where an operator's state is heavy: by key group, and by key.

A small state is read as a whole, and the figures are exact. Of a larger one the key groups are
weighed by the indexes of its files, which name the key groups of each block: nothing else is read.
A key that several files hold counts in each until they are merged. Its keys are weighed in a
sample: the heaviest key groups, up to a bounded number of bytes. Each answer says which it was.

Thread safety: functions without state.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.checkpoint.state_files import open_file
from pystate.processor.epochs import open_named
from pystate.processor.scan import StateScan
from pystate.serve.page_values import asked_columns, key_texts, shown_rows
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.keys import parse_key

#: State of up to so many raw bytes is read as a whole; of a larger one about as much is sampled.
SMALL_BYTES = 16 << 20
#: A key group above this is not sampled: some states are only read a key group at a time.
_MOST_GROUP_BYTES = 256 << 20
_HEAVIEST = 20
#: More key groups are shown several at a time.
_MOST_CELLS = 1024

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Weights:
    """What each key group has, from 0 on."""

    rows: _Numbers
    size_bytes: _Numbers
    is_exact: bool
    """Whether rows were counted, or else files' indexes say it, about."""


def row_bytes(array: Any) -> npt.NDArray[np.int64]:
    """How many bytes each of an Arrow array's rows takes, of values and what they contain."""
    n, type_ = len(array), array.type
    if isinstance(array, pa.ExtensionArray):
        return row_bytes(array.storage)
    if pa.types.is_struct(type_):
        parts = [row_bytes(array.field(i)) for i in range(type_.num_fields)]
        return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(n, np.int64)
    if pa.types.is_map(type_) or pa.types.is_list(type_) or pa.types.is_large_list(type_):
        offsets = np.asarray(array.offsets, np.int64)
        items = [array.keys, array.items] if pa.types.is_map(type_) else [array.values]
        ends = [np.concatenate(([0], np.cumsum(row_bytes(part)))) for part in items]
        lengths = [end[offsets[1:]] - end[offsets[:-1]] for end in ends]
        return np.where(np.asarray(array.is_valid()), np.sum(lengths, axis=0), 0)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        if not n:
            return np.zeros(0, np.int64)
        places = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + n + 1]
        return np.diff(places).astype(np.int64)
    if pa.types.is_null(type_):
        return np.zeros(n, np.int64)
    return np.full(n, max(1, type_.bit_width // 8), np.int64)


def weights(scan: StateScan) -> Weights:
    """Weigh the key groups of an operator as of one epoch, also what has expired there."""
    if scan.raw_bytes <= SMALL_BYTES:
        return _counted(scan)
    n = scan.max_parallelism
    puts, deletes, stored = np.zeros(n), np.zeros(n), np.zeros(n)
    for state in scan.operator.ranges:
        for ref in state.files:
            first, last = ref.overlap(state.bounds) or (0, -1)
            if first > last:
                continue
            with open_named(scan.storage, scan.epoch, ref) as file, open_file(file) as opened:
                spread = [np.frombuffer(part) for part in opened.reader.spread(first, last)]
            for total, part in zip((puts, deletes, stored), spread, strict=True):
                total[first : last + 1] += part
    return Weights(np.maximum(puts - deletes, 0), stored, False)


def _counted(scan: StateScan) -> Weights:
    rows = np.zeros(scan.max_parallelism)
    size_bytes = np.zeros(scan.max_parallelism)
    # As the indexes of files do: what has expired takes room until it is removed.
    stored = replace(scan, selection=replace(scan.selection, expired=True))
    for batch in stored.batches():
        groups = _groups_of(scan, batch)
        rows += np.bincount(groups, minlength=len(rows))
        size_bytes += np.bincount(groups, _sizes(batch), len(rows))
    return Weights(rows, size_bytes, True)


def _groups_of(scan: StateScan, batch: pa.RecordBatch) -> npt.NDArray[np.intp]:
    columns = batch.columns[: len(scan.operator.key_schema)]
    return np.asarray(key_groups(hash_keys(columns), scan.max_parallelism), np.intp)


def _sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += row_bytes(column)
    return sizes


def heat_map(scan: StateScan) -> dict[str, Any]:
    """The weights of key groups, and their skew, as JSON.

    More than 1024 key groups are put together, some at a time: `groups_per_cell`.
    """
    found = weights(scan)
    n = scan.max_parallelism
    per_cell = -(-n // _MOST_CELLS)
    starts = np.arange(0, n, per_cell)
    answer: dict[str, Any] = {
        "uid": scan.operator.uid,
        "epoch": scan.epoch,
        "key_groups": n,
        "groups_per_cell": per_cell,
        "counted": "rows" if found.is_exact else "index",
        "rows": np.add.reduceat(found.rows, starts).round(1).tolist(),
        "bytes": np.add.reduceat(found.size_bytes, starts).round().tolist(),
        "skew": {"rows": _skew(found.rows), "bytes": _skew(found.size_bytes)},
        "ranges": [
            {
                "index": state.index,
                "first_key_group": state.first_key_group,
                "last_key_group": state.last_key_group,
                "rows": round(float(found.rows[_slice(state.bounds)].sum())),
                "bytes": round(float(found.size_bytes[_slice(state.bounds)].sum())),
            }
            for state in scan.operator.ranges
        ],
    }
    return answer


def _slice(bounds: tuple[int, int]) -> slice:
    return slice(bounds[0], bounds[1] + 1)


def _skew(values: _Numbers) -> float | None:
    """The heaviest key group as a multiple of the mean; None if all are empty."""
    mean = float(values.mean())
    return round(float(values.max()) / mean, 2) if mean else None


def heaviest_keys(scan: StateScan) -> dict[str, Any]:
    """The keys with most bytes, of all or of a sample of the heaviest key groups, as JSON."""
    groups = None
    if scan.raw_bytes > SMALL_BYTES:
        groups = _sampled_groups(scan)
        scan = replace(scan, key_groups=groups)
    key = parse_key(list(scan.operator.key_schema))
    names = [name for name, _ in asked_columns(key)]
    names += ["namespace"] if scan.namespace is not None else []
    best: list[tuple[int, int, list[Any], list[str | None]]] = []
    sampled = 0
    for batch in _some_of(scan):
        sizes = _sizes(batch)
        top = np.argsort(sizes)[::-1][:_HEAVIEST]
        some = batch.take(pa.array(top.tolist(), pa.int64()))
        told, typed = shown_rows(some, names), key_texts(key, some)
        places = range(sampled, sampled + len(top))
        entries = zip(sizes[top].tolist(), places, told, typed, strict=True)
        best = heapq.nlargest(_HEAVIEST, [*best, *entries], key=lambda entry: entry[:2])
        sampled += batch.num_rows
    return {
        "uid": scan.operator.uid,
        "epoch": scan.epoch,
        "columns": names,
        "keys": [{"values": told, "key": typed, "bytes": n} for n, _, told, typed in best],
        "of": "all" if groups is None else "sample",
        "rows_read": sampled,
        "key_groups_read": scan.max_parallelism if groups is None else len(groups),
    }


def _sampled_groups(scan: StateScan) -> frozenset[int]:
    """The heaviest key groups that together are not much larger than a small state."""
    found = weights(scan)
    stored = max(float(found.size_bytes.sum()), 1.0)
    raw = found.size_bytes * (scan.raw_bytes / stored)
    chosen: list[int] = []
    total = 0.0
    for group in np.argsort(raw)[::-1].tolist():
        if total + raw[group] > (SMALL_BYTES if chosen else _MOST_GROUP_BYTES):
            break
        chosen.append(group)
        total += raw[group]
    return frozenset(chosen)


def _some_of(scan: StateScan) -> Iterator[pa.RecordBatch]:
    if scan.key_groups is None:
        yield from scan.batches()
        return
    for group in sorted(scan.key_groups):
        yield from replace(scan, key_groups=frozenset((group,))).batches()
