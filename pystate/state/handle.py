"""What handles have in common: one state of the current key, or of a batch of keys.

Thread safety: a handle belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from pystate._core import core
from pystate.errors import InvalidArgumentError
from pystate.state.key_batch import KeyBatch, checked_batch
from pystate.state.ttl import StateTtl

#: Stands for an argument that was left out.
MISSING: Any = type("Missing", (), {"__slots__": (), "__repr__": lambda _: "<missing>"})()


class Objects(Protocol):
    """Python objects that a handle keeps until they are pickled, by the end of the epoch."""

    ttl: StateTtl | None
    """How they expire. The registry says it: an aggregate keeps its objects in another's handle."""

    @property
    def dirty(self) -> bool:
        """Whether any wait to be pickled."""

    def flush(self, make_batch: Callable[[list[Any]], KeyBatch]) -> None:
        """Pickle what was updated and write it to the core."""

    def forget(self, keys: KeyBatch) -> None:
        """Drop the objects of keys that were deleted."""

    def discard(self) -> None:
        """Drop everything that is kept; what was not flushed is lost."""


class StateHandle:
    """What a backend needs of every handle."""

    name: str
    table: core.Table
    column: int

    @property
    def objects(self) -> Objects | None:
        """The Python objects that it keeps, if any."""
        return None

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' states as a column of the declaration's `arrow_type`, without defaults.

        Objects are in pickled form.
        """
        raise NotImplementedError

    def _checked(self, keys: KeyBatch) -> KeyBatch:
        """The batch, if it is one of the table's."""
        return checked_batch(keys, self.table, self.name)


def for_batches(what: str, method: str, instead: str) -> InvalidArgumentError:
    """The error to raise if a method for batches is called as if it were for the current key."""
    return InvalidArgumentError(
        f"{what}: {method} is for a batch of keys; of the current key write {instead}"
    )
