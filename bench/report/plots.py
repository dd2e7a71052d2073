"""The report's plots, as SVG that is the same for the same rows."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.measure import Spread, number
from bench.report.sections import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.measure import Row
    from bench.report.sections import Plot
    from bench.results import Answer

OURS, THEIRS = "#1f6fb4", "#9aa5b1"
COLOURS = (OURS, "#6fb1e0", "#d1495b", "#edae49", "#66a182", "#7d5ba6", "#555555")
STYLE: dict[str, Any] = {
    "svg.hashsalt": "pystate",  # identifiers that do not differ from run to run
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
}


def draw(answers: Mapping[str, Answer], folder: Path) -> list[Path]:
    """Draw all plots whose questions have answers; returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for plot in (section.plot for section in SECTIONS if section.plot):
        given = [answers[question].rows for question in plot.asked if question in answers]
        rows = [row for rows in given for row in rows if fnmatchcase(row.what, plot.only)]
        if rows:
            made.append(folder / f"{plot.name}.svg")
            with mpl.rc_context(STYLE):
                figure = (curves if any(row.series for row in rows) else bars)(plot, rows)
                figure.savefig(made[-1], format="svg", metadata={"Date": None}, bbox_inches="tight")
    return made


def ends(values: Sequence[Spread]) -> list[list[float]]:
    """How far the smallest and largest rounds are from the medians."""
    return [[one.median - one.low for one in values], [one.high - one.median for one in values]]


def curves(plot: Plot, rows: Sequence[Row]) -> Figure:
    """A curve for each series, with the smallest and largest round."""
    figure = Figure(figsize=(6.4, 3.6))
    axes = figure.subplots()
    series: dict[str, list[tuple[float, Spread]]] = {}
    for row in rows:
        if row.series and row.size is not None:
            series.setdefault(row.series, []).append((row.size, row.figure))
    for i, (name, points) in enumerate(series.items()):
        axes.errorbar(
            [size for size, _ in points],
            [point.median for _, point in points],
            yerr=ends([point for _, point in points]),
            marker="o",
            markersize=4,
            capsize=2,
            color=COLOURS[i % len(COLOURS)],
            label=name,
        )
    axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.set_title(plot.title, loc="left")
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def bars(plot: Plot, rows: Sequence[Row]) -> Figure:
    """A bar for each row, pystate's in its colour; a row is named by what follows its last colon.

    A ratio is pystate's, and named by what is before the colon.
    """
    figure = Figure(figsize=(6.4, 0.5 + 0.32 * len(rows)))
    axes = figure.subplots()
    names = [row.what.rpartition(": ")[0 if plot.ratios else 2] for row in rows]
    values = [row.ratio or Spread(1.0, 1.0, 1.0) if plot.ratios else row.figure for row in rows]
    ours = [plot.ratios or name.startswith("pystate") for name in names]
    axes.barh(
        names,
        [one.median for one in values],
        xerr=ends(values),
        color=[OURS if own else THEIRS for own in ours],
        ecolor="#444444",
        capsize=2,
        height=0.7,
    )
    most = max(one.high for one in values)
    for i, one in enumerate(values):
        axes.text(one.high + most * 0.02, i, number(one.median), va="center", fontsize=8)
    if plot.ratios:
        axes.axvline(1.0, color="#444444", linewidth=1)
    axes.set_xlim(0, most * 1.15)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(plot.x)
    axes.set_title(plot.title, loc="left")
    return figure
