"""Frames written to Parquet: by Spark, or as Spark would, by tasks that write the rows themselves.

The files of such tasks are to be the same to every reader as those of Spark's own writer: the same
physical types and compression, and Spark's schema among the metadata. Where a type or a setting
asks for something that is not written here, Spark writes the rows. Its tasks count rows, files and
bytes as they close each file, and report them to the driver when they are committed, for one
attempt per task: a listing of the folder shows which files exist, not which should.

Thread safety: functions without state; immutable types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from pystate.spark.base.jvm import below
from pystate.spark.base.schemas import names_twice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
_VERSION = "org.apache.spark.version"
_FIELD_ID = "parquet.field.id"
_SETTINGS = "spark.sql.parquet."
#: Settings of Parquet's own library: sizes, encryption, Bloom filters and others.
_LIBRARY = "parquet."
_CODEC = _SETTINGS + "compression.codec"
_TIMESTAMPS = _SETTINGS + "outputTimestampType"
#: Settings of Spark's writer that are only followed if they have these values.
_EXPECTED_SETTINGS = {
    _SETTINGS + "writeLegacyFormat": "false",
    _SETTINGS + "datetimeRebaseModeInWrite": "CORRECTED",
    _SETTINGS + "int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.files.maxRecordsPerFile": "0",
}
_CODECS = {
    "none": "NONE",
    "uncompressed": "NONE",
    "snappy": "SNAPPY",
    "gzip": "GZIP",
    "zstd": "ZSTD",
}
_PLAIN = (
    st.BooleanType,
    st.ByteType,
    st.ShortType,
    st.IntegerType,
    st.LongType,
    st.FloatType,
    st.DoubleType,
    st.BinaryType,
    st.DateType,
    st.DecimalType,
    st.TimestampType,
    st.TimestampNTZType,
)


@dataclass(frozen=True)
class ParquetFormat:
    """The columns of files, and how they are written."""

    schema: pa.Schema
    """Arrow's, with Spark's schema in its metadata."""
    options: Mapping[str, Any]
    """Arguments for `pyarrow.parquet.ParquetWriter`."""


def parquet_format(frame: DataFrame) -> ParquetFormat | None:
    """The format in which Spark would write a frame; None if only Spark can."""
    schema, session = frame.schema, frame.sparkSession
    if not schema.fields or names_twice(schema.names):
        return None
    stamps = set().union(*(_timestamps(field.dataType) for field in schema))
    if None in stamps or _FIELD_ID in schema.json():
        return None
    conf = session.conf
    if any(
        str(conf.get(name, value)).upper() != value.upper()
        for name, value in _EXPECTED_SETTINGS.items()
    ):
        return None
    codec = _CODECS.get(str(conf.get(_CODEC, "snappy")).lower())
    hadoop = session._jsparkSession.sessionState().newHadoopConf()
    if codec is None or not hadoop.getPropsWithPrefix(_LIBRARY).isEmpty():
        return None
    kind = str(conf.get(_TIMESTAMPS, "INT96")).upper()
    # Arrow writes all timestamps as the one or the other; Spark those without a zone never as
    # INT96.
    if st.TimestampType in stamps and (
        kind not in ("INT96", "TIMESTAMP_MICROS")
        or (kind == "INT96" and st.TimestampNTZType in stamps)
    ):
        return None
    arrow = to_arrow_schema(schema, timezone="UTC")
    # Spark's reader takes any column for nullable, whatever the file says.
    columns = [pa.field(field.name, field.type, nullable=True) for field in arrow]
    options = {
        "compression": codec,
        "store_schema": False,
        "store_decimal_as_integer": True,
        "use_deprecated_int96_timestamps": st.TimestampType in stamps and kind == "INT96",
    }
    metadata: dict[bytes | str, bytes | str] = {_VERSION: session.version, _SCHEMA: schema.json()}
    return ParquetFormat(pa.schema(columns, metadata), options)


def _timestamps(data_type: st.DataType) -> set[type[st.DataType] | None]:
    """The kinds of timestamps in a type; None among them if it has something unknown."""
    if type(data_type) in _PLAIN:
        stamp = isinstance(data_type, (st.TimestampType, st.TimestampNTZType))
        return {type(data_type)} if stamp else set()
    if data_type == st.StringType():
        return set()
    # A null in a nested field that may not be null would not be noticed.
    if isinstance(data_type, st.ArrayType) and data_type.containsNull:
        return _timestamps(data_type.elementType)
    if isinstance(data_type, st.MapType) and data_type.valueContainsNull:
        return _timestamps(data_type.keyType) | _timestamps(data_type.valueType)
    if isinstance(data_type, st.StructType) and all(field.nullable for field in data_type):
        twice = names_twice(data_type.names)
        inner = (_timestamps(field.dataType) for field in data_type)
        return {None} if twice or not data_type.fields else set().union(*inner)
    return {None}


class WriteCounts(NamedTuple):
    """The counts of the tasks of a write."""

    rows: int
    files: int | None
    """None, as for the bytes, if this version of Spark does not provide it."""
    size_bytes: int | None
    plan: Any = None
    """The node that wrote, as it was executed."""


def write_parquet(frame: DataFrame, uri: str, partition_by: Sequence[str] = ()) -> WriteCounts:
    """Write a frame to a folder that does not exist yet, with subfolders by the columns' values."""
    session, jvm = frame.sparkSession, frame.sparkSession._jvm
    assert jvm is not None
    writer = frame.write.format("parquet").partitionBy(*partition_by)._jwrite
    try:
        # `DataFrameWriter.save` drops the execution, which holds the counts.
        command = writer.saveCommand(jvm.scala.Option.apply(uri))
    except Py4JError as error:
        if "does not exist" not in str(error):
            raise
        return _counted_write(frame, uri, partition_by)
    mode = jvm.org.apache.spark.sql.execution.CommandExecutionMode.ALL()
    execution = session._jsparkSession.sessionState().executePlan(command, mode)
    plan = _write_node(execution.commandExecuted().commandPhysicalPlan())
    metrics = plan.metrics()
    return WriteCounts(
        metrics.apply("numOutputRows").value(),
        metrics.apply("numFiles").value(),
        metrics.apply("numOutputBytes").value(),
        plan,
    )


def _counted_write(frame: DataFrame, uri: str, partition_by: Sequence[str] = ()) -> WriteCounts:
    observation = Observation()
    counted = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    counted.write.partitionBy(*partition_by).parquet(uri)
    return WriteCounts(observation.get["rows"], None, None)


def _write_node(plan: Any) -> Any:
    """Find the writing node, which adaptive execution wraps."""
    while not plan.metrics().contains("numFiles"):
        [plan, *_] = below(plan, plan.nodeName())
    return plan
