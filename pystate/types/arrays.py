"""Columns in and out: anything column-like -> Arrow arrays of the declared type -> addresses.

Buffers that already have the declared type are never copied. Pure functions, safe from any thread.
"""

from __future__ import annotations

import builtins
import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.base.arguments import NO_INSTANT, shown
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.types.state_type import StateType, parse_type, refuse_nested_key


def is_column(value: object) -> bool:
    """Whether a value is a typed column: an Arrow array, a numpy array, a pandas series."""
    return isinstance(value, (pa.Array, pa.ChunkedArray, np.ndarray)) or (
        hasattr(value, "to_numpy") and not isinstance(value, (pa.Scalar, pa.RecordBatch, pa.Table))
    )


def is_many(value: object) -> bool:
    """Whether a value holds one value per row: a column, or a sequence that is not itself one."""
    return is_column(value) or isinstance(value, (list, tuple, range))


def check_rows(values: Any, rows: int, what: str) -> None:
    """Refuse values unless there is one per row."""
    if len(values) != rows:
        raise InvalidArgumentError(f"{what}: {len(values)} values for {rows} keys")


def as_array(values: Any, type: StateType, what: str) -> pa.Array[Any]:
    """Make an Arrow array of exactly the declared type; `what` names the column in errors.

    Values are an Arrow array or chunked array (dictionaries and large strings too), a numpy array,
    a pandas series, or a sequence. Casts are those that keep every value: between integers, from
    integers to floats and decimals, to a wider float, between decimals and between timestamp units,
    each where every value fits. `WrongTypeError`: a cast would lose something.
    `InvalidArgumentError`: an Arrow array's buffers are too small, or its offsets lead outside.
    """
    if isinstance(values, pa.ChunkedArray):
        array = _combine_chunks(values)
    elif isinstance(values, pa.Array):
        array = values
    else:
        return _from_python(values, type, what)
    return _cast(array, type, what)


def _combine_chunks(values: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    combined: Any = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        raise InvalidArgumentError(
            "a column of more than 2 GiB does not fit one array: pass it in parts"
        )
    array: pa.Array[Any] = combined
    return array


def _from_python(values: Any, type: StateType, what: str) -> pa.Array[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise WrongTypeError(f"{what}: a column is a sequence of values, got {values!r:.80}")
    try:
        if is_column(values):
            array = pa.array(values)
        else:
            values = values if isinstance(values, (list, tuple)) else list(values)
            array = _infer_array(values, type)
    except MemoryError:  # Arrow's own is an ArrowException, and says nothing of the type
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise WrongTypeError(f"{what}: cannot be read as {type.ddl}: {error}") from error
    if isinstance(array, pa.ChunkedArray):
        array = _combine_chunks(array)
    return _cast(array, type, what)


def _infer_array(values: Any, type: StateType) -> pa.Array[Any]:
    if type.name in ("timestamp", "timestamp_ntz"):
        zones = {v.tzinfo is None for v in values if isinstance(v, datetime.datetime)}
        if len(zones) > 1:
            raise TypeError("some datetimes have a time zone and some have none")
    merged = _STRAY_TYPES.get(type.name)
    if merged is not None and any(isinstance(value, merged) for value in values):
        # Arrow makes one type of both, so that two different values become equal.
        raise TypeError(f"a {merged.__name__} is not taken for {type.name}")
    array: pa.Array[Any] = pa.array(values)
    if type.name == "float" and pa.types.is_float64(array.type):
        # Python has one float: a list of them is as good for `float` as for `double`.
        return as_floats(pa.array(values, type.arrow), array)
    return array


def as_floats(floats: pa.Array[Any], doubles: pa.Array[Any]) -> pa.Array[Any]:
    """The floats that were cast from the doubles; `OverflowError` if one is beyond a float."""
    lost = pc.and_(pc.is_inf(floats), pc.invert(pc.is_inf(doubles)))
    if pc.any(lost).as_py():
        value = doubles.filter(lost)[0]
        raise OverflowError(f"{value} is out of the range of a float")
    return floats


def validated(array: pa.Array[Any], what: str, *, full: bool = False) -> pa.Array[Any]:
    """The array if its buffers are large enough; `full` also checks every offset and index.

    `InvalidArgumentError` if it is not sound.
    """
    try:
        array.validate(full=full)
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"{what}: not a valid Arrow array: {error}") from error
    return array


def _cast(array: pa.Array[Any], type: StateType, what: str) -> pa.Array[Any]:
    wanted = type.arrow
    if array.type.equals(wanted):
        return validated(array, what)
    source = array.type
    # Arrow's casts trust every offset and index.
    validated(array, what, full=True)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    elif pa.types.is_run_end_encoded(source):
        array = pc.call_function("run_end_decode", [array])
    if array.type.equals(wanted):
        return array
    if not _is_allowed(array.type, type):
        raise WrongTypeError(
            f"{what} is {type.ddl}: a column of {source} is not cast to it{_hint(array.type, type)}"
        )
    try:
        if type.name == "decimal" and pa.types.is_integer(array.type):
            # Arrow asks for room for every integer of the type before it looks at the values.
            array = array.cast(pa.decimal256(76, type.scale))
        return array.cast(wanted, safe=True)
    except MemoryError:
        raise
    except (pa.ArrowException, OverflowError) as error:
        raise WrongTypeError(
            f"{what} is {type.ddl}: this column of {source} does not fit it without loss: {error}"
        ) from error


#: Per type, what else Arrow accepts as a value among values of that type.
_STRAY_TYPES: dict[str, builtins.type] = {"date": datetime.datetime, "binary": str}

_Test = Callable[[pa.DataType], bool]

#: Per declared type, the Arrow types that may be cast to it.
_SOURCES: dict[str, tuple[_Test, ...]] = {
    "byte": (pa.types.is_integer,),
    "short": (pa.types.is_integer,),
    "int": (pa.types.is_integer,),
    "long": (pa.types.is_integer,),
    "float": (pa.types.is_integer, pa.types.is_float16),
    "double": (pa.types.is_integer, pa.types.is_floating),
    "decimal": (pa.types.is_integer, pa.types.is_decimal),
    "date": (pa.types.is_date,),
    "timestamp": (lambda t: isinstance(t, pa.TimestampType) and t.tz is not None,),
    "timestamp_ntz": (lambda t: isinstance(t, pa.TimestampType) and t.tz is None,),
    "string": (pa.types.is_large_string, lambda t: t == pa.string_view()),
    "binary": (
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        lambda t: t == pa.binary_view(),
    ),
}


def _is_allowed(source: pa.DataType, type: StateType) -> bool:
    if pa.types.is_null(source):
        return True
    return any(test(source) for test in _SOURCES.get(type.name, ()))


def _hint(source: pa.DataType, type: StateType) -> str:
    if isinstance(source, pa.TimestampType) and type.name == "timestamp":
        return f"; {NO_INSTANT}, or declare timestamp_ntz"
    if isinstance(source, pa.TimestampType) and type.name == "timestamp_ntz":
        return "; it has a time zone: declare timestamp"
    return ""


def array_of(ref: core.ArrayRef, type: StateType) -> pa.Array[Any]:
    """The array that a reference points to."""
    if not len(ref):
        return pa.array([], type.arrow)
    parts: Any = ref.parts()
    copy, offset, *places = parts
    whole = pa.py_buffer(copy)
    buffers = [None if place is None else whole.slice(*place) for place in places]
    if not type.is_bytes:
        del buffers[1]
    return pa.Array.from_buffers(type.arrow, len(ref), buffers, -1, offset)


def reference(array: pa.Array[Any], type: StateType) -> core.ArrayRef:
    """The addresses of an array of exactly the declared type; the array stays alive with them.

    `InvalidArgumentError`: its offsets descend, or lead outside of its bytes.
    """
    buffers = array.buffers()
    validity = buffers[0].address if array.null_count and buffers[0] is not None else 0
    offsets = values = values_bytes = 0
    if len(array):
        if type.is_bytes:
            offsets = buffers[1].address if buffers[1] is not None else 0
            values = buffers[2].address if buffers[2] is not None else offsets
            values_bytes = buffers[2].size if buffers[2] is not None else 0
        else:
            values = buffers[1].address if buffers[1] is not None else 0
    return core.ArrayRef(
        type.code,
        type.precision,
        len(array),
        array.offset,
        validity,
        values,
        offsets,
        array,
        type.inline_bytes,
        values_bytes,
    )


def datetimes(array: pa.Array[Any]) -> list[Any]:
    """The datetimes of an array of microseconds, in UTC if it has a time zone; None for null.

    Arrow's own conversion takes 3 µs a value, which is the budget of a whole row. `OverflowError`:
    one is outside the years 1 to 9999; it is the error's argument.
    """
    validity, times = (0 if buffer is None else buffer.address for buffer in array.buffers())
    return core.instants(times, validity, array.offset, len(array), array.type.tz is None)


def encoded(values: Any, type: StateType, codec: Any, what: str) -> pa.Array[Any]:
    """An array in the core's form: bytes for nested values, else as `as_array` makes it."""
    if type.is_nested:
        array: pa.Array[Any] = codec.encode_array(values)
        return array
    return as_array(values, type, what)


def decoded(array: pa.Array[Any], type: StateType, codec: Any) -> pa.Array[Any]:
    """The inverse of `encoded`."""
    if not type.is_nested:
        return array
    values: pa.Array[Any] = codec.decode_array(array)
    return values


def from_parts(
    type: StateType,
    length: int,
    valid: Any,
    values: Any,
    offsets: Any = None,
) -> pa.Array[Any]:
    """Make an array of the buffers that the core fills.

    `valid` has a byte per row, and is None if no value is null. `values` are of the type's width
    (booleans: a byte each), or the bytes' data with their 32-bit `offsets`. Where there are
    offsets, a null has no bytes, whatever the type.
    """
    nulls, validity = 0, None
    if valid is not None:
        flags = np.frombuffer(valid, np.uint8, length)
        nulls = length - int(np.count_nonzero(flags))
        validity = bitmap(flags) if nulls else None
    if type.name == "boolean":
        buffers = [validity, bitmap(np.frombuffer(values, np.uint8, length))]
    else:
        buffers = [validity, pa.py_buffer(values)]
    if type.is_bytes:
        buffers.insert(1, pa.py_buffer(offsets))
    elif nulls and offsets is not None:
        # Structs of one width, of which a null has no bytes.
        buffers.insert(1, pa.py_buffer(offsets))
        structs = pa.Array.from_buffers(pa.binary(), length, buffers, nulls)
        return structs.cast(type.stored_arrow)
    return pa.Array.from_buffers(type.stored_arrow, length, buffers, nulls)


def bitmap(flags: np.ndarray[Any, np.dtype[np.uint8]]) -> pa.Buffer:
    """Pack flags of a byte each into an Arrow bitmap."""
    return pa.py_buffer(np.packbits(flags, bitorder="little").data)


def hash_keys(columns: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Hash rows of key columns as Spark SQL's ``xxhash64`` does.

    Parameters
    ----------
    columns : list of pyarrow.Array
        The key columns, in order; their Arrow types decide the hash.

    Returns
    -------
    numpy.ndarray of uint64

    Examples
    --------
    >>> import pyarrow as pa
    >>> hash_keys([pa.array([1], pa.int64())]).astype("int64").tolist()
    [-7001672635703045582]
    """
    if not isinstance(columns, (list, tuple)):
        raise InvalidArgumentError(
            f"hash_keys takes a list of key columns, such as [pa.array([1, 2])], not "
            f"{shown(columns)}"
        )
    references = []
    for position, column in enumerate(columns):
        if isinstance(column, (str, bytes)):
            raise InvalidArgumentError(
                f"hash_keys: key column {position} is an array of keys, not {shown(column)}"
            )
        array = column if isinstance(column, pa.Array) else pa.array(column)
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        what = f"key column {position}"
        parsed = refuse_nested_key(parse_type(array.type, what), what)
        references.append(reference(as_array(array, parsed, what), parsed))
    rows = len(references[0]) if references else 0
    hashes = np.empty(rows, np.uint64)
    core.hash_keys(references, hashes.ctypes.data)
    return hashes


def key_groups(
    hashes: np.ndarray[Any, np.dtype[np.uint64]], max_parallelism: int
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The key group of each hash: ``pmod(hash, max_parallelism)``."""
    if max_parallelism < 1:
        raise InvalidArgumentError(f"max_parallelism is {max_parallelism}")
    groups = hashes.view(np.int64) % np.int64(max_parallelism)
    return groups.astype(np.int32)
