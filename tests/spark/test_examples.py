"""The examples as a user runs them; the flights job is in test_kills.py."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

LINE = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "{request}" 200 {size}{rest}'
REST = ' "http://x/" "agent \\"quoted\\""'


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
    )
    return done.returncode, done.stdout + done.stderr


def log(count: int) -> list[bytes]:
    lines = []
    for i in range(count):
        request = f"GET /page{i % 3} HTTP/1.1"
        lines.append(LINE.format(request=request, size=i, rest=REST if i % 2 else "").encode())
    lines[1] = b"\xff\xfe rubbish"
    lines[3] = LINE.format(request="-", size="-", rest="").encode()
    lines[4] = b""
    return lines


def test_access_log(tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress(b"\n".join(log(40))))
    options = [str(path), "--lines", "20", "--checkpoint", str(tmp_path / "counts"), "--top", "2"]
    status, printed = run("pystate.examples.access_log", *options)
    assert status == 0, printed
    assert "37 requests for 3 URLs" in printed
    assert re.search(r"13 +\d+ +/page0\b.*\n +13 +\d+ +/page2\b", printed)
    assert "/page1" not in printed
    assert "3 malformed lines:" in printed and "2 not a line of the combined log" in printed
    assert "1 not an HTTP request" in printed
    # The log grows, and is not compressed any more.
    path.write_bytes(b"\n".join(log(47)) + b"\n")
    status, printed = run("pystate.examples.access_log", *options)
    assert status == 0, printed
    assert "44 requests for 3 URLs" in printed
    path.write_bytes(b"\n".join(log(20)))
    status, printed = run("pystate.examples.access_log", *options)
    assert status == 1
    assert "20 lines, fewer than the 47 that were counted" in printed
    assert len(printed.splitlines()) == 1, printed


@pytest.mark.parametrize("example", ["flights", "access_log"])
def test_without_java_one_line_says_so(tmp_path: Path, example: str) -> None:
    (tmp_path / "log").write_bytes(b"\n".join(log(20)))
    arguments = [str(tmp_path / "log")] if example == "access_log" else ["--rows", "10"]
    status, printed = run(f"pystate.examples.{example}", *arguments, JAVA_HOME=str(tmp_path))
    assert status == 1
    last = printed.splitlines()[-1]
    assert "install Java 17" in last and "Traceback" not in printed


@pytest.mark.parametrize("example", ["flights", "access_log"])
def test_help(example: str) -> None:
    status, printed = run(f"pystate.examples.{example}", "--help")
    assert status == 0 and "--checkpoint DIR" in printed


def test_no_such_log(tmp_path: Path) -> None:
    status, printed = run("pystate.examples.access_log", str(tmp_path / "none"))
    assert status == 1 and "No such file" in printed and len(printed.splitlines()) == 1
