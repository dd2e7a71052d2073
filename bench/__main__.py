"""Runs the benchmarks in turn and prints one table: ``python -m bench [--only count,files]``.

``--spark`` runs the jobs on Spark, ``--others`` the same work in other engines, and ``--report``
all that the report shows. ``PYSTATE_BENCH_SCALE`` is `smoke`, `short` (the default) or `large`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bench import measure, results

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.measure import Row, Scale

RUNS = Path(__file__).parent / "report" / "runs.jsonl"
"""The answers that the report is made from."""
ABSENT = 3
"""The exit code if nothing failed, and peers are not installed."""

#: What one process answers by itself: the function of each question, whose module is imported when
#: it is asked.
IN_PROCESS = {
    "count": "keyed:vectorised",
    "one-key": "keyed:scalar",
    "stores": "stores:stores",
    "queries": "queries:queries",
    "writes": "writes:writes",
    "snapshot-pause": "snapshots:pause",
    "delta-size": "snapshots:bytes_written",
    "files": "files:files",
    "element-files": "files:collections",
    "attach": "shared:shared",
    "memory": "snapshots:per_entry",
    "collections": "elements:elements",
    "growth": "growth:growth",
    "rows": "rows:rows",
    "windows": "rows:windows",
    "state-size": "state_size:store",
    "scaling": "scaling:threads",
}
#: Jobs, in sessions of this process or of one that it starts.
ON_SPARK = {
    "spark-count": "spark_aggregates:uniform",
    "spark-skewed": "spark_aggregates:skewed",
    "spark-windows": "spark_aggregates:windows",
    "spark-function": "spark_timed:jobs",
    "spark-pandas": "spark_pandas:jobs",
    "spark-disk": "spark_disk:count",
    "spark-queries": "spark_queries:queries",
    "spark-scaling": "scaling:jobs",
    "small-batches": "spark_aggregates:small",
    "spark-state-size": "state_size:job",
    "rescale": "rescales:rescales",
    "nexmark": "nexmark.compare:queries",
    "nexmark-windows": "nexmark.compare:windows",
}
#: Programs in environments of their own.
OTHERS = {
    "others": "others.compare:programs",
    "flink": "others.compare:flink",
    "disk": "disk.compare:disk",
}
#: All that the report shows.
EVERYTHING = {**IN_PROCESS, **ON_SPARK, **OTHERS}


def ask(question: str, scale: Scale) -> list[Row]:
    """The rows of a question."""
    module, _, function = EVERYTHING[question].partition(":")
    rows: list[Row] = getattr(import_module(f"bench.{module}"), function)(scale)
    return rows


def main() -> int:
    """Run the requested benchmarks; one that fails is reported, and the others still run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", help="questions, separated by commas: count,files")
    which = parser.add_mutually_exclusive_group()
    for option, chosen, text in (
        ("--spark", ON_SPARK, "the jobs on Spark"),
        ("--others", OTHERS, "the same work in other engines"),
        ("--report", EVERYTHING, "all that bench/REPORT.md shows and that is not stored yet"),
    ):
        which.add_argument(
            option, dest="chosen", action="store_const", const=chosen, default=IN_PROCESS, help=text
        )
    parser.add_argument("--again", action="store_true", help="with --report: also what is stored")
    parser.add_argument("--output", type=Path, help="the file of the answers, a line for each")
    given = parser.parse_args()
    scale = measure.chosen_scale()
    questions: Mapping[str, str] = given.chosen
    wanted = given.only.split(",") if given.only else list(questions)
    if unknown := [name for name in wanted if name not in questions]:
        parser.error(f"no such question: {', '.join(unknown)} (there are {', '.join(questions)})")
    if questions is EVERYTHING:
        path = given.output or RUNS
        if path == RUNS and scale.name == "smoke":
            parser.error("figures of the scale smoke say nothing: name another place, --output")
        return for_report(wanted, scale, path, again=given.again or bool(given.only))
    name = f"{results.now():%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"
    return in_turn(wanted, scale, given.output or results.RESULTS / name)


def in_turn(wanted: Iterable[str], scale: Scale, path: Path) -> int:
    """Ask the questions in this process, and print their rows."""
    rows, failed, absent = [], [], []
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with results.asked(name, scale, path) as answer:
                answer.rows += ask(name, scale)
                rows += answer.rows
        except results.NotInstalledError as error:
            print(f"{name}: {error}", file=sys.stderr)
            absent.append(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    print(measure.table(rows))
    print(f"\nmedians, smallest and largest round in brackets; {results.cpu_name()}")
    print(f"all figures: {path}")
    return ended(failed) or (ABSENT if absent else 0)


def ended(failed: list[str]) -> int:
    """Name what failed; the exit code."""
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def for_report(wanted: Iterable[str], scale: Scale, path: Path, *, again: bool) -> int:
    """Ask each question in a process of its own, so that none finds what another one left.

    A question whose peers are not installed is not asked, which the report says; that is no
    failure.
    """
    stored = results.read(path)
    kinds = {**dict.fromkeys(ON_SPARK, "--spark"), **dict.fromkeys(OTHERS, "--others")}
    failed = []
    for name in wanted:
        there = stored.get(name)
        if there and not there.error and there.scale == scale.name and not again:
            continue
        began = time.monotonic()
        command = [sys.executable, "-m", "bench", "--only", name, "--output", str(path)]
        if name in kinds:
            command.append(kinds[name])
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if code not in (0, ABSENT):
            failed.append(name)
    return ended(failed)


if __name__ == "__main__":
    sys.exit(main())
