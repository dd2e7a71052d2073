"""What commands print: tables for people, one JSON document for programs, and progress.

Thread safety: a program of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pystate.markup import bytes_shown

__all__ = [
    "facts",
    "harmless",
    "number",
    "print_json",
    "progress_bar",
    "say",
    "size",
    "table",
    "took",
    "when",
]

_UNIX = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _console() -> Console:
    console = Console(highlight=False)
    # What is piped is read by programs, or later: it is not cut to the width of no screen.
    return console if console.is_terminal else Console(highlight=False, width=10_000)


def say(text: str, style: str | None = None) -> None:
    """Print a paragraph."""
    _console().print(harmless(text), style=style, markup=False, soft_wrap=True)


def harmless(text: str) -> str:
    """A text of one line, in which a terminal finds no commands, and an encoding no surprise."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def facts(heading: str, values: Mapping[str, object]) -> None:
    """Print named facts below a heading; facts that are None are left out."""
    say(heading, "bold")
    shown = {name: str(value) for name, value in values.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        say(f"  {name:{width}}  {value}")


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = ()
) -> None:
    """Print a table.

    Parameters
    ----------
    columns : sequence of str
        The heads.
    rows : sequence of sequence
        The cells; None is left empty.
    numbers : sequence of str
        The names of the columns to align at the right.
    """
    right = set(numbers)
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        last = name == columns[-1]
        shown.add_column(
            name, justify="right" if name in right else "left", overflow="fold", no_wrap=not last
        )
    for row in rows:
        shown.add_row(*("" if cell is None else _escaped(harmless(str(cell))) for cell in row))
    console = _console()
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json.dumps(value, default=_plain, indent=2, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{value!r} is not JSON")


def when(time_ms: int | None) -> str | None:
    """A time since 1970, in UTC."""
    if time_ms is None:
        return None
    try:
        return f"{_UNIX + timedelta(milliseconds=time_ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{time_ms} ms"


def size(size_bytes: int) -> str:
    """A number of bytes."""
    return bytes_shown(size_bytes)


def took(time_ms: float) -> str:
    """A length of time."""
    if time_ms < 10:
        return f"{time_ms:.1f} ms"
    if time_ms < 10_000:
        return f"{time_ms:.0f} ms"
    return f"{time_ms / 1000:.1f} s"


def number(value: int) -> str:
    """A number with separators."""
    return f"{value:,}".replace(",", " ")


@contextmanager
def progress_bar(label: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the error stream while a block runs, if that is a terminal.

    Yields
    ------
    callable
        To be called with the bytes that are done, and all bytes.
    """
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(label, total=None)

    def progress(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()  # what follows may ask a question

    try:
        yield progress
    finally:
        bar.stop()
