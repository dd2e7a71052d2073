"""One Spark for all tests of this folder, and what they share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .plans import CHEAP, ONE_TASK, configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

#: Where tables are by default.
SHARED = Path("/dev/shm")
ROOT = Path(__file__).parents[2]


def python_path() -> str:
    """The PYTHONPATH with which other processes find the tests."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_configure(config: pytest.Config) -> None:
    # Spark's own code, on its way through py4j and pandas.
    for line in (
        "ignore::DeprecationWarning:pyspark.*",
        "ignore::FutureWarning:pyspark.*",
        "ignore::ResourceWarning",
        "ignore:unclosed.*:pytest.PytestUnraisableExceptionWarning",
    ):
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two cores and four attempts per task."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from pystate.spark.base.environment import use_this_python

    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("pystate tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.daemon.module", "tests.spark.daemon")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.executorEnv.PYTHONPATH", python_path())
        # A stopped query's worker lives on until its test lets it end, however slow the host is.
        .config("spark.python.task.killTimeout", "600s")
        .config(map=CHEAP)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    use_this_python(session.sparkContext)
    yield session
    session.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        # The JVM ends when its standard input does.
        process = gateway.proc
        process.stdin.close()
        process.wait(timeout=60)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def default_plans(spark: SparkSession) -> Iterator[None]:
    """Spark plans as it does for users."""
    with configured(spark, dict.fromkeys(CHEAP)):
        yield


@pytest.fixture(scope="module")
def one_task(spark: SparkSession) -> Iterator[None]:
    """Spark shuffles into one partition: for pipelines of many operators."""
    with configured(spark, ONE_TASK):
        yield


@pytest.fixture(autouse=True)
def by_value(request: pytest.FixtureRequest) -> None:
    """Test modules cannot be imported by the workers: send their functions whole."""
    if "spark" in request.fixturenames:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make jobs on one checkpoint; each call is a new driver's."""
    from pystate.spark import Job

    jobs = []

    def make(name: str = "test", **options: Any) -> Job:
        options.setdefault("parallelism", 2)
        options.setdefault("checkpoint", tmp_path / "checkpoint")
        jobs.append(Job(name, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


class Source:
    """A stream of files, one epoch each."""

    def __init__(self, session: SparkSession, folder: Path, schema: str) -> None:
        self.folder = folder
        self._session = session
        self._schema = schema
        self._written = 0
        folder.mkdir()

    def add(self, *lines: str) -> None:
        """Append an epoch: a CSV file, newer than those before."""
        path = self.folder / f"{self._written:05d}.csv"
        temporary = self.folder / f"_{path.name}"
        temporary.write_text("".join(f"{line}\n" for line in lines))
        moment = 1_700_000_000 + self._written
        os.utime(temporary, (moment, moment))
        temporary.rename(path)
        self._written += 1

    def stream(self) -> DataFrame:
        """The streaming DataFrame."""
        reader = self._session.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        return reader.option("maxFileAge", "36500d").csv(self.folder.as_uri())


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    """A stream of (k string, v long)."""
    return Source(spark, tmp_path / "input", "k string, v long")


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows as sorted tuples."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def state_of(job: Job, uid: str) -> dict[Any, Any]:
    """The state in the checkpoint: key to value, or to a tuple of values."""
    state: dict[Any, Any] = {}
    for key, *values in zip(*(c.to_pylist() for c in job.read_state(uid).columns), strict=True):
        state[key] = values[0] if len(values) == 1 else tuple(values)
    return state


def set_lock_timeout(job: Job, timeout_ms: int) -> None:
    """Let a job's tasks wait for a table's lock for as long as that."""
    options = copy(job._epochs.options)
    # What follows from other options is no argument of theirs.
    object.__setattr__(options, "tables", replace(options.tables, lock_timeout_ms=timeout_ms))
    job._epochs.options = options


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


def close_for_good(job: Job) -> None:
    """Close a job, and wait until its tables have gone: the next one reads files."""
    assert job._epochs.coordinator is not None
    folder = job._epochs.coordinator.job.application(job._epochs.storage).hex()[:16]
    job.close()
    wait_for(lambda: not [*SHARED.glob(f"pystate-*/*/{folder}")], "the janitor")
