"""The README's examples, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
JOB, KINDS, TIME, TEST, STORE = BLOCKS


def run(program: str, folder: Path) -> str:
    # A fresh process: the example makes its own session, and one interpreter can have but one.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 "
        "--conf spark.driver.bindAddress=127.0.0.1 pyspark-shell",
    }
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_store(tmp_path: Path) -> None:
    reopened = "with ps.open('state', key='long', states={'n': ps.ValueState('long')}) as store:\n"
    read = reopened + "    print(store.to_arrow().sort_by('key').to_pydict())\n"
    assert run(STORE + read, tmp_path) == "{'key': [1, 2], 'n': [2, 11]}\n"


def test_the_unit_test(tmp_path: Path) -> None:
    assert run(TEST + "test_orders()\nprint('passed')\n", tmp_path) == "passed\n"


def test_the_kinds_of_state(tmp_path: Path) -> None:
    program = KINDS + (
        "with ps.testing.Harness(Aircraft(), key='tail', event_time='at') as harness:\n"
        "    row = {'tail': 'N1', 'dest': 'EWR', 'gate': 3, 'delay': 2.0, 'at': 1_000}\n"
        "    harness.process([row, {**row, 'delay': 4.0, 'at': 2_000}])\n"
        "    harness.advance_watermark(6 * 3_600_000 + 1_000)\n"
        "    print(*harness.take_output())\n"
    )
    assert run(program, tmp_path) == "('N1', 2, 4.0, 3.0, [('EWR', 2)])\n"


def reading(value: float, minute: int) -> str:
    return json.dumps({"sensor": "s", "value": value, "at": f"2026-01-01T00:{minute:02}:00Z"})


def test_the_jobs_keep_apart() -> None:
    folders = [
        re.findall(r"(?:checkpoint=|ParquetSink\()(\"[^\"]+\")", text) for text in (JOB, TIME)
    ]
    assert all(folders) and not set(folders[0]) & set(folders[1])


def test_event_time_and_side_outputs(tmp_path: Path) -> None:
    wait = ".awaitTermination()"
    assert TIME.rstrip().endswith(wait)
    program = TIME.rstrip().removesuffix(wait) + ".processAllAvailable()\n"
    program += (
        "for name in ('good', 'doubtful', 'late'):\n"
        "    if not ps.spark.ParquetSink(name).epochs(): continue\n"
        "    frame = spark.read.parquet(name)\n"
        "    print(name, sorted(row['value'] for row in frame.collect()))\n"
        "spark.stop()\n"
    )
    (tmp_path / "readings").mkdir()
    rows = [reading(1, 30), reading(2, 20), reading(50, 31)]
    (tmp_path / "readings/1.json").write_text("\n".join(rows))
    assert run(program, tmp_path).splitlines() == ["good [1.0, 2.0]", "doubtful [50.0]"]
    (tmp_path / "readings/2.json").write_text("\n".join([reading(3, 22), reading(4, 20)]))
    lines = ["good [1.0, 2.0, 3.0]", "doubtful [50.0]", "late [4.0]"]
    assert run(program, tmp_path).splitlines() == lines


def click(user: str, page: str, second: int) -> str:
    return json.dumps({"user": user, "page": page, "at": f"2026-01-01T00:00:{second:02}Z"})


def test_the_job_goes_on_where_it_ended(tmp_path: Path) -> None:
    wait = ".awaitTermination()"
    assert JOB.rstrip().endswith(wait)
    program = JOB.rstrip().removesuffix(wait) + ".processAllAvailable()\n"
    program += (
        "rows = spark.read.parquet('moves').orderBy('user', 'clicks')\n"
        "print('rows', [tuple(r)[:4] for r in rows.collect()])\n"
        "spark.stop()\n"
    )
    (tmp_path / "clicks").mkdir()
    first = [click("ann", "a", 2), click("ann", "b", 3), click("bob", "a", 1), click("ann", "a", 1)]
    (tmp_path / "clicks/1.json").write_text("\n".join(first))
    expected = [("ann", 1, None, "a"), ("ann", 3, "a", "b"), ("bob", 1, None, "a")]
    assert f"rows {expected}" in run(program, tmp_path)

    (tmp_path / "clicks/2.json").write_text(click("ann", "c", 4))
    expected.insert(2, ("ann", 4, "b", "c"))
    assert f"rows {expected}" in run(program, tmp_path)
