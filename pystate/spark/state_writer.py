"""DataFrames that become state: a savepoint, written by the executors.

Spark brings each row to the range of its key, as it does in front of an operator. A task writes its
range's file, and the driver, which learns the files of the attempts that count, completes the
target. Spark's own data source interface does not let a source ask for that shuffle.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pystate.checkpoint.refs import RangeState
from pystate.checkpoint.savepoint import Savepoint
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, WrongTypeError
from pystate.processor.state_writer import (
    Destination,
    StateRows,
    check_columns,
    check_kept,
    checked_operators,
)
from pystate.spark.base.environment import require_classic, use_this_python
from pystate.spark.base.frame_columns import column_named
from pystate.spark.base.routing import route, split_markers
from pystate.spark.base.schemas import key_schema
from pystate.spark.evaluation.initial_state import IS_TIMER, range_report, reported_ranges
from pystate.state.defaults import DEFAULT, mark_default
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.range_rows import write_range
from pystate.tables.timers import TIMER_DOMAIN, TIMER_MS
from pystate.types.keys import describe


def write_state(
    destination: str | os.PathLike[str],
    operators: Mapping[str, StateRows],
    *,
    base: str | os.PathLike[str] | None = None,
    remove: Sequence[str] = (),
    max_parallelism: int | None = None,
    parallelism: int | None = None,
    job: str = "written",
) -> Savepoint:
    """Write a savepoint whose state comes from DataFrames; `Job(restore=...)` begins with it.

    Parameters
    ----------
    destination, base, remove, max_parallelism, job
        As for `pystate.write_state`. The executors must reach the destination.
    operators : mapping of str to StateRows
        The rows of each operator, by its uid: ``rows`` and ``timers`` are DataFrames of a classic
        session, whose key columns have the key's types.
    parallelism : int, optional
        In how many files, and by how many tasks, each operator is written; 8 by default. A task has
        its rows in memory.

    Returns
    -------
    Savepoint

    Raises
    ------
    InvalidArgumentError, DeclarationError, WrongTypeError, CheckpointError
        As for `pystate.write_state`. What a task finds is the cause of Spark's exception.

    Examples
    --------
    >>> from pystate.spark import write_state
    >>> rows = StateRows(frame, {"user": "string"}, Counts)  # doctest: +SKIP
    >>> write_state("savepoints/begin", {"counts": rows})  # doctest: +SKIP
    """
    with Destination(destination, base, max_parallelism, parallelism, job) as target:
        target.leave_out(remove, operators)
        for uid, rows in checked_operators(operators).items():
            operator = rows.operator(uid, target.max_parallelism)
            target.add(rows, (operator, _write(target, operator, rows)))
        return target.finish()


def _write(target: Destination, operator: OperatorSpec, given: StateRows) -> tuple[RangeState, ...]:
    frame = _frame(operator, given.rows).withColumn(IS_TIMER, F.lit(False))
    if given.timers is not None:
        timers = _frame(operator, given.timers, timers=True).withColumn(IS_TIMER, F.lit(True))
        frame = frame.unionByName(timers, allowMissingColumns=True)
    use_this_python(frame.sparkSession.sparkContext)
    names = [name for name, _ in operator.key]
    routed = route(frame, names, target.max_parallelism, target.parallelism)
    columns = routed.columns[:-1]
    noted = {
        field.name: field.metadata[DEFAULT]
        for field in frame.schema.fields
        if DEFAULT in field.metadata
    }
    task = _writer(target.storage, operator, target.parallelism, target.epoch, columns, noted)
    ranges = reported_ranges(routed, task)
    if len(ranges) != target.parallelism:
        raise CheckpointError(
            f"operator {operator.uid!r}: {len(ranges)} of {target.parallelism} ranges were written"
            "; this is a defect of pystate: please report it"
        )
    return tuple(ranges[index] for index in range(target.parallelism))


def _frame(operator: OperatorSpec, given: Any, *, timers: bool = False) -> DataFrame:
    """The columns of a DataFrame, in order; the types of its key are those of the operator."""
    what = f"operator {operator.uid!r}, {'timers' if timers else 'rows'}"
    frame = require_classic(given, what)
    columns = check_columns(operator, frame.columns, timers=timers)
    if not timers:
        check_kept(operator, lambda name: frame.schema[name].dataType.simpleString() == "binary")
    names = [name for name, _ in operator.key]
    key = key_schema(frame.schema, names, what)
    wanted = tuple((name, type_.ddl) for name, type_ in operator.key)
    if tuple(key) != wanted:
        raise WrongTypeError(
            f"{what}: the key is ({', '.join(f'{name} {ddl}' for name, ddl in key)}) there, and "
            f"declared as ({describe(operator.key)}): the type decides where a key belongs; cast it"
        )
    return frame.select(*map(column_named, columns))


def _writer(
    storage: CheckpointStorage,
    operator: OperatorSpec,
    parallelism: int,
    epoch: int,
    columns: Sequence[str],
    noted: Mapping[str, str],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts, ranges = [], []
        for batch in batches:
            data, markers = split_markers(batch)
            parts.append(data)
            ranges += markers
        if len(ranges) != 1:
            raise CheckpointError(
                f"operator {operator.uid!r}: a task has the rows of {len(ranges)} ranges instead "
                "of one; this is a defect of pystate: please report it"
            )
        table = pa.Table.from_batches(parts)
        fields = [
            mark_default(field.with_name(name), noted.get(name))
            for field, name in zip(table.schema, columns, strict=True)
        ]
        rows = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
        is_timer: Any = rows.column(IS_TIMER)
        rows = rows.drop_columns([IS_TIMER])
        timers = None
        if operator.timers:
            timers = rows.filter(is_timer).drop_columns(list(operator.states))
            rows = rows.filter(pc.call_function("invert", [is_timer])).drop_columns(
                [TIMER_DOMAIN, TIMER_MS]
            )
        state = write_range(storage, operator, ranges[0], parallelism, epoch, rows, timers)
        yield range_report(state)

    return write
