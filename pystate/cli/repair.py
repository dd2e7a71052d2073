"""The command that sets a damaged checkpoint back: ``repair``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from pystate.cli.command import WRONG, AsJson, Checkpoint, Jobs, OwnerIsGone
from pystate.cli.screen import number, print_json, progress_bar, say, table, when
from pystate.cli.verify import show_findings
from pystate.maintenance.repair import repair as repair_checkpoint
from pystate.maintenance.repair_plan import RepairPlan


def repair(
    checkpoint: Checkpoint,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    job: Annotated[
        str | None, typer.Option(help="The job's name, to make a lost job.json anew.")
    ] = None,
    owner_is_gone: OwnerIsGone = False,
    jobs: Jobs = None,
    json: AsJson = False,
) -> None:
    """Set a damaged checkpoint back to its newest good epoch.

    Reads everything first, says exactly what is lost, and asks. The stream's position goes back
    with the state. What the checkpoint loses is kept in it, in repaired-<time>/. A repair that was
    interrupted can be run again. Refuses while the job runs.

    Example: pystate repair /data/flights --dry-run
    """

    def confirm(plan: RepairPlan) -> bool:
        if not json:
            _show(plan)
        return yes or typer.confirm("Repair the checkpoint?", err=True)

    with progress_bar("reading", shown=not json) as progress:
        plan = repair_checkpoint(
            checkpoint,
            dry_run=dry_run,
            confirm=confirm,
            job=job,
            owner_is_gone=owner_is_gone,
            jobs=jobs,
            progress=progress,
        )
    if json:
        print_json({**vars(plan), "needed": plan.is_needed})
    elif dry_run or not plan.is_needed:
        _show(plan)
    elif plan.folder is None:
        say("Nothing was changed.")
    else:
        say(f"Repaired. What was set aside is in {plan.location}/{plan.folder}.", "green")
    if plan.remaining or (plan.is_needed and plan.folder is None):
        raise typer.Exit(WRONG)


def _show(plan: RepairPlan) -> None:
    if not plan.findings:
        say("Nothing is wrong: there is nothing to repair.", "green")
        return
    show_findings(plan.findings)
    say("")
    if plan.remaining:
        say("This cannot be repaired; bring the files back from a copy:", "bold red")
        for finding in plan.remaining:
            say(f"  {finding.path}: {finding.message}")
    if not plan.is_needed:
        return
    if plan.lost:
        _show_lost(plan)
    else:
        say(f"No epoch of the job is lost: epoch {plan.good_epoch} stays the newest.", "bold")
    if plan.remade is not None:
        say(
            f"The manifest of epoch {plan.remade} is made anew, from the state files and the "
            "history."
        )
    for what in plan.unknown:
        say(f"Not known any more: {what}.", "yellow")
    if plan.rebuilt:
        say(
            f"Of {_epochs(plan.rebuilt)} the damaged files are superfluous: others hold the same "
            "state."
        )
    if plan.unreadable:
        say(
            f"{_epochs(plan.unreadable).capitalize()} can no longer be read as of that time; the "
            "job's state loses nothing by that."
        )
    if plan.marks:
        say(f"Made anew, or not needed: {', '.join(plan.marks)}.")


def _show_lost(plan: RepairPlan) -> None:
    say(f"The state goes back from epoch {plan.newest_epoch} to {plan.good_epoch}. Lost:", "bold")
    table(
        ("epoch", "published", "rows changed", "batch", "run"),
        [
            (
                lost.epoch,
                when(lost.published_ms) or "its manifest cannot be read",
                None if lost.rows_changed is None else number(lost.rows_changed),
                lost.batch_id,
                lost.run_key,
            )
            for lost in plan.lost
        ],
        ("epoch", "rows changed", "batch"),
    )
    if plan.stream_batches:
        batches = ", ".join(map(str, plan.stream_batches))
        say(f"The stream goes back as well, and computes again: batch {batches}.")
    if any(lost.batch_id is None for lost in plan.lost):
        say("Runs among the lost epochs (run_epoch) are not done any more: run them again.")
    for output in plan.outputs:
        what = (
            "is set aside, and written again"
            if output.set_aside
            else "stays; its rows are written again, and readers may see them twice"
        )
        say(f"Output of epoch {output.epoch} in {output.where} {what}.")


def _epochs(epochs: Sequence[int]) -> str:
    if len(epochs) == 1:
        return f"epoch {epochs[0]}"
    return f"epochs {', '.join(map(str, epochs))}"
