"""The command that removes what nobody needs: ``gc``."""

from __future__ import annotations

from typing import Annotated

import typer

from pystate.cli.command import AsJson, Checkpoint, OwnerIsGone
from pystate.cli.screen import amount, number, print_json, say, size
from pystate.maintenance.collection import collect

_MOST_FILES = 20


def gc(
    checkpoint: Checkpoint,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    older_than: Annotated[
        str, typer.Option(help="Keep younger files: tasks may outlive their driver.")
    ] = "10 minutes",
    owner_is_gone: OwnerIsGone = False,
    json: AsJson = False,
) -> None:
    """Remove files that no epoch can name any more.

    A running job does that by itself, so that this refuses while it runs. Retained epochs and
    savepoints lose nothing.

    Example: pystate gc /data/flights --dry-run
    """
    collection = collect(
        checkpoint, dry_run=dry_run, older_than=older_than, owner_is_gone=owner_is_gone
    )
    if json:
        print_json(collection)
        return
    for path in collection.files[:_MOST_FILES]:
        say(f"  {path}")
    if len(collection.files) > _MOST_FILES:
        say(f"  and {number(len(collection.files) - _MOST_FILES)} more")
    what = f"{amount(len(collection.files), 'file')}, {size(collection.size_bytes)}"
    if not collection.files:
        say("There is nothing to remove.", "green")
    elif dry_run:
        say(f"{what} would be removed.")
    else:
        say(f"{what} removed.", "green")
