"""The figures that README and the guide cite, as tables between two marks in their text.

``<!-- figures: costs -->`` begins one and ``<!-- end of figures -->`` ends it. What is between them
is written from the answers, and is not to be changed by hand.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from bench.report.text import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from bench.measure import Row
    from bench.results import Answer

    Lines = list[tuple[str, str]]

FILES = ("README.md", "docs/performance.md")
MARKED = re.compile(r"<!-- figures: ([\w-]+) -->\n(.*?)<!-- end of figures -->", re.DOTALL)
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
    """Texts joined as in a sentence."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


class Figures:
    """Looks figures up; what nobody has measured is said to be so.

    Parameters
    ----------
    answers : mapping
        The answers by question.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def rows(self, question: str, pattern: str) -> list[Row]:
        """The rows of a question whose texts match."""
        answer = self._answers.get(question)
        given = [] if answer is None else answer.rows
        return [row for row in given if fnmatchcase(row.what, pattern)]

    def x(self, question: str, *patterns: str) -> str:
        """Ratios, such as ``17x and 18x``."""
        found = [row.ratio for pattern in patterns for row in self.rows(question, pattern)]
        return listed([f"{short(r.median)}x" for r in found if r]) if any(found) else UNKNOWN

    def value(self, question: str, *patterns: str, times: float = 1) -> str:
        """Figures without their unit, such as ``17 and 18``."""
        found = [row.figure for pattern in patterns for row in self.rows(question, pattern)]
        return listed([short(one.median * times) for one in found]) if found else UNKNOWN

    def span(self, question: str, pattern: str, *, ratios: bool = False, times: float = 1) -> str:
        """The least and the most of several figures or ratios, such as ``18 to 25``."""
        rows = self.rows(question, pattern)
        found = [row.ratio if ratios else row.figure for row in rows]
        medians = sorted(one.median * times for one in found if one is not None)
        if not medians:
            return UNKNOWN
        ends = [short(one) + ("x" if ratios else "") for one in (medians[0], medians[-1])]
        return ends[0] if ends[0] == ends[1] else " to ".join(ends)

    def size(self, question: str, name: str) -> str:
        """A number of the scale, such as ``2 M`` or ``300 000``."""
        answer = self._answers.get(question)
        if answer is None:
            return "many"
        value = answer.scale[name]
        if value >= 1_000_000 and value % 100_000 == 0:
            return f"{value / 1e6:g} M"
        return f"{value:,}".replace(",", " ")


def version_of(figures: Figures, question: str, name: str) -> str:
    """The name of another engine with its version, as its row has it."""
    rows = figures.rows(question, f"*: {name}*")
    return rows[0].what.rpartition(": ")[2].replace(",", "") if rows else name


def sizes_of(f: Figures, question: str, pattern: str, before: str) -> list[tuple[str, str]]:
    """How many rows a batch had, as the rows of a question say it, and as a table does."""
    whats = [row.what for row in f.rows(question, pattern)]
    sizes = [what.partition(before)[2].partition(" rows")[0] for what in whats]
    found = [(size, f"{size.replace(',', ' ')} rows a batch") for size in sizes]
    return found or [("*", "many rows a batch")]


def by_row(f: Figures) -> Lines:
    """A function of one row and Spark's processor, for each size of a batch."""
    question = "spark-function"
    lines: Lines = []
    for size, rows in sizes_of(f, question, "value*: pystate", "timer, "):
        of, ported = (
            f"value*, {size} rows*: transformWithState",
            f"the same processor*, {size} rows*",
        )
        at_once = f"{of}, a key's rows at once"
        other = f.x(question, at_once) if f.rows(question, at_once) else ""
        lines += [
            (
                f"a function row by row with a value, a map and timers, {rows}",
                f"{f.x(question, of)} the same processor under `transformWithState`"
                + (other and f", {other} one that accesses its state once per key and batch"),
            ),
            (
                "that processor itself, unchanged, in a job",
                f"{f.x(question, ported)} `transformWithState`: "
                f"{f.value(question, ported, times=1_000)} rows/s",
            ),
        ]
    return lines


def in_frames(f: Figures) -> Lines:
    """Functions of Spark that get frames, for each size of a batch."""
    question, group, frames = "spark-pandas", "applyInPandasWithState", "transformWithStateInPandas"
    lines: Lines = []
    for size, rows in sizes_of(f, question, "count*: pystate, by row", "frames, "):
        of, by_batch = f"count*, {size} rows*: ", f"by batch*, {size} rows*: "
        lines.append(
            (
                f"a count by row, {rows}",
                f"{f.x(question, of + group)} `{group}`, {f.x(question, of + frames)} `{frames}`; "
                f"these unchanged in a job {f.x(question, of + f'{group} in a job')} "
                f"and {f.x(question, of + f'{frames} in a job')}",
            )
        )
        if f.rows(question, by_batch + "*"):
            lines.append(
                (
                    f"the same count by batch, {rows}",
                    f"{f.x(question, by_batch + group)} `{group}`, "
                    f"{f.x(question, by_batch + frames)} `{frames}`",
                )
            )
    return lines


def on_spark(f: Figures) -> Lines:
    """The guide's table of jobs."""
    rows, keys = f.size("spark-count", "spark_rows"), f.size("spark-count", "spark_keys")
    first = "spark-count", "*: without state"
    return [
        (
            f"counting {rows} rows a batch over {keys} keys, checkpoint synced",
            f"{f.x(*first)} the same job without any state, "
            f"{f.x('spark-count', '*: Spark, RocksDB')} Spark's own count with RocksDB, "
            f"{f.x('spark-count', '*: Spark, in memory')} with its state in memory",
        ),
        (
            "the same with skewed keys (Zipf's law, 1.1), whose rows are combined before the "
            "shuffle",
            f"{f.x('spark-skewed', '*: without state')} the job without state, whose rows are not; "
            f"{f.x('spark-skewed', '*: pystate, not combined')} the same without combining; "
            f"{f.x('spark-skewed', '*: Spark, RocksDB')} and "
            f"{f.x('spark-skewed', '*: Spark, in memory')} Spark's own count",
        ),
        (
            f"windows of a minute, count and sum, {rows} rows a batch, two rows to a window",
            f"{f.x('spark-windows', '*: Spark, RocksDB')} Spark's own with RocksDB, "
            f"{f.x('spark-windows', '*: Spark, in memory')} with its state in memory",
        ),
        (
            "what an epoch of 1 000 rows takes longer than the same job without state",
            f"{f.value('small-batches', '* 1,000 rows: added *')} ms of "
            f"{f.value('small-batches', '* 1,000 rows: pystate')} ms",
        ),
        *by_row(f),
        *in_frames(f),
        (
            f"an epoch that changes {f.size('spark-state-size', 'grown_rows')} keys, while the "
            f"state grows from {grown(f, 'spark-state-size')} keys",
            f"{f.span('spark-state-size', '*', ratios=True)} the time of one that does not grow",
        ),
        (
            "one core and two",
            f"{f.x('spark-scaling', '*: pystate, cores: 2')} on two cores; the job without state "
            f"{f.x('spark-scaling', '*: without state, cores: 2')}",
        ),
    ]


def grown(f: Figures, question: str) -> str:
    """Between which sizes a state grows, such as ``1 M to 20 M``."""
    sizes = [row.size for row in f.rows(question, "*") if row.size]
    return f"{sizes[0] / 1e6:g} M to {sizes[-1] / 1e6:g} M" if sizes else "few to many"


def elsewhere(f: Figures) -> Lines:
    """The guide's table of other stores and engines."""
    engines = [
        ("others", "Bytewax", "a function by row"),
        ("others", "Pathway", "a function by row; Pathway's is an engine of batches in Rust"),
        ("flink", "Flink SQL, hashmap", "`aggregate` on Spark"),
        ("flink", "Flink SQL, RocksDB", "`aggregate` on Spark"),
    ]
    lines = [
        (version_of(f, question, name), f"{f.x(question, f'*: {name}*')}, {how}")
        for question, name, how in engines
    ]
    lines += [
        (f"{name}, a key at a time, 1 M keys", f.x("stores", f"*, 1,000,000 keys: {name}*"))
        for name in ("LMDB", "RocksDB")
    ]
    return lines


def in_process(f: Figures) -> Lines:
    """The guide's table of what needs no Spark."""
    batch = [f"{kind}, a batch at a time: pystate" for kind in (
        "list append", "read of a 100-element list", "map put*", "map get*")]  # fmt: skip
    folds = [f"{kind}, a batch at a time: pystate" for kind in (
        "reducing add", "aggregating mean", "timer*")]  # fmt: skip
    key_by_key = f.span("collections", "*, a key at a time: pystate", ratios=True)
    return [
        (
            "counting rows per key, 1 M and 10 M keys, a batch at a time",
            f"{f.x('count', 'count, *: pystate, seal timed')} a loop over a Python dict",
        ),
        (
            "sum and count per key, 1 M and 10 M keys",
            f.x("count", "sum+count, *: pystate, seal timed"),
        ),
        (
            "one key at a time: set the key, read, update",
            f"{f.x('one-key', '*: pystate')} a Python dict; keys of rows known before "
            f"{f.x('one-key', '*: pystate, keys known in batches')}",
        ),
        (
            "new keys, new string keys of 10 to 40 bytes, against counting existing keys",
            f"{f.x('writes', 'new keys*', 'new strings*')}; skewed keys "
            f"{f.x('writes', 'count, zipf*')}",
        ),
        (
            "a batch of keys at once: append to lists, read lists of 100, put into and get from "
            "maps of 10",
            f"{f.x('collections', *batch)} the same loop over Python's lists and dicts",
        ),
        (
            "reducing, mean, timers, a batch of keys at once",
            f"{f.x('collections', *folds)} Python's own containers",
        ),
        (
            "one key at a time: lists, maps, reducing, mean, timers",
            f"{key_by_key} Python's own containers",
        ),
        (
            "a put into one key's map of a million entries, against one of a thousand",
            f"{f.x('growth', 'map put, ascending*, one at a time, at 1,000,000')} with keys in "
            f"order; {f.x('growth', 'map put, random*, one at a time, at 1,000,000')} at random, "
            f"where a Python dict takes {of_python(f)}",
        ),
        (
            "two threads with a table each, against one",
            f.x("scaling", "*, threads: 2"),
        ),
    ]


def of_python(f: Figures) -> str:
    """How much longer a dict's put takes in a large one."""
    rows = f.rows("growth", "map put, random*, one at a time, at 1,000,000")
    return rows[0].peer.rpartition(" ")[2] if rows else UNKNOWN


def of_windows(f: Figures) -> Lines:
    """The guide's table of windows and rankings, in millions of rows per second."""
    millions = 1e-6
    return [
        (
            "tumbling windows, count and sum, ten rows to each of a million windows",
            f"{f.value('windows', 'a million*: pystate')}; DuckDB, with all rows at once, "
            f"{f.value('windows', 'a million*: DuckDB*')}",
        ),
        (
            "the same by the minute, 12 rows to a window of fewer keys",
            f.value("windows", "*: tumbling by a minute"),
        ),
        ("the same by the hour, 600 rows to a window", f.value("windows", "*: tumbling by an*")),
        ("an hour, sliding by a minute", f.value("windows", "*sliding*: pystate")),
        (
            "sessions of some twenty rows",
            f"{f.value('windows', 'sessions*: pystate')}; DuckDB "
            f"{f.value('windows', 'sessions*: DuckDB*')}",
        ),
        ("`deduplicate`, known keys", f.span("rows", "deduplicate*known keys*", times=millions)),
        ("`deduplicate`, new keys", f.span("rows", "deduplicate*new keys*", times=millions)),
        ("`top(5)` of a million keys", f.span("rows", "top 5*", times=millions)),
    ]


def of_checkpoints(f: Figures) -> Lines:
    """The guide's table of files, pauses and memory."""
    return [
        (
            "writing a delta and restoring it, of long keys and of strings",
            f"{f.span('files', 'written*')} MB/s and {f.span('files', 'restored*')} MB/s of raw "
            "state per core, if the memory was in use before",
        ),
        (
            "reading state without a table, `ps.read_state`: values; lists and maps of ten",
            f"{f.span('files', 'read*')} MB/s; {f.span('element-files', 'read, * of 10 *')} MB/s "
            "of raw state per core",
        ),
        (
            "restoring tables with maps of ten, with lists of ten, with lists of a hundred",
            f"{f.span('element-files', 'restored, *maps of 10 *')} MB/s, "
            f"{f.span('element-files', 'restored, *lists of 10 *')} MB/s, "
            f"{f.value('element-files', 'restored, *lists of 100 *')} MB/s",
        ),
        (
            "`snapshot()` of 1 000 changed keys, of a thousand keys or of ten million",
            f"{f.span('snapshot-pause', 'snapshot() of *')} µs; "
            f"{f.value('snapshot-pause', 'snapshot(), per row *')} ns for each further changed key",
        ),
        (
            "an epoch of a store that changes "
            f"{f.size('state-size', 'grown_rows')} keys, while the state grows from "
            f"{grown(f, 'state-size')} keys",
            f"{f.span('state-size', '*', ratios=True)} the time of one that does not grow",
        ),
        ("size of a delta, against the keys and columns that changed", f.span(
            "delta-size", "*", ratios=True)),
        (
            "attaching a table that another process left, warm",
            f"{f.value('attach', 'attach, warm*')} µs",
        ),
        ("memory of a long key with two longs", memory(f)),
    ]  # fmt: skip


def memory(f: Figures) -> str:
    """Bytes of an entry."""
    rows = f.rows("memory", "long key*worst*")
    of_dict = re.search(r"\((\d+) bytes\)", rows[0].peer) if rows else None
    than = f", a dict of tuples {of_dict[1]}" if of_dict else ""
    return f"{f.value('memory', 'long key*worst*')} bytes at worst{than}"


def costs(f: Figures) -> Lines:
    """README's table: some of the guide's lines."""
    spark, process, files = on_spark(f), in_process(f), of_checkpoints(f)
    frames, question = in_frames(f)[:2], "spark-function"
    rows = [rows for _, rows in sizes_of(f, question, "value*: pystate", "timer, ")]
    sizes = listed([one.removesuffix(" rows a batch") for one in rows[:-1]] + rows[-1:])
    ported = f.x(question, "the same processor *")
    return [
        (f"on Spark: {spark[0][0]}", spark[0][1]),
        (
            f"on Spark: a function row by row with a value, a map and timers, {sizes}",
            f"{f.x(question, 'value*: transformWithState')} the same processor under "
            f"`transformWithState`; that processor itself, unchanged, in a job {ported}, "
            f"{f.value(question, 'the same processor *', times=1_000)} rows/s",
        ),
        *((f"on Spark: {what}", figure) for what, figure in frames),
        process[0],
        process[2],
        (
            "counting in one process, against Bytewax and Pathway; on Spark, against Flink SQL",
            f"{f.x('others', '*: Bytewax*', '*: Pathway*')}; "
            f"{f.x('flink', '*: Flink SQL, hashmap*', '*: Flink SQL, RocksDB*')} (heap, RocksDB)",
        ),
        files[5],
        files[7],
    ]


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
        ours = f.rows("nexmark", f"{name}, *: pystate*")
        title = ours[0].what.partition(", ")[2].rpartition(": ")[0] if ours else UNKNOWN
        peers = [
            f.x("nexmark", f"{name}, *: Spark, {store}*")
            if f.rows("nexmark", f"{name}, *: Spark, {store}*") or not ours
            else "refused by Spark"
            for store in ("RocksDB", "in memory")
        ]
        larger = ""
        if f.rows("nexmark-windows", f"{name}, *"):
            larger = f.x("nexmark-windows", f"{name}, *: Spark, RocksDB*")
            larger += f", {f.x('nexmark-windows', f'{name}, *: Spark, in memory*')}"
        lines.append((f"{name[1:]}, {title}", how, *peers, larger))
    heads = "query", "in pystate", "Spark with RocksDB", "with its state in memory"
    return table((*heads, "both, with batches five times as large"), lines)


def lines_of(make: Callable[[Figures], Lines]) -> Callable[[Figures], str]:
    """A table of two columns; a line without any figure only says so."""

    def made(figures: Figures) -> str:
        lines = [
            (what, figure if re.search(r"\d", figure) else UNKNOWN)
            for what, figure in make(figures)
        ]
        return table(("what", "figure"), lines)

    return made


TABLES: dict[str, Callable[[Figures], str]] = {
    "costs": lines_of(costs),
    "on-spark": lines_of(on_spark),
    "elsewhere": lines_of(elsewhere),
    "in-process": lines_of(in_process),
    "windows": lines_of(of_windows),
    "checkpoints": lines_of(of_checkpoints),
    "nexmark": nexmark,
}


def cited(text: str, answers: Mapping[str, Answer]) -> str:
    """A text with its tables written anew.

    Raises
    ------
    ValueError
        If a mark names no table.
    """
    figures = Figures(answers)

    def written(found: re.Match[str]) -> str:
        name = found[1]
        if name not in TABLES:
            raise ValueError(f"no such table: {name} (there are {', '.join(TABLES)})")
        return f"<!-- figures: {name} -->\n\n{TABLES[name](figures)}\n\n<!-- end of figures -->"

    return MARKED.sub(written, text)


def documents(root: Path, answers: Mapping[str, Answer]) -> dict[Path, str]:
    """The files that cite figures, and what they should say."""
    paths = [root / name for name in FILES]
    return {path: cited(path.read_text(encoding="utf-8"), answers) for path in paths}
