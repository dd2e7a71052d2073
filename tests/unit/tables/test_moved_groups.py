"""How much a range reads of the files of former ranges: its own key groups, and little else."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate._core.core import range_bounds

GROUPS = 128
KEYS = 400_000
#: Beside its blocks a file's header, index and footer are read, and a block at either end of the
#: key groups may hold others, too.
OVERHEAD = 2 * (256 << 10)


class Counted(io.BytesIO):
    """A file that counts the bytes read."""

    bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.bytes_read += len(data)
        return data

    def readinto(self, buffer: object, /) -> int:
        count = super().readinto(buffer)  # type: ignore[arg-type]
        self.bytes_read += count
        return count


def backend(first: int, last: int) -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend(
        "long",
        states={"n": ps.ValueState("long"), "x": ps.ValueState("double")},
        max_parallelism=GROUPS,
        key_group_range=(first, last),
    )


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    """The files of four ranges."""
    written = []
    keys = pa.array(np.arange(KEYS, dtype=np.int64))
    groups = ps.hash_keys([keys]).view(np.int64) % GROUPS
    for index in range(4):
        first, last = range_bounds(index, GROUPS, 4)
        mine = keys.filter(pa.array((groups >= first) & (groups <= last)))
        with backend(first, last) as table:
            rows = table.keys(mine)
            table["n"].update_all(rows, mine)
            table["x"].update_all(rows, pa.array(np.random.default_rng(index).random(len(mine))))
            out = io.BytesIO()
            table.seal().write(out)
        written.append(out.getvalue())
    return written


@pytest.mark.parametrize("parallelism", [8, 7, 3, 128])
def test_bytes_read_are_those_of_the_moved_key_groups(files: list[bytes], parallelism: int) -> None:
    """Live 4 -> 8 and others, where no table is left to copy from."""
    rows = 0
    for index in range(parallelism):
        first, last = range_bounds(index, GROUPS, parallelism)
        with backend(first, last) as table:
            for old, data in enumerate(files):
                low, high = range_bounds(old, GROUPS, 4)
                common = range(max(first, low), min(last, high) + 1)
                if not common:
                    continue
                file = Counted(data)
                table.load(file, first_key_group=common[0], last_key_group=common[-1])
                share = len(common) / (high - low + 1) * len(data)
                assert 0.9 * share <= file.bytes_read <= 1.1 * share + OVERHEAD
            rows += len(table)
    assert rows == KEYS
