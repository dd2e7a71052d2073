"""The workloads for pytest-benchmark: ``pytest bench --benchmark-autosave --benchmark-compare``.

``PYSTATE_BENCH_SCALE`` chooses their size. Groups are questions; the rows of a group are peers.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from bench import keyed
from bench.measure import chosen_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

    from bench.measure import Scale, Work
    from pystate import KeyedStateBackend

SCALE = chosen_scale()
N_KEYS = SCALE.key_counts[0]


def run(benchmark: BenchmarkFixture, work: Work) -> None:
    def prepare() -> None:
        work.after()
        work.before()

    benchmark.pedantic(work.run, setup=prepare, rounds=SCALE.rounds, warmup_rounds=1)
    work.after()


@pytest.mark.parametrize("name", ["pystate", "pystate, seal timed", "dict", "numpy.add.at"])
@pytest.mark.benchmark(group="count")
def test_count(benchmark: BenchmarkFixture, name: str) -> None:
    run(benchmark, keyed.count_works(SCALE, N_KEYS)[name])


@pytest.mark.parametrize("name", ["pystate", "pystate, seal timed", "dict"])
@pytest.mark.benchmark(group="sum and count")
def test_sum_and_count(benchmark: BenchmarkFixture, name: str) -> None:
    run(benchmark, keyed.sum_and_count_works(SCALE, N_KEYS)[name])


@pytest.mark.parametrize("name", ["pystate", "pystate, keys known in batches", "dict"])
@pytest.mark.benchmark(group="one key at a time")
def test_one_by_one(benchmark: BenchmarkFixture, name: str) -> None:
    run(benchmark, keyed.scalar_works(SCALE, N_KEYS)[name])


def changed_backend(scale: Scale) -> tuple[KeyedStateBackend, Callable[[], None]]:
    backend = keyed.long_backend("n")
    keyed.fill(backend, N_KEYS, "n")
    rng = np.random.default_rng(46)

    def change() -> None:
        keys = pa.array(rng.choice(N_KEYS, scale.changed_rows[-1] // 10 or 1, replace=False))
        backend["n"].add(backend.keys(keys), 1)

    return backend, change


@pytest.mark.benchmark(group="snapshot()")
def test_seal(benchmark: BenchmarkFixture) -> None:
    backend, change = changed_backend(SCALE)
    benchmark.pedantic(
        lambda: keyed.seal(backend), setup=change, rounds=SCALE.rounds, warmup_rounds=1
    )


@pytest.mark.benchmark(group="write of a delta, into memory")
def test_write(benchmark: BenchmarkFixture) -> None:
    backend, change = changed_backend(SCALE)
    change()
    snapshot = backend.seal()
    benchmark.pedantic(
        lambda out: snapshot.write(out), setup=lambda: ((io.BytesIO(),), {}), rounds=1
    )
    snapshot.close()
