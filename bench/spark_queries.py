"""A count on Spark with a process beside it that looks keys up, and the same job without.

Both run in one session, batch by batch, by turns. The process has a reader of the job's checkpoint,
moves it to the newest epoch before each query, and asks so many times a second while a batch of its
job is under way, and only then: who has its turn without queries is not disturbed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.spark_aggregates import COUNTED, counting, write_input
from bench.spark_jobs import by_turns, plain, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

QUESTION = "spark-queries"
ALONE, ASKED = "without queries", "with queries"
PER_SECOND = 50
WARM_UP = 4
ROOT = Path(__file__).parents[1]


def queries(scale: Scale) -> list[Row]:
    """The rate of the job with queries, relative to that without, and what the queries took."""
    rows, keys = scale.spark_rows, scale.spark_keys
    starting = counting()

    with session() as (spark, root):
        said = root / "said.json"
        stop = root / "stop"
        place = root / "place"

        def start_asked(stream: DataFrame, folder: Path) -> StreamingQuery:
            query = starting(stream, folder)
            place.write_text(str(folder))
            return query

        write = partial(write_input, keys=keys)
        turns = plain(rows, WARM_UP, scale.spark_query_batches)
        starts = {ALONE: starting, ASKED: start_asked}
        with asking(place, stop, said, keys):
            timings, _ = by_turns(spark, root, starts, COUNTED, write, turns)
        answer = json.loads(said.read_text())
    what = f"count, {rows:,} rows a batch, {keys:,} keys"
    found = [
        timings.row(ALONE, QUESTION, f"{what}: {ALONE}", rows),
        timings.row(
            ASKED,
            QUESTION,
            f"{what}: {PER_SECOND} queries a second",
            rows,
            lead=(ASKED, ALONE),
            expected=">= 0.97x",
        ),
    ]
    asked_for = "a query beside it: move to the newest epoch, and look a key up"
    found.append(Row(QUESTION, asked_for, Spread(*answer["ms"]), "ms"))
    rate = answer["queries"] / max(answer["seconds"], 1e-3)
    found.append(Row(QUESTION, "queries beside it", Spread.of([rate]), "queries/s"))
    return found


@contextmanager
def asking(place: Path, stop: Path, said: Path, keys: int) -> Iterator[None]:
    """A process that asks a job whose folder the file `place` will say, until the block ends."""
    command = [sys.executable, "-m", "bench.spark_queries", *map(str, (place, stop, said, keys))]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        yield
        stop.touch()
        if process.wait(timeout=60):
            raise AssertionError(f"the process that asks has ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def main(place: Path, stop: Path, said: Path, keys: int) -> None:
    """Ask while a batch is under way; then write how often, for how long, and what it took."""
    rng = random.Random(0)
    reader: ps.StateReader | None = None
    taken: list[float] = []
    busy_s, next_s = 0.0, time.monotonic()
    while not stop.exists():
        begun_s = time.monotonic()
        folder = Path(place.read_text()) if place.exists() else None
        if folder is not None and reader is None and published(folder):
            reader = ps.connect(folder / "checkpoint")
        is_busy = reader is not None and folder is not None and given(folder) > published(folder)
        if reader is not None and is_busy:
            started_s = time.perf_counter()
            reader.refresh()
            rows = reader["count"].get([rng.randrange(keys)])
            taken.append(1e3 * (time.perf_counter() - started_s))
            if rows.num_rows != 1:
                raise AssertionError(f"one key was asked for, and there are {rows.num_rows} rows")
        next_s = max(next_s + 1 / PER_SECOND, begun_s)
        time.sleep(max(0.0, next_s - time.monotonic()))
        if is_busy:
            busy_s += time.monotonic() - begun_s
    taken.sort()
    ms = [taken[len(taken) // 2], taken[0], taken[-1]] if taken else [0.0] * 3
    said.write_text(json.dumps({"queries": len(taken), "seconds": busy_s, "ms": ms}))


def given(folder: Path) -> int:
    """How many batches a job was given."""
    return sum(1 for _ in (folder / "in").glob("*"))


def published(folder: Path) -> int:
    """Its newest epoch; 0 before the first."""
    names = (folder / "checkpoint" / "manifests").glob("*.manifest")
    return max((int(path.stem) for path in names), default=0)


if __name__ == "__main__":
    _, *paths, number = sys.argv
    main(Path(paths[0]), Path(paths[1]), Path(paths[2]), int(number))
