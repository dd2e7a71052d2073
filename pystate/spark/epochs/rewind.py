"""Sets Spark's positions back to the last checkpoint, and says which streams allow it.

See `pystate.epochs.interval` for why. Thread safety: functions without state.

Invariants
----------
1. Positions are set back only by the owner of the checkpoint, before its query starts, and only if
   steps may have been held (`MARK`).
2. Commits go before offsets, the newest first. Killed at any point, the folder is one that the next
   call continues with: its newest commit is never older than the checkpoint's batch.
3. Nothing is removed unless Spark has kept the offsets of the checkpoint's batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.source_position import SPARK_FOLDER, read_query_id
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.interval import CheckpointOptions
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.spark.base.jvm import analysed_plan, items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: The file that says that a query may be ahead of the manifests.
MARK = "spark-rewinds"
_RETAIN = "spark.sql.streaming.minBatchesToRetain"
_SPARE = 8
#: Sources that return the same rows for the same positions for as long as the rows exist.
_REWINDABLE = re.compile(
    r"(?i)FileSource\[|kafka|rate$|rate-micro-batch$|delta|iceberg|pulsar|kinesis|pystate_heartbeat$"
)
#: Nodes of a plan that have state of Spark's own, if they are over a stream.
_STATEFUL = re.compile(r"Aggregate|Deduplicate|Distinct|Limit|.*State.*|SessionWindow")
_CLEANS = re.compile(r"(?i)cleansource\s*->\s*(?!off)\w+")


def check_rewindable(stream: DataFrame, options: CheckpointOptions) -> None:
    """Refuse a stream that cannot be read again from an earlier position."""
    owner = (
        "CheckpointOptions: with an interval, a pause or tolerable failures, batches since the "
        "last checkpoint may have to be computed again"
    )
    for node in _nodes(analysed_plan(stream)):
        name = node.nodeName()
        streams = [child for child in items(node.children()) if child.isStreaming()]
        if (streams and _STATEFUL.fullmatch(name)) or (name == "Join" and len(streams) > 1):
            raise InvalidArgumentError(
                f"{owner}: the stream has an operator with state of Spark's own ({name}), which "
                "cannot be set back: put it into the pipeline, or take a checkpoint after each "
                "batch, interval=1"
            )
        if not node.getClass().getSimpleName().startswith("StreamingRelation"):
            continue
        source = str(node.sourceName())
        cleans = "FileSource[" in source and _CLEANS.search(node.dataSource().options().toString())
        if cleans:
            raise InvalidArgumentError(
                f"{owner}: {source} removes or moves the files that it has read: leave "
                "cleanSource out, or take a checkpoint after each batch, interval=1"
            )
        if not options.rewindable and not _REWINDABLE.match(source):
            raise InvalidArgumentError(
                f"{owner}: the source {source!r} is not known to return rows a second time, which "
                "a socket or a queue cannot. If this one does, pass CheckpointOptions("
                "rewindable=True); otherwise take a checkpoint after each batch, interval=1"
            )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _nodes(child)


def allow_rewinds(storage: CheckpointStorage, *, allowed: bool) -> None:
    """Say, before a query starts, whether it may be ahead of the manifests from now on."""
    if not allowed:
        storage.delete(MARK)
    elif not storage.exists(MARK):
        storage.replace(MARK, b"")


def rewind(storage: CheckpointStorage, head: Manifest | None) -> int:
    """Set Spark's positions back to the batch of the newest manifest, `head`.

    Returns how many batches Spark will compute again. The caller owns the checkpoint.
    """
    query_id = read_query_id(storage) if storage.exists(MARK) else None
    if query_id is None:
        return 0
    progress = None if head is None else head.progress(query_id)
    last = -1 if progress is None else progress.batch_id
    commits, offsets = f"{SPARK_FOLDER}/commits", f"{SPARK_FOLDER}/offsets"
    begun = _batches(storage, offsets)
    ahead = [batch for batch in begun if batch > last]
    if ahead and last >= 0 and last not in begun:
        raise CheckpointError(
            f"checkpoint {storage.uri}: the newest epoch holds batch {last}, but Spark has removed "
            f"{offsets}/{last}, and keeps those of later batches, which no epoch holds: was "
            f"{_RETAIN} lowered? Bring the file back from a copy"
        )
    for folder in (commits, offsets):
        for batch in sorted(_batches(storage, folder), reverse=True):
            if batch > last:
                # Hadoop's checksum goes first: left alone, it would be taken for the next file's.
                storage.delete(f"{folder}/.{batch}.crc")
                storage.delete(f"{folder}/{batch}")
    return len(ahead)


def _batches(storage: CheckpointStorage, folder: str) -> set[int]:
    names = (entry.path.rpartition("/")[2] for entry in storage.list(folder))
    return {int(name) for name in names if name.isdigit()}


@contextmanager
def retain_positions(session: SparkSession, options: CheckpointOptions) -> Iterator[int]:
    """Let a query that starts in the block keep its positions for as long as they are needed.

    Yields the most steps that may be held until Spark forgets the last checkpoint's position.
    """
    before = session.conf.get(_RETAIN)
    kept = max(int(str(before)), (options.every_batches or 0) + 2 * _SPARE)
    session.conf.set(_RETAIN, str(kept))
    try:
        yield kept - _SPARE
    finally:
        session.conf.set(_RETAIN, str(before))
