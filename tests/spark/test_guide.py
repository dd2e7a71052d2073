"""docs/sinks.md: its programs run as they stand there, to their end, and go on when run again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

GUIDE = (ROOT / "docs" / "sinks.md").read_text()
FUNCTION, OWN = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def run(program: str, folder: Path) -> str:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("program", "first", "second"),
    [
        (FUNCTION, "[('ann', 21), ('bob', 5)]", "[('ann', 42), ('bob', 10)]"),
        (OWN, "[('ann', 21), ('ann', 42), ('bob', 5), ('bob', 10)]", None),
    ],
    ids=["function", "own"],
)
def test_program(tmp_path: Path, program: str, first: str, second: str | None) -> None:
    assert run(program, tmp_path) == first
    assert second is None or run(program, tmp_path) == second
    assert not list(tmp_path.glob("staged/*"))


def test_what_the_guide_names_is_there() -> None:
    from pystate import spark

    sink = spark.Sink
    for method in re.findall(r"^\| `(\w+)\(", GUIDE, re.MULTILINE):
        assert callable(getattr(sink, method))
    for name in ("compact", "read", "partition_by"):
        assert hasattr(spark.ParquetSink, name)
    assert callable(spark.Job.abandon_output) and callable(spark.register_sink)
