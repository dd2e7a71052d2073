"""The command line as a whole: its entry points, its help, its errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pystate as ps
from pystate.cli import history
from pystate.cli.app import app
from pystate.cli.program import main
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import InputSeen, RangeReport
from pystate.epochs.watermarks import Input
from tests.environments import Environment
from tests.work import KEY, STATE, Work, batch, read

#: Those that say something of a checkpoint and end: `serve` has tests of its own.
COMMANDS = [c.name or "" for c in app.registered_commands if c.name not in ("dashboard", "serve")]


def run(*arguments: str | Path, given: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments], input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def process(*command: str | Path, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_program_runs_and_loads_no_pyspark() -> None:
    script = (
        "import atexit, runpy, sys; sys.argv = ['pystate', '--version']\n"
        "spark = {'pyspark', 'py4j', 'pandas'}\n"
        "atexit.register(lambda: print({m.split('.')[0] for m in sys.modules} & spark))\n"
        "runpy.run_module('pystate', run_name='__main__')"
    )
    said = process(sys.executable, "-W", "error", "-c", script)
    assert said == (0, f"pystate {ps.__version__}\nset()\n", "")


def test_its_name_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("Usage: pystate [OPTIONS] COMMAND")
    script = Path(sys.executable).with_name("pystate")
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code, said, _ = process(script, "--show-completion", "bash", **variables)
    assert code == 0 and "_PYSTATE_COMPLETE" in said


def test_the_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    bare = Environment(tmp_path / "bare")
    done = bare.run("-m", "pystate", "inspect", "x", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    [said] = done.stderr.splitlines()
    assert "needs typer" in said and "[cli]' into the environment of " in said
    assert str(bare.python) in said


def test_the_help_teaches() -> None:
    code, said, _ = run("--help")
    assert code == 0
    told = " ".join(said.split())
    assert "A CHECKPOINT is the folder" in told and "A SAVEPOINT is one epoch" in told
    assert "Exit codes: 0" in told
    for name in COMMANDS:
        assert f"\n  {name} " in said
        code, about, _ = run(name, "--help")
        assert code == 0 and f"Example: pystate {name} " in " ".join(about.split()), name
        assert "--json" in about, name


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_use_is_one_line_and_code_2(name: str, tmp_path: Path) -> None:
    more = {
        "diff": ["1"],
        "export": ["x"],
        "savepoint": ["x"],
        "rescale": ["x", "--max-parallelism", "256"],
    }.get(name, [])
    code, said, wrong = run(name, tmp_path / "nothing", *more)
    assert (code, said) == (2, "")
    [line] = wrong.splitlines()
    assert line.startswith("pystate: ") and "no checkpoint" in line
    assert run(name)[0] == run(name, "--no-such-option")[0] == 2


def test_damage_is_one_line_and_code_1(tmp_path: Path) -> None:
    Work(tmp_path / "c").some(1)
    (tmp_path / "c" / "job.json").write_bytes(b"damaged")
    code, said, wrong = run("inspect", tmp_path / "c")
    assert (code, said) == (1, "")
    [line] = wrong.splitlines()
    assert "job.json: the checksum contradicts the content" in line


# ---- inspect -------------------------------------------------------------------------------------


def test_inspect_shows_what_is_there(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", "counting", ("a", "b")).some(4)
    code, said, _ = run("inspect", tmp_path / "c", "--ranges")
    assert code == 0
    for words in (
        "Checkpoint of job 'counting'",
        "4 is the newest; 2 to 4 are retained",
        "128 (max_parallelism)",
        "committed",
        f"pystate {ps.__version__}, manifest format 8",
        "not running",
        "n bigint, s string",
        "Ranges of 'b'",
        "64-127",
    ):
        assert words in said, said
    code, said, _ = run("inspect", tmp_path / "c", "--json")
    found = json.loads(said)
    assert code == 0 and found == json.loads(json.dumps(ps.describe(work.root), default=vars))
    assert found["epochs"] == [2, 3, 4] and found["output_committed"] is True
    assert found["owner"]["running"] is False and found["owner"]["pid"] == os.getpid()
    assert [o["uid"] for o in found["operators"]] == ["a", "b"]
    assert found["operators"][0]["longest_chain"] == 4
    assert found["files"] == len(list((work.root / "state").rglob("*.delta")))


def test_watermarks_of_operators_are_shown(tmp_path: Path) -> None:
    def evaluate(epoch: Epoch) -> Sequence[Any]:
        for uid, time_ms in (("timed", 1_500), ("plain", None)):
            given = Input(event_time=time_ms is not None)
            ranges = epoch.declare(
                uid, key_schema=KEY, state_schema=STATE, parallelism=1, inputs=(given,)
            )
            saw = (InputSeen(rows=1, max_event_time_ms=time_ms),)
            at = ranges[0].id
            epoch.report(RangeReport(uid, 0, epoch.evaluation_id, at, at, None, inputs=saw))
        return ()

    with Work(tmp_path / "c").coordinator() as coordinator:
        coordinator.run(evaluate)
    said = run("inspect", tmp_path / "c")[1]
    [timed] = [line for line in said.splitlines() if line.startswith("timed ")]
    assert timed.endswith("1970-01-01 00:00:01 UTC") and " watermark" in said
    found = json.loads(run("inspect", tmp_path / "c", "--json")[1])
    assert [o["watermark_ms"] for o in found["operators"]] == [1_500, None]
    records = json.loads(run("history", tmp_path / "c", "--json")[1])["records"]
    marks = {o["uid"]: o["watermark_ms"] for o in records[0]["operators"]}
    assert marks == {"timed": 1_500, "plain": None} and records[0]["watermark_ms"] == 1_500
    said = run("history", tmp_path / "c", "--operators")[1]
    assert "1970-01-01 00:00:01" in said


def test_inspect_tells_a_savepoint_and_a_running_job(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(2)
    ps.savepoint(work.root, tmp_path / "s")
    found = ps.describe(tmp_path / "s")
    assert (found.kind, found.job, found.epochs, found.owner) == ("savepoint", "job", (2,), None)
    with work.coordinator() as coordinator:
        work.run(coordinator, {1: 1})
        owner = ps.describe(work.root).owner
        assert owner is not None and owner.running is True and owner.term == 2
    assert "Savepoint of job 'job'" in run("inspect", tmp_path / "s")[1]


def test_an_empty_checkpoint_has_no_epoch(tmp_path: Path) -> None:
    with Work(tmp_path / "c").coordinator():
        found = ps.describe(tmp_path / "c")
    assert (found.epochs, found.operators, found.published_ms) == ((), (), None)
    assert "none yet" in run("inspect", tmp_path / "c")[1]


# ---- history -------------------------------------------------------------------------------------


def test_history_shows_epochs_that_are_gone(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a", "b")).some(5).some(2, parallelism=4)
    code, said, _ = run("history", work.root)
    assert code == 0
    heads, *lines = said.splitlines()
    # Columns in which nothing stands are left out.
    shown = "epoch published (UTC) input changed keys state written took notes"
    assert heads.split() == shown.split()
    assert [int(line.split()[0]) for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert lines[5].endswith("; 'a' from 2 to 4 ranges; 'b' from 2 to 4 ranges")
    assert "another driver, on " in lines[5] and lines[0].split()[3] == "run"
    _, *last = run("history", work.root, "--last", "2")[1].splitlines()
    assert [line.split()[0] for line in last] == ["6", "7"]
    code, said, _ = run("history", work.root, "--times", "--last", "1")
    shown = "epoch published (UTC) attach process seal write publish commit took"
    assert code == 0 and said.splitlines()[0].split() == shown.split()
    code, said, _ = run("history", work.root, "--operators", "--last", "1")
    found = [line.split()[:3] for line in said.splitlines()[1:]]
    assert code == 0 and found == [["7", "a", "4"], ["7", "b", "4"]]
    code, said, _ = run("history", work.root, "--json")
    found = json.loads(said)
    assert code == 0 and found == json.loads(json.dumps(ps.history(work.root), default=vars))
    assert [r["epoch"] for r in found["records"]] == [1, 2, 3, 4, 5, 6, 7]
    assert found["records"][0]["operators"][1]["uid"] == "b" and found["missing"] == []


def test_history_shows_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were invalid, and that none went out."""
    root = Work(tmp_path / "c", uids=("a", "b")).some(1).root
    found = ps.history(root)
    [record] = found.records
    a, b = record.operators
    a, b = replace(a, late_rows=4), replace(b, invalid_rows=1234, rows_in=4321, rows_out=0)
    # Older records have only what operators have read and emitted.
    flows: tuple[dict[str, int], ...] = ({}, {"rows_in": 4321, "rows_out": 0, "late_rows": 4})
    for flow in flows:
        records = (replace(record, operators=(a, b), **flow),)  # type: ignore[arg-type]
        told = replace(found, records=records)
        monkeypatch.setattr(history, "read_history", lambda *_, told=told, **__: told)
        for options in ([], ["--operators"]):
            heads, *others, line = run("history", root, *options)[1].splitlines()
            assert heads.index("late") < heads.index("invalid") and "rows in  rows out" in heads
            assert "1 234" in line and not [other for other in others if "1 234" in other]
            after = re.search(r"4 321 +(\S+)", line)
            assert after and after[1] == "0"


def test_summaries_of_commands_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, commands = run("--help")[1].split("Commands:")
    assert commands.count("\n") > 10 and "..." not in commands


def test_history_since(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(30)
    assert len(run("history", work.root)[1].splitlines()) == 21
    assert len(run("history", work.root, "--all")[1].splitlines()) == 31
    assert len(run("history", work.root, "--since", "1 hour")[1].splitlines()) == 31
    day = "2020-01-01"
    for since in (day, f"{day}T08:00", f"{day}T08:00:00+02:00", f"{day} 08:00Z"):
        assert len(run("history", work.root, "--since", since, "--last", "3")[1].splitlines()) == 4
    code, said, _ = run("history", work.root, "--since", "9999-01-01")
    assert (code, said) == (0, "No epoch was published since then.\n")
    for wrong in ("soon", "", "2020-13-01", "-5"):
        code, said, told = run("history", work.root, "--since", wrong)
        assert (code, said) == (2, "") and "--since is a length of time" in told, wrong
    assert run("history", work.root, "--all", "--last", "3")[0] == 2
    assert run("history", work.root, "--last", "0")[0] == 2


def test_history_says_what_it_lacks(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(6)
    [path] = (work.root / "history").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"x", *lines[1:3], lines[5]]))
    code, said, _ = run("history", work.root)
    assert code == 0 and "Not remembered: 2, 4-5." in said
    assert f"Skipped: history/{path.name}: a record is damaged." in said
    ps.savepoint(work.root, tmp_path / "s")
    code, said, wrong = run("history", tmp_path / "s")
    assert (code, said) == (2, "") and "is a savepoint, which is one epoch" in wrong
    with Work(tmp_path / "none").coordinator():
        assert run("history", tmp_path / "none") == (0, "No epoch is remembered.\n", "")


def test_history_of_batches(tmp_path: Path) -> None:
    work = Work(tmp_path / "c")
    with work.coordinator() as coordinator:
        for number in range(2):
            work.run(coordinator, {1: 1}, **batch(number, "q"))
        work.run(coordinator, {1: 1}, run_key="2026-11-20")
    lines = run("history", work.root)[1].splitlines()[1:]
    inputs = ("batch 0", "batch 1", "run '2026-11-20'")
    assert all(word in line for word, line in zip(inputs, lines, strict=True))


# ---- savepoint -----------------------------------------------------------------------------------


def test_a_savepoint_is_taken_and_described(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(3)
    code, said, _ = run("savepoint", work.root, tmp_path / "one")
    assert code == 0
    assert said.startswith(f"Epoch 3 of job 'job' is saved in {tmp_path / 'one'}: 6 files, ")
    earlier = ("--previous", tmp_path / "one", "--copy", "--json")
    code, said, _ = run("savepoint", work.root, tmp_path / "two", *earlier)
    taken = json.loads(said)
    assert code == 0 and (taken["epoch"], taken["files"], taken["job"]) == (3, 6, "job")
    assert read(tmp_path / "one") == read(tmp_path / "two") == work.counts
    shared = [p.stat().st_nlink for p in (tmp_path / "two" / "state").rglob("*.delta")]
    assert shared == [1] * 6
    code, said, wrong = run("savepoint", work.root, tmp_path / "two")
    assert (code, said) == (2, "") and "holds a savepoint already" in wrong
    path = next((work.root / "state").rglob("*.delta"))
    path.write_bytes(path.read_bytes()[:-1])
    code, said, wrong = run("savepoint", work.root, tmp_path / "three")
    assert (code, said) == (1, "") and path.name in wrong and len(wrong.splitlines()) == 1


def test_key_groups_are_multiplied(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(3)
    wider = ("--max-parallelism", "384")
    code, said, _ = run("rescale", work.root, tmp_path / "one", *wider)
    assert code == 0
    assert said.startswith(f"Epoch 3 of job 'job' is saved in {tmp_path / 'one'}: 6 files, ")
    wider = ("--max-parallelism", "768", "--json")
    code, said, _ = run("rescale", tmp_path / "one", tmp_path / "two", *wider)
    assert code == 0 and json.loads(said)["epoch"] == 3
    assert read(tmp_path / "one") == read(tmp_path / "two") == work.counts
    code, said, wrong = run("rescale", work.root, tmp_path / "three", "--max-parallelism", "200")
    assert (code, said) == (2, "") and "200 is not a multiple" in wrong
    seen: list[tuple[int, int]] = []
    ps.rescale(
        work.root, tmp_path / "s", max_parallelism=256, progress=lambda *each: seen.append(each)
    )
    assert len(seen) == 4 and seen[-1][0] == seen[-1][1] > 0


def test_long_work_shows_how_far_it_is(tmp_path: Path) -> None:
    work, seen = Work(tmp_path / "c").some(3), []
    ps.savepoint(work.root, tmp_path / "s", progress=lambda *each: seen.append(each))
    sizes = [path.stat().st_size for path in (work.root / "state").rglob("*.delta")]
    assert len(seen) == len(sizes) == 6 and seen[-1] == (sum(sizes), sum(sizes))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# ---- verify --------------------------------------------------------------------------------------


def test_verify_shows_what_is_wrong(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a", "b")).some(4)
    code, said, _ = run("verify", work.root)
    assert code == 0 and said.startswith("Nothing is wrong: 3 epochs, 16 files, ")
    path = sorted((work.root / "state" / "b").rglob("*.delta"))[3]
    path.write_bytes(path.read_bytes()[:-1])
    stray = path.with_name("00000001-" + "0" * 32 + ".delta")
    stray.write_bytes(b"12")
    code, said, _ = run("verify", work.root, "--jobs", "1")
    assert code == 1
    told = " ".join(said.split())
    assert "truncated b 0 0-63 4 " in told and path.name in told
    assert "1 orphan (2 bytes), which do no harm: --all lists them" in told
    assert "1 finding: 3 epochs, 16 files" in told
    assert "Epochs that cannot be read: 4; good ones: 2, 3." in told
    assert stray.name not in said and stray.name in run("verify", work.root, "--all")[1]
    code, said, _ = run("verify", work.root, "--json")
    found = json.loads(said)
    assert code == 1 and found["ok"] is False and found["good_epochs"] == [2, 3]
    assert [f["kind"] for f in found["findings"]] == ["truncated", "orphan"]
    assert found["findings"][0]["epochs"] == [4]


# ---- repair --------------------------------------------------------------------------------------


def broken(work: Work) -> Work:
    path = sorted((work.root / "state").rglob("*.delta"))[-1]
    path.write_bytes(path.read_bytes()[:-1])
    return work


def test_repair_says_what_is_lost_and_asks(tmp_path: Path) -> None:
    work = broken(Work(tmp_path / "c").some(4))
    code, said, _ = run("repair", work.root, "--dry-run")
    assert code == 1
    told = " ".join(said.split())
    assert "The state goes back from epoch 4 to 3. Lost:" in told
    assert "Runs among the lost epochs (run_epoch) are not done any more" in told
    assert "Output of epoch 4 in out stays; its rows are written again" in told
    code, said, asked = run("repair", work.root, given="n\n")
    assert code == 1 and "Nothing was changed." in said and "Repair the checkpoint?" in asked
    assert ps.describe(work.root).epochs == (2, 3, 4)
    code, said, _ = run("repair", work.root, given="y\n")
    assert code == 0 and f"Repaired. What was set aside is in {work.root}/repaired-" in said
    assert ps.describe(work.root).epochs == (2, 3)
    code, said, _ = run("repair", work.root, "--yes")
    assert (code, said) == (0, "Nothing is wrong: there is nothing to repair.\n")


def test_repair_for_programs(tmp_path: Path) -> None:
    work = broken(Work(tmp_path / "c").some(4))
    code, said, _ = run("repair", work.root, "--dry-run", "--json")
    planned = json.loads(said)
    assert code == 1 and planned["needed"] and planned["folder"] is None
    code, said, _ = run("repair", work.root, "--yes", "--json")
    done = json.loads(said)
    assert code == 0 and done["folder"].startswith("repaired-")
    assert {**done, "folder": None} == planned
    assert [lost["epoch"] for lost in done["lost"]] == [4]
    (work.root / "job.json").unlink()
    code, said, _ = run("repair", work.root, "--yes")
    assert code == 1 and "This cannot be repaired" in said and "job.json is lost" in said
    assert run("repair", work.root, "--yes", "--job", "job")[0] == 0


# ---- gc ------------------------------------------------------------------------------------------


def test_gc_says_bytes(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(3)
    assert run("gc", work.root) == (0, "There is nothing to remove.\n", "")
    name = f"state/op/00000-00063/00000001-{'0' * 32}.delta"
    (work.root / name).write_bytes(b"123")
    os.utime(work.root / name, (1, 1))
    assert run("gc", work.root, "--dry-run")[1] == f"  {name}\n1 file, 3 bytes would be removed.\n"
    code, said, _ = run("gc", work.root, "--json")
    assert code == 0 and json.loads(said)["files"] == [name] and json.loads(said)["removed"] == 1
    assert run("gc", work.root, "--older-than", "soon")[0] == 2
