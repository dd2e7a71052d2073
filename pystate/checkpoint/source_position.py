"""Spark's part of a checkpoint: what of it makes a query go on after a certain batch.

A streaming query keeps its positions in ``spark/``. ``metadata`` has the query's id,
``offsets/<n>`` what batch n reads, and ``commits/<n>`` that it has ended. ``sources/`` holds the
logs of sources that keep one, and ``state/`` the state of Spark's own operators.

Thread safety: functions without state. The query may go on meanwhile: logs only grow, and a source
reads from the position that ``offsets`` names, whatever its log has beyond.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from pystate.checkpoint.manifest import Manifest, QueryProgress
from pystate.checkpoint.storage import CheckpointStorage, find_bytes
from pystate.errors import CorruptFileError

SPARK_FOLDER = "spark"
METADATA = f"{SPARK_FOLDER}/metadata"
#: Folders with a file for each batch.
_BATCHES = (f"{SPARK_FOLDER}/offsets/", f"{SPARK_FOLDER}/commits/")


def read_query_id(storage: CheckpointStorage) -> str | None:
    """Return the id of the query that a checkpoint belongs to, or None if it never had one."""
    data = find_bytes(storage, METADATA)
    if data is None:
        return None
    try:
        query_id = json.loads(data)["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{METADATA}: not what Spark writes: {error}") from None
    if not isinstance(query_id, str):
        raise CorruptFileError(f"{METADATA}: {query_id!r:.60} is not the id of a query")
    return query_id


def encode_query_id(query_id: str) -> bytes:
    """Return the content of ``metadata`` for a query."""
    return json.dumps({"id": query_id}, separators=(",", ":")).encode()


def query_of(storage: CheckpointStorage, manifest: Manifest) -> QueryProgress | None:
    """Find where the checkpoint's streaming query stood at an epoch; None where it has none."""
    query_id = read_query_id(storage)
    return None if query_id is None else manifest.progress(query_id)


def batches_of(storage: CheckpointStorage, folder: str) -> frozenset[int]:
    """Return the batches that have a file in ``offsets`` or ``commits``."""
    names = (entry.path.rpartition("/")[2] for entry in storage.list(f"{SPARK_FOLDER}/{folder}"))
    return frozenset(int(name) for name in names if name.isdigit())


def offsets_hash(data: bytes, path: str) -> str:
    """Identify the source rows of a batch, by the content of its file in ``offsets``."""
    try:
        version, _, *sources = data.decode("utf-8").splitlines()
    except ValueError as error:
        raise CorruptFileError(f"{path}: not an offset log that Spark writes: {error}") from None
    if not version.startswith("v") or not sources:
        raise CorruptFileError(f"{path}: not an offset log that Spark writes: {version!r}")
    return hashlib.blake2b("\n".join(sources).encode(), digest_size=16).hexdigest()


def position_files(storage: CheckpointStorage, batch_id: int) -> Iterator[str]:
    """Name the files from which a query goes on after a batch, but for ``metadata``.

    Of the batches those are the last two: Spark asks for the one before, too, where it does not
    find that the last one has ended.
    """
    wanted = {str(batch_id), str(batch_id - 1)}
    for entry in storage.list(SPARK_FOLDER):
        name = entry.path.rpartition("/")[2]
        if entry.path == METADATA or (name.startswith(".") and name.endswith(".crc")):
            continue  # Hadoop's checksums are optional, and that of `metadata` would be wrong
        if entry.path.startswith(_BATCHES) and name not in wanted:
            continue
        yield entry.path
