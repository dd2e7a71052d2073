"""The README's examples, run as they stand there: alone, outside of the checkout, to their end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.environments import ROOT, Environment

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
STORE, JOB = BLOCKS
EPOCH = r"epoch {} \(batch {}\): {}, .*\d+\.\d\d s"


@pytest.fixture(scope="module")
def with_spark(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install '.[spark]'` gives."""
    return Environment(tmp_path_factory.mktemp("installed") / "environment", ["spark"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install .` gives."""
    return Environment(tmp_path_factory.mktemp("installed") / "environment")


def run(environment: Environment, program: str, folder: Path) -> list[str]:
    done = environment.run("-c", program, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert "docs/from-spark.md" in links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_first_screen_has_a_program_and_the_commands() -> None:
    """The store of ten lines, which runs at once, before anything else; then a job."""
    first = README.splitlines()[:40]
    shown = [i for i, line in enumerate(first) if line in ("```python", "## A job")]
    commands = [i for i, line in enumerate(first) if line.startswith("make ")]
    assert len(STORE.strip().splitlines()) <= 10 and "ps.open" in STORE
    assert shown[0] < commands[0] < shown[1]
    assert {first[i].split()[1] for i in commands} == {"demo", "test"}


def test_the_store(alone: Environment, tmp_path: Path) -> None:
    assert run(alone, STORE, tmp_path) == ["[{'key': 1, 'n': 2}, {'key': 2, 'n': 11}]"]
    assert run(alone, STORE, tmp_path) == ["[{'key': 1, 'n': 4}, {'key': 2, 'n': 22}]"]


def test_the_job_goes_on_where_it_ended(with_spark: Environment, tmp_path: Path) -> None:
    def moves(printed: list[str]) -> list[str]:
        return [re.sub(r"[ |]+", " ", line).strip() for line in printed if line.startswith("|")]

    first, *table = run(with_spark, JOB, tmp_path)
    assert re.fullmatch(EPOCH.format(1, 0, "4 rows in, 3 out, 2 keys"), first)
    rows = ["ann 1 NULL home 1", "ann 3 home cart 1", "bob 1 NULL home 1"]
    assert moves(table) == ["user clicks came_from page epoch", *rows]

    more = {"user": "ann", "page": "pay", "at": "2026-01-01T10:00:20Z"}
    (tmp_path / "clicks/2.json").write_text(json.dumps(more))
    second, *table = run(with_spark, JOB, tmp_path)
    assert re.fullmatch(EPOCH.format(2, 1, "1 rows in, 1 out"), second)
    assert moves(table)[1:] == [*rows[:2], "ann 4 cart pay 2", rows[2]]
