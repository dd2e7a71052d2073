"""Runs the benchmarks in turn and prints one table: ``python -m bench [--only count,files]``.

``--spark`` runs the jobs on Spark, ``--others`` the same work in other engines, and ``--all``
everything, for the report. ``PYSTATE_BENCH_SCALE`` is `smoke`, `short` (the default) or `large`.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from bench import measure
from bench.results import RESULTS, Run, cpu_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure import Row, Scale

    Question = Callable[[Scale], list[Row]]


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
    from bench import small_batches, spark_jobs, spark_timed, spark_windows, state_size
    from bench.nexmark import compare

    return {
        "spark-count": spark_jobs.jobs,
        "spark-skewed": spark_jobs.skewed,
        "spark-windows": spark_windows.jobs,
        "spark-function": spark_timed.jobs,
        "small-batches": small_batches.jobs,
        "spark-state-size": state_size.job,
        "nexmark": compare.queries,
    }


def in_other_engines() -> dict[str, Question]:
    """Programs in environments of their own."""
    from bench.others import compare

    return {"others": compare.programs, "flink": compare.flink}


def everything() -> dict[str, Question]:
    """All that the report shows."""
    return {**in_process(), **on_spark(), **in_other_engines()}


def main() -> int:
    """Run the requested benchmarks; one that fails is reported, and the others still run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", help="questions, separated by commas: count,files")
    which = parser.add_mutually_exclusive_group()
    for option, chosen, text in (
        ("--spark", on_spark, "the jobs on Spark"),
        ("--others", in_other_engines, "the same work in other engines"),
        ("--all", everything, "all of them"),
    ):
        which.add_argument(
            option, dest="chosen", action="store_const", const=chosen, default=in_process, help=text
        )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    scale = measure.chosen_scale()
    # Only modules that the run needs are imported.
    answers: dict[str, Question] = arguments.chosen()
    wanted = arguments.only.split(",") if arguments.only else list(answers)
    if unknown := [name for name in wanted if name not in answers]:
        parser.error(f"no such question: {', '.join(unknown)} (there are {', '.join(answers)})")
    run = Run(scale, arguments.output)
    failed = []
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with run.asked(name) as answer:
                answer.rows += answers[name](scale)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    print(measure.table([row for answer in run.answers for row in answer.rows]))
    print(f"\nmedians, smallest and largest round in brackets; {cpu_name()}")
    print(f"all figures: {run.path}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
