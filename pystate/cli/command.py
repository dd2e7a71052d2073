"""What all commands share: arguments, exit codes, and how they end."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pystate.cli.screen import harmless
from pystate.errors import InvalidArgumentError, PystateError

Location = Annotated[str, typer.Argument(help="The folder or URL of a checkpoint or savepoint.")]
Checkpoint = Annotated[str, typer.Argument(help="The folder or URL of a job's checkpoint.")]
OwnerIsGone = Annotated[
    bool,
    typer.Option(
        "--owner-is-gone", help="The driver has ended, although that cannot be seen from here."
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, max=256, help="How many files to read at a time.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]

#: Exit codes: something is wrong with the checkpoint; the command cannot be carried out as given.
WRONG = 1
WRONG_USE = 2
#: What shells give for a program that Ctrl-C, or the end of its reader, has ended.
_INTERRUPTED, _UNREAD = 130, 141


class Commands(TyperGroup):
    """The commands; an error that pystate raises on purpose ends them with one line.

    Each tidies up before it ends, also when it is interrupted.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            typer.echo("pystate: interrupted", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        except (PystateError, OSError) as error:
            if not isinstance(error, PystateError) and error.errno == errno.EPIPE:
                # Who reads has seen enough. What is buffered still is not to be written at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(_UNREAD) from None
            said = harmless(" ".join(str(error).split()))
            typer.echo(f"pystate: {said}", err=True)
            code = WRONG_USE if isinstance(error, InvalidArgumentError) else WRONG
            raise typer.Exit(code) from error
