"""The line of progress: where it is shown, what it says, and that it never harms an epoch."""

from __future__ import annotations

import io
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pystate.errors import InvalidArgumentError
from pystate.spark.epochs import progress_line as live
from pystate.spark.epochs.progress_line import (
    NoLine,
    ProgressLine,
    Screen,
    checked_show,
    progress_line,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Noted(Screen):
    """Keeps what is shown; tells of the first line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.shown = threading.Event()

    def show(self, line: str) -> None:
        self.lines.append(("show", line))
        self.shown.set()

    def end(self, line: str) -> None:
        self.lines.append(("end", line))

    def close(self) -> None:
        self.lines.append(("close", ""))


@pytest.fixture(autouse=True)
def no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)


@pytest.mark.parametrize("wrong", [None, 1, "alwys", "True", []])
def test_what_is_no_way_to_show(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^progress is True, False or 'always', not"):
        checked_show(wrong)
    for right in (True, False, "always"):
        assert checked_show(right) == right


def test_a_file_gets_lines_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for show in (False, True):
        assert isinstance(progress_line(show, "job"), NoLine)
    line = progress_line("always", "job")
    line.begin(1, lambda: (0, 0))
    line.end("epoch 1")  # type: ignore[arg-type]
    line.close()
    assert stream.getvalue() == "job: epoch 1\n"
    monkeypatch.setattr(sys, "stderr", None)
    assert isinstance(progress_line("always", "job"), NoLine)


@pytest.mark.parametrize("installed", [False, True])
def test_a_console_has_one_line(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    if not installed:
        monkeypatch.setitem(sys.modules, "rich", None)
        monkeypatch.setitem(sys.modules, "rich.live", None)
    else:
        pytest.importorskip("rich")
    assert isinstance(progress_line(False, "job"), NoLine)
    line = progress_line(True, "[red]job\x1b[2J\n")
    assert isinstance(line, ProgressLine)
    line.end("epoch 1")  # type: ignore[arg-type]
    line.end("epoch 2, " + "x" * 100)  # type: ignore[arg-type]
    line.close()
    line.close()
    written = stream.getvalue()
    # What users named is text: it neither styles nor moves anything, and the line does not wrap.
    assert "[red]job [2J : epoch 1" in written and "\x1b[2J" not in written
    assert "x" * 60 not in written and written.count("\n") == 1
    # It goes on after a close, as for the drain that follows a query.
    line.end("epoch 3")  # type: ignore[arg-type]
    line.close()
    assert "epoch 3" in stream.getvalue() and stream.getvalue().count("\n") == 2


def test_a_notebooks_output_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def display(html: str, display_id: bool) -> Any:
        assert display_id
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    module = SimpleNamespace(HTML=str, display=display)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=module)
    )
    line = progress_line(True, "<b>job</b>")
    line.end("epoch 1")  # type: ignore[arg-type]
    line.end("epoch 2")  # type: ignore[arg-type]
    line.close()
    head = "<code>&lt;b&gt;job&lt;/b&gt;: epoch"
    assert shown == [f"{head} 1</code>", f"{head} 2</code>"]
    # IPython in a console is one.
    del shell.kernel
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress_line(True, "job"), NoLine)


def test_while_an_epoch_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_TICK_S", 0.001)
    screen = Noted()
    line = ProgressLine("job", screen)
    line.begin(3, lambda: (2, 8))
    assert screen.shown.wait(60)
    line.end("epoch 3: all")  # type: ignore[arg-type]
    screen.shown.clear()
    kinds = [kind for kind, _ in screen.lines]
    assert screen.lines[0] == ("show", "job: epoch 3, 2 of 8 tasks, 0 s")
    assert screen.lines[-1] == ("end", "job: epoch 3: all") and set(kinds[:-1]) == {"show"}

    def unknown() -> tuple[int, int]:
        raise RuntimeError("Spark is gone")

    line.begin(4, unknown)
    assert screen.shown.wait(60)
    line.close()
    assert ("show", "job: epoch 4, 0 s") in screen.lines and screen.lines[-1][0] == "close"


def test_what_cannot_be_shown_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "rich.live", None)
    line = progress_line(True, "job")
    stream.close()
    line.end("epoch 1")  # type: ignore[arg-type]
    line.close()
