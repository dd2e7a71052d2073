"""All state of a harness in one object, which outlives it.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError
from pystate.testing.clock import Clock

#: Of what is pickled; another one for each change of the fields below, or of what they hold.
_FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """Base of the snapshots."""

    epoch: int
    _files: tuple[bytes, ...]
    _clock: Clock
    _given: Mapping[str, Any]
    """What else the harness continues with: its arguments, or its options and columns."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.epoch, self._files, self._clock, dict(self._given))
        return _unpickled, (_FORMAT, type(self), fields)

    def __repr__(self) -> str:
        size = sum(map(len, self._files))
        return f"<{type(self).__name__} of epoch {self.epoch}, {size} bytes>"


def _unpickled(version: int, kind: type[Snapshot], fields: Any) -> Snapshot:
    if version != _FORMAT:
        raise InvalidArgumentError(
            f"this {kind.__name__} was pickled by a version of pystate that writes format "
            f"{version}, and this one reads {_FORMAT}: take the snapshot again, and keep in a "
            "checkpoint what later versions are to read"
        )
    return kind(*fields)


def check_snapshot(given: Any, kind: type[Snapshot], harness: str) -> None:
    """Refuse what is no snapshot of such a harness."""
    if not isinstance(given, kind):
        raise InvalidArgumentError(
            f"restore takes what snapshot() of a {harness} gives, not {shown(given)}"
        )


class HarnessSnapshot(Snapshot):
    """All state of a harness after an epoch, as files in memory; `Harness.restore` takes it.

    It can be pickled, for tests of the same version of pystate; what later versions are to read
    belongs into a checkpoint.

    Attributes
    ----------
    epoch : int
        The last epoch in it.
    """


class BroadcastSnapshot(HarnessSnapshot):
    """All state of a `BroadcastHarness` after an epoch; see `HarnessSnapshot`."""


class OperatorSnapshot(Snapshot):
    """All state of a harness after an epoch, as files in memory; its `restore` takes it.

    Attributes
    ----------
    epoch : int
        The last epoch in it.
    """
