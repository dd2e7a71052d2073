"""The command `sql`."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import heeds_interrupts
from tests.unit.cli.test_cli import run
from tests.work import Work

pytest.importorskip("duckdb", reason="needs the package duckdb: pip install duckdb")

ENDLESS = "select sum(i % 7) from range(1000000000000000) t(i)"


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "c", uids=("op", "an other")).some(3)


def test_rows_in_all_forms(work: Work) -> None:
    query = (
        'select a.k, b.k, a.n from op a join "an other" b using (k) where k in (2, 1) order by k'
    )
    code, said, told = run("sql", work.root, query)
    assert (code, told) == (0, "")
    assert [line.split() for line in said.splitlines()] == [
        ["k", "k_1", "n"],
        *([str(k), str(k), str(work.counts[k])] for k in (1, 2)),
    ]
    expected = [{"k": k, "k_1": k, "n": work.counts[k]} for k in (1, 2)]
    assert json.loads(run("sql", work.root, query, "--json")[1]) == expected
    code, said, _ = run("sql", work.root, "-", "--format", "csv", given=query)
    assert list(csv.DictReader(io.StringIO(said))) == [
        {name: str(value) for name, value in row.items()} for row in expected
    ]
    assert run("sql", work.root, "select 1 where false") == (0, "There are no rows.\n", "")
    code, said, _ = run("sql", work.root, "from op", "--limit", "3")
    assert said.endswith("There are more rows than 3: --limit says how many to print.\n")
    assert len(said.splitlines()) == 5
    code, said, _ = run("sql", work.root, "select epoch from epochs", "--epoch", "2", "--json")
    assert [row["epoch"] for row in json.loads(said)] == [1, 2, 3]
    code, said, _ = run("sql", work.root, "select max(n) from op", "--epoch", "2", "--json")
    assert list(json.loads(said)[0].values()) == [3]


def test_without_a_statement_tables_are_listed(work: Work) -> None:
    code, said, _ = run("sql", work.root)
    assert code == 0
    assert [line.split("  ")[0] for line in said.splitlines()] == [
        *("table", "an other", "op", "epochs")
    ]
    assert "k BIGINT, n BIGINT, s VARCHAR" in said
    columns = json.loads(run("sql", work.root, "--json")[1])
    assert {"table": "op", "column": "n", "type": "BIGINT"}.items() <= columns[4].items()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["selec 1"], 2, 'pystate: sql: syntax error at or near "selec"'),
        (["from opp"], 2, "no table 'opp'; there are \"an other\", op, epochs; did you mean 'op'?"),
        (["copy (select 1) to 'x'"], 2, "pystate: sql: only one SELECT statement is run"),
        (["from read_text('x')"], 2, "nothing is read but the checkpoint's tables"),
        (["select 1", "--epoch", "9"], 2, "does not hold epoch 9"),
        (["select 1", "--timeout", "soon"], 2, "sql: timeout"),
        (
            ["select sum(i % 7) from range(1000000000000000) t(i)", "--timeout", "50 ms"],
            1,
            "0.05 s",
        ),
        (["select distinct i * 7 from range(3000000) t(i)", "--memory", "16"], 1, "16.0 MiB"),
    ],
)
def test_what_is_wrong_is_one_line(
    work: Work, arguments: list[str], code: int, message: str
) -> None:
    ended, said, told = run("sql", work.root, *arguments)
    assert (ended, said) == (code, "")
    [line] = told.splitlines()
    assert line.startswith("pystate: ") and message in line


def test_without_duckdb(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, said, told = run("sql", work.root, "select 1")
    assert (code, said) == (1, "") and len(told.splitlines()) == 1
    assert told.startswith("pystate: SQL needs duckdb") and "the extra 'sql'" in told


def test_ctrl_c_ends_it(work: Work) -> None:
    program = (
        "from pystate.cli.program import main\n"
        "from pystate.query.sql import execution\n"
        "import sys\n"
        "real = execution.parse_statement\n"
        "def said(*given):\n"
        "    print('begun', flush=True)\n"
        "    return real(*given)\n"
        "execution.parse_statement = said\n"
        f"sys.argv = ['pystate', 'sql', {str(work.root)!r}, {ENDLESS!r}]\n"
        "main()\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        preexec_fn=heeds_interrupts,
    )
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=60) == ("", "pystate: interrupted\n")
    assert running.returncode == 130
