"""The figures that README and the guide cite, as tables between two marks in their text.

``<!-- figures: costs -->`` begins one and ``<!-- end of figures -->`` ends it. What is between them
is written from the answers by the lines of `cited.md`, and is not to be changed by hand.
"""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report.text import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bench.measure import Row, Spread
    from bench.results import Answer

FILES = ("README.md", "docs/performance.md")
LINES = Path(__file__).with_suffix(".md")
MARKED = re.compile(r"<!-- figures: ([\w-]+) -->\n(.*?)<!-- end of figures -->", re.DOTALL)
FIGURE = re.compile(r"\{([^{}]+)\}")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]")
UNKNOWN = "not measured yet"


def short(value: float) -> str:
    """Two significant digits; of three digits before the point all, and three of more."""
    size = abs(value)
    if size >= 1_000:
        return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")
    if size >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 0.995 or not value else f"{value:.2g}"


def listed(texts: Iterable[str]) -> str:
    """Texts joined as in a sentence; nothing of none."""
    *first, last = [*texts] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def spanned(spreads: Iterable[Spread | None], times: float = 1, suffix: str = "") -> str:
    """The least and the most of several, such as ``18 to 25``."""
    medians = sorted(one.median * times for one in spreads if one is not None)
    ends = dict.fromkeys(short(one) + suffix for one in medians[:1] + medians[-1:])
    return " to ".join(ends)


class Figures:
    """What stands in the lines for a figure: a public method, with a question and texts of rows.

    Each returns nothing if nobody has measured it.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def _rows(self, question: str, *patterns: str) -> list[Row]:
        """The rows of a question whose texts match, by the order of the patterns."""
        answer = self._answers.get(question)
        given = [] if answer is None else answer.rows
        return [row for one in patterns for row in given if fnmatchcase(row.what, one)]

    def x(self, question: str, *patterns: str) -> str:
        """Ratios, such as ``17x and 18x``."""
        ratios = [row.ratio for row in self._rows(question, *patterns)]
        return listed(f"{short(one.median)}x" for one in ratios if one)

    def value(self, question: str, pattern: str, times: float = 1) -> str:
        """Figures without their unit, such as ``17 and 18``."""
        return listed(short(row.figure.median * times) for row in self._rows(question, pattern))

    def thousands(self, question: str, pattern: str) -> str:
        """Figures in thousands, written out."""
        return self.value(question, pattern, 1_000)

    def span(self, question: str, pattern: str) -> str:
        """The least and the most figure."""
        return spanned(row.figure for row in self._rows(question, pattern))

    def millions(self, question: str, pattern: str) -> str:
        """The same in millions."""
        return spanned((row.figure for row in self._rows(question, pattern)), 1e-6)

    def ratios(self, question: str, pattern: str) -> str:
        """The least and the most ratio."""
        return spanned((row.ratio for row in self._rows(question, pattern)), suffix="x")

    def words(self, question: str, pattern: str, before: str, after: str) -> str:
        """What the first row's peer says between two texts."""
        peers = [row.peer for row in self._rows(question, pattern)]
        found = peers and re.search(f"{re.escape(before)}(.*){re.escape(after)}", peers[0])
        return found[1] if found else ""

    def engine(self, question: str, name: str) -> str:
        """The name of another engine with its version, as its row has it."""
        rows = self._rows(question, f"*: {name}*")
        return rows[0].what.rpartition(": ")[2].replace(",", "") if rows else name

    def title(self, pattern: str) -> str:
        """What a query of Nexmark asks, as its row has it."""
        rows = self._rows("nexmark", pattern)
        return rows[0].what.partition(", ")[2].rpartition(": ")[0] if rows else ""

    def count(self, question: str, unit: str) -> str:
        """How many of a unit the rows say, such as ``2 M`` or ``300 000``."""
        texts = " ".join(row.what for row in self._rows(question, "*"))
        found = re.search(rf"([\d,]+){re.escape(unit)}", texts)
        value = int(found[1].replace(",", "")) if found else 0
        if value >= 1_000_000 and value % 100_000 == 0:
            return f"{value / 1e6:g} M"
        return f"{value:,}".replace(",", " ") if found else "many"

    def grown(self, question: str) -> str:
        """Between which sizes a state grows, such as ``1 M to 20 M``."""
        sizes = [row.size for row in self._rows(question, "*") if row.size]
        return f"{sizes[0] / 1e6:g} M to {sizes[-1] / 1e6:g} M" if sizes else "few to many"

    def sizes(self, question: str, pattern: str, before: str) -> str:
        """How many rows the batches had, in words."""
        found = [size.replace(",", " ") for size in self.each(question, pattern, before)]
        return listed(found).replace("*", "many") + " rows a batch"

    def each(self, question: str, pattern: str, before: str) -> list[str]:
        """How many rows a batch had, as the rows of a question say it."""
        texts = [row.what.partition(before)[2] for row in self._rows(question, pattern)]
        return [text.partition(" rows")[0] for text in texts] or ["*"]


def filled(line: str, figures: Figures) -> str:
    """A line with its figures; nothing if it is in brackets and has none."""

    def figure(found: re.Match[str]) -> str:
        name, *given = shlex.split(found[1])
        return str(getattr(figures, name)(*given)) or UNKNOWN

    def part(found: re.Match[str]) -> str:
        text = FIGURE.sub(figure, found[1])
        return "" if UNKNOWN in text else text

    return FIGURE.sub(figure, OPTIONAL.sub(part, line))


def lines_of(text: str, figures: Figures) -> Iterator[str]:
    """The lines of a table, those below `@each` once for each size of a batch."""
    sizes, repeated = [""], list[str]()
    for line in [*text.splitlines(), "@end"]:
        if not line.startswith("@"):
            repeated.append(line)
            continue
        for size in sizes:
            rows = size.replace("*", "many").replace(",", " ") + " rows a batch"
            yield from (one.replace("{size}", size).replace("{rows}", rows) for one in repeated)
        which, *given = shlex.split(line)
        found = figures.each(*given) if given else [""]
        sizes, repeated = found[:1] if which == "@first" else found, []


def two_columns(text: str, figures: Figures) -> str:
    """A table; a line without any figure only says so."""
    rows = []
    for line in filter(None, (filled(one, figures) for one in lines_of(text, figures))):
        what, _, figure = line.partition(" | ")
        rows.append((what, figure if re.search(r"\d", figure) else UNKNOWN))
    return table(("what", "figure"), rows)


#: How the queries of Nexmark are written with pystate.
WRITTEN = {
    "q3": "`connect`, a `KeyedCoProcessFunction`",
    "q4": "`interval_join`, session windows, `aggregate`",
    "q5": "sliding windows",
    "q7": "a `VectorizedFunction` with timers",
    "q8": "`interval_join`, `deduplicate`",
    "q9": "`interval_join`, `top`",
    "q11": "session windows",
    "q12": "tumbling windows",
    "q18": "`top`",
    "q19": "`top`",
    "q20": "`interval_join` over all time",
}


def nexmark(f: Figures) -> str:
    """The guide's table of Nexmark."""
    lines = []
    for name, how in WRITTEN.items():
        title = f.title(f"{name}, *: pystate*")
        stores = [f"{name}, *: Spark, {store}*" for store in ("RocksDB", "in memory")]
        absent = "refused by Spark" if title else UNKNOWN
        peers = [f.x("nexmark", store) or absent for store in stores]
        larger = ", ".join(filter(None, (f.x("nexmark-windows", store) for store in stores)))
        lines.append((f"{name[1:]}, {title or UNKNOWN}", how, *peers, larger))
    heads = "query", "in pystate", "Spark with RocksDB", "with its state in memory"
    return table((*heads, "both, with batches five times as large"), lines)


def tables() -> dict[str, Callable[[Figures], str]]:
    """How each table is made."""
    texts = re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", LINES.read_text("utf-8"), re.M | re.S)
    made = {name: partial(two_columns, text) for name, text in texts}
    return {**made, "nexmark": nexmark}


def cited(text: str, answers: Mapping[str, Answer]) -> str:
    """A text with its tables written anew; a mark that names none is an error."""
    figures, known = Figures(answers), tables()

    def written(found: re.Match[str]) -> str:
        name = found[1]
        if name not in known:
            raise ValueError(f"no such table: {name} (there are {', '.join(known)})")
        return f"<!-- figures: {name} -->\n\n{known[name](figures)}\n\n<!-- end of figures -->"

    return MARKED.sub(written, text)


def documents(root: Path, answers: Mapping[str, Answer]) -> dict[Path, str]:
    """The files that cite figures, and what they should say."""
    paths = [root / name for name in FILES]
    return {path: cited(path.read_text(encoding="utf-8"), answers) for path in paths}
