"""Runs the benchmarks in turn and prints one table: ``python -m bench [--only count,files]``.

``PYSTATE_BENCH_SCALE`` is `smoke`, `short` (the default) or `large`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench import measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure import Row, Scale

RESULTS = Path(__file__).parent / "results"


def questions(spark: bool) -> dict[str, Callable[[Scale], list[Row]]]:
    """The function that answers each question; only modules that the run needs are imported."""
    if spark:
        from bench import spark_jobs, spark_timed, spark_windows
        from bench.nexmark import compare

        return {
            "spark-count": spark_jobs.jobs,
            "spark-skewed": spark_jobs.skewed,
            "spark-windows": spark_windows.jobs,
            "spark-function": spark_timed.jobs,
            "nexmark": compare.queries,
        }
    from bench import (
        elements,
        files,
        growth,
        keyed,
        memory,
        rows,
        shared,
        snapshots,
        windows,
        writes,
    )

    return {
        "count": keyed.vectorised,
        "one-key": keyed.scalar,
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
    }


def save(rows: list[Row], scale: Scale, folder: Path) -> Path:
    """Write the results as JSON and return the file's path."""
    now = datetime.datetime.now(datetime.timezone.utc)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}.json"
    run = {
        "time": now.isoformat(timespec="seconds"),
        "scale": dataclasses.asdict(scale),
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
        },
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.write_text(json.dumps(run, indent=1), encoding="utf-8")
    return path


def cpu_name() -> str:
    """The processor's model."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1] for line in info.splitlines() if line.startswith("model name")]
    return models[0].strip() if models else platform.machine()


def main() -> int:
    """Run the requested benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", help="questions, separated by commas: count,files")
    parser.add_argument("--spark", action="store_true", help="the jobs on Spark")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    scale = measure.chosen_scale()
    answers = questions(arguments.spark)
    wanted = arguments.only.split(",") if arguments.only else list(answers)
    if unknown := [name for name in wanted if name not in answers]:
        parser.error(f"no such question: {', '.join(unknown)} (there are {', '.join(answers)})")
    rows = []
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += answers[name](scale)
    path = save(rows, scale, arguments.output)
    print(measure.table(rows))
    print(
        f"\nmedians, smallest and largest round in brackets; {cpu_name()}, {os.cpu_count()} cores"
    )
    print(f"all figures: {os.path.relpath(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
