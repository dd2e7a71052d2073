"""Rows as pandas frames: what a processor of `transformWithStateInPandas` gets.

As in Spark's own workers, a timestamp in a frame has no time zone but is local in the session's,
a struct is a dict, an array is of numpy, and a map is a dict.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as at
from pandas.core.internals import BlockManager  # type: ignore[attr-defined, unused-ignore]

#: Rows that become one frame before it is cut into those of the keys.
_PIECE = 65_536
_EXTENSION_INTS: dict[pa.DataType, Any] = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
}


class FrameForm:
    """Rows as frames of pandas, as in `transformWithStateInPandas`.

    A frame is full once it has `most` rows, or as many of average size as have `most_bytes`. With
    `extension_ints` whole numbers have pandas' types that hold nulls, such as ``Int64``.
    """

    #: So many frames are turned into a batch.
    collected = 1024
    wanted = "yield DataFrames of pandas, or return a list of them"

    def __init__(
        self,
        zone: str,
        most: int = 10_000,
        most_bytes: int | None = None,
        extension_ints: bool = False,
    ) -> None:
        self._zone = zone
        self._extension_ints = extension_ints
        self._most = most
        self._most_bytes = most_bytes

    def keys(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The keys of some rows, of which these are the key columns."""
        frame = self._to_frame(rows)
        keys: Iterator[tuple[Any, ...]] = frame.itertuples(index=False, name=None)
        return keys

    def groups(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], ends: Sequence[int]
    ) -> Iterator[Iterator[Any]]:
        """An iterator of frames for each key."""
        begin = covered = 0
        most = self._rows_of_a_frame(rows)
        piece = CutFrames(self._to_frame(rows.slice(0, 0)))
        for end in ends:
            if end > covered and end - begin <= _PIECE:
                # The keys of the next rows, as many as are a piece together.
                covered = min(max(begin + _PIECE, end), len(order))
                first = begin
                piece = CutFrames(self._frame(rows, order[begin:covered]))
            if end <= covered:
                frames = self._slices(piece, begin - first, end - first, most)
            else:
                frames = self._frames(rows, order[begin:end], most)
            yield _Frames(frames, end - begin)
            begin = end

    def _to_frame(self, rows: pa.RecordBatch) -> pd.DataFrame:
        return to_frame(rows, self._zone, extension_ints=self._extension_ints)

    def _rows_of_a_frame(self, rows: pa.RecordBatch) -> int:
        """The most rows of a frame, of these rows."""
        if self._most_bytes is None or not rows.nbytes:
            return self._most
        # As in Spark's workers the average row decides, and a frame has at least one.
        full = -(-self._most_bytes * rows.num_rows // rows.nbytes)
        return max(1, min(self._most, full))

    def _frames(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], most: int
    ) -> Iterator[pd.DataFrame]:
        """The frames of a key with many rows, each made when it is asked for."""
        for first in range(0, len(order), most):
            yield self._frame(rows, order[first : first + most])

    def _frame(self, rows: pa.RecordBatch, order: np.ndarray[Any, Any]) -> pd.DataFrame:
        return self._to_frame(rows.take(pa.array(order)))

    def _slices(self, piece: CutFrames, begin: int, end: int, most: int) -> Iterator[pd.DataFrame]:
        for first in range(begin, end, most):
            yield piece.cut(first, min(first + most, end))


class CutFrames:
    """Cuts frames from one, whose values are not changed meanwhile.

    A processor gets a frame for each key, most of them of a few rows. pandas takes a slice and a
    new index for each, with a frame made in between; here the values are copied, and a frame is put
    together around them once. It uses the parts that pandas' own frames consist of, and these are
    the same in all versions that pystate works with.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self._columns = frame.columns
        blocks: Any = frame._mgr.blocks  # type: ignore[attr-defined, unused-ignore]
        self._blocks = [(type(block), block.values, block.mgr_locs) for block in blocks]

    def cut(self, begin: int, end: int) -> pd.DataFrame:
        """A frame of some rows, numbered from 0; it shares nothing that may be changed."""
        blocks = tuple(
            [
                kind(
                    # Only the types of extensions have one column in a block.
                    (values[begin:end] if values.ndim == 1 else values[:, begin:end]).copy(),
                    placement=places,
                    ndim=2,
                )
                for kind, values, places in self._blocks
            ]
        )
        # Names can be set on an index: each frame has its own, over the same labels.
        axes = [self._columns.view(), pd.RangeIndex(end - begin)]
        manager = BlockManager(blocks, axes, verify_integrity=False)
        cut: pd.DataFrame = pd.DataFrame._from_mgr(manager, axes)
        return cut


def to_frame(rows: pa.RecordBatch, zone: str, *, extension_ints: bool = False) -> pd.DataFrame:
    """A batch as a frame, as Spark's workers make it."""
    columns = [_series(column, zone, extension_ints) for column in rows.columns]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(rows.num_rows))
    frame.columns = pd.Index(rows.schema.names)
    return frame


def _series(array: pa.Array[Any], zone: str, extension_ints: bool) -> pd.Series:
    if at.is_nested(array.type):
        values = [_in_frame(array.type, value, zone) for value in array.to_pylist()]
        objects = np.empty(len(values), object)
        objects[:] = values
        return pd.Series(objects, dtype=object)
    series: pd.Series = array.to_pandas(
        date_as_object=True,
        coerce_temporal_nanoseconds=True,
        types_mapper=_EXTENSION_INTS.get if extension_ints else None,
    )
    if at.is_timestamp(array.type) and array.type.tz is not None:
        return series.dt.tz_convert(zone).dt.tz_localize(None)
    return series


def _in_frame(kind: Any, value: Any, zone: str) -> Any:
    """A value of a nested type, and what is inside it."""
    if value is None:
        return None
    if at.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {field.name: _in_frame(field.type, value[field.name], zone) for field in fields}
    if at.is_map(kind):
        return {
            _in_frame(kind.key_type, k, zone): _in_frame(kind.item_type, v, zone)
            for k, v in (value.items() if isinstance(value, dict) else value)
        }
    if at.is_list(kind) or at.is_large_list(kind):
        objects = np.empty(len(value), object)
        objects[:] = [_in_frame(kind.value_type, each, zone) for each in value]
        return objects
    if at.is_timestamp(kind):
        instant = pd.Timestamp(value)
        return instant if kind.tz is None else instant.tz_convert(zone).tz_localize(None)
    return value


class _Frames(Iterator[pd.DataFrame]):
    """The frames of a key's rows."""

    def __init__(self, frames: Iterator[pd.DataFrame], num_rows: int) -> None:
        self._frames = frames
        self.num_rows = num_rows

    def __next__(self) -> pd.DataFrame:
        return next(self._frames)
