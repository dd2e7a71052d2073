"""State files, which a snapshot writes and a restore reads, and how several become one.

A file is named by a path, or is an open binary file object. Thread safety: one thread at a time per
file object; the functions have no state.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, Protocol, TypeAlias

from pystate._core import core
from pystate.base.arguments import choice, integer, mapping, shown
from pystate.base.memory import process_budget
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    SchemaError,
    SwappedFileError,
    UnclaimedStateError,
)
from pystate.state.columns import ELEMENT, LIST, MAP, TIMERS, VALUE, Column
from pystate.state.evolution import ColumnChange, column_change, evolve_reader, refusal
from pystate.state.expiring import Expiring
from pystate.types.fills import fill_of
from pystate.types.keys import KeyColumns, describe
from pystate.types.state_type import StateType

Source: TypeAlias = "str | os.PathLike[str] | BinaryIO"


class Lineage(NamedTuple):
    """The name of a sealed epoch, which is more than its number.

    Attributes
    ----------
    id : bytes
        16 bytes, unique to the attempt that sealed it; its delta file has the same id.
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
        """A new lineage for the next epoch, whose parent is this one."""
        return Lineage(os.urandom(16), self.id, self.epoch + 1, self.query)


#: How large a block of a file with a guide may be, before compression.
LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES = 4096, 65536
_ALWAYS: Mapping[str, int] = MappingProxyType({})

#: The lineage of a table that was never sealed.
EMPTY_LINEAGE = Lineage(bytes(16), bytes(16), 0, 0)


class FileInfo(NamedTuple):
    """A state file's description of itself; the fields are those of the file format."""

    kind: str
    """``"delta"`` or ``"base"``."""
    id: str
    """The lineage id, hexadecimal."""
    parent: str
    """The id of the epoch that it was built on, hexadecimal."""
    epoch: int
    """The epoch's number."""
    max_parallelism: int
    """Number of key groups of the whole state."""
    first_key_group: int
    """First key group of the file's range."""
    last_key_group: int
    """Last key group of the file's range, inclusive."""
    rows: int
    """Records that store something."""
    tombstones: int
    """Records that delete a key."""
    raw_bytes: int
    """Bytes of the data blocks before compression."""
    file_bytes: int
    """Size of the file."""
    checksum: int
    """XXH64 of the whole file; 0 if the file was only opened."""
    block_bytes: int = 0
    """Of a file with a guide, in which rows are found one by one: the size of its blocks, before
    compression; 0 of all others."""


class FileIdentity(Protocol):
    """The expected properties of a file: a `FileInfo`, or a manifest's entry.

    An entry's key groups are those for which the file counts.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def first_key_group(self) -> int: ...  # noqa: D102
    @property
    def last_key_group(self) -> int: ...  # noqa: D102
    @property
    def file_bytes(self) -> int: ...  # noqa: D102
    @property
    def checksum(self) -> int: ...  # noqa: D102


class FileSchema(NamedTuple):
    """A file's columns: those of the key and namespace, and of the states, with hidden ones."""

    keys: tuple[Column, ...]
    states: tuple[Column, ...]
    hashed: int

    @property
    def key(self) -> tuple[tuple[str, StateType], ...]:
        """The key columns by name."""
        return tuple((c.name, c.value_type) for c in self.keys[: self.hashed])

    @property
    def namespace(self) -> StateType | None:
        """The type of namespaces."""
        rest = [c for c in self.keys[self.hashed :] if c.name != ELEMENT]
        return rest[0].value_type if rest else None


class OpenFile:
    """An open state file: its `reader`, and the means to read it as a whole."""

    def __init__(self, name: str, size_bytes: int, descriptor: int, file: BinaryIO | None) -> None:
        self.name = name
        self._place = (name, size_bytes, descriptor, file)
        self.reader = core.FileReader(name, size_bytes, descriptor, file, process_budget())

    def checksum(self) -> int:
        """The XXH64 of the whole file, which is read from end to end."""
        return core.file_checksum(*self._place)

    def check(self, expected: FileIdentity) -> None:
        """Compare the whole file with the checksum that it was written with."""
        actual = self.checksum()
        if actual != expected.checksum:
            raise CorruptFileError(
                f"{self._place[0]}: corrupt: the checksum of the whole file is {actual:016x}, and "
                f"{expected.checksum:016x} when it was written"
            )


@contextmanager
def open_file(source: Source, expected: FileIdentity | None = None) -> Iterator[OpenFile]:
    """Open a state file; header, schema and index are verified.

    A file object is read by its descriptor if it is one of `open`, else by ``seek`` and
    ``readinto``. `CorruptFileError` if it is another file than expected, too; `CheckpointError` if
    there is none.
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
        elif not callable(getattr(source, "readinto", None)):
            raise InvalidArgumentError(
                f"a state file is a path or a binary file object, not {shown(source)}"
            )
        else:
            name = str(getattr(source, "name", source))
            # A plain file is read by its descriptor, without the GIL.
            plain = type(source) in (io.FileIO, io.BufferedReader)
            descriptor, file = source.fileno() if plain else -1, source
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


def is_expected(info: FileInfo, expected: FileIdentity) -> bool:
    """Whether a file is the expected one, as far as it tells by itself."""
    fields = ("kind", "id", "epoch", "file_bytes")
    return all(getattr(info, field) == getattr(expected, field) for field in fields)


def _check_identity(name: str, info: FileInfo, expected: FileIdentity) -> None:
    for field in ("kind", "id", "epoch"):
        ours, theirs = getattr(expected, field), getattr(info, field)
        if ours != theirs:
            raise SwappedFileError(
                f"{name}: it is another file than the manifest names: its {field} is {theirs}, "
                f"not {ours}"
            )


def file_schema(reader: core.FileReader) -> FileSchema:
    """The columns of an open file."""
    keys, states, hashed = reader.schema()
    return FileSchema(tuple(Column(*c) for c in keys), tuple(Column(*c) for c in states), hashed)


def verify_file(source: Source, expected: FileIdentity | None = None) -> FileInfo:
    """Read a state file from end to end and check every block.

    Parameters
    ----------
    source : path or binary file object
        The file.
    expected : FileInfo, optional
        The expected properties of the file.

    Returns
    -------
    FileInfo

    Raises
    ------
    CorruptFileError, NewerFormatError, CheckpointError
        As for `open_file`; the message names the file and, if it is known, the byte.
    """
    if expected is not None and not hasattr(expected, "file_bytes"):
        raise InvalidArgumentError(f"verify_file: expected is a FileInfo, not {shown(expected)}")
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


def check_key(
    name: str, schema: FileSchema, key: KeyColumns, namespace: StateType | None, whose: str
) -> None:
    """Raise `SchemaError` where a file's key, or its namespaces, are others than `whose`."""
    ours = [_stored_type(t) for _, t in key]
    theirs = [t for _, t in schema.key]
    names, others = [n for n, _ in schema.key], [n for n, _ in key]
    reordered = names != others and sorted(names) == sorted(others)
    if theirs != ours or reordered:
        raise SchemaError(
            f"{name}: its key is ({describe(schema.key)}), {whose} ({describe(key)}); a key "
            "changes only by an offline rewrite, ps.read_state and ps.write_state"
        )
    space = None if namespace is None else _stored_type(namespace)
    if schema.namespace != space:
        raise SchemaError(
            f"{name}: its namespaces are {_type_text(schema.namespace)}, {whose} "
            f"{_type_text(space)}; they are a part of the key, which changes only by an offline "
            "rewrite, ps.read_state and ps.write_state"
        )


def _type_text(namespace: StateType | None) -> str:
    return "none" if namespace is None else namespace.ddl


def claim(
    reader: core.FileReader,
    key: KeyColumns,
    namespace: StateType | None,
    columns: Sequence[Column],
    max_parallelism: int,
    allow_unclaimed_state: bool,
    since: Mapping[str, int] = _ALWAYS,
) -> list[int]:
    """Match a file's states by name to a table's columns, and have it read as they are declared.

    Returned is for each column of the file the table's column; -1 for columns to drop. `since` is
    as for `merge_files`. `SchemaError` if the key, the number of key groups or a state's type
    differs; `UnclaimedStateError` for states that the table does not have, unless they may be
    dropped.
    """
    schema, info = file_schema(reader), FileInfo(*reader.info())
    check_key(reader.name, schema, key, namespace, "the declared one")
    if info.max_parallelism != max_parallelism:
        raise SchemaError(
            f"{reader.name}: it has {info.max_parallelism} key groups, the backend "
            f"{max_parallelism}: pass max_parallelism={info.max_parallelism}"
        )
    positions = {column.name: i for i, column in enumerate(columns)}
    counting = [c for c in schema.states if info.epoch >= since.get(c.owner, 0)]
    unclaimed = [c.name for c in counting if c.name not in positions and not c.is_hidden]
    kinds = {column.kind for column in columns}
    if any(c.kind == TIMERS for c in counting) and TIMERS not in kinds:
        unclaimed.append("timers")
    if unclaimed and not allow_unclaimed_state:
        raise UnclaimedStateError(
            f"{reader.name}: nothing declares the state {', '.join(map(repr, unclaimed))} that "
            "it holds; declare it, or pass allow_unclaimed_state=True to drop it"
        )
    mapping = [positions.get(c.name, -1) if c in counting else -1 for c in schema.states]
    read_as(
        reader,
        schema,
        mapping,
        columns,
        since,
        lambda old, new: (
            f"{reader.name}: state {old.name!r} is {old.describe()} there and declared as "
            f"{new.describe()}"
        ),
    )
    return mapping


def refuse_renames(source: Source, columns: Sequence[Column], allow_unclaimed_state: bool) -> None:
    """Raise `SchemaError` where fields of a file's structs seem to be renamed in the columns."""
    declared = {column.name: column for column in columns}
    with open_file(source) as opened:
        for stored in file_schema(opened.reader).states:
            if stored.name not in declared:
                continue
            now = declared[stored.name]
            wrong = refusal(column_change(stored, now), allow_unclaimed_state)
            if wrong:
                raise SchemaError(
                    f"{opened.reader.name}: state {stored.name!r} is {stored.describe()} there "
                    f"and declared as {now.describe()}: {wrong}"
                )


def read_as(
    reader: core.FileReader,
    schema: FileSchema,
    positions: Sequence[int],
    targets: Sequence[Column],
    since: Mapping[str, int],
    refusal: Callable[[Column, Column], str],
) -> None:
    """Have a file's columns read as the targets at their positions; at -1 they are dropped.

    `SchemaError` if one cannot become its target; it begins with what `refusal` says of the two.
    """
    epoch = FileInfo(*reader.info()).epoch
    changes = []
    for i, (column, at) in enumerate(zip(schema.states, positions, strict=True)):
        if at < 0:
            continue
        change = _change(column, targets[at], epoch, since)
        if change.types.refused:
            raise SchemaError(f"{refusal(column, targets[at])}: {change.types.refused[0]}")
        changes.append((i, change))
    evolve_reader(reader, changes)


def _change(old: Column, new: Column, epoch: int, since: Mapping[str, int]) -> ColumnChange:
    """How a column of a file of that epoch becomes another one."""
    if not since:
        return column_change(old, new)
    change = column_change(old, new, lambda path: epoch < since.get(f"{old.name}#{path}", 0))
    added = change.types.added
    if not added or new.kind != VALUE or change.types.refused:
        return change
    return replace(change, fill=fill_of(new.value_type, added, old.name, since))


def _stored_type(type_: StateType) -> StateType:
    # Files do not distinguish the two kinds of timestamps.
    return StateType("timestamp") if type_.name == "timestamp_ntz" else type_


# ---- merging ------------------------------------------------------------------------------------


def merge_files(
    sources: Sequence[Source],
    out: BinaryIO,
    *,
    lineage: Lineage | None = None,
    first_key_group: int | None = None,
    last_key_group: int | None = None,
    kind: str = "base",
    states: Collection[str] | None = None,
    since: Mapping[str, int] = MappingProxyType({}),
    max_parallelism: int | None = None,
    block_bytes: int | None = None,
    expiring: Expiring | None = None,
) -> FileInfo:
    """Merge state files into one, without a table and without the GIL.

    Parameters
    ----------
    sources : sequence of path or binary file object
        Oldest first.
    out : binary file object
        The new file is written to it; the caller makes it durable.
    lineage : Lineage, optional
        Lineage of the new file; by default that of the newest source, so that a table restored from
        it has the same lineage as one restored from the sources.
    first_key_group, last_key_group : int, optional
        The inclusive range to keep; by default the newest source's.
    kind : {"base", "delta"}
        A base has no tombstones and no cleared values.
    states : collection of str, optional
        Names of the states to keep, from any source that has them; by default the newest source's.
    since : mapping of str to int, optional
        For some states, or fields of their structs (``state#path``), the epoch from which on
        sources count: an older one of that name was dropped. Defaults of fields, too, as
        `pystate.types.fills.pin` gives them.
    max_parallelism : int, optional
        Number of key groups of the new file, a multiple of the sources' number n: their key group g
        is split into g, n + g, 2 n + g, and so on. The range to keep then lies between two
        multiples of n. By default the sources' number.
    block_bytes : int, optional
        The size of the new file's blocks, before compression: 4096 to 65536 for one with a guide,
        in which rows are found one by one, 0 for any other. By default the newest source's.
    expiring : Expiring, optional
        What a base leaves out, as it has expired. What has no time gets one. The deltas after such
        a base must be of tables that write changed rows whole, as those on disk do.

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
    A k-way merge, O(bytes read) in time, one block of each source in memory.
    """
    _check(sources, out, lineage, states)
    choice(kind, "merge_files: kind", ("base", "delta"))
    mapping(since, "merge_files: since", "{'counts': 3}")
    if expiring is not None and not isinstance(expiring, Expiring):
        raise InvalidArgumentError(f"merge_files: expiring is an Expiring, not {shown(expiring)}")
    for name, number in (
        ("first_key_group", first_key_group),
        ("last_key_group", last_key_group),
        ("max_parallelism", max_parallelism),
        ("block_bytes", block_bytes),
    ):
        if number is not None:
            integer(number, f"merge_files: {name}", least=0)
    with ExitStack() as stack:
        readers = [stack.enter_context(open_file(source)).reader for source in sources]
        schemas = [file_schema(reader) for reader in readers]
        infos = [FileInfo(*reader.info()) for reader in readers]
        newest = infos[-1]
        blocks = newest.block_bytes if block_bytes is None else block_bytes
        target = _merged_schema(schemas, infos, states, since, guided=blocks > 0)
        mappings = []
        for reader, schema, info in zip(readers, schemas, infos, strict=True):
            if info.max_parallelism != newest.max_parallelism:
                raise SchemaError(
                    f"{reader.name} has {info.max_parallelism} key groups, {readers[-1].name} "
                    f"{newest.max_parallelism}: files of one checkpoint have equally many"
                )
            taken = [
                (states is None or column.owner in states)
                and info.epoch >= since.get(column.owner, 0)
                for column in schema.states
            ]
            mappings.append(_positions(reader, schema, taken, readers[-1].name, target, since))
        chosen = Lineage(*readers[-1].lineage()) if lineage is None else lineage
        first = newest.first_key_group if first_key_group is None else first_key_group
        last = newest.last_key_group if last_key_group is None else last_key_group
        groups = newest.max_parallelism if max_parallelism is None else max_parallelism
        if groups % newest.max_parallelism or first // newest.max_parallelism != (
            last // newest.max_parallelism
        ):
            raise InvalidArgumentError(
                f"merge_files: {newest.max_parallelism} key groups cannot be split into the groups "
                f"{first} to {last} of {groups}: that is no multiple, or meets two parts of one"
            )
        if blocks and not LEAST_BLOCK_BYTES <= blocks <= MOST_BLOCK_BYTES:
            raise InvalidArgumentError(
                f"merge_files: block_bytes is 0, or {LEAST_BLOCK_BYTES} to {MOST_BLOCK_BYTES}, not "
                f"{blocks}"
            )
        result = core.merge(
            readers,
            mappings,
            core.Schema(target.keys, target.states, target.hashed),
            kind,
            *chosen,
            groups,
            first,
            last,
            out,
            str(getattr(out, "name", out)),
            process_budget(),
            blocks,
            None if expiring is None or kind == "delta" else expiring.among(target.states),
        )
        return FileInfo(*result)


def _check(sources: object, out: object, lineage: object, states: object) -> None:
    if isinstance(sources, (str, bytes)) or not isinstance(sources, Sequence):
        raise InvalidArgumentError(
            f"merge_files: sources is a list of state files, not {shown(sources)}"
        )
    if not sources:
        raise InvalidArgumentError("merge_files: sources has no file: there is nothing to merge")
    if not callable(getattr(out, "write", None)):
        raise InvalidArgumentError(f"merge_files: out is a binary file object, not {shown(out)}")
    if lineage is not None and not isinstance(lineage, Lineage):
        raise InvalidArgumentError(f"merge_files: lineage is a Lineage, not {shown(lineage)}")
    if states is not None and (isinstance(states, str) or not isinstance(states, Collection)):
        raise InvalidArgumentError(
            f"merge_files: states is a collection of names, not {shown(states)}"
        )


def _merged_schema(
    schemas: Sequence[FileSchema],
    infos: Sequence[FileInfo],
    states: Collection[str] | None,
    since: Mapping[str, int],
    *,
    guided: bool,
) -> FileSchema:
    found = _merged_columns(schemas, infos, states, since)
    # The column of elements stays in files that are read as a whole, as it always has. Tables that
    # look rows up have it only where some of their states have elements.
    has_elements = any(column.kind in (LIST, MAP, TIMERS) for column in found.states)
    if guided and found.keys[-1].name == ELEMENT and not has_elements:
        return found._replace(keys=found.keys[:-1])
    return found


def _merged_columns(
    schemas: Sequence[FileSchema],
    infos: Sequence[FileInfo],
    states: Collection[str] | None,
    since: Mapping[str, int],
) -> FileSchema:
    newest = schemas[-1]
    keys = next((s.keys for s in schemas if s.keys[-1].name == ELEMENT), newest.keys)
    if states is None:
        return FileSchema(keys, newest.states, newest.hashed)
    columns_of: dict[str, tuple[Column, ...]] = {}
    # The files of former ranges follow each other; epochs ascend only within one range.
    order = sorted(range(len(schemas)), key=lambda i: (infos[i].epoch, i), reverse=True)
    for i in order:
        for owner, columns in groupby(schemas[i].states, key=lambda column: column.owner):
            if owner in states and infos[i].epoch >= since.get(owner, 0):
                columns_of.setdefault(owner, tuple(columns))
    kept = tuple(column for columns in columns_of.values() for column in columns)
    # Rows without any column would still be kept for their keys, so they are dropped.
    return FileSchema(keys, kept or schemas[order[0]].states, newest.hashed)


def _positions(
    reader: core.FileReader,
    schema: FileSchema,
    taken: Sequence[bool],
    other: str,
    target: FileSchema,
    since: Mapping[str, int],
) -> list[int]:
    name = reader.name
    check_key(name, schema, target.key, target.namespace, f"that of {other}")
    places = {column.name: i for i, column in enumerate(target.states)}
    positions = [
        places.get(column.name, -1) if counts else -1
        for column, counts in zip(schema.states, taken, strict=True)
    ]
    read_as(
        reader,
        schema,
        positions,
        target.states,
        since,
        lambda old, new: (
            f"state {old.name!r} is {old.describe()} in {name} and {new.describe()} in {other}"
        ),
    )
    return positions
