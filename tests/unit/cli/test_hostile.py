"""The command line under users, terminals and folders that mean it no good."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from tests.unit.cli.test_cli import COMMANDS, program, run
from tests.work import Work, content, read

#: What each command has after its checkpoint.
MORE = {
    "diff": ["3"],
    "export": ["out"],
    "savepoint": ["out"],
    "rescale": ["out", "--max-parallelism", "256"],
}
LONG = ("verify", "repair", "savepoint", "rescale", "export", "read", "diff")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.chdir(tmp_path)
    return Work(tmp_path / "c").some(4)


def more_of(name: str) -> list[str]:
    """What a command has after its checkpoint, with a folder of its own."""
    return [word.replace("out", f"out-{name}") for word in MORE.get(name, [])]


def begin(name: str, *options: str, **streams: Any) -> subprocess.Popen[str]:
    given = [sys.executable, "-W", "error", "-m", "pystate", name, "c", *MORE.get(name, [])]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **streams}
    return subprocess.Popen([*given, *options], stdin=subprocess.DEVNULL, **streams)


# ---- wrong places --------------------------------------------------------------------------------


def nothing(work: Work) -> tuple[Path, str]:
    return work.root / "none", "does not exist"


def a_file(work: Work) -> tuple[Path, str]:
    return work.root / "job.json", "is no folder"


def below_a_file(work: Work) -> tuple[Path, str]:
    return work.root / "job.json" / "x", "does not exist"


def an_empty_folder(work: Work) -> tuple[Path, str]:
    (work.root.parent / "empty").mkdir()
    return work.root.parent / "empty", "(there is no job.json)"


def a_part(work: Work) -> tuple[Path, str]:
    return work.root / "state" / "op", f"only a part of the checkpoint or savepoint {work.root}"


@pytest.mark.parametrize("place", [nothing, a_file, below_a_file, an_empty_folder, a_part])
def test_a_wrong_place_is_said(work: Work, place: Callable[[Work], tuple[Path, str]]) -> None:
    path, message = place(work)
    before = content(work.root)
    for name in COMMANDS:
        code, said, wrong = run(name, path, *MORE.get(name, []))
        assert (code, said) == (2, ""), name
        [line] = wrong.splitlines()
        assert (
            line.startswith(f"pystate: {path} ") and message in line and "give the folder" in line
        )
    assert content(work.root) == before and not Path("out").exists()


def test_a_savepoint_in_place_of_a_checkpoint(work: Work) -> None:
    ps.savepoint(work.root, "s")
    before = content(Path("s"))
    refused = {"history", "repair", "gc"}
    codes = {name: run(name, "s", *more_of(name))[0] for name in COMMANDS if name != "diff"}
    assert {name: code for name, code in codes.items() if code} == dict.fromkeys(refused, 2)
    for name in refused:
        assert "is a savepoint" in run(name, "s")[2]
    assert len(run("diff", "s", "0", "4", "--format", "jsonl")[1].splitlines()) == len(work.counts)
    assert content(Path("s")) == before


def test_a_folder_that_may_not_be_read(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    for name in COMMANDS:
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", refused)
            code, said, wrong = run(name, work.root, *MORE.get(name, []))
        assert (code, said) == (1, ""), name
        [line] = wrong.splitlines()
        assert "could not list" in line and line.endswith(": Permission denied"), line


def test_commands_beside_a_running_job(work: Work) -> None:
    with work.coordinator() as coordinator:
        work.run(coordinator, {1: 1})
        before = content(work.root)
        for name in COMMANDS:
            code, _, wrong = run(name, work.root, *more_of(name))
            if name in ("repair", "gc"):
                assert code == 1 and "belongs to a job that runs" in wrong
            else:
                assert (code, wrong) == (0, ""), name
        assert content(work.root) == before
        work.run(coordinator, {2: 1})
    assert read(Path("out-savepoint")) == {**work.counts, 2: work.counts[2] - 1}


# ---- output that nobody reads, or that does not fit ----------------------------------------------


@pytest.mark.parametrize("name", ["inspect", "history", "verify", "read", "diff"])
@pytest.mark.parametrize("option", ["--json", None])
def test_a_reader_that_has_seen_enough(work: Work, name: str, option: str | None) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    options = [] if option is None else [option]
    with begin(name, *options, stdout=writing) as done:
        os.close(writing)
        assert done.stderr is not None and done.stderr.read() == ""
    assert done.returncode == 141


def test_a_reader_that_stops_in_the_middle(work: Work) -> None:
    with ps.open("c2", key="long", states={"s": ps.ValueState("string")}) as store:
        store["s"].update_all(store.keys(list(range(2000))), ["x" * 1000] * 2000)
        store.checkpoint()
    os.rename("c", "c1")
    os.rename("c2", "c")
    with begin("read", "--format", "jsonl") as done:
        assert done.stdout is not None and done.stderr is not None
        assert json.loads(done.stdout.readline())["s"] == "x" * 1000
        done.stdout.close()
        assert done.stderr.read() == ""
    assert done.returncode == 141


def terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What a terminal of that width gets."""
    master, slave = pty.openpty()
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "CI")}
    done = subprocess.Popen(
        [sys.executable, "-m", "pystate", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(slave)
    said = b""
    while True:
        try:
            some = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        said += some
    os.close(master)
    assert done.wait() == 0
    return said.decode()


def bare(text: str) -> str:
    """A text without what only a terminal sees."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [20, 40, 70, 200])
def test_no_screen_is_too_narrow(work: Work, columns: int) -> None:
    """No cell is cut: columns that say less are left out, or each has a line of its own."""
    said = bare(terminal(columns, "inspect", "c"))
    for word in ("op", "k bigint", "n bigint, s string" if columns != 70 else "n bigint, s"):
        assert re.search(rf"\b{word}\b", said), said
    rows = bare(terminal(columns, "diff", "c", "3", "4", "--key", "5"))
    assert re.search(r"\bk +5\b|^ *5 +put", rows, re.M), rows
    past = bare(terminal(columns, "history", "c", "--last", "1"))
    assert re.search(r"\b4\b", past) and re.search(r"\d\d:\d\d:\d\d", past), past
    if columns == 200:
        assert "4  20" in past and "changed" in past


def test_a_terminal_without_colours(work: Work) -> None:
    coloured = terminal(100, "verify", "c")
    assert "\x1b[32mNothing is wrong" in coloured
    plain = terminal(100, "verify", "c", NO_COLOR="1")
    assert not re.findall(r"\x1b\[[0-9;]*3[0-9;]*m", plain) and "Nothing is wrong" in plain
    code, said, wrong = program("verify", "c")
    assert code == 0 and "\x1b" not in said + wrong


def test_a_terminal_that_has_not_all_characters(work: Work) -> None:
    with ps.open("ü", key="string", states={"n": ps.ValueState("long")}) as store:
        store["n"].update_all(store.keys(["ß", "\x1b[2J\n"]), [1, 2])
        store.checkpoint()
    for encoding in ("ascii", "latin-1", "utf-8"):
        for options in (["--json"], ["--format", "csv"], []):
            done = subprocess.run(
                [sys.executable, "-m", "pystate", "read", "ü", *options],
                capture_output=True,
                env={**os.environ, "PYTHONIOENCODING": encoding},
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, b""), done.stderr
            if options == ["--json"]:
                rows = json.loads(done.stdout.decode(encoding))
                assert {row["key"] for row in rows} == {"ß", "\x1b[2J\n"}
            elif not options:
                assert b"\x1b" not in done.stdout and rb"\x1b[2J\n" in done.stdout


# ---- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_leaves_nothing_half_done(
    work: Work, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "repair":
        path = sorted((work.root / "state").rglob("*.delta"))[-1]
        path.write_bytes(path.read_bytes()[:-1])
    before = content(work.root)
    left = [0]

    def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(self: LocalStorage, path: str) -> Any:
            if path.startswith("state"):
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
            return real(self, path)

        return act

    for method in (LocalStorage.open_read, LocalStorage.create):
        monkeypatch.setattr(LocalStorage, method.__name__, interrupted(method))
    for number in (1, 3):
        left[0] = number
        options = ["--yes"] if name == "repair" else []
        code, said, wrong = run(name, work.root, *MORE.get(name, []), *options)
        assert (code, wrong) == (130, "pystate: interrupted\n"), said
        assert content(work.root) == before
        assert not content(Path("out")) and [p.name for p in Path().iterdir()] in (
            ["c"], ["c", "out"], ["out", "c"]
        )  # fmt: skip
    left[0] = 0
    assert run(name, work.root, *MORE.get(name, []), *options)[0] == 0


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C counts: who runs the tests may ignore it, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_a_signal_ends_a_command(work: Work) -> None:
    with ps.open("c2", key="long", states={"s": ps.ValueState("string")}) as store:
        store["s"].update_all(store.keys(list(range(2000))), ["x" * 1000] * 2000)
        store.checkpoint()
    os.rename("c", "c1")
    os.rename("c2", "c")
    with begin("read", "--format", "jsonl") as done:
        assert done.stdout is not None and done.stderr is not None
        done.stdout.readline()  # the rest does not fit into the pipe
        done.send_signal(signal.SIGINT)
        assert done.stderr.read() == "pystate: interrupted\n"
    assert done.returncode == 130
