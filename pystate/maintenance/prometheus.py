"""Figures of jobs for Prometheus, by the package prometheus_client: the extra ``metrics``.

Two collectors have the same metrics by the same names: `DriverMetrics` has those of the jobs that
run in this process, and `CheckpointMetrics` reads them from checkpoints, whichever process runs the
jobs.

Thread safety: all methods may be called from any thread.

Invariants
----------
1. This module is imported without prometheus_client, which only those need who collect.
2. A collection waits for checkpoints no longer than it is told to. What is not read by then keeps
   its figures until the next one; what was never read has none.
3. Of operators and ranges no more are exposed than the limits say; which, does not depend on the
   order in which checkpoints answer.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from pystate.base.arguments import folder_path, integer, shown
from pystate.base.installation import extra
from pystate.epochs.listeners import CheckpointListener, PublishedEpoch
from pystate.errors import InvalidArgumentError, MissingPackageError, WrongTypeError
from pystate.maintenance.checkpoint_figures import CheckpointFigures
from pystate.maintenance.figures import BY_NAME, METRICS, JobFigures, Sample
from pystate.maintenance.figures import Metric as Named

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample as Exposed

_MOST_OPERATORS, _MOST_RANGES = 1000, 2000
_THREADS = 8
_MOST_WAIT_S = 3600.0


def _require() -> Any:
    """The package, or one line that says how to install it."""
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingPackageError(
            f"metrics need prometheus_client ({error}): {extra('metrics')}"
        ) from error
    return prometheus_client


class FiguresCollector(ABC):
    """Collects the figures of some jobs; register it with a registry of prometheus_client."""

    def __init__(self, most_operators: int, most_ranges: int) -> None:
        _require()
        self._most_operators, self._most_ranges = most_operators, most_ranges
        self._lock = threading.Lock()
        #: Of operators, in the form of prometheus_client, by job: as of a version of the figures.
        self._exposed: weakref.WeakKeyDictionary[JobFigures, tuple[int, list[_Operator]]]
        self._exposed = weakref.WeakKeyDictionary()

    @abstractmethod
    def figures(self) -> list[JobFigures]:
        """The jobs, up to date."""

    def describe(self) -> Iterable[Metric]:
        """All names: a registry refuses a second collector that has them."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterator[Metric]:
        """All metrics that have a value."""
        began_s = time.perf_counter()
        jobs = sorted(self.figures(), key=lambda figures: figures.job)
        found: dict[str, list[Exposed]] = {}
        operators_left, ranges_left = self._most_operators, self._most_ranges
        operators_out = ranges_out = 0
        now_s = time.time()
        with self._lock:
            for job in jobs:
                _sort(found, [_exposed(sample) for sample in job.samples(now_s)])
                for operator in self._operators(job):
                    if not operators_left:
                        operators_out += 1
                        ranges_out += operator.ranges
                        continue
                    operators_left -= 1
                    _sort(found, operator.samples)
                    # All of an operator's ranges or none: their sum is then no wrong one.
                    if operator.ranges > ranges_left:
                        ranges_out += operator.ranges
                        continue
                    ranges_left -= operator.ranges
                    _sort(found, operator.of_ranges)
        took_s = time.perf_counter() - began_s
        for name, value in (
            ("pystate_operators_left_out", operators_out),
            ("pystate_ranges_left_out", ranges_out),
            ("pystate_collect_duration_seconds", took_s),
        ):
            _sort(found, [_exposed(Sample(name, (), value))])
        for metric in METRICS:
            if metric.name in found:
                family = _family(metric)
                family.samples = found[metric.name]
                yield family

    def _operators(self, job: JobFigures) -> list[_Operator]:
        version, known = self._exposed.get(job, (-1, []))
        if version != job.version:
            # An update in between makes it only look again.
            version = job.version
            known = [
                _Operator(
                    each.ranges,
                    [_exposed(sample) for sample in each.samples],
                    [_exposed(sample) for sample in each.of_ranges],
                )
                for each in job.operators()
            ]
            self._exposed[job] = version, known
        return known


class _Operator:
    """What is exposed of an operator, in the form of prometheus_client."""

    __slots__ = ("of_ranges", "ranges", "samples")

    def __init__(self, ranges: int, samples: list[Exposed], of_ranges: list[Exposed]) -> None:
        self.ranges, self.samples, self.of_ranges = ranges, samples, of_ranges


def _family(metric: Named) -> Metric:
    from prometheus_client.core import Metric

    return Metric(metric.name.removesuffix("_total"), metric.text, metric.kind)


def _exposed(sample: Sample) -> Exposed:
    from prometheus_client.samples import Sample as Exposed

    labels = dict(zip(BY_NAME[sample.name].labels, sample.labels, strict=True))
    return Exposed(sample.name, labels, float(sample.value))


def _sort(found: dict[str, list[Exposed]], samples: Iterable[Exposed]) -> None:
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)


# ---- jobs of this process ------------------------------------------------------------------------

#: The collector of each registry, which all jobs of this process share that have it.
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _DriverCollector]
_collectors = weakref.WeakKeyDictionary()
_collecting = threading.Lock()


class _DriverCollector(FiguresCollector):
    """The jobs of this process that expose their metrics by one registry.

    A job's series are there as long as the job is. One that is made anew on the same checkpoint
    goes on with the series of the one before, while that is still there.
    """

    def __init__(self) -> None:
        super().__init__(_MOST_OPERATORS, _MOST_RANGES)
        self._jobs: weakref.WeakValueDictionary[str, JobFigures] = weakref.WeakValueDictionary()

    def figures(self) -> list[JobFigures]:
        with self._lock:
            return list(self._jobs.values())

    def job(self, name: str, location: str) -> JobFigures:
        """The figures of a job; its name gets a number if other jobs here have the same one."""
        with self._lock:
            known = self._jobs.get(location)
            if known is None:
                taken = {figures.job for figures in self._jobs.values()}
                known = self._jobs[location] = JobFigures(free_name(name, taken))
            return known


def free_name(name: str, taken: Iterable[str]) -> str:
    """The name, with a number from 2 on if it is taken."""
    used, free, number = set(taken), name, 1
    while free in used:
        number += 1
        free = f"{name}-{number}"
    return free


class DriverMetrics(CheckpointListener):
    """Counts the epochs of one job as they are published, and exposes them by a registry."""

    def __init__(self, registry: object, owner: str) -> None:
        client = _require()
        if not isinstance(registry, client.CollectorRegistry):
            raise WrongTypeError(
                f"{owner}: metrics is a prometheus_client.CollectorRegistry, such as "
                f"prometheus_client.REGISTRY, not {shown(registry)}"
            )
        self._registry: CollectorRegistry = registry
        self._figures: JobFigures | None = None
        self._aborted = 0

    def begin(self, job: str, location: str) -> None:
        """Learn whose epochs they are; until then nothing is exposed."""
        with _collecting:
            collector = _collectors.get(self._registry)
            if collector is None:
                collector = _DriverCollector()
                try:
                    self._registry.register(collector)
                except ValueError as error:
                    raise InvalidArgumentError(
                        f"job {job!r}: metrics has a collector with the same names already, such "
                        "as a CheckpointMetrics: give the job a registry of its own"
                    ) from error
                _collectors[self._registry] = collector
        self._figures = collector.job(job, location)
        self._figures.note(checkpoints_aborted_total=self._aborted)

    def on_epoch_published(self, published: PublishedEpoch) -> None:
        """Count an epoch."""
        if self._figures is not None:
            self._figures.update(published.manifest, [published.record])
            if published.record.term:
                self._figures.note(driver_starts_total=published.record.term)

    def on_checkpoint_aborted(self, epoch: int) -> None:
        """Count a checkpoint that was given up."""
        self._aborted += 1
        if self._figures is not None:
            self._figures.note(checkpoints_aborted_total=self._aborted)


# ---- checkpoints ---------------------------------------------------------------------------------


class CheckpointMetrics(FiguresCollector):
    """The metrics of checkpoints, whichever process runs their jobs, as a collector of Prometheus.

    It only reads. A scrape costs a few small files for each job, and for a job with a new epoch its
    manifest and the end of its history. At the first scrape all of the history is read, so that
    counters have all epochs since the checkpoint was made.

    Parameters
    ----------
    checkpoints : mapping from str to (str or PathLike)
        The checkpoint of each job, by the name that the job has among the metrics: the label
        ``job_name``. Those of stores, and savepoints, are fine, too. One that is not there yet is
        exposed as one that cannot be read.
    refresh_seconds : float
        Scrapes within that time after another one look at no files.
    wait_seconds : float
        How long a scrape waits at most for what is read. Checkpoints that take longer are read to
        the end all the same, and have their new figures at the next scrape.
    most_operators, most_ranges : int
        How many operators, and ranges of operators, have metrics of their own, in the order of
        their names. ``pystate_operators_left_out`` and ``pystate_ranges_left_out`` count those
        without.

    Raises
    ------
    MissingPackageError
        The package prometheus_client, which is the extra ``metrics``, is not installed.
    InvalidArgumentError
        An argument is none of these.

    Notes
    -----
    Counters come from the history: what epochs added up to before the oldest record that is kept is
    stored beside the records, so that counters go on over restarts of jobs, of this process, and
    over retention. They begin again where a repair has set the checkpoint back. An epoch whose
    record was lost with a killed driver is not counted.

    Up to eight threads read, from the first scrape on, until `close`.

    Examples
    --------
    >>> import tempfile, prometheus_client
    >>> import pystate as ps
    >>> folder = tempfile.mkdtemp()
    >>> with ps.open(folder, key="long", states={"n": ps.ValueState("long")}) as store:
    ...     store["n"].update_all(store.keys([1, 2]), [10, 20])
    ...     store.checkpoint()
    1
    >>> registry = prometheus_client.CollectorRegistry()
    >>> with ps.CheckpointMetrics({"counts": folder}) as metrics:
    ...     registry.register(metrics)
    ...     registry.get_sample_value("pystate_epoch", {"job_name": "counts"})
    1.0
    """

    def __init__(
        self,
        checkpoints: Mapping[str, str | os.PathLike[str]],
        *,
        refresh_seconds: float = 1.0,
        wait_seconds: float = 5.0,
        most_operators: int = _MOST_OPERATORS,
        most_ranges: int = _MOST_RANGES,
    ) -> None:
        given: Any = checkpoints
        owner = "CheckpointMetrics"
        if not isinstance(given, Mapping) or not all(isinstance(n, str) and n for n in given):
            raise WrongTypeError(
                f"{owner}: checkpoints is a mapping from a job's name to its checkpoint, such as "
                f"{{'shop': '/data/shop'}}, not {shown(given)}"
            )
        super().__init__(
            integer(most_operators, f"{owner}: most_operators", least=0),
            integer(most_ranges, f"{owner}: most_ranges", least=0),
        )
        self._refresh_s = _seconds(refresh_seconds, f"{owner}: refresh_seconds")
        self._wait_s = _seconds(wait_seconds, f"{owner}: wait_seconds")
        self._checkpoints = [
            CheckpointFigures(name, folder_path(location, f"{owner}: the checkpoint of {name!r}"))
            for name, location in given.items()
        ]
        self._looking: list[Future[None] | None] = [None] * len(self._checkpoints)
        self._looked_s = float("-inf")
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def figures(self) -> list[JobFigures]:
        """The jobs, as far as they could be read in time."""
        with self._lock:
            self._look()
            under_way = [future for future in self._looking if future is not None]
        wait(under_way, self._wait_s)
        # A look that has failed otherwise than by what is expected is a defect, and is not hidden.
        for future in under_way:
            if future.done():
                future.result()
        return [each.figures for each in self._checkpoints]

    def _look(self) -> None:
        """Begin to look at the checkpoints, unless that was done a moment ago."""
        if self._closed or time.monotonic() < self._looked_s + self._refresh_s:
            return
        self._looked_s = time.monotonic()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pystate-metrics")
        for number, checkpoint in enumerate(self._checkpoints):
            before = self._looking[number]
            if before is None or before.done():
                self._looking[number] = self._threads.submit(checkpoint.look)

    def close(self) -> None:
        """End the threads; what is collected then stays as it is."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)

    def __enter__(self) -> CheckpointMetrics:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _seconds(value: object, what: str) -> float:
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not 0 <= value <= _MOST_WAIT_S
    ):
        raise InvalidArgumentError(
            f"{what} is a number of seconds from 0 to {_MOST_WAIT_S:g}, not {shown(value)}"
        )
    return float(value)


def exposition(collector: FiguresCollector, accept: str = "") -> tuple[bytes, str]:
    """Return what a scrape gets, and its content type.

    Parameters
    ----------
    collector : CheckpointMetrics
        What is collected.
    accept : str
        The header ``Accept`` of the request; without it, the text format of Prometheus.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
