"""The commands that read state: ``read``, ``diff`` and ``export``.

Thread safety: a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pyarrow as pa
import typer

from pystate.cli.arguments import AsJson, Checkpoint, Location
from pystate.cli.rows import Format, Keys, Limit, keys_of, print_rows, style_of
from pystate.cli.screen import counted, print_json, progress_bar, say, size
from pystate.maintenance.access import open_existing
from pystate.processor.changes import scan_changes
from pystate.processor.epochs import MissingFileError, epoch_of, operator_of
from pystate.processor.parquet_export import export_state
from pystate.processor.state_reader import scan_state
from pystate.types.keys import parse_key

__all__ = ["diff", "export", "read"]

_TRIES = 10

Uid = Annotated[
    str | None, typer.Option(help="The operator; it may be left out if there is only one.")
]
State = Annotated[str | None, typer.Option(help="Only this state.")]
Epoch = Annotated[
    int | None, typer.Option(min=1, help="A retained epoch; the newest if nothing is said.")
]
Explode = Annotated[bool, typer.Option("--explode", help="Of a list or map: a row per element.")]
Timers = Annotated[bool, typer.Option("--timers", help="Timers in place of states.")]


def read(
    location: Location,
    uid: Uid = None,
    state: State = None,
    epoch: Epoch = None,
    key: Keys = None,
    limit: Limit = None,
    explode: Explode = False,
    timers: Timers = False,
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
            location, uid, state=state, epoch=epoch, keys=keys, explode=explode, timers=timers
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
    """Print what changed between two retained epochs: a row per key whose states differ.

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
        made = export_state(
            location,
            destination,
            uid,
            state=state,
            epoch=epoch,
            explode=explode,
            timers=timers,
            overwrite=overwrite,
            progress=progress,
        )
    if json:
        print_json(made)
        return
    say(
        f"Operator {made.uid!r} as of epoch {made.epoch} is exported to {made.location}: "
        f"{counted(made.rows, 'row')}, {counted(made.files, 'file')}, {size(made.size_bytes)}."
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
