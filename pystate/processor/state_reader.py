"""Reading state without Spark: at once, or a part at a time.

A read looks at one epoch. A job that runs meanwhile retires epochs and removes their files. A read
of everything at once then starts again with the newest epoch, unless one was asked for; a scan that
has yielded rows cannot.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.refs import COUNT
from pystate.checkpoint.storage import CheckpointStorage
from pystate.processor.epochs import storage_at, while_retained
from pystate.processor.scan import StateScan
from pystate.processor.selection import Selection


def read_state(
    location: str | os.PathLike[str],
    uid: str | None = None,
    *,
    state: str | None = None,
    epoch: int | None = None,
    keys: Any = None,
    key_groups: Any = None,
    explode: bool = False,
    timers: bool = False,
    accumulators: bool = False,
    defaults: bool = True,
    expired: bool = False,
) -> pa.Table:
    """Read an operator's state from a checkpoint or savepoint into one table.

    Nothing needs to be declared: the types are in the checkpoint. The job may run meanwhile. Parts
    are read in parallel, by as many threads as there are processors.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job or store, or a savepoint.
    uid : str, optional
        The operator. It may be left out if there is only one, as in a store.
    state : str, optional
        Read only this state; keys that do not have it are left out.
    epoch : int, optional
        A retained epoch; by default the newest.
    keys : array-like, list of array-like, RecordBatch or Table, optional
        Read only these keys. The key column, or a list of columns for a key of several; from a
        record batch or a table the columns that have the key's names. Only files and blocks of
        their key groups are read.
    key_groups : iterable of int, optional
        Read only these key groups.
    explode : bool
        With a list or map as `state`: a row per element, with the columns ``<state>_index`` (from
        0) or ``<state>_key``, and ``<state>``.
    timers : bool
        Read timers in place of states: a row per timer, with the columns ``timer_domain``
        (``event`` or ``processing``) and ``timer_ms``, in milliseconds since 1970.
    accumulators : bool
        Of aggregates whose state is more than their result, such as means and sketches, the bytes
        that are kept, which `write_state` takes, instead of the result.
    defaults : bool
        Whether a key without a value has the default that the epoch's program declared; otherwise
        it has null.
    expired : bool
        Whether to read also what has expired by the epoch's processing time or the operator's
        watermark, and was not removed yet.

    Returns
    -------
    pyarrow.Table
        A row per key: the key columns, the column ``namespace`` if the operator has namespaces (a
        window is one), then a column per state. A value that the key does not have is the declared
        default, or else null; a list or map is empty. An aggregate's column has the results, an
        object's the pickled bytes: nothing is unpickled.

    Raises
    ------
    CheckpointError
        There is no epoch, or that one is not retained, or no such operator; or a file is lost.
    CorruptFileError, NewerFormatError
        A file cannot be read; it is named.
    InvalidArgumentError
        There is no such state, or it has no elements; or a key is of another type
        (`WrongTypeError`).

    Notes
    -----
    States expire as the epoch's program declared them: a value or an aggregate as a whole, lists
    and maps item by item, and a key that has nothing else is not in the table. Only what a program
    sees after it expired, by ``visibility="return_if_not_cleaned_up"``, is read until it is
    removed. A manifest of format 7 or less does not know times to live, so that all is read.

    See Also
    --------
    scan_state : the same for state that does not fit into memory.
    """
    storage = storage_at(location, "read_state")
    return read_all(
        storage,
        uid,
        epoch=epoch,
        selection=Selection(state, explode, timers, accumulators, defaults, expired=expired),
        keys=keys,
        key_groups=key_groups,
    )


def scan_state(
    location: str | os.PathLike[str],
    uid: str | None = None,
    *,
    state: str | None = None,
    epoch: int | None = None,
    keys: Any = None,
    key_groups: Any = None,
    explode: bool = False,
    timers: bool = False,
    accumulators: bool = False,
    defaults: bool = True,
    expired: bool = False,
) -> pa.RecordBatchReader:
    """Read an operator's state from a checkpoint or savepoint, lazily.

    Parameters
    ----------
    location, uid, state, epoch, keys, key_groups, explode, timers, accumulators, defaults, expired
        As for `read_state`.

    Returns
    -------
    pyarrow.RecordBatchReader
        The rows of `read_state`, read as they are asked for. In memory are about as many parts of
        the state as the machine has processors; a part is a key group, or 64 MB of several. The
        reader can be used once. DuckDB, Polars and pyarrow's writers take it.

    Raises
    ------
    CheckpointError, InvalidArgumentError
        As for `read_state`. `CheckpointError` is also raised while batches are read, if a running
        job has removed the epoch's files.
    """
    scan = StateScan.of(
        storage_at(location, "scan_state"),
        uid,
        epoch=epoch,
        selection=Selection(state, explode, timers, accumulators, defaults, expired=expired),
        keys=keys,
        key_groups=key_groups,
    )
    return pa.RecordBatchReader.from_batches(scan.schema, scan.batches())


def read_all(
    storage: CheckpointStorage, uid: str | None, *, epoch: int | None = None, **asked: Any
) -> pa.Table:
    """`read_state` of an open checkpoint; it starts again if a job retires the epoch it reads."""

    def read() -> pa.Table:
        scan = StateScan.of(storage, uid, epoch=epoch, **asked)
        return pa.Table.from_batches(scan.batches(), scan.schema)

    return while_retained(storage, read, "read")


def rows_in_flight(storage: CheckpointStorage) -> dict[str, int]:
    """Count the rows that the newest epoch has fed, on each loop by its uid.

    Only the counts are kept in memory, and there are not many: one for each bucket of a loop.
    """
    head = read_head(storage)
    counted = {}
    for operator in () if head is None else head.operators:
        if operator.is_loop:
            counts: Any = read_all(storage, operator.uid, selection=Selection(COUNT, False, False))
            counted[operator.uid] = sum(counts[COUNT].to_pylist())
    return counted
