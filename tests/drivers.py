"""Several drivers on one checkpoint in memory, each held up or ended before any of its steps.

A step is a call that reads or changes what drivers share: the checkpoint, and the output. Drivers
run the real code in a thread of their own, of which only one is ever at work.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.storage import CheckpointStorage, FileEntry
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import AlreadyPublishedError, CheckpointError
from tests.conftest import FakeWork

_NEVER = 1 << 60
POLICY = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=0)


class CrashError(BaseException):
    """The process ends here."""


class World:
    """What all drivers share; a copy of it is a moment that can be gone back to."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.staged: dict[str, str] = {}
        self.out: dict[int, str] = {}

    def copy(self) -> World:
        other = World()
        other.files, other.staged, other.out = dict(self.files), dict(self.staged), dict(self.out)
        return other


class Interrupted:
    """What a `MemoryStorage` calls: after so many steps something else happens, once.

    Without `act` the process ends there, and at whatever it does then.
    """

    def __init__(self, left: int, act: Callable[[], None] | None = None) -> None:
        self._left = left
        self._act = act

    @property
    def happened(self) -> bool:
        return self._left < 0

    def __call__(self, kind: str, path: str) -> None:
        self._left -= 1
        if self._act is None:
            if self.happened:
                raise CrashError
        elif self._left == -1:
            self._act()


class MemoryStorage:
    """A `CheckpointStorage` in a dict, that says before each step what it is about to do.

    A listing is two steps, as a folder's: what comes and goes beside it may be in it or not.
    """

    uri = "memory"

    def __init__(self, world: World, step: Callable[[str, str], None]) -> None:
        self._files = world.files
        self._step = step
        self._temporaries = 0

    def publish(self, path: str, data: bytes) -> None:
        with self.create(path) as out:
            out.write(data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._step("replace", path)
        self._files[path] = data

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        out = io.BytesIO()
        yield out
        folder, _, name = path.rpartition("/")
        self._temporaries += 1
        temporary = f"{folder}/.{name}.{id(self):x}{self._temporaries}.tmp"
        self._step("write", path)
        self._files[temporary] = out.getvalue()
        self._step("link", path)
        if temporary not in self._files:
            raise CheckpointError(f"could not write {path}: no such file")
        if path in self._files:
            del self._files[temporary]
            raise AlreadyPublishedError(f"{path} exists")
        self._files[path] = self._files.pop(temporary)

    def share(self, path: str, other: CheckpointStorage, other_path: str) -> bool:
        return False

    def read_bytes(self, path: str) -> bytes:
        self._step("read", path)
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def open_read(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read_bytes(path))

    def list(self, prefix: str, *, temporary: bool = False) -> list[FileEntry]:
        found = []
        for half in range(2):
            self._step("list", prefix)
            for path, data in self._files.items():
                name = path.rpartition("/")[2]
                is_temporary = name.startswith(".") and name.endswith(".tmp")
                inside = prefix == "" or path.startswith(f"{prefix}/")
                if inside and is_temporary == temporary and sum(path.encode()) % 2 == half:
                    # State files are as old as any grace period; what is left of small files
                    # never is, as their writers may be alive.
                    young = is_temporary and prefix != "state"
                    found.append(FileEntry(path, len(data), _NEVER if young else 0))
        return sorted(found)

    def mark(self, path: str, data: bytes) -> bytes | None:
        self._step("mark", path)
        found = self._files.get(path)
        self._files.setdefault(path, data)
        return found

    def delete(self, path: str) -> bool:
        self._step("delete", path)
        return self._files.pop(path, None) is not None

    def sync_folder(self, path: str) -> None:
        pass

    def exists(self, path: str) -> bool:
        return self.size_bytes(path) is not None

    def size_bytes(self, path: str) -> int | None:
        self._step("look", path)
        return len(self._files[path]) if path in self._files else None

    def local_path(self, path: str) -> str | None:
        return None


READS = ("list", "read", "look")


def fake_merge(
    storage: CheckpointStorage,
    sources: tuple[FileRef, ...],
    merged_id: str,
    output: str,
    first: int,
    last: int,
    kind: str = "base",
    **_: Any,
) -> FileRef:
    """Joins the texts of `FakeWork`."""
    try:
        text = b",".join(storage.read_bytes(source.path) for source in sources)
    except FileNotFoundError as error:
        raise CheckpointError(f"{error} is missing") from error
    storage.publish(output, text)
    newest = sources[-1]
    size = len(text)
    return FileRef(
        output,
        kind,
        merged_id,
        sources[0 if kind == "delta" else -1].parent,
        newest.epoch,
        first,
        last,
        size,
        0,
        1,
        0,
        size,
    )


class Driver:
    """One driver: runs the batches that are missing up to a number, a few steps at a time."""

    def __init__(self, world: World, batches: int, **options: Any) -> None:
        self.world = world
        self.steps: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        self.ended = False
        self.options = options
        self._batches = batches
        self._budget: int | None = 0
        self._crashed = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def run(self, steps: int | None = None) -> None:
        """Go on for some steps, or to the end."""
        if self.ended:
            return
        self._budget = steps
        self._go.release()
        self._stopped.acquire()
        if self.ended:
            self._thread.join()

    def crash(self) -> None:
        """End before the next step."""
        self._crashed = True
        self.run()

    # ---- in the driver's thread ------------------------------------------------------------------

    def step(self, kind: str, path: str) -> None:
        while self._budget == 0 and not self._crashed:
            self._stopped.release()
            self._go.acquire()
        if self._crashed:
            raise CrashError
        if self._budget is not None:
            self._budget -= 1
        self.steps.append((kind, path))

    def _main(self) -> None:
        self._go.acquire()
        try:
            self._drive()
        except CrashError:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self._stopped.release()

    def _drive(self) -> None:
        work = FakeWork(MemoryStorage(self.world, self.step))
        options = {"merge_policy": POLICY, "retained": 1, "orphan_grace_ms": 0, **self.options}
        while True:
            coordinator = work.coordinator(parallelism=1, commit_sinks=self._commit, **options)
            maintenance: Any = coordinator._maintenance
            maintenance.submit = self._now
            with coordinator:
                try:
                    while (number := self._next(work.storage)) < self._batches:
                        self._run_batch(coordinator, work, number)
                    coordinator._house.search()
                    return
                except CheckpointError as error:
                    # It read the newest epoch, was overtaken, and asked for what is history.
                    if "older than batch" not in str(error):
                        raise

    def _now(self, task: Callable[[], object]) -> None:
        """Maintenance in the order of the program, so that each run has the same steps."""
        with suppress(CheckpointError, OSError):
            task()

    def _next(self, storage: CheckpointStorage) -> int:
        head = read_head(storage)
        progress = None if head is None else head.progress("q")
        return 0 if progress is None else progress.batch_id + 1

    def _run_batch(self, coordinator: Coordinator, work: FakeWork, number: int) -> None:
        def evaluate(epoch: Epoch) -> Sequence[Any]:
            for report in work.reports(epoch, f"b{number}"):
                epoch.report(report)
            self.step("stage", epoch.evaluation_id)
            self.world.staged[epoch.evaluation_id] = f"b{number}"
            return [epoch.evaluation_id]

        coordinator.run(
            evaluate,
            query_id="q",
            batch_id=number,
            offsets_hash=f"offsets-{number}",
            processing_time_ms=number,
        )

    def _commit(self, manifest: Manifest) -> None:
        for name in manifest.sinks:
            self.step("commit", name)
            text = self.world.staged.pop(name, None)
            if text is not None:
                assert manifest.epoch not in self.world.out
                self.world.out[manifest.epoch] = text
            elif manifest.epoch not in self.world.out:
                raise CheckpointError("output is lost")


def run_whole(world: World, batches: int, **options: Any) -> Driver:
    """A driver that nothing happens to."""
    driver = Driver(world, batches, **options)
    driver.run()
    if driver.error is not None:
        raise driver.error
    return driver


def check(world: World, batches: int) -> None:
    """Each batch is in the state and in the output exactly once, and nothing else is kept."""
    storage = MemoryStorage(world, lambda kind, path: None)
    head = read_head(storage)
    assert head is not None and head.epoch == batches
    named = set(head.paths)
    (operator,) = head.operators
    texts = ",".join(storage.read_bytes(ref.path).decode() for ref in operator.ranges[0].files)
    assert texts == ",".join(f"b{n}" for n in range(batches))
    assert world.out == {n + 1: f"b{n}" for n in range(batches)}
    stored = {e.path for e in storage.list("state") + storage.list("state", temporary=True)}
    stored |= {e.path for e in storage.list("manifests") if e.path.endswith(".part")}
    assert stored == named, (sorted(stored - named), sorted(named))
