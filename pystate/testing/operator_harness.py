"""What the harnesses of operators share whose key and columns are known from the beginning.

Thread safety: all objects belong to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pystate.base.arguments import choice, integer
from pystate.errors import NoEventTimeError
from pystate.operators.runtime.event_time import milliseconds
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.timers import TimeDomain
from pystate.testing.base import HarnessBase
from pystate.testing.clock import Clock, HarnessInput
from pystate.testing.range_tables import RangeTables, checked_home
from pystate.testing.snapshot import OperatorSnapshot, check_snapshot

if TYPE_CHECKING:
    from typing_extensions import Self


#: Arguments of a harness that are of its operator, or of its beginning.
_OF_ONE = {
    *("self", "operator", "windows", "parallelism", "processing_time"),
    *("initial_rows", "initial_state", "initial_timers"),
}


def kept_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a harness restored from another one's snapshot has, too; of its ``locals()``."""
    return {name: each for name, each in given.items() if name not in _OF_ONE and name[0] != "_"}


class OperatorHarness(HarnessBase):
    """Base of the harnesses of operators that have their own inputs.

    `arguments` are those of the harness besides the operator, for `restore`.
    """

    _counts_timers = False

    def __init__(
        self,
        operator: OperatorSpec,
        inputs: Sequence[HarnessInput],
        *,
        parallelism: int,
        batch_rows: int,
        processing_time: int | datetime,
        arguments: Mapping[str, Any],
        tags: Sequence[str] = (),
        table_home: str = "heap",
    ) -> None:
        self._owner = f"operator {operator.uid!r}"
        integer(parallelism, f"{self._owner}: parallelism", least=1, most=operator.max_parallelism)
        integer(batch_rows, f"{self._owner}: batch_rows", least=1)
        self._arguments = dict(arguments)
        clock = Clock(milliseconds(processing_time, f"{self._owner}: processing_time"))
        self._begin_epochs(clock, inputs, batch_rows, tags)
        self._tables = RangeTables(operator, parallelism, checked_home(table_home, self._owner))

    # -- epochs

    def advance_processing_time(self, to: int | datetime | timedelta) -> list[Any]:
        """Move the processing time, and run an epoch without rows.

        Parameters
        ----------
        to : int, datetime or timedelta
            Milliseconds since 1970, or a datetime with a time zone; a timedelta is added to the
            current processing time.

        Returns
        -------
        list
            What the operator has emitted.

        Raises
        ------
        InvalidArgumentError
            It would go back.
        """
        return self._epoch({}, self._clock.with_processing_time(to))

    def _batches(self, given: Mapping[str, Any]) -> dict[str, pa.RecordBatch]:
        batches = {name: self._inputs[name].rows.batch(rows) for name, rows in given.items()}
        return {name: rows for name, rows in batches.items() if rows is not None}

    def _process(self, rows: Mapping[str, Any], *, drain: bool = False) -> list[Any]:
        return self._epoch(self._batches(rows), self._clock.copy(), drain=drain)

    def _drain(self, given: Mapping[str, Any]) -> list[Any]:
        timed = all(each.event_time is not None for each in self._inputs.values())
        if not timed and self.watermark is None:
            raise NoEventTimeError(
                f"{self._owner}: drain takes the watermark to its end, and there is none: name the "
                "columns of the event time, event_time='column'"
            )
        return self._process(given, drain=True)

    # -- results

    @property
    def kept(self) -> int:
        """How many rows the tables have: keys, or keys and namespaces, such as buckets of time."""
        return sum(len(table.backend) for table in self._ranges)

    def keys(self) -> list[Any]:
        """All keys that have state, in no particular order."""
        return list(dict.fromkeys(key for table in self._ranges for key in table.backend))

    def next_timer(self, domain: TimeDomain) -> int | None:
        """When the earliest timer is due, in milliseconds since 1970; None if there is none."""
        choice(domain, "next_timer: domain", ("event", "processing"))
        return self._ranges.next_timer(domain)

    # -- snapshots

    def snapshot(self) -> OperatorSnapshot:
        """All state as of the last epoch. It stays valid whatever the harness does next."""
        return OperatorSnapshot(
            self._clock.epoch, self._ranges.files(), self._clock.copy(), self._arguments
        )

    @classmethod
    def restore(
        cls,
        snapshot: OperatorSnapshot,
        operator: Any,
        *,
        parallelism: int = 1,
        allow_unclaimed_state: bool = False,
    ) -> Self:
        """Make a harness that continues from a snapshot, with its times and options.

        Parameters
        ----------
        snapshot : OperatorSnapshot
            A snapshot of a harness of the same kind.
        operator : object
            As the first argument of the harness; it may be another one than before.
        parallelism : int
            Number of key-group ranges; it may differ from before.
        allow_unclaimed_state : bool
            Drop states that the operator does not have.

        Returns
        -------
        OperatorHarness
            Its outputs are empty.
        """
        return cls._restored(snapshot, operator, parallelism, allow_unclaimed_state)

    @classmethod
    def _restored(
        cls,
        snapshot: OperatorSnapshot,
        operator: Any,
        parallelism: int,
        allow_unclaimed_state: bool,
        **other: Any,
    ) -> Self:
        """See `restore`; some arguments of the harness may be others than before."""
        check_snapshot(snapshot, OperatorSnapshot, "harness")
        make: Callable[..., Self] = cls
        harness = make(operator, **{**snapshot._given, **other, "parallelism": parallelism})
        try:
            harness._ranges.restore(snapshot._files, allow_unclaimed_state)
        except BaseException:
            harness.close()
            raise
        harness._clock = snapshot._clock.copy()
        return harness

    # -- life

    def close(self) -> None:
        """Free the tables. Does nothing the second time."""
        self._ranges.close()
