"""The tables of a harness: one for each range of key groups, as a job's tasks have them.

Thread safety: all objects belong to one thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.backend.keyed import KeyedStateBackend, merge_files, range_bounds
from pystate.errors import InvalidArgumentError
from pystate.functions.context import TimeDomain
from pystate.state.operator_spec import OperatorSpec, declared_fills
from pystate.types.arrays import as_array, hash_keys, key_groups
from pystate.types.keys import key_columns

__all__ = ["RangeTable", "RangeTables"]


@dataclass
class RangeTable:
    """One task's range of key groups: its table, and the files that its epochs wrote."""

    first: int
    last: int
    backend: KeyedStateBackend
    files: list[bytes] = field(default_factory=list)


class RangeTables:
    """All tables of an operator.

    Parameters
    ----------
    operator : OperatorSpec
        The operator.
    parallelism : int
        Number of ranges.
    """

    def __init__(self, operator: OperatorSpec, parallelism: int) -> None:
        self.key = operator.key
        self._max_parallelism = max_parallelism = operator.max_parallelism
        self._ranges = []
        for index in range(parallelism):
            first, last = range_bounds(index, max_parallelism, parallelism)
            backend = KeyedStateBackend.of(operator, (first, last))
            backend.open()
            self._ranges.append(RangeTable(first, last, backend))

    def __iter__(self) -> Iterator[RangeTable]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def shares(
        self, rows: pa.RecordBatch | None
    ) -> Iterator[tuple[RangeTable, pa.RecordBatch | None]]:
        """Every range with its part of the rows."""
        if rows is None or len(self._ranges) == 1:
            for share in self._ranges:
                yield share, rows
            return
        owners = self._owners(key_columns(self.key, rows))
        for index, share in enumerate(self._ranges):
            own = np.flatnonzero(owners == index).astype(np.int64)
            yield share, rows.take(pa.array(own, pa.int64())) if len(own) else None

    def find(self, key: Any) -> RangeTable:
        """The range of one key, which is a tuple if it has several columns."""
        values = (key,) if len(self.key) == 1 else key
        if not isinstance(values, tuple) or len(values) != len(self.key):
            names = ", ".join(name for name, _ in self.key)
            raise InvalidArgumentError(f"the key {key!r:.80} is no tuple of {names}")
        return self._ranges[int(self._owners([[value] for value in values])[0])]

    def look(self, name: str, key: Any, namespace: Any) -> Any:
        """One state of one key, as a Python value; nothing is changed."""
        backend: Any = self.find(key).backend
        backend.set_current_key(key)
        try:
            if namespace is not None or backend.namespace is not None:
                backend.set_current_namespace(namespace)
            handle = backend[name]
            if hasattr(handle, "value"):
                return handle.value()
            if hasattr(handle, "items"):
                return dict(handle.items())
            found = handle.get()
            return list(found) if isinstance(found, Iterator) else found
        finally:
            backend.rollback()

    def next_timer(self, domain: TimeDomain) -> int | None:
        """When the earliest timer is due, in milliseconds since 1970."""
        due = [share.backend.next_timer(domain) for share in self._ranges]
        return min((time_ms for time_ms in due if time_ms is not None), default=None)

    def _owners(self, columns: Iterable[Any]) -> np.ndarray[Any, Any]:
        arrays = [
            as_array(column, type_, f"key column {name!r}")
            for (name, type_), column in zip(self.key, columns, strict=True)
        ]
        groups = key_groups(hash_keys(arrays), self._max_parallelism).astype(np.int64)
        owners: np.ndarray[Any, Any] = groups * len(self._ranges) // self._max_parallelism
        return owners

    @contextmanager
    def epoch(self, sealed: Callable[[], None]) -> Iterator[None]:
        """Seal all tables when the block ends, or roll all of them back if anything fails.

        Parameters
        ----------
        sealed : callable
            Called when the tables are sealed; it may still fail.
        """
        done: list[RangeTable] = []
        files = []
        try:
            yield
            for share in self._ranges:
                share.backend.expire()
                if share.backend.dirty:
                    out = io.BytesIO()
                    with share.backend.seal() as snapshot:
                        done.append(share)
                        snapshot.write(out)
                    files.append((share, out.getvalue()))
                else:
                    share.backend.end_idle_epoch()
            sealed()
        except BaseException:
            for share in self._ranges:
                share.backend.rollback(1 if share in done else 0)
            raise
        for share, data in files:
            share.files.append(data)

    def files(self) -> tuple[bytes, ...]:
        """The state as of the last epoch: one file for each range that has state."""
        for share in self._ranges:
            if len(share.files) > 1:
                out = io.BytesIO()
                since = declared_fills(share.backend.declarations)
                merge_files([io.BytesIO(data) for data in share.files], out, since=since)
                share.files = [out.getvalue()]
        return tuple(data for share in self._ranges for data in share.files)

    def restore(self, files: Iterable[bytes], allow_unclaimed_state: bool) -> None:
        """Fill the tables, which must be empty, from files of any ranges."""
        files = list(files)
        for share in self._ranges:
            share.backend.restore(
                [io.BytesIO(data) for data in files], allow_unclaimed_state=allow_unclaimed_state
            )
            out = io.BytesIO()
            if files:
                merge_files(
                    [io.BytesIO(data) for data in files],
                    out,
                    first_key_group=share.first,
                    last_key_group=share.last,
                )
                share.files = [out.getvalue()]

    def close(self) -> None:
        """Free all tables."""
        for share in self._ranges:
            share.backend.close()
