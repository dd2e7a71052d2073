"""What a streaming query's own checkpoint says about a batch: its time and its source positions.

Spark writes ``offsets/<batch>`` before it runs a batch and never changes it, so a batch that runs
again after a crash finds the same file. Thread safety: the functions keep no state.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from pystate.checkpoint.source_position import SPARK_FOLDER, offsets_hash
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, CorruptFileError, MissingRequirementError
from pystate.spark.base.environment import local_uri

if TYPE_CHECKING:
    from pyspark import SparkContext


#: What connects Spark's Hadoop to an object store, by scheme.
_CONNECTORS = {
    "s3a": "org.apache.hadoop:hadoop-aws of Spark's version of Hadoop",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
    "abfss": "org.apache.hadoop:hadoop-azure of Spark's version of Hadoop",
    "abfs": "org.apache.hadoop:hadoop-azure of Spark's version of Hadoop",
}
_OFFSETS, _COMMITS = f"{SPARK_FOLDER}/offsets", f"{SPARK_FOLDER}/commits"


class BatchOffsets(NamedTuple):
    """The description of one micro-batch."""

    processing_time_ms: int
    """When the batch was planned; the same for every run of the batch."""
    offsets_hash: str
    """Identifies the range of source rows of the batch."""


def spark_folder(storage: CheckpointStorage, context: SparkContext) -> str:
    """Return the folder of Spark's part of a checkpoint, as a path for Spark."""
    folder = storage.local_path(SPARK_FOLDER)
    if folder is not None:
        return local_uri(folder)
    scheme, _, rest = storage.uri.partition("://")
    # Spark's own name for S3 is s3a; some vendors' Hadoop has a file system called s3 alone.
    schemes = ("s3a", "s3") if scheme == "s3" else (scheme,)
    for each in schemes:
        if _has_file_system(context, each):
            return f"{each}://{rest}/{SPARK_FOLDER}"
    raise MissingRequirementError(
        f"{storage.uri}: Spark keeps a stream's positions in the checkpoint, too, and has no file "
        f"system for {schemes[0]}://: add one to spark.jars.packages, such as "
        f"{_CONNECTORS.get(schemes[0], 'its connector')}, or run batches by run_epoch"
    )


def _has_file_system(context: SparkContext, scheme: str) -> bool:
    from py4j.protocol import Py4JError

    jvm: Any = context._jvm
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(
            scheme, context._jsc.hadoopConfiguration()
        )
    except Py4JError:
        return False
    return True


def newest_sources(storage: CheckpointStorage) -> list[str] | None:
    """Return the positions of a query's sources in its newest batch; None before the first."""
    newest = _newest(storage, _OFFSETS)
    if newest is None:
        return None
    path = f"{_OFFSETS}/{newest}"
    return storage.read_bytes(path).decode("utf-8").splitlines()[2:]


def is_complete(storage: CheckpointStorage) -> bool:
    """Whether Spark has completed the newest batch that it has begun, if there is one."""
    return _newest(storage, _OFFSETS) == _newest(storage, _COMMITS)


def _newest(storage: CheckpointStorage, folder: str) -> str | None:
    batches = [name for entry in storage.list(folder) if (name := _batch_name(entry.path))]
    return max(batches, key=int, default=None)


def _batch_name(path: str) -> str | None:
    name = path.rpartition("/")[2]
    return name if name.isdigit() else None


def read_offsets(storage: CheckpointStorage, batch_id: int) -> BatchOffsets:
    """Read ``spark/offsets/<batch_id>``."""
    path = f"{_OFFSETS}/{batch_id}"
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: Spark runs batch {batch_id} but its offset log is not in the job's "
            "checkpoint: start the query through Job.start, and leave that folder alone"
        ) from None
    digest = offsets_hash(data, path)
    try:
        time_ms = int(json.loads(data.splitlines()[1])["batchTimestampMs"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{path}: not an offset log that Spark writes: {error}") from None
    if time_ms <= 0:
        raise CorruptFileError(f"{path}: not an offset log that Spark writes: time {time_ms}")
    return BatchOffsets(time_ms, digest)
