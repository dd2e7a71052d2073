"""Arguments that commands share.

Thread safety: constants.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AsJson", "Checkpoint", "Location"]

Location = Annotated[str, typer.Argument(help="The folder or URL of a checkpoint or savepoint.")]
Checkpoint = Annotated[str, typer.Argument(help="The folder or URL of a job's checkpoint.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
