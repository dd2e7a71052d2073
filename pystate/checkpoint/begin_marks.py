"""Begin marks: which task of an evaluation computes a range.

A report comes only from a task that was read to its end. There is none of a task that a reader left
early (a limit, `isEmpty`), whose rows may still be published, while its state is discarded. So a
task also marks its beginning: before it touches the range's table, and so before it emits a row, it
creates a small file in the evaluation's folder, which exactly one of several tasks can do. Another
task of the same partition and stage, with another attempt number, is a retry or a speculative copy:
Spark uses the output of one of them. Any other task means that the range is evaluated a second
time. It is refused at once, before it waits for a lock that the first task may hold, and the
evaluation does not count.

Why a file, and not a message to the driver: the file exists before a row leaves, whatever happens
to the task; accumulators only report tasks that succeeded. The file is not synced, since a mark
means nothing after a crash.

Thread safety: any number of tasks of any process may begin at once.

Invariants
----------
1. Of the tasks that begin a range in one evaluation, only attempts of one partition of one stage
   continue, each with another attempt number; every other task is refused before it emits a row.
2. Once a task was refused, its range stays refused: later attempts are refused, too, and the driver
   knows.
3. Nothing begins in an evaluation that has ended.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

from pystate.checkpoint.refs import uid_folder
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import EvaluationError

EVALUATIONS = "evaluations"
_DRIVER = "driver"
_BEGUN_SUFFIX = ".begun"
_REFUSED_SUFFIX = ".refused"


@dataclass(frozen=True)
class Mark:
    """The content of a task's begin mark."""

    uid: str
    index: int
    stage: int
    partition: int
    attempt: int
    """The attempt number of the partition; it starts again when a stage runs again."""
    task: int
    """Spark's id of the attempt, which is unique."""
    host: str
    process_id: int

    def encode(self) -> bytes:
        """Return the file's content."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Mark:
        """Read the file's content."""
        return cls(**json.loads(data))

    def runs_again(self, first: Mark) -> bool:
        """Whether this is the same partition in another run of the same stage.

        Spark runs a stage again when an executor was lost, or a barrier task failed.
        """
        same = (self.stage, self.partition) == (first.stage, first.partition)
        return same and self.task != first.task

    def describe(self) -> str:
        """Name the task in messages."""
        return f"stage {self.stage}, partition {self.partition}, attempt {self.attempt}"


class RefusedError(EvaluationError):
    """Another task has begun the range."""


class Begun(NamedTuple):
    """A mark as the driver reads it."""

    mark: Mark
    seen_ms: int
    """When its task last gave a sign of life, by the storage's clock."""


class BeginMarks:
    """The marks of one evaluation; they are pickled and sent to its tasks."""

    def __init__(self, storage: CheckpointStorage, epoch: int, evaluation_id: str) -> None:
        self._storage = storage
        self._epoch = epoch
        self._folder = f"{EVALUATIONS}/{epoch:08d}-{evaluation_id}"

    # ---- on the driver -------------------------------------------------------------------------

    def open(self) -> None:
        """Allow tasks to begin."""
        self._storage.make_folder(self._folder)
        # The folder is never empty, so that orphan collection finds it after a crash.
        self._storage.mark(f"{self._folder}/{_DRIVER}", b"")

    def close(self) -> None:
        """End the evaluation: running tasks stop at their next sign of life."""
        self._storage.remove_folder(self._folder)

    def refused(self) -> list[Mark]:
        """Return the marks of the first task of each range that was refused."""
        return [entry.mark for entry in self._read(_REFUSED_SUFFIX)]

    def begun(self) -> dict[tuple[str, int], Begun]:
        """Return the marks of the ranges that were begun, by (uid, range)."""
        return {(entry.mark.uid, entry.mark.index): entry for entry in self._read(_BEGUN_SUFFIX)}

    def last_sign_ms(self) -> int:
        """When a task last began or gave a sign of life, by the storage's clock."""
        return max((entry.modified_ms for entry in self._storage.list(self._folder)), default=0)

    def _read(self, ending: str) -> list[Begun]:
        marks = []
        for entry in self._storage.list(self._folder):
            if entry.path.endswith(ending):
                mark = Mark.decode(self._storage.read_bytes(entry.path))
                marks.append(Begun(mark, entry.modified_ms))
        return marks

    # ---- in a task -----------------------------------------------------------------------------

    def begin(self, mark: Mark) -> Beginning:
        """Begin a range.

        `RefusedError` if it was begun by another task that is not an earlier attempt of this one,
        and `EvaluationError` if the evaluation has ended.
        """
        where = f"operator {mark.uid!r}, epoch {self._epoch}, range {mark.index}"
        path = f"{self._folder}/{uid_folder(mark.uid)}.{mark.index:05d}"
        data = mark.encode()
        try:
            content = self._storage.mark(path + _BEGUN_SUFFIX, data)
            if content is not None:
                self._begin_again(path, mark, Mark.decode(content), where)
        except FileNotFoundError:
            raise EvaluationError(
                f"{where}: this evaluation has ended; what a stateful operator returns can only be "
                "used in the pipeline's own result, not after its epoch"
            ) from None
        return Beginning(self._storage, path + _BEGUN_SUFFIX, where)

    def _begin_again(self, path: str, mark: Mark, first: Mark, where: str) -> None:
        retried = mark.runs_again(first) and mark.attempt != first.attempt
        if retried and not self._storage.exists(path + _REFUSED_SUFFIX):
            other = self._storage.mark(f"{path}.{mark.attempt}.again", mark.encode())
            if other is None:
                return
        self._storage.mark(path + _REFUSED_SUFFIX, mark.encode())
        raise RefusedError(
            f"{where} was begun in {first.describe()}, and again in {mark.describe()}: nothing is "
            "published of an operator that is evaluated twice"
        )


class Beginning:
    """A range that a task has begun; made by `BeginMarks.begin`."""

    def __init__(self, storage: CheckpointStorage, path: str, where: str) -> None:
        self._storage = storage
        self._path = path
        self._where = where
        self._touched_s = time.monotonic()

    def go_on(self) -> None:
        """Give a sign of life, from time to time; `EvaluationError` if nobody needs the output."""
        now_s = time.monotonic()
        if now_s - self._touched_s < self._storage.touch_every_s:
            return
        self._touched_s = now_s
        if not self._storage.touch(self._path):
            raise EvaluationError(f"{self._where}: this evaluation has ended")
