"""The commands that read state: ``read``, ``diff`` and ``export``.

Rows are printed batch by batch, as they are read.
"""

from __future__ import annotations

import base64
import csv
import json as jsons
import sys
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Annotated, Any

import pyarrow as pa
import typer

from pystate.base.arguments import shown
from pystate.cli.command import AsJson, Checkpoint, Location
from pystate.cli.screen import amount, is_ascii, number, print_json, progress_bar, say, size, table
from pystate.errors import InvalidArgumentError
from pystate.maintenance.access import open_existing
from pystate.processor.changes import scan_changes
from pystate.processor.epochs import MissingFileError, epoch_of, operator_of
from pystate.processor.parquet_export import export_state
from pystate.processor.state_reader import scan_state
from pystate.types.keys import KeyColumns, null_marks, parse_key

_TABLE_ROWS = 50
#: Rows of a table whose columns are made as wide as these need.
_PAGE = 1000
_TRIES = 10


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
    typer.Option(min=0, help=f"Print at most so many rows; {_TABLE_ROWS} for a table, else all."),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", help="Only this key; may be repeated. A key of several columns is a JSON list."
    ),
]
Uid = Annotated[
    str | None, typer.Option(help="The operator; it may be left out if there is only one.")
]
State = Annotated[str | None, typer.Option(help="Only this state.")]
Epoch = Annotated[
    int | None, typer.Option(min=1, help="A retained epoch; the newest if nothing is said.")
]
Explode = Annotated[bool, typer.Option("--explode", help="Of a list or map: a row per element.")]
Timers = Annotated[bool, typer.Option("--timers", help="Timers in place of states.")]
Expired = Annotated[
    bool, typer.Option("--expired", help="Also what has expired, and was not removed yet.")
]


def read(
    location: Location,
    uid: Uid = None,
    state: State = None,
    epoch: Epoch = None,
    key: Keys = None,
    limit: Limit = None,
    explode: Explode = False,
    timers: Timers = False,
    expired: Expired = False,
    style: Format = None,
    json: AsJson = False,
) -> None:
    """Print an operator's state: a row per key.

    Rows are printed as they are read, in no particular order. With --key, only the files and blocks
    of these keys are read. May be used while the job runs.

    Example: pystate read /data/flights --uid aircraft --key N14228
    """
    chosen = style_of(style, json)
    keys = _keys(location, uid, epoch, key, "read")

    def scan() -> pa.RecordBatchReader:
        return scan_state(
            location,
            uid,
            state=state,
            epoch=epoch,
            keys=keys,
            explode=explode,
            timers=timers,
            expired=expired,
        )

    print_rows(_batches(scan, again=epoch is None), chosen, limit)


def diff(
    checkpoint: Checkpoint,
    older: Annotated[
        int, typer.Argument(metavar="FROM", min=0, help="The older epoch; 0 for the empty state.")
    ],
    newer: Annotated[
        int | None,
        typer.Argument(metavar="TO", min=1, help="The newer epoch; the newest if left out."),
    ] = None,
    uid: Uid = None,
    state: State = None,
    key: Keys = None,
    limit: Limit = None,
    style: Format = None,
    json: AsJson = False,
) -> None:
    """Print what changed between two epochs: a row per key.

    Changes are printed as they are found, in no particular order. May be used while the job runs.

    Example: pystate diff /data/flights 41 42 --uid aircraft --state legs
    """
    chosen = style_of(style, json)
    keys = _keys(checkpoint, uid, newer, key, "diff")

    def scan() -> pa.RecordBatchReader:
        return scan_changes(
            checkpoint, uid, from_epoch=older, to_epoch=newer, state=state, keys=keys
        )

    print_rows(_batches(scan, again=newer is None), chosen, limit)


def export(
    location: Location,
    destination: Annotated[
        str, typer.Argument(help="The folder of the files, which is not there yet.")
    ],
    uid: Uid = None,
    state: State = None,
    epoch: Epoch = None,
    explode: Explode = False,
    timers: Timers = False,
    expired: Expired = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Write an operator's state to Parquet files.

    The folder gets its name when all of its files are whole. May be used while the job runs.

    Example: pystate export /data/flights /data/aircraft.parquet --uid aircraft
    """
    open_existing(location, "export")
    with progress_bar("exporting", shown=not json) as progress:
        exported = export_state(
            location,
            destination,
            uid,
            state=state,
            epoch=epoch,
            explode=explode,
            timers=timers,
            expired=expired,
            overwrite=overwrite,
            progress=progress,
        )
    if json:
        print_json(exported)
        return
    say(
        f"Operator {exported.uid!r} as of epoch {exported.epoch} is exported to "
        f"{exported.location}: {amount(exported.rows, 'row')}, "
        f"{amount(exported.files, 'file')}, {size(exported.size_bytes)}."
    )


def _keys(
    location: str, uid: str | None, epoch: int | None, given: list[str] | None, caller: str
) -> list[pa.Array[Any]] | None:
    storage = open_existing(location, caller)
    if not given:
        return None
    operator = operator_of(storage, epoch_of(storage, epoch), uid)
    return keys_of(given, parse_key(list(operator.key_schema)))


def _batches(scan: Callable[[], pa.RecordBatchReader], *, again: bool) -> Iterator[pa.RecordBatch]:
    """Read what is scanned; as long as nothing is read, a running job may retire the epoch."""
    for left in reversed(range(_TRIES)):
        read = 0
        try:
            for batch in scan():
                read += 1
                yield batch
            return
        except MissingFileError:
            if read or not again or not left:
                raise


def style_of(given: Style | None, json: bool) -> Style:
    """The style that was asked for; `--json` and `--format` may contradict each other."""
    if json and given not in (None, Style.json):
        raise InvalidArgumentError("--json is --format json: give one of the two")
    return Style.json if json else given or Style.table


def keys_of(given: list[str], key: KeyColumns) -> list[pa.Array[Any]]:
    """Parse keys, each of which is a text, or a JSON list of the values of its columns."""
    rows: list[list[Any]] = []
    marks = null_marks(key)
    for text in given:
        values: Any = [text]
        if len(key) > 1:
            try:
                values = jsons.loads(text)
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
        value if value is None or isinstance(value, str) else jsons.dumps(value) for value in values
    ]
    try:
        return pa.array(texts, pa.string()).cast(type_.arrow)
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidArgumentError(
            f"--key: {', '.join(map(shown, texts))}: not of type {type_.ddl}, which key column "
            f"{name!r} has: {error}"
        ) from error


def print_rows(batches: Iterator[pa.RecordBatch], style: Style, limit: int | None) -> None:
    """Print rows while they are read; no more are asked for than are printed, but for one."""
    if limit is None and style is Style.table:
        limit = _TABLE_ROWS
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
    return jsons.dumps(_plain(value), ensure_ascii=is_ascii())


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
