"""Rows of state on the screen, or for programs: a batch is printed when it has been read.

Thread safety: a program of its own.
"""

from __future__ import annotations

import base64
import csv
import json
import sys
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Annotated, Any

import pyarrow as pa
import typer

from pystate.base.arguments import shown
from pystate.cli.screen import is_ascii, number, say, table
from pystate.errors import InvalidArgumentError
from pystate.types.keys import KeyColumns, null_marks

__all__ = ["Format", "Keys", "Limit", "Style", "keys_of", "print_rows", "style_of"]

_SHOWN = 50
#: Rows of a table whose columns are made as wide as these need.
_PAGE = 1000


class Style(str, Enum):
    """How rows are printed."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


Format = Annotated[
    Style | None,
    typer.Option("--format", help="A table, one JSON list, one JSON object per line, or CSV."),
]
Limit = Annotated[
    int | None,
    typer.Option(min=0, help=f"Print at most so many rows; {_SHOWN} for a table, else all."),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", help="Only this key; may be repeated. A key of several columns is a JSON list."
    ),
]


def style_of(given: Style | None, json: bool) -> Style:
    """The style that was asked for.

    Raises
    ------
    InvalidArgumentError
        `--json` and `--format` contradict each other.
    """
    if json and given not in (None, Style.json):
        raise InvalidArgumentError("--json is --format json: give one of the two")
    return Style.json if json else given or Style.table


def keys_of(given: list[str], key: KeyColumns) -> list[pa.Array[Any]]:
    """Parse keys.

    Raises
    ------
    InvalidArgumentError
        A text is not a key.
    """
    rows: list[list[Any]] = []
    marks = null_marks(key)
    for text in given:
        values: Any = [text]
        if len(key) > 1:
            try:
                values = json.loads(text)
            except ValueError:
                values = None
            if isinstance(values, list) and len(values) == len(key) - len(marks):
                rest = iter(values)
                values = [None if i in marks else next(rest) for i in range(len(key))]
            if not isinstance(values, list) or len(values) != len(key):
                columns = ", ".join(f"{name} {type_.ddl}" for name, type_ in key)
                raise InvalidArgumentError(
                    f"--key {shown(text)}: a key has the columns {columns}: give a JSON list of "
                    f"{len(key)} values, such as '[\"a\", 1]'"
                )
        rows.append(values)
    return [_column([row[i] for row in rows], *key[i]) for i in range(len(key))]


def _column(values: list[Any], name: str, type_: Any) -> pa.Array[Any]:
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value) for value in values
    ]
    try:
        return pa.array(texts, pa.string()).cast(type_.arrow)
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidArgumentError(
            f"--key: {', '.join(map(shown, texts))}: not of type {type_.ddl}, which key column "
            f"{name!r} has: {error}"
        ) from error


def print_rows(batches: Iterator[pa.RecordBatch], style: Style, limit: int | None) -> None:
    """Print rows while they are read.

    Parameters
    ----------
    batches : iterator of RecordBatch
        The rows; no more of them are asked for than are printed, but for one.
    style : Style
        How.
    limit : int, optional
        The most rows.
    """
    if limit is None and style is Style.table:
        limit = _SHOWN
    rows = _rows(batches)
    wanted = rows if limit is None else islice(rows, limit)
    write = sys.stdout.write
    if style is Style.json:
        write("[")
        comma = ""
        for row in wanted:
            write(f"{comma}\n  {_json(row)}")
            comma = ","
        write("\n]\n" if comma else "]\n")
    elif style is Style.jsonl:
        for row in wanted:
            write(f"{_json(row)}\n")
    elif style is Style.csv:
        _print_csv(wanted)
    else:
        count = _print_tables(wanted)
        if not count and limit != 0:
            say("There are no rows.")
        if limit is not None and next(rows, None) is not None:
            say(f"There are more rows than {number(limit)}: --limit says how many to print.")


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for start in range(0, batch.num_rows, _PAGE):
            yield from batch.slice(start, _PAGE).to_pylist()


def _print_csv(rows: Iterator[dict[str, Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for place, row in enumerate(rows):
        if not place:
            writer.writerow(row)
        writer.writerow([_cell(value, missing="") for value in row.values()])


def _print_tables(rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    while page := list(islice(rows, _PAGE)):
        if count:
            say("")
        columns = list(page[0])
        right = [
            name
            for name in columns
            if any(isinstance(row[name], (int, float, Decimal)) for row in page)
        ]
        table(columns, [[_cell(v, missing="null") for v in row.values()] for row in page], right)
        count += len(page)
    return count


def _cell(value: Any, *, missing: str) -> str:
    if value is None:
        return missing
    plain = _plain(value)
    return plain if isinstance(plain, str) else _json(plain)


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=is_ascii())


def _plain(value: Any) -> Any:
    """The same value as JSON has it: a map as a list of pairs, bytes in Base64."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not -1e308 <= value <= 1e308:
        return str(value)  # JSON has neither infinity nor NaN
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    return value
