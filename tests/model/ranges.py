"""The ranges of an operator of two key columns, which live in files between two epochs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

import pystate as ps
from pystate._core.core import range_bounds
from pystate.checkpoint.state_files import merge_files
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.operator_spec import OperatorSpec
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.keys import parse_key
from tests.range_backends import DiskRanges

GROUPS = 8
Row = dict[str, Any]


class Ranges:
    """Runs an operator over epochs; a spec may be another one in each, unless they are on disk."""

    def __init__(
        self, key: dict[str, str], schema: pa.Schema, disk: DiskRanges | None = None
    ) -> None:
        self.key, self.schema, self.disk = key, schema, disk
        self.files: list[bytes] = []

    def epoch(
        self,
        spec: Any,
        make: Callable[[Any], Operator],
        batches: Sequence[list[Row]],
        parallelism: int,
        **context: Any,
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """What `process` and what `finish` gave."""
        early: list[pa.RecordBatch] = []
        out: list[pa.RecordBatch] = []
        files = []
        every = [range_bounds(index, GROUPS, parallelism) for index in range(parallelism)]
        if self.disk is not None:
            operator = OperatorSpec(
                "op", parse_key(self.key), spec.states(), max_parallelism=GROUPS
            )
            self.disk.open(operator, every)
            self.disk.begin(make(spec).asks_for_changed)
            for backend in self.disk:
                task = make(spec)
                task.open(TaskContext(backend, **context))
                early += self._processed(task, batches, backend.key_group_range)
                out += task.finish()
            self.disk.seal()
            return early, out
        for bounds in every:
            with ps.KeyedStateBackend(
                self.key,
                states=spec.states(),
                max_parallelism=GROUPS,
                key_group_range=bounds,
            ) as backend:
                sources = [io.BytesIO(data) for data in self.files]
                backend.restore(sources, allow_unclaimed_state=True)
                task = make(spec)
                task.open(TaskContext(backend, **context))
                early += self._processed(task, batches, bounds)
                out += task.finish()
                data = io.BytesIO()
                with backend.seal() as snapshot:
                    snapshot.write(data)
                whole = io.BytesIO()
                parts = [io.BytesIO(part) for part in (*self.files, data.getvalue())]
                merge_files(parts, whole, first_key_group=bounds[0], last_key_group=bounds[1])
                files.append(whole.getvalue())
        self.files = files
        return early, out

    def _processed(
        self, task: Operator, batches: Sequence[list[Row]], bounds: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.RecordBatch.from_pylist(batch, schema=self.schema)
            groups = key_groups(hash_keys([rows[name] for name in self.key]), GROUPS)
            own = (groups >= bounds[0]) & (groups <= bounds[1])
            yield from task.process(rows.filter(pa.array(own)))
