"""The commands that save a checkpoint's newest epoch: ``savepoint`` and ``rescale``."""

from __future__ import annotations

from typing import Annotated

import typer

from pystate.checkpoint.savepoint import Savepoint
from pystate.checkpoint.savepoint import savepoint as take_savepoint
from pystate.cli.command import AsJson, Checkpoint, Location
from pystate.cli.screen import amount, print_json, progress_bar, say, size
from pystate.epochs.split_groups import rescale as rescale_savepoint
from pystate.maintenance.access import open_existing

Destination = Annotated[str, typer.Argument(help="A folder that is empty, or not there yet.")]


def savepoint(
    checkpoint: Checkpoint,
    destination: Destination,
    previous: Annotated[
        str | None,
        typer.Option(help="An earlier savepoint: what it has already is taken from it."),
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy all files, instead of sharing them by links.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Save the newest epoch in a folder of its own.

    The job may be stopped, or run meanwhile. Every file is read once, and compared with its
    checksum. Start another job from it by Job(..., restore="DESTINATION").

    Example: pystate savepoint /data/flights /backup/flights-2026-11-20
    """
    open_existing(checkpoint, "savepoint")
    with progress_bar("saving", shown=not json) as progress:
        taken = take_savepoint(
            checkpoint, destination, previous=previous, copy=copy, progress=progress
        )
    _report(taken, json)


def rescale(
    source: Location,
    destination: Destination,
    max_parallelism: Annotated[
        int, typer.Option(help="The new number of key groups, a multiple of the old one.")
    ],
    json: AsJson = False,
) -> None:
    """Save the newest epoch with a multiple of its key groups.

    max_parallelism is how many ranges the state can be split into at most, and a checkpoint keeps
    it for good. The source is not changed. Start a job with the result by
    Job(..., restore="DESTINATION").

    Example: pystate rescale /data/flights /data/flights-1024 --max-parallelism 1024
    """
    open_existing(source, "rescale")
    with progress_bar("splitting", shown=not json) as progress:
        taken = rescale_savepoint(
            source, destination, max_parallelism=max_parallelism, progress=progress
        )
    _report(taken, json)


def _report(taken: Savepoint, json: bool) -> None:
    if json:
        print_json(taken)
        return
    say(
        f"Epoch {taken.epoch} of job {taken.job!r} is saved in {taken.location}: "
        f"{amount(taken.files, 'file')}, {size(taken.size_bytes)}."
    )
