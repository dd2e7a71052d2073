"""All queries with pystate and with Spark's own streams, by turns in one session.

``python -m bench.nexmark --events 2000000 --only q3,q5`` prints for each query how many rows per
second of one core they take in. All read the same files, a chunk per batch, with as many
partitions, and write Parquet in `foreachBatch`. The first batches of each are not timed, nor is the
one that ends Spark's streams; what the end of the input makes due is. Rows are those of the kinds
that the query reads. The first ratio is that of times, the second one that of processor time, which
others who use the machine change less.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Row, Spread, number
from bench.nexmark import pystate_run, spark_run
from bench.nexmark.generate import Plan
from bench.nexmark.reference import QUERIES, Parameters
from bench.nexmark.spark_run import WARM_UP, Input, Measured, write_input
from bench.nexmark.spark_sql import REFUSED
from bench.spark_jobs import PARALLELISM, PROVIDERS, session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from bench.measure import Scale

OURS = "pystate"
PEERS = {"Spark, RocksDB": "RocksDB", "Spark, in memory": "HDFSBacked"}
"""What pystate is compared with: Spark with its state stores."""
WINDOWED = ("q5", "q7", "q11", "q12")
EXPECTED = {
    "Spark, RocksDB": {**dict.fromkeys(WINDOWED, ">= 3x"), "q9": ">= 2x"},
    "Spark, in memory": {**dict.fromkeys(WINDOWED, ">= 1.5x"), "q9": ">= 2x"},
}
"""What is expected of aggregates in windows, and of the interval join."""
SMALL = Plan(6_000)
LARGER = 5
"""How many times as large the larger batches are."""


class Comparison:
    """Runs queries by turns.

    Parameters
    ----------
    spark : SparkSession
        Where they run.
    folder : Path
        For checkpoints and output, which are removed.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder / "run"

    def once(self, who: str, name: str, given: Input) -> Measured:
        """Run a query with pystate, or with one of the peers."""
        try:
            if who == OURS:
                return pystate_run.run(self._spark, name, given, self._folder, Parameters())
            provider = PROVIDERS[PEERS[who]]
            self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
            return spark_run.run(self._spark, name, given, self._folder, Parameters())
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def rounds(self, name: str, given: Input, rounds: int) -> dict[str, list[Measured]]:
        """Run a query with all that can express it; another one is the first in each round."""
        able = [OURS] if name in REFUSED else [OURS, *PEERS]
        found: dict[str, list[Measured]] = {who: [] for who in able}
        for turn in range(rounds):
            first = turn % len(able)
            for who in (*able[first:], *able[:first]):
                found[who].append(self.once(who, name, given))
        return found


@contextmanager
def comparison(plan: Plan, chunk: int) -> Iterator[tuple[Comparison, Input]]:
    """A session with the events, in which what starts only once has started."""
    folder = Path(tempfile.mkdtemp(prefix="pystate-nexmark-"))
    try:
        given = write_input(plan, folder / "input", chunk)
        small = write_input(SMALL, folder / "small", SMALL.events // (WARM_UP + 1))
        with session(folder) as spark:
            made = Comparison(spark, folder)
            made.rounds("q11", small, 1)
            yield made, given
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rates(runs: Sequence[Measured]) -> Spread:
    """Rows per second of one core."""
    return Spread.of([run.rows_per_core for run in runs])


def ratios(ours: Sequence[Measured], theirs: Sequence[Measured]) -> Spread:
    """How many times as fast as a peer pystate is, round by round."""
    pairs = zip(ours, theirs, strict=True)
    return Spread.of([mine.rows_per_core / other.rows_per_core for mine, other in pairs])


def cheaper(ours: Sequence[Measured], theirs: Sequence[Measured]) -> float:
    """How many times as many rows pystate handles in the same processor time."""
    pairs = zip(ours, theirs, strict=True)
    each = [a.rows_per_processor_second / b.rows_per_processor_second for a, b in pairs]
    return Spread.of(each).median


def queries(scale: Scale) -> list[Row]:
    """All queries, for ``python -m bench --spark``."""
    return asked("nexmark", Plan(scale.nexmark_events), scale.nexmark_chunk, list(QUERIES))


def windows(scale: Scale) -> list[Row]:
    """Those with windows, in larger batches: less of their time does not depend on the rows."""
    chunk = LARGER * scale.nexmark_chunk
    return asked("nexmark-windows", Plan((WARM_UP + 4) * chunk), chunk, WINDOWED)


def asked(question: str, plan: Plan, chunk: int, names: Sequence[str]) -> list[Row]:
    """Run queries once each."""
    rows = []
    with comparison(plan, chunk) as (made, given):
        for name in names:
            query = QUERIES[name]
            found = made.rounds(name, given, 1)
            if wrong := [who for who, runs in found.items() if not all(r.right for r in runs)]:
                raise AssertionError(f"{name} is wrong with {', '.join(wrong)}")
            for who, runs in found.items():
                rows.append(
                    Row(
                        question,
                        f"{name}, {query.title}: {who}, rows of one core",
                        Spread.of([run.rows_per_core / 1e6 for run in runs]),
                        "M rows/s",
                        peer="" if who == OURS else f"pystate / {who}",
                        ratio=None if who == OURS else ratios(found[OURS], runs),
                        expected=EXPECTED.get(who, {}).get(name, ""),
                        detail={
                            "seconds": [run.seconds for run in runs],
                            "processor_seconds": [run.processor_seconds for run in runs],
                        },
                    )
                )
    return rows


def line(name: str, found: dict[str, list[Measured]]) -> str:
    """A query's line of the table."""
    cells = [f"{name:4}", f"{QUERIES[name].title:40}"]
    cells += [f"{rates(found[who]).median / 1e3:8.1f}" if who in found else f"{'-':>8}"
              for who in (OURS, *PEERS)]  # fmt: skip
    for who in PEERS:
        text = "-"
        if who in found:
            text = f"{number(ratios(found[OURS], found[who]).median)}x"
            text += f", {number(cheaper(found[OURS], found[who]))}x"
        cells.append(f"{text:>16}")
    wrong = [who for who, runs in found.items() if not all(run.right for run in runs)]
    return "  ".join([*cells, "WRONG: " + ", ".join(wrong) if wrong else "right"])


HEAD = (
    f"{'':4}  {'k rows/s of one core':40}  {'pystate':>8}  {'RocksDB':>8}  {'memory':>8}"
    f"  {'/ RocksDB':>16}  {'/ memory':>16}  results"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark", description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--chunk", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", help="queries, separated by commas: q3,q5")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(QUERIES)
    if unknown := [name for name in names if name not in QUERIES]:
        parser.error(f"no such query: {', '.join(unknown)} (there are {', '.join(QUERIES)})")
    if given.events <= given.chunk * WARM_UP:
        parser.error(f"--events must be more than {WARM_UP} chunks: the first ones are not timed")
    wrong = False
    with comparison(Plan(given.events), given.chunk) as (made, events):
        print(HEAD, flush=True)
        for name in names:
            found = made.rounds(name, events, given.rounds)
            print(line(name, found), flush=True)
            wrong |= not all(run.right for runs in found.values() for run in runs)
    print(f"{given.events:,} events, {given.chunk:,} a batch, {PARALLELISM} cores")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
