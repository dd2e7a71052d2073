"""The command line under users, terminals and folders that mean it no good."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.cli.program import main
from tests.forks import FORKS, ended, forked
from tests.unit.cli.test_cli import COMMANDS, run
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


def program(
    streams: tuple[int, int, int], *arguments: str, encoding: str = "utf-8", **environment: str
) -> int:
    """Start the program on these streams; the value is its process's id."""

    def act() -> None:
        for name in ("COLUMNS", "NO_COLOR", "CI"):
            os.environ.pop(name, None)
        os.environ.update(environment)
        sys.argv = ["pystate", *arguments]
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(encoding=encoding)
        main()

    return forked(streams, act)


# ---- wrong places --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("c/none", "does not exist"),
        ("c/job.json", "is no folder"),
        ("c/job.json/x", "does not exist"),
        ("empty", "(there is no job.json)"),
        ("c/state/op", "only a part of the checkpoint or savepoint {root}"),
    ],
)
def test_a_wrong_place_is_said(work: Work, place: str, message: str) -> None:
    path = work.root.parent / place
    (work.root.parent / "empty").mkdir()
    before = content(work.root)
    for name in COMMANDS:
        code, said, wrong = run(name, path, *MORE.get(name, []))
        assert (code, said) == (2, ""), name
        [line] = wrong.splitlines()
        assert line.startswith(f"pystate: {path} ") and message.format(root=work.root) in line
        assert "give the folder" in line
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
@pytest.mark.parametrize("options", [["--json"], []])
@FORKS
def test_a_reader_that_has_seen_enough(work: Work, name: str, options: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with TemporaryFile() as said:
        child = program((0, writing, said.fileno()), name, "c", *MORE.get(name, []), *options)
        os.close(writing)
        assert ended(child) == 141
        said.seek(0)
        assert said.read() == b""


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C counts: who runs the tests may ignore it, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("stops", "code"), [("reader", 141), ("Ctrl-C", 130)])
@pytest.mark.usefixtures("heard")
def test_a_process_that_ends_in_the_middle(work: Work, stops: str, code: int) -> None:
    with ps.open("long", key="long", states={"s": ps.ValueState("string")}) as store:
        store["s"].update_all(store.keys(list(range(2000))), ["x" * 1000] * 2000)
        store.checkpoint()
    command = [sys.executable, "-W", "error", "-m", "pystate", "read", "long", "--format", "jsonl"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as done:
        assert done.stdout is not None and done.stderr is not None
        assert json.loads(done.stdout.readline())["s"] == "x" * 1000
        # The rest does not fit into the pipe.
        if stops == "reader":
            done.stdout.close()
        else:
            done.send_signal(signal.SIGINT)
        assert done.stderr.read() == ("pystate: interrupted\n" if stops == "Ctrl-C" else "")
    assert done.returncode == code


def terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What a terminal of that width gets."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    child = program((slave, slave, slave), *arguments, TERM="xterm-256color", **environment)
    os.close(slave)
    said = b""
    with suppress(OSError):  # the other end is closed
        while some := os.read(master, 4096):
            said += some
    os.close(master)
    assert ended(child) == 0, said
    return said.decode()


def bare(text: str) -> str:
    """A text without what only a terminal sees."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [20, 40, 70, 200])
@FORKS
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


@FORKS
def test_a_terminal_without_colours(work: Work) -> None:
    coloured = terminal(100, "verify", "c")
    assert "\x1b[32mNothing is wrong" in coloured
    plain = terminal(100, "verify", "c", NO_COLOR="1")
    assert not re.findall(r"\x1b\[[0-9;]*3[0-9;]*m", plain) and "Nothing is wrong" in plain
    code, said, wrong = run("verify", "c")
    assert code == 0 and "\x1b" not in said + wrong


@FORKS
def test_a_terminal_that_has_not_all_characters(work: Work) -> None:
    with ps.open("ü", key="string", states={"n": ps.ValueState("long")}) as store:
        store["n"].update_all(store.keys(["ß", "\x1b[2J\n"]), [1, 2])
        store.checkpoint()
    for encoding in ("ascii", "latin-1", "utf-8"):
        for options in (["--json"], ["--format", "csv"], []):
            with TemporaryFile() as out:
                streams = (0, out.fileno(), out.fileno())
                assert ended(program(streams, "read", "ü", *options, encoding=encoding)) == 0
                out.seek(0)
                said = out.read()
            if options == ["--json"]:
                rows = json.loads(said.decode(encoding))
                assert {row["key"] for row in rows} == {"ß", "\x1b[2J\n"}
            elif options:
                assert said.decode(encoding).splitlines()[0] == "key,n"
            else:
                assert b"\x1b" not in said and rb"\x1b[2J\n" in said


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
        assert not content(Path("out")) and {p.name for p in Path().iterdir()} <= {"c", "out"}
    left[0] = 0
    assert run(name, work.root, *MORE.get(name, []), *options)[0] == 0
