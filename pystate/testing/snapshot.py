"""All state of a harness in one object, which outlives it.

Thread safety: immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pystate.testing.clock import Clock
from pystate.testing.local_operator import OperatorOptions
from pystate.types.keys import KeyColumns

__all__ = ["HarnessSnapshot"]


@dataclass(frozen=True)
class HarnessSnapshot:
    """All state of a harness after an epoch, as files in memory; `Harness.restore` takes it.

    It can be pickled. Later versions can read it, as they can read checkpoints.

    Attributes
    ----------
    epoch : int
        The last epoch in it.
    """

    epoch: int
    _files: tuple[bytes, ...]
    _key: KeyColumns | None
    _columns: pa.Schema | None
    _clock: Clock
    _options: OperatorOptions

    def __repr__(self) -> str:
        size = sum(map(len, self._files))
        return f"<HarnessSnapshot of epoch {self.epoch}, {size} bytes>"
