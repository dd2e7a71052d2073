"""The options of a `Job`, checked and in one form.

Thread safety: immutable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pystate.base.arguments import checked_uid, flag, folder_path, integer, shown, text
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.auto_rescale import AutoRescale
from pystate.epochs.listeners import CheckpointListener
from pystate.epochs.options import CheckpointOptions
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.invalid_rows import OnInvalid, checked_on_invalid
from pystate.spark.base.arguments import checked_count, checked_home
from pystate.tables.options import TableOptions
from pystate.types.durations import Duration, milliseconds


@dataclass(frozen=True)
class RestoreOptions:
    """With which savepoint a job begins, and how."""

    origin: CheckpointStorage
    claim: bool
    uid_map: Mapping[str, str]


@dataclass(frozen=True)
class JobOptions:
    """The options of a `Job`, whose documentation says what they mean."""

    name: str
    max_parallelism: int | None
    parallelism: int | None
    """Parallelism at the start; None for Spark's default."""
    auto_rescale: AutoRescale | None
    retained: int
    allow_unclaimed_state: bool
    max_evaluations: int
    max_clock_step_ms: int
    allow_time_back: bool
    on_invalid: OnInvalid
    epoch_timeout_ms: int | None
    tables: TableOptions
    restore: RestoreOptions | None
    listeners: tuple[CheckpointListener, ...]
    checkpoints: CheckpointOptions


def checked_options(
    name: str,
    *,
    max_parallelism: int | None,
    parallelism: int | AutoRescale | None,
    retained: int,
    allow_unclaimed_state: bool,
    memory_limit_bytes: int,
    shared_tables: bool,
    table_home: str | os.PathLike[str],
    max_evaluations: int,
    max_clock_step: Duration,
    allow_time_back: bool,
    on_invalid: OnInvalid,
    epoch_timeout: Duration | None,
    allow_pickle: bool,
    restore: str | os.PathLike[str] | None,
    claim: bool,
    uid_map: Mapping[str, str] | None,
    listeners: Sequence[CheckpointListener],
    checkpoints: CheckpointOptions,
) -> JobOptions:
    """Check what a user gave to `Job`."""
    text(name, "Job: name", ": Job('flights', checkpoint='/data/flights')")
    owner = f"job {name!r}"
    policy, ranges = None, parallelism
    if isinstance(ranges, AutoRescale):
        policy, ranges = ranges, ranges.min
    timeout_ms = None
    if epoch_timeout is not None:
        timeout_ms = milliseconds(epoch_timeout, f"{owner}: epoch_timeout", least=1)
    return JobOptions(
        name=name,
        max_parallelism=checked_count(max_parallelism, f"{owner}: max_parallelism"),
        parallelism=checked_count(ranges, f"{owner}: parallelism"),
        auto_rescale=policy,
        retained=integer(retained, f"{owner}: retained", least=1),
        allow_unclaimed_state=flag(allow_unclaimed_state, f"{owner}: allow_unclaimed_state"),
        max_evaluations=integer(max_evaluations, f"{owner}: max_evaluations", least=1),
        max_clock_step_ms=milliseconds(max_clock_step, f"{owner}: max_clock_step", least=1),
        allow_time_back=flag(allow_time_back, f"{owner}: allow_time_back"),
        on_invalid=checked_on_invalid(on_invalid, owner),
        epoch_timeout_ms=timeout_ms,
        tables=TableOptions(
            checked_home(table_home, flag(shared_tables, f"{owner}: shared_tables"), owner),
            integer(memory_limit_bytes, f"{owner}: memory_limit_bytes", least=0),
            allow_pickle=flag(allow_pickle, f"{owner}: allow_pickle"),
        ),
        restore=_checked_restore(restore, claim, uid_map, owner),
        listeners=_checked_listeners(listeners, owner),
        checkpoints=_checked_checkpoints(checkpoints, owner),
    )


def _checked_checkpoints(checkpoints: object, owner: str) -> CheckpointOptions:
    if not isinstance(checkpoints, CheckpointOptions):
        raise WrongTypeError(
            f"{owner}: checkpoints is a pystate.CheckpointOptions(interval='10 seconds', ...), not "
            f"{shown(checkpoints)}"
        )
    return checkpoints


def _checked_listeners(listeners: object, owner: str) -> tuple[CheckpointListener, ...]:
    given = listeners if isinstance(listeners, (list, tuple)) else [listeners]
    for each in given:
        if not isinstance(each, CheckpointListener):
            raise WrongTypeError(
                f"{owner}: listeners is a list of objects of classes that derive from "
                f"pystate.CheckpointListener, not {shown(each)}"
            )
    return tuple(given)


def _checked_restore(
    restore: object, claim: object, uid_map: object, owner: str
) -> RestoreOptions | None:
    claims = flag(claim, f"{owner}: claim")
    if restore is None:
        if claims or uid_map is not None:
            raise InvalidArgumentError(
                f"{owner}: claim and uid_map say how to begin with a savepoint: pass its folder as "
                "restore"
            )
        return None
    if restore == "latest":
        raise InvalidArgumentError(
            f'{owner}: restore is the folder of a savepoint; restore="latest", for a query that is '
            "new to the checkpoint, belongs to start"
        )
    origin = open_storage(folder_path(restore, f"{owner}: restore"))
    names = {} if uid_map is None else uid_map
    if not isinstance(names, Mapping):
        raise WrongTypeError(
            f"{owner}: uid_map is a mapping from an operator's uid in the savepoint to its uid in "
            f"the job, not {shown(uid_map)}"
        )
    checked = {checked_uid(old): checked_uid(new) for old, new in names.items()}
    return RestoreOptions(origin, claims, checked)
