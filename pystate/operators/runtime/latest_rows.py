"""The newest row of each identity within a key: what updates come to.

Some columns of a row say which thing it tells of, its identity. A later row of the same identity
within a key replaces the earlier one. The rows of a key are kept in the order in which they came.

Thread safety: a `LatestRows` belongs to one task and thread.

Invariants
----------
1. Of the rows of one key and identity the last one counts, also within an epoch.
2. What is held of an epoch is at most twice one row per key and identity, and some more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as at

from pystate.operators.runtime.event_rows import columns_of
from pystate.operators.runtime.output import OutputColumns
from pystate.state.key_batch import KeyBatch
from pystate.state.value import ValueState
from pystate.types.ddl import quoted
from pystate.types.state_type import StateType

if TYPE_CHECKING:
    from pystate.tables.backend import KeyedStateBackend

#: The state with the rows of a key.
LATEST = "latest"
#: Held rows are reduced to the last ones once there are so many.
_HELD_ROWS = 65_536

_Longs = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


def latest_state(columns: Sequence[tuple[str, StateType]]) -> ValueState:
    """The declaration of the state `LATEST`."""
    fields = ",".join(f"{quoted(name)}:{type_.ddl}" for name, type_ in columns)
    return ValueState(f"array<struct<{fields}>>")


@dataclass(frozen=True)
class Merged:
    """The rows of the keys that an epoch has touched, those of the state first."""

    keys: KeyBatch
    """The keys, without repetition."""
    rows: Mapping[str, pa.Array[Any]]
    """All rows, by column: those that were stored, then those that came."""
    owners: _Longs
    """The key of each row, by its position in `keys`."""
    stored: int
    """How many rows were stored."""
    counts: _Flags
    """Which rows count now; the others were replaced."""


class LatestRows:
    """Keeps the newest row of each identity.

    Parameters
    ----------
    backend : KeyedStateBackend
        The state, with `latest_state`.
    key : sequence of str
        The key columns.
    identity : sequence of str
        The columns that say which thing a row tells of; none if a key is one thing.
    columns : sequence of (name, StateType)
        All columns of a row but those of the key.
    owner : str
        Names the operator in errors.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        key: Sequence[str],
        identity: Sequence[str],
        columns: Sequence[tuple[str, StateType]],
        owner: str,
    ) -> None:
        self._backend = backend
        self._key = tuple(key)
        self._identity = tuple(identity)
        self._names = [name for name, _ in columns]
        self._fields = [pa.field(name, type_.arrow) for name, type_ in columns]
        ddl = [type_.ddl for _, type_ in columns]
        self._columns = OutputColumns(pa.schema(self._fields), owner, ddl)
        self._state = backend.register(LATEST, latest_state(columns))
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._held_most = _HELD_ROWS

    def hold(self, rows: pa.RecordBatch) -> None:
        """Take some rows of the epoch, in their order."""
        keys = columns_of(rows, self._key)
        # Spark's arrays may be without nulls, for example, where the state's may have them.
        [own] = self._columns.from_value(rows.select(self._names))
        names = [*(f"key {i}" for i in range(len(keys))), *self._names]
        self._held.append(pa.table([*keys, *own.columns], names=names))
        self._held_rows += rows.num_rows
        if self._held_rows > self._held_most:
            rest = self._last_ones(pa.concat_tables(self._held).combine_chunks())
            self._held, self._held_rows = [rest], rest.num_rows
            self._held_most = _HELD_ROWS + 2 * rest.num_rows

    def merge(self) -> Merged | None:
        """Put what is held into the state; return the rows of the keys that it touches."""
        if not self._held:
            return None
        rows = self._last_ones(pa.concat_tables(self._held).combine_chunks())
        self._held = []
        came = {name: _whole(rows.column(name)) for name in self._names}
        keys = self._backend.keys(self._keys_of(rows))
        first = keys.first_rows()
        heads = np.flatnonzero(first == np.arange(len(first)))
        numbers = np.zeros(len(first), np.int64)
        numbers[heads] = np.arange(len(heads))
        at_heads: Any = pa.array(heads)
        touched = self._backend.keys([column.take(at_heads) for column in keys.key_arrays()])
        lists = self._state.values(touched)
        sizes = lists.value_lengths().fill_null(0).to_numpy()
        before = lists.flatten()
        owners = np.concatenate([np.repeat(np.arange(len(heads)), sizes), numbers[first]])
        whole = {
            name: pa.concat_arrays([before.field(i), came[name]])
            for i, name in enumerate(self._names)
        }
        counts = _last(owners, [whole[name] for name in self._identity])
        kept = np.flatnonzero(counts)
        kept = kept[np.argsort(owners[kept], kind="stable")]
        place: Any = pa.array(kept)
        items = pa.StructArray.from_arrays(
            [array.take(place) for array in whole.values()], fields=self._fields
        )
        ends = np.cumsum(np.bincount(owners[kept], minlength=len(heads)))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        self._state.update_all(touched, pa.ListArray.from_arrays(offsets, items))
        return Merged(touched, whole, owners, len(before), counts)

    def _keys_of(self, rows: pa.Table) -> list[pa.Array[Any]]:
        return [_whole(rows.column(f"key {i}")) for i in range(rows.num_columns - len(self._names))]

    def _last_ones(self, rows: pa.Table) -> pa.Table:
        """The last row of each key and identity."""
        keys = self._backend.keys(self._keys_of(rows))
        first = keys.first_rows().astype(np.int64)
        keys.close()
        last = _last(first, [_whole(rows.column(name)) for name in self._identity])
        return rows if last.all() else rows.filter(pa.array(last))


def _last(owners: _Longs, identity: Sequence[pa.Array[Any]]) -> _Flags:
    """Which rows are the last ones of their owner and identity."""
    codes = owners
    for array in identity:
        codes = _compressed(codes, _codes(array))
    codes = np.unique(codes, return_inverse=True)[1]
    last = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    last[codes] = np.arange(len(codes))
    found: _Flags = last[codes] == np.arange(len(codes))
    return found


def _compressed(one: _Longs, other: _Longs) -> _Longs:
    """A number for each pair of numbers."""
    first = np.unique(one, return_inverse=True)[1].astype(np.int64)
    pairs: _Longs = first * (int(other.max(initial=0)) + 1) + other
    return pairs


def _codes(array: pa.Array[Any]) -> _Longs:
    """Numbers that are equal where values are; null is a value."""
    if at.is_floating(array.type):
        array = pa.array(array.to_numpy(zero_copy_only=False) + 0.0, mask=_nulls(array))
    encoded = array.dictionary_encode(null_encoding="encode")
    codes: _Longs = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _nulls(array: pa.Array[Any]) -> _Flags:
    found: _Flags = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _whole(column: Any) -> pa.Array[Any]:
    """A column of a table as one array."""
    found: pa.Array[Any] = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return found
