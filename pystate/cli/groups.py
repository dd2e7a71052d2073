"""How commands end: errors in one plain line, and exit codes.

Thread safety: a program of its own.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from pystate.errors import InvalidArgumentError, PystateError

__all__ = ["WRONG", "WRONG_USE", "Commands"]

#: Exit codes: something is wrong with the checkpoint; the command cannot be carried out as given.
WRONG = 1
WRONG_USE = 2


class Commands(TyperGroup):
    """The commands; an error that pystate raises on purpose ends them with one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (PystateError, OSError) as error:
            said = " ".join(str(error).split())
            typer.echo(f"pystate: {said}", err=True)
            code = WRONG_USE if isinstance(error, InvalidArgumentError) else WRONG
            raise typer.Exit(code) from error
