"""Rows as pandas frames, and back: what a processor of `transformWithStateInPandas` gets and gives.

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
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.sql.types import StructType

from pystate.errors import WrongTypeError
from pystate.operator.output import OutputColumns
from pystate.operator.yielded import shown
from pystate.spark.base.schemas import output_columns
from pystate.spark.ported.rows import as_dicts

__all__ = ["FrameForm", "FrameOutput", "to_frame"]

#: Rows that become one frame before it is cut into those of the keys.
_PIECE = 65_536


class FrameForm:
    """Rows as frames of pandas, as in `transformWithStateInPandas`.

    Parameters
    ----------
    zone : str
        The session's time zone.
    most : int
        The most rows of a frame.
    """

    #: So many frames are turned into a batch.
    collected = 256
    wanted = "yield DataFrames of pandas, or return a list of them"

    def __init__(self, zone: str, most: int = 10_000) -> None:
        self._zone = zone
        self._most = most

    def keys(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The keys of some rows, of which these are the key columns."""
        frame = to_frame(rows, self._zone)
        found: Iterator[tuple[Any, ...]] = frame.itertuples(index=False, name=None)
        return found

    def groups(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], ends: Sequence[int]
    ) -> Iterator[Iterator[Any]]:
        """An iterator of frames for each key."""
        begin = covered = 0
        piece = to_frame(rows.slice(0, 0), self._zone)
        for end in ends:
            if end > covered and end - begin <= _PIECE:
                # The keys of the next rows, as many as are a piece together.
                covered = min(max(begin + _PIECE, end), len(order))
                first = begin
                piece = self._frame(rows, order[begin:covered])
            if end <= covered:
                yield self._cut(piece, begin - first, end - first)
            else:
                yield self._frames(rows, order[begin:end])
            begin = end

    def _frames(self, rows: pa.RecordBatch, order: np.ndarray[Any, Any]) -> Iterator[pd.DataFrame]:
        """The frames of a key with many rows, each made when it is asked for."""
        for first in range(0, len(order), self._most):
            yield self._frame(rows, order[first : first + self._most])

    def _frame(self, rows: pa.RecordBatch, order: np.ndarray[Any, Any]) -> pd.DataFrame:
        return to_frame(rows.take(pa.array(order)), self._zone)

    def _cut(self, piece: pd.DataFrame, begin: int, end: int) -> Iterator[pd.DataFrame]:
        for first in range(begin, end, self._most):
            yield piece.iloc[first : min(first + self._most, end)].reset_index(drop=True)


def to_frame(rows: pa.RecordBatch, zone: str) -> pd.DataFrame:
    """A batch as a frame, as Spark's workers make it."""
    columns = [_series(column, zone) for column in rows.columns]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(rows.num_rows))
    frame.columns = pd.Index(rows.schema.names)
    return frame


def _series(array: pa.Array[Any], zone: str) -> pd.Series:
    if at.is_nested(array.type):
        values = [_in_frame(array.type, value, zone) for value in array.to_pylist()]
        made = np.empty(len(values), object)
        made[:] = values
        return pd.Series(made, dtype=object)
    found: pd.Series = array.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)
    if at.is_timestamp(array.type) and array.type.tz is not None:
        return found.dt.tz_convert(zone).dt.tz_localize(None)
    return found


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
        made = np.empty(len(value), object)
        made[:] = [_in_frame(kind.value_type, each, zone) for each in value]
        return made
    if at.is_timestamp(kind):
        instant = pd.Timestamp(value)
        return instant if kind.tz is None else instant.tz_convert(zone).tz_localize(None)
    return value


class FrameOutput(OutputColumns):
    """The declared output of a processor that yields frames, converted as Spark converts them.

    If a frame has names, a column is taken by its name, and others are dropped; else by position.
    """

    _zone: str

    @classmethod
    def of(cls, schema: StructType, owner: str, zone: str) -> FrameOutput:
        """The output with these columns; timestamps without a time zone are local in `zone`."""
        columns = output_columns(schema, owner)
        fields = zip(columns.schema, columns.required, strict=True)
        wanted = pa.schema([field.with_nullable(not required) for field, required in fields])
        made = cls(wanted, owner, columns.ddl)
        made._zone = zone
        return made

    def from_rows(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Turn frames that a processor yielded into a batch.

        Raises
        ------
        WrongTypeError
            Something is no frame, a column is missing, or a value does not fit its column.
        """
        frames = [columns for columns in map(self._columns_of, rows) if columns is not None]
        if not frames:
            return self.empty()
        arrays = [
            self._checked(i, self._of_series(i, [columns[i] for columns in frames]))
            for i in range(len(self.names))
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns_of(self, frame: Any) -> list[pd.Series] | None:
        """A frame's columns in the schema's order; None if it is empty."""
        if not isinstance(frame, pd.DataFrame):
            raise WrongTypeError(
                f"{self.owner} yielded {shown(frame)} of type {type(frame).__qualname__}: yield a "
                f"DataFrame of pandas with the columns {', '.join(self.names)}"
            )
        if not len(frame):
            return None
        if any(isinstance(name, str) for name in frame.columns):
            missing = [name for name in self.names if name not in frame.columns]
            if missing:
                raise WrongTypeError(
                    f"{self.owner} yielded a DataFrame without the column "
                    f"{', '.join(map(repr, missing))}; it has {', '.join(map(str, frame.columns))}"
                )
            return [frame[name] for name in self.names]
        if frame.shape[1] != len(self.names):
            raise WrongTypeError(
                f"{self.owner} yielded a DataFrame of {frame.shape[1]} columns; its schema has "
                f"{len(self.names)}: {', '.join(self.names)}"
            )
        return [frame.iloc[:, i] for i in range(frame.shape[1])]

    def _of_series(self, index: int, parts: list[pd.Series]) -> pa.Array[Any]:
        kind = self.schema.field(index).type
        series = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        try:
            return self._converted(series, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise WrongTypeError(
                f"{self.owner}: column {self.names[index]!r} is declared {self.ddl[index]} and "
                f"got values of type {series.dtype}: {reason}"
            ) from None

    def _converted(self, series: pd.Series, kind: Any) -> pa.Array[Any]:
        array: pa.Array[Any]
        if at.is_nested(kind):
            array = pa.array([_out_of_frame(value) for value in series], type=kind)
            return array
        if at.is_timestamp(kind):
            if series.dtype == object:
                series = pd.to_datetime(series)
            zone = series.dt.tz
            if kind.tz is None:
                series = series if zone is None else series.dt.tz_localize(None)
            elif zone is None:
                series = series.dt.tz_localize(self._zone, ambiguous=False)
            array = pa.Array.from_pandas(series.dt.floor("us"))
            return pc.cast(array, kind)
        if at.is_date(kind) and series.dtype.kind == "M":
            series = series.dt.date
        try:
            array = pa.Array.from_pandas(series, type=kind, safe=True)
        except pa.ArrowInvalid:
            # Numbers as text, and the like: what Arrow casts without loss.
            array = pc.cast(pa.Array.from_pandas(series), kind, safe=True)
        return array


def _out_of_frame(value: Any) -> Any:
    if isinstance(value, float) and np.isnan(value):
        return None
    return as_dicts(value)
