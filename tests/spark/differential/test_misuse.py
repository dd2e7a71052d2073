"""What is an error under Spark is one under pystate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from pystate.errors import PystateError
from pystate.spark import Job

from .processors import Out, Processor, Rows
from .running import settings


class Misuse(Processor):
    """Does what it is told to, in `init` or with the rows."""

    def __init__(self, begin: Any = None, work: Any = None) -> None:
        self.begin = begin
        self.work = work

    def declare(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n long")
        self.items = handle.getListState("items", "n long")
        self.map = handle.getMapState("map", "n long", "s string")
        if self.begin is not None:
            self.begin(self, handle)

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        if self.work is None:
            return iter([Row(k=key[0], n=1)])
        found = self.work(self, self.handle)
        return found if hasattr(found, "__next__") else iter([Row(k=key[0], n=1)])


MISUSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none_as_value": ({"work": lambda p, h: p.value.update(None)}, {}),
    "too_many_fields": ({"work": lambda p, h: p.value.update((1, 2))}, {}),
    "text_for_number": ({"work": lambda p, h: p.value.update(("x",))}, {}),
    "empty_list": ({"work": lambda p, h: p.items.put([])}, {}),
    "empty_append": ({"work": lambda p, h: p.items.appendList([])}, {}),
    "none_as_map_key": ({"work": lambda p, h: p.map.updateValue(None, ("a",))}, {}),
    "none_as_map_value": ({"work": lambda p, h: p.map.updateValue((1,), None)}, {}),
    "timer_without_time": ({"work": lambda p, h: h.registerTimer(1)}, {}),
    "delete_without_time": ({"work": lambda p, h: h.deleteTimer(1)}, {}),
    "list_without_time": ({"work": lambda p, h: list(h.listTimers())}, {}),
    "state_after_init": ({"work": lambda p, h: h.getValueState("late", "n long")}, {}),
    "delete_after_init": ({"work": lambda p, h: h.deleteIfExists("value")}, {}),
    "timer_in_init": ({"begin": lambda p, h: h.registerTimer(1)}, {"time": "ProcessingTime"}),
    "same_name": ({"begin": lambda p, h: h.getListState("value", "n long")}, {}),
    "bad_schema": ({"begin": lambda p, h: h.getValueState("bad", "n lon")}, {}),
    "ttl_without_time": ({"begin": lambda p, h: h.getValueState("t", "n long", 10)}, {}),
    "ttl_of_zero": (
        {"begin": lambda p, h: h.getValueState("t", "n long", 0)},
        {"time": "ProcessingTime"},
    ),
    "negative_ttl": (
        {"begin": lambda p, h: h.getMapState("t", "n long", "n long", -5)},
        {"time": "ProcessingTime"},
    ),
    "row_of_other_columns": ({"work": lambda p, h: iter([Row(k="a", other=1)])}, {}),
    "row_of_other_types": ({"work": lambda p, h: iter([Row(k="a", n="x")])}, {}),
    "error_of_its_own": ({"work": lambda p, h: 1 // 0}, {}),
    "error_in_init": ({"begin": lambda p, h: 1 // 0}, {}),
    "event_time_without_watermark": ({}, {"time": "EventTime"}),
    "no_such_time_mode": ({}, {"time": "Sometimes"}),
    "no_such_output_mode": ({}, {"mode": "Upsert"}),
}
#: Spark lets these pass; pystate does not, and says so.
ALLOWED_BY_SPARK = {"text_for_number"}
#: Not an error in either.
ALLOWED = {"ttl_of_zero", "row_of_other_columns", "event_time_without_watermark"}
STREAMED = {"same_name", "event_time_without_watermark"}


def outcome(call: Callable[[], Any]) -> str:
    """The error, or that there is none."""
    try:
        call()
    except Exception as error:
        # A processor's own error is raised as it is, where its `init` runs on the driver.
        assert isinstance(error, (PySparkException, PystateError, ZeroDivisionError)), error
        return f"error: {str(error)[:300]}"
    return "no error"


#: `tests/unit/spark/ported` shows the errors of pystate; that Spark has them, too, takes long.
QUICK = ("error_in_init", "no_such_time_mode")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MISUSES]
)
def test_errors(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rows = spark.createDataFrame([("a", 1)], "k string, i long").coalesce(1)
    of_processor, call = MISUSES[name]
    processor = Misuse(**of_processor)
    mode, time = call.get("mode", "Update"), call.get("time", "None")

    def by_spark() -> None:
        # A batch query is faster, and looks at less before it begins.
        if name not in STREAMED:
            out = rows.groupBy("k").transformWithState(processor, "k string, n long", mode, time)
            out.collect()
            return
        folder = str(tmp_path / "in")
        rows.write.parquet(folder)
        stream = spark.readStream.schema(rows.schema).parquet(folder)
        out = stream.groupBy("k").transformWithState(processor, "k string, n long", mode, time)
        writer = out.writeStream.format("noop").outputMode(mode.lower())
        writer = writer.option("checkpointLocation", str(tmp_path / "spark"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def by_pystate() -> None:
        def pipeline(df: Any, job: Job) -> Any:
            keyed = job.key_by(df, "k", uid="misuse")
            return keyed.transform_with_state(processor, "k string, n long", mode, time)

        job = Job("misuse", checkpoint=tmp_path / "pystate", parallelism=1)
        try:
            job.run_epoch(rows, pipeline)
        finally:
            job.close()

    with settings(spark):
        theirs = outcome(by_spark)
    ours = outcome(by_pystate)
    expected = (name not in ALLOWED and name not in ALLOWED_BY_SPARK, name not in ALLOWED)
    raised = (theirs != "no error", ours != "no error")
    assert raised == expected, f"Spark: {theirs}; pystate: {ours}"
