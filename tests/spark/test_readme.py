"""The README's examples, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOB, TEST, STORE = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


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
