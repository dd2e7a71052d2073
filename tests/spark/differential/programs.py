"""Random programs of states and timers, which one processor runs for both engines.

A key is a program: its rows are its statements, so that hundreds of programs run in one query. A
program has statements for its timers, too. One that fails is made smaller by running all programs
that lack some of its statements in one more query, as the smallest that still fails.

`python -m pytest -m slow tests/spark/differential/test_programs.py` runs many; a failure prints a
program that `check` takes.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

from .processors import Out, Processor, Rows, in_order
from .running import (
    BASE,
    Batch,
    Case,
    on_pystate,
    on_spark,
    ported_kept,
    spark_kept,
    write_batches,
)

START = int(BASE.timestamp() * 1000)
STEP_MS = 8_000
Statement = tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """Statements for each batch, and those that timers run, chosen by their times."""

    batches: tuple[tuple[Statement, ...], ...]
    timers: tuple[tuple[Statement, ...], ...] = ()

    @property
    def size(self) -> int:
        """How many statements there are."""
        return sum(map(len, self.batches)) + sum(map(len, self.timers))

    def without(self, begin: int, end: int) -> Program:
        """The same but for some statements, which are counted through."""
        n = -1

        def rest(statements: Sequence[Statement]) -> tuple[Statement, ...]:
            nonlocal n
            kept = []
            for statement in statements:
                n += 1
                if not begin <= n < end:
                    kept.append(statement)
            return tuple(kept)

        return Program(tuple(map(rest, self.batches)), tuple(map(rest, self.timers)))


def random_program(draw: random.Random, batches: int = 3) -> Program:
    """A program; the same for the same seed."""
    lengths = [draw.choice((0, 1, 3, 8)) for _ in range(batches)]
    timers = [draw.choice((1, 2, 4)) for _ in range(draw.choice((1, 2, 3)))]
    return Program(
        tuple(tuple(statement(draw) for _ in range(n)) for n in lengths),
        tuple(tuple(statement(draw) for _ in range(n)) for n in timers),
    )


def statement(draw: random.Random) -> Statement:
    """A statement: a verb and what it takes."""

    def item() -> list[Any]:
        return [draw.choice((None, 0, 1, -(2**63), 7)), draw.choice((None, "", "x", "ß"))]

    def time() -> int:
        return draw.randrange(0, 60) * 500

    key, pair = draw.randrange(3), [draw.randrange(2), draw.choice(("", "b"))]
    # A map's key of one field is never null here; see `test_misuse`.
    return draw.choice(
        (
            ("update", item()),
            ("update", item()),
            ("clear_value",),
            ("value",),
            ("append", item()),
            ("append", item()),
            ("extend", [item() for _ in range(draw.randrange(1, 4))]),
            ("put_list", [item() for _ in range(draw.randrange(1, 4))]),
            ("clear_list",),
            ("list",),
            ("some", draw.randrange(4)),
            ("put", key, item()),
            ("put", key, item()),
            ("remove", key),
            ("clear_map",),
            ("get", key),
            ("map",),
            ("put_pair", pair, key),
            ("remove_pair", pair),
            ("pairs",),
            ("register", time()),
            ("register", time()),
            ("delete", time()),
            ("timers",),
            ("watermark",),
            ("emit", draw.randrange(5)),
        )
    )


class Interpreter(Processor):
    """Runs the statements of its rows, and on a timer those of its key's program."""

    def __init__(self, timers: Mapping[str, Sequence[Sequence[Statement]]]) -> None:
        self.programs = timers

    def declare(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.value = handle.getValueState("held", "n long, s string")
        self.items = handle.getListState("items", "n long, s string")
        self.map = handle.getMapState("map", "m long", "n long, s string")
        self.pairs = handle.getMapState("pairs", "m int, s string", "n long")

    def handleInputRows(self, key: Any, rows: Rows, timerValues: Any) -> Out:
        for row in in_order(rows):
            yield from self.run(key, json.loads(row.op), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Out:
        at = expiredTimerInfo.getExpiryTimeInMs() - START
        yield self.row(key, f"fired at {at}")
        timers = self.programs.get(key[0], ())
        if timers:
            for each in timers[at // 500 % len(timers)]:
                yield from self.run(key, each, timerValues)

    def row(self, key: Any, what: Any) -> Row:
        # The number shows in which order a key's rows were emitted.
        n = (self.count.get() or (0,))[0] + 1
        self.count.update((n,))
        return Row(k=key[0], n=n, what=what if isinstance(what, str) else repr(what))

    def run(self, key: Any, statement: Sequence[Any], times: Any) -> Out:
        verb, *given = statement
        if verb in ("append", "update"):
            (self.items.appendValue if verb == "append" else self.value.update)(tuple(given[0]))
        elif verb in ("extend", "put_list"):
            change = self.items.appendList if verb == "extend" else self.items.put
            change([tuple(item) for item in given[0]])
        elif verb in ("clear_value", "clear_list", "clear_map"):
            {"value": self.value, "list": self.items, "map": self.map}[verb[6:]].clear()
        elif verb == "value":
            yield self.row(key, (self.value.exists(), self.value.get()))
        elif verb == "list":
            yield self.row(key, (self.items.exists(), list(self.items.get())))
        elif verb == "some":
            yield self.row(
                key, [item for _, item in zip(range(given[0]), self.items.get(), strict=False)]
            )
        elif verb == "put":
            self.map.updateValue((given[0],), tuple(given[1]))
        elif verb == "remove":
            self.map.removeKey((given[0],))
        elif verb == "get":
            found = self.map.getValue((given[0],))
            has = self.map.containsKey((given[0],))
            yield self.row(key, (has, None if found is None else tuple(found)))
        elif verb == "map":
            found = sorted(self.map.iterator(), key=repr)
            both = sorted(self.map.keys()), sorted(self.map.values(), key=repr)
            yield self.row(key, (self.map.exists(), found, *both))
        elif verb == "put_pair":
            self.pairs.updateValue(tuple(given[0]), (given[1],))
        elif verb == "remove_pair":
            self.pairs.removeKey(tuple(given[0]))
        elif verb == "pairs":
            yield self.row(key, sorted(self.pairs.iterator()))
        elif verb == "register":
            self.handle.registerTimer(START + given[0])
        elif verb == "delete":
            self.handle.deleteTimer(START + given[0])
        elif verb == "timers":
            yield self.row(key, sorted(t - START for t in self.handle.listTimers()))
        elif verb == "watermark":
            yield self.row(key, times.getCurrentWatermarkInMs())
        elif verb == "emit":
            for j in range(given[0]):
                yield self.row(key, f"emit {j}")
        else:
            raise AssertionError(verb)


def batches_of(programs: Mapping[str, Program]) -> list[Batch]:
    """The statements as rows; a key without a program moves the watermark."""
    count = max(len(program.batches) for program in programs.values())
    batches: list[Batch] = []
    i = 0
    for b in range(count):
        ms = START + b * STEP_MS
        same = {"j": None, "v": None, "x": None, "ms": ms}
        same["t"] = dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc)
        batch = [{"k": "clock", "i": i, "op": '["emit", 1]', **same}]
        for key, program in programs.items():
            for each in program.batches[b] if b < len(program.batches) else ():
                i += 1
                batch.append({"k": key, "i": i, "op": json.dumps(each), **same})
        batches.append(batch)
    return batches


STATES = {"count": "value", "held": "value", "items": "list", "map": "map", "pairs": "map"}


def failing(spark: SparkSession, programs: Mapping[str, Program], folder: Path) -> dict[str, Any]:
    """Run programs on both engines, and return what differs by program."""
    folder.mkdir(parents=True)
    paths = write_batches(folder / "input", batches_of(programs))
    timers = {key: program.timers for key, program in programs.items()}
    case = Case(
        lambda: Interpreter(timers),
        "k string, n long, what string",
        "EventTime",
        states=STATES,
        keys_of={"pairs": "m int, s string"},
        timers=True,
    )
    cases = {"programs": case}
    theirs = on_spark(spark, cases, paths, folder / "spark", no_data=True)
    ours = on_pystate(spark, cases, paths, folder / "pystate", no_data=True)
    found: dict[str, Any] = defaultdict(list)
    assert len(theirs.outputs) == len(ours.outputs)
    for b, (one, other) in enumerate(zip(theirs.outputs, ours.outputs, strict=True)):
        for who, rest in (("Spark", one - other), ("pystate", other - one)):
            for (_, row), n in rest.items():
                found[json.loads(row)["k"]].append(f"batch {b}, {who} alone, {n}x: {row}")
    one, other = spark_kept(spark, theirs, cases), ported_kept(ours, cases)
    for label in one:
        for key in {*one[label], *other[label]}:
            if one[label].get(key) != other[label].get(key):
                name = key.split("'")[1]
                was, is_ = one[label].get(key), other[label].get(key)
                found[name].append(f"{label} of {key}: Spark {was}, pystate {is_}")
    return found


def shrunken(
    spark: SparkSession, program: Program, folder: Path, rounds: int = 8
) -> tuple[Program, Any]:
    """The smallest failing program that is found by leaving statements out."""
    why: Any = None
    for turn in range(rounds):
        size = program.size
        lengths = {max(1, size // 2), max(1, size // 4), 1}
        spans = {(b, b + n) for n in lengths for b in range(0, size, max(1, n // 2))}
        candidates = {f"p{j}": program.without(*span) for j, span in enumerate(sorted(spans))}
        candidates = {key: each for key, each in candidates.items() if 0 < each.size < size}
        if not candidates:
            break
        found = failing(spark, candidates, folder / str(turn))
        worse = [key for key in candidates if key in found]
        if not worse:
            break
        key = min(worse, key=lambda key: candidates[key].size)
        program, why = candidates[key], found[key]
    return program, why


def check(spark: SparkSession, programs: Mapping[str, Program], folder: Path) -> None:
    """Fail with the smallest program for which the engines differ."""
    found = failing(spark, programs, folder / "all")
    if found:
        key = min(found, key=lambda key: programs[key].size if key in programs else 1 << 30)
        assert key in programs, found[key]
        program, why = shrunken(spark, programs[key], folder / "less")
        why = "\n".join(why or found[key])
        raise AssertionError(f"{len(found)} of {len(programs)} differ; {key} is\n{program}\n{why}")
