"""What a check of a checkpoint has found.

Thread safety: all types are immutable.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef

__all__ = ["KINDS", "Finding", "Use", "Verification", "uses_of"]

#: What a finding's kind means.
KINDS = {
    "missing": "the file is lost",
    "truncated": "the file is shorter than it was when it was written",
    "damaged": "bytes of the file are not those that were written",
    "swapped": "the file holds the content of another file",
    "newer": "a later pystate wrote the file",
    "position": "the stream's position does not belong to the state",
    "interrupted": "a repair was interrupted: it is to be run again",
    "orphan": "no retained epoch names the file",
    "leftover": "an interrupted write, or an interrupted command, has left the file",
}
_HARMLESS = frozenset(("orphan", "leftover"))


@dataclass(frozen=True)
class Finding:
    """Something that a check has found.

    Attributes
    ----------
    path : str
        The file, relative to the checkpoint's folder.
    kind : str
        ``"missing"``, ``"truncated"``, ``"damaged"``, ``"swapped"``, ``"newer"``, ``"position"``,
        ``"interrupted"``; or ``"orphan"``, ``"leftover"``, which do no harm.
    message : str
        What is wrong, and what it means.
    epochs : tuple of int
        The retained epochs that cannot be read because of it.
    uid : str or None
        The operator whose state the file holds.
    ranges : tuple of int
        The operator's ranges that need it.
    key_groups : tuple of (int, int) or None
        The first and the last key group for which it counts.
    size_bytes : int
        The size of a file that does no harm.
    """

    path: str
    kind: str
    message: str
    epochs: tuple[int, ...] = ()
    uid: str | None = None
    ranges: tuple[int, ...] = ()
    key_groups: tuple[int, int] | None = None
    size_bytes: int = 0

    @property
    def is_error(self) -> bool:
        """Whether something is wrong, and not only superfluous."""
        return self.kind not in _HARMLESS


@dataclass(frozen=True)
class Verification:
    """The result of a check.

    Attributes
    ----------
    location : str
        The folder.
    kind : {"checkpoint", "savepoint"}
        What it is.
    epochs : tuple of int
        The epochs that were checked, ascending: all that are retained.
    good_epochs : tuple of int
        Those of them that can be restored.
    files, size_bytes : int
        The state files that were read from end to end.
    findings : tuple of Finding
        What was found, errors first.
    """

    location: str
    kind: str
    epochs: tuple[int, ...]
    good_epochs: tuple[int, ...]
    files: int
    size_bytes: int
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.errors


@dataclass
class Use:
    """Where the retained epochs use a state file."""

    ref: FileRef
    """How the newest of them names it."""
    uid: str
    max_parallelism: int
    epochs: set[int]
    ranges: set[int]
    first_key_group: int
    last_key_group: int

    def finding(self, kind: str, message: str) -> Finding:
        """Something that is wrong with the file."""
        return Finding(
            path=self.ref.path,
            kind=kind,
            message=message,
            epochs=tuple(sorted(self.epochs)),
            uid=self.uid,
            ranges=tuple(sorted(self.ranges)),
            key_groups=(self.first_key_group, self.last_key_group),
        )


def uses_of(manifests: Collection[Manifest]) -> dict[str, Use]:
    """Return the state files of some epochs, by path."""
    uses: dict[str, Use] = {}
    for manifest in sorted(manifests, key=lambda m: m.epoch):
        for operator in manifest.operators:
            for state in operator.ranges:
                for ref in state.files:
                    use = uses.get(ref.path)
                    if use is None:
                        bounds = (ref.first_key_group, ref.last_key_group)
                        use = uses[ref.path] = Use(
                            ref, operator.uid, manifest.max_parallelism, set(), set(), *bounds
                        )
                    use.ref = ref
                    use.epochs.add(manifest.epoch)
                    use.ranges.add(state.index)
                    use.first_key_group = min(use.first_key_group, ref.first_key_group)
                    use.last_key_group = max(use.last_key_group, ref.last_key_group)
    return uses
