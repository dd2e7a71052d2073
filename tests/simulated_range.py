"""A range whose files are dicts, to see what a policy of merges makes of it in many epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pystate.checkpoint.refs import EMPTY_ID, FileRef, RangeState, state_path
from pystate.epochs.merge_policy import MergePolicy, Run

GROUPS = 128
#: The size of a record that stores something, and of one that deletes.
PUT, DELETE = 100, 20
#: What a file holds: a value by key, None for what is deleted.
Content = Mapping[int, int | None]


def group_of(key: int) -> int:
    return key % GROUPS


class SimulatedRange:
    """One range, its files, and what epochs and merges have written."""

    def __init__(self, policy: MergePolicy) -> None:
        self.policy = policy
        self.state = RangeState(0, 0, GROUPS - 1, EMPTY_ID)
        self.contents: dict[str, Content] = {}
        self.plain: set[str] = set()
        self.number = self.changed_bytes = self.merged_bytes = self.merges = 0

    def run_epoch(self, changes: Content) -> None:
        """An epoch that changes something."""
        self.number += 1
        ref = self.write(changes, "delta", f"{self.number:032x}", self.state.id, self.state.bounds)
        self.changed_bytes += ref.file_bytes
        self.state = replace(self.state, id=ref.id, deltas=(*self.state.deltas, ref))

    def write(
        self, content: Content, kind: str, id_: str, parent: str, bounds: tuple[int, int]
    ) -> FileRef:
        path = state_path("op", *bounds, self.number, f"{len(self.contents):032x}", kind)
        self.contents[path] = content
        rows = sum(value is not None for value in content.values())
        gone = len(content) - rows
        size = 1 + PUT * rows + DELETE * gone
        return FileRef(path, kind, id_, parent, self.number, *bounds, size, 0, rows, gone, size)

    def plan(self) -> Run | None:
        return self.policy.choose(self.state, self.plain)

    def merge(self, run: Run) -> FileRef:
        """Carry a merge out."""
        merged: dict[int, int | None] = {}
        for ref in run.sources:
            merged.update(self.counting(ref))
        if run.kind == "base":
            merged = {key: value for key, value in merged.items() if value is not None}
        parent = run.sources[0 if run.kind == "delta" else -1].parent
        ref = self.write(merged, run.kind, run.id, parent, run.slice or self.state.bounds)
        self.merged_bytes += ref.file_bytes
        self.merges += 1
        return ref

    def counting(self, ref: FileRef) -> Content:
        content = self.contents[ref.path]
        if ref.share == 1:
            return content
        first, last = ref.bounds
        return {key: value for key, value in content.items() if first <= group_of(key) <= last}

    def adopt(self, run: Run, merged: FileRef) -> None:
        state = run.replaced(self.state, merged)
        assert state is not None
        self.state = state

    def read(self) -> dict[int, int]:
        """What the files hold, each for the key groups for which it counts."""
        found: dict[int, int | None] = {}
        for ref in self.state.files:
            found.update(self.counting(ref))
        return {key: value for key, value in found.items() if value is not None}

    @property
    def amplification(self) -> float:
        return (self.changed_bytes + self.merged_bytes) / self.changed_bytes
