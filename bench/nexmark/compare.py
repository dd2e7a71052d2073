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
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.measure import Row, Spread, number
from bench.nexmark.generate import Plan
from bench.nexmark.reference import QUERIES, Parameters
from bench.nexmark.run import WARM_UP, Input, Measured, in_pystate, in_spark, write_input
from bench.nexmark.spark_sql import REFUSED
from bench.spark_jobs import PARALLELISM, session, use_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.measure import Scale

    Runs = dict[str, list[Measured]]

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


@contextmanager
def comparison(plan: Plan, chunk: int) -> Iterator[Callable[[str, int], Runs]]:
    """Runs a query so many times with all that can express it, another one first in each round.

    What starts only once has started.
    """
    with session() as (spark, folder):

        def once(who: str, name: str, given: Input) -> Measured:
            try:
                if who == OURS:
                    return in_pystate(spark, name, given, folder / "run", Parameters())
                use_store(spark, PEERS[who])
                return in_spark(spark, name, given, folder / "run", Parameters())
            finally:
                shutil.rmtree(folder / "run", ignore_errors=True)

        def rounds(name: str, times: int, given: Input | None = None) -> Runs:
            able = [OURS] if name in REFUSED else [OURS, *PEERS]
            found: Runs = {who: [] for who in able}
            for turn in range(times):
                first = turn % len(able)
                for who in (*able[first:], *able[:first]):
                    found[who].append(once(who, name, whole if given is None else given))
            return found

        whole = write_input(plan, folder / "input", chunk)
        rounds("q11", 1, write_input(SMALL, folder / "small", SMALL.events // (WARM_UP + 1)))
        yield rounds


def ratios(found: Runs, who: str) -> Spread:
    """How many times as fast as a peer pystate is, round by round."""
    pairs = zip(found[OURS], found[who], strict=True)
    return Spread.of(ours.rows_per_core / theirs.rows_per_core for ours, theirs in pairs)


def cheaper(found: Runs, who: str) -> Spread:
    """How many times as many rows pystate handles in the same processor time."""
    pairs = zip(found[OURS], found[who], strict=True)
    return Spread.of(theirs.processor_seconds / ours.processor_seconds for ours, theirs in pairs)


def wrong(found: Runs) -> list[str]:
    """Whose result is not the reference's."""
    return [who for who, runs in found.items() if not all(run.right for run in runs)]


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
    with comparison(plan, chunk) as rounds:
        for name in names:
            found = rounds(name, 1)
            if whose := wrong(found):
                raise AssertionError(f"{name} is wrong with {', '.join(whose)}")
            for who, runs in found.items():
                what = f"{name}, {QUERIES[name].title}: {who}, rows of one core"
                figure = Spread.of(run.rows_per_core / 1e6 for run in runs)
                ratio = None if who == OURS else ratios(found, who)
                peer = f"pystate / {who}" if ratio else ""
                goal = EXPECTED.get(who, {}).get(name, "")
                rows.append(Row(question, what, figure, "M rows/s", peer, ratio, goal))
    return rows


def line(name: str, found: Runs) -> str:
    """A query's line of the table."""
    cells = [f"{name:4}", f"{QUERIES[name].title:40}"]
    for who in (OURS, *PEERS):
        rates = [run.rows_per_core / 1e3 for run in found.get(who, ())]
        cells.append(f"{Spread.of(rates).median:8.1f}" if rates else f"{'-':>8}")
    for who in PEERS:
        text = "-"
        if who in found:
            text = f"{number(ratios(found, who).median)}x, {number(cheaper(found, who).median)}x"
        cells.append(f"{text:>16}")
    whose = wrong(found)
    return "  ".join([*cells, "WRONG: " + ", ".join(whose) if whose else "right"])


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
    failed = False
    with comparison(Plan(given.events), given.chunk) as rounds:
        print(HEAD, flush=True)
        for name in names:
            found = rounds(name, given.rounds)
            print(line(name, found), flush=True)
            failed |= bool(wrong(found))
    print(f"{given.events:,} events, {given.chunk:,} a batch, {PARALLELISM} cores")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
