"""The command that runs a SQL statement over a checkpoint's state: ``sql``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pystate.cli.command import AsJson, Location
from pystate.cli.read import Epoch, Format, Limit, Style, print_rows, style_of
from pystate.cli.screen import print_json, table
from pystate.maintenance.access import open_existing
from pystate.query.connect import connect
from pystate.query.reader import StateReader
from pystate.query.sql.statement import MEMORY_BYTES, THREADS, TIMEOUT

_STANDARD_INPUT = "-"
_MIB = 1 << 20


def sql(
    location: Location,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="A SELECT statement; - reads it from standard input."),
    ] = None,
    epoch: Epoch = None,
    limit: Limit = None,
    timeout: Annotated[str, typer.Option(help="How long it may take.")] = TIMEOUT,
    memory: Annotated[
        int, typer.Option(min=16, help="How much memory it may take, in MiB.")
    ] = MEMORY_BYTES // _MIB,
    threads: Annotated[int, typer.Option(min=1, help="How many threads compute.")] = THREADS,
    style: Format = None,
    json: AsJson = False,
) -> None:
    """Run a SELECT statement over the state, in DuckDB's SQL.

    Each operator is a table that has the name of its uid, in double quotes where that is no plain
    word. UID__STATE has the elements of a list or map, UID__timers the timers, and epochs the
    retained epochs. Without a statement the tables are listed. Only tables that a statement names
    are read, and of these only the keys that it gives by = or IN, if it does. A statement reaches
    no file and no network. May be used while the job runs.

    Example: pystate sql /data/flights "select * from aircraft where tailnum = 'N14228'"
    """
    chosen = style_of(style, json)
    open_existing(location, "sql")
    with connect(location, epoch=epoch) as reader:
        if query is None:
            _list_tables(reader, chosen)
            return
        text = sys.stdin.read() if query == _STANDARD_INPUT else query
        found = reader.scan_sql(text, timeout=timeout, memory_bytes=memory * _MIB, threads=threads)
        with found:
            print_rows(iter(found), chosen, limit)


def _list_tables(reader: StateReader, style: Style) -> None:
    columns = reader.sql_tables().to_pylist()
    if style is not Style.table:
        print_json(columns)
        return
    tables: dict[str, list[str]] = {}
    holds = {}
    for column in columns:
        holds[column["table"]] = column["holds"]
        described = f"{column['column']} {column['type']}"
        tables.setdefault(column["table"], []).append(described)
    table(
        ("table", "has", "columns"),
        [(name, holds[name], ", ".join(described)) for name, described in tables.items()],
    )
