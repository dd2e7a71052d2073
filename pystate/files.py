"""State files: what a snapshot writes and a restore reads.

A file is named by a path, or is an open binary file object. Thread safety: one file object, one
thread at a time; the functions keep nothing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, NamedTuple, Protocol, TypeAlias

from pystate import _core
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    SchemaError,
    UnclaimedStateError,
)
from pystate.keys import KeyColumns, describe
from pystate.types import StateType, from_code

__all__ = [
    "EMPTY_LINEAGE",
    "FileIdentity",
    "FileInfo",
    "FileSchema",
    "Lineage",
    "OpenFile",
    "Source",
    "claim",
    "file_schema",
    "merge_files",
    "open_file",
    "verify_file",
]

Source: TypeAlias = "str | os.PathLike[str] | BinaryIO"


class Lineage(NamedTuple):
    """The name of a sealed epoch, not only its number.

    Attributes
    ----------
    id : bytes
        16 bytes, unique to the attempt that sealed it; its delta file carries the same.
    parent : bytes
        The id of the epoch that it was built on; zeros for none.
    epoch : int
        The coordinator's number.
    query : int
        A fingerprint of (query id, operator uid, range).
    """

    id: bytes
    parent: bytes
    epoch: int
    query: int = 0

    def next(self) -> Lineage:
        """A fresh lineage of the following epoch, built on this one."""
        return Lineage(uuid.uuid4().bytes, self.id, self.epoch + 1, self.query)


#: The lineage of a table that was never sealed.
EMPTY_LINEAGE = Lineage(bytes(16), bytes(16), 0, 0)


class FileInfo(NamedTuple):
    """What a state file says about itself; the fields are the file format's."""

    kind: str
    """``"delta"`` or ``"base"``."""
    id: str
    """The lineage id, hexadecimal."""
    parent: str
    epoch: int
    max_parallelism: int
    first_key_group: int
    last_key_group: int
    rows: int
    """Records that store something."""
    tombstones: int
    """Records that delete a key."""
    raw_bytes: int
    """Of the data blocks before compression."""
    file_bytes: int
    checksum: int
    """XXH64 of the whole file; 0 where it was only opened."""


class FileIdentity(Protocol):
    """What a manifest expects of a file: a `FileInfo`, or a manifest's entry."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def file_bytes(self) -> int: ...  # noqa: D102
    @property
    def checksum(self) -> int: ...  # noqa: D102


class FileSchema(NamedTuple):
    """A file's columns by name."""

    keys: tuple[tuple[str, StateType], ...]
    states: tuple[tuple[str, StateType], ...]


class OpenFile:
    """An open state file: its `reader`, and what is needed to read it as a whole."""

    def __init__(self, name: str, size_bytes: int, descriptor: int, file: BinaryIO | None) -> None:
        self._place = (name, size_bytes, descriptor, file)
        self.reader = _core.FileReader(name, size_bytes, descriptor, file)

    def checksum(self) -> int:
        """XXH64 of the whole file, read for it from end to end."""
        return _core.file_checksum(*self._place)

    def check(self, expected: FileIdentity) -> None:
        """Compare the whole file with the checksum that it was written with."""
        found = self.checksum()
        if found != expected.checksum:
            raise CorruptFileError(
                f"{self._place[0]}: corrupt: the checksum of the whole file is {found:016x}, and "
                f"{expected.checksum:016x} when it was written"
            )


@contextmanager
def open_file(source: Source, expected: FileIdentity | None = None) -> Iterator[OpenFile]:
    """Open a state file; header, schema and index are verified.

    Parameters
    ----------
    source : path or binary file object
        A file object is read by ``seek`` and ``readinto``.
    expected : FileInfo, optional
        What the file must be.

    Raises
    ------
    CorruptFileError
        The bytes contradict a checksum or a bound, or it is another file than expected.
    NewerFormatError
        A later version of pystate wrote it.
    CheckpointError
        There is no such file, or it cannot be read.
    """
    with ExitStack() as stack:
        if isinstance(source, (str, os.PathLike)):
            name = os.fspath(source)
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CheckpointError(f"{name}: cannot be opened: {error.strerror}") from error
            stack.callback(os.close, descriptor)
            size, file = os.fstat(descriptor).st_size, None
        else:
            name = str(getattr(source, "name", source))
            descriptor, file = -1, source
            size = source.seek(0, os.SEEK_END)
        if expected is not None and size != expected.file_bytes:
            raise CorruptFileError(
                f"{name}: corrupt at byte {min(size, expected.file_bytes)}: it has {size} bytes, "
                f"and was written with {expected.file_bytes}"
            )
        opened = OpenFile(name, size, descriptor, file)
        stack.callback(opened.reader.close)
        if expected is not None:
            _check_identity(name, FileInfo(*opened.reader.info()), expected)
        yield opened


def _check_identity(name: str, found: FileInfo, expected: FileIdentity) -> None:
    for field in ("kind", "id", "epoch"):
        ours, theirs = getattr(expected, field), getattr(found, field)
        if ours != theirs:
            raise CorruptFileError(
                f"{name}: it is another file than the manifest names: its {field} is {theirs}, "
                f"not {ours}"
            )


def file_schema(reader: _core.FileReader) -> FileSchema:
    """The columns of an open file."""
    keys, states = (
        tuple((name, from_code(*rest)) for name, *rest in columns) for columns in reader.schema()
    )
    return FileSchema(keys, states)


def verify_file(source: Source, expected: FileIdentity | None = None) -> FileInfo:
    """Read a state file from end to end and check every block.

    Parameters
    ----------
    source : path or binary file object
        The file.
    expected : FileInfo, optional
        What it must be.

    Returns
    -------
    FileInfo

    Raises
    ------
    CorruptFileError, NewerFormatError, CheckpointError
        As `open_file`; the message names the file and, where it is known, the byte.
    """
    with open_file(source, expected) as opened:
        if expected is not None:
            opened.check(expected)
        reader = opened.reader
        info = FileInfo(*reader.info())
        reader.seek(info.first_key_group, info.last_key_group)
        puts, deletes = reader.count()
        if (puts, deletes) != (info.rows, info.tombstones):
            raise CorruptFileError(
                f"{reader.name}: corrupt: it holds {puts} rows and {deletes} tombstones, and "
                f"says {info.rows} and {info.tombstones}"
            )
        return info._replace(checksum=opened.checksum())


def merge_files(
    sources: Sequence[Source],
    out: BinaryIO,
    *,
    lineage: Lineage | None = None,
    first_key_group: int | None = None,
    last_key_group: int | None = None,
    kind: str = "base",
) -> FileInfo:
    """Merge state files into one, without a table and without the GIL.

    Parameters
    ----------
    sources : sequence of path or binary file object
        Oldest first.
    out : binary file object
        Takes the new file; made durable by the caller.
    lineage : Lineage, optional
        Of the new file; by default that of the newest source, so that a table restored from it
        stands at the same lineage as one restored from the sources.
    first_key_group, last_key_group : int, optional
        The inclusive range to keep; by default the newest source's.
    kind : {"base", "delta"}
        In a base, tombstones and cleared values are gone.

    Returns
    -------
    FileInfo

    Raises
    ------
    CorruptFileError, NewerFormatError, CheckpointError
        A source cannot be read.
    SchemaError
        The sources have different keys, or a state with two types.
    NoSpaceError
        `out` is full.

    Notes
    -----
    A k-way merge, O(bytes read) in time, one block of each source in memory. The new file has the
    newest source's states; those that only older ones have are dropped.
    """
    if not sources:
        raise InvalidArgumentError("there is nothing to merge")
    with ExitStack() as stack:
        readers = [stack.enter_context(open_file(source)).reader for source in sources]
        schemas = [file_schema(reader) for reader in readers]
        newest, target = FileInfo(*readers[-1].info()), schemas[-1]
        mappings = []
        for reader, schema in zip(readers, schemas, strict=True):
            found = FileInfo(*reader.info()).max_parallelism
            if found != newest.max_parallelism:
                raise SchemaError(
                    f"{reader.name} has {found} key groups, {readers[-1].name} "
                    f"{newest.max_parallelism}: files of one checkpoint have equally many"
                )
            mappings.append(_mapping(reader.name, schema, readers[-1].name, target))
        chosen = Lineage(*readers[-1].lineage()) if lineage is None else lineage
        result = _core.merge(
            readers,
            mappings,
            _core.Schema(
                [type.column(name) for name, type in target.keys],
                [type.column(name) for name, type in target.states],
            ),
            kind,
            *chosen,
            newest.max_parallelism,
            newest.first_key_group if first_key_group is None else first_key_group,
            newest.last_key_group if last_key_group is None else last_key_group,
            out,
            str(getattr(out, "name", out)),
        )
        return FileInfo(*result)


def _mapping(name: str, schema: FileSchema, other: str, target: FileSchema) -> list[int]:
    if [t for _, t in schema.keys] != [t for _, t in target.keys]:
        raise SchemaError(
            f"{name} and {other} have different keys: {describe(schema.keys)} and "
            f"{describe(target.keys)}"
        )
    positions = {state: i for i, (state, _) in enumerate(target.states)}
    types = dict(target.states)
    for state, type_ in schema.states:
        if state in types and types[state] != type_:
            raise SchemaError(
                f"state {state!r} is {type_.ddl} in {name} and {types[state].ddl} in {other}"
            )
    return [positions.get(state, -1) for state, _ in schema.states]


def claim(
    reader: _core.FileReader,
    key: KeyColumns,
    states: Mapping[str, StateType],
    max_parallelism: int,
    allow_unclaimed_state: bool,
) -> list[int]:
    """Match a file's states by name to a table's columns.

    Parameters
    ----------
    reader : FileReader
        The file.
    key : tuple of (name, StateType)
        The table's key.
    states : mapping of str to StateType
        The table's states, in the order of its columns.
    max_parallelism : int
        The table's.
    allow_unclaimed_state : bool
        Whether states that the table does not have are dropped.

    Returns
    -------
    list of int
        The table's column of each of the file's states, -1 for those to drop.

    Raises
    ------
    SchemaError
        The key, the number of key groups or a state's type differs. `UnclaimedStateError` for
        states that the table does not have.
    """
    schema, info = file_schema(reader), FileInfo(*reader.info())
    theirs, ours = [name for name, _ in schema.keys], [name for name, _ in key]
    reordered = theirs != ours and sorted(theirs) == sorted(ours)
    if [t for _, t in schema.keys] != [_stored(t) for _, t in key] or reordered:
        raise SchemaError(
            f"{reader.name}: its key is ({describe(schema.keys)}), the declared one "
            f"({describe(key)}); a key changes only by an offline rewrite"
        )
    if info.max_parallelism != max_parallelism:
        raise SchemaError(
            f"{reader.name}: it has {info.max_parallelism} key groups, the backend "
            f"{max_parallelism}: pass max_parallelism={info.max_parallelism}"
        )
    unclaimed = [name for name, _ in schema.states if name not in states]
    if unclaimed and not allow_unclaimed_state:
        raise UnclaimedStateError(
            f"{reader.name}: nothing declares the state {', '.join(map(repr, unclaimed))} that "
            "it holds; declare it, or pass allow_unclaimed_state=True to drop it"
        )
    positions = {name: i for i, name in enumerate(states)}
    for name, type_ in schema.states:
        if name in states and _stored(states[name]) != type_:
            raise SchemaError(
                f"{reader.name}: state {name!r} is {type_.ddl} there and declared as "
                f"{states[name].ddl}"
            )
    return [positions.get(name, -1) for name, _ in schema.states]


def _stored(type_: StateType) -> StateType:
    # Files do not tell the two kinds of timestamps apart.
    return StateType("timestamp") if type_.name == "timestamp_ntz" else type_
