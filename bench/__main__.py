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
from pathlib import Path
from typing import TYPE_CHECKING

from bench import measure, results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.measure import Row, Scale

    Question = Callable[[Scale], list[Row]]

RUNS = Path(__file__).parent / "report" / "runs"
"""The answers that the report is made from."""
ABSENT = 3
"""The exit code if nothing failed, and peers are not installed."""


def in_process() -> dict[str, Question]:
    """What one process answers by itself."""
    from bench import (
        elements,
        files,
        growth,
        keyed,
        memory,
        rows,
        scaling,
        shared,
        snapshots,
        state_size,
        stores,
        windows,
        writes,
    )

    return {
        "count": keyed.vectorised,
        "one-key": keyed.scalar,
        "stores": stores.stores,
        "writes": writes.writes,
        "snapshot-pause": snapshots.pause,
        "delta-size": snapshots.bytes_written,
        "files": files.files,
        "element-files": files.collections,
        "attach": shared.shared,
        "memory": memory.per_entry,
        "collections": elements.elements,
        "growth": growth.growth,
        "rows": rows.rows,
        "windows": windows.windows,
        "state-size": state_size.store,
        "scaling": scaling.threads,
    }


def on_spark() -> dict[str, Question]:
    """Jobs, in sessions of this process or of one that it starts."""
    from bench import (
        rescales,
        scaling,
        small_batches,
        spark_jobs,
        spark_pandas,
        spark_timed,
        spark_windows,
        state_size,
    )
    from bench.nexmark import compare

    return {
        "spark-count": spark_jobs.jobs,
        "spark-skewed": spark_jobs.skewed,
        "spark-windows": spark_windows.jobs,
        "spark-function": spark_timed.jobs,
        "spark-pandas": spark_pandas.jobs,
        "spark-scaling": scaling.jobs,
        "small-batches": small_batches.jobs,
        "spark-state-size": state_size.job,
        "rescale": rescales.rescales,
        "nexmark": compare.queries,
        "nexmark-windows": compare.windows,
    }


def others() -> dict[str, Question]:
    """Programs in environments of their own."""
    from bench.others import compare

    return {"others": compare.programs, "flink": compare.flink}


def everything() -> dict[str, Question]:
    """All that the report shows."""
    return {**in_process(), **on_spark(), **others()}


def main() -> int:
    """Run the requested benchmarks; one that fails is reported, and the others still run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", help="questions, separated by commas: count,files")
    which = parser.add_mutually_exclusive_group()
    for option, chosen, text in (
        ("--spark", on_spark, "the jobs on Spark"),
        ("--others", others, "the same work in other engines"),
        ("--report", everything, "all that bench/REPORT.md shows and that is not stored yet"),
    ):
        which.add_argument(
            option, dest="chosen", action="store_const", const=chosen, default=in_process, help=text
        )
    parser.add_argument("--again", action="store_true", help="with --report: also what is stored")
    parser.add_argument("--output", type=Path, help="where the JSON goes, a file for each question")
    arguments = parser.parse_args()
    scale = measure.chosen_scale()
    # Only modules that the run needs are imported.
    answers: dict[str, Question] = arguments.chosen()
    wanted = arguments.only.split(",") if arguments.only else list(answers)
    if unknown := [name for name in wanted if name not in answers]:
        parser.error(f"no such question: {', '.join(unknown)} (there are {', '.join(answers)})")
    if arguments.chosen is everything:
        folder = arguments.output or RUNS
        if folder == RUNS and scale.name == "smoke":
            parser.error("figures of the scale smoke say nothing: name another place, --output")
        return for_report(wanted, scale, folder, again=arguments.again or bool(arguments.only))
    folder = arguments.output or results.RESULTS / f"{results.now():%Y%m%dT%H%M%SZ}-{os.getpid()}"
    rows, failed, absent = [], [], []
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with results.asked(name, scale, folder) as answer:
                answer.rows += answers[name](scale)
                rows += answer.rows
        except results.NotInstalledError as error:
            print(f"{name}: {error}", file=sys.stderr)
            absent.append(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    print(measure.table(rows))
    print(f"\nmedians, smallest and largest round in brackets; {results.cpu_name()}")
    print(f"all figures: {folder}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else ABSENT if absent else 0


def for_report(wanted: Sequence[str], scale: Scale, folder: Path, *, again: bool) -> int:
    """Ask each question in a process of its own, so that none finds what another one left.

    A question whose peers are not installed is not asked, which the report says; that is no
    failure.
    """
    stored = results.read(folder)
    kinds = {**dict.fromkeys(on_spark(), "--spark"), **dict.fromkeys(others(), "--others")}
    failed = []
    for name in wanted:
        there = stored.get(name)
        if there and not there.error and there.scale["name"] == scale.name and not again:
            continue
        began = time.monotonic()
        command = [sys.executable, "-m", "bench", "--only", name, "--output", str(folder)]
        if name in kinds:
            command.append(kinds[name])
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if code not in (0, ABSENT):
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
