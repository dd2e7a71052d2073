"""Memory: of many windows that fire at once, and of a day of minutes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import Assigner, Session, Sliding, Tumbling
from tests.unit.operators.windows.windows_world import SCHEMA, ManyWorld, RowsWorld, World

MIB = 1 << 20


def resident(peak: bool = False) -> int:
    """The process's resident bytes now, or at most since `forget_peak`."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [each for each in lines if each.startswith(name)]
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Measure the largest resident size from now on."""
    Path("/proc/self/clear_refs").write_text("5")


class Counted(RowsWorld):
    """A function of many windows that counts their rows, and keeps nothing of them."""

    def rows_of(self, backend: Any, watermark: int) -> list[int]:
        operator = self._operator()
        operator.open(TaskContext(backend, time=OperatorTime(None, watermark)))
        sizes = []
        for windows in operator.operator.finish():
            for loaded in operator._columns.load():
                [offsets] = loaded.offsets
                assert (np.diff(offsets) > 0).all()
                sizes.append((loaded.end - loaded.begin, int(offsets[-1])))
            assert windows.num_rows <= 32_768
        self.sizes = sizes
        return [windows for windows, _ in sizes]


def fill(world: World, rows: int, keys: int) -> Any:
    """Epochs of rows that are in no window yet that is over."""
    [(_, backend)] = world.ranges
    for begin in range(0, rows, 100_000):
        i = np.arange(begin, min(begin + 100_000, rows))
        columns = [pa.array(i % keys), pa.array(100 + i % 7), pa.array(i)]
        operator = world._operator()
        operator.open(TaskContext(backend))
        target = getattr(operator, "operator", operator)
        assert list(target.process(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))) == []
        assert list(target.finish()) == []  # registers the timers that were kept back
        backend.seal(snapshot=False)
    return backend


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "windows", "rows", "keys"),
    [
        (World, Tumbling(10), 300_000, 300_000),
        (Counted, Tumbling(10), 300_000, 300_000),
        (Counted, Tumbling(10), 1_500_000, 1_500),
        pytest.param(World, Tumbling(10), 1_000_000, 1_000_000, marks=pytest.mark.slow),
        pytest.param(World, Session(5), 1_000_000, 1_000_000, marks=pytest.mark.slow),
        pytest.param(World, Sliding(10, 5), 500_000, 500_000, marks=pytest.mark.slow),
        pytest.param(Counted, Tumbling(10), 1_000_000, 1_000_000, marks=pytest.mark.slow),
        pytest.param(Counted, Session(5), 1_000_000, 1_000_000, marks=pytest.mark.slow),
        pytest.param(Counted, Sliding(10, 5), 500_000, 500_000, marks=pytest.mark.slow),
        pytest.param(Counted, Tumbling(10), 10_000_000, 1_000, marks=pytest.mark.slow),
    ],
)
def test_windows_fire_in_bounded_memory(
    kind: type[World], windows: Assigner, rows: int, keys: int
) -> None:
    world = kind(windows, {"n": ps.count(), "total": ps.sum("v")})
    backend = fill(world, rows, keys)
    undo = backend.stats().undo_bytes
    forget_peak()
    before = resident()
    if isinstance(world, Counted):
        fired = sum(world.rows_of(backend, 10_000))
        assert max(count for _, count in world.sizes) <= 1 << 17
    else:
        operator = world._operator()
        operator.open(TaskContext(backend, time=OperatorTime(None, 10_000)))
        fired = sum(piece.num_rows for piece in operator.finish())
        operator.close()
    grown = resident(peak=True) - before
    # That a window was removed can be undone until the epoch is sealed: each of its rows has a
    # before-image, of 50 to 77 bytes for a window's row, and of 131 for a session's with the row of
    # its key, which has the open sessions. Where a session's rows are kept, its row has a list,
    # too: 177 bytes for both. Blocks that were given back are noted in 9 bytes, 15 where rings have
    # just grown. Firing takes nothing else that grows with the keys: neither index nor blocks nor
    # timers.
    stats = backend.stats()
    images = 186 if isinstance(world, Counted) else 136
    if isinstance(windows, Tumbling):
        images = 80
    assert stats.undo_bytes - undo <= images * keys
    most = images + 20
    assert grown <= most * keys + 16 * MIB
    assert fired == (keys * 2 if isinstance(windows, Sliding) else keys)
    backend.seal(snapshot=False)
    assert world.kept() == 0
    world.close()


@pytest.mark.parametrize("kind", [World, ManyWorld])
@pytest.mark.parametrize("windows", [Tumbling("1 min"), Sliding("2 min", "1 min"), Session("30 s")])
@pytest.mark.parametrize("minutes", [150, pytest.param(1440, marks=pytest.mark.slow)])
def test_memory_is_that_of_the_open_windows(
    kind: type[World], windows: Assigner, minutes: int
) -> None:
    world = kind(windows, {"n": ps.count(), "total": ps.sum("v")})
    [(_, backend)] = world.ranges
    sizes = []
    for minute in range(minutes):
        rows = [(k, minute * 60_000 + k, 1) for k in range(minute % 3, 40, 3)]
        world.epoch(rows, minute * 60_000)
        world.backends.files.clear()
        sizes.append(backend.stats().committed_bytes)
        assert world.kept() <= 160
    assert sizes[-1] <= 1.1 * sizes[100]
    world.close()
