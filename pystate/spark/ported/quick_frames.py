"""pandas' `DataFrame({"name": values, ...})` in fewer steps, in workers that run a processor.

A function yields a small frame for each key, and what pandas does for one takes longer than all the
rest that the operator does for a key: it looks for what columns may be, of which these are the
plainest. The frames are the same, and pandas makes all others.

Thread safety: `quicken` is called by the worker's one thread that runs tasks.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
from pandas._config import config
from pandas.core.generic import NDFrame
from pandas.core.internals.managers import create_block_manager_from_column_arrays

__all__ = ["quicken", "quicken_class", "shape"]

_OBJECT = np.dtype(object)
#: The types of values, and those of the columns that pandas makes of them.
_TYPES: dict[type, np.dtype[Any]] = {
    int: np.dtype("int64"),
    float: np.dtype("float64"),
    bool: np.dtype("bool"),
    str: _OBJECT,
    np.int64: np.dtype("int64"),
    np.float64: np.dtype("float64"),
    np.bool_: np.dtype("bool"),
}
#: The types of arrays of which pandas makes columns of the same type.
_ARRAYS = frozenset(_TYPES.values()) - {_OBJECT}


def quicken() -> None:
    """Quicken the class in this process, unless that was done; only in a task.

    Elsewhere, as in tests, the class is the caller's own.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None and not hasattr(pd.DataFrame.__init__, "_pystate_slow"):
        quicken_class(pd.DataFrame)


def quicken_class(kind: Any) -> bool:
    """Quicken a class of frames; return False, and change nothing, if it makes others.

    Parameters
    ----------
    kind : type
        pandas' `DataFrame`.
    """
    slow = kind.__init__
    modes: Any = config._global_config  # type: ignore[attr-defined, unused-ignore]
    mode, future = modes["mode"], modes["future"]

    @wraps(slow)
    def quick(
        self: Any,
        data: Any = None,
        index: Any = None,
        columns: Any = None,
        dtype: Any = None,
        copy: Any = None,
    ) -> None:
        if (
            type(data) is dict
            and type(self) is kind
            and index is columns is dtype is copy is None
            and mode["data_manager"] == "block"
            and not future["infer_string"]
        ):
            manager = _manager(data)
            if manager is not None:
                NDFrame.__init__(self, manager)
                return
        slow(self, data, index, columns, dtype, copy)

    quick._pystate_slow = slow  # type: ignore[attr-defined]
    kind.__init__ = quick
    try:
        same = _same(kind, slow)
    except Exception:
        # In a later version of pandas the parts of a frame may be others.
        same = False
    if not same:
        kind.__init__ = slow
    return same


def _manager(data: dict[Any, Any]) -> Any:
    """What holds the columns of a frame, or None if pandas has to look at them."""
    rows = 0
    for value in data.values():
        kind = type(value)
        if kind is list or kind is range or kind is np.ndarray:
            if kind is np.ndarray and value.ndim != 1:
                return None
            rows = len(value)
            break
    if not rows:
        return None
    arrays = []
    for name, value in data.items():
        if type(name) is not str:
            return None
        array = _column(value, rows)
        if array is None:
            return None
        arrays.append(array)
    names: Any = pd.Index
    axes = [names._simple_new(np.array(list(data), object), None), pd.RangeIndex(rows)]
    return create_block_manager_from_column_arrays(
        arrays, axes, consolidate=True, refs=[None] * len(arrays)
    )


def _column(value: Any, rows: int) -> np.ndarray[Any, Any] | None:
    """A column of so many rows, or None if pandas has to look at its values."""
    kind = type(value)
    try:
        if kind is list:
            if len(value) != rows:
                return None
            kinds = set(map(type, value))
            dtype = _TYPES.get(kinds.pop())
            # Values of several types are pandas' to compare.
            return None if kinds or dtype is None else np.array(value, dtype)
        if kind is range:
            if len(value) != rows:
                return None
            return np.arange(value.start, value.stop, value.step, dtype=np.int64)
        if kind is np.ndarray:
            array: np.ndarray[Any, Any] = value
            return array if array.shape == (rows,) and array.dtype in _ARRAYS else None
        dtype = _TYPES.get(kind)
        if dtype is None:
            return None
        found = np.empty(rows, dtype)
        found.fill(value)
        return found
    except OverflowError:
        return None


def _same(kind: Any, slow: Any) -> bool:
    """Whether both make the same: also of a later version of pandas, whose frames may be others."""
    given: dict[str, Any] = {
        "a": 1,
        "b": range(1, 3),
        "c": ["x", "y"],
        "d": 0.5,
        "e": [True, False],
        "f": np.array([1.5, 2.5]),
        "g": [3, 4],
    }
    plain = object.__new__(kind)
    slow(plain, dict(given))
    return bool(shape(kind(given)) == shape(plain))


def shape(frame: Any) -> Any:
    """What a frame consists of."""
    blocks = [
        (type(block), str(block.dtype), list(block.mgr_locs), repr(block.values.tolist()))
        for block in frame._mgr.blocks
    ]
    axes = [(type(axis), axis.dtype, list(axis), axis.name) for axis in frame._mgr.axes]
    return blocks, axes, sorted(vars(frame))
