"""A program over an operator whose states it declares, in one process, with real files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import RangeReport
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.host import TableHome
from pystate.types.keys import parse_key
from tests.conftest import coordinator_of
from tests.peer import KEY, Worker
from tests.work import HASHES, batch

QUERY = "2c0b5e3a-0000-4000-8000-000000000000"
#: The states of some keys; to a list an item is added.
Rows = Mapping[int, Mapping[str, Any]]


class Program:
    """Its driver, and its tasks."""

    def __init__(self, root: Path, states: Mapping[str, Any], width: int) -> None:
        self.root, self.states, self.width = root, states, width
        self.storage = LocalStorage(root)

    def coordinator(self, **options: Any) -> Coordinator:
        return coordinator_of(
            self.storage,
            job="job",
            parallelism=self.width,
            commit_sinks=lambda manifest: None,
            merge_policy=options.pop("merge_policy", None),
            allow_unclaimed_state=True,
            **options,
        )

    def run(self, first: int, *epochs: Rows, **options: Any) -> None:
        """Compute batches, which write some rows."""
        with self.coordinator(**options) as coordinator:
            for number, rows in enumerate(epochs, first):
                coordinator.run(self._evaluate(rows), **batch(number, QUERY))
                coordinator.maintain()

    def operator(self, epoch: Epoch) -> OperatorSpec:
        """The operator, with the names that the epoch's files have for its states."""
        operator = OperatorSpec("op", parse_key(KEY), self.states)
        return operator.continuing(epoch.stored_states("op"))

    def declare(self, epoch: Epoch) -> Sequence[Any]:
        """Declare the operator to an epoch."""
        operator = self.operator(epoch)
        return epoch.declare(
            "op",
            key_schema=[("k", "bigint")],
            state_schema=operator.stored_states(),
            fills=operator.fills(),
            defaults=operator.defaults(),
        )

    def _evaluate(self, rows: Rows) -> Callable[[Epoch], Sequence[Any]]:
        def evaluate(epoch: Epoch) -> Sequence[Any]:
            states = self.operator(epoch).states
            for state in self.declare(epoch):
                worker = Worker(
                    str(self.root),
                    TableHome(None, None),
                    states=states,
                    allow_unclaimed_state=True,
                )
                worker.storage = self.storage
                bounds = range(state.first_key_group, state.last_key_group + 1)
                mine = {k: row for k, row in rows.items() if ps.key_group(HASHES[k], 128) in bounds}
                try:
                    worker.attach(state)
                    worker.put(mine)
                    ref = worker.seal(epoch.number)
                finally:
                    worker.stop()
                report = RangeReport("op", state.index, epoch.evaluation_id, ref.id, state.id, ref)
                assert epoch.report(report)
            return ("out",)

        return evaluate


def state_in(root: Path, **options: Any) -> dict[int, dict[str, Any]]:
    """The operator's state in a checkpoint."""
    table = ps.read_state(root, "op", **options)
    return {row.pop("k"): row for row in table.to_pylist()}
