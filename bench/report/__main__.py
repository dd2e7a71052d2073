"""Writes the report, its plots, and the tables of README and the guide, from what was measured.

``python -m bench.report``; with ``--check`` nothing is written, and what differs is named. It
measures nothing: ``make bench-report`` does so before.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import results
from bench.report import cited, text
from bench.report.sections import SECTIONS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    parser.add_argument("--runs", type=Path, default=HERE / "runs.jsonl", help="the answers' file")
    parser.add_argument("--into", type=Path, help="a folder for the report alone")
    given = parser.parse_args(arguments)
    answers = results.read(given.runs)
    if not answers:
        parser.error(f"{given.runs} has no answers: run `make bench-report`")
    folder = given.into or HERE.parent
    wanted = {folder / "REPORT.md": text.report(answers)}
    if given.into is None:
        wanted |= cited.documents(ROOT, answers)
    if given.check:
        return check(wanted, folder)
    # Only drawing needs matplotlib.
    from bench.report import plots

    made = plots.draw(answers, folder / "report" / "plots")
    for stale in set((folder / "report" / "plots").glob("*.svg")) - set(made):
        stale.unlink()
    for path, content in wanted.items():
        path.write_text(content, encoding="utf-8")
    print(folder / "REPORT.md")
    return 0


def check(wanted: dict[Path, str], folder: Path) -> int:
    """Name the files that are not what the answers give."""
    wrong = [
        str(path)
        for path, content in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != content
    ]
    pictures = {f"{section.plot.name}.svg" for section in SECTIONS if section.plot}
    shown = {name for name in pictures if f"/{name})" in wanted[folder / "REPORT.md"]}
    there = {path.name for path in (folder / "report" / "plots").glob("*.svg")}
    wrong += [f"report/plots/{name}" for name in sorted(shown ^ there)]
    if wrong:
        print(f"not what the answers give: {', '.join(wrong)}; run `python -m bench.report`")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
