"""The guide's pages, as a reader meets them: their blocks of code, and what those print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"(?:\n\n```text\n(?P<printed>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of Python.

    Attributes
    ----------
    text : str
        The code.
    printed : str
        What the page says that it prints: the block of text that follows it.
    reason : str or None
        Why it is not run; None for one that is.
    line : int
        Where the page has it.
    """

    text: str
    printed: str
    reason: str | None
    line: int


def blocks(page: str) -> list[Block]:
    """The page's blocks of Python, in order."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return [
        Block(
            found["text"],
            found["printed"] or "",
            found["reason"],
            text.count("\n", 0, found.start("text")) + 1,
        )
        for found in _FENCE.finditer(text)
        if found["language"] == "python"
    ]


def plain(printed: str) -> str:
    """What is printed, but for how long things took."""
    lines = (line.rstrip() for line in printed.strip().splitlines())
    return re.sub(r"\b\d+\.\d\d s\b", "0.00 s", "\n".join(lines))
