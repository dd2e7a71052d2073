"""The benchmarks run, at sizes that say nothing about speed."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import results, state_size
from bench.__main__ import EVERYTHING, IN_PROCESS, ON_SPARK
from bench.measure import SCALES, Row, Spread, met
from bench.others import compare
from bench.report import cited, text
from bench.report.__main__ import main as report_main
from bench.report.sections import SECTIONS
from bench.results import Answer
from tests.drawn import THOROUGH

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYSTATE_BENCH_SCALE": "smoke"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def questions(path: Path) -> set[str]:
    answers = results.read(path)
    for question, answer in answers.items():
        assert answer.rows
        assert answer.seconds > 0
        for row in answer.rows:
            assert row.question == question
            assert row.figure.low <= row.figure.median <= row.figure.high, row
    return set(answers)


#: They take most of the time that all take.
LONG = {"attach", "collections", "count", "rows", "stores", "windows", "writes"}


@pytest.mark.drawn
def test_every_question_is_answered(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    asked = [name for name in IN_PROCESS if THOROUGH or name not in LONG]
    table = run("bench", "--only", ",".join(asked), "--output", str(runs))
    assert questions(runs) == set(asked)
    for question in asked:
        assert f"\n{question}  " in table
    pytest.importorskip("matplotlib")
    # The report of these alone: what nobody has asked is named, and so is what was not installed.
    command = ["--runs", str(runs), "--into", str(tmp_path)]
    assert report_main(command) == 0
    report = (tmp_path / "REPORT.md").read_text("utf-8")
    assert "`nexmark`: nobody has asked yet; `make bench-report` does" in report
    has_peers = THOROUGH and all(importlib.util.find_spec(name) for name in ("lmdb", "rocksdict"))
    assert ("`stores`: " in report) != has_peers
    for picture in re.findall(r"\]\((.*\.svg)\)", report):
        assert (tmp_path / picture).stat().st_size < 100_000
    assert report_main(["--check", *command]) == 0


def test_the_workloads_run_under_pytest_benchmark() -> None:
    pytest.importorskip("pytest_benchmark")
    assert "passed" in run("pytest", "bench", "-q", "--benchmark-disable", "-p", "no:cacheprovider")


@pytest.mark.slow
def test_the_jobs_on_spark(tmp_path: Path) -> None:
    run("bench", "--spark", "--output", str(tmp_path / "runs.jsonl"))
    assert questions(tmp_path / "runs.jsonl") == set(ON_SPARK)


def test_an_unknown_question_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "counts"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"no such question: counts" in done.stderr


# -- answers


def answer(question: str, *rows: Row, **more: Any) -> Answer:
    machine = {"cpu": "one", "cores": 2, "memory_gib": 1.0, "system": "Linux"}
    about = "2026-01-01T00:00:00+00:00", "abc", "short", machine, {"python": "3"}
    return Answer(question, *about, rows=[*rows], **more)


def row(what: str, figure: float, unit: str, ratio: float | None = None, goal: str = "") -> Row:
    times = None if ratio is None else Spread.of([ratio])
    return Row("count", what, Spread.of([figure]), unit, "dict", times, goal)


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    about = {"seconds": 1.5, "busy": (0.5, 0.25), "read_ns": (9.0, 27.5)}
    point = dataclasses.replace(row("b", 2.0, "ms"), series="s", size=10)
    given = answer("count", row("a", 1 / 3, "ms", 2.5, ">= 2x"), point, **about)
    path = tmp_path / "runs.jsonl"
    results.write(answer("writes"), path)
    results.write(answer("count"), path)
    results.write(given, path)
    # A line for each question, in their order: the last answer is the one that counts.
    found, other = results.read(path).values()
    assert (found.question, other.question) == ("count", "writes")
    assert len(path.read_text("utf-8").splitlines()) == 2
    assert found.rows[0].figure.median == 0.333333
    found.rows[0] = dataclasses.replace(found.rows[0], figure=given.rows[0].figure)
    for name in ("busy", "read_ns"):
        assert tuple(getattr(found, name)) == about[name]
    assert found.rows == given.rows
    assert (found.seconds, found.commit, found.scale) == (1.5, "abc", "short")


@pytest.mark.parametrize("line", ['{"rows": []}', "{", '{"question": "count", "rows": [{}]}'])
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs.jsonl"
    results.write(answer("count"), path)
    path.write_text(f"{path.read_text('utf-8')}{line}\n", "utf-8")
    with pytest.raises(ValueError, match=r"jsonl, line 2, is no answer of this version's"):
        results.read(path)


def ask(path: Path, error: BaseException | None, scale: str = "short") -> Answer:
    try:
        with results.asked("count", SCALES[scale], path) as found:
            if error:
                raise error
            found.rows.append(row("a", 1.0, "ms"))
    except (RuntimeError, KeyboardInterrupt):
        pass
    return results.read(path)["count"]


def test_a_failure_is_stored_and_replaces_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PROBE_SECONDS", 0.01)
    path = tmp_path / "runs.jsonl"
    assert ask(path, RuntimeError("lost")).error == "RuntimeError: lost"
    given = ask(path, None)
    assert given.error == ""
    assert all(0.1 < reads < 10_000 for reads in given.read_ns)
    assert ask(path, RuntimeError("lost")).error == ""
    assert ask(path, KeyboardInterrupt()).rows
    assert ask(path, RuntimeError("lost"), "smoke").error == "RuntimeError: lost"


@pytest.mark.parametrize(
    ("goal", "figure", "ratio", "reached"),
    [
        (">= 2x", 0.0, 2.0, True),
        (">= 2x", 9.0, 1.99, False),
        ("<= 1.5x", 0.0, 1.6, False),
        ("<= 1,000 ms", 999.0, 5_000.0, True),
        (">= 500 MB/s, flat", 499.0, None, False),
        (">= 2x", 9.0, None, None),
        ("flat", 9.0, None, None),
        ("", 9.0, 2.0, None),
    ],
)
def test_a_goal_is_one_of_the_ratio_or_of_the_figure(
    goal: str, figure: float, ratio: float | None, reached: bool | None
) -> None:
    assert met(row("a", figure, "ms", ratio, goal)) is reached


# -- the report


def test_the_report_says_what_was_missed_what_is_missing_and_what_is_in_doubt() -> None:
    given = answer(
        "count",
        row("slow", 1.0, "M rows/s", 1.5, ">= 2x"),
        row("fast", 1.0, "M rows/s", 2.5, ">= 2x"),
        busy=(0.1, 0.4),
        read_ns=(9.4, 27.6),
    )
    absent = answer("flink", error=".venv-flink is missing: `make bench-peers` makes it")
    report = text.report({"count": given, "flink": absent})
    assert "1 of 2 are reached. These are not:" in report
    assert "| P1 | slow | >= 2x | 1.5x |" in report
    assert "| slow | 1 M rows/s | 1.5x | dict | >= 2x, **missed** |" in report
    assert "| fast | 1 M rows/s | 2.5x | dict | >= 2x, reached |" in report
    assert "| 10%, 40% | 9, 28 ns | in doubt: the machine was in use |" in report
    assert "- `flink`: .venv-flink is missing: `make bench-peers` makes it" in report
    assert "- `others`: nobody has asked yet" in report


def test_answers_of_before_memory_was_measured_are_reported() -> None:
    report = text.report({"count": answer("count", row("a", 1.0, "ms"))})
    assert "| 0%, 0% |   |   |" in report


def test_each_question_of_the_command_is_in_the_report_once() -> None:
    assert sorted(text.asked()) == sorted(EVERYTHING)
    plots = [section.plot for section in SECTIONS if section.plot]
    assert len(plots) == len({plot.name for plot in plots}) <= 8
    assert {question for plot in plots for question in plot.asked} < set(EVERYTHING)


@pytest.mark.parametrize("question", sorted(EVERYTHING))
def test_each_question_names_a_function(question: str) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("duckdb")
    module, _, function = EVERYTHING[question].partition(":")
    assert callable(getattr(importlib.import_module(f"bench.{module}"), function))


def test_what_is_not_measured_is_cited_as_such() -> None:
    for name, make in cited.tables().items():
        assert cited.UNKNOWN in make(cited.Figures({})), name


def test_a_cited_table_is_replaced_and_the_text_around_it_stays() -> None:
    rows = [
        row(f"count, {keys} keys: pystate, seal timed", 60.0, "M rows/s", ratio)
        for keys, ratio in (("1,000,000", 17.44), ("10,000,000", 9.97))
    ]
    given = "before\n<!-- figures: costs -->\nstale\n<!-- end of figures -->\nafter\n"
    found = cited.cited(given, {"count": answer("count", *rows)})
    assert "| 17x and 10x a loop over a Python dict |" in found
    assert "stale" not in found
    assert found.startswith("before\n<!-- figures: costs -->\n")
    assert found.endswith("<!-- end of figures -->\nafter\n")
    assert cited.cited(found, {"count": answer("count", *rows)}) == found
    with pytest.raises(ValueError, match="no such table: cost "):
        cited.cited(given.replace("costs", "cost"), {})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.926, "0.93"),
        (0.998, "1.0"),
        (2, "2.0"),
        (7.94, "7.9"),
        (9.96, "10"),
        (182.4, "182"),
        (219_273.0, "219 000"),
        (-17.4, "-17"),
    ],
)
def test_cited_figures_have_two_digits(value: float, shown: str) -> None:
    assert cited.short(value) == shown


def test_what_is_committed_is_what_the_answers_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_main(["--check"]) == 0, capsys.readouterr().out
    # All tables are cited somewhere, and none by hand.
    marks = [cited.MARKED.findall((ROOT / name).read_text("utf-8")) for name in cited.FILES]
    assert sorted(name for found in marks for name, _ in found) == sorted(cited.tables())


def test_what_differs_from_the_answers_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, into = tmp_path / "runs.jsonl", tmp_path / "into"
    into.mkdir()
    results.write(answer("writes", row("a", 1.0, "ms")), runs)
    command = ["--check", "--runs", str(runs), "--into", str(into)]
    assert report_main(command) == 1
    (into / "REPORT.md").write_text(text.report(results.read(runs)), "utf-8")
    assert report_main(command) == 0
    results.write(answer("stores", row("a", 1.0, "ms")), runs)
    (into / "REPORT.md").write_text(text.report(results.read(runs)), "utf-8")
    capsys.readouterr()
    assert report_main(command) == 1
    assert "what the answers give: report/plots/stores.svg; run" in capsys.readouterr().out


# -- workloads


def test_a_state_that_grows_has_each_key_and_changes_as_many() -> None:
    scale = dataclasses.replace(SCALES["smoke"], grown_keys=(1_000, 2_500), grown_rows=100)
    there: dict[str, set[int]] = {"small": set(), "grown": set()}
    timed: dict[str, list[tuple[int, int]]] = {"small": [], "grown": []}

    def epochs(name: str) -> Any:
        def epoch(n_keys: int, rows: int, first: int, step: int) -> float:
            keys = {(i * step + first) % n_keys for i in range(rows)}
            assert len(keys) == rows
            if step == state_size.STEP:
                assert keys <= there[name]
                timed[name].append((n_keys, rows))
            there[name] |= keys
            return float(n_keys)

        return epoch

    found = state_size.compared(scale, {name: epochs(name) for name in there}, 1)
    assert there == {"small": {*range(1_000)}, "grown": {*range(2_500)}}
    assert {*timed["small"]} == {(1_000, 100)}
    assert {*timed["grown"]} == {(1_000, 100), (2_500, 100)}
    assert found[2_500].seconds == {
        "small": [1_000.0] * state_size.EPOCHS,
        "grown": [2_500.0] * state_size.EPOCHS,
    }
    rows = state_size.rows_of("q", "w", scale, found)
    assert [row.ratio and row.ratio.median for row in rows] == [None, 2.5]
    assert [row.figure.median for row in rows] == [1e6, 2.5e6]


# -- other engines


def test_what_others_count_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.array([5, 5, 1, 5])
    assert compare.due(keys) == {"keys": 2, "rows": 4, "squares": 10}
    said = {"seconds": 2.0, "version": "1.0", "keys": 2, "rows": 4, "squares": 10}
    program = {"us": ("python", "a.py", ()), "Other": ("python", "b.py", ())}
    monkeypatch.setattr(compare, "run", lambda *given: said)
    found = compare.compared("others", program, 2, keys, tmp_path)
    assert [row.what for row in found] == [
        "count, 4 rows, 2 keys: us 1.0",
        "count, 4 rows, 2 keys: Other 1.0",
    ]
    assert found[1].ratio == Spread(1.0, 1.0, 1.0)
    said["squares"] = 9
    with pytest.raises(AssertionError, match="us counted"):
        compare.compared("others", program, 1, keys, tmp_path)


def test_an_environment_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(results.NotInstalledError, match=r"none is missing: `make bench-peers`"):
        compare.python_of(tmp_path / "none")


def test_the_counting_programs_of_this_package_count_right(tmp_path: Path) -> None:
    keys = np.random.default_rng(1).integers(0, 50, 1_000)
    np.save(tmp_path / "rows.npy", keys)
    for how in ("row", "batch"):
        program = (sys.executable, "pystate_job.py", (how,))
        found = compare.run(program, str(tmp_path / "rows.npy"), str(tmp_path / how))
        assert {name: found[name] for name in compare.due(keys)} == compare.due(keys)


def test_functions_of_frames_are_cited_for_each_size_that_was_measured() -> None:
    def of(size: str, name: str, ratio: float | None) -> Row:
        return row(f"count by frames, {size} rows a batch, 9 keys: {name}", 1.0, "k rows/s", ratio)

    group, frames = "applyInPandasWithState", "transformWithStateInPandas"
    first = [
        of("300,000", "pystate, by row", None),
        of("300,000", f"{group} in a job", 3.0),
        of("300,000", f"{frames} in a job", 4.0),
        of("300,000", group, 30.0),
        of("300,000", frames, 40.0),
    ]
    by_row = (
        "| a count by row, 300 000 rows a batch | "
        f"30x `{group}`, 40x `{frames}`; these unchanged in a job 3.0x and 4.0x |"
    )

    def lines(*rows: Row) -> list[str]:
        figures = cited.Figures({"spark-pandas": answer("spark-pandas", *rows)})
        table = cited.tables()["on-spark"](figures).splitlines()
        return [line for line in table if " count by " in line]

    assert lines(*first) == [by_row]
    assert lines() == [f"| a count by row, many rows a batch | {cited.UNKNOWN} |"]
    by_batch = "by batch in pystate, by frames in Spark"
    more = [
        row(f"{by_batch}, 300,000 rows a batch: {group}", 1.0, "k rows/s", 50.0),
        row(f"{by_batch}, 300,000 rows a batch: {frames}", 1.0, "k rows/s", 60.0),
        of("1,200,000", "pystate, by row", None),
        of("1,200,000", group, 70.0),
    ]
    found = lines(*first, *more)
    assert found[:2] == [
        by_row,
        f"| the same count by batch, 300 000 rows a batch | 50x `{group}`, 60x `{frames}` |",
    ]
    rest = f"| a count by row, 1 200 000 rows a batch | 70x `{group}`, not measured yet"
    assert found[2].startswith(rest)
