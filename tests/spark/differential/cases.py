"""The processors, and how each is called."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from . import frames, processors, timed
from .running import BASE, Case

EVENT, PROCESSING = "EventTime", "ProcessingTime"
_START = int(BASE.timestamp() * 1000)


def initial(spark: SparkSession) -> DataFrame:
    """States to begin with: of keys that have rows, and of one that has none."""
    rows = [("a", 100, "first"), ("a", 200, "second"), ("none", 5, "alone"), (None, 7, "null")]
    return spark.createDataFrame(rows, "k string, n long, name string")


def reminders(spark: SparkSession) -> DataFrame:
    """Times to be reminded of."""
    rows = [("a", _START + 9_000, "x"), ("a", _START + 90_000_000, "y"), ("none", _START, "z")]
    return spark.createDataFrame(rows, "k string, n long, name string")


PLAIN = {
    "counting": Case(processors.Counting, "k string, n long", states={"n": "value"}),
    "mean": Case(processors.Mean, "k string, n long, mean double", states={"sums": "value"}),
    "lists": Case(
        processors.Lists,
        "k string, i long, there boolean, items string",
        states={"items": "list"},
    ),
    "maps": Case(
        processors.Maps,
        "k string, i long, before string, there boolean, pairs string, keys string, values string",
        states={"counts": "map"},
    ),
    "several": Case(
        processors.Several,
        "k string, path array<string>, seen string",
        states={"last": "value", "path": "list", "seen": "map"},
        keys_of={"seen": "op string, odd boolean"},
    ),
    "likenesses": Case(
        processors.Likenesses,
        "k string, i long, value string, kind string, items string, map string",
        states={"value": "value", "items": "list", "map": "map"},
    ),
    "rich": Case(
        processors.Rich,
        "k string, before string, value string, items string, map string",
        states={"value": "value", "items": "list", "map": "map"},
        keys_of={"map": "s string, day date, c decimal(10,2)"},
        exact=True,
        only="i % 3 = 0",
    ),
    "composite": Case(
        processors.Composite,
        "k string, j int, n long, key string, kind string",
        keys=("k", "j"),
        states={"n": "value"},
    ),
    "deduplicated": Case(
        processors.Deduplicated,
        "k string, i long, op string, v long",
        states={"seen": "map"},
        keys_of={"seen": "op string, v long"},
    ),
    "largest": Case(
        processors.Largest, "k string, rank int, x double, i long", states={"best": "list"}
    ),
    "orders": Case(
        processors.Orders,
        "k string, i long, was string, now string, faults int",
        states={"stage": "value", "faults": "list"},
    ),
}
ODD = {
    "silent": Case(processors.Silent, "k string, n long", states={"n": "value"}),
    "talkative": Case(processors.Talkative, "k string, i long, j long"),
    "empty": Case(
        processors.Empty,
        "k string, looks array<string>",
        states={"value": "value", "items": "list", "map": "map"},
    ),
    "partial": Case(
        processors.Partial,
        "k string, i long, v long, x double, before string",
        states={"value": "value", "map": "map"},
    ),
    "fresh": Case(
        lambda: processors.Fresh(10),
        "k string, calls long, total long",
        states={"total": "value"},
    ),
    "hasty": Case(processors.Hasty, "k string, n long, same boolean", states={"n": "value"}),
    "shown": Case(
        processors.Shown,
        "k string, fields array<string>, row string, at string, same boolean, whole string",
    ),
    "dropped": Case(processors.Dropped, "k string, n long", states={"n": "value"}),
    "nested": Case(
        processors.Nested,
        "k string, first long, pairs string, crossed string",
        states={"items": "list", "map": "map"},
    ),
    "later": Case(processors.Later, "k string, n long", states={"n": "value"}),
    "text_schema": Case(
        processors.TextSchema,
        "k string, last string, map string",
        states={"value": "value", "map_of_Ünïcode": "map"},
        keys_of={"map_of_Ünïcode": "name string, number long"},
    ),
    "begun": Case(
        timed.Inherited,
        "k string, n long, known boolean, names array<string>",
        initial=initial,
        states={"total": "value", "names": "list"},
    ),
}
EVENTS = {
    "sessions": Case(
        timed.Sessions,
        "k string, start long, last long, n long, same boolean",
        EVENT,
        states={"session": "value"},
        timers=True,
    ),
    "alarms": Case(
        timed.Alarms,
        "k string, at long, timers array<long>",
        EVENT,
        states={"fired": "list"},
        timers=True,
    ),
    "repeated": Case(
        timed.Repeated, "k string, at long, n long", EVENT, states={"beats": "value"}, timers=True
    ),
    "past": Case(
        timed.Past, "k string, at long, timers long", EVENT, states={"n": "value"}, timers=True
    ),
    "watermarks": Case(timed.Watermarks, "k string, i long, watermark long, now boolean", EVENT),
    "quiet": Case(
        timed.Quiet,
        "k string, last long, alerts long",
        EVENT,
        states={"last": "value"},
        timers=True,
    ),
    "bounded": Case(timed.Bounded, "k string, at long, i long", EVENT, states={"buffer": "map"}),
    "by_two": Case(
        timed.Watermarks,
        "k string, i long, watermark long, now boolean",
        EVENT,
        keys=("k", "j"),
    ),
    "reminded": Case(
        timed.Reminded,
        "k string, at long, name string",
        EVENT,
        initial=reminders,
        states={"due": "map"},
        timers=True,
    ),
    "frame_timers": Case(
        frames.FrameTimers,
        "k string, start long, end long, n long",
        EVENT,
        pandas=True,
        states={"times": "list"},
        timers=True,
    ),
    "closed": Case(
        lambda *call: frames.closed(*call),
        "k string, first long, last long, n long",
        function_state="first long, last long, n long",
        timeout="EventTimeTimeout",
    ),
}
CLOCKS = {
    "clocks": Case(
        timed.Clocks,
        "k string, name string, n long, of long, watermark long",
        PROCESSING,
        states={"batch": "value"},
        watermark=True,
    ),
    "untimed": Case(timed.Watermarks, "k string, i long, watermark long, now boolean"),
    "processing": Case(
        timed.Watermarks,
        "k string, i long, watermark long, now boolean",
        PROCESSING,
        watermark=True,
    ),
    "brief": Case(
        lambda: timed.Brief(1),
        "k string, n long, before string, after string",
        PROCESSING,
        states={"kept": "value"},
    ),
    "long": Case(
        lambda: timed.Brief(timed.HOUR),
        "k string, n long, before string, after string",
        PROCESSING,
        states={"kept": "value"},
    ),
    "expiring": Case(
        lambda *call: frames.expiring(*call),
        "k string, n long, now boolean",
        function_state="n long",
        timeout="ProcessingTimeTimeout",
    ),
}
FRAMES = {
    "frame_count": Case(
        frames.FrameCount, "k string, n long, total double", pandas=True, states={"sums": "value"}
    ),
    "frame_shapes": Case(
        frames.FrameShapes, "k string, i long, n long", pandas=True, states={"items": "list"}
    ),
    "frame_types": Case(
        frames.FrameTypes,
        "k string, types string, before string, after string, t timestamp",
        pandas=True,
        states={"last": "value"},
        exact=True,
    ),
    "frame_begun": Case(
        frames.FrameInherited,
        "k string, n long, names string",
        pandas=True,
        initial=initial,
        states={"total": "value"},
    ),
    "counted": Case(
        lambda *call: frames.counted(*call),
        "k string, n long, before string, after string",
        function_state="n long, total double",
    ),
}
