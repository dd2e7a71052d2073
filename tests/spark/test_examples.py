"""The examples as a user runs them, but in one process, for the sake of its JVM.

In a process of its own is flights in test_kills.py, and components in test_loop_kills.py.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import ROOT

LINE = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "{request}" 200 {size}{rest}'
REST = ' "http://x/" "agent \\"quoted\\""'


class Examples:
    """A process that runs examples, one after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, example: str, *options: str) -> tuple[int, str]:
        """Its exit status, and what it has printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([example, *options]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process ended within {example}: {self._process.wait()}"
        status, printed = json.loads(line)
        return status, printed


@contextmanager
def process(**environment: str) -> Iterator[Examples]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.run_examples"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
    ) as started:
        yield Examples(started)


@pytest.fixture(scope="module")
def examples() -> Iterator[Examples]:
    """With Java."""
    with process() as found:
        yield found


@pytest.fixture(scope="module")
def without_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    """Where JAVA_HOME is an empty folder."""
    with process(JAVA_HOME=str(tmp_path_factory.mktemp("java"))) as found:
        yield found


def log(count: int) -> list[bytes]:
    lines = []
    for i in range(count):
        request = f"GET /page{i % 3} HTTP/1.1"
        lines.append(LINE.format(request=request, size=i, rest=REST if i % 2 else "").encode())
    lines[1] = b"\xff\xfe rubbish"
    lines[3] = LINE.format(request="-", size="-", rest="").encode()
    lines[4] = b""
    return lines


def test_access_log(examples: Examples, tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress(b"\n".join(log(40))))
    options = [str(path), "--lines", "20", "--checkpoint", str(tmp_path / "counts"), "--top", "2"]
    status, printed = examples.run("access_log", *options)
    assert status == 0, printed
    assert "37 requests for 3 URLs" in printed
    assert re.search(r"13 +\d+ +/page0\b.*\n +13 +\d+ +/page2\b", printed)
    assert "/page1" not in printed
    assert "3 malformed lines:" in printed and "2 not a line of the combined log" in printed
    assert "1 not an HTTP request" in printed
    # The log grows, and is not compressed any more.
    path.write_bytes(b"\n".join(log(47)) + b"\n")
    status, printed = examples.run("access_log", *options)
    assert status == 0, printed
    assert "44 requests for 3 URLs" in printed
    path.write_bytes(b"\n".join(log(20)))
    status, printed = examples.run("access_log", *options)
    assert status == 1
    assert "20 lines, fewer than the 47 that were counted" in printed
    assert len(printed.splitlines()) == 1, printed


def test_word_count(examples: Examples, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes("The cat, the CAT's hat:\nÉté 2015, été_été!\n\nthe\n".encode() + b"\xff")
    options = ["--epochs", "2", "--top", "1", "--checkpoint", str(tmp_path / "counts")]
    status, printed = examples.run("word_count", str(text), *options)
    assert status == 0, printed
    assert re.search(r"\n +3 +the", printed) and " cat" not in printed
    assert "verified: 10 words, 5 different ones" in printed
    status, printed = examples.run("word_count", str(text), *options)
    assert status == 0 and "nothing new to read" in printed and "verified: 10" in printed
    text.write_text("another text")
    status, printed = examples.run("word_count", str(text), *options)
    assert status == 1 and "holds another input" in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    ("example", "options", "printed"),
    [
        (
            "consumer_lag",
            ["--minutes", "20"],
            r"verified: the lag of 3 consumer groups on 16 partitions, [\d,]+ messages in all",
        ),
        (
            "orders",
            ["--orders", "200"],
            r"verified: [1-9]\d* orders that ended, [1-9]\d* that go on, and [1-9]\d* illegal",
        ),
        (
            "conversions",
            ["--users", "100"],
            r"verified: [1-9]\d* conversions .* [1-9]\d* purchases wait .*, [1-9]\d* events came",
        ),
        (
            "retries",
            ["--messages", "60", "--tries", "3"],
            r"verified: [1-9]\d* messages delivered and [1-9]\d* given up, as in plain Python",
        ),
    ],
    ids=["consumer_lag", "orders", "conversions", "retries"],
)
def test_examples_that_make_their_input_up(
    examples: Examples, example: str, options: list[str], printed: str
) -> None:
    status, found = examples.run(example, "--epochs", "3", *options)
    assert status == 0, found
    assert re.search(printed, found), found


def test_sessions(examples: Examples, tmp_path: Path) -> None:
    def line(visitor: str, minute: float) -> str:
        time = f"17/May/2015:{int(minute) // 60:02d}:{int(minute) % 60:02d}:{minute % 1 * 60:02.0f}"
        return f'{visitor} - - [{time} +0000] "GET / HTTP/1.1" 200 100'

    lines = [
        line("a", 0),
        line("a", 29.5),  # the same session
        line("b", 30),
        "rubbish",
        line("a", 59.5),  # another: half an hour is a gap
        line("c", 90),
        line("c", 144),
        line("c", 120),
        line("c", 118),  # too late where this begins an epoch
        line("d", 200),
        line("d", 199),
    ]
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    status, printed = examples.run("sessions", str(path), "--epochs", "1")
    assert status == 0, printed
    assert "11 lines, 10 of them requests, in 1 epochs" in printed
    # 90 and 118, 118 and 120, 120 and 144 are near: one session of c.
    assert "verified: 5 sessions of 4 visitors, 5 of them open" in printed
    status, printed = examples.run("sessions", str(path), "--epochs", "4")
    assert status == 0, printed
    assert "1 requests came too late" in printed


EXAMPLES = ["flights", "access_log", "word_count", "consumer_lag", "orders", "conversions"]
EXAMPLES += ["components", "retries"]


@pytest.mark.parametrize("example", [*EXAMPLES, "sessions"])
def test_without_java_one_line_says_so(
    without_java: Examples, tmp_path: Path, example: str
) -> None:
    (tmp_path / "log").write_bytes(b"\n".join(log(20)))
    arguments = {"access_log": [str(tmp_path / "log")], "sessions": [str(tmp_path / "log")]}
    status, printed = without_java.run(example, *arguments.get(example, []))
    assert status == 1
    last = printed.splitlines()[-1]
    assert "install Java 17" in last and "Traceback" not in printed


@pytest.mark.parametrize("example", [*EXAMPLES, "sessions"])
def test_help(examples: Examples, example: str) -> None:
    status, printed = examples.run(example, "--help")
    assert status == 0 and "--checkpoint DIR" in printed


@pytest.mark.parametrize("example", ["access_log", "components", "sessions", "word_count"])
def test_no_such_file(examples: Examples, tmp_path: Path, example: str) -> None:
    status, printed = examples.run(example, str(tmp_path / "none"))
    assert status == 1 and "No such file" in printed and len(printed.splitlines()) == 1
