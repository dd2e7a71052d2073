"""The command that shows the epochs of the past: ``history``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Annotated

import typer

from pystate.checkpoint.epoch_log import EpochRecord, written_per_byte
from pystate.cli.command import AsJson, Checkpoint
from pystate.cli.screen import number, print_json, say, size, table, took, when
from pystate.errors import InvalidArgumentError
from pystate.maintenance.history import CheckpointHistory
from pystate.maintenance.history import history as read_history
from pystate.types.durations import milliseconds

#: The cells of a row, by their columns.
_Row = dict[str, object]
_LAST = 20
#: Over so many epochs it is added up what merges write; one epoch says nothing of it.
_LATELY = 64
#: What is left out, in this order, where the screen is too narrow.
_SPARE = (
    "watermark",
    "left",
    "in memory",
    "files/look-up",
    "state",
    "written/byte",
    "files",
    "merged",
    "late",
    "rows out",
    "keys",
    "written",
    "input",
    "invalid",
    "changed",
)
#: Where rows went through, 0 is said, too; a store knows of no rows.
_FLOW = ("rows in", "rows out")
#: What the time of an operator is spent on.
_TIMES = ("attach", "process", "seal", "write")


def history(
    checkpoint: Checkpoint,
    last: Annotated[
        int | None, typer.Option(min=1, help=f"Show so many epochs; {_LAST} if nothing is said.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Show what was published since then: '2 hours', or 2026-11-20T08:00."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all epochs.")] = False,
    times: Annotated[
        bool, typer.Option("--times", help="Show what the time of each epoch was spent on.")
    ] = False,
    operators: Annotated[
        bool, typer.Option("--operators", help="Show each operator of each epoch.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the epochs of a checkpoint, retained or not.

    About 10 000 of them are remembered. Times are UTC. May be used while the job runs.

    Example: pystate history /data/flights --since "2 hours" --times
    """
    if everything and last is not None:
        raise InvalidArgumentError("history: --all and --last contradict each other")
    if last is None and since is None and not everything:
        last = _LAST
    recorded = read_history(checkpoint, last=last, since=None if since is None else _moment(since))
    if json:
        print_json(recorded)
        return
    if not recorded.records:
        say("No epoch is remembered." if since is None else "No epoch was published since then.")
    elif operators:
        records = recorded.records
        late = [records[max(0, at - _LATELY) : at] for at in range(1, len(records) + 1)]
        _table([row for some in late for row in _operators(some)])
    elif times:
        _table([_parts(record) for record in recorded.records])
    else:
        before = [None, *recorded.records]
        _table([_row(*pair) for pair in zip(recorded.records, before, strict=False)])
    _print_problems(recorded)


def _moment(text: str) -> datetime:
    """The time that a user has given: a length of time before now, or a date."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        try:
            ago = timedelta(milliseconds=milliseconds(text, "history: --since"))
            return datetime.now(timezone.utc) - ago
        except (InvalidArgumentError, OverflowError):
            raise InvalidArgumentError(
                f"history: --since is a length of time, such as '2 hours', or a time, such as "
                f"2026-11-20 or 2026-11-20T08:00, in UTC, not {text!r}"
            ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def _table(rows: Sequence[_Row]) -> None:
    """Print a table of rows that have the same columns, without those in which nothing stands."""
    if any(row.get(name) for row in rows for name in _FLOW):
        rows = [{**row, **{name: row[name] or number(0) for name in _FLOW}} for row in rows]
    names = list(rows[0]) if rows else []
    kept = [name for name in names if any(row[name] not in (None, "") for row in rows)]
    texts = ("published (UTC)", "input", "notes", "operator")
    numbers = [name for name in kept if name not in texts]
    table(kept, [[row[name] for name in kept] for row in rows], numbers, _SPARE)


def _row(record: EpochRecord, before: EpochRecord | None) -> _Row:
    rows_in, rows_out, late = _flow(record)
    return {
        "epoch": record.epoch,
        "published (UTC)": _time(record.published_ms),
        "input": _input(record),
        "rows in": _some(rows_in),
        "rows out": _some(rows_out),
        "late": None if late is None else number(late),
        "invalid": _some(record.total("invalid_rows")),
        "changed": number(record.total("rows_changed")),
        "keys": number(record.total("keys")),
        "state": size(record.total("state_bytes")),
        "written": size(record.total("checkpoint_bytes")),
        "merged": size(record.merged_bytes) if record.merged_bytes else None,
        "watermark": _time(record.watermark_ms),
        "took": took(record.total_ms),
        "notes": _notes(record, before),
    }


def _flow(record: EpochRecord) -> tuple[int, int, int | None]:
    """The rows that came into the pipeline, those that were written, and the late ones."""
    if record.rows_in is not None and record.rows_out is not None:
        return record.rows_in, record.rows_out, record.late_rows
    # An old record knows only what the operators have read and emitted.
    late = [each.late_rows for each in record.operators if each.late_rows is not None]
    return record.total("rows_in"), record.total("rows_out"), sum(late) if late else None


def _parts(record: EpochRecord) -> _Row:
    return {
        "epoch": record.epoch,
        "published (UTC)": _time(record.published_ms),
        **{name: took(record.longest(f"{name}_ms")) for name in _TIMES},
        "publish": took(record.publish_ms),
        "commit": took(record.commit_ms),
        "took": took(record.total_ms),
    }


def _operators(late: Sequence[EpochRecord]) -> list[_Row]:
    """The operators of the last one of some epochs that follow each other."""
    record = late[-1]
    return [
        {
            "epoch": record.epoch,
            "operator": operator.uid,
            "ranges": operator.ranges,
            "rows in": _some(operator.rows_in),
            "rows out": _some(operator.rows_out),
            "late": None if operator.late_rows is None else number(operator.late_rows),
            "invalid": _some(operator.invalid_rows),
            "changed": number(operator.rows_changed),
            "keys": number(operator.keys),
            "state": size(operator.state_bytes),
            "written": size(operator.checkpoint_bytes),
            "merged": size(operator.merged_bytes) if operator.merged_bytes else None,
            "written/byte": _ratio(written_per_byte(late, operator.uid)),
            "files": _some(operator.most_files),
            "in memory": _some(operator.rows_in_memory),
            "hits": None if operator.hit_rate is None else f"{operator.hit_rate:.0%}",
            "files/look-up": _ratio(operator.files_per_lookup),
            "read": size(operator.read_bytes) if operator.read_bytes else None,
            "left": _some(operator.rows_left),
            "watermark": _time(operator.watermark_ms),
            **{name: took(getattr(operator, f"{name}_ms")) for name in _TIMES},
        }
        for operator in record.operators
    ]


def _input(record: EpochRecord) -> str | None:
    if record.batch_id is not None:
        first = record.batch_id - record.batches + 1
        if record.batches > 1 and first >= 0:
            return f"batches {first}-{record.batch_id}"
        return f"batch {record.batch_id}"
    if record.run_key is not None:
        return f"run {record.run_key!r}"
    return None if record.term == 0 else "run"


def _notes(record: EpochRecord, before: EpochRecord | None) -> str:
    """What was out of the ordinary."""
    notes = []
    if record.evaluations > record.batches:
        repeated = record.evaluations - record.batches
        notes.append(f"computed again {repeated} time{'s' * (repeated > 1)}")
    restored, copied = record.total("rows_restored"), record.total("rows_copied")
    if restored:
        notes.append(f"{number(restored)} rows restored")
    if copied:
        notes.append(f"{number(copied)} rows copied")
    if before is not None:
        if record.term != before.term:
            notes.append(f"another driver, on {record.host}")
        ranges = {operator.uid: operator.ranges for operator in before.operators}
        notes += [
            f"{operator.uid!r} from {ranges[operator.uid]} to {operator.ranges} ranges"
            for operator in record.operators
            if ranges.get(operator.uid, operator.ranges) != operator.ranges
        ]
    return "; ".join(notes)


def _print_problems(recorded: CheckpointHistory) -> None:
    if recorded.missing:
        spans = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in recorded.missing)
        say(f"Not remembered: {spans}.")
    for problem in recorded.problems:
        say(f"Skipped: {problem}.", "yellow")


def _time(time_ms: int | None) -> str | None:
    text = when(time_ms)
    return None if text is None else text.removesuffix(" UTC")


def _ratio(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.1f}"


def _some(count: int) -> str | None:
    return number(count) if count else None
