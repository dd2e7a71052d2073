"""The commands."""

from __future__ import annotations

from typing import Annotated

import typer

from pystate.checkpoint.job_file import library
from pystate.cli import gc, history, inspect, read, repair, savepoint, serve, sql, verify
from pystate.cli.command import Commands

_HELP = """Look at the state of pystate's jobs, check it, save it, and repair it.

A CHECKPOINT is the folder that a job writes after each epoch (micro-batch): its state, the position
of its stream, and what it needs to go on. A SAVEPOINT is one epoch of it in a folder of its own,
which nothing changes.

Exit codes: 0 all is well, 1 something is wrong, 2 wrong use. `--json` prints one document.

Only `export`, `savepoint`, `rescale`, `repair` and `gc` write anything, the first three into a
folder of their own.
"""

app = typer.Typer(
    name="pystate",
    cls=Commands,
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(library())
        raise typer.Exit


@app.callback()
def _begin(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


app.command("inspect")(inspect.inspect)
app.command("history")(history.history)
app.command("read")(read.read)
app.command("diff")(read.diff)
app.command("sql")(sql.sql)
app.command("export")(read.export)
app.command("serve")(serve.serve)
app.command("savepoint")(savepoint.savepoint)
app.command("rescale")(savepoint.rescale)
app.command("verify")(verify.verify)
app.command("repair")(repair.repair)
app.command("gc")(gc.gc)
