"""How Spark would write a frame to Parquet, for tasks that write the rows themselves.

Their files are to be the same to every reader as those of Spark's own writer: the same physical
types and compression, and Spark's schema among the metadata. Where a type or a setting asks for
something that is not written here, Spark writes the rows.

Thread safety: functions without state; immutable types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

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
_KNOWN = {
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
    if any(str(conf.get(name, value)).upper() != value.upper() for name, value in _KNOWN.items()):
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
