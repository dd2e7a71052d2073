"""Frames of pandas as rows: what a processor of `transformWithStateInPandas` gives.

Thread safety: immutable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.sql.types import StructType

from pystate._core import calls
from pystate.errors import WrongTypeError
from pystate.operators.runtime.output import OutputColumns, shown
from pystate.spark.base.schemas import output_columns
from pystate.spark.ported.rows import as_dicts


class FrameOutput(OutputColumns):
    """The declared output of a processor that yields frames, converted as Spark converts them.

    If a frame has names, a column is taken by its name, and others are dropped; else by position.
    """

    _zone: str
    #: Whether whole numbers of any size go into columns of decimals.
    _ints_to_decimals: bool
    #: Whether columns are taken by their names, if there are any.
    _by_name: bool

    @classmethod
    def of(
        cls,
        schema: StructType,
        owner: str,
        zone: str,
        *,
        ints_to_decimals: bool = False,
        by_name: bool = True,
    ) -> FrameOutput:
        """The output with these columns; timestamps without a time zone are local in `zone`.

        With `ints_to_decimals` a column of whole numbers may become one of decimals whose
        precision would not hold all numbers of its type. Without `by_name` columns are taken by
        their places alone.
        """
        columns = output_columns(schema, owner)
        fields = zip(columns.schema, columns.required, strict=True)
        wanted = pa.schema([field.with_nullable(not required) for field, required in fields])
        output = cls(wanted, owner, columns.ddl)
        output._zone = zone
        output._ints_to_decimals = ints_to_decimals
        output._by_name = by_name
        return output

    def collector(self) -> calls.Emitted:
        """What frames are collected in."""
        return calls.Emitted(None)

    def from_rows(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Turn frames that a processor yielded into a batch."""
        columns: list[list[Any]] = [[] for _ in self.names]
        known: dict[tuple[Any, ...], tuple[int, ...]] = {}
        for frame in rows:
            if not isinstance(frame, pd.DataFrame):
                self._refuse(frame)
            if not len(frame):
                continue
            labels = tuple(frame.columns.tolist())
            places = known.get(labels)
            if places is None:
                places = known[labels] = self._places(labels)
            # No series is made of a column: that takes longer than all the rest.
            values_at: Any = frame._mgr.iget_values  # type: ignore[attr-defined, unused-ignore]
            for values, place in zip(columns, places, strict=True):
                values.append(values_at(place))
        if not columns[0]:
            return self.empty()
        arrays = [self._checked(i, self._of_column(i, values)) for i, values in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _refuse(self, value: Any) -> NoReturn:
        raise WrongTypeError(
            f"{self.owner} yielded {shown(value)} of type {type(value).__qualname__}: yield a "
            f"DataFrame of pandas with the columns {', '.join(self.names)}"
        )

    def _places(self, labels: tuple[Any, ...]) -> tuple[int, ...]:
        """Where in a frame with these columns those of the schema are."""
        if not (self._by_name and any(isinstance(label, str) for label in labels)):
            if len(labels) == len(self.names):
                return tuple(range(len(labels)))
            raise WrongTypeError(
                f"{self.owner} yielded a DataFrame of {len(labels)} columns; its schema has "
                f"{len(self.names)}: {', '.join(self.names)}"
            )
        places = {label: place for place, label in enumerate(labels)}
        missing = [name for name in self.names if name not in places]
        if missing:
            raise WrongTypeError(
                f"{self.owner} yielded a DataFrame without the column "
                f"{', '.join(map(repr, missing))}; it has {', '.join(map(str, labels))}"
            )
        counts = Counter(labels)
        twice = [name for name in self.names if counts[name] > 1]
        if twice:
            raise WrongTypeError(
                f"{self.owner} yielded a DataFrame with more than one column "
                f"{', '.join(map(repr, twice))}; it has {', '.join(map(str, labels))}"
            )
        return tuple(places[name] for name in self.names)

    def _of_column(self, index: int, values: list[Any]) -> pa.Array[Any]:
        """A column of the frames, each of which is converted as if it were alone.

        Values of one type are so together, too; those of several are not: whole numbers would be
        rounded to floats because another frame has these.
        """
        arrays = [
            self._of_series(index, _concatenate(list(alike)))
            for _, alike in groupby(values, key=attrgetter("dtype"))
        ]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

    def _of_series(self, index: int, series: pd.Series) -> pa.Array[Any]:
        try:
            return self._convert(series, self.schema.field(index).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise WrongTypeError(
                f"{self.owner}: column {self.names[index]!r} is declared {self.ddl[index]} and "
                f"got values of type {series.dtype}: {reason}"
            ) from None

    def _convert(self, series: pd.Series, kind: Any) -> pa.Array[Any]:
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
        whole = at.is_decimal(kind) and pd.api.types.is_integer_dtype(series.dtype)
        if self._ints_to_decimals and whole:
            series = series.astype(object).map(Decimal, na_action="ignore")
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


def _concatenate(parts: list[Any]) -> pd.Series:
    """Arrays of one type as one series."""
    first = parts[0]
    if len(parts) > 1:
        plain = isinstance(first, np.ndarray)
        first = np.concatenate(parts) if plain else type(first)._concat_same_type(parts)
    return pd.Series(first, dtype=first.dtype, copy=False)
