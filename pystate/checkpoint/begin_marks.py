"""Begin marks: which task of an evaluation works on a range.

A report says what was read to its end. It says nothing of a task that a reader left early (a
limit, `isEmpty`), whose rows may be published all the same, and whose state is thrown away. So a
task says that it begins, too: before it touches the range's table, and so before it hands out a
row, it creates a small file in the evaluation's folder, which of several tasks exactly one can.
Another task of the same partition and stage, with another attempt number, is a retry or a
speculative copy: Spark uses the output of one of them. Any other one means that the range is
evaluated a second time. It is refused at once, before it waits for a lock that the first one may
hold, and the evaluation does not count.

Why a file, and not a message to the driver: the file is there before the row leaves, whatever
becomes of the task; accumulators tell only of tasks that ended well. It is not synced, since a
mark means nothing after a crash.

Thread safety: any number of tasks of any process may begin at once.

Invariants
----------
1. Of the tasks that begin a range in one evaluation, only attempts of one partition of one stage
   go on, each with another attempt number; every other one is refused before it hands out a row.
2. Once a task was refused its range stays refused: later attempts are, too, and the driver knows.
3. Nothing begins in an evaluation that has ended.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

from pystate.checkpoint.manifest import uid_folder
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import EvaluationError

__all__ = ["EVALUATIONS", "BeginMarks", "Beginning", "Begun", "Mark", "RefusedError"]

EVALUATIONS = "evaluations"
_DRIVER = "driver"
_BEGUN = ".begun"
_REFUSED = ".refused"
#: Between two signs of life of a task.
_TOUCH_EVERY_S = 1.0


@dataclass(frozen=True)
class Mark:
    """What a task writes when it begins."""

    uid: str
    index: int
    stage: int
    partition: int
    attempt: int
    """Of the partition, counted anew when a stage runs again."""
    task: int
    """Spark's number of the attempt, which it gives once."""
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
    """A mark as the driver finds it."""

    mark: Mark
    seen_ms: int
    """When its task last gave a sign of life, by the storage's clock."""


class BeginMarks:
    """The marks of one evaluation; pickled to its tasks.

    Parameters
    ----------
    storage : CheckpointStorage
        The checkpoint.
    epoch : int
        The epoch's number.
    evaluation_id : str
        The evaluation.
    """

    def __init__(self, storage: CheckpointStorage, epoch: int, evaluation_id: str) -> None:
        self._storage = storage
        self._epoch = epoch
        self._folder = f"{EVALUATIONS}/{epoch:08d}-{evaluation_id}"

    # ---- on the driver -------------------------------------------------------------------------

    def open(self) -> None:
        """Let tasks begin."""
        self._storage.make_folder(self._folder)
        # The folder is never empty, so that orphan collection finds it after a crash.
        self._storage.mark(f"{self._folder}/{_DRIVER}", b"")

    def close(self) -> None:
        """End the evaluation: tasks that still run give up at their next sign of life."""
        self._storage.remove_folder(self._folder)

    def refused(self) -> list[Mark]:
        """Return the marks of the first task of each range that was refused."""
        return [found.mark for found in self._read(_REFUSED)]

    def begun(self) -> dict[tuple[str, int], Begun]:
        """Return the marks of the ranges that were begun, by (uid, range)."""
        return {(found.mark.uid, found.mark.index): found for found in self._read(_BEGUN)}

    def last_sign_ms(self) -> int:
        """When a task last began or gave a sign of life, by the storage's clock."""
        return max((entry.modified_ms for entry in self._storage.list(self._folder)), default=0)

    def _read(self, ending: str) -> list[Begun]:
        found = []
        for entry in self._storage.list(self._folder):
            if entry.path.endswith(ending):
                mark = Mark.decode(self._storage.read_bytes(entry.path))
                found.append(Begun(mark, entry.modified_ms))
        return found

    # ---- in a task -----------------------------------------------------------------------------

    def begin(self, mark: Mark) -> Beginning:
        """Begin a range.

        Raises
        ------
        RefusedError
            The range was begun by another task than a former attempt of this one.
        EvaluationError
            The evaluation has ended.
        """
        where = f"operator {mark.uid!r}, epoch {self._epoch}, range {mark.index}"
        path = f"{self._folder}/{uid_folder(mark.uid)}.{mark.index:05d}"
        data = mark.encode()
        try:
            found = self._storage.mark(path + _BEGUN, data)
            if found is not None:
                self._begin_again(path, mark, Mark.decode(found), where)
        except FileNotFoundError:
            raise EvaluationError(
                f"{where}: this evaluation has ended; what a stateful operator returns can only be "
                "used in the pipeline's own result, not after its epoch"
            ) from None
        return Beginning(self._storage, path + _BEGUN, where)

    def _begin_again(self, path: str, mark: Mark, first: Mark, where: str) -> None:
        retried = mark.runs_again(first) and mark.attempt != first.attempt
        if retried and not self._storage.exists(path + _REFUSED):
            other = self._storage.mark(f"{path}.{mark.attempt}.again", mark.encode())
            if other is None:
                return
        self._storage.mark(path + _REFUSED, mark.encode())
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
        """Give a sign of life, from time to time.

        Raises
        ------
        EvaluationError
            The evaluation has ended: nobody reads what the task does.
        """
        now_s = time.monotonic()
        if now_s - self._touched_s < _TOUCH_EVERY_S:
            return
        self._touched_s = now_s
        if not self._storage.touch(self._path):
            raise EvaluationError(f"{self._where}: this evaluation has ended")
