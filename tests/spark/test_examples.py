"""The examples as a user runs them, but in this process and on its Spark, for the sake of a JVM.

flights is run by test_kills.py, and components by test_loop_kills.py.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .programs import programs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "{request}" 200 {size}{rest}'
REST = ' "http://x/" "agent \\"quoted\\""'
#: Gives the exit status of an example, and what it has printed.
Run = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.usefixtures("default_plans")


def run(example: str, *options: str) -> tuple[int, str]:
    """Run an example as `python -m` does."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [example, *options])
        patch.delitem(sys.modules, f"pystate.examples.{example}", raising=False)
        for name in ("root", "py4j", "pystate"):
            # Its logs are in a folder that goes with it.
            patch.setattr(logging.getLogger(name), "handlers", [])
            patch.setattr(logging.getLogger(name), "propagate", True)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                runpy.run_module(f"pystate.examples.{example}", run_name="__main__", alter_sys=True)
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):
                    print(end.code)
            except BaseException:
                traceback.print_exc()
                status = 1
            else:
                status = 0
        for name in ("root", "py4j", "pystate"):
            for handler in logging.getLogger(name).handlers:
                handler.close()
    return status, printed.getvalue()


@pytest.fixture(scope="module")
def on_spark(spark: SparkSession) -> Iterator[Run]:
    with programs(spark):
        yield run


def log(count: int) -> list[bytes]:
    lines = []
    for i in range(count):
        request = f"GET /page{i % 3} HTTP/1.1"
        lines.append(LINE.format(request=request, size=i, rest=REST if i % 2 else "").encode())
    lines[1] = b"\xff\xfe rubbish"
    lines[3] = LINE.format(request="-", size="-", rest="").encode()
    lines[4] = b""
    return lines


def test_access_log(on_spark: Run, tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress(b"\n".join(log(40))))
    options = [str(path), "--lines", "20", "--checkpoint", str(tmp_path / "counts"), "--top", "2"]
    status, printed = on_spark("access_log", *options)
    assert status == 0, printed
    assert "37 requests for 3 URLs" in printed
    assert re.search(r"13 +\d+ +/page0\b.*\n +13 +\d+ +/page2\b", printed)
    assert "/page1" not in printed
    assert "3 malformed lines:" in printed and "2 not a line of the combined log" in printed
    assert "1 not an HTTP request" in printed
    # The log grows, and is not compressed any more.
    path.write_bytes(b"\n".join(log(47)) + b"\n")
    status, printed = on_spark("access_log", *options)
    assert status == 0, printed
    assert "44 requests for 3 URLs" in printed
    path.write_bytes(b"\n".join(log(20)))
    status, printed = on_spark("access_log", *options)
    assert status == 1
    assert "20 lines, fewer than the 47 that were counted" in printed
    assert len(printed.splitlines()) == 1, printed


def test_word_count(on_spark: Run, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes("The cat, the CAT's hat:\nÉté 2015, été_été!\n\nthe\n".encode() + b"\xff")
    options = ["--epochs", "2", "--top", "1", "--checkpoint", str(tmp_path / "counts")]
    status, printed = on_spark("word_count", str(text), *options)
    assert status == 0, printed
    assert re.search(r"\n +3 +the", printed) and " cat" not in printed
    assert "verified: 10 words, 5 different ones" in printed
    status, printed = on_spark("word_count", str(text), *options)
    assert status == 0 and "nothing new to read" in printed and "verified: 10" in printed
    text.write_text("another text")
    status, printed = on_spark("word_count", str(text), *options)
    assert status == 1 and "holds another input" in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    ("example", "options", "printed"),
    [
        (
            "consumer_lag",
            ["--epochs", "2", "--minutes", "20"],
            r"verified: the lag of 3 consumer groups on 16 partitions, [\d,]+ messages in all",
        ),
        (
            "orders",
            ["--epochs", "2", "--orders", "200"],
            r"verified: [1-9]\d* orders that ended, [1-9]\d* that go on, and [1-9]\d* illegal",
        ),
        (
            "conversions",
            ["--epochs", "3", "--users", "100"],
            r"verified: [1-9]\d* conversions .* [1-9]\d* purchases wait .*, [1-9]\d* events came",
        ),
        (
            "retries",
            ["--epochs", "1", "--messages", "60", "--tries", "3"],
            r"verified: [1-9]\d* messages delivered and [1-9]\d* given up, as in plain Python",
        ),
        (
            "dashboard",
            ["--epochs", "3", "--orders", "600"],
            r"(?s)the page: http://127.0.0.1:\d+/\n.*verified: [1-9]\d* orders of the history and "
            r"[1-9]\d* live ones on the page are the 600 of the input.* in each of 3 epochs$",
        ),
    ],
    ids=["consumer_lag", "orders", "conversions", "retries", "dashboard"],
)
def test_examples_that_make_their_input_up(
    on_spark: Run, example: str, options: list[str], printed: str
) -> None:
    status, found = on_spark(example, *options)
    assert status == 0, found
    assert re.search(printed, found), found


def test_sessions(on_spark: Run, tmp_path: Path) -> None:
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
        *(line("e", 200 + i) for i in range(5)),
    ]
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    status, printed = on_spark("sessions", str(path), "--epochs", "1")
    assert status == 0, printed
    assert "16 lines, 15 of them requests, in 1 epochs" in printed
    # 90 and 118, 118 and 120, 120 and 144 are near: one session of c.
    assert "verified: 6 sessions of 5 visitors, 6 of them open" in printed
    status, printed = on_spark("sessions", str(path), "--epochs", "2")
    assert status == 0, printed
    assert "1 requests came too late" in printed


EXAMPLES = ["flights", "access_log", "word_count", "consumer_lag", "orders", "conversions"]
EXAMPLES += ["components", "dashboard", "retries", "sessions"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_without_java_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, example: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "log").write_bytes(b"\n".join(log(20)))
    (tmp_path / "edges").write_text("a b\n")
    inputs = {"access_log": "log", "sessions": "log", "components": "edges"}
    arguments = [str(tmp_path / inputs[example])] if example in inputs else []
    status, printed = run(example, *arguments)
    assert status == 1
    last = printed.splitlines()[-1]
    assert "install Java 17" in last and "Traceback" not in printed


@pytest.mark.parametrize("example", EXAMPLES)
def test_help(example: str) -> None:
    status, printed = run(example, "--help")
    assert status == 0 and "--checkpoint DIR" in printed


@pytest.mark.parametrize("example", ["access_log", "components", "sessions", "word_count"])
def test_no_such_file(tmp_path: Path, example: str) -> None:
    status, printed = run(example, str(tmp_path / "none"))
    assert status == 1 and "No such file" in printed and len(printed.splitlines()) == 1
