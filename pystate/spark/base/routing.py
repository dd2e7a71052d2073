"""Rows to their key-group ranges: the shuffle in front of every keyed operator.

Spark's partitioner is not used. The target partition is computed from the key with SQL's
`xxhash64`, so that it matches the key group that the core computes from the same bytes. A task
learns its range from the key of its first row. A partition without rows needs a marker row in the
same shuffle, because a partition's number is not its range once frames are united, coalesced or
evaluated twice. Where a range without rows has nothing to do, there are no markers, and the driver
concludes from the number of rows which ranges had none (`evaluation.empty_ranges`): the
union with the markers is a stage of its own, and their column is as wide as a key.

Thread safety: the functions keep no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.errors import WrongTypeError
from pystate.spark.base.frame_columns import column_named, key_text
from pystate.spark.base.schemas import KeySchema

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import Column, DataFrame, SparkSession


#: The column that is null in data rows and the range's number in its one marker row. It comes last.
RANGE_COLUMN = "__pystate_range"
#: Of rows without a key, the instance that they go to.
INSTANCE_COLUMN = "__pystate_instance"
_RDD_CHUNK = 4096
_HASHED_TYPES = (st.NumericType, st.BooleanType, st.BinaryType, st.DatetimeType)


def key_group(keys: Sequence[str], max_parallelism: int) -> Column:
    """The key group of each row, as an SQL expression (a long)."""
    return _group(list(map(column_named, keys)), max_parallelism)


def _group(keys: Sequence[Column], max_parallelism: int) -> Column:
    return F.pmod(F.xxhash64(*keys), F.lit(max_parallelism).cast("long"))


def route(
    frame: DataFrame,
    keys: Sequence[str],
    max_parallelism: int,
    parallelism: int,
    order_by: Sequence[Column] = (),
    *,
    markers: bool = True,
) -> DataFrame:
    """Shuffle a frame by the ranges of its keys, and sort each partition by `order_by`.

    With `markers` a row announces each range in `RANGE_COLUMN`, which comes last.
    """
    owner = range_of(frame, keys, max_parallelism, parallelism)
    if not markers:
        routed = frame.repartitionById(parallelism, F.expr(owner))
        return routed.sortWithinPartitions(*order_by) if order_by else routed
    routed = _shuffled(frame, owner, parallelism)
    if order_by:
        routed = routed.sortWithinPartitions(F.col(RANGE_COLUMN).asc_nulls_first(), *order_by)
    return routed


def spread(frame: DataFrame, parallelism: int) -> DataFrame:
    """Shuffle a frame evenly over instances, and announce each of them by a marker row.

    `INSTANCE_COLUMN` and `RANGE_COLUMN` come after the frame's columns.

    A row goes where its content says, and not its place among the rows: if Spark computes a part of
    the rows again, in another order, each of them goes where it went before. The partition is added
    so that equal rows are spread, too.
    """
    hashed = [column_named(f.name) for f in frame.schema if _has_hash(f.dataType)]
    mixed = F.xxhash64(*hashed) if hashed else F.lit(0).cast("long")
    place = F.pmod(mixed, F.lit(parallelism).cast("long")) + F.spark_partition_id()
    instance = F.pmod(place, F.lit(parallelism).cast("long")).cast("int")
    placed = frame.withColumn(INSTANCE_COLUMN, instance)
    return _shuffled(placed, INSTANCE_COLUMN, parallelism)


def _has_hash(data_type: st.DataType) -> bool:
    """Whether Spark hashes values of a type, whatever its configuration."""
    if isinstance(data_type, st.StructType):
        return all(_has_hash(field.dataType) for field in data_type)
    if isinstance(data_type, st.ArrayType):
        return _has_hash(data_type.elementType)
    return isinstance(data_type, _HASHED_TYPES) or data_type == st.StringType()


def _shuffled(frame: DataFrame, owner: str, parallelism: int) -> DataFrame:
    """Shuffle a frame with a marker row per range; `RANGE_COLUMN` comes last."""
    # One text is one call to the JVM, where columns would be some twenty; here and below.
    marked = frame.selectExpr("*", f"cast(null as int) AS {RANGE_COLUMN}").unionByName(
        marker_rows(frame.sparkSession, parallelism), allowMissingColumns=True
    )
    # A plain repartition could be coalesced by adaptive execution; this one keeps its count.
    return marked.repartitionById(parallelism, F.expr(f"coalesce({RANGE_COLUMN}, {owner})"))


def range_of(frame: DataFrame, keys: Sequence[str], max_parallelism: int, parallelism: int) -> str:
    """The range of each row's key, as SQL over the frame's columns."""
    names = frame.columns
    columns = ", ".join(key_text(names, key) for key in keys)
    group = f"pmod(xxhash64({columns}), {max_parallelism}L)"
    return f"cast({group} * {parallelism}L div {max_parallelism}L as int)"


def marker_rows(session: SparkSession, parallelism: int) -> DataFrame:
    """The marker rows of all ranges: `RANGE_COLUMN` alone."""
    numbers = session.range(0, parallelism, 1, 1)
    return numbers.selectExpr(f"cast(id as int) AS {RANGE_COLUMN}")


def split_markers(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
    """Take the marker rows out of a routed batch: its data rows, and the ranges announced in it.

    Without markers the columns are shared, not copied.
    """
    last = batch.num_columns - 1
    ranges = batch.column(last)
    data = pa.RecordBatch.from_arrays(batch.columns[:last], schema=batch.schema.remove(last))
    if ranges.null_count == len(ranges):
        return data, []
    markers: list[Any] = ranges.drop_null().to_pylist()
    return data.filter(ranges.is_null()), markers


class Routed(NamedTuple):
    """A row of a routed RDD: a key with its row, or a marker that announces the range."""

    marker: int | None
    key: Any
    row: Any


@dataclass(frozen=True)
class KeyRouter:
    """Computes the range of Python keys, a chunk at a time. Pickled to the workers."""

    uid: str
    schema: KeySchema
    max_parallelism: int
    parallelism: int

    def arrays(self, keys: Sequence[Any]) -> list[pa.Array[Any]]:
        """The key columns of a list of keys: values for one column, tuples for several."""
        from pystate.types.arrays import as_array
        from pystate.types.state_type import parse_type

        what = f"operator {self.uid!r}: key"
        types = [parse_type(ddl) for _, ddl in self.schema]
        if len(types) == 1:
            return [as_array(keys, types[0], what)]
        for key in keys:
            if not isinstance(key, (tuple, list)) or len(key) != len(types):
                raise WrongTypeError(
                    f"{what} {key!r:.80} is no tuple of {len(types)} parts, as key_type says"
                )
        parts = zip(zip(*keys, strict=True), types, strict=True)
        return [as_array(part, t, f"{what}, part {i}") for i, (part, t) in enumerate(parts)]

    def owners(self, columns: Sequence[pa.Array[Any]]) -> list[int]:
        """The range of each row of some key columns."""
        from pystate.types.arrays import hash_keys

        hashes = hash_keys(columns).view("int64")
        groups = hashes % self.max_parallelism  # numpy's rule for the sign is that of pmod
        owners: list[int] = (groups * self.parallelism // self.max_parallelism).tolist()
        return owners


def route_rdd(rdd: RDD[Any], key: Callable[[Any], Any], router: KeyRouter) -> RDD[Routed]:
    """The same shuffle for an RDD: elements become `Routed` pairs."""

    def assign(rows: Iterable[Any]) -> Iterator[tuple[int, Routed]]:
        rows = iter(rows)
        while chunk := list(islice(rows, _RDD_CHUNK)):
            keys = [key(row) for row in chunk]
            for owner, k, row in zip(router.owners(router.arrays(keys)), keys, chunk, strict=True):
                yield owner, Routed(None, k, row)

    parallelism = router.parallelism
    markers = rdd.context.parallelize(range(parallelism), 1).map(
        lambda i: (i, Routed(i, None, None))
    )
    return rdd.mapPartitions(assign).union(markers).partitionBy(parallelism, int).values()
