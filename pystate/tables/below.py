"""Files below a table whose home is the disk: open ones, stacks, and all rows of them as arrays.

A table on disk has some rows in memory, and all of them in the files of its last sealed epoch but
for what changed since. So what asks for all rows merges these files, the changes being the newest,
and leaves the table's memory alone. It goes by key groups and hashes, some at a time, so that it
needs memory for these.

Thread safety: `FilesBelow` belongs to one thread at a time, the files that it shares with others to
all; the functions have no state; the reads of a process are made once, under a lock.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, pairwise
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.base.memory import process_budget
from pystate.checkpoint.object_cache import CachedObject, ObjectFile
from pystate.checkpoint.state_files import (
    LEAST_BLOCK_BYTES,
    FileInfo,
    FileSchema,
    OpenFile,
    file_schema,
    open_file,
)
from pystate.errors import CheckpointError, SwappedFileError
from pystate.state.columns import LIST, MAP, VALUE, Column
from pystate.state.declaration import State
from pystate.state.expiring import Expiring
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.state.value import ValueState
from pystate.types.arrays import decoded
from pystate.types.nested import codec_of
from pystate.types.state_type import StateType

#: Kinds whose columns in files are their results.
PLAIN = (ValueState, ListState, MapState)

#: How many parts a column of a state has, by its kind; of all others there are none.
PARTS = {VALUE: 1, LIST: 2, MAP: 3}

#: A `FileBelow`, or what makes one.
AnyFile: TypeAlias = "tuple[str, int, int] | tuple[str, int, int, ObjectFile | None]"
#: Rows, nulls, validity, offsets, values.
Part: TypeAlias = tuple[int, int, bytes | None, bytes | None, bytes | None]
#: About so many rows, or so many bytes of them, are in memory at a time.
SCAN_ROWS, SCAN_BYTES = 1 << 16, 4 << 20
_MOST_HASH = (1 << 64) - 1
#: How many requests a process sends to an object store at a time.
_REQUESTS, _FEW_REQUESTS = 64, 32


class FileBelow(NamedTuple):
    """A state file, and the key groups for which it counts, both inclusive."""

    path: str
    first_key_group: int
    last_key_group: int
    object: ObjectFile | None = None
    """What it is a copy of, if it is fetched as it is read."""


class _Reads:
    """What reads the files of this process's tables, made when it is first needed.

    Files that are fetched are read by threads, as many as may wait for a store at a time. A stack
    has one kind of reads, so these read those of its files that are local, too.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[tuple[int, bool], core.Reads] = {}

    def get(self, *, fetched: bool, looked_up: bool = False) -> core.Reads:
        # What is looked up without a table was fetched before, for the most part.
        threads = (_FEW_REQUESTS if looked_up else _REQUESTS) if fetched else 0
        with self._lock:
            kind = threads, looked_up
            if kind not in self._reads:
                cached = looked_up and not fetched
                self._reads[kind] = core.Reads(process_budget(), threads, cached)
            return self._reads[kind]


_reads = _Reads()
os.register_at_fork(after_in_child=_reads.reset)


def reads_for_lookups(*, fetched: bool) -> core.Reads:
    """What reads files with guides where keys are looked up without a table.

    Nobody waits here for the large batches of tables, which have reads of their own. What is read
    of local files stays in the page cache, as a few keys are no table's worth of rows.
    """
    return _reads.get(fetched=fetched, looked_up=True)


class FilesBelow:
    """Files in which the rows of a table are, oldest first, and those of them that are open.

    A file is opened once, whoever looks into it: stacks, scans and readers share it, and so do
    successive lists of files. It may be removed then.

    Parameters
    ----------
    files : iterable of (path, first key group, last key group[, ObjectFile])
        What is wanted, as `FileBelow` has it; `open` opens those that are not open.
    before : FilesBelow, optional
        From which open files are taken.

    Attributes
    ----------
    named : tuple of FileBelow
    """

    def __init__(self, files: Iterable[AnyFile] = (), before: FilesBelow | None = None) -> None:
        self.named = tuple(FileBelow(*file) for file in files)
        self._fetched = any(file.object is not None for file in self.named)
        known = before._by_path() if before is not None and before._fetched == self._fetched else {}
        self._opened = [_still_at(file.path, known.get(file.path)) for file in self.named]
        #: Open files that whoever comes after this may name.
        self._ahead: dict[str, core.GuidedFile] = {}

    @property
    def open_files(self) -> int:
        """How many of them are open."""
        return sum(opened is not None for opened in self._opened)

    def close(self, *, removed: bool = False) -> None:
        """Let go of the open ones, or of those that were `removed`; `open` opens them again."""
        self._ahead.clear()
        self._opened = [
            opened if removed and opened is not None and not _is_removed(opened) else None
            for opened in self._opened
        ]

    def _by_path(self) -> dict[str, core.GuidedFile | None]:
        named = {file.path: opened for file, opened in zip(self.named, self._opened, strict=True)}
        return named | self._ahead

    def open_ahead(
        self, file: FileBelow, schema: core.Schema, max_parallelism: int, guides: str | None
    ) -> core.GuidedFile:
        """Open a file that may be wanted next, if it is not open; errors are those of `open`."""
        opened = _still_at(file.path, self._by_path().get(file.path))
        if opened is None:
            opened = self._open(file, schema, max_parallelism, guides)
            self._ahead[file.path] = opened
        return opened

    def renew(self, schema: core.Schema, max_parallelism: int, guides: str | None) -> None:
        """Open those that are open once more, by their paths.

        `SwappedFileError` if there is another file now; else errors are those of `open`.
        """
        for i, (file, before) in enumerate(zip(self.named, self._opened, strict=True)):
            self._opened[i] = after = self._open(file, schema, max_parallelism, guides)
            if before is not None and before.info() != after.info():
                self._opened[i] = None
                raise SwappedFileError(
                    f"{file.path}: another file was put in its place while it was open: bring the "
                    "one back that the manifest names"
                )

    def open(self, schema: core.Schema, max_parallelism: int, guides: str | None = None) -> None:
        """Open all files, as ones of tables with that schema; after an error, go on with the rest.

        `guides` is how the paths of copies of their guides begin, which the processes of a host
        share; by default this one has its own.

        `SchemaError` if a file has no guide, or other columns: see `has_rows_of`. `CheckpointError`
        if there is none, `CorruptFileError`, `NewerFormatError`, `SystemCallError`,
        `MemoryLimitError`; they name the file.
        """
        for i, (file, opened) in enumerate(zip(self.named, self._opened, strict=True)):
            if opened is None:
                self._opened[i] = self._open(file, schema, max_parallelism, guides)

    def _open(
        self, file: FileBelow, schema: core.Schema, max_parallelism: int, guides: str | None
    ) -> core.GuidedFile:
        copy = None if file.object is None else file.object.open()
        return core.GuidedFile(
            schema,
            max_parallelism,
            file.path if copy is None else copy.own_path,
            _reads.get(fetched=self._fetched or file.object is not None),
            process_budget(),
            guides if file.object is None else None,
            False,
            copy,
        )

    def stack(
        self, schema: core.Schema, max_parallelism: int, guides: str | None = None
    ) -> core.Stack | None:
        """Make a stack of the files, which are opened before; None if there are none."""
        self.open(schema, max_parallelism, guides)
        counting: list[tuple[str | core.GuidedFile, list[int]]] = [
            (opened, [file.first_key_group, file.last_key_group])
            for file, opened in zip(self.named, self._opened, strict=True)
            if opened is not None
        ]
        if not counting:
            return None
        return core.Stack(
            schema, max_parallelism, counting, _reads.get(fetched=self._fetched), process_budget()
        )

    @contextmanager
    def scanned(self) -> Iterator[list[tuple[core.FileReader, tuple[int, int]]]]:
        """Readers of the whole files, which are open, with the key groups for which they count."""
        with ExitStack() as stack:
            yield [
                (stack.enter_context(_read_again(opened)), file[1:3])
                for file, opened in zip(self.named, self._opened, strict=True)
                if opened is not None
            ]


def _still_at(path: str, opened: core.GuidedFile | None) -> core.GuidedFile | None:
    """An open file, unless there is another one at its path now."""
    if opened is None:
        return None
    try:
        there = os.stat(path)
    except OSError:
        return opened
    return opened if os.path.samestat(there, os.fstat(opened.fileno())) else None


def _is_removed(opened: core.GuidedFile) -> bool:
    return os.fstat(opened.fileno()).st_nlink == 0


@contextmanager
def _read_again(opened: core.GuidedFile) -> Iterator[core.FileReader]:
    if isinstance(opened.extents, CachedObject):
        with opened.extents.scanned() as file, open_file(file) as whole:
            yield whole.reader
        return
    # By a description of its own: the one that is open may be for aligned reads only.
    try:
        descriptor = os.open(f"/proc/self/fd/{opened.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{opened.name}: cannot be opened: {error.strerror}") from error
    try:
        size = os.fstat(descriptor).st_size
        reader = OpenFile(opened.name, size, descriptor, None).reader
        try:
            yield reader
        finally:
            reader.close()
    finally:
        os.close(descriptor)


def schema_in_files(table: core.Table) -> FileSchema:
    """The columns that files of an open table have, in which nothing has changed yet."""
    out = written(table.changes())
    with open_file(out) as opened:
        return file_schema(opened.reader)


def written(sealed: core.Sealed) -> io.BytesIO:
    """What a table has changed, as a delta in memory."""
    out = io.BytesIO()
    try:
        sealed.write(out, "changes that are not sealed", LEAST_BLOCK_BYTES)
    finally:
        sealed.close()
    return out


def has_rows_of(opened: OpenFile, schema: FileSchema) -> bool:
    """Whether rows can be looked up in a file: it has a guide, and a table's own columns."""
    info = FileInfo(*opened.reader.info())
    return info.block_bytes > 0 and file_schema(opened.reader) == schema


# ---- all rows -----------------------------------------------------------------------------------


def gathered(
    files: Sequence[tuple[core.FileReader, tuple[int, int]]],
    schema: core.Schema,
    columns: Sequence[Column],
    max_parallelism: int,
    bounds: tuple[int, int],
    expiring: Expiring | None,
    *,
    most_bytes: int = SCAN_BYTES,
    counted: bool = False,
) -> Iterator[tuple[int, list[Part]]]:
    """Merge files that have a table's columns, oldest first, into the rows of some key groups.

    Yields how many rows, and the parts of all columns: those of the key, then of each state; none
    where rows are only `counted`. About `most_bytes` of them are in memory at a time.
    """
    expiry = None if expiring is None else expiring.among(columns)
    mapping = list(range(len(columns)))
    for first, last, low, high in _pieces(files, bounds, most_bytes):
        readers = [reader for reader, groups in files if groups[0] <= first and last <= groups[1]]
        if not readers:
            continue
        yield from core.gather(
            readers,
            [mapping] * len(readers),
            schema,
            max_parallelism,
            first,
            last,
            "the rows of several files",
            process_budget(),
            expiry,
            low,
            high,
            counted,
        )


def _pieces(
    files: Sequence[tuple[core.FileReader, tuple[int, int]]],
    bounds: tuple[int, int],
    most_bytes: int,
) -> Iterator[tuple[int, int, int, int]]:
    """Cut key groups so that each file counts for all of a piece, or none, and pieces are small.

    A piece is a range of key groups, or of the hashes of one.
    """
    infos = [FileInfo(*reader.info()) for reader, _ in files]
    # As if files had the same of each of their key groups.
    parts = sum(
        max(info.rows / SCAN_ROWS, info.raw_bytes / most_bytes)
        / (info.last_key_group - info.first_key_group + 1)
        for info in infos
    )
    step = max(1, int(1 / parts)) if parts else bounds[1] - bounds[0] + 1
    cuts = {bounds[0], bounds[1] + 1, *range(bounds[0], bounds[1] + 1, step)}
    for _, (first, last) in files:
        cuts |= {cut for cut in (first, last + 1) if bounds[0] < cut <= bounds[1]}
    hashes = [(at << 64) // ceil(parts) for at in range(ceil(parts) + 1)] if parts > 1 else []
    for first, after in pairwise(sorted(cuts)):
        if step > 1 or not hashes:
            yield first, after - 1, 0, _MOST_HASH
            continue
        for low, high in pairwise(hashes):
            yield first, first, low, high - 1


def parts_before(columns: Sequence[Column]) -> list[int]:
    """Of each column of a table's states, how many parts the columns before it have."""
    return list(accumulate((PARTS.get(c.kind, 0) for c in columns), initial=0))[:-1]


def key_arrays(parts: Iterator[Part], types: Sequence[StateType]) -> list[pa.Array[Any]]:
    """The arrays of key columns, or of a namespace."""
    return [plain_array(next(parts), type_, codec_of(type_, "the key")) for type_ in types]


def state_array(parts: Iterator[Part], state: State[Any], column: Column) -> pa.Array[Any]:
    """The array of a state of one of the `PLAIN` kinds; it takes its parts."""
    if isinstance(state, ValueState):
        return plain_array(next(parts), state.type, column.codec)
    rows, _, _, ends, _ = next(parts)
    assert ends is not None
    offsets: Any = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(ends)])
    keys = plain_array(next(parts), state.key_type, None) if isinstance(state, MapState) else None
    values = plain_array(next(parts), state.type, column.codec)
    if keys is None:
        return pa.ListArray.from_arrays(offsets, values)
    return pa.MapArray.from_arrays(offsets, keys, values)


def plain_array(part: Part, type: StateType, codec: Any) -> pa.Array[Any]:
    """The array of one column."""
    rows, nulls, validity, offsets, values = part
    stored = layout = type.stored_arrow
    if not rows:
        return decoded(pa.array([], stored), type, codec)
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(values or b"")]
    if offsets is not None:
        buffers.insert(1, pa.py_buffer(offsets))
        # A file keeps bytes of one width as it does others.
        layout = pa.binary() if pa.types.is_fixed_size_binary(stored) else stored
    array = pa.Array.from_buffers(layout, rows, buffers, nulls)
    if layout != stored:
        array = pc.cast(array, stored)
    return decoded(array, type, codec)
