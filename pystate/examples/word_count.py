"""Count the words of a text, as a stream of its lines.

The smallest stateful job: one state, a number per word, and a function that sees whole batches. A
`ps.VectorizedFunction` gets a batch with the key of each row, hashed and looked up once. A
``ps.ReducingState`` of sums adds a column to those keys in the core, without a Python loop.

Without a file it reads pystate's own README. A word is a run of letters, of any alphabet, in lower
case. At the end the words are counted again in plain Python, and compared.
"""

from __future__ import annotations

import operator
import sys
import unicodedata
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import pystate as ps
from pystate.examples._console import Table, message
from pystate.examples._driver import Run, example, in_epochs, parser, positive, published, verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job


class WordCount(ps.VectorizedFunction):
    """Adds one to each word's count, and emits the counts so far."""

    count = ps.ReducingState("long", operator.add)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> pa.Table:
        """Count the words of a batch, in which each may occur many times."""
        self.count.add_all(keys, 1)
        counts = pa.table({"word": batch["word"], "count": self.count.values(keys)})
        return (
            counts.group_by("word").aggregate([("count", "max")]).rename_columns(["word", "count"])
        )


def pipeline(lines: DataFrame, job: Job) -> DataFrame:
    """From one epoch's lines to the counts of the words in them."""
    words = lines.selectExpr(r"explode(regexp_extract_all(lower(line), '\\p{L}+', 0)) AS word")
    return job.key_by(words, "word", uid="words").process(
        WordCount(), schema="word string, count long"
    )


def recount(text: str) -> Counter[str]:
    """Do the same in plain Python."""
    letters = (c if unicodedata.category(c).startswith("L") else " " for c in text.lower())
    return Counter("".join(letters).split())


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("word_count", __doc__, epochs=4)
    options.add_argument("path", nargs="?", help="a text in UTF-8 (default: pystate's README)")
    options.add_argument("--top", type=positive, default=10, metavar="N", help="words shown")
    return example(options.parse_args(arguments), "word-count", _run)


def _run(run: Run) -> int:
    path = run.options.path
    text = Path(path).read_text("utf-8", errors="replace") if path else readme()
    lines = [{"line": line} for line in text.splitlines()]
    epochs = in_epochs(lines, {"line": pa.string()}, run.options.epochs)
    message(f"{len(lines):,} lines of {path or 'the README'} in {len(epochs)} epochs")
    with run.session() as session:
        job, sink = run.job(), run.sink("counts")
        run.read(job, run.stream(session, epochs), pipeline, sink)
    wanted = recount(text)
    counts = {row["word"]: row["count"] for row in job.read_state("words").to_pylist()}
    newest: Counter[str] = Counter()
    for row in published(sink):
        newest[row["word"]] = max(newest[row["word"]], row["count"])
    if not verified(
        ("the state of", counts.items(), wanted.items()),
        ("the newest output of", newest.items(), wanted.items()),
    ):
        return 1
    table = Table(count=8, word=-1)
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[
        : run.options.top
    ]:
        table.add(count=f"{count:,}", word=word)
    message(
        f"verified: {wanted.total():,} words, {len(wanted):,} different ones, counted as in plain "
        "Python"
    )
    return 0


def readme() -> str:
    """Read pystate's README: beside the package in a clone, else from the installed metadata."""
    beside = Path(__file__).parents[2] / "README.md"
    if beside.exists():
        return beside.read_text("utf-8")
    return str(metadata.metadata("pystate-spark").json["description"])


if __name__ == "__main__":
    sys.exit(main())
