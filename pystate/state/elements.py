"""The common base of the handles of lists and maps.

Thread safety: a handle belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from pystate._core import core
from pystate.errors import WrongTypeError
from pystate.state.handle import StateHandle
from pystate.state.key_batch import KeyBatch
from pystate.state.method_hints import Named
from pystate.state.objects import pickled, unpickled
from pystate.types.arrays import check_rows, encoded, reference
from pystate.types.state_type import StateType


class Elements(Named, StateHandle, core.CollectionHandle):
    """Base of the handles of lists and maps."""

    def __init__(
        self,
        table: core.Table,
        column: int,
        name: str,
        type: StateType,
        codec: core.Codec,
        map_codec: core.Codec | None,
    ) -> None:
        self.name = name
        self.type = type
        self._pickles = type.is_object
        super().__init__(table, column, codec, map_codec)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Whether there is any element, as with Python's lists and dicts."""
        return self.count() > 0

    def clear_all(self, keys: KeyBatch) -> None:
        """Remove all elements of the keys. A key whose last state is cleared ceases to exist."""
        self._checked(keys).clear(self.column)

    def _packed(self, value: Any) -> Any:
        return pickled(self.name, value) if self._pickles else value

    def _unpacked(self, values: list[Any]) -> list[Any]:
        if not self._pickles:
            return values
        return [None if v is None else unpickled(self.name, v) for v in values]

    def _column_of(
        self, values: Any, type: StateType, codec: core.Codec, what: str
    ) -> pa.Array[Any]:
        if type.is_object:
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise WrongTypeError(f"{what}: objects come as a sequence, got {values!r:.80}")
            # None stays a null, which a map takes as a value; elsewhere the core names its row.
            values = [None if value is None else pickled(self.name, value) for value in values]
            values = pa.array(values, pa.binary())
        return encoded(values, type, codec, what)

    def _reference(
        self, keys: KeyBatch, values: Any, type: StateType, codec: core.Codec, what: str
    ) -> core.ArrayRef:
        array = self._column_of(values, type, codec, what)
        check_rows(array, len(keys), what)
        return reference(array, type)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
