# cython: language_level=3, binding=True, auto_pickle=False, autotestdict=False
"""The extension module: thin handles over the C core's public header.

Only `pystate` itself uses it. Every C call goes through one `check`. Batches, seals, snapshots,
loads and file access run without the GIL; a single get or put keeps it. Arrays arrive as addresses
with an owner that is kept alive; pyarrow and numpy are not known here. What calls users' functions
is `calls`, and what looks like Spark is `ported`: modules of their own, which call the functions
that `core.pxd` declares.

Thread safety: a handle that is at work without the GIL is marked busy, and any other use of it,
`close` included, raises `InUseError`. After a fork the child's handles refuse to work.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_FromDouble
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact, PyLong_FromLongLong
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE, PyBuffer_FillInfo
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EBADF, EINTR, ENODATA, EREMOTEIO, ESTALE, errno
from libc.math cimport isinf, isnan
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.stddef cimport size_t
from libc.stdint cimport (
    INT8_MAX, INT8_MIN, INT16_MAX, INT16_MIN, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN,
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy, memset
from posix.unistd cimport pread

cimport cython
cimport cpython.datetime as cdt

from pystate._core.cpystate cimport *

import datetime
import operator
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal

from lz4.block import compress as lz4_compress, decompress as lz4_decompress

from pystate import errors

cdt.import_datetime()

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int Py_EnterRecursiveCall(const char *where) except -1
    void Py_LeaveRecursiveCall()

cdef extern from "pthread.h" nogil:
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept,
                       void (*child)() noexcept)


# ---- forks ---------------------------------------------------------------------------------------

cdef unsigned long fork_generation = 0


cdef void after_fork_in_child() noexcept nogil:
    global fork_generation
    fork_generation += 1


pthread_atfork(NULL, NULL, after_fork_in_child)


# ---- statuses ------------------------------------------------------------------------------------

cdef object make_error(pst_status status, const pst_detail *detail, str where, Schema schema):
    cdef str at = where
    cdef str reason
    cdef object code
    # Other statuses may leave an earlier failure's place in the detail.
    if detail is not NULL and status in (PST_OVERFLOW, PST_WRONG_TYPE, PST_WRONG_KEY_GROUP):
        if schema is not None and 0 <= detail.column < len(schema.state_codecs):
            at += f", state {schema.state_codecs[detail.column].name!r}"
        if detail.row >= 0:
            at += f", row {detail.row}"
    if status == PST_NO_MEMORY:
        return errors.MemoryLimitError(f"{at}: the system refused memory")
    if status == PST_NO_SPACE:
        return errors.NoSpaceError(28, f"{at}: the file system that holds the table is full; "
                                   "free space there, or choose another folder")
    if status == PST_LIMIT:
        return errors.MemoryLimitError(f"{at}: a memory limit would be passed")
    if status == PST_ADDRESS_SPACE:
        return errors.AddressSpaceError(
            f"{at}: no address range for the table; raise the limit on address space (ulimit -v, "
            "on Spark: spark.executor.pyspark.memory)")
    if status == PST_WRONG_TYPE:
        return errors.WrongTypeError(f"{at}: this operation does not exist for the column's type")
    if status == PST_OVERFLOW:
        overflow = errors.StateOverflowError(f"{at}: the result does not fit the state's type; "
                                             "roll the epoch back")
        if detail is not NULL and detail.row >= 0:
            overflow.row = detail.row
        return overflow
    if status == PST_WRONG_KEY_GROUP:
        reason = "" if detail is NULL or detail.key_group < 0 else f" {detail.key_group}"
        return errors.WrongKeyGroupError(f"{at}: the key's group{reason} is not in the table's "
                                         "key-group range: the key was routed to the wrong task")
    if status == PST_STALE:
        return errors.StaleKeyBatchError(f"{at}: a key batch is valid until the next seal or "
                                         "roll back; make a new one")
    if status == PST_BUSY:
        return errors.TableBusyError(f"{at}: another process, or another backend of this one, "
                                     "holds the table's lock")
    if status == PST_MISMATCH:
        return errors.TableMismatchError(f"{at}: the table's file belongs to another schema, "
                                         "boot, application or format; discard it")
    if status == PST_SNAPSHOT_TOO_OLD:
        return errors.SnapshotTooOldError(f"{at}: the reader's epoch has left the undo window; "
                                          "open a new reader")
    if status == PST_NO_UNDO:
        return errors.LineageError(f"{at}: that epoch is outside the undo window; restore instead")
    if status == PST_CORRUPT:
        reason = "" if detail is NULL or detail.offset < 0 else f" at byte {detail.offset}"
        return errors.CorruptFileError(f"{at}: corrupt{reason}: the bytes contradict a checksum "
                                       "or a bound")
    if status == PST_NEWER_FORMAT:
        return errors.NewerFormatError(f"{at}: written by a later version of pystate in a format "
                                       "that this one does not read: upgrade pystate")
    if status == PST_IO:
        code = 0 if detail is NULL else detail.sys_errno
        if code in FULL:
            return errors.NoSpaceError(code, f"{at}: {os.strerror(code)}")
        return errors.SystemCallError(code, f"{at}: {os.strerror(code)}")
    if status == PST_POISONED:
        return errors.PoisonedError(f"{at}: an earlier write failed half way; roll the epoch back")
    if status == PST_TOO_LARGE:
        return errors.InvalidArgumentError(f"{at}: a key or value has more than {PST_MAX_BYTES} "
                                           "bytes, or the result or the table is full")
    if status == PST_CHANGED:
        return errors.InUseError(f"{at}: the rows changed while they were copied: a table belongs "
                                 "to one thread at a time")
    if status == PST_NO_STACK:
        return errors.CheckpointError(
            f"{at}: the key's row may lie in files, and the table does not know which, as they "
            "could not be opened after the last checkpoint; roll back, or open the state again")
    if status == PST_NOT_HERE:
        return errors.CheckpointError(f"{at}: its other rows lie in files: read these")
    if status == PST_NO_ROOM:
        return errors.MemoryLimitError(f"{at}: its rows do not fit in memory together")
    if status == PST_SCHEMA:
        return errors.SchemaError(f"{at}: the file's schema does not fit the table's")
    return errors.InvalidArgumentError(f"{at}: {pst_status_name(status).decode()}")


FULL = frozenset((28, 122, 27))  # ENOSPC, EDQUOT, EFBIG


cdef int check(pst_status status, const pst_detail *detail, str where, Schema schema) except -1:
    if status == PST_OK:
        return 0
    raise make_error(status, detail, where, schema)


include "guard.pxi"
include "budget.pxi"
include "instants.pxi"
include "cells.pxi"
include "nested_types.pxi"
include "nested.pxi"
include "nested_columns.pxi"
include "lineage.pxi"
include "table.pxi"
include "writes.pxi"
include "handles.pxi"
include "file_io.pxi"
include "files.pxi"
include "stack.pxi"
include "rows.pxi"
include "elements.pxi"
include "maps.pxi"
include "timers.pxi"


# ---- key groups ----------------------------------------------------------------------------------

def hash_keys(list columns not None, size_t out):
    """Write Spark's xxhash64 of each row of the columns to the address `out` (uint64)."""
    cdef pst_array arrays[PST_MAX_KEYS_]
    cdef uint8_t precision[PST_MAX_KEYS_]
    cdef int32_t n = check_columns(columns)
    cdef int32_t i
    cdef pst_status status
    cdef ArrayRef column
    # The arrays are nobody's handles: there is nothing to mark.
    for i in range(n):
        column = columns[i]
        arrays[i] = column.c
        precision[i] = column.precision
    with nogil:
        status = pst_hash(arrays, precision, n, <uint64_t *> out)
    check(status, NULL, "hash_keys", None)


cdef int32_t check_columns(list columns) except -1:
    if not 0 < len(columns) <= PST_MAX_KEYS:
        raise errors.InvalidArgumentError(
            f"a key has 1 to {PST_MAX_KEYS} columns, got {len(columns)}")
    cdef ArrayRef first = <ArrayRef?> columns[0]
    cdef ArrayRef column
    for item in columns:
        column = <ArrayRef?> item
        if column.c.length != first.c.length:
            raise errors.InvalidArgumentError(
                f"key columns differ in length: {first.c.length} and {column.c.length}")
    return <int32_t> len(columns)


cdef whole(value, str what):
    """The value as an int; a bool and a float are none."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise errors.InvalidArgumentError(f"{what} is a whole number, not {value!r:.80}")


def key_group(hash, max_parallelism):
    """Return the key group of a hash: pmod(hash, max_parallelism), the hash taken as signed."""
    hash = whole(hash, "key_group: hash")
    check_ranges(max_parallelism, 1)
    return pst_key_group(<uint64_t> (hash & 0xFFFFFFFFFFFFFFFF), max_parallelism)


def range_of(key_group, max_parallelism, parallelism):
    """Return the range that owns a key group: ``key_group * parallelism // max_parallelism``."""
    check_ranges(max_parallelism, parallelism)
    if not 0 <= whole(key_group, "range_of: key_group") < max_parallelism:
        raise errors.InvalidArgumentError(f"there is no key group {key_group} of {max_parallelism}")
    return pst_range_of(key_group, max_parallelism, parallelism)


def range_bounds(index, max_parallelism, parallelism):
    """Return the first and last key group of a range, both inclusive."""
    cdef int32_t first, last
    check_ranges(max_parallelism, parallelism)
    if not 0 <= whole(index, "range_bounds: index") < parallelism:
        raise errors.InvalidArgumentError(f"there is no range {index} of {parallelism}")
    pst_range_bounds(index, max_parallelism, parallelism, &first, &last)
    return first, last


cdef int check_ranges(max_parallelism, parallelism) except -1:
    whole(max_parallelism, "max_parallelism")
    if not 1 <= whole(parallelism, "parallelism") <= max_parallelism <= 32768:
        raise errors.InvalidArgumentError(
            f"parallelism {parallelism} and max_parallelism {max_parallelism}: "
            "1 <= parallelism <= max_parallelism <= 32768")
    return 0


def memory_bytes(bytes proc, bytes cgroups):
    """Return the memory that this process may use, its control groups' limits considered."""
    return pst_memory_bytes(proc, cgroups)
