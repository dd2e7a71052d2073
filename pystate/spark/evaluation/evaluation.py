"""The driver's half of one epoch: from the user's pipeline to reports and staged output.

Thread safety: an `Evaluation` belongs to the thread that runs the epoch.

Invariants
----------
1. An evaluation's uuid exists before the user's pipeline is called, since building a plan may
   already run stages, and travels in every operator's closure.
2. The sink's write is the only action that pystate runs. The pipeline may run others, and the
   evaluation counts as long as each operator is evaluated once in all (`materialisation`).
3. Before anything is computed, each side output must have a sink, and each sink a side output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pystate.base.arguments import text
from pystate.checkpoint.begin_marks import BeginMarks
from pystate.checkpoint.refs import EMPTY_ID, RangeState, as_schema
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.epoch import Epoch, Flow, RepeatableError, describe_ranges
from pystate.epochs.planned_ranges import PlannedRanges
from pystate.epochs.watermarks import Hold, Holds, Input
from pystate.errors import DeclarationError, EvaluationError, InvalidArgumentError, TableMovedError
from pystate.operators.runtime.invalid_rows import InvalidRule, OnInvalid
from pystate.operators.runtime.output import in_order
from pystate.redaction import logger
from pystate.spark.base.environment import require_classic
from pystate.spark.base.failures import as_function_error, original_error
from pystate.spark.base.job_description import JobDescription
from pystate.spark.base.jvm import executors
from pystate.spark.base.options import JobOptions
from pystate.spark.base.schemas import KeySchema, parse_schema
from pystate.spark.evaluation.empty_ranges import CountedOperators
from pystate.spark.evaluation.flow import InputFlow
from pystate.spark.evaluation.initial_state import Initial
from pystate.spark.evaluation.materialisation import Loop, OperatorOutputs
from pystate.spark.evaluation.operator_traits import OperatorTraits
from pystate.spark.evaluation.updates import UpdateFrames, Updates
from pystate.spark.evaluation.watch import EvaluationWatch
from pystate.spark.sinks.outputs import ONLY, Outputs, Staged, rows_of
from pystate.spark.sinks.sink import Transaction
from pystate.spark.tasks.delta import HeldPlan
from pystate.spark.tasks.range_task import STAGING, WRITING, OperatorPlan, ResultFiles
from pystate.spark.tasks.reports import ReportBox
from pystate.state.expiring import Expiring
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.registry import refuse_pickled
from pystate.types.state_type import TypeLike, parse_type, refuse_nested_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_LOG = logger("pystate.spark.evaluation.evaluation")

_HINT = (
    "call localCheckpoint() on what the operator returns before the pipeline uses it, so that "
    "Spark computes it whole, and once"
)
_RDD_HINT = (
    "call persist() and then localCheckpoint() on the RDD that the operator gives before the "
    "pipeline uses it, so that Spark computes it whole, and once; without persist() PySpark "
    "computes it as a part of whatever reads it"
)
_RETURNS = (
    "it must return a DataFrame, the rows to write; a dict of DataFrames by name, "
    "{'users': users, 'pages': pages}, for several outputs; or, in run_epoch with schema=, an RDD"
)
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SPARK_BATCH_ROWS = "10000"
#: Rows per Arrow batch between the JVM and the workers if the user kept Spark's default: with so
#: many rows the fixed cost of a batch, some 100 µs, does not matter.
_OUR_BATCH_ROWS = "65536"
#: As how many operators count those of a first epoch, whose tasks may run before all are declared:
#: a table with too little memory for the first epoch is slower, too much is taken from others.
_FIRST_OPERATORS = 8
#: The most hanging tasks that a message names.
_MOST_TASKS = 8
_HOME_HINT = "give the tables a place with more room, Job(table_home=...), or use more hosts"


@dataclass(frozen=True)
class RddSplit:
    """How an RDD was split: its key, and the event time of its elements."""

    keys: KeySchema
    event_time: Callable[[Any], object] | None
    input: Input


class Evaluation:
    """One attempt at an epoch; the user's pipeline declares its operators to it.

    What it finds out about them is added to `traits`, for later evaluations.
    """

    def __init__(
        self,
        epoch: Epoch,
        session: SparkSession,
        box: ReportBox,
        storage: CheckpointStorage,
        options: JobOptions,
        term: int,
        outputs: Outputs,
        traits: OperatorTraits,
    ) -> None:
        self.options = options
        self.epoch = epoch
        self.session = session
        self._box = box
        self._storage = storage
        self._term = term
        #: Where the rows go, for what the pipeline has returned.
        self.outputs = outputs
        self._tags: dict[str, tuple[str, pa.Schema]] = {}
        self._splits: dict[str, RddSplit] = {}
        self._id = epoch.evaluation_id
        self._marks = BeginMarks(storage, epoch.number, self._id)
        self._traits = traits
        self._holds: dict[str, Holds] = {}
        self._operator_outputs = OperatorOutputs(traits.materialised)
        self._updates = UpdateFrames()
        self._flow = InputFlow(lambda frame: self._operator_outputs.operators_of(frame)[2])
        self._counted = CountedOperators(traits.announced)
        self._executors: frozenset[str] = frozenset()
        self._held = self._held_plan(options.checkpoints.timeout_ms)

    def _held_plan(self, timeout_ms: int) -> HeldPlan | None:
        step = self.epoch.step
        held = self.epoch.base is not self.epoch.head
        if not step.holds and not held:
            return None
        # With one executor all tasks find what the last ones have left in its memory.
        spread = len(executors(self.session.sparkContext)) > 1
        return HeldPlan(step.serial, step.closes, step.holds, spread, timeout_ms)

    def __enter__(self) -> Evaluation:
        self._marks.open()
        self._executors = executors(self.session.sparkContext)
        return self

    def __exit__(self, *_: object) -> None:
        self._marks.close()
        self._operator_outputs.release()

    @property
    def parallelism(self) -> int:
        """The number of ranges of each operator."""
        return self.epoch.parallelism

    @property
    def on_invalid(self) -> OnInvalid:
        """What becomes of rows that cannot be processed, without a side output for them."""
        return self.options.on_invalid

    @property
    def tag(self) -> str:
        """The tag of its Spark jobs."""
        return f"pystate-{self._id}"

    def output(
        self,
        uid: str,
        mapped: DataFrame,
        frame: DataFrame | None = None,
        beside: Sequence[str] = (),
        holds: Holds | None = None,
    ) -> DataFrame:
        """Register an operator's output, and return the frame for the pipeline."""
        if holds is not None:
            self._holds[uid] = holds
        self._counted.note(uid, mapped)
        return self._operator_outputs.add(uid, mapped if frame is None else frame, beside, mapped)

    def _warn_begun(self, uid: str) -> None:
        """Say once that what an operator is to begin with has no effect any more."""
        base = self.epoch.base
        assert base is not None
        # If this driver has published the base, it has begun the operator, or has said so.
        if base.term != self._term and uid not in self._traits.begun:
            self._traits.begun.add(uid)
            _LOG.warning(
                "operator %r: initial_state, initial_rows or initial_items has no effect any more: "
                "it goes on with its state of epoch %d of checkpoint %s",
                uid,
                base.epoch,
                self._storage.uri,
            )

    def has_plain_key(self, uid: str, key: KeySchema, marks: Sequence[str]) -> bool:
        """Whether the checkpoint has an operator's key without the marks of null structs.

        Such an operator goes on with the keys that it has, and that is said once.
        """
        base = self.epoch.base
        stored = None if base is None else base.operator(uid)
        if base is None or stored is None or stored.key_schema != as_schema(key):
            return False
        if uid not in self._traits.plain_keys:
            self._traits.plain_keys.add(uid)
            _LOG.warning(
                "operator %r: an earlier version has begun its state, whose keys do not tell a "
                "null struct from a struct of nulls, as SQL does: both stay one key. To tell them "
                "apart from now on, read the state by ps.read_state, add the key columns %s, which "
                "are null booleans, and write it by ps.write_state as a savepoint to begin with",
                uid,
                ", ".join(map(repr, marks)),
            )
        return True

    def emits_updates(
        self, uid: str, frame: DataFrame, identity: Sequence[str], unstable: str | None = None
    ) -> DataFrame:
        """Note that rows of an operator's output replace those with an equal `identity`.

        `unstable` says why that is not always the row that it comes from.
        """
        self._updates.add(uid, frame, identity, unstable)
        return frame

    def updates(self, frame: DataFrame) -> Updates | None:
        """What is known of a frame of updates; None if it is none."""
        if not self._updates:
            return None
        return self._updates.find(frame, self._operator_outputs.operators_of(frame)[0])

    def combines(self, uid: str) -> bool:
        """Whether the rows of an operator should be combined before the shuffle."""
        return self._traits.combining.combines(uid)

    def add_loop(self, loop: Loop) -> None:
        """Register a loop, whose fed rows are taken with the pipeline's result."""
        self._operator_outputs.add_feeding(loop)

    def loop_rows(self, uid: str, frame: DataFrame) -> DataFrame:
        """Register the rows that the epoch before has fed, and return the frame."""
        return self._operator_outputs.add_loop(uid, frame)

    def input_of(self, frame: DataFrame) -> Input:
        """Return what feeds a frame.

        Before any operator has event time nobody needs to know, and no call to the JVM is made;
        unless rows of a loop may be all that the frame has.
        """
        origin = self._flow.note(frame)
        if not self.epoch.has_event_time and not self._operator_outputs.has_loops:
            return Input(origin=origin)
        uids, loops, others = self._operator_outputs.operators_of(frame)
        return Input(upstream=uids, source=others, loops=loops, origin=origin)

    def holds(self, given: Input, frame: DataFrame, event_time: str | None) -> Mapping[str, Hold]:
        """Return how what feeds a frame holds back the watermark of its rows."""
        by_operator = {}
        for uid in given.upstream:
            holds = self._holds.get(uid)
            if holds is not None and (holds.columns or holds.others is not None):
                name = (
                    None
                    if event_time is None
                    else self._operator_outputs.column(uid, frame, event_time)
                )
                hold = holds.of(name)
                if hold is not None:
                    by_operator[uid] = hold
                    if hold.kept:
                        self._traits.kept.add(uid)
        return by_operator

    def _tables_of_host(self, ranges: int) -> int:
        """About how many tables a host has, if all operators have so many ranges."""
        base = self.epoch.base
        operators = _FIRST_OPERATORS if base is None else len(base.operators)
        operators = max(operators, self.epoch.declared)
        # The driver is one of the executors, and may have a host of its own.
        hosts = len({name.rpartition(":")[0] for name in self._executors}) - 1
        return -(-ranges * operators // max(hosts, 1))

    def declare(
        self,
        operator: OperatorSpec,
        keys: KeySchema,
        *,
        inputs: Sequence[Input] = (),
        sides: Mapping[str, pa.Schema] = MappingProxyType({}),
        initial: Initial | None = None,
        counted: bool = False,
        invalid: Mapping[str, tuple[InvalidRule, pa.Schema | None]] = MappingProxyType({}),
    ) -> OperatorPlan:
        """Declare an operator to the epoch; return what its tasks must know."""
        epoch, uid = self.epoch, operator.uid
        operator = replace(operator, max_parallelism=epoch.max_parallelism)
        operator = operator.continuing(epoch.stored_states(uid))
        self._flow.declare(uid, inputs)
        if not self.options.tables.allow_pickle:
            refuse_pickled(operator.states, f"operator {uid!r}")
        _check_table(operator)
        sides = _with_invalid(uid, sides, invalid.values())
        folders = {tag: self._side_folder(uid, tag, sides[tag]) for tag in sides}
        if not epoch.begins(uid):
            if initial is not None:
                self._warn_begun(uid)
            initial = None
        seen, begun = epoch.begun.get(uid, ((), None))
        if initial is not None and begun is None:
            seen = initial.inputs_seen()
        ranges = epoch.declare(
            uid,
            key_schema=keys,
            state_schema=operator.stored_states(),
            inputs=inputs,
            timers=operator.timers,
            fills=operator.fills(),
            defaults=operator.defaults(),
            ttls=operator.ttls(),
            seen=seen,
            dropped=operator.dropped,
            expiring=Expiring.of(operator.states, None, None) if operator.expires else None,
        )
        time = epoch.time(uid)
        planned = self._planned_ranges(uid, ranges)
        stored = any(state.id != EMPTY_ID for state in ranges)
        plan = OperatorPlan(
            operator=operator,
            # The epoch has compared the declarations; other states in the files were dropped.
            options=replace(self.options.tables, allow_unclaimed_state=True),
            key_schema=keys,
            ranges=planned,
            storage=self._storage,
            application=epoch.job.application(self._storage),
            epoch=epoch.number,
            evaluation_id=self._id,
            query=_fingerprint(epoch, uid),
            processing_time_ms=epoch.processing_time_ms,
            time=time,
            event_time=any(given.event_time for given in inputs),
            drain=epoch.drain and time is not None,
            tells_kept=uid in self._traits.kept,
            held=self._held,
            redistributes=operator.instances and stored and planned[0].changes_parallelism,
            notice=epoch.notice,
            tables_of_host=self._tables_of_host(len(ranges)),
            side_folders=folders,
            invalid={name: rule for name, (rule, _) in invalid.items()},
            term=self._term,
            reports=self._box.accumulator,
            marks=self._marks,
        )
        if initial is None:
            return self._without_markers(plan) if counted else plan
        if begun is None:
            begun = initial.begin(plan)
            epoch.begun[uid] = seen, begun
        epoch.begin_with(uid, begun)
        return replace(
            plan,
            ranges=self._planned_ranges(uid, begun),
            redistributes=operator.instances and any(state.id != EMPTY_ID for state in begun),
        )

    def _without_markers(self, plan: OperatorPlan) -> OperatorPlan:
        """The plan without marker rows, if the rows can be counted and no range is due."""
        countable = (
            self._held is None
            and self.outputs.shows_plan
            and plan.operator.uid not in self._traits.materialised
            and not any(map(plan.has_work, plan.ranges))
        )
        return self._counted.add(plan) if countable else plan

    def _report_empty_ranges(
        self, staged: Mapping[str, Staged], frames: Sequence[DataFrame]
    ) -> EvaluationError | None:
        """Report the ranges that had no rows; return the error to raise if they are not known."""
        if not self._counted:
            return None

        def is_in_result(uid: str) -> bool:
            return any(self._operator_outputs.is_in(uid, frame) for frame in frames)

        return self._counted.report_empty(
            self.epoch, self._marks, lambda: Outputs.plans_of(staged), is_in_result, _HINT
        )

    def _planned_ranges(self, uid: str, ranges: Sequence[RangeState]) -> PlannedRanges:
        epoch = self.epoch
        return PlannedRanges(ranges, uid, epoch.head, self._storage, epoch.max_parallelism)

    def note_split(
        self,
        uid: str,
        columns: Sequence[tuple[str, TypeLike]],
        event_time: Callable[[Any], object] | None,
        given: Input,
    ) -> RddSplit:
        """Remember how an RDD was split for an operator that is declared later."""
        if uid in self._splits:
            raise DeclarationError(
                f"operator uid {uid!r} is used twice in one pipeline: each operator needs its own"
            )
        what = f"operator {uid!r}: key_type"
        keys = tuple(
            (name, refuse_nested_key(parse_type(ddl, what), what).ddl) for name, ddl in columns
        )
        split = self._splits[uid] = RddSplit(keys, event_time, given)
        return split

    def noted_split(self, uid: str) -> RddSplit:
        """Return what `note_split` remembered."""
        if uid not in self._splits:
            raise InvalidArgumentError(
                f"operator {uid!r}: split the RDD with job.partition_by(rdd, key, "
                f"uid={uid!r}, ...) first"
            )
        return self._splits[uid]

    def _side_folder(self, uid: str, tag: str, schema: pa.Schema) -> str:
        if tag not in self.outputs.sides:
            raise InvalidArgumentError(
                f"operator {uid!r} has the side output {tag!r}, and the job no sink for it: pass "
                f"side_outputs={{{tag!r}: ParquetSink(path)}} to start or run_epoch"
            )
        folder = self.outputs.side_folder(tag, schema, self.epoch.number, self._id)
        other, known = self._tags.setdefault(tag, (uid, schema))
        if known != schema:
            raise DeclarationError(
                f"operators {other!r} and {uid!r} share the side output {tag!r}, but with "
                "different columns: give one of them another tag"
            )
        return folder

    def _check_sides(self) -> None:
        unknown = sorted(set(self.outputs.sides) - set(self._tags))
        if unknown:
            raise InvalidArgumentError(
                f"side_outputs names {', '.join(map(repr, unknown))}, which no operator of the "
                f"pipeline has; it has {', '.join(map(repr, sorted(self._tags))) or 'none'}"
            )

    def run(
        self,
        data: Any,
        pipeline: Callable[[Any], Any],
        schema: Any,
        begin: Callable[[Outputs], None] = lambda outputs: None,
    ) -> list[Transaction]:
        """Call the pipeline, write its result through the sinks, collect the reports."""
        number = self.epoch.number
        context, timeout_ms = self.session.sparkContext, self.options.epoch_timeout_ms
        watch = EvaluationWatch(context, self._marks, self.tag, timeout_ms)
        described = JobDescription(context, self.epoch)
        self._flow.begin(data)
        try:
            with described, watch, _large_batches(self.session):
                frames = self._frames(pipeline(data), schema)
                self.epoch.check_declared()
                outputs = self.outputs.for_names(None if ONLY in frames else tuple(frames))
                self._check_sides()
                if outputs is not self.outputs:
                    self.outputs = outputs
                    begin(outputs)
                self._materialise_shared(list(frames.values()))
                described.operators(entry.uid for entry in self.epoch.entries())
                # The rows are staged, so that nobody sees them unless they count.
                with self._local_property(STAGING, self._id):
                    staged = {name: self._stage(name, frame) for name, frame in frames.items()}
        except Exception as error:
            self._take_reports()
            unsound = self._evaluated_twice() or self._hung(watch)
            if unsound is not None:
                raise unsound from error
            original = original_error(error)
            if isinstance(original, TableMovedError):
                raise RepeatableError(str(original), _HOME_HINT, is_progress=True) from error
            if original is error:
                original = as_function_error(error)
            if original is error:
                raise
            raise original from original.__cause__
        self._take_reports()
        # The pipeline may have caught the error of a refused task.
        results = list(frames.values())
        unsound = (
            self._evaluated_twice()
            or self._report_empty_ranges(staged, results)
            or self._read_in_part(results)
        )
        if unsound is not None:
            raise unsound
        transactions = outputs.prepare(staged, self.epoch.reports, number, self._id)
        self._note_flow(frames, staged, transactions)
        return transactions

    def _note_flow(
        self,
        frames: Mapping[str, DataFrame],
        staged: Mapping[str, Staged],
        transactions: Sequence[Transaction],
    ) -> None:
        """Count what came into the pipeline, and what was written."""
        reports = self.epoch.reports
        rows_in = self._flow.rows_in(reports)
        written = {}
        for (name, each), transaction in zip(staged.items(), transactions, strict=False):
            rows = rows_of(transaction) if each.rows is None else each.rows
            if rows is None:
                # The sink does not say it. What its operators have emitted is close to it.
                uids = self._operator_outputs.operators_of(frames[name])[0]
                rows = sum(int(r.metrics.get("rows_out", 0)) for r in reports if r.uid in uids)
            written[name] = rows
        named = {} if ONLY in written else written
        self.epoch.flow = Flow(rows_in.rows, sum(written.values()), rows_in.late, named)

    def _materialise_shared(self, frames: Sequence[DataFrame]) -> None:
        """Have operators that feed several outputs materialised: `RepeatableError` if new."""
        if len(frames) < 2:
            return
        uids = [entry.uid for entry in self.epoch.entries()]
        shared = {
            uid
            for uid in uids
            if self._operator_outputs.can_be_materialised([uid])
            and sum(self._operator_outputs.is_in(uid, frame) for frame in frames) > 1
        }
        if shared:
            names = ", ".join(map(repr, sorted(shared)))
            raise self._materialise(
                shared, f"epoch {self.epoch.number}: several outputs are made of {names}"
            )

    def _stage(self, name: str, frame: DataFrame) -> Staged:
        """Stage a frame that the pipeline has returned.

        If it is an operator's output as it is, the tasks that compute it write it.
        """
        number, outputs = self.epoch.number, self.outputs
        output = self._operator_outputs.selection(frame)
        form = None if output is None else outputs.task_format(name, frame, number)
        # A pipeline that has computed it already may have kept it.
        if output is None or form is None or output[0] in {uid for uid, _ in self._marks.begun()}:
            return outputs.stage_main(name, frame, number, self._id)
        uid, columns = output
        files = ResultFiles(uid, outputs.task_folder(name, number, self._id), columns, form)
        with self._local_property(WRITING, files.text()):
            return outputs.stage_written(self._operator_outputs.of_tasks(uid), form, uid)

    def _take_reports(self) -> None:
        for report in self._box.take():
            self.epoch.report(report)

    def _hung(self, watch: EvaluationWatch) -> EvaluationError | None:
        """Return the error to raise if the evaluation was given up."""
        if not watch.expired:
            return None
        reported = {(report.uid, report.index) for report in self.epoch.reports}
        hung = {key: mark for key, (mark, _) in self._marks.begun().items() if key not in reported}
        assert self.options.epoch_timeout_ms is not None
        text = (
            f"epoch {self.epoch.number}: no progress in {self.options.epoch_timeout_ms / 1000:g} s"
        )
        if hung:
            text += f": {describe_ranges(sorted(hung))} began and did not end"
        where = [
            f"{uid!r}, range {index}: process {mark.process_id} on {mark.host}, stage {mark.stage}"
            for (uid, index), mark in sorted(hung.items())[:_MOST_TASKS]
        ]
        return RepeatableError(
            "\n".join([text, *where, *watch.stages]),
            "look for a function that waits for something, or give epochs more time, "
            "Job(epoch_timeout=...)",
            "timeout",
        )

    @contextmanager
    def _local_property(self, name: str, value: str) -> Iterator[None]:
        """Tell the tasks of the Spark jobs within."""
        context = self.session.sparkContext
        context.setLocalProperty(name, value)
        try:
            yield
        finally:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _evaluated_twice(self) -> EvaluationError | None:
        """Return the error to raise if tasks were refused because another had begun their range."""
        refused = self._marks.refused()
        if not refused:
            return None
        ranges = sorted({(mark.uid, mark.index) for mark in refused})
        text = f"epoch {self.epoch.number}: {describe_ranges(ranges)} evaluated twice"
        first = self._marks.begun()
        ran_again = all(mark.runs_again(first[mark.uid, mark.index].mark) for mark in refused)
        if ran_again or not self._executors <= executors(self.session.sparkContext):
            return RepeatableError(f"{text}: a stage ran again after an executor was lost", _HINT)
        return self._materialise({uid for uid, _ in ranges}, f"{text}: it is read more than once")

    def _read_in_part(self, frames: Sequence[DataFrame]) -> EvaluationError | None:
        """Return the error to raise if operators were not read to their end.

        It is also None for an operator that nothing reads: `Epoch.collect` reports that.
        """
        missing = self.epoch.missing()
        if not missing:
            return None
        begun = {uid for uid, _ in self._marks.begun()}
        uids = dict.fromkeys(uid for uid, _ in missing)
        if not all(
            self._operator_outputs.can_be_materialised([uid])
            and (uid in begun or any(self._operator_outputs.is_in(uid, frame) for frame in frames))
            for uid in uids
        ):
            return None
        text = f"epoch {self.epoch.number}: {describe_ranges(missing)} not read to the end"
        return self._materialise(set(uids), text)

    def _materialise(self, uids: set[str], text: str) -> EvaluationError:
        if not self._operator_outputs.can_be_materialised(uids):
            hint = _RDD_HINT if uids & self._splits.keys() else _HINT
            return EvaluationError(f"{text}: {hint}")
        wanted = self._operator_outputs.materialise_from(uids)
        return RepeatableError(
            f"{text}; from now on the output of {', '.join(map(repr, wanted))} is materialised in "
            "each epoch, once, before it is read",
            _HINT,
        )

    def _frames(self, result: Any, schema: Any) -> dict[str, DataFrame]:
        """The frames that the pipeline has returned, by output; loops are taken with the first."""
        if isinstance(result, Mapping):
            frames = self._named_frames(result)
        else:
            frames = {ONLY: self._as_frame(result, schema)}
        first = next(iter(frames))
        return {**frames, first: self._operator_outputs.with_loops(frames[first])}

    def _named_frames(self, result: Mapping[Any, Any]) -> dict[str, DataFrame]:
        if not result:
            raise InvalidArgumentError(f"the pipeline returned an empty dict: {_RETURNS}")
        frames = {}
        for name, frame in result.items():
            text(name, "the pipeline's result: the name of an output")
            frames[name] = _checked_frame(frame, f"the pipeline's result: output {name!r}")
        return frames

    def _as_frame(self, result: Any, schema: Any) -> DataFrame:
        from pyspark.core.rdd import RDD

        if isinstance(result, RDD):
            if schema is None:
                raise InvalidArgumentError(
                    "the pipeline returned an RDD, which has no columns: pass schema=, e.g. "
                    "schema='key string, n long', or return a DataFrame"
                )
            parsed = parse_schema(schema, "run_epoch")
            # Spark takes a Row by position.
            named = partial(in_order, names=tuple(parsed.names), owner="run_epoch: the pipeline")
            return self.session.createDataFrame(result.mapPartitions(named), parsed)
        if result is None:
            raise InvalidArgumentError(f"the pipeline returned None: {_RETURNS}")
        return _checked_frame(result, "the pipeline's result")


@contextmanager
def _large_batches(session: SparkSession) -> Iterator[None]:
    """Make Spark pass larger Arrow batches, unless the user has set their size."""
    if session.conf.get(_BATCH_ROWS, _SPARK_BATCH_ROWS) != _SPARK_BATCH_ROWS:
        yield
        return
    session.conf.set(_BATCH_ROWS, _OUR_BATCH_ROWS)
    try:
        yield
    finally:
        session.conf.unset(_BATCH_ROWS)


def _checked_frame(result: Any, what: str) -> DataFrame:
    """A frame that a pipeline has returned; the error for anything else says what it may return."""
    try:
        return require_classic(result, what)
    except InvalidArgumentError as error:
        if hasattr(result, "sparkSession"):
            raise
        raise InvalidArgumentError(f"{error}. A pipeline: {_RETURNS}") from None


def _check_table(operator: OperatorSpec) -> None:
    """Refuse names and states for which the tasks could not make a table.

    A task without rows makes no table. So the epoch might be published all the same, and later code
    could not continue from it.
    """
    try:
        KeyedStateBackend.of(replace(operator, uid=""))
    except DeclarationError as error:
        raise DeclarationError(f"operator {operator.uid!r}: {error}") from error


def _fingerprint(epoch: Epoch, uid: str) -> int:
    """The operator's number in the lineage of its tables."""
    text = f"{epoch.job.checkpoint_id}/{epoch.position.query_id or ''}/{uid}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _with_invalid(
    uid: str,
    sides: Mapping[str, pa.Schema],
    invalid: Iterable[tuple[InvalidRule, pa.Schema | None]],
) -> Mapping[str, pa.Schema]:
    """The side outputs, with those for invalid rows."""
    schemas = dict(sides)
    for rule, schema in invalid:
        if rule.tag is None or schema is None:
            continue
        if schemas.setdefault(rule.tag, schema) != schema:
            raise InvalidArgumentError(
                f"operator {uid!r}: the tag {rule.tag!r} is for invalid rows, which have the "
                f"columns of their input, and for other rows with other columns: give one of them "
                "another tag"
            )
    return schemas
