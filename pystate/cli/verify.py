"""The command that reads everything and reports what is wrong: ``verify``."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from pystate.cli.command import WRONG, AsJson, Jobs, Location
from pystate.cli.screen import amount, print_json, progress_bar, say, size, table
from pystate.maintenance.verification import Finding, Verification
from pystate.maintenance.verification import verify as verify_files

_MOST_FINDINGS = 50


def verify(
    location: Location,
    jobs: Jobs = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List each harmless file, too, and all findings.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Read every file, and compare it with its checksum.

    All retained epochs are checked, with everything that they refer to. The job may run meanwhile.
    The exit code is 1 if anything is wrong; files that nobody needs are no error.

    Example: pystate verify /data/flights --jobs 8
    """
    with progress_bar("reading", shown=not json) as progress:
        verification = verify_files(location, jobs=jobs, progress=progress)
    if json:
        print_json({**vars(verification), "ok": verification.ok})
    else:
        _show(verification, everything)
    if not verification.ok:
        raise typer.Exit(WRONG)


def _show(verification: Verification, everything: bool) -> None:
    shown = verification.findings if everything else verification.errors[:_MOST_FINDINGS]
    if shown:
        show_findings(shown)
        say("")
    hidden = len(verification.errors) - _MOST_FINDINGS
    if hidden > 0 and not everything:
        say(f"and {hidden} more: --all lists them")
    spare = [finding for finding in verification.findings if not finding.is_error]
    if spare and not everything:
        kinds = Counter(finding.kind for finding in spare)
        harmless = " and ".join(amount(n, kind) for kind, n in kinds.items())
        held = size(sum(finding.size_bytes for finding in spare))
        say(f"{harmless} ({held}), which do no harm: --all lists them")
    files = f"{amount(verification.files, 'file')}, {size(verification.size_bytes)}"
    checked = f"{amount(len(verification.epochs), 'epoch')}, {files}"
    if verification.ok:
        say(f"Nothing is wrong: {checked} checked.", "green")
        return
    say(f"{amount(len(verification.errors), 'finding')}: {checked} checked.", "bold red")
    if verification.kind == "savepoint":
        say("Copy the savepoint once more.")
        return
    bad = [epoch for epoch in verification.epochs if epoch not in verification.good_epochs]
    good = ", ".join(map(str, verification.good_epochs)) or "none"
    if bad:
        say(f"Epochs that cannot be read: {', '.join(map(str, bad))}; good ones: {good}.")
    say(f"`pystate repair {verification.location} --dry-run` says what can be done.")


def show_findings(findings: tuple[Finding, ...]) -> None:
    """Print findings as a table."""
    table(
        ("kind", "operator", "ranges", "key groups", "epochs", "what"),
        [
            (
                finding.kind,
                finding.uid,
                ", ".join(map(str, finding.ranges)),
                "-".join(map(str, finding.key_groups or ())),
                _span(finding.epochs),
                finding.message,
            )
            for finding in findings
        ],
    )


def _span(epochs: tuple[int, ...]) -> str:
    if len(epochs) > 2 and epochs[-1] - epochs[0] == len(epochs) - 1:
        return f"{epochs[0]}-{epochs[-1]}"
    return ", ".join(map(str, epochs))
