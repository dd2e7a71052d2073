"""Arguments of a job's methods: what is wrong with one is said before anything runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import DeclarationError, PystateError
from pystate.spark import Job, KeyedFrame, ParquetSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeJob = Callable[..., Job]


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        yield key, 1


class Proces(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def proces(self, key: Any, row: Any, ctx: Any) -> Any: ...


class Locked(Counts):
    def __init__(self) -> None:
        self.lock = threading.Lock()


FRAME = pd.DataFrame({"k": [1]})
LOCK = threading.Lock()


class Refers(Counts):
    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        with LOCK:
            yield key, 1


def frames(name: str) -> list[tuple[Any, str]]:
    """What is wrong for a frame."""
    return [
        ("df", f"^operator 'one': {name} is a DataFrame of Spark, not 'df'"),
        (FRAME, f"^operator 'one': {name} is a .*pandas.core.frame.DataFrame; .*createDataFrame"),
    ]


#: Of each method: a call that is right, and by argument what is wrong and how its message begins.
KEY_BY: dict[str, list[tuple[Any, str]]] = {
    "df": [
        ("df", "^df is a DataFrame of Spark, not 'df'"),
        (None, "^df is a DataFrame of Spark, not None"),
        (FRAME, "^df is a .* of type pandas.core.frame.DataFrame; .*createDataFrame"),
    ],
    "columns": [
        ("user", "^operator 'one': 'user' is not a column; columns: k, v, at$"),
        ("K.x", "^operator 'one': 'K.x' is not a column"),
        (None, "^operator 'one': None is not the name of a column"),
        (["k", "v"], "^operator 'one': .* name columns one by one"),
    ],
    "uid": [
        (3, "^uid is a string that names the operator, such as 'aircraft', not 3"),
        (None, "^a stateful operator needs a uid"),
        ("", "^a stateful operator needs a uid"),
    ],
    "order_by": [
        ("att", "^operator 'one': order_by: 'att' is not a column; .*did you mean 'at'"),
        (["v", "vv"], "^operator 'one': order_by: 'vv' is not a column"),
        (3, "^operator 'one': order_by is the name of a column, a Column .* not 3"),
    ],
    "event_time": [
        ("att", "^operator 'one': event_time: 'att' is not a column; .*did you mean 'at'"),
        (3, "^operator 'one': event_time: 3 is not the name of a column"),
        ("k", "^operator 'one': the event-time column 'k' is string"),
    ],
    "allowed_delay": [
        ("10 minuets", "^operator 'one': allowed_delay='10 minuets': write a length of time"),
        (-1, "^operator 'one': allowed_delay=-1 "),
    ],
    "idle_after": [
        ("soon", "^operator 'one': idle_after='soon': write a length of time"),
        (0, "^operator 'one': idle_after=0 "),
    ],
    "max_ahead": [
        ("soon", "^operator 'one': max_ahead='soon': write a length of time"),
        (-1, "^operator 'one': max_ahead=-1 "),
    ],
    "invalid": [
        (3, "^operator 'one': invalid, the tag of a side output, is a string, not 3"),
        ("drop", "^operator 'one': invalid='drop' is the tag of a side output; "),
        ("odd", "^operator 'one'.*'odd'.* side_outputs="),
    ],
    "initial_rows": frames("initial_rows"),
    "as_rows": [
        ("yes", "^operator 'one': as_rows is True or False, not 'yes'"),
        (None, "^operator 'one': as_rows is True or False, not None"),
    ],
}
PROCESS: dict[str, list[tuple[Any, str]]] = {
    "function": [
        (Counts, "pass an instance"),
        (print, "is no KeyedProcessFunction"),
        (None, "None is no KeyedProcessFunction"),
        (Proces(), r"^Proces has neither process\(.*\) nor process_rows\(.*did you mean proces "),
        (Locked(), "^Locked.lock = <unlocked .* cannot go to the tasks, .*make it in open"),
        (Refers(), "^Refers cannot go to the tasks, .* its code refers to"),
    ],
    "schema": [
        (3, "^operator 'one': schema is DDL such as .*, not 3"),
        (None, "^operator 'one': schema is DDL such as .*, not None"),
        ("k strin, n long", "^operator 'one': schema 'k strin, n long' does not parse"),
    ],
    "side_outputs": [
        ("side", "^operator 'one': side_outputs is a dict, not 'side' .*: write side_outputs={"),
        (["side"], "^operator 'one': side_outputs is a dict, not"),
        ({3: "k string"}, "^operator 'one': side_outputs has the key 3, which is no name"),
        ({"side": 3}, "^operator 'one', side output 'side': schema is DDL"),
    ],
    "late": [
        (3, "^operator 'one': late is a string, not 3 of type int, but 'process', 'drop' or"),
        (None, "^operator 'one': late is a string, not None, but 'process', 'drop' or the tag"),
        ("dropp", "^operator 'one'.*'dropp'.* side_outputs="),
    ],
    "initial_state": frames("initial_state"),
    "initial_timers": frames("initial_timers"),
}
RUN: dict[str, list[tuple[Any, str]]] = {
    "data": [
        ("df", "^data is a DataFrame of Spark, not 'df'"),
        (None, "^data is a DataFrame of Spark, not None"),
        (FRAME, "^data is a .* of type pandas.core.frame.DataFrame; .*createDataFrame"),
    ],
    "pipeline": [
        ("p", "^pipeline is a function from an epoch's DataFrame to the rows to write, not 'p'"),
        (None, "^pipeline is a function .*, not None"),
        (FRAME, "^pipeline is a function .*; pass the function itself"),
    ],
    "run_key": [
        (3, "^run_key is a string, not 3"),
        ("", "^run_key is a string, not ''"),
        ("pystate drain after epoch 3", "^run_key='pystate drain .*take another one, with drain="),
    ],
    "drain": [
        ("yes", "^drain is True or False, not 'yes'"),
        (None, "^drain is True or False, not None"),
    ],
    "sink": [
        ("out", r"^sink is a sink, for example ParquetSink\('out'\), not 'out'"),
        (Path("out"), r"^sink is a sink, for example ParquetSink\('out'\), not"),
        (ParquetSink, "^sink is a sink, .*; pass an object of it"),
        (print, r"^sink is a sink, .*write foreach_epoch\(function\)$"),
        (3, "^sink is a sink"),
    ],
    "side_outputs": [
        ("out", "^side_outputs is a dict, not 'out'"),
        ({3: ParquetSink("out")}, "^side_outputs has the key 3"),
        ({"late": "out"}, r"^side_outputs\['late'\] is 'out': give each tag a sink"),
        ({"late": None}, r"^side_outputs\['late'\] is None: give each tag a sink"),
    ],
    "schema": [(3, "^run_epoch: schema is DDL such as")],
    "on_epoch": [("print", "^on_epoch is a function, such as print, not 'print'")],
    "progress": [
        (1, "^progress is True, False or 'always', not 1"),
        (None, "^progress is True, False or 'always', not None"),
        ("alway", "^progress is True, False or 'always', not 'alway' .*did you mean 'always'"),
    ],
}
START: dict[str, list[tuple[Any, str]]] = {
    "stream": [(data, message.replace("data", "stream", 1)) for data, message in RUN["data"]],
    **{name: RUN[name] for name in ("pipeline", "sink", "side_outputs", "on_epoch", "progress")},
    "trigger": [
        ("10 seconds", "^trigger is a dict, not '10 seconds' .*: write trigger={'processingTime"),
        ("availableNow", r"^trigger is a dict, not .*: write trigger=\{'availableNow': True\}"),
        ({"availableNoww": True}, "^trigger has 'availableNoww', .*did you mean 'availableNow'"),
    ],
    "heartbeat": [("often", "^heartbeat='often': write a length"), (0, "^heartbeat=0 is 0 ms")],
    "drain": [*RUN["drain"], (True, "^drain=True takes .* trigger=None it never ends: pass trig")],
    "observe": [
        (True, "^observe is the name of a metric .* such as 'pystate', not True"),
        ("", "^observe is the name of a metric"),
    ],
    "query_name": [(3, "^query_name is a string, not 3")],
    "restore": [("lates", "^restore is 'latest', not 'lates' .*mean 'latest'"), (3, "^restore is")],
}
PARTITION_BY: dict[str, list[tuple[Any, str]]] = {
    "rdd": [("rdd", "^operator 'one': rdd is an RDD, not 'rdd'"), (None, "rdd is an RDD, not No")],
    "key": [
        ("k", "^operator 'one': key is a function from an element to its key"),
        (None, "key i"),
    ],
    "key_type": [
        ("longg", "^operator 'one': key_type: type 'longg' .*did you mean 'long'"),
        (3, "^operator 'one': key_type is the key's type"),
        (None, "^operator 'one': key_type is the key's type"),
        ([], "^operator 'one': key_type is the key's type"),
    ],
    "uid": KEY_BY["uid"],
    "event_time": [("at", "^operator 'one': over an RDD event_time is a function")],
    "allowed_delay": KEY_BY["allowed_delay"],
    "idle_after": KEY_BY["idle_after"],
}
PARTITIONS: dict[str, list[tuple[Any, str]]] = {
    "function": PROCESS["function"],
    "uid": KEY_BY["uid"],
    "schema": PROCESS["schema"][:1] + PROCESS["schema"][2:],
    "side_outputs": PROCESS["side_outputs"],
    "late": PROCESS["late"],
    "initial_state": PROCESS["initial_state"],
    "initial_timers": PROCESS["initial_timers"],
}
ALL = [
    (Job.key_by, KEY_BY),
    (KeyedFrame.process, PROCESS),
    (Job.run_epoch, RUN),
    (Job.start, START),
    (Job.partition_by, PARTITION_BY),
    (Job.partitions, PARTITIONS),
]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 1, 1)], "k string, v long, at long")


@pytest.mark.parametrize(("method", "table"), ALL, ids=lambda v: getattr(v, "__name__", ""))
def test_every_argument_is_in_its_table(method: Any, table: Any) -> None:
    assert set(inspect.signature(method).parameters) - {"self"} == set(table)


def arguments(table: dict[str, list[tuple[Any, str]]]) -> list[tuple[str, Any, str]]:
    return [(name, bad, message) for name, bads in table.items() for bad, message in bads]


def refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises(PystateError, match=message) as raised:
        act()
    assert "\n" not in str(raised.value) and "__pystate" not in str(raised.value)


def test_inside_a_pipeline(frame: DataFrame, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        def key_by(**given: Any) -> KeyedFrame:
            columns = given.pop("columns", "k")
            given = {"df": df, "uid": "one", "event_time": "at", **given}
            return job.key_by(given.pop("df"), columns, **given)

        def process(**given: Any) -> DataFrame:
            given = {"function": Counts(), "schema": "k string, n long", **given}
            return key_by().process(given.pop("function"), given.pop("schema"), **given)

        def partition_by(**given: Any) -> Any:
            given = {"rdd": df.rdd, "key": str, "key_type": "string", "uid": "one", **given}
            given.setdefault("event_time", str)
            return job.partition_by(given.pop("rdd"), given.pop("key"), **given)

        def partitions(**given: Any) -> Any:
            return job.partitions(
                given.pop("function", Counts()), uid=given.pop("uid", "two"), **given
            )

        for name, bad, message in arguments(KEY_BY):
            refused(  # a join's right input has no uid, and so an operator is made to miss it
                lambda given={name: bad}: key_by(**given).process(Counts(), "k string, n long"),  # type: ignore[misc]
                message,
            )
        for name, bad, message in arguments(PROCESS):
            refused(lambda given={name: bad}: process(**given), message)  # type: ignore[misc]
        for name, bad, message in arguments(PARTITION_BY):
            refused(lambda given={name: bad}: partition_by(**given), message)  # type: ignore[misc]
        job.partition_by(df.rdd, str, key_type="string", uid="two", event_time=str)
        for name, bad, message in arguments(PARTITIONS):
            message = message.replace("'one'", "'two'")
            refused(lambda given={name: bad}: partitions(**given), message)  # type: ignore[misc]
        order = "^operator 'one': order_by=.* does not fit the columns k, v, at: "
        refused(lambda: key_by(order_by=F.col("att")), order)
        refused(lambda: key_by(order_by=["v", F.col("att").desc()]), order)
        refused(lambda: key_by().aggregate(), "^operator 'one': name at least one aggregate")
        refused(
            lambda: key_by().aggregate(ps.count()), r"give count\(\) the name of its result column"
        )
        refused(lambda: key_by().aggregate(n="count"), "n='count' is no aggregate")
        refused(lambda: key_by().aggregate(n=None), "n=None is no aggregate")
        refused(
            lambda: key_by().aggregate(n=ps.sum("att")), r"sum\(att\): .att. is not .* mean .at."
        )
        raise DeclarationError("all were refused")

    with pytest.raises(DeclarationError, match="all were refused"):
        job.run_epoch(frame, pipeline)
    assert job.latest_epoch() is None


def test_of_a_run_and_a_start(frame: DataFrame, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="one").process(Counts(), "k string, n long")

    for name, bad, message in arguments(RUN):
        given = {"data": frame, "pipeline": pipeline, name: bad}
        if name == "schema":
            given["pipeline"] = lambda df: df.rdd
        refused(lambda given=given: job.run_epoch(**given), message)  # type: ignore[misc]
    stream = frame.sparkSession.readStream.format("rate").load()
    for name, bad, message in arguments(START):
        given = {"stream": stream, "pipeline": pipeline, name: bad}
        refused(lambda given=given: job.start(**given), message)  # type: ignore[misc]
    refused(lambda: job.read_state(3), "^uid is a string")  # type: ignore[arg-type]
    refused(lambda: job.read_state(None), "needs a uid")  # type: ignore[arg-type]
    assert job.latest_epoch() is None
    assert not frame.sparkSession.streams.active
