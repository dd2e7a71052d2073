"""Spark jobs that write state files beside epochs: merges, and the checkpoint of held steps.

Merges run on executors where there are more of them than the driver's thread can do. Their job runs
in the maintenance thread of the driver, beside epochs. It has its own group, so that it can be
cancelled alone, and its own pool, which counts if the application schedules by FAIR. What bounds it
in any case is the number of its tasks: a quarter of the tasks that the executors can run at once.
An epoch keeps the other cores, and the storage sees few merges at a time.

A checkpoint without another batch turns the deltas that steps have left in the executors' memory
into files.

Thread safety: `tasks` and `run` of `SpreadMerges` are called by one thread at a time, its other
methods by any; a `HeldWriter` is called by one thread at a time.

Invariants
----------
1. A job of merges has at most as many tasks as merges may run at once; each does its merges one
   after the other. So it takes no more cores, also when tasks are repeated.
2. A task that cannot do some merge says so, and does the others; only a lost process fails it.
   Spark then repeats it, and finds the files that were finished.
3. The thread's properties are its own: a merge belongs to no query, and none is stopped with it.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from pystate.checkpoint.held_deltas import merge_held
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.object_cache import two_tiers
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.merges import PlannedMerge, merge_again
from pystate.errors import CheckpointError
from pystate.spark.base.failures import original_error
from pystate.spark.base.jvm import executors
from pystate.spark.tasks.delta import held_files
from pystate.spark.tasks.table_move import executor_home
from pystate.tables.range_files import cache_in

if TYPE_CHECKING:
    from pyspark import SparkContext

    from pystate.tables.options import TableOptions

#: The scheduler pool of the jobs; the application may configure it.
POOL = "pystate-merges"
# Merges have one in so many of the cores, but no more than one file server can well take.
_PART = 4
_MOST_TASKS = 16
_LOOK_S = 0.2
_PYTHON = re.compile(r"^(\w+(?:Error|Exception): .*)$", re.MULTILINE)
_JAVA = re.compile(r"^: (.+)$", re.MULTILINE)

#: A merge with its place among those that were passed in.
_Placed = tuple[int, PlannedMerge]


@dataclass(frozen=True)
class Copies:
    """Where executors have copies of objects in which the rows of tables on disk lie."""

    application: bytes
    options: TableOptions

    def beside(self, storage: CheckpointStorage) -> CheckpointStorage:
        """The storage, or one that keeps here what it creates, for the tasks of this executor."""
        home = executor_home(self.application, self.options.home)
        cache = cache_in(home, storage, self.options.disk_bytes)
        return storage if cache is None else two_tiers(cache)


@dataclass(frozen=True)
class _MergeAll:
    """The function that a Spark job runs: each task gets one list of merges."""

    storage: CheckpointStorage
    copies: Copies | None = None

    def __call__(self, lists: Iterator[list[_Placed]]) -> Iterator[tuple[int, FileRef | str]]:
        storage = self.storage if self.copies is None else self.copies.beside(self.storage)
        for merges in lists:
            for place, merge in merges:
                try:
                    yield place, merge_again(storage, merge)
                except Exception as error:
                    yield place, str(error) or type(error).__name__


class SpreadMerges:
    """The `MergeRunner` of a Spark job."""

    def __init__(self, storage: CheckpointStorage, name: str) -> None:
        #: Where jobs run; None as long as no session is known.
        self.context: SparkContext | None = None
        #: Of the job, if its tables are on disk.
        self.copies: Copies | None = None
        self._storage = storage
        self._name = name
        self._group = f"pystate {name}, merges {uuid.uuid4().hex}"
        self._given_up = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    def tasks(self) -> int:
        """See `MergeRunner`.

        It is 0 in local mode, whose cores are the driver's; and if it would be 1, since the driver
        itself does one merge at a time.
        """
        context = self.context
        try:
            if context is None or not _is_pinned(context) or len(executors(context)) < 3:
                return 0  # the driver is one of those that are counted
            tasks = min(_slots(context) // _PART, _MOST_TASKS)
        except Exception:
            return 0  # the session has ended
        return tasks if tasks > 1 else 0

    def run(self, merges: Sequence[PlannedMerge]) -> list[FileRef | str]:
        """See `MergeRunner`."""
        self._idle.clear()
        try:
            if self._given_up.is_set():
                raise CheckpointError("the merges were given up")
            results = dict(self._run(_distribute(merges, max(1, self.tasks()))))
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{len(merges)} merges are tried again after some epochs, since their Spark job "
                f"failed: {_reason(error)}"
            ) from error
        finally:
            self._idle.set()
        return [results.get(place, "its task returned nothing") for place in range(len(merges))]

    def give_up(self) -> None:
        """See `MergeRunner`."""
        self._given_up.set()
        # A session that has ended has no jobs.
        with suppress(Exception):
            while not self._idle.is_set():
                # Repeated, because the thread may be about to start the job.
                self.context._jsc.sc().cancelJobGroup(self._group)  # type: ignore[union-attr]
                self._idle.wait(_LOOK_S)

    def _run(self, lists: list[list[_Placed]]) -> list[tuple[int, FileRef | str]]:
        context = self.context
        assert context is not None
        count = sum(len(merges) for merges in lists)
        context.setJobGroup(self._group, escape(f"{self._name}: {count} merges", quote=False))
        context.setLocalProperty("spark.scheduler.pool", POOL)
        merge_all: Any = _MergeAll(self._storage, self.copies)
        return context.parallelize(lists, len(lists)).mapPartitions(merge_all).collect()


def _is_pinned(context: SparkContext) -> bool:
    """Whether a thread has its own thread in the JVM, and so properties of its own."""
    from py4j.clientserver import ClientServer

    return isinstance(context._gateway, ClientServer)


def _slots(context: SparkContext) -> int:
    """How many tasks the executors can run at once."""
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _distribute(merges: Sequence[PlannedMerge], tasks: int) -> list[list[_Placed]]:
    """Distribute merges over tasks, so that each has about as many bytes."""
    lists: list[list[_Placed]] = [[] for _ in range(min(tasks, len(merges)))]
    sizes = [0] * len(lists)
    for place, merge in sorted(enumerate(merges), key=lambda placed: -placed[1].size_bytes):
        least = min(range(len(lists)), key=lambda number: (sizes[number], len(lists[number])))
        lists[least].append((place, merge))
        sizes[least] += merge.size_bytes
    return lists


def _reason(error: Exception) -> str:
    """What went wrong, in a line: Spark's own texts go on with traces of both sides."""
    text = str(original_error(error)).strip()
    # Python's line is amid a trace, Java's is the first one after what py4j says.
    line = _PYTHON.search(text) or _JAVA.search(text)
    return line[1] if line else text.partition("\n")[0] or type(error).__name__


_Range = tuple[str, RangeState]


@dataclass(frozen=True)
class _Write:
    """The function that a Spark job runs over ranges."""

    storage: CheckpointStorage
    application: bytes
    home: str
    spread: bool
    epoch: int

    def __call__(self, ranges: Iterator[_Range]) -> Iterator[tuple[str, int, FileRef]]:
        for uid, state in ranges:
            yield uid, state.index, self._write(uid, state)

    def _write(self, uid: str, state: RangeState) -> FileRef:
        home = executor_home(self.application, self.home)
        files = held_files(self.storage, home, uid, state, spread=self.spread)
        path = state_path(uid, *state.bounds, self.epoch, uuid.uuid4().hex, "delta")
        with self.storage.create(path) as out:
            info = merge_held(files, state.held, out, self.epoch, state.bounds)
        return FileRef.from_info(path, info)


@dataclass(frozen=True)
class HeldWriter:
    """Writes the held deltas of a step's ranges, each in a Spark task."""

    context: SparkContext
    storage: CheckpointStorage
    home: str
    """Where the tables are."""
    application: bytes

    def __call__(self, last: Manifest) -> dict[tuple[str, int], FileRef]:
        """Write them."""
        spread = len(executors(self.context)) > 1
        write: Any = _Write(self.storage, self.application, self.home, spread, last.epoch)
        # A range's own state does not matter here, and may be long.
        ranges: list[Any] = [
            (op.uid, RangeState(s.index, *s.bounds, s.id, held=s.held))
            for op in last.operators
            for s in op.ranges
            if s.held
        ]
        if not ranges:
            return {}
        tasks = min(len(ranges), self.context.defaultParallelism)
        try:
            written = self.context.parallelize(ranges, tasks).mapPartitions(write).collect()
        except Exception as error:
            raise original_error(error) from error
        return {(uid, index): file for uid, index, file in written}
