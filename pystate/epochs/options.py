"""When a job takes checkpoints, and what it does if one fails.

Thread safety: immutable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from pystate.base.arguments import choice, flag, integer
from pystate.types.durations import Duration, milliseconds

Mode = Literal["exactly_once", "at_least_once"]
OnCancel = Literal["keep", "delete"]


@dataclass(frozen=True)
class CheckpointOptions:
    """When a job takes checkpoints, and what it does if one fails.

    Parameters
    ----------
    interval : int, str or timedelta
        How often a streaming query takes a checkpoint: after so many micro-batches, or once so much
        time has passed (``"10 seconds"``, a timedelta). With 1 each batch is a checkpoint. Between
        two checkpoints nothing is written to the checkpoint, and a driver or an executor that is
        lost costs the batches since the last one, which are computed again. This takes sources that
        can be read again from an earlier position. A `run_epoch` is always a checkpoint.
    mode : {"exactly_once", "at_least_once"}
        With ``"exactly_once"`` output is published with its checkpoint. With ``"at_least_once"`` it
        is published at the end of each batch, and published again if the batch is computed again.
        State is exactly once in both.
    minimum_pause : str, timedelta or int
        The least time between the end of a checkpoint and the next one, in milliseconds if it is a
        number. A checkpoint that is due earlier waits for the next batch after the pause.
    timeout : str, timedelta or int
        How long it may take to write the state of a range. What takes longer has failed.
    tolerable_failures : int
        How many checkpoints in a row may fail, because their state could not be written: the disk
        is full, or too slow. The batches of such a checkpoint become a part of the next one, which
        is due after the next batch. One more failure fails the query.
    on_cancel : {"keep", "delete"}
        What ``query.stop()`` does with the checkpoint: with ``"delete"`` it is removed, with
        state, positions, and output that is still in it. A query that fails, or ends, keeps it.
    rewindable : bool
        Your word that all sources of the stream can be read again from an earlier position, for
        sources that pystate does not know. See `interval`.

    Examples
    --------
    >>> CheckpointOptions(interval="10 seconds", tolerable_failures=2).interval
    '10 seconds'
    """

    interval: int | str | timedelta = 1
    mode: Mode = "exactly_once"
    minimum_pause: Duration = 0
    timeout: Duration = "10 minutes"
    tolerable_failures: int = 0
    on_cancel: OnCancel = "keep"
    rewindable: bool = False
    every_batches: int | None = field(init=False, repr=False, compare=False)
    every_ms: int | None = field(init=False, repr=False, compare=False)
    pause_ms: int = field(init=False, repr=False, compare=False)
    timeout_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = "CheckpointOptions"
        batches = every_ms = None
        if isinstance(self.interval, (str, timedelta)):
            every_ms = milliseconds(self.interval, f"{owner}: interval", least=1)
        else:
            batches = integer(self.interval, f"{owner}: interval", least=1)
        choice(self.mode, f"{owner}: mode", ("exactly_once", "at_least_once"))
        choice(self.on_cancel, f"{owner}: on_cancel", ("keep", "delete"))
        integer(self.tolerable_failures, f"{owner}: tolerable_failures", least=0)
        flag(self.rewindable, f"{owner}: rewindable")
        for name, value in (
            ("every_batches", batches),
            ("every_ms", every_ms),
            ("pause_ms", milliseconds(self.minimum_pause, f"{owner}: minimum_pause")),
            ("timeout_ms", milliseconds(self.timeout, f"{owner}: timeout", least=1)),
        ):
            object.__setattr__(self, name, value)

    @property
    def holds(self) -> bool:
        """Whether a batch may end without a checkpoint."""
        return self.every_batches != 1 or self.pause_ms > 0 or self.tolerable_failures > 0
