"""Where merges are carried out, if not by the driver's maintenance thread.

Thread safety: `PlannedMerge` is immutable; a `MergeRunner` says for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pystate.checkpoint.refs import FileRef
from pystate.epochs.merge_policy import Run

__all__ = ["MergeRunner", "PlannedMerge"]


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

    @property
    def size_bytes(self) -> int:
        """How much it reads, and at most about as much it writes."""
        return sum(ref.file_bytes for ref in self.run.sources)


class MergeRunner(Protocol):
    """Carries out many merges at once, in other processes.

    `tasks` and `run` are called by the maintenance thread, `give_up` by any other.
    """

    def tasks(self) -> int:
        """How many merges it would now carry out at the same time; 0 if the driver should."""

    def run(self, merges: Sequence[PlannedMerge]) -> Sequence[FileRef | str]:
        """Carry them out; return the new file or what went wrong for each, in their order.

        A process may begin a merge that another one has begun, or even finished: see
        `pystate.epochs.merges.merge_again`.

        Raises
        ------
        CheckpointError
            What became of them is not known. Processes may be at work on them still.
        """

    def give_up(self) -> None:
        """End what runs, and run nothing more. Does nothing if nothing runs."""
