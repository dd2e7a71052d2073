"""The command line as a whole: its entry points, its help, its errors."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pystate as ps
from pystate.cli import reading
from pystate.cli.app import app
from pystate.processor.epochs import missing_file
from tests.environments import Environment
from tests.work import Work, batch, read

COMMANDS = [command.name or "" for command in app.registered_commands]


def run(*arguments: str, given: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments], input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def program(*arguments: str, environment: Environment | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pystate", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_program_runs_and_its_name_is_one() -> None:
    code, said, wrong = program("--version")
    assert (code, said, wrong) == (0, f"pystate {ps.__version__}\n", "")
    script = Path(sys.executable).with_name("pystate")
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("Usage: pystate [OPTIONS] COMMAND")


def test_no_pyspark_is_loaded() -> None:
    script = (
        "import sys, pystate.cli.app\n"
        "assert not {m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'pandas'}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    bare = Environment(tmp_path / "bare")
    done = bare.run("-m", "pystate", "inspect", "x", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    [said] = done.stderr.splitlines()
    assert "needs typer" in said and "pip install 'pystate-spark[cli]'" in said
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


def test_completion_is_there() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("pystate"), "--show-completion", "bash"],
        capture_output=True,
        text=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        check=False,
    )
    assert done.returncode == 0 and "_PYSTATE_COMPLETE" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_use_is_one_line_and_code_2(name: str, tmp_path: Path) -> None:
    more = {
        "diff": ["1"],
        "export": ["x"],
        "savepoint": ["x"],
        "rescale": ["x", "--max-parallelism", "256"],
    }.get(name, [])
    code, said, wrong = program(name, str(tmp_path / "nothing"), *more)
    assert (code, said) == (2, "")
    [line] = wrong.splitlines()
    assert line.startswith("pystate: ") and "no checkpoint" in line
    assert run(name)[0] == run(name, "--no-such-option")[0] == 2


def test_damage_is_one_line_and_code_1(tmp_path: Path) -> None:
    Work(tmp_path / "c").some(1)
    (tmp_path / "c" / "job.json").write_bytes(b"damaged")
    code, said, wrong = program("inspect", str(tmp_path / "c"))
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
        f"pystate {ps.__version__}, manifest format 4",
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
    assert heads.split() == (
        [
            "epoch",
            "published",
            "(UTC)",
            "input",
            "changed",
            "keys",
            "state",
            "written",
            "took",
            "notes",
        ]
    )
    assert [int(line.split()[0]) for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert lines[5].endswith("; 'a' from 2 to 4 ranges; 'b' from 2 to 4 ranges")
    assert "another driver, on " in lines[5] and lines[0].split()[3] == "run"
    assert [line.split()[0] for line in run("history", work.root, "--last", "2")[1].splitlines()][
        1:
    ] == ["6", "7"]
    code, said, _ = run("history", work.root, "--times", "--last", "1")
    assert code == 0 and said.splitlines()[0].split() == (
        [
            "epoch",
            "published",
            "(UTC)",
            "attach",
            "process",
            "seal",
            "write",
            "publish",
            "commit",
            "took",
        ]
    )
    code, said, _ = run("history", work.root, "--operators", "--last", "1")
    assert code == 0 and [line.split()[:3] for line in said.splitlines()[1:]] == [
        ["7", "a", "4"], ["7", "b", "4"]
    ]  # fmt: skip
    code, said, _ = run("history", work.root, "--json")
    found = json.loads(said)
    assert code == 0 and found == json.loads(json.dumps(ps.history(work.root), default=vars))
    assert [r["epoch"] for r in found["records"]] == [1, 2, 3, 4, 5, 6, 7]
    assert found["records"][0]["operators"][1]["uid"] == "b" and found["missing"] == []


def test_history_since(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(30)
    assert len(run("history", work.root)[1].splitlines()) == 21
    assert len(run("history", work.root, "--all")[1].splitlines()) == 31
    assert len(run("history", work.root, "--since", "1 hour")[1].splitlines()) == 31
    for since in (
        "2020-01-01",
        "2020-01-01T08:00",
        "2020-01-01T08:00:00+02:00",
        "2020-01-01 08:00Z",
    ):
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
    assert ["batch 0" in lines[0], "batch 1" in lines[1], "run '2026-11-20'" in lines[2]] == [
        True
    ] * 3


# ---- read, diff, export --------------------------------------------------------------------------


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """A store of two key columns and of many types."""
    states = {
        "l": ps.ListState("long"),
        "m": ps.MapState("string", "double"),
        "s": ps.ValueState("struct<a:date,b:decimal(5,2)>"),
        "b": ps.ValueState("binary"),
        "f": ps.ValueState("double"),
        "t": ps.ValueState("timestamp"),
    }
    with ps.open(tmp_path / "c", key={"k": "string", "d": "date"}, states=states) as store:
        store.set_current_key(("ü\x1b[2J", date(1970, 1, 4)))
        store["l"].add_all([1, 2])
        store["m"].put("y", 0.5)
        store["s"].update((date(1970, 1, 2), Decimal("1.50")))
        store["b"].update(b"\xff\x00")
        store["f"].update(float("inf"))
        store["t"].update(datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc))
        store.checkpoint()
        store.set_current_key(("b", None))
        store["f"].update(1.5)
        store.checkpoint()
    return tmp_path / "c"


def test_read_prints_rows(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a", "b")).some(4)
    code, said, _ = run("read", work.root, "--uid", "a", "--json")
    assert code == 0 and {r["k"]: r["n"] for r in json.loads(said)} == work.counts
    code, said, _ = run("read", work.root, "--uid", "a", "--format", "jsonl")
    assert code == 0 and {r["k"]: r["n"] for r in map(json.loads, said.splitlines())} == work.counts
    code, said, _ = run("read", work.root, "--uid", "a", "--format", "csv", "--state", "n")
    rows = list(csv.reader(said.splitlines()))
    assert code == 0 and rows[0] == ["k", "n"]
    assert {int(k): int(n) for k, n in rows[1:]} == work.counts
    code, said, _ = run("read", work.root, "--uid", "a", "--limit", "5", "--epoch", "3")
    assert code == 0 and said.splitlines()[0].split() == ["k", "n", "s"]
    assert len(said.splitlines()) == 7
    assert said.endswith("There are more rows than 5: --limit says how many to print.\n")
    assert "There are more" not in run("read", work.root, "--uid", "a", "--limit", "43")[1]
    code, said, _ = run("read", work.root, "--uid", "b", "--key", "3", "--key", "0", "--json")
    assert code == 0 and {r["k"]: r["n"] for r in json.loads(said)} == {
        k: work.counts[k] for k in (0, 3)
    }
    assert run("read", work.root, "--uid", "b", "--key", "999") == (0, "There are no rows.\n", "")
    assert run("read", work.root, "--uid", "b", "--key", "999", "--json") == (0, "[]\n", "")
    assert run("read", work.root, "--uid", "b", "--limit", "0", "--format", "csv") == (0, "", "")


def test_read_prints_all_types(typed: Path) -> None:
    code, said, _ = run("read", typed, "--json")
    first, second = sorted(json.loads(said), key=lambda row: row["d"] is None)
    assert code == 0 and first == {
        "k": "ü\x1b[2J",
        "d": "1970-01-04",
        "l": [1, 2],
        "m": [["y", 0.5]],
        "s": {"a": "1970-01-02", "b": "1.50"},
        "b": "/wA=",
        "f": "inf",
        "t": "1970-01-01T00:00:01+00:00",
    }
    assert (second["k"], second["d"], second["f"], second["b"]) == ("b", None, 1.5, None)
    code, said, _ = run("read", typed, "--limit", "9")
    assert code == 0 and r"ü\x1b[2J" in said and "\x1b" not in said and "null" in said
    assert '{"a": "1970-01-02", "b": "1.50"}' in said
    exploded = ("--state", "l", "--explode", "--json")
    assert [r["l"] for r in json.loads(run("read", typed, *exploded)[1])] == [1, 2]


def test_keys_of_several_columns(typed: Path) -> None:
    found = json.loads(run("read", typed, "--key", '["b", null]', "--json")[1])
    assert [row["k"] for row in found] == ["b"]
    assert json.loads(run("read", typed, "--key", '["b", "1970-01-04"]', "--json")[1]) == []
    for wrong in ("b", '["b"]', '{"a": 1}', "[1, 2, 3]"):
        code, said, told = run("read", typed, "--key", wrong)
        assert (code, said) == (2, "") and "give a JSON list of 2 values" in told, wrong
    code, said, told = run("read", typed, "--key", '["b", "soon"]')
    assert (code, said) == (2, "") and "not of type date" in told and "key column 'd'" in told


def test_diff_prints_changes(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(3)
    code, said, _ = run("diff", work.root, "1", "--json")
    found = {r["k"]: r for r in json.loads(said)}
    assert code == 0 and {k: r["after"]["n"] for k, r in found.items() if r["change"] == "put"} == {
        k: n for k, n in work.counts.items() if k
    }
    code, said, _ = run("diff", work.root, "2", "3", "--state", "n", "--key", "5", "--json")
    assert json.loads(said) == [{"k": 5, "change": "put", "before": 3, "after": 6}]
    assert len(run("diff", work.root, "0", "1", "--format", "jsonl")[1].splitlines()) == 40
    assert run("diff", work.root, "3", "3") == (0, "There are no rows.\n", "")
    code, said, told = run("diff", work.root, "3", "2")
    assert (code, said) == (2, "") and "give the older one first" in told
    code, said, told = run("diff", work.root, "9", "10")
    assert (code, said) == (1, "") and "does not hold epoch 10; it has 1 to 3" in told


def test_which_operator_is_asked(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a", "b")).some(1)
    for command in (["read"], ["diff", "0"], ["export", str(tmp_path / "out")]):
        code, said, told = run(command[0], work.root, *command[1:])
        assert (code, said) == (1, "") and "which operator? It has 'a', 'b'" in told
    code, said, told = run("read", work.root, "--uid", "a", "--state", "m")
    assert (code, said) == (2, "") and "'m'" in told
    assert run("read", work.root, "--uid", "a", "--format", "xml")[0] == 2
    code, said, told = run("read", work.root, "--uid", "a", "--format", "csv", "--json")
    assert (code, said) == (2, "") and "--json is --format json" in told


def test_read_begins_anew_if_its_epoch_is_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "c").some(1)
    real, fails = reading.scan_state, [True]

    def scan_state(*arguments: Any, **options: Any) -> pa.RecordBatchReader:
        reader = real(*arguments, **options)

        def batches() -> Iterator[pa.RecordBatch]:
            if fails:
                fails.pop()
                raise missing_file(work.storage, 1, "state/x")
            yield from reader

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    monkeypatch.setattr(reading, "scan_state", scan_state)
    code, said, _ = run("read", work.root, "--json")
    assert code == 0 and {r["k"]: r["n"] for r in json.loads(said)} == work.counts
    fails.append(True)
    code, said, told = run("read", work.root, "--epoch", "1", "--format", "jsonl")
    assert (code, said) == (1, "") and "names is missing" in told


def test_export_writes_parquet(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(3)
    code, said, _ = run("export", work.root, tmp_path / "out")
    assert code == 0 and said.startswith(
        f"Operator 'op' as of epoch 3 is exported to {tmp_path / 'out'}: 42 rows, 2 files, "
    )
    table = pq.read_table(tmp_path / "out")
    assert dict(zip(*(table[n].to_pylist() for n in ("k", "n")), strict=True)) == work.counts
    code, said, told = run("export", work.root, tmp_path / "out")
    assert (code, said) == (2, "") and "--overwrite" in told
    again = ("--overwrite", "--epoch", "2", "--state", "n", "--json")
    code, said, _ = run("export", work.root, tmp_path / "out", *again)
    assert code == 0 and json.loads(said)["epoch"] == 2
    assert pq.read_table(tmp_path / "out").column_names == ["k", "n"]


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
    code, said, _ = run(
        "rescale", tmp_path / "one", tmp_path / "two", "--max-parallelism", "768", "--json"
    )
    assert code == 0 and json.loads(said)["epoch"] == 3
    assert read(tmp_path / "one") == read(tmp_path / "two") == work.counts
    code, said, wrong = run("rescale", work.root, tmp_path / "three", "--max-parallelism", "200")
    assert (code, said) == (2, "") and "200 is not a multiple" in wrong
    seen: list[tuple[int, int]] = []
    ps.rescale(
        work.root,
        tmp_path / "s",
        max_parallelism=256,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert len(seen) == 4 and seen[-1][0] == seen[-1][1] > 0
    with pytest.raises(ps.errors.InvalidArgumentError, match="progress is a function"):
        ps.rescale(work.root, tmp_path / "t", max_parallelism=256, progress=3)  # type: ignore[arg-type]


def test_long_work_shows_how_far_it_is(tmp_path: Path) -> None:
    work, seen = Work(tmp_path / "c").some(3), []
    ps.savepoint(work.root, tmp_path / "s", progress=lambda done, total: seen.append((done, total)))
    sizes = [path.stat().st_size for path in (work.root / "state").rglob("*.delta")]
    assert len(seen) == len(sizes) == 6 and seen[-1] == (sum(sizes), sum(sizes))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    with pytest.raises(ps.errors.InvalidArgumentError, match="progress is a function"):
        ps.savepoint(work.root, tmp_path / "t", progress=3)  # type: ignore[arg-type]


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


def test_repair_refuses_while_the_job_runs(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(4)
    with work.coordinator() as coordinator:
        work.run(coordinator, {1: 1})
        code, said, wrong = run("repair", broken(work).root, "--yes")
        assert (code, said) == (1, "") and "belongs to a job that runs" in wrong


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
