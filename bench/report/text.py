"""The report's Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import GOALS, measured, met, spread
from bench.report.sections import OPTIONAL, PEERS, SECTIONS, SHORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.measure import Row
    from bench.report.sections import Section
    from bench.results import Answer

    Answers = Mapping[str, Answer]

BUSY = 0.15
"""The share of all cores in others' use above which figures are said to be doubtful."""
READ = "random read before, after"
BEGINNING = """# Report

`make bench-report` writes this file, its plots and the figures in README and the guide from the
answers in `bench/report/runs.jsonl`; nothing here is written by hand. A figure is the median of its
rounds, with the smallest and the largest in brackets. A ratio is that of two works which ran by
turns in one process or session, round by round: above 1 the first is faster. Goals are those that
the project has set itself, whether they are reached or not.

A table of many keys is as fast as memory is, and that of a shared machine was three times as slow
on one day as on another: the conditions say how long a random read took, with many under way."""


def report(answers: Answers) -> str:
    """All of it."""
    parts = [BEGINNING, conditions(answers), shortcomings(answers)]
    parts += [section_text(section, answers) for section in SECTIONS]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell or " " for cell in row) + " |" for row in rows)


def asked() -> list[str]:
    """All questions, in the report's order."""
    return [question for section in SECTIONS for question in section.questions]


def conditions(answers: Answers) -> str:
    """Where, when and with what it was measured."""
    machines: dict[str, list[str]] = {}
    for question in asked():
        if (answer := answers.get(question)) and not answer.error:
            about = answer.machine
            versions = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
            text = (
                f"{about['cpu']}, of which {about['cores']} were used, {about['memory_gib']} GiB, "
                f"{about['system']}; {versions}"
            )
            machines.setdefault(text, []).append(question)
    lines = ["## Conditions", ""]
    for text, questions in machines.items():
        which = "" if len(machines) == 1 else f" ({', '.join(questions)})"
        lines.append(f"- {text}{which}")
    rows = [
        (
            f"`{question}`",
            answer.time.replace("+00:00", "Z"),
            answer.commit,
            answer.scale,
            f"{answer.seconds:.0f} s",
            f"{answer.busy[0]:.0%}, {answer.busy[1]:.0%}",
            "{:.0f}, {:.0f} ns".format(*answer.read_ns) if all(answer.read_ns) else "",
            "in doubt: the machine was in use" if max(answer.busy) > BUSY else "",
        )
        for question in asked()
        if (answer := answers.get(question)) and not answer.error
    ]
    head = ("question", "when", "commit", "scale", "took", "cores busy before, after", READ, "")
    lines += ["", table(head, rows)]
    if absent := [f"- {text}" for question in asked() if (text := missing(question, answers))]:
        lines += ["", "Not measured:", "", *absent]
    return "\n".join(lines)


def missing(question: str, answers: Answers) -> str:
    """What there is no answer to, and how to get one; empty if nothing is missing."""
    answer = answers.get(question)
    if answer is None:
        return f"`{question}`: nobody has asked yet; `make bench-report` does"
    if answer.error:
        return f"`{question}`: {answer.error}"
    named = [f"{row.series} {row.what}" for row in answer.rows]
    names = [each for each in OPTIONAL.get(question, ()) if not any(each in it for it in named)]
    return f"`{question}`: {', '.join(names)}; {PEERS} installs it" if names else ""


def goal_of(row: Row) -> str:
    """The goal with its verdict."""
    verdict = {True: ", reached", False: ", **missed**", None: ""}[met(row)]
    return row.expected + verdict


def shortcomings(answers: Answers) -> str:
    """How many goals were reached, and those that were not, with their reasons."""
    rows = [
        (question, row)
        for question in asked()
        if (answer := answers.get(question)) and not answer.error
        for row in answer.rows
        if met(row) is not None
    ]
    short = [(question, row) for question, row in rows if not met(row)]
    text = f"## Goals\n\n{len(rows) - len(short)} of {len(rows)} are reached."
    if not short:
        return text
    lines = []
    for question, row in short:
        found = spread(row.ratio, "x") if "x" in row.expected else measured(row)
        lines.append((GOALS.get(question, ""), row.what, row.expected, found))
    text += " These are not:\n\n" + table(("goal", "what", "goal", "measured"), lines)
    whys = {question: SHORT.get(question, "") for question, _ in short}
    text += "\n\nWhat limits them:\n\n"
    return text + "\n".join(f"- `{question}`: {why}" for question, why in whys.items() if why)


def section_text(section: Section, answers: Answers) -> str:
    """A section: its plot, and a table for each question."""
    parts = [f"## {section.title}", section.text]
    plot = section.plot
    if plot and any(question in answers and answers[question].rows for question in plot.asked):
        parts.append(f"![{plot.title}](report/plots/{plot.name}.svg)")
    for question in section.questions:
        if text := missing(question, answers):
            parts.append(f"Not measured: {text}.")
        answer = answers.get(question)
        if answer is not None and answer.rows:
            lines = [
                (row.what, measured(row), spread(row.ratio, "x"), row.peer, goal_of(row))
                for row in answer.rows
            ]
            name = f"`{question}`" + (f", {GOALS[question]}" if question in GOALS else "")
            parts.append(table((name, "measured", "ratio", "of", "goal"), lines))
    return "\n\n".join(parts)
