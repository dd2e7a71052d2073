"""What a table's options say of each other."""

from __future__ import annotations

from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.state_files import LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES
from pystate.errors import InvalidArgumentError
from pystate.tables.options import DISK, TableOptions


def test_only_tables_on_disk_have_files_with_guides() -> None:
    for home in ("shm", "local", "heap", "/mnt/disk"):
        options = TableOptions(home, block_bytes=8192)
        assert (options.on_disk, options.guided_block_bytes) == (False, 0)
    assert TableOptions(DISK).guided_block_bytes == LEAST_BLOCK_BYTES
    assert TableOptions(DISK, block_bytes=MOST_BLOCK_BYTES).guided_block_bytes == MOST_BLOCK_BYTES


@pytest.mark.parametrize("size", [0, LEAST_BLOCK_BYTES - 1, MOST_BLOCK_BYTES + 1, "4096", None])
def test_blocks_have_a_size_that_files_can_have(size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="block_bytes"):
        TableOptions(block_bytes=size)


def test_a_backend_can_be_on_disk() -> None:
    states: dict[str, Any] = {"n": ps.ValueState("long")}
    with ps.KeyedStateBackend("long", states=states, home="disk") as backend:
        assert backend._options.home == DISK and len(backend) == 0
    with ps.KeyedStateBackend("long", states=states, home="disk", timers=True) as backend:
        assert backend.next_timer("event") is None
