"""Fills a backend: with a range of one file, a base and its deltas, or another backend's rows.

Thread safety: as the backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pystate._core import core
from pystate.base.arguments import shown
from pystate.checkpoint.state_files import (
    FileIdentity,
    FileInfo,
    Lineage,
    Source,
    claim,
    file_schema,
    open_file,
)
from pystate.errors import InvalidArgumentError, SchemaError, StateOverflowError
from pystate.state.evolution import column_change, hints
from pystate.state.operator_spec import declared_fills
from pystate.tables.table import BackendTable

__all__ = ["BackendFiles"]


class BackendFiles(BackendTable):
    """The part of `KeyedStateBackend` that reads files."""

    def load(
        self,
        source: Source,
        *,
        first_key_group: int | None = None,
        last_key_group: int | None = None,
        expected: FileIdentity | None = None,
        allow_unclaimed_state: bool = False,
        since: Mapping[str, int] = MappingProxyType({}),
    ) -> int:
        """Apply a key-group range of one file to the open epoch.

        Parameters
        ----------
        source : path or binary file object
            A delta or base file.
        first_key_group, last_key_group : int, optional
            Inclusive; by default the backend's range. Other blocks are not read.
        expected : FileInfo, optional
            The expected content of the file.
        allow_unclaimed_state : bool
            Whether states that are not declared are dropped.
        since : mapping of str to int, optional
            For some states the epoch from which on files count: an older state of that name was
            dropped.

        Returns
        -------
        int
            Records applied.

        Raises
        ------
        CorruptFileError, NewerFormatError, CheckpointError
            The file cannot be read. The open epoch must then be rolled back.
        SchemaError, UnclaimedStateError
            The file's key or states are not the backend's; nothing was applied.
        StateOverflowError
            A stored value is out of the range of the type that its state has now, such as a date of
            the year 300 000 as a timestamp. The open epoch must then be rolled back.
        """
        self.open()
        first, last = self.key_group_range
        first = first if first_key_group is None else first_key_group
        last = last if last_key_group is None else last_key_group
        with open_file(source, expected) as opened:
            reader = opened.reader
            columns = claim(
                reader,
                self.key,
                self.namespace,
                self._states.columns,
                self.max_parallelism,
                allow_unclaimed_state,
                since,
            )
            info = FileInfo(*reader.info())
            # For a part of a file only its blocks are read, each of which has its own checksum.
            if expected and first <= info.first_key_group and info.last_key_group <= last:
                opened.check(expected)
            try:
                return self._table.load(reader, first, last, columns)
            except StateOverflowError:
                raise StateOverflowError(
                    f"{opened.name}: it has a value that does not fit the type of which its state "
                    "is declared now; the former declaration reads it"
                ) from None

    def copy_from(self, other: BackendTable, first_key_group: int, last_key_group: int) -> int:
        """Put the rows and timers of some key groups of another table into the open epoch.

        Parameters
        ----------
        other : KeyedStateBackend
            A table of the same declarations, in which nothing is unsealed.
        first_key_group, last_key_group : int
            Inclusive; both tables have them, and this one has no key of them yet.

        Returns
        -------
        int
            Records copied.

        Raises
        ------
        InvalidArgumentError
            A table does not have the key groups, or `other` has an open epoch.
        SchemaError
            The tables' states differ.
        MemoryLimitError, NoSpaceError
            There is no room. The open epoch must then be rolled back.
        """
        self.open()
        other.open()
        return core.copy_rows(other._table, self._table, first_key_group, last_key_group)

    def restore(
        self,
        files: Iterable[Source],
        lineage: Lineage | None = None,
        *,
        expected: Iterable[FileIdentity] | None = None,
        allow_unclaimed_state: bool = False,
    ) -> int:
        """Fill an empty table from files and seal it.

        Parameters
        ----------
        files : iterable of path or binary file object
            A base and the deltas after it, oldest first; only the backend's range of each is read.
        lineage : Lineage, optional
            The lineage that the table gets; by default the last file's.
        expected : iterable of FileInfo, optional
            The expected content of each file, by whoever has compared the declared states with the
            stored ones. Without it, fields of structs that seem to be renamed are refused here.
        allow_unclaimed_state : bool
            Whether states that are not declared are dropped, and what seems renamed.

        Returns
        -------
        int
            Records applied.

        Raises
        ------
        InvalidArgumentError
            The table is not empty.
        CorruptFileError, NewerFormatError, CheckpointError, SchemaError, UnclaimedStateError
            As for `load`; the table is empty again.
        """
        self.open()
        if self.dirty or len(self):
            raise InvalidArgumentError("restore fills an empty table; this one has state")
        rows, last = 0, lineage
        if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
            raise InvalidArgumentError(f"restore takes a list of state files, not {shown(files)}")
        files = list(files)
        identities = [None] * len(files) if expected is None else list(expected)
        if files and expected is None:
            self._refuse_renames(files[-1], allow_unclaimed_state)
        since = declared_fills(self.declarations)
        try:
            for source, identity in zip(files, identities, strict=True):
                rows += self.load(
                    source,
                    expected=identity,
                    allow_unclaimed_state=allow_unclaimed_state,
                    since=since,
                )
            if lineage is None and files:
                with open_file(files[-1]) as opened:
                    last = Lineage(*opened.reader.lineage())
            if last is not None:
                self._seal(last, wanted=False)
        except BaseException:
            self._table.rollback(0)
            raise
        return rows

    def _refuse_renames(self, source: Source, allow_unclaimed_state: bool) -> None:
        declared = {column.name: column for column in self._states.columns}
        with open_file(source) as opened:
            stored = file_schema(opened.reader).states
            for column in stored:
                if column.name not in declared:
                    continue
                change = column_change(column, declared[column.name])
                wrong = hints(change, allow_unclaimed_state)
                if wrong:
                    raise SchemaError(
                        f"{opened.reader.name}: state {column.name!r} is {column.describe()} there "
                        f"and declared as {declared[column.name].describe()}: {wrong}"
                    )
