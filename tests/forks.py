"""Copies of this process: they have loaded at once what takes a fresh one a second."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from tempfile import TemporaryFile

import pytest

#: Of tests that copy the process.
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def heeds_interrupts() -> None:
    """A `preexec_fn`: the process ends on Ctrl-C, also where tests run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def forked(streams: tuple[int, int, int], act: Callable[[], object]) -> int:
    """Do something in a copy whose streams are these; the value is its id."""
    child = os.fork()
    if child:
        return child
    code = 120
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace")
        faulthandler.enable(sys.stderr)
        try:
            act()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        sys.stdout.flush()  # as the interpreter does at its end
        sys.stderr.flush()
    except BaseException:
        code = 120
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a copy; the value is its exit code, or less than 0 for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def copied(act: Callable[[], object]) -> tuple[int, str, str]:
    """Do something in a copy; the value is its exit code and what it has printed."""
    with TemporaryFile() as out, TemporaryFile() as wrong:
        code = ended(forked((0, out.fileno(), wrong.fileno()), act))
        printed = []
        for file in (out, wrong):
            file.seek(0)
            printed.append(file.read().decode("utf-8", "backslashreplace"))
    return code, printed[0], printed[1]
