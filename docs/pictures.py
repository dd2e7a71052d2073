"""Makes the README's pictures: what the command line prints for a small store, as SVG.

``python docs/pictures.py`` in an environment with the extra ``cli``; nothing in them is drawn by
hand. Times, and names that are drawn, differ from run to run.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

import pystate as ps

HERE = Path(__file__).resolve().parent
COLUMNS = 98


def picture(command: str, path: Path) -> None:
    """Run a command as in a terminal, and save what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pystate", *command.split()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)},
    )
    # The identifiers of files are long, and say nothing here.
    said = re.sub(r"([0-9a-f]{6})[0-9a-f]{26}", r"\1…", done.stdout)
    said = said.replace(os.getcwd(), "/data")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(f"$ pystate {command}\n{said.rstrip()}"))
    drawn = console.export_svg(title="", theme=DIMMED_MONOKAI, unique_id=path.stem)
    path.write_text(drawn, encoding="utf-8")


def main(into: Path = HERE / "_static") -> None:
    """Make a store, look at its past, damage it, and have the damage found."""
    began = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        states = {"clicks": ps.ValueState("long", default=0), "pages": ps.ListState("string")}
        with ps.open("visits", key={"user": "string"}, states=states) as store:
            for size in (20_000, 3_000, 500, 8_000, 40):
                users = store.keys([f"user {i}" for i in range(size)])
                store["clicks"].add(users, 1)
                store["pages"].append(users, ["/home"] * size)
                store.checkpoint()
        picture("history visits", into / "history.svg")
        newest = next(Path("visits/state").rglob("00000005-*.delta"))
        newest.write_bytes(newest.read_bytes()[:-100])
        picture("verify visits", into / "verify.svg")
        os.chdir(began)


if __name__ == "__main__":
    main()
