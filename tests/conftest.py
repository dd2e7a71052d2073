"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.epochs.coordinator import Coordinator, CoordinatorOptions
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import RangeReport
from tests import object_server
from tests.drawn import count
from tests.readers import READERS, Connect, reader_of

# A busy machine is no failure.
settings.register_profile("pystate", deadline=None, max_examples=count(150))
settings.load_profile("pystate")

# A JVM ends before it pays to compile code twice, which took half of these tests' processor time;
# to verify Spark's classes took a third of what it needs to start.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

# Files of tests are in memory, where it has room: a disk takes milliseconds to sync one, and tests
# have thousands. TMPDIR says where else.
MEMORY = "/dev/shm"
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize > 4 << 30 and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = MEMORY
        tempfile.tempdir = None

KEY = (("k", "bigint"),)
STATE = (("n", "bigint"),)


def coordinator_of(storage: CheckpointStorage, **given: Any) -> Coordinator:
    """A coordinator; what is given of its options becomes one object."""
    names = [field.name for field in fields(CoordinatorOptions) if field.name in given]
    options = CoordinatorOptions(**{name: given.pop(name) for name in names})
    return Coordinator(storage, options, **given)


class FakeWork:
    """An epoch's work without tables: each range's delta holds a line of text."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self.storage = storage
        self.committed: list[int] = []

    def coordinator(self, **options: Any) -> Coordinator:
        options.setdefault("job", "job")
        options.setdefault("parallelism", 2)
        options.setdefault("commit_sinks", self.commit)
        options.setdefault("merge_policy", None)
        return coordinator_of(self.storage, **options)

    def commit(self, manifest: Manifest) -> None:
        self.committed.append(manifest.epoch)

    def write(
        self, uid: str, state: RangeState, epoch: int, text: str, evaluation_id: str
    ) -> RangeReport:
        """What a worker does: a delta on the range's base, then its report."""
        attempt = uuid.uuid4().hex
        first, last = state.first_key_group, state.last_key_group
        path = state_path(uid, first, last, epoch, attempt, "delta")
        data = text.encode()
        with self.storage.create(path) as out:
            out.write(data)
        ref = FileRef(
            path, "delta", attempt, state.id, epoch, first, last, len(data), 0, 1, 0, len(data)
        )
        return RangeReport(uid, state.index, evaluation_id, attempt, state.id, ref)

    def reports(self, epoch: Epoch, text: str = "x", uid: str = "op") -> list[RangeReport]:
        ranges = epoch.declare(uid, key_schema=KEY, state_schema=STATE)
        return [self.write(uid, state, epoch.number, text, epoch.evaluation_id) for state in ranges]

    def evaluate(
        self, text: str = "x", sinks: Sequence[Any] = ("out",), uids: Sequence[str] = ("op",)
    ) -> Callable[[Epoch], Sequence[Any]]:
        def evaluate(epoch: Epoch) -> Sequence[Any]:
            for uid in uids:
                for report in self.reports(epoch, text, uid):
                    assert epoch.report(report)
            return sinks

        return evaluate

    def text(self, manifest: Manifest, uid: str = "op", index: int = 0) -> list[str]:
        """What the range's files say, oldest first."""
        operator = manifest.operator(uid)
        assert operator is not None
        files = operator.ranges[index].files
        return [self.storage.read_bytes(ref.path).decode() for ref in files]


@pytest.fixture(autouse=True)
def usual_level() -> None:
    """Have each test begin with what is logged without settings: what Spark runs changes that."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def work(tmp_path: Path) -> FakeWork:
    """Work on a fresh checkpoint."""
    return FakeWork(LocalStorage(tmp_path / "checkpoint"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A memory file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root and the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def object_store() -> Iterator[dict[str, str]]:
    """A server of S3, and this process's environment set to use it."""
    pytest.importorskip("obstore")
    with object_server.server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


@pytest.fixture
def s3_url(object_store: dict[str, str]) -> str:
    """A prefix of its own in the server's bucket."""
    return f"s3://{object_server.BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(params=READERS)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Connects to a checkpoint by its files, and by a server."""
    with ExitStack() as stack:
        yield reader_of(request.param, stack)
