"""A range of an operator while one task works on it: its table, its side outputs, its report.

Thread safety: a `RangeTask` belongs to its task's thread; another thread, which never outlives the
task, writes the delta file.

Invariants
----------
1. The range comes from the marker row or from a key, never from the partition's number. Two markers
   are an error, and so is a key of another range.
2. A range is begun (`pystate.checkpoint.begin_marks`) before its table is attached, and so before a
   row leaves.
3. A table that is released without having been sealed is rolled back, and files of side outputs
   that no report names are removed.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pystate.checkpoint.begin_marks import BeginMarks, Beginning, Mark
from pystate.checkpoint.held_deltas import HeldFiles
from pystate.checkpoint.object_cache import two_tiers
from pystate.checkpoint.refs import EMPTY_ID, INPUT, KEPT, RangeState
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.listeners import CheckpointNotice
from pystate.epochs.range_report import InputSeen, RangeReport, SideFile
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import EvaluationError, MemoryLimitError, NoSpaceError, TableMovedError
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.output import Side
from pystate.operators.runtime.task import TaskContext
from pystate.spark.base.parquet_format import ParquetFormat
from pystate.spark.base.routing import KeyRouter
from pystate.spark.base.schemas import KeySchema
from pystate.spark.tasks.delta import (
    Changes,
    DeltaWriter,
    HeldPlan,
    Target,
    Written,
    held_files,
)
from pystate.spark.tasks.parquet_file import ParquetFile, SideFiles, part_name
from pystate.spark.tasks.steps import TaskSteps
from pystate.spark.tasks.table_move import executor_home, move_table
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.attach import Attachment, private_table, tables
from pystate.tables.host import STEPS, remove_left
from pystate.tables.hot_keys import warming_s
from pystate.tables.options import TableOptions
from pystate.tables.range_files import cache_of
from pystate.tables.recovery import TableSpec
from pystate.tables.upkeep import note_use, remove_outdated
from pystate.types.keys import leaf

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from pystate.tables.backend import KeyedStateBackend

#: Spark's local property that names the evaluation whose output a job stages.
STAGING = "pystate.staging"
#: The local property with the `ResultFiles` of the operator whose tasks write the result.
WRITING = "pystate.writing"
#: What a task on disk reports of its table, by the names of `DiskStats`.
_DISK_METRICS = (
    "rows_in_memory",
    "cache_hits",
    "cache_misses",
    "files_asked",
    "read_bytes",
    "rows_left",
)


def _local_property(name: str) -> str | None:
    """A property of this task's Spark job; None if it has none, or outside of tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


@dataclass(frozen=True)
class ResultFiles:
    """Where an operator's tasks write its output, which is the pipeline's result.

    Not in the plan, since whether tasks write is decided when the pipeline's result is known, and
    another frame with another plan takes milliseconds.
    """

    uid: str
    """The operator."""
    folder: str
    columns: tuple[int, ...]
    """The output's columns that the result has, by position."""
    format: ParquetFormat

    def text(self) -> str:
        """These as a local property of Spark's."""
        # Not pickled, since the property is open to whoever may set one.
        schema = base64.b64encode(self.format.schema.serialize()).decode("ascii")
        return json.dumps([self.uid, self.folder, self.columns, schema, {**self.format.options}])

    @classmethod
    def of_task(cls, uid: str) -> ResultFiles | None:
        """What the Spark job of this task was given for that operator, if anything."""
        text = _local_property(WRITING)
        if text is None:
            return None
        owner, folder, columns, schema, options = json.loads(text)
        if owner != uid:
            return None
        written = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
        return cls(uid, folder, tuple(columns), ParquetFormat(written, options))


@dataclass(frozen=True)
class OperatorPlan:
    """What a task must know about its operator and epoch; it is pickled into the closure."""

    operator: OperatorSpec
    options: TableOptions
    key_schema: KeySchema
    """The key in the spelling of checkpoints."""
    ranges: Sequence[RangeState]
    storage: CheckpointStorage
    application: bytes
    epoch: int
    evaluation_id: str
    query: int
    processing_time_ms: int
    time: OperatorTime | None
    """The operator's event time; None if it has none."""
    event_time: bool
    """Whether the rows have event times, so that some may be late."""
    drain: bool
    """Whether event time ends after the rows."""
    side_folders: Mapping[str, str]
    term: int
    reports: Accumulator[list[RangeReport]]
    marks: BeginMarks
    notice: CheckpointNotice = CheckpointNotice()  # noqa: RUF009
    """Which checkpoints its functions are to learn of."""
    held: HeldPlan | None = None
    """How changes are held; None if the epoch has one step."""
    redistributes: bool = False
    """Whether the states of its instances are to be divided anew, since their number changes."""
    every_epoch: bool = False
    """Whether its ranges have work in every epoch."""
    tells_kept: bool = False
    """Whether it says in every epoch how old what it keeps is, for the watermarks of others."""
    replaces: bool = False
    """Whether each epoch replaces the state, so that a range with state has work without rows."""
    invalid: Mapping[str, InvalidRule] = field(default_factory=dict)
    """What becomes of the invalid rows of each input."""
    tables_of_host: int = 1
    """Among how many tables a host divides its memory, if they are on disk."""
    markers: bool = True
    """Whether a marker row announces each range. It may be False if no range has work without
    rows."""

    @property
    def parallelism(self) -> int:
        """Number of ranges."""
        return len(self.ranges)

    @property
    def router(self) -> KeyRouter:
        """The router, which computes the range of keys."""
        operator = self.operator
        return KeyRouter(operator.uid, self.key_schema, operator.max_parallelism, self.parallelism)

    def has_work(self, state: RangeState) -> bool:
        """Whether a range has work without rows.

        It has a due timer, or state that may expire or that belongs to other instances now; or the
        operator works in every epoch.
        """
        if self.every_epoch or self.tells_kept or self.redistributes_in(state):
            return True
        if (self.operator.expires or self.replaces) and state.id != EMPTY_ID:
            return True
        watermark_ms = None if self.time is None else self.time.watermark_ms
        return self.operator.timers and (
            _reached(state.next_event_timer_ms, MAX_WATERMARK if self.drain else watermark_ms)
            or _reached(state.next_processing_timer_ms, self.processing_time_ms)
        )

    def unchanged_report(self, index: int) -> RangeReport:
        """The report about a range that had no rows and nothing to do."""
        state = self.ranges[index]
        metrics = {"rows_in": 0, "rows_out": 0}
        if self.event_time:
            metrics["late_rows"] = 0
        return RangeReport(
            uid=self.operator.uid,
            index=index,
            evaluation_id=self.evaluation_id,
            id=state.id,
            parent=state.id,
            file=None,
            next_event_timer_ms=state.next_event_timer_ms,
            next_processing_timer_ms=state.next_processing_timer_ms,
            metrics=metrics,
        )

    def redistributes_in(self, state: RangeState) -> bool:
        """Whether the state of all instances is to be divided anew.

        An earlier step of the epoch that has changed the range has done it.
        """
        return self.redistributes and not state.held

    def held_files(self, state: RangeState) -> HeldFiles | None:
        """Where a range's held deltas are; None if the epoch has one step."""
        if self.held is None:
            return None
        home = executor_home(self.application, self.options.home)
        return held_files(self.storage, home, self.operator.uid, state, spread=self.held.spread)

    def table(self, state: RangeState, go_on: Callable[[], None] | None = None) -> TableSpec:
        """A range's table on this host, whose use is noted."""
        spec = TableSpec(
            storage=self.storage,
            home=executor_home(self.application, self.options.home),
            operator=self.operator,
            options=self.options,
            query=self.query,
            held=self.held_files(state),
            heartbeat=go_on,
            tables_of_host=self.tables_of_host,
        )
        note_use(spec.home, self.storage.local_path("job.json"), self.term)
        return spec

    def context(
        self, state: RangeState, backend: KeyedStateBackend, side: Side | None = None
    ) -> TaskContext:
        """What the operator of a range's task gets."""
        return TaskContext(
            backend,
            self.epoch,
            state.index,
            self.parallelism,
            self.processing_time_ms,
            self.time,
            self.drain,
            side,
            self.invalid,
            self.notice,
            self.tells_kept,
        )

    def describe(self, index: int | None = None) -> str:
        """The name of the operator, and of a range of it, for messages."""
        name = f"operator {self.operator.uid!r}, epoch {self.epoch}"
        if index is None:
            return name
        state = self.ranges[index]
        return f"{name}, range {index} (key groups {state.first_key_group}-{state.last_key_group})"


class RangeTask:
    """A range while one task works on it."""

    def __init__(self, plan: OperatorPlan) -> None:
        self.plan = plan
        #: How many rows of each input came; of one, as long as the task has no table.
        self.rows: dict[str, int] = {INPUT: 0}
        self.rows_out = 0
        self._context: TaskContext | None = None
        self.metrics: dict[str, float | int | str] = {}
        self._side: SideFiles | None = None
        self._side_files: tuple[SideFile, ...] = ()
        #: Where the output goes; None if Spark takes it.
        self._files = ResultFiles.of_task(plan.operator.uid)
        self._result: ParquetFile | None = None
        self._result_file: SideFile | None = None
        self._attachment: Attachment | None = None
        self._attached_s = 0.0
        self._spec: TableSpec | None = None
        self._index: int | None = None
        self._beginning: Beginning | None = None
        self._marker: int | None = None
        self._sealed_id: str | None = None
        #: Whether the keys that change are asked for at the end; and whether keys of rows are first
        #: looked up in the default namespace.
        self.notes_changed, self.looks_up_keys = False, True
        self._steps: TaskSteps | None = None
        #: When its timers are due next; None if it has none, or no table.
        self._next_timers: tuple[int | None, int | None] | None = None

    @property
    def state(self) -> RangeState:
        """The range's base, at which the table is when the task begins."""
        assert self._index is not None, "no range yet"
        return self.plan.ranges[self._index]

    @property
    def backend(self) -> KeyedStateBackend:
        """The attached table."""
        assert self._attachment is not None, "not attached"
        return self._attachment.backend

    @property
    def attached(self) -> bool:
        """Whether the task has a table; a task without rows or anything due attaches none."""
        return self._attachment is not None

    @property
    def table_path(self) -> str | None:
        """The file of the attached table, if it is one."""
        return None if self._attachment is None else self._attachment.path

    def announce(self, markers: Iterable[int]) -> None:
        """Handle the marker rows of a batch."""
        for marker in markers:
            if self._marker is not None:
                raise EvaluationError(
                    f"{self.plan.describe()}: one partition holds the markers of ranges "
                    f"{self._marker} and {marker}: the rows of several ranges were put together "
                    "between the shuffle and the operator"
                )
            self._marker = marker
            self._claim(marker)

    @property
    def context(self) -> TaskContext:
        """What the task's operator gets, and where it says what it has seen."""
        assert self._context is not None, "not attached"
        return self._context

    def attach(self, index: int, inputs: Iterable[str] = (INPUT,)) -> None:
        """Attach the range's table at exactly its base, for an operator of some inputs."""
        self._claim(index)
        if self._attachment is None:
            plan = self.plan
            self.rows = dict.fromkeys(inputs, 0)
            self._spec = plan.table(self.state, self.go_on)
            self._attachment = tables.attach(self._spec, self.state)
            self._attached_s = time.monotonic()
            # While it changes, other ranges may need the tables of the last epoch.
            if not self.state.changes_parallelism:
                remove_outdated(self._spec, self.state, plan.parallelism)
                tables.keep_ranges(self._spec, plan.parallelism)
            self.metrics["attach_ms"] = self._attachment.duration_ns / 1e6
            self.metrics["attached"] = self._attachment.how
            self.metrics["rows_restored"] = self._attachment.rows
            self.metrics["rows_copied"] = self._attachment.copied
            if self.backend.below.on_disk:
                folder = self._spec.home.local_folder(STEPS, plan.operator.uid)
                remove_left(folder)
                self._steps = TaskSteps(
                    self.backend,
                    folder,
                    Lineage(bytes(16), bytes.fromhex(self.state.id), plan.epoch, plan.query),
                    notes_changed=self.notes_changed,
                )
            self._context = plan.context(self.state, self.backend, self.write_side)
            if plan.redistributes_in(self.state):
                self._context.old = self._whole_state

    def count(self, input: str, rows: Any) -> None:
        """Count rows of an input that are about to be processed."""
        self.rows[input] += _size(rows)

    def _claim(self, index: int) -> None:
        if self._index is None:
            self._index = index
            self._beginning = self.plan.marks.begin(_mark(self.plan.operator.uid, index))
        elif self._index != index:
            raise EvaluationError(
                f"{self.plan.describe(self._index)}: the partition also holds rows or the marker "
                f"of range {index}: rows were moved between the shuffle and the operator"
            )

    @property
    def only_stages(self) -> bool:
        """Whether the task's whole output is staged by its evaluation and used by nothing else."""
        return _local_property(STAGING) == self.plan.evaluation_id

    def go_on(self) -> None:
        """Between pieces of the input, give a sign of life; stop if the evaluation has ended."""
        if self._beginning is not None:
            self._beginning.go_on()

    def check_marker(self) -> None:
        """Make sure, at the end of the input, that exactly one range announced itself."""
        if self._marker is None and self.plan.markers:
            raise EvaluationError(
                f"{self.plan.describe(self._index)}: the partition has no marker row, so its "
                "input is not complete: rows were dropped between the shuffle and the operator"
            )

    @property
    def due(self) -> bool:
        """Whether the range has work without rows."""
        return self.plan.has_work(self.state)

    @contextmanager
    def _whole_state(self) -> Iterator[KeyedStateBackend]:
        """A table of this process with the state of all ranges, as of the base."""
        assert self._spec is not None, "not attached"
        backend, rows = private_table(self._spec, self.state.whole())
        self.metrics["rows_redistributed"] = rows
        with closing(backend):
            yield backend

    @property
    def _rows_combined(self) -> int:
        """How many more rows those that came stand for."""
        return 0 if self._context is None else self._context.rows_combined

    def _inputs_seen(self) -> tuple[InputSeen, ...]:
        context = self._context
        if context is None:
            return (InputSeen(),)
        seen = [InputSeen(name, rows, context.latest.get(name)) for name, rows in self.rows.items()]
        seen[0] = replace(seen[0], rows=seen[0].rows + self._rows_combined)
        return (*seen, *(InputSeen(KEPT, 0, oldest) for oldest in context.kept))

    def write_side(self, tag: str, rows: pa.RecordBatch) -> None:
        """Write rows of a side output."""
        if self._side is None:
            self._side = SideFiles(self.plan.side_folders, self.state.index)
        self._side.write(tag, rows)

    def takes(self, out: pa.RecordBatch) -> bool:
        """Write some of the output, if it does not go to Spark; return whether it did."""
        wanted = self._files
        if wanted is None:
            return False
        if out.num_rows:
            schema = wanted.format.schema
            if self._result is None:
                name, options = part_name(self.state.index), wanted.format.options
                self._result = ParquetFile(wanted.folder, name, schema, options)
            columns = [
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(map(out.column, wanted.columns), schema, strict=True)
            ]
            self._result.write(pa.RecordBatch.from_arrays(columns, schema=schema))
        return True

    def finish_files(self) -> None:
        """Make the files of the side outputs and of the result durable."""
        if self._side is not None:
            self._side_files = self._side.finish()
        file = self._result
        if file is not None:
            self._result_file = SideFile("", file.name, file.finish(), file.rows)

    def seal(self) -> DeltaWriter | None:
        """Seal the table; return the thread that writes its changes, or None without a change.

        A task that closes an epoch writes the range's held deltas even if it has changed nothing.
        """
        plan, state = self.plan, self.state
        files = plan.held_files(state)
        storage = plan.storage
        if self._spec is not None and plan.options.on_disk:
            cache = cache_of(self._spec)
            # Its next task looks for rows in what this one writes.
            storage = storage if cache is None else two_tiers(cache)
        target = Target(storage, plan.operator.uid, state, plan.epoch, plan.held, files)
        if files is not None and plan.held is not None:
            files.remove_older(plan.held.serial, {ref.path for ref in state.held})
        snapshot = self._seal_table()
        if snapshot is None and not (plan.held is not None and plan.held.closes and state.held):
            return None
        writer = DeltaWriter(target, snapshot)
        writer.start()
        return writer

    def _seal_table(self) -> Changes | None:
        if self._attachment is None:
            return None
        if not self._steps:
            # Rows that come now are kept with the epoch. It is a part of what the task took anyway.
            spent_s = time.monotonic() - self._attached_s
            self.metrics["rows_warmed"] = self._attachment.warm(warming_s(spent_s))
        if self._steps is not None:
            self._steps.refuse_lost()
        if self.plan.operator.timers:
            # Once it is sealed a table on disk does not know in which files its rows are.
            backend = self.backend
            self._next_timers = backend.next_timer("event"), backend.next_timer("processing")
        if self.plan.operator.expires:
            self.backend.expire()
        steps = self._steps or None
        if not self.backend.dirty and steps is None:
            return None
        plan, state = self.plan, self.state
        stats = self.backend.stats()
        self.metrics["rows_changed"] = stats.changed_rows + (0 if steps is None else steps.rows)
        began = time.perf_counter_ns()
        parent = bytes.fromhex(state.id) if steps is None else steps.last
        snapshot = None
        if self.backend.dirty:
            name = Lineage(uuid.uuid4().bytes, parent, plan.epoch, plan.query)
            snapshot = self.backend.seal(name)
        changes: Changes | None = snapshot if steps is None else steps.changes(snapshot)
        assert changes is not None
        self.metrics["seal_ms"] = ms_since(began)
        self._sealed_id = changes.lineage.id.hex()
        return changes

    def report(self, written: Written) -> None:
        """Send the report to the driver: the last act of the task."""
        plan, state = self.plan, self.state
        timers = self._next_timers
        if timers is None:
            timers = state.next_event_timer_ms, state.next_processing_timer_ms
        if self._attachment is not None:
            stats = self.backend.stats()
            self.metrics["keys"] = stats.keys
            self.metrics["state_bytes"] = stats.committed_bytes
            if self.backend.below.on_disk:
                on_disk = self.backend.below.stats(self.state.estimated_keys)
                self.metrics["keys"] = on_disk.estimated_keys
                self.metrics["rows_looked_up"] = on_disk.cache_misses
                self.metrics["steps"] = 0 if self._steps is None else self._steps.taken
                for name in _DISK_METRICS:
                    self.metrics[name] = getattr(on_disk, name)
                used = self.metrics.get("rows_changed", 0), self.metrics["rows_looked_up"]
                self._attachment.used(sum(map(int, used)))
            self.release()
        late = invalid = 0
        if self._context is not None:
            self.metrics.update(self._context.metrics)
            late, invalid = self._context.late_rows, self._context.invalid_rows
        rows_in = sum(self.rows.values()) + self._rows_combined
        self.metrics.update(rows_in=rows_in, rows_out=self.rows_out, process_id=os.getpid())
        self.metrics["invalid_rows"] = invalid
        if plan.event_time:
            self.metrics["late_rows"] = late
        plan.reports.add(
            [
                RangeReport(
                    uid=plan.operator.uid,
                    index=state.index,
                    evaluation_id=plan.evaluation_id,
                    id=self._sealed_id or state.id,
                    parent=state.id,
                    file=written.file,
                    held=written.held,
                    merged=written.merged,
                    failure=written.failure,
                    inputs=self._inputs_seen(),
                    next_event_timer_ms=timers[0],
                    next_processing_timer_ms=timers[1],
                    side_files=self._side_files,
                    result_file=self._result_file,
                    metrics=dict(self.metrics),
                )
            ]
        )
        self._side = self._result = None

    def release(self) -> None:
        """Release the table, for the next task of any process. Does nothing the second time.

        What was not sealed is rolled back.
        """
        attachment, self._attachment = self._attachment, None
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        if attachment is not None:
            attachment.release()

    def fitting(self, rows: pa.RecordBatch, key: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows in pieces whose keys fit in memory together, and are in memory then.

        Where the operator begins with other rows, it sees to that itself.
        """
        backend = self.backend
        if not self.looks_up_keys or not backend.below.on_disk:
            yield rows
            return
        rest = [rows]
        while rest:
            piece = rest.pop()
            some = backend.below.most_keys(piece.num_rows)
            if some < piece.num_rows:
                rest.append(piece.slice(some))
                piece = piece.slice(0, some)
            try:
                backend.prefetch([leaf(piece, name) for name in key])
            except MemoryLimitError as error:
                # Some room is left for what the operator makes of them.
                at = (error.keys or 0) * 3 // 4
                if not 0 < at < piece.num_rows:
                    raise
                rest += [piece.slice(at), piece.slice(0, at)]
            else:
                yield piece

    def move_table(self, error: NoSpaceError) -> TableMovedError | None:
        """Give up a table that has outgrown its file system; None if there is no such table."""
        attachment, spec = self._attachment, self._spec
        if attachment is None or spec is None:
            return None
        return move_table(attachment, spec, self.state, self.plan.describe(self._index), error)

    def discard_files(self) -> None:
        """Remove the files of outputs unless they were reported."""
        side, self._side = self._side, None
        result, self._result = self._result, None
        try:
            if side is not None:
                side.discard()
        finally:
            if result is not None:
                result.discard()


def _mark(uid: str, index: int) -> Mark:
    from pyspark import TaskContext

    context = TaskContext.get()
    host, process = socket.gethostname(), os.getpid()
    if context is None:
        # Without Spark, in tests, every call counts as a stage of its own.
        return Mark(uid, index, -1, index, 0, -1, host, process)
    return Mark(
        uid,
        index,
        context.stageId(),
        context.partitionId(),
        context.attemptNumber(),
        context.taskAttemptId(),
        host,
        process,
    )


def _size(rows: Any) -> int:
    """How many rows a batch has."""
    return rows.num_rows if isinstance(rows, pa.RecordBatch) else len(rows.rows)


def _reached(time_ms: int | None, now_ms: int | None) -> bool:
    return time_ms is not None and now_ms is not None and time_ms <= now_ms


def ms_since(began_ns: int) -> float:
    """Milliseconds since a time of `perf_counter_ns`."""
    return (time.perf_counter_ns() - began_ns) / 1e6
