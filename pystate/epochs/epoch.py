"""An epoch in the making: its base, and which ranges must report and which have.

Thread safety: `Epoch.report` may be called from any thread (accumulator updates arrive on a thread
of their own); everything else belongs to the thread that opened the epoch.

Invariants
----------
1. A report counts only if it carries the uuid of the current evaluation; the file of any other
   report is never adopted, and is left to orphan collection.
2. An epoch is complete with exactly one report per declared (operator, range), each built on
   exactly the id that the base names.
3. Nothing is visible before the manifest is published, and nothing is undone after that.
4. Processing time and watermarks depend only on the base, the position and the pipeline: an epoch
   that is computed again has the same ones. A watermark never goes back, and processing time only
   if the job allows it. See `pystate.epochs.watermarks`.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pystate._core.core import range_bounds
from pystate.checkpoint.job_file import JobFile, OperatorEntry, check_schemas
from pystate.checkpoint.manifest import ClockReading, Manifest
from pystate.checkpoint.refs import (
    InputState,
    OperatorState,
    RangeState,
    Schema,
    as_schema,
    empty_range,
    has_timers,
    uid_folder,
)
from pystate.epochs.interval import Step
from pystate.epochs.listeners import CheckpointNotice
from pystate.epochs.position import Position
from pystate.epochs.range_report import (
    InputSeen,
    RangeReport,
    advance_range,
    check_report,
)
from pystate.epochs.rescale import plan_rescale
from pystate.epochs.schema_match import evolved_ranges
from pystate.epochs.watermarks import Input, OperatorTime, Watermarks
from pystate.errors import (
    CheckpointError,
    DeclarationError,
    EvaluationError,
    InvalidArgumentError,
    NoEventTimeError,
    UnclaimedStateError,
)
from pystate.state.declaration import Defaults, Ttls
from pystate.state.expiring import Expiring
from pystate.types.fills import Fills

NO_END = (
    "drain=True takes the watermark to its end, and no operator of the pipeline has event time, so "
    "that there is none: name the column that has it, key_by(..., event_time='column'), or leave "
    "drain out"
)


class RepeatableError(EvaluationError):
    """An evaluation does not count, but may succeed when it is repeated.

    The `hint` says what to do if it happens again, which is known by an equal `kind`. If the cause
    was fixed (`is_progress`), the evaluation does not count towards the job's maximum.
    """

    def __init__(
        self, message: str, hint: str, kind: str = "", *, is_progress: bool = False
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.kind = kind or message
        self.is_progress = is_progress


@dataclass(frozen=True)
class Flow:
    """The rows that went through a whole pipeline."""

    rows_in: int
    """Those that came into it."""
    rows_out: int
    """Those that were written, without side outputs."""
    late_rows: int | None
    """How many of those that came were late; None without event time."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """Those that were written, by the name of the output; empty if the outputs have no names."""


class Epoch:
    """An epoch from its opening to its manifest; `Coordinator.open_epoch` makes it."""

    def __init__(
        self,
        *,
        number: int,
        base: Manifest | None,
        position: Position,
        processing_time_ms: int,
        clock: ClockReading,
        job: JobFile,
        parallelism: int,
        allow_unclaimed_state: bool,
        publish: Callable[[Epoch, Sequence[Any]], Manifest],
        closed: Callable[[Epoch], None],
        drain: bool = False,
        notice: CheckpointNotice = CheckpointNotice(),  # noqa: B008
        head: Manifest | None = None,
        step: Step = Step(),  # noqa: B008
    ) -> None:
        #: One more than that of the checkpoint's newest epoch.
        self.number = number
        #: The manifest that the epoch is built on; None for the first epoch.
        self.base = base
        self.position = position
        self.processing_time_ms = processing_time_ms
        #: The reading that determined the processing time.
        self.clock = clock
        #: Whether event time ends after the epoch's rows; see `MAX_WATERMARK`.
        self.drain = drain
        #: Which checkpoints its functions are to learn of.
        self.notice = notice
        #: The newest published manifest: `base`, unless steps are held.
        self.head = head
        self.step = step
        #: What went through the pipeline, once that is known; None without a pipeline.
        self.flow: Flow | None = None
        self.discarded_evaluations: list[str] = []
        #: What operators begin with that begin in this epoch; its evaluations share it.
        self.begun: dict[str, tuple[tuple[InputState, ...], tuple[RangeState, ...]]] = {}
        self._job = job
        self._parallelism = parallelism
        self._allow_unclaimed_state = allow_unclaimed_state
        self._publish = publish
        self._closed = closed
        self._lock = threading.Lock()
        self._open = True
        #: The uuid (hex) of the current evaluation; new after each `restart`.
        self.evaluation_id = uuid.uuid4().hex
        self._declared: dict[str, OperatorState] = {}
        #: How states expire, by the uids of operators some of whose do.
        self.expiring: dict[str, Expiring] = {}
        self._watermarks = self._begun_watermarks()
        self._reports: list[RangeReport] = []
        self._dropped: list[RangeReport] = []

    @property
    def job(self) -> JobFile:
        """The checkpoint's identity."""
        return self._job

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self._job.max_parallelism

    @property
    def parallelism(self) -> int:
        """Number of ranges of an operator, unless it is declared with another one."""
        return self._parallelism

    @property
    def reports(self) -> tuple[RangeReport, ...]:
        """The reports of the current evaluation so far."""
        with self._lock:
            return tuple(self._reports)

    @property
    def dropped_reports(self) -> tuple[RangeReport, ...]:
        """Reports of other evaluations; their files are orphans."""
        with self._lock:
            return tuple(self._dropped)

    @property
    def is_open(self) -> bool:
        """Whether the epoch is neither completed nor aborted."""
        return self._open

    def declare(
        self,
        uid: str,
        *,
        key_schema: Mapping[str, str] | Schema,
        state_schema: Mapping[str, str] | Schema,
        parallelism: int | None = None,
        inputs: Sequence[Input] = (),
        timers: bool | None = None,
        fills: Mapping[str, Fills] = MappingProxyType({}),
        defaults: Defaults = (),
        ttls: Ttls = (),
        seen: Sequence[InputState] = (),
        dropped: Collection[str] = (),
        expiring: Expiring | None = None,
    ) -> tuple[RangeState, ...]:
        """Declare an operator of the current evaluation, after those that feed it.

        Returns the state that each range must attach to. Without `timers` it has timers if it had
        any, or reports one. `fills` has the defaults of fields that are added to structs, by the
        states' names in files; `defaults` what keys without a value have, and `ttls` how long what
        is in states lives, both for readers of the checkpoint. An operator that is not in the base
        has `seen` of its inputs before this epoch. States that are `dropped` may be left out even
        if unclaimed state is not allowed. What is `expiring` is left out by merges, by the clock of
        the epoch that plans them.
        """
        self._check_open()
        if uid in self._declared:
            raise DeclarationError(
                f"operator uid {uid!r} is used twice in one pipeline: each operator needs its own"
            )
        width = self._parallelism if parallelism is None else parallelism
        if not 1 <= width <= self.max_parallelism:
            raise InvalidArgumentError(
                f"operator {uid!r}: parallelism {width} is not between 1 and "
                f"max_parallelism={self.max_parallelism}"
            )
        uid_folder(uid)
        keys, states = as_schema(key_schema), as_schema(state_schema)
        stored = None if self.base is None else self.base.operator(uid)
        gone = set(dropped).difference(name for name, _ in states)
        if stored is None:
            ranges = tuple(empty_range(i, self.max_parallelism, width) for i in range(width))
        else:
            check_schemas(
                uid,
                (
                    stored.key_schema,
                    tuple(pair for pair in stored.state_schema if pair[0] not in gone),
                ),
                (keys, states),
                allow_unclaimed_state=self._allow_unclaimed_state,
            )
            if width != stored.parallelism and any(state.held for state in stored.ranges):
                raise CheckpointError(
                    f"operator {uid!r}: the parallelism changes from {stored.parallelism} to "
                    f"{width} between two checkpoints: take one first"
                )
            timers = stored.timers if timers is None else timers
            ranges = evolved_ranges(
                stored,
                plan_rescale(stored, width, self.max_parallelism),
                states,
                timers,
                self.number,
                allow_unclaimed_state=self._allow_unclaimed_state,
                fills=fills,
            )
        known = tuple(seen) if stored is None else stored.inputs
        declared = OperatorState(
            uid,
            width,
            keys,
            states,
            ranges,
            timers or False,
            known,
            defaults=tuple(defaults),
            ttls=tuple(ttls),
        )
        self._declared[uid] = declared
        if expiring is not None:
            self.expiring[uid] = expiring
        self._watermarks.declare(uid, inputs, declared if stored is None else stored)
        return ranges

    def stored_states(self, uid: str) -> Schema:
        """Return the states that the base has of an operator; none if it does not have it."""
        stored = None if self.base is None else self.base.operator(uid)
        return () if stored is None else stored.state_schema

    def begins(self, uid: str) -> bool:
        """Whether the base does not have an operator, so that it begins with this epoch."""
        return self.base is None or self.base.operator(uid) is None

    def begin_with(self, uid: str, ranges: Sequence[RangeState]) -> None:
        """Give a declared operator, which begins with this epoch, the state that it begins with.

        The files of these ranges, which are all of its ranges, are durable.
        """
        assert self.begins(uid), f"operator {uid!r} is in the base"
        self._declared[uid] = replace(self._declared[uid], ranges=tuple(ranges))

    def time(self, uid: str) -> OperatorTime | None:
        """Return the event time of a declared operator; None if it has none."""
        return self._watermarks.time(uid)

    @property
    def declared(self) -> int:
        """How many operators are declared so far."""
        return len(self._declared)

    @property
    def has_event_time(self) -> bool:
        """Whether any operator that is declared so far has event time."""
        return self._watermarks.any

    def has_watermark(self, given: Input) -> bool:
        """Whether an input has a watermark, after the operators that feed it are declared."""
        return self._watermarks.is_timed(given)

    def _begun_watermarks(self) -> Watermarks:
        before_ms = None if self.base is None else self.base.processing_time_ms
        return Watermarks(before_ms, self.processing_time_ms)

    def check_declared(self) -> None:
        """Make sure that every operator of the base is declared; call it once the plan is built."""
        if self.drain and not self.has_event_time:
            raise NoEventTimeError(NO_END)
        stored = () if self.base is None else self.base.operators
        missing = [operator.uid for operator in stored if operator.uid not in self._declared]
        if missing and not self._allow_unclaimed_state:
            raise UnclaimedStateError(
                f"the checkpoint holds state of operators that the pipeline does not declare: "
                f"{', '.join(map(repr, missing))}; {self._rename_hint(missing)}declare them under "
                "the same uid, or pass allow_unclaimed_state=True, which carries their state along "
                "untouched, and lets new operators begin without state"
            )

    def _rename_hint(self, missing: Sequence[str]) -> str:
        """How the state of these operators gets to new ones that seem to be the same."""
        assert self.base is not None
        alike: dict[tuple[Schema, Schema], deque[str]] = {}
        for uid, operator in self._declared.items():
            if self.base.operator(uid) is None:
                schemas = operator.key_schema, operator.state_schema
                alike.setdefault(schemas, deque()).append(uid)
        names: dict[str, str] = {}
        for uid in missing:
            stored = self.base.operator(uid)
            assert stored is not None
            candidates = alike.get((stored.key_schema, stored.state_schema))
            if candidates:
                names[uid] = candidates.popleft()
        if not names:
            return ""
        old, uid = next(iter(names.items()))
        seems = f"{old!r} looks like {uid!r} under another name: "
        if self.base.term == 0:  # the job begins with a savepoint
            return f"{seems}start the job again with uid_map={names}; or else "
        return (
            f"{seems}take a savepoint, and begin with it in another folder, by "
            f"Job(..., restore=..., uid_map={names}); or else "
        )

    def report(self, report: RangeReport) -> bool:
        """Take a task's report; return False if it belongs to another evaluation."""
        with self._lock:
            if self._open and report.evaluation_id == self.evaluation_id:
                self._reports.append(report)
                return True
            self._dropped.append(report)
            return False

    def restart(self) -> None:
        """Discard the evaluation and begin another one under a new uuid."""
        self._check_open()
        with self._lock:
            self.discarded_evaluations.append(self.evaluation_id)
            self.evaluation_id = uuid.uuid4().hex
            self._dropped.extend(self._reports)
            self._reports = []
        self._declared = {}
        self._watermarks = self._begun_watermarks()

    def complete(self, sink_transactions: Sequence[Any] = ()) -> Manifest:
        """Publish the epoch, then commit its sink transactions, which are JSON values.

        After an `EvaluationError`, reports that are missing or repeated, nothing was published, and
        `restart` may be called. What `commit_sinks` raises comes after the epoch was published: the
        next call of `open_epoch` commits again.
        """
        self._check_open()
        return self._publish(self, sink_transactions)

    def abort(self) -> None:
        """Give up the epoch without any effect. Does nothing if the epoch has ended."""
        if self._open:
            self._end()

    def __enter__(self) -> Epoch:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def _end(self) -> None:
        with self._lock:
            self._open = False
            self._dropped.extend(self._reports)
        self._closed(self)

    def _check_open(self) -> None:
        if not self._open:
            raise CheckpointError(f"epoch {self.number} has ended; open another one")

    def entries(self) -> tuple[OperatorEntry, ...]:
        """Return the entries of ``job.json`` for the declared operators."""
        return tuple(map(OperatorEntry.of, self._declared.values()))

    def failures(self) -> list[str]:
        """Why ranges could not write the state of a step that was to close the epoch."""
        return [report.failure for report in self.reports if report.failure]

    def missing(self) -> list[tuple[str, int]]:
        """Return the (uid, range) pairs that have not reported, in the order of declaration."""
        reported = {(report.uid, report.index) for report in self.reports}
        return [
            (operator.uid, state.index)
            for operator in self._declared.values()
            for state in operator.ranges
            if (operator.uid, state.index) not in reported
        ]

    def collect(self, *, closed: bool = True) -> tuple[OperatorState, ...]:
        """Check the reports and return every operator as it is after the epoch.

        The state is what the reports' files hold, if the epoch is `closed`; else it may be held.
        Raises `RepeatableError` if reports are repeated, and other errors as `complete` does.
        """
        self.check_declared()
        reports = tuple(dict.fromkeys(_Identity(report) for report in self.reports))
        by_range = {identity.key: identity.report for identity in reports}
        self._check_known(by_range)
        counts = Counter(identity.key for identity in reports)
        repeated = sorted(key for key, count in counts.items() if count > 1)
        if repeated:
            raise RepeatableError(
                f"epoch {self.number}: {describe_ranges(repeated)} reported more than once: the "
                "operator was evaluated twice, or a stage ran again after an executor was lost",
                "localCheckpoint() what an operator returns before it is used more than once, so "
                "that Spark computes it once",
            )
        missing = self.missing()
        if missing:
            raise EvaluationError(
                f"epoch {self.number}: no report from {describe_ranges(missing)}: nothing was "
                "published. Likely causes: a limit() or take() that stops reading early, a join "
                "with an empty side, or a branch of the pipeline that nothing uses; every "
                "stateful operator must be read to its end"
            )
        carried = () if self.base is None else self.base.operators
        seen: dict[str, list[InputSeen]] = {}
        for report in by_range.values():
            seen.setdefault(report.uid, []).extend(report.inputs)
        grown = [self._advance(operator, by_range, closed) for operator in self._declared.values()]
        return (
            *self._watermarks.after(grown, seen),
            *(operator for operator in carried if operator.uid not in self._declared),
        )

    def _check_known(self, by_range: Mapping[tuple[str, int], RangeReport]) -> None:
        for (uid, index), report in by_range.items():
            operator = self._declared.get(uid)
            if operator is None or not 0 <= index < operator.parallelism:
                raise EvaluationError(
                    f"epoch {self.number}: a report from operator {uid!r}, range {index}, "
                    "which this evaluation never declared"
                )
            check_report(
                report,
                operator.ranges[index],
                f"epoch {self.number}, operator {uid!r}, range {index}",
                self.number,
                range_bounds(index, self.max_parallelism, operator.parallelism),
                closes=self.step.closes,
            )

    def _advance(
        self,
        operator: OperatorState,
        by_range: Mapping[tuple[str, int], RangeReport],
        closed: bool,
    ) -> OperatorState:
        ranges = []
        for state in operator.ranges:
            report = by_range[operator.uid, state.index]
            # After a change of parallelism a range's next task finds out the range's own timers,
            # even if it does nothing else.
            state = replace(
                state,
                next_event_timer_ms=report.next_event_timer_ms,
                next_processing_timer_ms=report.next_processing_timer_ms,
            )
            ranges.append(advance_range(state, report, closed=closed))
        return replace(
            operator,
            ranges=tuple(ranges),
            timers=operator.timers or has_timers(tuple(ranges)),
        )


class _Identity:
    """A report as a key: a report that arrives twice unchanged, from one attempt, counts once."""

    __slots__ = ("key", "report")

    def __init__(self, report: RangeReport) -> None:
        self.report = report
        self.key = (report.uid, report.index)

    def __hash__(self) -> int:
        return hash((self.key, self.report.id))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.report == self.report


def describe_ranges(keys: Sequence[tuple[str, int]]) -> str:
    """Describe (uid, index) pairs, at most a few per operator."""
    indices: dict[str, list[int]] = {}
    for uid, index in keys:
        indices.setdefault(uid, []).append(index)
    texts = []
    for uid, numbers in indices.items():
        shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
        texts.append(f"operator {uid!r}, range{'s' if len(numbers) > 1 else ''} {shown}")
    return "; ".join(texts)
