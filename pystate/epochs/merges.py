"""Merging the files of ranges in the background, in which process, and how epochs adopt the result.

Which files are merged, and when, is said by `pystate.epochs.merge_policy`.

Thread safety: all methods of `Maintenance` and `FileMerges` may be called from any thread; a
`MergeRunner` says for itself, and all else is immutable.

Invariants
----------
1. The next manifest adopts a merge that is ready. An epoch waits for a merge only if it is its
   coordinator's first epoch, and so maybe its last, or if a chain of deltas grows past its bound.
2. A merge reads only files, never a table, and its result replaces exactly the files that it was
   made from.
3. The thread exists only while there is work, and `Maintenance.close` joins it.
4. A merge that no manifest can adopt leaves no file behind. Only a process that outlives the job
   that it worked for may still write one, which no manifest names; the search for orphans finds it.
5. The name of a merged file contains the term of the driver that planned it, and an id of the plan.
   Only that driver's manifests can be the first to name it. Whoever carries out the same plan once
   more makes the same file, or finds it made.
6. Operators take turns: one that has many merges to do does not keep the others waiting.
7. A merge runs in this thread, or with others in the processes of a `MergeRunner`, if so many wait
   that one thread would fall behind. Of these at most the runner's `tasks` run at the same time,
   and a batch is small, so that its results are soon there to be adopted.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import BinaryIO, Protocol, cast

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.object_storage import RangedFile
from pystate.checkpoint.refs import (
    FileRef,
    OperatorState,
    RangeState,
    is_merged,
    state_path,
)
from pystate.checkpoint.state_files import (
    FileInfo,
    Lineage,
    Source,
    merge_files,
    open_file,
    verify_file,
)
from pystate.checkpoint.storage import CheckpointStorage, guarded_file
from pystate.epochs.merge_budget import Pace, Written
from pystate.epochs.merge_policy import MergePolicy, Run
from pystate.epochs.rescale import plan_rescale
from pystate.epochs.retention import delete_files, merged_name
from pystate.errors import AlreadyPublishedError, CheckpointError, PystateError
from pystate.redaction import logger
from pystate.state.expiring import Expiring

_LOG = logger("pystate.epochs.merges")
_Key = tuple[str, int, int]  # uid, first and last key group
# When an epoch that waits for a merge says so, and how often it says so again.
_WARN_AFTER_S, _WARN_AGAIN_S = 1.0, 10.0
# Epochs to wait before a failed merge is retried.
_RETRY_AFTER = 16
# From so many waiting merges on, or such a size of at least two, a runner is asked to do them. A
# merge of small files takes a few milliseconds on a local disk and tens of them on a network's.
_MANY = 32
_MANY_BYTES = 256 << 20
# What a task of a runner gets at most: enough to outweigh what starting a job costs.
_PER_TASK = 16
# With so many waiting merges none pauses.
_BEHIND = 8
_PER_TASK_BYTES = 64 << 20
# What is in memory of files that are read by requests, of all files of a merge together; of each at
# least as much as a request pays for.
_WINDOWS_BYTES, _LEAST_WINDOW_BYTES = 32 << 20, 256 << 10


@dataclass(frozen=True)
class PlannedMerge:
    """A merge that any process which sees the checkpoint can carry out."""

    uid: str
    """The operator."""
    first_key_group: int
    last_key_group: int
    """The last key group of the range, inclusive."""
    run: Run
    """The files."""
    output: str
    """The path of the new file; no other plan has it."""
    states: frozenset[str]
    since: tuple[tuple[str, int], ...]
    """With `states`, what of the files still counts; see `merge_files`."""
    block_bytes: int = 0
    """The size of the new file's blocks, as `MergePolicy` has it."""
    expiring: Expiring | None = None
    """What is left out; see `merge_files`."""

    @property
    def size_bytes(self) -> int:
        """How much it reads, and at most about as much it writes."""
        return sum(int(ref.file_bytes * ref.share) for ref in self.run.sources)


class MergeRunner(Protocol):
    """Carries out many merges at once, in other processes.

    `tasks` and `run` are called by the maintenance thread, `give_up` by any other.
    """

    def tasks(self) -> int:
        """How many merges it would now carry out at the same time; 0 if the driver should."""

    def run(self, merges: Sequence[PlannedMerge]) -> Sequence[FileRef | str]:
        """Carry them out; return the new file or what went wrong for each, in their order.

        A process may begin a merge that another one has begun, or even finished: see
        `merge_again`. After a `CheckpointError` processes may be at work on them still.
        """

    def give_up(self) -> None:
        """End what runs, and run nothing more. Does nothing if nothing runs."""


class Maintenance:
    """A thread that works through tasks and ends when there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, task: Callable[[], object]) -> None:
        """Run `task` after earlier ones; its errors are logged. Ignored once closed."""
        with self._lock:
            if self._closed:
                return
            self._tasks.append(task)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="pystate-maintenance", daemon=True
                )
                self._thread.start()

    def wait(self) -> None:
        """Wait until all tasks are done."""
        while True:
            with self._lock:
                thread = self._thread
            if thread is None:
                return
            thread.join()

    def close(self) -> None:
        """Accept no more tasks, and wait for those submitted."""
        with self._lock:
            self._closed = True
        self.wait()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._thread = None
                    return
                task = self._tasks.popleft()
            try:
                task()
            except (CheckpointError, OSError) as error:
                _LOG.warning("maintenance: %s", error)
            except Exception:
                _LOG.exception("maintenance failed")


class FileMerges:
    """The merges that are planned, running, or ready for the next manifest."""

    def __init__(
        self,
        storage: CheckpointStorage,
        maintenance: Maintenance,
        policy: MergePolicy,
        term: Callable[[], int],
        runner: MergeRunner | None = None,
        tasks_run: Callable[[], bool] = lambda: True,
    ) -> None:
        self._pace = Pace(lambda: tasks_run() and not self._is_behind())
        #: What was written since this driver began.
        self.written = Written()
        self._storage = storage
        self._maintenance = maintenance
        self._policy = policy
        self._term = term
        self._runner = runner
        self._lock = threading.Lock()
        self._merges: dict[_Key, _Merge] = {}
        self._waiting: dict[str, deque[_Key]] = {}
        self._waiting_bytes = 0
        self._ready: dict[_Key, FileRef] = {}
        self._failed: dict[_Key, int] = {}
        self._offered: set[str] = set()
        #: The newest epoch that an earlier driver has published; and of the files up to it which
        #: have a guide.
        self._inherited: int | None = None
        self._guided: dict[str, bool] = {}
        #: How states expire, by the uids of operators, as the last epoch declared it.
        self.expiring: dict[str, Expiring] = {}
        self._closed = threading.Event()

    def plan(self, manifest: Manifest, parallelism: int | None = None) -> None:
        """Start the merges that the policy requires; the next epoch's parallelism may differ."""
        policy = self._policy
        if policy.with_guides and self._inherited is None:
            own = manifest.term == self._term()
            self._inherited = 0 if own else manifest.epoch
        for operator in manifest.operators:
            ranges = operator.ranges
            if parallelism is not None:
                ranges = plan_rescale(operator, parallelism, manifest.max_parallelism)
            for state in ranges:
                run = policy.choose(state, self._plain(state) if policy.with_guides else ())
                key = _key(operator.uid, state)
                if run is None:
                    continue
                with self._lock:
                    waits = self._failed.get(key, -_RETRY_AFTER) + _RETRY_AFTER
                    if self._closed.is_set() or key in self._merges or manifest.epoch < waits:
                        continue
                    name = merged_name(self._term(), uuid.uuid4().hex)
                    bounds = run.slice or state.bounds
                    output = state_path(
                        operator.uid, *bounds, run.sources[-1].epoch, name, run.kind
                    )
                    plan = PlannedMerge(
                        *key,
                        run,
                        output,
                        operator.states,
                        tuple(state.since),
                        policy.block_bytes,
                        self._left_out(manifest, operator, run),
                    )
                    self._merges[key] = _Merge(plan, manifest.epoch)
                    self._waiting_bytes += plan.size_bytes
                    self._waiting.setdefault(operator.uid, deque()).append(key)
                self._maintenance.submit(self._merge_next)

    def _is_behind(self) -> bool:
        """Whether merges do not keep up, so that none pauses."""
        with self._lock:
            return sum(len(keys) for keys in self._waiting.values()) >= _BEHIND

    def _left_out(self, manifest: Manifest, operator: OperatorState, run: Run) -> Expiring | None:
        """What a base leaves out, as sweeps of tables on disk see what is in memory alone.

        Deltas behind it have to write rows whole: those of such tables do, and a policy that wants
        guides merges all others into the base.
        """
        declared = self.expiring.get(operator.uid)
        if declared is None or run.kind != "base" or not self._policy.with_guides:
            return None
        return declared._replace(
            processing_ms=manifest.processing_time_ms, watermark_ms=operator.watermark_ms
        )

    def _plain(self, state: RangeState) -> list[str]:
        """The files of a range that have no guide.

        Those that tasks of this driver have written have one, if the policy wants it.
        """
        assert self._inherited is not None
        paths = [ref.path for ref in state.files if ref.epoch <= self._inherited]
        for path in paths:
            if path not in self._guided:
                self._guided[path] = _has_guide(self._storage, path)
        return [path for path in paths if not self._guided[path]]

    def wait(
        self, operators: tuple[OperatorState, ...], patience_s: float, *, first: bool = False
    ) -> None:
        """Wait for merges that the next manifest could adopt, with these operators.

        Only for a range that is full, see `MergePolicy.is_full`, may it take longer than
        `patience_s`.
        """
        until = time.monotonic() + patience_s
        for uid, state in _ranges(operators):
            with self._lock:
                merge = self._merges.get(_key(uid, state))
            if merge is None or merge.plan.run.position(state) is None:
                continue
            if self._policy.is_full(state, first=first):
                with self._pace.hurried():
                    self._wait_for(merge, self._policy.chain(state))
            elif patience_s > 0:
                with self._pace.hurried():
                    merge.ended.wait(max(0.0, until - time.monotonic()))

    def _wait_for(self, merge: _Merge, deltas: int) -> None:
        """Wait for a merge, and say so if it takes long, and how far it is."""
        began_s, again_s = time.monotonic(), _WARN_AFTER_S
        while not merge.ended.wait(again_s):
            again_s = _WARN_AGAIN_S
            plan = merge.plan
            _LOG.warning(
                "operator %r, key groups %d to %d: the epoch waits for a merge, since the range "
                "has %d deltas: %.1f of about %.1f MB are written, after %.0f s of waiting. "
                "Merges do not keep up with what epochs change: let epochs be longer, or raise "
                "the parallelism",
                plan.uid,
                plan.first_key_group,
                plan.last_key_group,
                deltas,
                merge.written.size_bytes / 1e6,
                plan.size_bytes / 1e6,
                time.monotonic() - began_s,
            )

    def adopt(self, operators: tuple[OperatorState, ...]) -> tuple[OperatorState, ...]:
        """Replace files by the ready ones that were made from them."""
        with self._lock:
            uids = {key[0] for key in self._ready}
            return tuple(
                replace(op, ranges=tuple(self._adopt_into(op.uid, state) for state in op.ranges))
                if op.uid in uids
                else op
                for op in operators
            )

    def published(self, manifest: Manifest) -> None:
        """Forget the ready merges, which this manifest has adopted or which are now useless."""
        late = []
        self.written.changed_bytes += sum(
            ref.file_bytes
            for operator in manifest.operators
            for ref in operator.files
            if ref.epoch == manifest.epoch and not is_merged(ref.path)
        )
        with self._lock:
            for key in list(self._ready):
                merge = self._merges[key]
                if merge.plan.output not in manifest.paths:
                    if _has(manifest, key, merge.plan.run):
                        continue
                    _LOG.info("the merged file %s came too late", merge.plan.output)
                    late.append(merge.plan.output)
                else:
                    self._offered.discard(merge.plan.output)
                del self._ready[key], self._merges[key]
        if late:
            self._maintenance.submit(partial(self._discard, late))

    def give_up(self) -> None:
        """No manifest will follow: stop running merges, and plan no more."""
        with self._lock:
            self._closed.set()
            for merge in self._merges.values():
                merge.ended.set()
            self._pace.end()
        if self._runner is not None:
            self._runner.give_up()

    def discard_unused(self) -> None:
        """Remove the files of unused merges; call it when the maintenance thread has ended."""
        with self._lock:
            unused = [merged.path for merged in self._ready.values()]
            self._ready.clear()
        self._discard(unused)

    def _discard(self, outputs: list[str]) -> None:
        # A manifest whose publishing failed half way may name a file that was offered to it.
        delete_files(self._storage, [path for path in outputs if path not in self._offered])
        self._offered.difference_update(outputs)

    def live(self) -> frozenset[str]:
        """Return the files that a later manifest may still name."""
        with self._lock:
            return frozenset(merge.plan.output for merge in self._merges.values())

    def _adopt_into(self, uid: str, state: RangeState) -> RangeState:
        key = _key(uid, state)
        merged = self._ready.get(key)
        if merged is None:
            return state
        rebased = self._merges[key].plan.run.replaced(state, merged)
        if rebased is None:
            return state
        self._offered.add(merged.path)
        return rebased

    def _merge_next(self) -> None:
        """Carry out what has waited longest: one merge here, or many by the runner."""
        with self._lock:
            waiting = sum(len(keys) for keys in self._waiting.values())
            many = waiting >= _MANY or (waiting > 1 and self._waiting_bytes >= _MANY_BYTES)
        tasks = self._runner.tasks() if self._runner is not None and many else 0
        if tasks > 0:
            self._merge_many(self._take(tasks * _PER_TASK, tasks, tasks * _PER_TASK_BYTES))
        else:
            for key in self._take(1):  # none if a batch has taken it
                self._merge(key)

    def _take(self, most: int, least: int = 1, enough_bytes: int = 0) -> list[_Key]:
        """Take merges that wait, each of the operator that has waited longest."""
        taken: list[_Key] = []
        size_bytes = 0
        with self._lock:
            while self._waiting and len(taken) < (most if size_bytes < enough_bytes else least):
                uid = next(iter(self._waiting))
                keys = self._waiting.pop(uid)
                key = keys.popleft()
                if keys:
                    self._waiting[uid] = keys  # behind the others
                taken.append(key)
                size_bytes += self._merges[key].plan.size_bytes
            self._waiting_bytes -= size_bytes
        return taken

    def _merge(self, key: _Key) -> None:
        merge = self._merges[key]
        try:
            if self._closed.is_set():
                return
            merged = _merge_planned(
                self._storage, merge.plan, self._pace, self._closed, merge.written.add
            )
            with self._lock:
                self._ready[key] = merged
                self.written.merged_bytes += merged.file_bytes
                self.written.read_bytes += merge.plan.size_bytes
        except BaseException:
            self._fail([key])
            if not self._closed.is_set():
                raise
        finally:
            merge.ended.set()

    def _merge_many(self, keys: Sequence[_Key]) -> None:
        assert self._runner is not None
        merges = [self._merges[key] for key in keys]
        failed = list(keys)
        try:
            if self._closed.is_set():
                failed.clear()
                return
            results = self._runner.run([merge.plan for merge in merges])
            outcomes = dict(zip(keys, results, strict=True))
            ready = {key: ref for key, ref in outcomes.items() if isinstance(ref, FileRef)}
            with self._lock:
                self._ready.update(ready)
                self.written.merged_bytes += sum(ref.file_bytes for ref in ready.values())
                self.written.read_bytes += sum(self._merges[key].plan.size_bytes for key in ready)
            failed = [key for key in keys if key not in ready]
            if failed:
                raise CheckpointError(
                    f"{len(failed)} of {len(keys)} merges on executors failed, and are tried again "
                    f"after {_RETRY_AFTER} epochs; the first: {outcomes[failed[0]]}"
                )
        except BaseException:
            self._fail(failed)
            # Where a process was lost its file may be complete.
            self._discard([merge.plan.output for merge in merges if merge.key in failed])
            if not self._closed.is_set():
                raise
        finally:
            for merge in merges:
                merge.ended.set()

    def _fail(self, keys: Iterable[_Key]) -> None:
        with self._lock:
            for key in keys:
                self._failed[key] = self._merges.pop(key).epoch


class _Written:
    """How much a merge has written; what other processes write is not known."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes


@dataclass(frozen=True)
class _Merge:
    plan: PlannedMerge
    epoch: int
    ended: threading.Event = field(default_factory=threading.Event)
    written: _Written = field(default_factory=_Written)

    @property
    def key(self) -> _Key:
        return self.plan.uid, self.plan.first_key_group, self.plan.last_key_group


def _merge_planned(
    storage: CheckpointStorage,
    plan: PlannedMerge,
    pace: Pace,
    given_up: threading.Event | None = None,
    note: Callable[[int], object] | None = None,
) -> FileRef:
    def written(size_bytes: int) -> None:
        if note is not None:
            note(size_bytes)
        pace.worked(size_bytes)

    pace.begin()
    return merge_range(
        storage,
        plan.run.sources,
        plan.run.id,
        plan.output,
        *(plan.run.slice or (plan.first_key_group, plan.last_key_group)),
        kind=plan.run.kind,
        states=plan.states,
        since=dict(plan.since),
        given_up=given_up,
        note=written,
        block_bytes=plan.block_bytes,
        expiring=plan.expiring,
    )


def merge_again(storage: CheckpointStorage, plan: PlannedMerge) -> FileRef:
    """Carry out a merge that another process may have begun, or finished.

    Files appear whole, and only this plan has the name, so that a file of that name is the result,
    whoever has written it. Tasks may run beside it, so it leaves half of the disk to them.
    """
    if not storage.exists(plan.output):
        try:
            return _merge_planned(storage, plan, Pace())
        except AlreadyPublishedError:
            pass  # by another attempt, meanwhile
    with ExitStack() as stack:
        local = storage.local_path(plan.output)
        source = local or stack.enter_context(storage.open_read(plan.output))
        return FileRef.from_info(plan.output, verify_file(source))


def _has_guide(storage: CheckpointStorage, path: str) -> bool:
    """Whether a file has a guide; also if that cannot be said, which its merge will say."""
    try:
        with ExitStack() as stack:
            source = storage.local_path(path) or stack.enter_context(storage.open_read(path))
            opened = stack.enter_context(open_file(source))
            return FileInfo(*opened.reader.info()).block_bytes > 0
    except (PystateError, OSError) as error:
        _LOG.warning("%s: it cannot be seen whether it has a guide: %s", path, error)
        return True


def _key(uid: str, state: RangeState) -> _Key:
    return uid, *state.bounds


def _ranges(operators: tuple[OperatorState, ...]) -> Iterator[tuple[str, RangeState]]:
    return ((operator.uid, state) for operator in operators for state in operator.ranges)


def _has(manifest: Manifest, key: _Key, run: Run) -> bool:
    """Whether a range of the manifest still has these files."""
    operator = manifest.operator(key[0])
    return operator is not None and any(
        state.bounds == key[1:] and run.position(state) is not None for state in operator.ranges
    )


def merge_range(
    storage: CheckpointStorage,
    sources: tuple[FileRef, ...],
    merged_id: str,
    output: str,
    first_key_group: int,
    last_key_group: int,
    *,
    kind: str = "base",
    states: Collection[str] | None = None,
    since: Mapping[str, int] = MappingProxyType({}),
    given_up: threading.Event | None = None,
    note: Callable[[int], object] | None = None,
    block_bytes: int | None = None,
    expiring: Expiring | None = None,
    destination: CheckpointStorage | None = None,
    shift: int = 0,
    max_parallelism: int | None = None,
) -> FileRef:
    """Merge files, oldest first, into the file ``output`` with the lineage id `merged_id`.

    A delta follows on what the first file was built on. The merge ends with an error once
    `given_up` is set; after an error nothing was created. The new range lies `shift` key groups,
    a multiple of their number, behind that of the files. `note` is told of the bytes that are
    written. The rest is as for `merge_files`.
    """
    ended = given_up or threading.Event()

    def guarded(file: BinaryIO) -> BinaryIO:
        wrong = "the merge was given up"
        return guarded_file(file, lambda: wrong if ended.is_set() else None, note)

    parent = bytes.fromhex(sources[0 if kind == "delta" else -1].parent)
    lineage = Lineage(bytes.fromhex(merged_id), parent, _newest_epoch(sources), 0)
    whole = (first_key_group, last_key_group)
    with ExitStack() as stack:
        opened: list[Source] = []
        for bounds, group in groupby(sources, key=lambda ref: ref.bounds):
            refs = list(group)
            files = [_open_source(stack, storage, ref, len(sources)) for ref in refs]
            if bounds != whole:
                # Files of a former range count for only a part of this one. Reduced to that part,
                # nothing in them can hide the content of another former range. They may build on
                # older files or a base, so their deletions and appends must be kept as such.
                # Without a name, so that a killed process leaves none.
                part = stack.enter_context(tempfile.TemporaryFile())
                merge_files(
                    files,
                    guarded(cast(BinaryIO, part)),
                    lineage=lineage._replace(epoch=_newest_epoch(refs)),
                    first_key_group=bounds[0],
                    last_key_group=bounds[1],
                    kind="delta",
                    states=states,
                    since=since,
                    block_bytes=0,
                )
                part.flush()
                files = [f"/proc/self/fd/{part.fileno()}"]
            opened += files
        out = stack.enter_context((destination or storage).create(output))
        info = merge_files(
            opened,
            guarded(out),
            lineage=lineage,
            first_key_group=first_key_group + shift,
            last_key_group=last_key_group + shift,
            kind=kind,
            states=states,
            since=since,
            max_parallelism=max_parallelism,
            block_bytes=block_bytes,
            expiring=expiring,
        )
    return FileRef.from_info(output, info)


def _newest_epoch(sources: Sequence[FileRef]) -> int:
    # Readers use the epoch to decide which states count; the last former range need not be newest.
    return max(ref.epoch for ref in sources)


def _open_source(stack: ExitStack, storage: CheckpointStorage, ref: FileRef, files: int) -> Source:
    """Check that a file is the one that the manifest names; a path is read without the GIL.

    It is one of so many `files` that are open at a time.
    """
    source = storage.local_path(ref.path) or stack.enter_context(storage.open_read(ref.path))
    if isinstance(source, RangedFile):
        source.most_bytes = max(
            _LEAST_WINDOW_BYTES, min(source.most_bytes, _WINDOWS_BYTES // files)
        )
    with open_file(source, expected=ref):
        return source
