"""The same processors over the same batches, by Spark and by pystate.

Many processors run in one query: the input is one stream, each processor is a branch of it, and
the branches' rows are united as text. The stream is a folder with a file for each batch, which
Spark reads by `availableNow`, a file at a time. The batch that Spark adds at the end, without rows,
is an epoch over an empty frame for pystate.

The watermark is the same in both: the largest event time of the batches before, less the delay.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pystate as ps
from pystate.spark import Job
from pystate.spark.ported.schemas import read_struct
from pystate.spark.ported.states import MapKeys
from tests.spark.plans import ONE_TASK, configured

COLUMNS = "k string, j int, i long, op string, v long, x double, t timestamp, ms long"
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("j", pa.int32()),
        ("i", pa.int64()),
        ("op", pa.string()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
        ("ms", pa.int64()),
    ]
)
OPS = ("add", "add", "add", "more", "put", "get", "remove", "clear")
BASE = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
DELAY = "2 seconds"
SETTINGS = {
    **ONE_TASK,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # An operator over a reused exchange does not see the watermark, if batches without rows are on.
    "spark.sql.exchange.reuse": "false",
}
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"

Batch = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A processor, and how it is called."""

    processor: Callable[[], Any]
    output: str
    time_mode: str = "None"
    keys: tuple[str, ...] = ("k",)
    pandas: bool = False
    initial: Callable[[SparkSession], DataFrame] | None = None
    #: The state variables to compare in the end, each with its kind.
    states: Mapping[str, str] = field(default_factory=dict)
    #: The schemas of a map's keys of several fields: what `read_state` gives are their bytes.
    keys_of: Mapping[str, str] = field(default_factory=dict)
    timers: bool = False
    #: For a function of `applyInPandasWithState`: the state's schema and the timeout.
    function_state: str | None = None
    timeout: str = "NoTimeout"
    #: The state is read with its own types, and not as text.
    exact: bool = False
    #: The rows that the processor gets.
    only: str = "true"
    #: A watermark is declared although the time mode is none of event time.
    watermark: bool = False


@dataclass
class Run:
    """What came out, a counter of (case, row) per batch, and where the state is."""

    outputs: list[Counter[tuple[str, str]]]
    checkpoint: Path


def made_batches(seed: int, n: int = 4, size: int = 36) -> list[Batch]:
    """Random rows; their times go on with the batches, and some are late."""
    draw = random.Random(seed)
    batches: list[Batch] = []
    i = 0
    for b in range(n):
        batch = []
        for _ in range(size):
            seconds = 8 * b + draw.randrange(10_000) / 1000
            # Late by the watermark of the batch before as well, by which Spark drops rows.
            if b > 1 and draw.random() < 0.08:
                seconds -= 30
            ms = int(BASE.timestamp() * 1000) + int(seconds * 1000)
            keys = ["a", "b", "c", "é", "", None, *(["rare"] if b == 0 else [f"new{b}"])]
            batch.append(
                {
                    "k": draw.choice(keys),
                    "j": draw.choice((None, 1, 2)),
                    "i": i,
                    "op": draw.choice(OPS),
                    "v": draw.choice((None, *range(12))),
                    "x": draw.choice((None, *(q / 4 for q in range(-20, 20)))),
                    "t": dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc),
                    "ms": ms,
                }
            )
            i += 1
        batches.append(batch)
    return batches


def write_batches(folder: Path, batches: Sequence[Batch]) -> list[Path]:
    """A file per batch, each newer than the one before."""
    folder.mkdir()
    paths = []
    for b, batch in enumerate(batches):
        path = folder / f"{b:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(batch, SCHEMA), path)
        os.utime(path, (1_700_000_000 + b,) * 2)
        paths.append(path)
    return paths


def settings(spark: SparkSession, **more: str) -> AbstractContextManager[None]:
    """Spark with the state store that transformWithState needs, and few partitions."""
    return configured(spark, {**SETTINGS, **more})


def as_text(name: str, frame: DataFrame) -> DataFrame:
    """Rows with the case's name, as JSON."""
    row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return frame.select(F.lit(name).alias("case"), row.alias("row"))


def united(frames: Sequence[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def spark_branch(case: Case, rows: DataFrame, mode: str) -> DataFrame:
    """A case as Spark's own users write it."""
    grouped = rows.filter(case.only).groupBy(*case.keys)
    if case.function_state is not None:
        return grouped.applyInPandasWithState(
            case.processor, case.output, case.function_state, mode, case.timeout
        )
    initial = case.initial and case.initial(rows.sparkSession).groupBy(*case.keys)
    call = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
    return call(case.processor(), case.output, mode, case.time_mode, initial)


def stream_of(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """The batches as a stream, a file at a time."""
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    return reader.option("maxFileAge", "36500d").parquet(paths[0].parent.as_uri())


def on_spark(
    spark: SparkSession,
    cases: Mapping[str, Case],
    paths: Sequence[Path],
    checkpoint: Path,
    *,
    mode: str = "Update",
    no_data: bool = False,
    branch: Callable[[Case, DataFrame, str], DataFrame] = spark_branch,
    first: int = 0,
) -> Run:
    """Run the cases as one streaming query, which goes on with the batch `first`."""
    outputs: list[Counter[tuple[str, str]]] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        assert batch_id == first + len(outputs)
        outputs.append(Counter((row.case, row.row) for row in frame.collect()))

    with settings(spark, **{NO_DATA: str(no_data).lower()}):
        rows = stream_of(spark, paths).withWatermark("t", DELAY)
        whole = united([as_text(name, branch(case, rows, mode)) for name, case in cases.items()])
        writer = whole.writeStream.foreachBatch(collect).outputMode(mode.lower())
        query = writer.option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
    return Run(outputs, checkpoint)


def canonical(value: Any) -> Any:
    """A value of state, whichever engine it was read from: structs and tuples are lists."""
    if isinstance(value, Mapping):
        return [canonical(v) for v in value.values()]
    if isinstance(value, (list, tuple)):
        return [canonical(v) for v in value]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
        return aware.astimezone(dt.timezone.utc).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value.normalize())
    if isinstance(value, float) and value != value:
        return "NaN"
    return value


State = dict[str, dict[str, Any]]
"""Per key (as text): a value, a list of items, or sorted entries of a map."""


def spark_states(spark: SparkSession, run: Run, cases: Mapping[str, Case]) -> dict[str, State]:
    """The final state by Spark's own reader: case.variable to its keys' values."""
    found: dict[str, State] = {}
    frames = []
    for operator, (name, case) in enumerate(cases.items()):
        for variable, kind in case.states.items():
            reader = spark.read.format("statestore").option("operatorId", operator)
            reader = reader.option("stateVarName", variable)
            frame = reader.option("flattenCollectionTypes", False).load(str(run.checkpoint))
            content = {
                "value": "value",
                "list": "list_value",
                "map": "map_entries(map_value)",
            }[kind]
            label = f"{name}.{variable}"
            frame = frame.select("key", F.expr(content).alias("content"))
            found[label] = {}
            if case.exact:
                table = frame.toArrow()
                for key, value in zip(*(c.to_pylist() for c in table.columns), strict=True):
                    found[label][repr(canonical(key))] = sorted_map(canonical(value), kind)
            else:
                frames.append(as_text(label, frame))
    for row in united(frames).collect() if frames else ():
        content = json.loads(row.row)
        key, value = canonical(content["key"]), canonical(content["content"])
        found[row.case][repr(key)] = sorted_map(value, kind_of(cases, row.case))
    return found


def kind_of(cases: Mapping[str, Case], label: str) -> str:
    name, variable = label.split(".", 1)
    return cases[name].states[variable]


def sorted_map(value: Any, kind: str) -> Any:
    return sorted(value, key=repr) if kind == "map" else value


def spark_timers(spark: SparkSession, run: Run, operator: int) -> list[Any]:
    """The timers that are registered in the end."""
    reader = spark.read.format("statestore").option("operatorId", operator)
    frame = reader.option("readRegisteredTimers", True).load(str(run.checkpoint))
    rows = frame.select("key", "expiration_timestamp_ms").collect()
    return sorted(([canonical(tuple(row[0])), row[1]] for row in rows), key=repr)


def ported_branch(case: Case, name: str, rows: DataFrame, job: Job) -> DataFrame:
    """The same case by the drop-in."""
    rows = rows.filter(case.only)
    timed = case.time_mode == "EventTime" or case.timeout == "EventTimeTimeout" or case.watermark
    time: dict[str, Any] = {"event_time": "t", "allowed_delay": DELAY} if timed else {}
    keyed = job.key_by(rows, *case.keys, uid=name, **time)
    if case.function_state is not None:
        return keyed.apply_in_pandas_with_state(
            case.processor, case.output, case.function_state, "Update", case.timeout
        )
    initial = case.initial and case.initial(rows.sparkSession).groupBy(*case.keys)
    call = keyed.transform_with_state_in_pandas if case.pandas else keyed.transform_with_state
    return call(case.processor(), case.output, "Update", case.time_mode, initial)


def united_branches(
    cases: Mapping[str, Case],
    rows: DataFrame,
    job: Job,
    branch: Callable[[Case, str, DataFrame, Job], DataFrame] = ported_branch,
) -> DataFrame:
    """A pipeline of all cases."""
    return united([as_text(name, branch(c, name, rows, job)) for name, c in cases.items()])


def on_pystate(
    spark: SparkSession,
    cases: Mapping[str, Case],
    paths: Sequence[Path],
    checkpoint: Path,
    *,
    no_data: bool = False,
    branch: Callable[[Case, str, DataFrame, Job], DataFrame] = ported_branch,
) -> Run:
    """Run the cases as one job, an epoch per batch."""

    def pipeline(rows: DataFrame, job: Job) -> DataFrame:
        return united_branches(cases, rows, job, branch)

    outputs = []
    with (
        configured(spark, ONE_TASK),
        Job("differential", checkpoint=checkpoint, parallelism=1) as job,
    ):
        for path in [*paths, None] if no_data else paths:
            reader = spark.read.schema(COLUMNS)
            rows = reader.parquet(str(path)) if path else spark.createDataFrame([], COLUMNS)
            result = job.run_epoch(rows, pipeline)
            outputs.append(Counter((r.case, r.row) for r in result.dataframe.collect()))
    return Run(outputs, checkpoint)


def ported_states(run: Run, cases: Mapping[str, Case]) -> dict[str, State]:
    """The final state by `ps.read_state`."""
    found: dict[str, State] = {}
    for name, case in cases.items():
        if not case.states:
            continue
        table = ps.read_state(run.checkpoint, name)
        key_columns = [table.column(key).to_pylist() for key in case.keys]
        for variable, kind in case.states.items():
            # A state that is called like a key column has another name in the checkpoint.
            held = variable if variable not in case.keys else f"{variable}_"
            values = table.column(held).to_pylist()
            state = found[f"{name}.{variable}"] = {}
            for *key, value in zip(*key_columns, values, strict=True):
                if value is not None and value != []:
                    if kind == "map":
                        value = entries(value, case.keys_of.get(variable))
                    state[repr(canonical(key))] = sorted_map(canonical(value), kind)
    return found


def entries(value: Any, key_schema: str | None) -> list[Any]:
    """A map's entries, with keys that are lists of fields."""
    if key_schema is None:
        return [[[key], item] for key, item in value]
    keys = MapKeys(read_struct(key_schema, "a map's key"))
    return [[keys.unpack(key), item] for key, item in value]


def ported_timers(run: Run, name: str, keys: Sequence[str]) -> list[Any]:
    """The timers that are registered in the end."""
    table = ps.read_state(run.checkpoint, name, timers=True)
    rows = zip(*(table.column(n).to_pylist() for n in (*keys, "timer_ms")), strict=True)
    return sorted(([canonical(key), at] for *key, at in rows), key=repr)


def differences(
    spark: SparkSession,
    cases: Mapping[str, Case],
    folder: Path,
    batches: Sequence[Batch],
    *,
    no_data: bool = False,
) -> list[str]:
    """Run the cases on both, and say where rows, states or timers differ."""
    paths = write_batches(folder / "input", batches)
    theirs = on_spark(spark, cases, paths, folder / "spark", no_data=no_data)
    ours = on_pystate(spark, cases, paths, folder / "pystate", no_data=no_data)
    kept = spark_kept(spark, theirs, cases)
    return output_differences(theirs, ours) + kept_differences(kept, ported_kept(ours, cases))


Kept = dict[str, dict[str, Any]]
"""By state and key what is in it, and by the timers' key and time that they are there."""


def spark_kept(spark: SparkSession, run: Run, cases: Mapping[str, Case]) -> Kept:
    """States and timers of Spark in the end."""
    kept = spark_states(spark, run, cases)
    for operator, (name, case) in enumerate(cases.items()):
        if case.timers:
            kept[f"{name}, timers"] = {repr(t): True for t in spark_timers(spark, run, operator)}
    return kept


def ported_kept(run: Run, cases: Mapping[str, Case]) -> Kept:
    """States and timers of pystate in the end."""
    kept = ported_states(run, cases)
    for name, case in cases.items():
        if case.timers:
            kept[f"{name}, timers"] = {repr(t): True for t in ported_timers(run, name, case.keys)}
    return kept


def kept_differences(theirs: Kept, ours: Kept) -> list[str]:
    """Where states and timers differ."""
    assert theirs.keys() == ours.keys()
    return [
        f"{label} of {key}: Spark {theirs[label].get(key)}, pystate {ours[label].get(key)}"
        for label in theirs
        for key in sorted({*theirs[label], *ours[label]})
        if theirs[label].get(key) != ours[label].get(key)
    ]


def output_differences(theirs: Run, ours: Run) -> list[str]:
    """Rows that only one of the engines has, by batch."""
    found = []
    if len(theirs.outputs) != len(ours.outputs):
        found.append(f"{len(theirs.outputs)} batches in Spark, {len(ours.outputs)} in pystate")
    for b, (one, other) in enumerate(zip(theirs.outputs, ours.outputs, strict=False)):
        for who, rest in (("Spark", one - other), ("pystate", other - one)):
            found += [
                f"batch {b}, {name}, {who} alone, {n}x: {row}" for (name, row), n in rest.items()
            ]
    return found
