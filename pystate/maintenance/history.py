"""The epochs of a checkpoint, also those that are long retired.

Thread safety: functions without state; a history is immutable. The job may run meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pystate.base.arguments import integer, shown
from pystate.checkpoint.epoch_log import EpochRecord, read_records, written_per_byte
from pystate.checkpoint.job_file import SAVEPOINT_FILE
from pystate.checkpoint.manifest_log import survey
from pystate.errors import InvalidArgumentError
from pystate.maintenance.access import open_existing


@dataclass(frozen=True)
class CheckpointHistory:
    """What a checkpoint knows of its epochs.

    Attributes
    ----------
    location : str
        Its folder.
    records : tuple of EpochRecord
        The epochs that were asked for, ascending.
    missing : tuple of (int, int)
        The first and the last epoch of each gap between the oldest of these and the newest epoch of
        the checkpoint: a driver was killed before it had written their records, or these are
        damaged.
    problems : tuple of str
        Files of the history with damage, or of a later version, and what is wrong with each. Their
        other records are here.
    """

    location: str
    records: tuple[EpochRecord, ...]
    missing: tuple[tuple[int, int], ...]
    problems: tuple[str, ...]

    def written_per_byte(self, uid: str | None = None) -> float | None:
        """How many bytes deltas and merges wrote in these epochs, per byte of the deltas.

        Of one operator, or of all; None if nothing was written. Merges count where an epoch takes
        over what they made, so that a few epochs say little.
        """
        return written_per_byte(self.records, uid)


def history(
    location: str | os.PathLike[str],
    *,
    last: int | None = None,
    since: datetime | None = None,
) -> CheckpointHistory:
    """Return what a checkpoint knows of its epochs, also of those that are not retained any more.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job or store.
    last : int, optional
        Only so many of the newest epochs.
    since : datetime, optional
        Only epochs that were published then or later. It has a time zone.

    Returns
    -------
    CheckpointHistory

    Raises
    ------
    InvalidArgumentError
        Nothing there is a checkpoint, or it is a savepoint.

    Notes
    -----
    The last 10 000 epochs, or a few more, are kept, in a few files. Each epoch's record is written
    after the epoch, and not synced. So a driver that is killed loses at most the last record, and a
    host that loses its power some of the last ones. A savepoint has no history, and that of a job
    that begins with one begins there.
    """
    storage = open_existing(location, "history")
    if storage.exists(SAVEPOINT_FILE):
        raise InvalidArgumentError(
            f"{storage.uri} is a savepoint, which is one epoch: ask the checkpoint for its history"
        )
    if last is not None:
        integer(last, "history: last", least=1)
    since_ms = None
    given: Any = since
    if given is not None:
        if not isinstance(given, datetime) or given.tzinfo is None:
            raise InvalidArgumentError(
                f"history: since is a datetime with a time zone, not {shown(given)}: "
                "datetime(2026, 11, 20, tzinfo=timezone.utc)"
            )
        since_ms = int(given.timestamp() * 1000)
    recorded = read_records(storage)
    surveyed = survey(storage)
    newest = max(*surveyed.epochs, *surveyed.lost, surveyed.floor, 0)
    records = [record for record in recorded.records if record.epoch <= newest]
    if since_ms is not None:
        records = [record for record in records if record.published_ms >= since_ms]
    if last is not None:
        records = records[-last:]
    return CheckpointHistory(
        location=storage.uri,
        records=tuple(records),
        missing=_gaps([record.epoch for record in records], newest),
        problems=tuple(str(error) for _, error in recorded.problems),
    )


def _gaps(epochs: list[int], newest: int) -> tuple[tuple[int, int], ...]:
    after = [*epochs[1:], newest + 1]
    return tuple(
        (epoch + 1, following - 1)
        for epoch, following in zip(epochs, after, strict=False)
        if epoch + 1 < following
    )
