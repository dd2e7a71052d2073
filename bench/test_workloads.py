"""The workloads for pytest-benchmark: ``pytest bench --benchmark-autosave --benchmark-compare``.

``PYSTATE_BENCH_SCALE`` chooses their size. Groups are questions; the rows of a group are peers.
"""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from bench import keyed
from bench.measure import Work, chosen_scale

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from pystate import KeyedStateBackend

SCALE = chosen_scale()
N_KEYS = SCALE.key_counts[0]


def run(benchmark: BenchmarkFixture, work: Work) -> None:
    def prepare() -> None:
        work.after()
        work.before()

    benchmark.pedantic(work.run, setup=prepare, rounds=SCALE.rounds, warmup_rounds=1)
    work.after()


GROUPS = {
    "count": keyed.count_works,
    "sum and count": keyed.sum_and_count_works,
    "one key at a time": keyed.scalar_works,
}
NAMES = {
    "count": ("pystate", "pystate, seal timed", "dict", "numpy.add.at"),
    "sum and count": ("pystate", "pystate, seal timed", "dict"),
    "one key at a time": ("pystate", "pystate, keys known in batches", "dict"),
}


@pytest.mark.parametrize(("group", "name"), [(g, name) for g in NAMES for name in NAMES[g]])
def test_work(benchmark: BenchmarkFixture, group: str, name: str) -> None:
    benchmark.group = group
    run(benchmark, GROUPS[group](SCALE, N_KEYS)[name])


@pytest.fixture
def backend() -> KeyedStateBackend:
    made = keyed.long_backend("n")
    keyed.fill(made, N_KEYS, "n")
    return made


def change(backend: KeyedStateBackend, rng: np.random.Generator) -> None:
    keys = rng.choice(N_KEYS, SCALE.changed_rows[-1] // 10 or 1, replace=False)
    backend["n"].add(backend.keys(pa.array(keys)), 1)


@pytest.mark.benchmark(group="snapshot()")
def test_seal(benchmark: BenchmarkFixture, backend: KeyedStateBackend) -> None:
    rng = np.random.default_rng(46)
    run(benchmark, Work(partial(keyed.seal, backend), before=partial(change, backend, rng)))


@pytest.mark.benchmark(group="write of a delta, into memory")
def test_write(benchmark: BenchmarkFixture, backend: KeyedStateBackend) -> None:
    change(backend, np.random.default_rng(46))
    with backend.seal() as snapshot:
        benchmark.pedantic(snapshot.write, setup=lambda: ((io.BytesIO(),), {}), rounds=1)
