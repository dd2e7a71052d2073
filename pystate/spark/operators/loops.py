"""Cycles in a pipeline: rows that one epoch feeds back, and the next one reads.

The rows in flight are the state of a keyed operator (`operators.runtime.loop`), so that they are
checkpointed, rescaled and restored like any state. Its tasks emit nothing, and run because their
output is united with the pipeline's result. The rows of the epoch before are read from the same
tables by tasks of their own, which begin nothing and report nothing: reading changes no state, and
may happen any number of times, also after the loop's own tasks have sealed the table.

Thread safety: a `FeedbackLoop` belongs to the thread that runs the epoch; a reader to its task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.checkpoint.refs import BUCKET, EMPTY_ID, LOOP_KEY
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.loop import LoopOperator, LoopSpec, LoopTable, buckets
from pystate.operators.runtime.output import OutputColumns
from pystate.spark.base.connection import at_once
from pystate.spark.base.environment import require_classic
from pystate.spark.base.frame_columns import ColumnPath, FrameColumns
from pystate.spark.base.job_description import plan_name
from pystate.spark.base.routing import route
from pystate.spark.base.schemas import output_columns, parse_schema, refuse_reserved
from pystate.spark.operators.apply import Application, declare, run
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.tables.attach import tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pystate.spark.evaluation.evaluation import Evaluation

#: Wider numbers, which a column may be cast to without loss.
_WIDER: Mapping[type[st.DataType], tuple[type[st.DataType], ...]] = {
    st.ByteType: (st.ShortType, st.IntegerType, st.LongType),
    st.ShortType: (st.IntegerType, st.LongType),
    st.IntegerType: (st.LongType, st.DoubleType),
    st.FloatType: (st.DoubleType,),
}
_NULL = st.NullType()
#: Batches of rows that a reader takes out of a table at once.
_HELD_BATCHES = 16
#: The columns of what a loop's tasks emit, which is nothing.
_NOTHING = st.StructType([st.StructField("nothing", st.IntegerType())])


class FeedbackLoop:
    """A loop in one epoch of a pipeline, made by `Job.feedback`."""

    def __init__(
        self,
        evaluation: Evaluation,
        name: str,
        schema: str | st.StructType,
        uid: str,
        event_time: str | None,
    ) -> None:
        self.uid = uid
        self._evaluation = evaluation
        self._owner = owner = f"loop {name!r}"
        self._schema = declared = _nullable(parse_schema(schema, owner))
        refuse_reserved(declared.names, owner)
        self._output = output_columns(declared, owner)
        if event_time is not None:
            if event_time not in declared.names:
                raise InvalidArgumentError(
                    f"{owner}: event_time={event_time!r} is not a column; the loop has "
                    f"{', '.join(declared.names)}"
                )
            type_ = self._output.schema.field(event_time).type
            event_times(pa.array([], type_), f"{owner}: event-time column {event_time!r}")
        self._spec = LoopSpec.of([(f.name, f.dataType) for f in declared], owner)
        self._applied = Application(
            self._spec.operator(uid),
            LOOP_KEY,
            partial(LoopOperator, self._spec, event_time),
            (),
            _by_bucket,
            _NOTHING,
            counted=False,
            replaces=True,
        )
        self._plan = declare(evaluation, self._applied)
        self._rows: DataFrame | None = None
        self._fed: DataFrame | None = None
        evaluation.add_loop(self)

    def rows(self) -> DataFrame:
        """Return the rows that the epoch before has fed back; none in the first epoch.

        Returns
        -------
        DataFrame
            The loop's columns; rows come in no particular order. It may be read any number of
            times. Watermarks wait for its rows only if the loop has an `event_time`.
        """
        if self._rows is None:
            plan, schema = self._plan, self._schema
            numbers = [f"c{i}" for i in range(len(schema))]
            fields = [
                st.StructField(name, field.dataType)
                for name, field in zip(numbers, schema, strict=True)
            ]
            read = _LoopReader(plan, self._spec, self._output)
            ranges = _indices(self._evaluation.session, plan.parallelism)
            rows = ranges.mapInArrow(read, st.StructType(fields)).toDF(*schema.names)
            self._rows = self._evaluation.loop_rows(self.uid, rows)
        return self._rows

    def feed(self, df: DataFrame) -> None:
        """Feed rows back: the next epoch reads them, whatever happens in between.

        Parameters
        ----------
        df : DataFrame
            Rows with the loop's columns, in any order. It is computed with the epoch's output.

        Raises
        ------
        DeclarationError
            Rows were fed in this epoch already.
        InvalidArgumentError
            A column is missing, or there is one too many.
        WrongTypeError
            A column has another type; only whole numbers and floats are widened.
        """
        if self._fed is not None:
            raise DeclarationError(
                f"{self._owner} is fed twice in one epoch: feed the union of both frames, "
                "loop.feed(one.unionByName(other))"
            )
        require_classic(df, "feed: df")
        self._fed = self._selected(df)

    def finish(self) -> DataFrame:
        """Return the output of the tasks that take the fed rows: it has no rows.

        Raises
        ------
        DeclarationError
            The pipeline has not read the loop's rows, which would be lost.
        """
        if self._rows is None:
            raise DeclarationError(
                f"{self._owner}: the pipeline does not read its rows, so that those which the "
                "epoch before has fed would be lost: use loop.rows(), and feed back with "
                "loop.feed(...) what is to stay on the loop"
            )
        fed = self._fed
        if fed is None:
            nothing = self._evaluation.session.range(0)
            empty = (F.lit(None).cast(f.dataType).alias(f.name) for f in self._schema)
            fed = self._selected(nothing.select(*empty))
        return run(replace(self._applied, frames=[fed]), self._plan)

    def _selected(self, df: DataFrame) -> DataFrame:
        """The loop's columns of a frame, and the rows' buckets."""
        owner = f"{self._owner}: feed"
        columns = FrameColumns(df, owner)
        paths = {field.name: columns.find(field.name) for field in self._schema}
        used = {path.parts[0] for path in paths.values()}
        others = [name for name in df.columns if name not in used]
        if others:
            raise InvalidArgumentError(
                f"{owner}: the loop has no column {', '.join(map(repr, others))}: it has "
                f"{', '.join(self._schema.names)}; select these"
            )
        values = [_as_declared(paths[field.name], field, owner) for field in self._schema]
        return df.select(*values, self._bucket(paths).alias(BUCKET))

    def _bucket(self, paths: Mapping[str, ColumnPath]) -> Column:
        """A row's bucket: by its content, so that it is the same if a task runs again."""
        hashed = [path.column for path in paths.values() if _can_be_hashed(path.data_type)]
        number = F.xxhash64(*hashed) if hashed else F.monotonically_increasing_id()
        return F.pmod(number, F.lit(buckets(self._plan.parallelism)).cast("long"))


def _by_bucket(frames: Sequence[DataFrame], plan: OperatorPlan) -> tuple[DataFrame, Sequence[str]]:
    """The fed rows in front of their tasks."""
    [fed], operator = frames, plan.operator
    return route(fed, [BUCKET], operator.max_parallelism, plan.parallelism), fed.columns


class _LoopReader:
    """The function that `mapInArrow` runs to read a loop's rows: from numbers of ranges to rows."""

    def __init__(self, plan: OperatorPlan, spec: LoopSpec, output: OutputColumns) -> None:
        self._plan = plan
        self._spec = spec
        self._output = output
        # Spark's name for the function in plans.
        self.__name__ = plan_name(plan.operator.uid)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task."""
        for batch in at_once(batches):
            for index in batch.column(0).to_numpy():
                yield from self._read(index)

    def _read(self, index: int) -> Iterator[pa.RecordBatch]:
        state = self._plan.ranges[index]
        if state.id == EMPTY_ID and not state.files:
            return
        with tables.attach_to_read(self._plan.table(state), state) as attachment:
            pieces = LoopTable(self._spec, attachment.backend).rows()
            first = list(islice(pieces, _HELD_BATCHES))
            if len(first) < _HELD_BATCHES:
                # That was all. Other tasks need not wait for whoever takes the rows.
                attachment.release()
            for rows in chain(first, pieces):
                yield from self._output.from_value(rows)


def _indices(session: SparkSession, count: int) -> DataFrame:
    """Numbers from 0, each in a partition of its own, in a frame whose size Spark does not know.

    Of a range it would conclude that few rows are in flight, and send them all to every task of a
    join.
    """
    from pyspark.sql import DataFrame

    numbers: Any = session.range(0, count, 1, count)._jdf
    rows = numbers.queryExecution().toRdd()
    made = session._jsparkSession.internalCreateDataFrame(rows, numbers.schema(), False)
    return DataFrame(made, session)


def _nullable(schema: st.StructType) -> st.StructType:
    return st.StructType([st.StructField(field.name, field.dataType) for field in schema])


def _as_declared(path: ColumnPath, field: st.StructField, owner: str) -> Column:
    """A column under the loop's name, and in its type."""
    column, data_type, wanted = path.column, path.data_type, field.dataType
    same = data_type.simpleString() == wanted.simpleString()
    wider = (*_WIDER.get(type(data_type), ()), *([type(wanted)] if data_type == _NULL else ()))
    if not same and type(wanted) not in wider:
        raise WrongTypeError(
            f"{owner}: column {field.name!r} is {data_type.simpleString()}, and the loop's is "
            f"{wanted.simpleString()}: cast it"
        )
    return (column if same else column.cast(wanted)).alias(field.name)


def _can_be_hashed(data_type: st.DataType) -> bool:
    """Whether Spark's hash takes a type: not a map, nor what has one inside."""
    if isinstance(data_type, st.StructType):
        return all(_can_be_hashed(field.dataType) for field in data_type)
    if isinstance(data_type, st.ArrayType):
        return _can_be_hashed(data_type.elementType)
    return not isinstance(data_type, (st.MapType, st.VariantType, st.NullType))
