"""The guide and the README: their code runs as it stands there, and prints what they say."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import re
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.guide import PAGES, ROOT, Block, blocks, plain

from .programs import programs, working_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_CODE = [page for page in PAGES if blocks(page)]
#: What its programs print when they are run again where they have run before.
SINKS_AGAIN = ["[('ann', 42), ('bob', 10)]", None]
README = "../README.md"
STORE, JOB = blocks(README)
EPOCH = r"epoch {} \(batch {}\): {}, .*\d+\.\d\d s"


def run(page: str) -> list[str]:
    """Run a page's blocks in order, as the cells of a notebook are; return what they have printed.

    Functions that are called test_... are called, as pytest would.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    printed: list[str] = []
    for block in blocks(page):
        if block.reason is not None:
            printed.append("")
            continue
        before = dict(space)
        out = io.StringIO()
        # Errors name the page's own lines.
        code = compile("\n" * (block.line - 1) + block.text, page, "exec")
        try:
            with contextlib.redirect_stdout(out):
                exec(code, space)
                for name, value in list(space.items()):
                    if name.startswith("test_") and value is not before.get(name):
                        test: Callable[[], None] = value
                        test()
        except BaseException:
            pytest.fail(out.getvalue() + traceback.format_exc())
        printed.append(out.getvalue())
    return printed


@pytest.fixture(scope="module")
def here(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the pages' programs."""
    folder = tmp_path_factory.mktemp("guide")
    with programs(spark), working_in(spark, folder, workers=True):
        yield folder


@pytest.fixture(scope="module")
def once(here: Path) -> Callable[[str], list[str]]:
    """What a page has printed the first time."""
    return cache(run)


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_runs_and_prints_what_the_page_says(
    once: Callable[[str], list[str]], page: str
) -> None:
    for block, printed in zip(blocks(page), once(page), strict=True):
        assert plain(printed) == plain(block.printed), f"docs/{page}, line {block.line}"


def test_sinks_go_on_when_their_programs_run_again(
    once: Callable[[str], list[str]], here: Path
) -> None:
    once("sinks.md")
    for found, wanted in zip(run("sinks.md"), SINKS_AGAIN, strict=True):
        assert wanted is None or plain(found) == wanted
    assert (here / "staged").exists() and not list(here.glob("staged/*"))


def test_the_readme_goes_on_where_it_ended(spark: SparkSession, here: Path, tmp_path: Path) -> None:
    def moves(printed: list[str]) -> list[str]:
        return [re.sub(r"[ |]+", " ", line).strip() for line in printed if line.startswith("|")]

    with working_in(spark, tmp_path):
        store, job = run(README)
        assert store == "[{'key': 1, 'n': 2}, {'key': 2, 'n': 11}]\n"
        first, *table = job.splitlines()
        assert re.fullmatch(EPOCH.format(1, 0, "4 rows in, 3 out, 2 keys"), first)
        rows = ["ann 1 NULL home 1", "ann 3 home cart 1", "bob 1 NULL home 1"]
        assert moves(table) == ["user clicks came_from page epoch", *rows]

        more = {"user": "ann", "page": "pay", "at": "2026-01-01T10:00:20Z"}
        (tmp_path / "clicks/2.json").write_text(json.dumps(more))
        store, job = run(README)
        assert store == "[{'key': 1, 'n': 4}, {'key': 2, 'n': 22}]\n"
        second, *table = job.splitlines()
        assert re.fullmatch(EPOCH.format(2, 1, "1 rows in, 1 out"), second)
        assert moves(table)[1:] == [*rows[:2], "ann 4 cart pay 2", rows[2]]


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    assert "docs/from-spark.md" in links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_first_screen_has_a_program_and_the_commands() -> None:
    """The store of ten lines, which runs at once, before anything else; then a job."""
    first = (ROOT / "README.md").read_text("utf-8").splitlines()[:40]
    shown = [i for i, line in enumerate(first) if line in ("```python", "## A job")]
    commands = [i for i, line in enumerate(first) if line.startswith("make ")]
    assert len(STORE.text.strip().splitlines()) <= 10 and "ps.open" in STORE.text
    assert shown[0] < commands[0] < shown[1]
    assert {first[i].split()[1] for i in commands} == {"demo", "test"}


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
