"""The keys that a table uses most, kept beside its range's files for a table that begins anew.

A table above files begins empty and gets warm by use. What was used most before is written from
time to time into the range's folder. A table that begins there brings these rows into memory, some
at a time, when a task has processed its own. It stops where anything else would need that memory.

A list is a hint that no manifest names. Whatever is wrong with one, or if there is none, all that
is lost is the time in which the table gets warm by itself; so errors are logged, and none is
raised. Each list takes the place of those before it. `pystate.epochs.retention` removes those of
folders to which nobody writes any more.

Thread safety: as the table; files are written under names that nobody else has.

Invariants
----------
1. Rows are brought under the rules of any read, so no list can make a table wrong.
2. A list is read only if its checksum, its form and the types of its keys are right.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from pystate.checkpoint.refs import RangeState, groups_of, hot_epoch, hot_path
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import AlreadyPublishedError, PystateError
from pystate.redaction import logger
from pystate.tables.backend import KeyedStateBackend
from pystate.types.arrays import hash_keys, key_groups

_LOG = logger("pystate.tables.hot_keys")
#: So many keys are kept of a range, of about so many bytes.
MOST_KEYS, MOST_BYTES = 1 << 16, 1 << 20
#: Small tables are warm soon enough: no list is written before so many rows were used.
_LEAST_USED = 1 << 14
#: A list is written at the latest when as many rows were used as so many times those in memory.
_MOST_TURNS = 2
#: So many are brought at a time.
_SLICE = 2048
_MAGIC = b"pystate hot keys 1\n"
_DIGEST = hashlib.sha256().digest_size

Columns = list["pa.Array[Any]"]


class HotKeys:
    """What one process knows of the hot keys of a range's table: those to bring, those to write.

    Parameters
    ----------
    storage : CheckpointStorage
    uid : str
        The operator's.
    backend : KeyedStateBackend
        Of a table on disk.
    """

    def __init__(self, storage: CheckpointStorage, uid: str, backend: KeyedStateBackend) -> None:
        self._storage = storage
        self._uid = uid
        self._backend = backend
        self._begun: RangeState | None = None
        self._wanted: Columns = []
        self._at = 0
        self._used = 0  # rows, since a list was written
        self._lists_written = 0

    # ---- bringing -------------------------------------------------------------------------------

    def begin(self, base: RangeState) -> None:
        """The table begins anew at a base: bring what was used most by `warm`."""
        self._begun = base
        self._wanted = []
        self._at = 0

    def warm(self, most_s: float) -> int:
        """Bring some of the rows into memory in about so many seconds; return how many keys."""
        until_s, before = time.monotonic() + most_s, self._at
        try:
            if self._begun is not None:
                base, self._begun = self._begun, None
                self._wanted = self._read(base)
                self._at = before = 0
            while self._wanted and time.monotonic() < until_s:
                some = [column.slice(self._at, _SLICE) for column in self._wanted]
                brought = self._backend.below.bring(some)
                self._at += len(some[0]) if brought else 0
                if not brought or self._at >= len(self._wanted[0]):
                    self._wanted = []
        except (PystateError, OSError, pa.ArrowException) as error:
            self._wanted = []
            self._note("are not brought into memory", error)
        return self._at - before

    def _read(self, base: RangeState) -> Columns:
        """The newest lists of the folders in which the base's files are."""
        found: list[Columns] = []
        folders = {ref.path.rpartition("/")[0] for ref in base.files}
        for folder in sorted(folder for folder in folders if groups_of(folder)):
            path = max(self._lists(folder), default=None)
            if path is None:
                continue
            try:
                found.append(self._counting(self._decoded(path), base))
            except (PystateError, OSError, ValueError, pa.ArrowException) as error:
                self._note(f"in {path} are not used", error)
        if not found:
            return []
        return [pa.concat_arrays(columns) for columns in zip(*found, strict=True)]

    def _decoded(self, path: str) -> Columns:
        with self._storage.open_read(path) as file:
            data = file.read(len(_MAGIC) + _DIGEST + 4 * MOST_BYTES)
        digest, body = data[len(_MAGIC) :][:_DIGEST], data[len(_MAGIC) + _DIGEST :]
        if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
            raise ValueError("the checksum contradicts the content")
        with pa.ipc.open_stream(body) as reader:
            rows = reader.read_all().combine_chunks()
        columns = [pa.concat_arrays(column.chunks) for column in rows.columns]
        types = [type_.arrow for type_ in self._backend._key_types()]
        if [column.type for column in columns] != types:
            raise ValueError("keys have another type now")
        return columns

    def _counting(self, columns: Columns, base: RangeState) -> Columns:
        """Those of a base's key groups."""
        keys = columns[: len(columns) - (self._backend.namespace is not None)]
        groups = key_groups(hash_keys(keys), self._backend.max_parallelism)
        mine = (groups >= base.first_key_group) & (groups <= base.last_key_group)
        return columns if mine.all() else [column.filter(pa.array(mine)) for column in columns]

    # ---- writing --------------------------------------------------------------------------------

    def used(self, rows: int) -> None:
        """So many rows were changed or looked up; write a list if they are many.

        So a list costs little beside the files that the rows' changes make. To find the keys takes
        a look at all rows, so the first list comes early, and the others ever later.
        """
        self._used += rows
        resident = self._backend.stats().keys
        turn = min(resident // 4 << self._lists_written, _MOST_TURNS * resident)
        enough = max(4 * min(resident, MOST_KEYS), turn, _LEAST_USED)
        if not resident or self._used < enough:
            return
        self._used = 0
        self._lists_written = min(self._lists_written + 1, _MOST_TURNS.bit_length() + 1)
        try:
            self._write()
        except (PystateError, OSError, pa.ArrowException) as error:
            self._note("are not written", error)

    def _write(self) -> None:
        lineage = self._backend.lineage()
        columns = self._backend.below.hottest(MOST_KEYS)
        if columns is None or lineage is None:
            return
        bounds = self._backend.key_group_range
        path = hot_path(self._uid, bounds, lineage.epoch, lineage.id.hex())
        with suppress(AlreadyPublishedError), self._storage.create(path) as out:
            out.write(encoded(_limited(columns)))
        for other in self._lists(path.rpartition("/")[0]):
            if other != path:
                self._storage.delete(other)

    def _lists(self, folder: str) -> Iterator[str]:
        for entry in self._storage.list(folder):
            if entry.path.rpartition("/")[0] == folder and hot_epoch(entry.path) is not None:
                yield entry.path

    def _note(self, what: str, error: Exception) -> None:
        _LOG.info("operator %r: hot keys %s: %s", self._uid, what, error)


def warming_s(spent_s: float) -> float:
    """How long rows are brought where so much time was spent otherwise: an eighth of that."""
    return min(max(spent_s / 8, 0.01), 0.25)


def encoded(columns: Sequence[pa.Array[Any]]) -> bytes:
    """A list of keys as it is written."""
    batch = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    return _MAGIC + hashlib.sha256(body).digest() + body


def _limited(columns: Sequence[pa.Array[Any]]) -> Columns:
    """Every so many of the keys, if all have too many bytes."""
    size_bytes = sum(column.get_total_buffer_size() for column in columns)
    every = -(-size_bytes // MOST_BYTES)
    if every <= 1:
        return list(columns)
    chosen = pa.array(range(0, len(columns[0]), every), pa.int64())
    return [column.take(chosen) for column in columns]
