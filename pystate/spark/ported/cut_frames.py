"""Small frames cut from a large one, each with an index of its own.

A processor gets a frame for each key, most of them of a few rows. pandas takes a slice and a new
index for each, with a frame made in between; here the values are copied, and a frame is put
together around them once. It uses the parts that pandas' own frames consist of, and these are the
same in all versions that pystate works with.

Thread safety: immutable.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from pandas.core.internals import BlockManager  # type: ignore[attr-defined, unused-ignore]


class CutFrames:
    """Cuts frames from one, whose values are not changed meanwhile."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._columns = frame.columns
        blocks: Any = frame._mgr.blocks  # type: ignore[attr-defined, unused-ignore]
        self._blocks = [(type(block), block.values, block.mgr_locs) for block in blocks]

    def cut(self, begin: int, end: int) -> pd.DataFrame:
        """A frame of some rows, numbered from 0; it shares nothing that may be changed."""
        blocks = tuple(
            [
                kind(
                    # Only the types of extensions have one column in a block.
                    (values[begin:end] if values.ndim == 1 else values[:, begin:end]).copy(),
                    placement=places,
                    ndim=2,
                )
                for kind, values, places in self._blocks
            ]
        )
        # Names can be set on an index: each frame has its own, over the same labels.
        axes = [self._columns.view(), pd.RangeIndex(end - begin)]
        manager = BlockManager(blocks, axes, verify_integrity=False)
        made: pd.DataFrame = pd.DataFrame._from_mgr(manager, axes)
        return made
