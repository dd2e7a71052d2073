"""The entry point of the command line, which says what to install if it cannot run."""

from __future__ import annotations

import importlib
import io
import sys

from pystate.base.installation import extra, require_own_package
from pystate.errors import MissingPackageError

_PACKAGES = ("typer", "rich")


def main() -> None:
    """Run the command line; the exit code is 0, 1 if something is wrong, or 2 for wrong use."""
    try:
        require_own_package()
    except MissingPackageError as error:
        print(f"pystate: {error}", file=sys.stderr)
        sys.exit(2)
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(
                f"pystate: the command line needs {name} ({error}): {extra('cli')}",
                file=sys.stderr,
            )
            sys.exit(2)
    from pystate.cli.app import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names may have characters that the terminal's encoding does not have.
        sys.stdout.reconfigure(errors="backslashreplace")

    app(prog_name="pystate")
