"""The command that shows what a checkpoint is: ``inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from pystate.cli.command import AsJson, Location
from pystate.cli.screen import amount, facts, number, print_json, say, size, table, when
from pystate.maintenance.description import (
    Description,
    OperatorDescription,
    OwnerDescription,
    describe,
)


def inspect(
    location: Location,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="Show each key-group range, too.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show what a checkpoint or savepoint is and holds.

    Its newest epoch is shown: operators, schemas, sizes, times, positions, and the owner.
    Reads only metadata, and may be used while the job runs.

    ROWS are those in all files: a key that several files hold counts in each. CHAIN is the
    largest number of deltas that a range is read from, beside its base.

    Example: pystate inspect /data/flights --ranges
    """
    description = describe(location)
    if json:
        print_json(description)
        return
    facts(f"{description.kind.capitalize()} of job {description.job!r}", _facts(description))
    if description.operators:
        say("")
        heads = ["operator", "ranges", "key", "files", "size", "rows", "chain", "states"]
        rows = [_row(operator) for operator in description.operators]
        marks = [when(operator.watermark_ms) for operator in description.operators]
        if any(marks):
            heads.append("watermark")
            rows = [(*row, mark) for row, mark in zip(rows, marks, strict=True)]
        table(heads, rows, ("ranges", "files", "size", "rows", "chain"))
    for operator in description.operators if ranges else ():
        say("")
        say(f"Ranges of {operator.uid!r}", "bold")
        table(
            ("range", "key groups", "base", "deltas", "size", "rows", "next timer"),
            _range_rows(operator),
            ("range", "deltas", "size", "rows"),
        )
    if description.queries:
        say("")
        table(
            ("stream's query", "last batch", "in epoch"),
            [(q.query_id, q.batch_id, q.epoch) for q in description.queries],
        )


def _facts(description: Description) -> dict[str, object]:
    epochs = description.epochs
    committed = {None: None, True: "committed", False: "not known to be committed"}
    return {
        "location": description.location,
        "epochs": _epochs(epochs),
        "published": when(description.published_ms),
        "processing time": when(description.processing_time_ms),
        "watermark": when(description.watermark_ms),
        "output": committed[description.output_committed],
        "key groups": f"{description.max_parallelism} (max_parallelism)",
        "state": f"{size(description.size_bytes)} in {amount(description.files, 'file')}",
        "written by": f"{description.library}, manifest format {description.format_version}",
        "created": when(description.created_ms),
        "owner": None if description.owner is None else _owner(description.owner),
    }


def _epochs(epochs: tuple[int, ...]) -> str:
    if not epochs:
        return "none yet"
    if len(epochs) == 1:
        return f"{epochs[0]}"
    return f"{epochs[-1]} is the newest; {epochs[0]} to {epochs[-1]} are retained"


def _owner(owner: OwnerDescription) -> str:
    running = {True: "running", False: "not running", None: "not known whether it runs"}
    who = f"process {owner.pid} on {owner.host}, since {when(owner.started_ms)}"
    return f"{who}: {running[owner.running]}"


def _row(operator: OperatorDescription) -> tuple[object, ...]:
    states = [f"{name} {ddl}" for name, ddl in operator.states.items()]
    return (
        operator.uid,
        operator.parallelism,
        ", ".join(f"{name} {ddl}" for name, ddl in operator.key.items()),
        operator.files,
        size(operator.size_bytes),
        number(operator.rows),
        operator.longest_chain,
        ", ".join([*states, *(["timers"] if operator.timers else [])]),
    )


def _range_rows(operator: OperatorDescription) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for state in operator.ranges:
        times = [state.next_event_timer_ms, state.next_processing_timer_ms]
        timer = min((time for time in times if time is not None), default=None)
        rows.append(
            (
                state.index,
                f"{state.first_key_group}-{state.last_key_group}",
                "yes" if state.has_base else "",
                state.deltas,
                size(state.size_bytes),
                number(state.rows),
                when(timer),
            )
        )
    return rows
