"""What commands print: tables for people, one JSON document for programs, and progress."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pystate.base.markup import bytes_shown

_GAP = 2
#: The last column of a table is folded down to this width.
_LEAST_WIDTH = 24
_UNIX = datetime(1970, 1, 1, tzinfo=timezone.utc)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # It would end the program here; the commands know how.
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def say(text: str, style: str | None = None) -> None:
    """Print a paragraph."""
    _Console(highlight=False).print(harmless(text), style=style, markup=False, soft_wrap=True)


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
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """Print a table; cells that are None are left empty.

    Columns named in `numbers` are aligned at the right. Those in `spare` may be left out, in that
    order, where the screen is too narrow.
    """
    cells = [["" if cell is None else harmless(str(cell)) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    console = _Console(highlight=False)
    is_narrow = console.is_terminal and _least(widths) > console.width
    if is_narrow:
        for count in range(1, len(spare) + 1):
            kept = [i for i, name in enumerate(columns) if name not in spare[:count]]
            if _least([widths[i] for i in kept]) <= console.width:
                fewer = [[row[i] for i in kept] for row in rows]
                table([columns[i] for i in kept], fewer, numbers)
                return
    if not console.is_terminal:
        # What is piped is read by programs, or later: it is not cut to the width of no screen.
        console = _Console(highlight=False, width=_width(widths))
    elif is_narrow:
        _records(columns, cells)
        return
    shown = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for name in columns:
        last = name == columns[-1]
        shown.add_column(
            name,
            justify="right" if name in numbers else "left",
            overflow="fold",
            no_wrap=not last,
        )
    for row in cells:
        shown.add_row(*map(_escaped, row))
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _least(widths: Sequence[int]) -> int:
    """How wide the screen must be: the last column can be folded."""
    return _width(widths[:-1]) + min(widths[-1], _LEAST_WIDTH)


def _width(widths: Sequence[int]) -> int:
    return sum(width + _GAP for width in widths)


def _records(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for which the screen is too narrow: a line per cell, none of them cut."""
    for place, row in enumerate(rows):
        if place:
            say("")
        facts(
            f"{columns[0]} {row[0]}",
            {name: cell or None for name, cell in zip(columns[1:], row[1:], strict=True)},
        )


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    text = json.dumps(value, default=_plain, indent=2, ensure_ascii=is_ascii())
    sys.stdout.write(f"{text}\n")


def is_ascii() -> bool:
    """Whether what is printed may not have every character as it is."""
    return (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"


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


def amount(value: int, what: str) -> str:
    """A number of things."""
    return f"{number(value)} {what}{'' if value == 1 else 's'}"


def number(value: int) -> str:
    """A number with separators."""
    return f"{value:,}".replace(",", " ")


@contextmanager
def progress_bar(label: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on the error stream while a block runs, if that is a terminal.

    What it yields is called with the bytes that are done, and all bytes.
    """
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
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
