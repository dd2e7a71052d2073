from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from pystate._core.core import MapElements, ScalarHandle

@disjoint_base
class TupleValue:
    def __init__(
        self, handle: ScalarHandle, size: int, pack: Callable[[Any], tuple[Any, ...]]
    ) -> None: ...
    def get(self) -> tuple[Any, ...] | None: ...
    def update(self, newValue: Any) -> None: ...  # noqa: N803 - Spark's name

@disjoint_base
class TupleMap:
    def __init__(
        self,
        handle: MapElements,
        size: int,
        pack: Callable[[Any], tuple[Any, ...]],
        key_of: Callable[[Any], Any],
        kind: type[tuple[Any, ...]],
    ) -> None: ...
    def getValue(self, key: Any) -> Any: ...  # noqa: N802 - Spark's name
    def updateValue(self, key: Any, value: Any) -> None: ...  # noqa: N802
    def containsKey(self, key: Any) -> bool: ...  # noqa: N802
    def removeKey(self, key: Any) -> None: ...  # noqa: N802

def set_quick_rows(kind: type[tuple[Any, ...]], quick: bool) -> bool: ...
