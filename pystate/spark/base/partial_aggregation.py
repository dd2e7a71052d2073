"""Rows of a key combined before the shuffle, by Spark's own partial aggregation.

Spark plans an aggregation as a partial one in front of its shuffle and a final one behind it. Only
the first is wanted: where the rows go is not Spark's choice but that of `routing`, and the operator
itself is the final one. So the partial aggregation is taken out of the plan that Spark makes, and
put into a frame of its own. This needs classes of Spark that are not public. If they are not as
expected, or the frame's plan has a shuffle or anything else than what reads, filters and projects
rows, the whole aggregation is used: that costs a second shuffle, of few rows.

Expressions are SQL text: one text is one call to the JVM, where columns would be many, and all of
them are made anew for each epoch.

Thread safety: functions without state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.partial_rows import FIRST, LATE, TIME, WEIGHT
from pystate.redaction import logger
from pystate.spark.base.frame_columns import column_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LOG = logger("pystate.spark.base.partial_aggregation")

#: What users say: whether it pays is seen from earlier epochs; always; never.
Combine = Literal["auto", True, False]

#: Why rows cannot be combined.
ORDERED = "order_by says in which order they are added up"
NOT_INVALID = "max_ahead and invalid ask of each row whether it is invalid"
WITHOUT_ZONE = "Spark cannot compare event times without a time zone with a watermark"

#: Nodes of a plan over which the partial aggregation may stand alone: none of them has a shuffle,
#: or is replaced while the query runs.
_NARROW = frozenset(
    [
        "BatchScan",
        "ColumnarToRow",
        "Expand",
        "FileScan",
        "Filter",
        "Generate",
        "LocalTableScan",
        "Project",
        "Range",
        "Sample",
        "Scan",
        "Union",
    ]
)
_NODE = re.compile(r"^[ :]*(?:[:+]- )?\*?(?:\(\d+\) )?(\w+)", re.MULTILINE)
_DAY_MS = 86_400_000
_HALF_BITS, _LOWER = 32, (1 << 32) - 1

Function = Literal["count", "sum", "min", "max", "high", "low"]


class CombinedColumn(NamedTuple):
    """A column of combined rows: what the values of a column come to."""

    name: str
    function: Function
    source: str
    as_type: str | None = None
    """What its values are cast to, in DDL."""


def checked_combine(given: Any, owner: str) -> Combine:
    """Check the argument."""
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given == "auto":
        return "auto"
    raise InvalidArgumentError(
        f"{owner}: combine={given!r:.80} is 'auto', True or False: whether a key's rows are "
        "combined before the shuffle; a result column cannot have this name"
    )


def may_combine(combine: Combine, why_not: str | None, owner: str) -> bool:
    """Whether rows may be combined."""
    if combine is True and why_not is not None:
        raise InvalidArgumentError(f"{owner}: combine=True: rows cannot be combined: {why_not}")
    return combine is not False and why_not is None


def event_ms(column: str, data_type: st.DataType) -> str | None:
    """An event time in milliseconds, as `event_times` computes it; None for types without it."""
    if isinstance(data_type, st.TimestampType):
        return f"unix_millis({column})"
    if isinstance(data_type, st.DateType):
        return f"cast(unix_date({column}) as long) * {_DAY_MS}L"
    if isinstance(data_type, st.LongType):
        return column
    if isinstance(data_type, (st.ByteType, st.ShortType, st.IntegerType)):
        return f"cast({column} as long)"
    return None


def epoch_constant(value: int, beside: str) -> str:
    """A long that another epoch has another value of; null where `beside`, a long, is null.

    Spark writes a plain constant into the code that it generates, which is then new in each epoch:
    to compile it costs more than to run it over a million rows. An array is handed to the code, and
    an index that depends on a column keeps the optimizer from looking into it.
    """
    return f"get(array({value}L), cast(({beside}) * 0L as int))"


def combined_rows(
    frame: DataFrame,
    keys: Sequence[tuple[str, str]],
    columns: Sequence[CombinedColumn],
    time_ms: str | None = None,
    late_bound_ms: int | None = None,
    within: str | None = None,
    *,
    stretches: bool = False,
) -> DataFrame:
    """Combine the rows of each partition of a frame that are equal in `within`, an SQL expression.

    The result has the keys, `columns`, `WEIGHT`, and with `time_ms` (the rows' event time in SQL)
    `TIME`, `LATE` (how many are below `late_bound_ms`) and with `stretches` `FIRST`. A key may have
    a row per partition.
    """
    groups = [f"{column} AS k{i}" for i, (_, column) in enumerate(keys)]
    if within is not None:
        groups.append(f"{within} AS w")
    aggregates = _Aggregates()
    aggregates.add(WEIGHT, "count", "1")
    if time_ms is not None:
        aggregates.add(TIME, "max", time_ms)
        if stretches:
            aggregates.add(FIRST, "min", time_ms)
        if late_bound_ms is not None:
            late = f"CASE WHEN {time_ms} < {epoch_constant(late_bound_ms, time_ms)} THEN 1 END"
            aggregates.add(LATE, "count", late)
    for column in columns:
        aggregates.add_column(column)
    whole = frame.groupBy(*map(F.expr, groups)).agg(*map(F.expr, aggregates.columns()))
    rows = _partial(whole, len(groups), aggregates)
    names = [f"k{i}" for i in range(len(groups) - (within is not None))]
    result = aggregates.results(names, [name for name, _ in keys])
    if time_ms is not None and late_bound_ms is None:
        result.append(f"0L AS {LATE}")
    return (whole if rows is None else rows).selectExpr(*result)


class _Aggregates:
    """The aggregates that are computed; those that are asked for twice are computed once.

    Spark does so, too, and the columns of its partial aggregation have to be known.
    """

    def __init__(self) -> None:
        self._names_by_source: dict[tuple[str, str], str] = {}
        self._names: list[tuple[str, str]] = []

    def add(self, name: str, function: str, source: str) -> None:
        """Add a column of the result, of one of Spark's functions."""
        held = self._names_by_source.setdefault(
            (function, source), f"a{len(self._names_by_source)}"
        )
        self._names.append((name, held))

    def add_column(self, column: CombinedColumn) -> None:
        """Add a column of the result."""
        name, function, source = column.name, str(column.function), column_text(column.source)
        if column.as_type is not None:
            source = f"cast({source} as {column.as_type})"
        if function in ("high", "low"):
            # Sums of halves do not overflow, and need neither decimals nor checks.
            low = f"{source} & {_LOWER}L"
            source = low if function == "low" else f"shiftright({source}, {_HALF_BITS})"
            function = "sum"
        self.add(name, function, source)

    def columns(self) -> list[str]:
        """What Spark computes."""
        return [f"{f}({source}) AS {name}" for (f, source), name in self._names_by_source.items()]

    def buffers(self) -> list[tuple[str, str]]:
        """The name of each, and what the partial aggregation calls its column."""
        return [(name, function) for (function, _), name in self._names_by_source.items()]

    def results(self, keys: Sequence[str], names: Sequence[str]) -> list[str]:
        """The columns of the result."""
        pairs = [*zip(keys, names, strict=True), *((held, name) for name, held in self._names)]
        return [f"{held} AS {column_text(name)}" for held, name in pairs]


def _partial(whole: DataFrame, groups: int, wanted: _Aggregates) -> DataFrame | None:
    """The partial aggregation of a frame that is an aggregation; None if it cannot be had."""
    from pyspark.sql import DataFrame as Frame

    session = whole.sparkSession
    spark_sql = session.sparkContext._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    try:
        final = whole._jdf.queryExecution().sparkPlan()
        partial = final.children().apply(0)
        nodes = _NODE.findall(str(final.toString()))
        if nodes[:2] != ["HashAggregate"] * 2 or not set(nodes[2:]) <= _NARROW:
            _LOG.debug("a whole aggregation is used over %s", nodes)
            return None
        output = partial.output()
        if not _fits(str(output.mkString(" ")).split(" "), groups, wanted):
            _LOG.debug("a whole aggregation is used: %s", output.mkString(" "))
            return None
        util = session.sparkContext._jvm.PythonUtils  # type: ignore[union-attr]
        none = session.sparkContext._jvm.scala.Option.empty()  # type: ignore[union-attr]
        like = spark_sql.catalyst.plans.logical.LocalRelation(output, util.toSeq([]), False, none)
        node = spark_sql.execution.adaptive.LogicalQueryStage(like, partial)
        dataset = spark_sql.classic.Dataset.ofRows(session._jsparkSession, node)
        names = [f"k{i}" for i in range(groups)]
        rows = Frame(dataset, session).toDF(*names, *(name for name, _ in wanted.buffers()))
        # Sums of short decimals are longs up to the final aggregation.
        same = [f.dataType for f in rows.schema] == [f.dataType for f in whole.schema]
        return rows if same else None
    except (Py4JError, TypeError) as error:
        _LOG.debug("a whole aggregation is used: %s", error)
        return None


def _fits(output: Sequence[str], groups: int, wanted: _Aggregates) -> bool:
    """Whether a partial aggregation has one column for each aggregate, of the right kind."""
    functions = [name.split("#")[0] for name in output[groups:]]
    return functions == [function for _, function in wanted.buffers()]
