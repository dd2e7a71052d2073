"""An optional line that shows the progress of an epoch, in a console or a notebook.

In a console it is one line on standard error that is overwritten, by rich if that is installed, so
that other output stays above it. In a notebook it is an output of the cell that is updated. If
standard error is a file, nothing is shown, or with ``"always"`` a line per epoch.

Thread safety: the thread of the epochs reports progress, and another thread, which the line owns,
shows it while an epoch is computed.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import threading
import time
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, TypeAlias

from pystate.base.arguments import nearest, shown
from pystate.errors import InvalidArgumentError
from pystate.redaction import logger
from pystate.spark.base.jvm import stages

if TYPE_CHECKING:
    from pyspark import SparkContext

    from pystate.spark.epochs.progress import EpochProgress


_LOG = logger("pystate.spark.epochs.progress_line")
_TICK_S = 0.5
_ALWAYS = "always"
#: What `Job.start` and `Job.run_epoch` take.
Show: TypeAlias = Literal["always"] | bool


class Screen(Protocol):
    """A place to show the line."""

    def show(self, line: str) -> None:
        """Show the line instead of the one before."""

    def end(self, line: str) -> None:
        """Show the final line of an epoch."""

    def close(self) -> None:
        """Leave the last line as it is. `close` and `show` may be called again."""


class ProgressLine:
    """The line of a run, or of a query."""

    def __init__(self, name: str, screen: Screen) -> None:
        self._name = name
        self._screen = screen
        self._lock = threading.Lock()
        self._ended: threading.Event | None = None

    def begin(self, epoch: int, tasks: Callable[[], tuple[int, int]]) -> None:
        """Show the progress of an epoch until it ends."""
        self.idle()
        self._ended = ended = threading.Event()
        arguments = (epoch, tasks, ended)
        threading.Thread(
            target=self._tick, args=arguments, name="pystate-line", daemon=True
        ).start()

    def end(self, progress: EpochProgress) -> None:
        """Show the result of an epoch."""
        self.idle()
        with self._lock:
            self._try(self._screen.end, f"{self._name}: {progress}")

    def idle(self) -> None:
        """Note that no epoch is being computed."""
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def close(self) -> None:
        """Stop showing. May be called again."""
        self.idle()
        with self._lock:
            self._try(self._screen.close)

    def _tick(
        self, epoch: int, tasks: Callable[[], tuple[int, int]], ended: threading.Event
    ) -> None:
        began_s = time.monotonic()
        while True:
            try:
                done, total = tasks()
            except Exception as error:
                _LOG.debug("how far epoch %d is is not known: %s", epoch, error)
                done = total = 0
            counted = f", {done} of {total} tasks" if total else ""
            line = f"{self._name}: epoch {epoch}{counted}, {time.monotonic() - began_s:.0f} s"
            with self._lock:
                if ended.is_set():
                    return
                self._try(self._screen.show, line)
            if ended.wait(_TICK_S):
                return

    def _try(self, act: Callable[..., None], *line: str) -> None:
        """Show something; an error here must not fail the epoch."""
        try:
            act(*map(_printable, line))
        except Exception as error:
            _LOG.debug("the line of progress cannot be shown: %s", error)


class NoLine:
    """Stands for the line if none was requested."""

    def begin(self, epoch: int, tasks: Callable[[], tuple[int, int]]) -> None: ...  # noqa: D102
    def end(self, progress: EpochProgress) -> None: ...  # noqa: D102
    def idle(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


def checked_show(progress: Any) -> Show:
    """Refuse an invalid `progress`."""
    if isinstance(progress, bool) or (isinstance(progress, str) and progress == _ALWAYS):
        return progress  # type: ignore[return-value]
    raise InvalidArgumentError(
        f"progress is True, False or 'always', not {shown(progress)}{nearest(progress, [_ALWAYS])}"
    )


def progress_line(progress: Show, name: str) -> ProgressLine | NoLine:
    """Make the requested line."""
    if progress is False:
        return NoLine()
    display = _notebook()
    if display is not None:
        return ProgressLine(name, _Cell(display))
    stream = sys.stderr
    if stream is not None and stream.isatty():
        return ProgressLine(name, _console(stream))
    if stream is not None and progress == _ALWAYS:
        return ProgressLine(name, _Log(stream))
    return NoLine()


def tasks_done(context: SparkContext, tag: str) -> tuple[int, int]:
    """How many tasks of the jobs with a tag have ended, and how many there are so far."""
    tracker = context._jsc.sc().statusTracker()
    done = total = 0
    for _, stage in stages(context, tracker.getJobIdsForTag(tag)):
        done += stage.numCompletedTasks()
        total += stage.numTasks()
    return done, total


def _printable(line: str) -> str:
    """A line without characters that would move a console's cursor."""
    return "".join(c if c.isprintable() else " " for c in line)


class _Console:
    """A console's last line, which is overwritten."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._open = False

    def show(self, line: str) -> None:
        # A line that wraps could not be overwritten.
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[2K{line[:width]}")
        self._stream.flush()
        self._open = True

    end = show

    def close(self) -> None:
        if self._open:
            self._open = False
            self._stream.write("\n")
            self._stream.flush()


class _Rich:
    """The same with rich, which keeps other output above the line."""

    def __init__(self) -> None:
        self._live: Any = None

    def show(self, line: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        text = Text(line, no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(text, console=Console(stderr=True), auto_refresh=False)
            self._live.start()
            # The console's cursor is hidden until this call.
            atexit.register(self._live.stop)
        self._live.update(text, refresh=True)

    end = show

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            atexit.unregister(live.stop)


class _Log:
    """A line per epoch, for a file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, line: str) -> None: ...

    def end(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def close(self) -> None: ...


class _Cell:
    """An output of a notebook's cell."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, line: str) -> None:
        html = self._display.HTML(f"<code>{escape(line)}</code>")
        if self._handle is None:
            self._handle = self._display.display(html, display_id=True)
        else:
            self._handle.update(html)

    end = show

    def close(self) -> None: ...


def _console(stream: TextIO) -> Screen:
    try:
        import rich.live  # noqa: F401
    except ImportError:
        return _Console(stream)
    return _Rich()


def _notebook() -> Any:
    """IPython's display module, if this is a notebook; it is never imported here."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython import display

    return display
