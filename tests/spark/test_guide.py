"""The guide's pages: their code runs as it stands there, and prints what they say."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.guide import PAGES, ROOT, Block, blocks, plain

WITH_CODE = [page for page in PAGES if blocks(page)]
#: What its programs print when they are run again where they have run before.
SINKS_AGAIN = ["[('ann', 42), ('bob', 10)]", None]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the blocks of each page have printed, and those of the sinks' page once more."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    pages = [*WITH_CODE, "sinks.md"]
    folder = tmp_path_factory.mktemp("guide")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.run_guide", *pages],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *found, again = json.loads(done.stdout.splitlines()[-1])
    assert not list(folder.glob("staged/*"))
    return {**dict(zip(WITH_CODE, found, strict=True)), "again": again}


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_runs_and_prints_what_the_page_says(results: dict[str, Any], page: str) -> None:
    assert results[page]["error"] is None, results[page]["error"]
    for block, printed in zip(blocks(page), results[page]["printed"], strict=True):
        assert plain(printed) == plain(block.printed), f"docs/{page}, line {block.line}"


def test_sinks_go_on_when_their_programs_run_again(results: dict[str, Any]) -> None:
    assert results["again"]["error"] is None
    printed = results["again"]["printed"]
    for found, wanted in zip(printed, SINKS_AGAIN, strict=True):
        assert wanted is None or plain(found) == wanted


def not_run() -> list[tuple[str, Block]]:
    return [(page, block) for page in WITH_CODE for block in blocks(page) if block.reason]


def test_what_is_not_run_says_which_package_it_is_of() -> None:
    for page, block in not_run():
        where = f"docs/{page}, line {block.line}"
        [package] = re.findall(r"^needs (\w+)", block.reason or "")
        assert importlib.util.find_spec(package) is None, f"{where} could be run"
        names = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(block.text))
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        }
        assert package in names, where


def test_every_block_of_python_is_found() -> None:
    """None is hidden from the tests by how its fence is written."""
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text("utf-8")
        fences = re.findall(r"^[ \t]*(?:```|~~~|:::)+ *\{?(?:code-block\} *)?(?:python|py)\b",
                            text, re.MULTILINE)  # fmt: skip
        assert len(fences) == len(blocks(page)), page


def test_what_the_sinks_page_names_is_there() -> None:
    from pystate import spark

    text = (ROOT / "docs" / "sinks.md").read_text("utf-8")
    sink = spark.Sink
    for method in re.findall(r"^\| `(\w+)\(", text, re.MULTILINE):
        assert callable(getattr(sink, method))
    for name in ("compact", "read", "partition_by"):
        assert hasattr(spark.ParquetSink, name)
    assert callable(spark.Job.abandon_output) and callable(spark.register_sink)


def test_the_reference_has_every_public_name() -> None:
    import pystate
    from pystate import errors, spark, testing

    found: set[str] = set()
    for path in (ROOT / "docs" / "api").glob("*.md"):
        named = re.findall(r"^\.\. auto\w+:: ([\w.]+)", path.read_text("utf-8"), re.MULTILINE)
        assert len(named) == len(set(named)), path.name
        found.update(name.rpartition(".")[2] for name in named)
    public = {*pystate.__all__, *spark.__all__, *testing.__all__}
    # A module's page has its names; that of errors has all of them by one directive.
    assert public - found == {"testing"} | ({*errors.__all__} & public)


def test_the_reference_of_a_job_has_what_pipelines_call() -> None:
    page = (ROOT / "docs" / "api" / "spark.md").read_text("utf-8")
    assert re.search(r"^\.\. autoclass:: Job\n   :inherited-members:$", page, re.MULTILINE)
