"""The command that shows the epochs of the past: ``history``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

import typer

from pystate.checkpoint.epoch_log import EpochRecord
from pystate.cli.command import AsJson, Checkpoint
from pystate.cli.screen import number, print_json, say, size, table, took, when
from pystate.errors import InvalidArgumentError
from pystate.maintenance.history import CheckpointHistory
from pystate.maintenance.history import history as recall
from pystate.types.durations import milliseconds

_LAST = 20
_COLUMNS = (
    "epoch",
    "published (UTC)",
    "input",
    "rows in",
    "rows out",
    "late",
    "invalid",
    "changed",
    "keys",
    "state",
    "written",
    "merged",
    "watermark",
    "took",
    "notes",
)
#: What is left out, in this order, where the screen is too narrow.
_SPARE = (
    "watermark",
    "state",
    "merged",
    "late",
    "rows out",
    "keys",
    "written",
    "input",
    "invalid",
    "changed",
)
_TIMES = ("attach", "process", "seal", "write")
_PARTS = ("epoch", "published (UTC)", *_TIMES, "publish", "commit", "took")
_OPERATORS = (
    "epoch",
    "operator",
    "ranges",
    "rows in",
    "rows out",
    "late",
    "invalid",
    "changed",
    "keys",
    "state",
    "written",
    "watermark",
    *_TIMES,
)


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
    """Show the epochs of a checkpoint, also those that are no longer retained.

    About 10 000 of them are remembered. Times are UTC. May be used while the job runs.

    Example: pystate history /data/flights --since "2 hours" --times
    """
    if everything and last is not None:
        raise InvalidArgumentError("history: --all and --last contradict each other")
    if last is None and since is None and not everything:
        last = _LAST
    found = recall(checkpoint, last=last, since=None if since is None else _moment(since))
    if json:
        print_json(found)
        return
    if not found.records:
        say("No epoch is remembered." if since is None else "No epoch was published since then.")
    elif operators:
        _table(_OPERATORS, [row for record in found.records for row in _operators(record)])
    elif times:
        _table(_PARTS, [_parts(record) for record in found.records])
    else:
        _table(_COLUMNS, _rows(found.records))
    _tell_problems(found)


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


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, without columns in which nothing stands."""
    kept = [i for i in range(len(columns)) if any(row[i] not in (None, "") for row in rows)]
    table(
        [columns[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        [name for name in columns if name not in ("published (UTC)", "input", "notes", "operator")],
        _SPARE,
    )


def _rows(records: Sequence[EpochRecord]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    before: EpochRecord | None = None
    for record in records:
        rows_in, rows_out, late = _flow(record)
        rows.append(
            (
                record.epoch,
                _time(record.published_ms),
                _input(record),
                _some(rows_in),
                _some(rows_out),
                None if late is None else number(late),
                _some(record.total("invalid_rows")),
                number(record.total("rows_changed")),
                number(record.total("keys")),
                size(record.total("state_bytes")),
                size(record.total("checkpoint_bytes")),
                size(record.merged_bytes) if record.merged_bytes else None,
                _time(record.watermark_ms),
                took(record.total_ms),
                _notes(record, before),
            )
        )
        before = record
    return rows


def _flow(record: EpochRecord) -> tuple[int, int, int | None]:
    """The rows that came into the pipeline, those that were written, and the late ones."""
    if record.rows_in is not None and record.rows_out is not None:
        return record.rows_in, record.rows_out, record.late_rows
    # An old record knows only what the operators have read and emitted.
    late = [each.late_rows for each in record.operators if each.late_rows is not None]
    return record.total("rows_in"), record.total("rows_out"), sum(late) if late else None


def _parts(record: EpochRecord) -> tuple[object, ...]:
    longest = [took(record.longest(f"{name}_ms")) for name in _TIMES]
    of_driver = [took(record.publish_ms), took(record.commit_ms), took(record.total_ms)]
    return (record.epoch, _time(record.published_ms), *longest, *of_driver)


def _operators(record: EpochRecord) -> list[tuple[object, ...]]:
    return [
        (
            record.epoch,
            operator.uid,
            operator.ranges,
            _some(operator.rows_in),
            _some(operator.rows_out),
            None if operator.late_rows is None else number(operator.late_rows),
            _some(operator.invalid_rows),
            number(operator.rows_changed),
            number(operator.keys),
            size(operator.state_bytes),
            size(operator.checkpoint_bytes),
            _time(operator.watermark_ms),
            *(took(getattr(operator, f"{name}_ms")) for name in _TIMES),
        )
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


def _tell_problems(found: CheckpointHistory) -> None:
    if found.missing:
        spans = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found.missing)
        say(f"Not remembered: {spans}.")
    for problem in found.problems:
        say(f"Skipped: {problem}.", "yellow")


def _time(time_ms: int | None) -> str | None:
    text = when(time_ms)
    return None if text is None else text.removesuffix(" UTC")


def _some(count: int) -> str | None:
    return number(count) if count else None
