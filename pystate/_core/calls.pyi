from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from typing_extensions import Self, disjoint_base

from pystate._core.core import ArrayRef, Batch, DueTimers

def named_tuple(base: type[tuple[Any, ...]] = ...) -> Any: ...
def grouped(first: int, n: int, order: int) -> tuple[list[int], list[int]]: ...

READABLE: frozenset[int]

@disjoint_base
class ColumnReader:
    def __init__(self, given: ArrayRef | list[Any]) -> None: ...
    def to_list(self) -> list[Any]: ...

@disjoint_base
class RowSource:
    def __init__(
        self,
        kind: type[tuple[Any, ...]],
        width: int,
        refill: Callable[[int], None] | None = None,
    ) -> None: ...
    def fill(self, begin: int, columns: list[ArrayRef | list[Any]]) -> None: ...
    def rows(self, begin: int, end: int) -> RowRange: ...

@disjoint_base
class RowRange:
    num_rows: int
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def stop(self) -> None: ...

# nulls, validity, values, offsets
_Taken: TypeAlias = tuple[int, bytes | None, bytes, bytes | None]

@disjoint_base
class Emitted:
    key: Any
    def __new__(
        cls,
        codes: Sequence[int] | None,
        kind: type[tuple[Any, ...]] | None = None,
        names: Sequence[str] = (),
    ) -> Self: ...
    def __len__(self) -> int: ...
    def append(self, row: Any) -> None: ...
    def extend(self, rows: Any) -> None: ...
    def take(self) -> list[list[Any] | tuple[int, list[list[Any] | _Taken]]]: ...
    def key_of(self, row: int) -> Any: ...

# The types of values that can be iterated over, and what is done with one of another type.
_Checked: TypeAlias = tuple[set[type], Callable[[Any], None] | None]

@disjoint_base
class RowLoop:
    key: Any
    calling: bool
    def __init__(
        self,
        keys: Batch,
        rows: RowSource | list[Any],
        key_of: int | list[Any],
        times: ColumnReader | None,
        call: Callable[..., Any],
        context: Any,
        emitted: Emitted,
        checked: _Checked,
        clock: Callable[[int | None], None] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None: ...
    def run(self, most: int) -> bool: ...

@disjoint_base
class Firing:
    timestamp: int | None
    watched: bool

@disjoint_base
class TimerLoop:
    key: Any
    calling: bool
    fired: int
    timestamp: int
    def __init__(
        self,
        due: DueTimers,
        keys: list[Any],
        timed: bool,
        call: Callable[..., Any],
        context: Any,
        emitted: Emitted,
        checked: _Checked,
        clock: Callable[[int | None], None] | None = None,
        leave: Callable[[], None] | None = None,
        firing: Firing | None = None,
        before: Callable[[int], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None: ...
    def run(self, most: int, to_end: bool) -> bool: ...
