"""Merges the many small files of short epochs into a few large ones.

Rows of several epochs are moved into the folder of the last of them. All folders of an output
change at once: the output's folder is exchanged, in one step of the file system, for another one
that holds links to the files that stay, and the merged files.

Thread safety: any thread and process; one compaction of a folder at a time.

Invariants
----------
1. At each moment, whatever is killed, the output's folder holds each published row once. Leftovers
   lie beside it, under a hidden name, and the next compaction removes them.
2. A reader that lists the folder before the exchange and opens files after it does not find them,
   and fails: a merged file never has the name of an old one, and the folder that holds it is one
   that had files before.
3. The newest epoch is not compacted, because its commit may be repeated; nor are staged files.
4. The folder is not exchanged while a job has an epoch open that writes to it.
5. The exchange comes after the merged files are durable and hold as many rows as the old ones.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pystate.checkpoint.storage import sync_path
from pystate.errors import CheckpointError
from pystate.spark.base.environment import local_uri
from pystate.spark.base.frame_columns import column_named
from pystate.spark.base.parquet_format import write_parquet
from pystate.spark.sinks.columns import ROW_METADATA
from pystate.spark.sinks.folders import (
    LOCK,
    copy_owner,
    data_files,
    encode_note,
    exchange,
    exclusive_lock,
    link,
    link_tree,
    read_note,
    sync_tree,
)
from pystate.spark.sinks.partitioning import Layout, read_layout, with_types

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData
    from pyspark.sql import DataFrame, SparkSession


_COMPACTED = "_compacted.json"
#: The lock of the running compaction.
_MUTEX = "_compacting"
_NOT_NULL = re.compile(r'("(?:nullable|containsNull|valueContainsNull)":)false')


class Compaction(NamedTuple):
    """The result of a compaction."""

    epochs: int
    """Number of epochs whose rows lie in other files now."""
    files_before: int
    """Number of files that held these rows before."""
    files_after: int
    """Number of files that hold them now."""


class CompactedEpochs:
    """Which epochs lie in the folders of other epochs.

    `groups` has for the epoch of each merged folder all epochs in it, ascending, with its own.
    """

    def __init__(self, groups: dict[int, list[int]]) -> None:
        self.groups = groups
        self._into = {epoch: into for into, epochs in groups.items() for epoch in epochs}

    def into(self, epoch: int) -> int | None:
        """The epoch in whose folder an epoch's rows lie together with others."""
        return self._into.get(epoch)

    def members(self, epoch: int) -> list[int]:
        """The epochs whose rows lie in the folder of `epoch`."""
        return self.groups.get(epoch, [epoch])

    def encode(self) -> str:
        """The text form, with spans for consecutive numbers."""
        spans: dict[str, list[list[int]]] = {}
        for into, epochs in self.groups.items():
            mine = spans[str(into)] = []
            for epoch in epochs:
                if mine and mine[-1][1] == epoch - 1:
                    mine[-1][1] = epoch
                else:
                    mine.append([epoch, epoch])
        return encode_note("epochs", spans)


def read_compacted(root: str) -> CompactedEpochs:
    """Read which epochs of an output lie in the folders of others."""
    try:
        spans = read_note(os.path.join(root, _COMPACTED), "epochs")
    except FileNotFoundError:
        return CompactedEpochs({})
    return CompactedEpochs(
        {
            int(into): [epoch for first, last in mine for epoch in range(first, last + 1)]
            for into, mine in spans.items()
        }
    )


@dataclass
class _Group:
    """Epochs to merge into one folder."""

    files: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    kind: Any = None
    rows: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(size for files in self.files.values() for _, size in files)

    @property
    def number_of_files(self) -> int:
        return sum(map(len, self.files.values()))

    @property
    def into(self) -> int:
        """The last one with files: if the others are gone, a reader must find this one changed."""
        return max(epoch for epoch, files in self.files.items() if files)

    def is_worth_it(self, target_bytes: int) -> bool:
        folders = {name.rpartition("/")[0] for files in self.files.values() for name, _ in files}
        least = max(len(folders), math.ceil(self.size_bytes / target_bytes))
        return 0 < least < self.number_of_files


def compact_folder(
    path: str, epochs: Sequence[int], session: SparkSession, *, target_bytes: int, wait_s: float
) -> Compaction:
    """Merge the files of some epochs of an output; see `ParquetSink.compact`."""
    root = os.path.realpath(path)
    parent, name = os.path.split(root)
    prefix = f".{name}.compacting-"
    busy = f"{root} is being compacted already, by this process or another one"
    with exclusive_lock(root, _MUTEX, 0, busy):
        _sweep(parent, prefix)
        _check_exchange(root, parent, prefix)
        layout = read_layout(root) or ()
        groups = list(_plan(root, epochs, layout, target_bytes))
        if not groups:
            return Compaction(0, 0, 0)
        new = os.path.join(parent, f"{prefix}{uuid.uuid4().hex}")
        os.mkdir(new)
        try:
            after = sum(_merge(root, new, group, layout, session, target_bytes) for group in groups)
            in_epoch = (
                f"{root} was in use for {wait_s:g} s, by a job that has an epoch open: compact "
                "between epochs, in on_epoch for example, or wait longer, wait=..."
            )
            with exclusive_lock(root, LOCK, wait_s, in_epoch):
                try:
                    _complete(root, new, groups, layout)
                    exchange(root, new)
                except OSError as error:
                    raise CheckpointError(
                        f"{root} cannot be compacted, and nothing was changed: {error}"
                    ) from error
                sync_path(parent)
        finally:
            # Either the unfinished new folder, or the old folder of the output.
            shutil.rmtree(new, ignore_errors=True)
    before = sum(group.number_of_files for group in groups)
    return Compaction(sum(len(group.files) for group in groups), before, after)


def _sweep(parent: str, prefix: str) -> None:
    for name in os.listdir(parent):
        if name.startswith(prefix):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def _check_exchange(root: str, parent: str, prefix: str) -> None:
    """Refuse, before any work, a folder that could not be exchanged after it."""
    if os.path.ismount(root):
        raise CheckpointError(
            f"{root} is where a file system is mounted, and cannot be exchanged for another "
            "folder: write to a folder within it"
        )
    probes = [os.path.join(parent, f"{prefix}probe{i}") for i in range(2)]
    try:
        for probe in probes:
            os.mkdir(probe)
        exchange(*probes)
    except OSError as error:
        raise CheckpointError(
            f"{root} cannot be compacted: {error.strerror} ({error.filename}): it takes a folder "
            "above that may be written to, on a file system that can exchange two folders in one "
            "step (renameat2), as ext4, XFS, Btrfs and tmpfs can; otherwise a reader could see "
            "rows twice, or not at all"
        ) from error
    finally:
        for probe in probes:
            with suppress(OSError):
                os.rmdir(probe)


def _plan(root: str, epochs: Iterable[int], layout: Layout, target_bytes: int) -> Iterator[_Group]:
    """Group consecutive epochs that have one schema, up to a size."""
    from pyarrow.parquet import read_metadata

    group = _Group()
    for epoch in epochs:
        folder = os.path.join(root, f"epoch={epoch}")
        files = data_files(folder, len(layout)) or []
        kinds, rows = set(), 0
        for name, _ in files:
            metadata = read_metadata(os.path.join(folder, name))
            kinds.add(_kind(metadata))
            rows += metadata.num_rows
        kind = kinds.pop() if len(kinds) == 1 else None
        size = sum(size for _, size in files)
        fits = not files or group.kind in (None, kind)
        if kinds or not fits or (group.files and group.size_bytes + size > target_bytes):
            if group.is_worth_it(target_bytes):
                yield group
            group = _Group()
        if kinds:
            continue  # files of several schemas, which no single merged file can replace
        group.files[epoch] = files
        group.kind = group.kind if kind is None else kind
        group.rows += rows
    if group.is_worth_it(target_bytes):
        yield group


def _kind(metadata: FileMetaData) -> tuple[str, str]:
    """The properties that are equal in files whose rows have one schema for a reader.

    Nullability is ignored: Spark takes all columns that it reads from files as nullable, and writes
    them as such.
    """
    # The text's first line is about the Python object.
    schema = str(metadata.schema).partition("\n")[2].replace("required ", "optional ")
    of_spark = (metadata.metadata or {}).get(ROW_METADATA, b"").decode()
    return schema, _NOT_NULL.sub(r"\1true", of_spark)


def _merge(
    root: str, new: str, group: _Group, layout: Layout, session: SparkSession, target_bytes: int
) -> int:
    """Write the files of a group into the new folder; return how many there are."""
    from pyarrow.parquet import read_metadata

    number = max(1, math.ceil(group.size_bytes / target_bytes))
    frame = _rows(root, group, layout, session)
    columns = [name for name, _ in layout]
    if columns:
        frame = frame.repartition(*(column_named(name) for name in columns))
    else:
        frame = frame.coalesce(number)
    folder = os.path.join(new, f"epoch={group.into}")
    written = write_parquet(frame, local_uri(folder), columns)
    files = data_files(folder, len(layout)) or []
    merged = sum(read_metadata(os.path.join(folder, name)).num_rows for name, _ in files)
    if not written.rows == merged == group.rows:
        raise CheckpointError(
            f"compacting {root}: {group.number_of_files} files hold {group.rows} rows, and the "
            f"merged ones {merged} of {written.rows} that were written: nothing was changed; look "
            "for spark.sql.files.ignoreMissingFiles and ignoreCorruptFiles"
        )
    for name, _ in files:
        sync_path(os.path.join(folder, name))
    return len(files)


def _rows(root: str, group: _Group, layout: Layout, session: SparkSession) -> DataFrame:
    """The rows of a group, without the column of their epoch."""
    folders = [
        local_uri(os.path.join(root, f"epoch={epoch}"), to_read=True)
        for epoch, files in group.files.items()
        if files
    ]
    reader = session.read.option("mergeSchema", "false")
    if not layout:
        return reader.parquet(*folders)
    reader = reader.option("basePath", local_uri(root))
    schema = with_types(reader.parquet(*folders).schema, layout)
    return reader.schema(schema).parquet(*folders).drop("epoch")


def _complete(root: str, new: str, groups: Sequence[_Group], layout: Layout) -> None:
    """Add all files that stay to the new folder, and make it durable."""
    merged: set[str] = set()
    known = dict(read_compacted(root).groups)
    for group in groups:
        for epoch, files in group.files.items():
            folder = f"epoch={epoch}"
            if (data_files(os.path.join(root, folder), len(layout)) or []) != files:
                raise CheckpointError(
                    f"{os.path.join(root, folder)} has changed while it was compacted; nothing "
                    "else was changed: look for what writes to it, and try again"
                )
            merged.add(folder)
        members = [epoch for each in group.files for epoch in known.pop(each, [each])]
        known[group.into] = sorted(members)
    with os.scandir(root) as entries:
        for entry in entries:
            target = os.path.join(new, entry.name)
            if entry.name in merged or entry.name == _COMPACTED:
                continue
            if entry.is_dir(follow_symlinks=False):
                link_tree(entry.path, target)
            else:
                link(entry.path, target)
    path = os.path.join(new, _COMPACTED)
    with open(path, "x", encoding="utf-8") as file:
        file.write(CompactedEpochs(known).encode())
    sync_path(path)
    sync_tree(new)
    copy_owner(root, new)
