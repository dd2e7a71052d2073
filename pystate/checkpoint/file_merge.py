"""Several state files become one.

Thread safety: functions over their arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from types import MappingProxyType
from typing import BinaryIO

from pystate._core import core
from pystate.base.arguments import choice, integer, mapping, shown
from pystate.base.memory import process_budget
from pystate.checkpoint.state_files import (
    FileInfo,
    FileSchema,
    Lineage,
    Source,
    check_key,
    file_schema,
    open_file,
    read_as,
)
from pystate.errors import InvalidArgumentError, SchemaError
from pystate.state.columns import ELEMENT, Column

__all__ = ["merge_files"]


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
    for name, number in (
        ("first_key_group", first_key_group),
        ("last_key_group", last_key_group),
        ("max_parallelism", max_parallelism),
    ):
        if number is not None:
            integer(number, f"merge_files: {name}", least=0)
    with ExitStack() as stack:
        readers = [stack.enter_context(open_file(source)).reader for source in sources]
        schemas = [file_schema(reader) for reader in readers]
        infos = [FileInfo(*reader.info()) for reader in readers]
        newest, target = infos[-1], _merged_schema(schemas, infos, states, since)
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
) -> FileSchema:
    newest = schemas[-1]
    # Without the column of elements a source that has it cannot be read.
    keys = next((s.keys for s in schemas if s.keys[-1].name == ELEMENT), newest.keys)
    if states is None:
        return FileSchema(keys, newest.states, newest.hashed)
    found: dict[str, tuple[Column, ...]] = {}
    # The files of former ranges follow each other; epochs ascend only within one range.
    order = sorted(range(len(schemas)), key=lambda i: (infos[i].epoch, i), reverse=True)
    for i in order:
        for owner, columns in groupby(schemas[i].states, key=lambda column: column.owner):
            if owner in states and infos[i].epoch >= since.get(owner, 0):
                found.setdefault(owner, tuple(columns))
    kept = tuple(column for columns in found.values() for column in columns)
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
    found = [
        places.get(column.name, -1) if counts else -1
        for column, counts in zip(schema.states, taken, strict=True)
    ]
    read_as(
        reader,
        schema,
        found,
        target.states,
        since,
        lambda old, new: (
            f"state {old.name!r} is {old.describe()} in {name} and {new.describe()} in {other}"
        ),
    )
    return found
