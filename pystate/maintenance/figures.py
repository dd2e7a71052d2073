"""What is measured of jobs: the names of all metrics, and their values.

A running job and a reader of its checkpoint have the same figures by the same names, as both take
them from the record that an epoch leaves in the history, and from its manifest.

Thread safety: `JobFigures` has a lock; the driver's thread or a reader's updates it, and any thread
asks for samples. All else is immutable.

Invariants
----------
1. `METRICS` has every name that is exposed, with its labels, and no other.
2. A counter of one `JobFigures` never goes back, whatever is removed or set back meanwhile, but by
   `JobFigures.begin_anew`.
3. The samples of an operator are made once for each epoch, however often they are asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pystate.checkpoint.epoch_log import EpochRecord, OperatorRecord, Totals
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, is_merged
from pystate.operators.runtime.event_time import MAX_WATERMARK

_JOB = ("job_name",)
_OPERATOR = (*_JOB, "operator")
_RANGE = (*_OPERATOR, "range")
#: The parts of an epoch's time, as records name them.
_OPERATOR_PARTS = ("attach", "process", "seal", "write")
_PARTS = ("total", *_OPERATOR_PARTS, "publish", "commit")
_FILE_KINDS = ("base", "merged", "delta")


@dataclass(frozen=True)
class Metric:
    """A metric, by the name that it has in Prometheus."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    text: str
    """What it means, for people."""
    only: Literal["", "job", "checkpoint"] = ""
    """Who alone has it: the job itself, or who reads its checkpoint."""

    @property
    def unit(self) -> str:
        """Its unit, which its name ends with."""
        name = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if name.endswith(f"_{unit}")), "")


def _metrics(kind: Literal["counter", "gauge"], *rows: tuple[Any, ...]) -> tuple[Metric, ...]:
    return tuple(Metric(name, kind, labels, *rest) for name, labels, *rest in rows)


_P, _K = "part", "kind"
#: Every metric, in the order in which they are exposed.
METRICS: tuple[Metric, ...] = (
    *_metrics(
        "gauge",
        (
            "pystate_checkpoint_readable",
            _JOB,
            "1 if the checkpoint's newest epoch could be read when it was looked at last, 0 if not",
            "checkpoint",
        ),
        ("pystate_epoch", _JOB, "Number of the newest published epoch"),
        ("pystate_retained_epochs", _JOB, "Epochs that can be read", "checkpoint"),
        ("pystate_operators", _JOB, "Operators in the newest epoch"),
        (
            "pystate_checkpoint_timestamp_seconds",
            _JOB,
            "When the newest epoch was published, since 1970",
        ),
        (
            "pystate_checkpoint_age_seconds",
            _JOB,
            "Time since the newest epoch was published, by the clock of who exposes it",
        ),
        (
            "pystate_output_committed",
            _JOB,
            "1 if the newest epoch's output is committed, 0 if not; absent without output",
            "checkpoint",
        ),
        (
            "pystate_watermark_timestamp_seconds",
            _JOB,
            "The smallest watermark of its operators, since 1970; absent without event time, and "
            "after its end",
        ),
        (
            "pystate_watermark_lag_seconds",
            _JOB,
            "How far that watermark was behind the newest epoch's processing time",
        ),
        (
            "pystate_epoch_duration_seconds",
            (*_JOB, _P),
            "How long the newest epoch took, by part; of the parts of tasks the longest of any",
        ),
    ),
    *_metrics(
        "counter",
        (
            "pystate_epoch_time_seconds_total",
            (*_JOB, _P),
            "How long all epochs took, by part; of the parts of tasks the longest of each epoch",
        ),
        ("pystate_epochs_total", _JOB, "Epochs that were published"),
        ("pystate_batches_total", _JOB, "Batches of these epochs"),
        (
            "pystate_evaluations_total",
            _JOB,
            "How often these batches were computed, retries among it",
        ),
        ("pystate_retries_total", _JOB, "How often a batch was computed again"),
        (
            "pystate_checkpoints_aborted_total",
            _JOB,
            "Checkpoints that were given up since the job was made",
            "job",
        ),
        ("pystate_rows_in_total", _JOB, "Rows that came into the pipeline"),
        ("pystate_rows_out_total", _JOB, "Rows that were written"),
        ("pystate_rows_late_total", _JOB, "Rows that came in late; absent without event time"),
        (
            "pystate_driver_starts_total",
            _JOB,
            "Drivers that have taken the checkpoint over, the first one among them",
        ),
    ),
    *_metrics(
        "gauge",
        (
            "pystate_driver_running",
            _JOB,
            "1 if the driver runs, 0 if it has ended; absent where that cannot be seen",
            "checkpoint",
        ),
        ("pystate_operator_ranges", _OPERATOR, "Key-group ranges: its parallelism"),
        ("pystate_operator_keys", _OPERATOR, "Keys that it holds; on disk an estimate"),
        ("pystate_operator_state_bytes", _OPERATOR, "Memory of its tables"),
        (
            "pystate_operator_memory_rows",
            _OPERATOR,
            "Of tables on disk, the rows that are in memory",
        ),
        (
            "pystate_operator_watermark_timestamp_seconds",
            _OPERATOR,
            "Its watermark, since 1970; absent without event time, and after its end",
        ),
        (
            "pystate_operator_watermark_lag_seconds",
            _OPERATOR,
            "How far its watermark was behind the newest epoch's processing time",
        ),
        (
            "pystate_operator_files",
            (*_OPERATOR, _K),
            "State files: bases, deltas merged from others, and deltas as epochs wrote them",
        ),
        ("pystate_operator_file_bytes", (*_OPERATOR, _K), "Size of these files"),
        (
            "pystate_operator_files_deep",
            _OPERATOR,
            "Files that are read for one key group, where they are most",
        ),
        (
            "pystate_operator_duration_seconds",
            (*_OPERATOR, _P),
            "How long the newest epoch took, by part: the longest of any range",
        ),
    ),
    *_metrics(
        "counter",
        (
            "pystate_operator_time_seconds_total",
            (*_OPERATOR, _P),
            "How long all epochs took, by part: the longest range of each",
        ),
        ("pystate_operator_rows_in_total", _OPERATOR, "Rows that it read"),
        ("pystate_operator_rows_out_total", _OPERATOR, "Rows that it emitted"),
        ("pystate_operator_rows_late_total", _OPERATOR, "Rows below its watermark"),
        ("pystate_operator_rows_invalid_total", _OPERATOR, "Rows that it could not process"),
        ("pystate_operator_rows_changed_total", _OPERATOR, "State rows that epochs changed"),
        (
            "pystate_operator_rows_restored_total",
            _OPERATOR,
            "State rows that tables read from files before an epoch",
        ),
        (
            "pystate_operator_rows_moved_total",
            _OPERATOR,
            "State rows that tables took from those of another parallelism",
        ),
        (
            "pystate_operator_rows_evicted_total",
            _OPERATOR,
            "Of tables on disk, rows that left memory",
        ),
        (
            "pystate_operator_written_bytes_total",
            (*_OPERATOR, _K),
            "What was written of state: deltas, and files merged from others",
        ),
        (
            "pystate_operator_read_bytes_total",
            _OPERATOR,
            "Of tables on disk, what was read of files to look keys up",
        ),
        (
            "pystate_operator_cache_hits_total",
            _OPERATOR,
            "Of tables on disk, keys whose rows were in memory when they were needed",
        ),
        (
            "pystate_operator_cache_misses_total",
            _OPERATOR,
            "Of tables on disk, keys that had to be looked up in files, new ones among them",
        ),
        (
            "pystate_operator_files_asked_total",
            _OPERATOR,
            "Of tables on disk, files in which these were looked up, added up over the keys",
        ),
    ),
    *_metrics(
        "gauge",
        ("pystate_range_keys", _RANGE, "About how many keys its files hold"),
        ("pystate_range_files", (*_RANGE, _K), "State files of the range"),
        ("pystate_range_file_bytes", _RANGE, "Size of the part of these files that counts in it"),
        ("pystate_operators_left_out", (), "Operators without metrics: there are too many"),
        ("pystate_ranges_left_out", (), "Ranges without metrics: there are too many"),
        ("pystate_collect_duration_seconds", (), "How long it took to collect these metrics"),
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}

#: Counters of the whole pipeline, and of operators, by what they add up.
_JOB_COUNTERS = {
    "epochs": "pystate_epochs_total",
    "batches": "pystate_batches_total",
    "evaluations": "pystate_evaluations_total",
    "rows_in": "pystate_rows_in_total",
    "rows_out": "pystate_rows_out_total",
    "late_rows": "pystate_rows_late_total",
}
_OPERATOR_COUNTERS = {
    "rows_in": "rows_in",
    "rows_out": "rows_out",
    "late_rows": "rows_late",
    "invalid_rows": "rows_invalid",
    "rows_changed": "rows_changed",
    "rows_restored": "rows_restored",
    "rows_copied": "rows_moved",
    "rows_left": "rows_evicted",
    "read_bytes": "read_bytes",
    "cache_hits": "cache_hits",
    "cache_misses": "cache_misses",
    "files_asked": "files_asked",
}


class Sample(NamedTuple):
    """One value of a metric, and the values of its labels in their order."""

    name: str
    labels: tuple[str, ...]
    value: float


class OperatorSamples(NamedTuple):
    """What is exposed of an operator."""

    uid: str
    ranges: int
    samples: tuple[Sample, ...]
    of_ranges: tuple[Sample, ...]


class JobFigures:
    """What is known of one job, under one name.

    Attributes
    ----------
    job : str
        Its name among the metrics.
    version : int
        It grows whenever what `operators` returns becomes another one.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.version = 0
        self._lock = threading.Lock()
        self._totals = Totals()
        self._record: EpochRecord | None = None
        self._manifest: Manifest | None = None
        self._facts: dict[str, float] = {}
        self._operators: tuple[OperatorSamples, ...] | None = ()

    @property
    def counted(self) -> int:
        """The newest epoch that the counters have."""
        return self._totals.epoch

    def begin_anew(self, totals: Totals) -> None:
        """Take what all epochs add up to from elsewhere; no record counts as the newest one."""
        with self._lock:
            self._totals, self._record = totals, None

    def update(self, manifest: Manifest | None, records: Iterable[EpochRecord] = ()) -> None:
        """Note the newest epoch, and records of epochs in their order; each counts once."""
        with self._lock:
            for record in records:
                self._totals.add(record)
                if self._record is None or record.epoch >= self._record.epoch:
                    self._record = record
            if manifest is not None:
                self._manifest = manifest
            self._operators = None
            self.version += 1

    def note(self, **facts: float | None) -> None:
        """Note metrics that are neither in records nor in manifests, without ``pystate_``.

        With None one is not known any more.
        """
        with self._lock:
            for name, value in facts.items():
                assert f"pystate_{name}" in BY_NAME, name
                if value is None:
                    self._facts.pop(f"pystate_{name}", None)
                else:
                    self._facts[f"pystate_{name}"] = value

    def samples(self, now_s: float) -> list[Sample]:
        """The samples of the job as a whole; `now_s` is the time since 1970."""
        with self._lock:
            return list(self._job_samples(now_s))

    def operators(self) -> tuple[OperatorSamples, ...]:
        """The samples of each operator in the newest epoch, by uid."""
        with self._lock:
            if self._operators is None:
                self._operators = tuple(self._operator_samples())
            return self._operators

    def _job_samples(self, now_s: float) -> Iterator[Sample]:
        job, manifest, record = (self.job,), self._manifest, self._record
        for name, value in self._facts.items():
            yield Sample(name, job, value)
        if manifest is not None:
            published_s = manifest.created_ms / 1000
            yield Sample("pystate_epoch", job, manifest.epoch)
            yield Sample("pystate_operators", job, len(manifest.operators))
            yield Sample("pystate_checkpoint_timestamp_seconds", job, published_s)
            # Clocks of two hosts differ; an age is no less than nothing.
            yield Sample("pystate_checkpoint_age_seconds", job, max(0.0, now_s - published_s))
            yield from _watermark("pystate_watermark", job, manifest.watermark_ms, manifest)
        if record is not None:
            for part in _PARTS:
                took_ms = (
                    record.longest(f"{part}_ms")
                    if part in _OPERATOR_PARTS
                    else getattr(record, f"{part}_ms")
                )
                yield Sample("pystate_epoch_duration_seconds", (*job, part), took_ms / 1000)
        sums = self._totals.sums.get("", {})
        if not sums:
            return
        for part in _PARTS:
            took_s = sums.get(f"{part}_ms", 0.0) / 1000
            yield Sample("pystate_epoch_time_seconds_total", (*job, part), took_s)
        for key, name in _JOB_COUNTERS.items():
            if key in sums:
                yield Sample(name, job, sums[key])
        retries = sums.get("evaluations", 0) - sums.get("batches", 0)
        yield Sample("pystate_retries_total", job, retries)

    def _operator_samples(self) -> Iterator[OperatorSamples]:
        if self._manifest is None:
            return
        records = {} if self._record is None else {r.uid: r for r in self._record.operators}
        for operator in sorted(self._manifest.operators, key=lambda each: each.uid):
            labels, uid = (self.job, operator.uid), operator.uid
            samples = [
                Sample("pystate_operator_ranges", labels, operator.parallelism),
                *_watermark(
                    "pystate_operator_watermark", labels, operator.watermark_ms, self._manifest
                ),
                *_files(operator, labels),
                *_last_epoch(records.get(uid), labels),
                *_counters(self._totals.sums.get(uid), labels),
            ]
            ranges = tuple(s for state in operator.ranges for s in _of_range(state, labels))
            yield OperatorSamples(uid, len(operator.ranges), tuple(samples), ranges)


def _watermark(
    prefix: str, labels: tuple[str, ...], watermark_ms: int | None, manifest: Manifest
) -> Iterator[Sample]:
    # After the end of event time there is nothing left that could lag.
    if watermark_ms is None or watermark_ms >= MAX_WATERMARK:
        return
    yield Sample(f"{prefix}_timestamp_seconds", labels, watermark_ms / 1000)
    lag_s = (manifest.processing_time_ms - watermark_ms) / 1000
    yield Sample(f"{prefix}_lag_seconds", labels, lag_s)


def _kind(ref: FileRef) -> str:
    if ref.kind == "base":
        return "base"
    return "merged" if is_merged(ref.path) else "delta"


def _files(operator: OperatorState, labels: tuple[str, ...]) -> Iterator[Sample]:
    files = {ref.path: ref for ref in operator.files}.values()
    for kind in _FILE_KINDS:
        sizes = [ref.file_bytes for ref in files if _kind(ref) == kind]
        yield Sample("pystate_operator_files", (*labels, kind), len(sizes))
        yield Sample("pystate_operator_file_bytes", (*labels, kind), sum(sizes))
    deepest = max((state.depth for state in operator.ranges), default=0)
    yield Sample("pystate_operator_files_deep", labels, deepest)


def _last_epoch(record: OperatorRecord | None, labels: tuple[str, ...]) -> Iterator[Sample]:
    if record is None:
        return
    yield Sample("pystate_operator_keys", labels, record.keys)
    yield Sample("pystate_operator_state_bytes", labels, record.state_bytes)
    yield Sample("pystate_operator_memory_rows", labels, record.rows_in_memory)
    for part in _OPERATOR_PARTS:
        took_s = getattr(record, f"{part}_ms") / 1000
        yield Sample("pystate_operator_duration_seconds", (*labels, part), took_s)


def _counters(sums: dict[str, float] | None, labels: tuple[str, ...]) -> Iterator[Sample]:
    if sums is None:
        return
    for part in _OPERATOR_PARTS:
        took_s = sums.get(f"{part}_ms", 0.0) / 1000
        yield Sample("pystate_operator_time_seconds_total", (*labels, part), took_s)
    for key, name in _OPERATOR_COUNTERS.items():
        if key in sums:
            yield Sample(f"pystate_operator_{name}_total", labels, sums[key])
    for key, kind in (("checkpoint_bytes", "delta"), ("merged_bytes", "merged")):
        written = "pystate_operator_written_bytes_total"
        yield Sample(written, (*labels, kind), sums.get(key, 0))


def _of_range(state: RangeState, labels: tuple[str, ...]) -> Iterator[Sample]:
    labels = (*labels, str(state.index))
    kinds = [_kind(ref) for ref in state.files]
    yield Sample("pystate_range_keys", labels, state.estimated_keys)
    for kind in _FILE_KINDS:
        yield Sample("pystate_range_files", (*labels, kind), kinds.count(kind))
    size = sum(int(ref.file_bytes * ref.share) for ref in state.files)
    yield Sample("pystate_range_file_bytes", labels, size)
