"""The options of a `Job`, checked and in one form.

Thread safety: immutable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from pystate.base.arguments import checked_uid, flag, folder_path, integer, shown, text
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.auto_rescale import AutoRescale
from pystate.epochs.coordinator import CoordinatorOptions
from pystate.epochs.interval import CheckpointOptions
from pystate.epochs.listeners import CheckpointListener
from pystate.epochs.merge_policy import DiskMergePolicy, MergePolicy
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.invalid_rows import OnInvalid, checked_on_invalid
from pystate.spark.base.arguments import checked_count, checked_home
from pystate.tables.options import LEAST_COPIES, LEAST_ON_DISK, TableOptions
from pystate.types.durations import Duration, milliseconds


@dataclass(frozen=True)
class RestoreOptions:
    """With which savepoint a job begins, and how."""

    origin: CheckpointStorage
    claim: bool
    uid_map: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class JobOptions(CoordinatorOptions):
    """The options of a `Job`, as its documentation names them; checked as they are made."""

    name: str
    max_parallelism: int | None
    parallelism: int | AutoRescale | None
    memory_limit_bytes: int
    shared_tables: bool
    table_home: str | os.PathLike[str]
    disk_bytes: int
    max_clock_step: Duration
    max_lease: Duration
    on_invalid: OnInvalid
    epoch_timeout: Duration | None
    allow_pickle: bool
    restore: str | os.PathLike[str] | None
    claim: bool
    uid_map: Mapping[str, str] | None

    #: The options above in the form that the job works with.
    initial_parallelism: int | None = field(init=False, repr=False, compare=False)
    """Parallelism at the start; None for Spark's default."""
    auto_rescale: AutoRescale | None = field(init=False, repr=False, compare=False)
    max_clock_step_ms: int = field(init=False, repr=False, compare=False)
    max_lease_ms: int = field(init=False, repr=False, compare=False)
    epoch_timeout_ms: int | None = field(init=False, repr=False, compare=False)
    tables: TableOptions = field(init=False, repr=False, compare=False)
    origin: RestoreOptions | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text(self.name, "Job: name", ": Job('flights', checkpoint='/data/flights')")
        owner = f"job {self.name!r}"
        policy, ranges = None, self.parallelism
        if isinstance(ranges, AutoRescale):
            policy, ranges = ranges, ranges.min
        groups = checked_count(self.max_parallelism, f"{owner}: max_parallelism")
        flag(self.allow_unclaimed_state, f"{owner}: allow_unclaimed_state")
        evaluations = integer(self.max_evaluations, f"{owner}: max_evaluations", least=1)
        flag(self.allow_time_back, f"{owner}: allow_time_back")
        checked_on_invalid(self.on_invalid, owner)
        timeout_ms = None
        if self.epoch_timeout is not None:
            timeout_ms = milliseconds(self.epoch_timeout, f"{owner}: epoch_timeout", least=1)
        tables = TableOptions(
            checked_home(
                self.table_home, flag(self.shared_tables, f"{owner}: shared_tables"), owner
            ),
            integer(self.memory_limit_bytes, f"{owner}: memory_limit_bytes", least=0),
            allow_pickle=flag(self.allow_pickle, f"{owner}: allow_pickle"),
            disk_bytes=integer(self.disk_bytes, f"{owner}: disk_bytes", least=0),
        )
        if 0 < tables.disk_bytes < LEAST_COPIES:
            raise InvalidArgumentError(
                f"{owner}: disk_bytes is 0, or {LEAST_COPIES} at least, not {tables.disk_bytes}"
            )
        if tables.on_disk and 0 < tables.limit_bytes < LEAST_ON_DISK:
            raise InvalidArgumentError(
                f"{owner}: memory_limit_bytes of tables on disk is 0, or {LEAST_ON_DISK} at least, "
                f"not {tables.limit_bytes}"
            )
        step_ms = milliseconds(self.max_clock_step, f"{owner}: max_clock_step", least=1)
        for name, value in (
            ("max_parallelism", groups),
            ("retained", integer(self.retained, f"{owner}: retained", least=1)),
            ("max_evaluations", evaluations),
            ("initial_parallelism", checked_count(ranges, f"{owner}: parallelism")),
            ("auto_rescale", policy),
            ("max_clock_step_ms", step_ms),
            ("max_lease_ms", milliseconds(self.max_lease, f"{owner}: max_lease")),
            ("epoch_timeout_ms", timeout_ms),
            ("tables", tables),
            ("merge_policy", _merge_policy(self.merge_policy, tables)),
            ("origin", _checked_restore(self.restore, self.claim, self.uid_map, owner)),
            ("listeners", _checked_listeners(self.listeners, owner)),
        ):
            object.__setattr__(self, name, value)
        if not isinstance(self.checkpoints, CheckpointOptions):
            raise WrongTypeError(
                f"{owner}: checkpoints is a pystate.CheckpointOptions(interval='10 seconds', ...), "
                f"not {shown(self.checkpoints)}"
            )


def _merge_policy(given: MergePolicy | None, tables: TableOptions) -> MergePolicy | None:
    """When files are merged: where the tables read them one by one, as those on disk need it."""
    if given is None or not tables.on_disk:
        return given
    return DiskMergePolicy(block_bytes=tables.guided_block_bytes)


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
