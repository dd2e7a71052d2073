"""Jobs whose epochs are real files and whose sums are known, and storages that end a process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

import pystate as ps
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.storage import CheckpointStorage, FileEntry, LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import RangeReport
from pystate.tables.host import TableHome
from tests.conftest import coordinator_of
from tests.peer import Worker

KEY = (("k", "bigint"),)
STATE = (("n", "bigint"), ("s", "string"))
HASHES = [int(h) for h in ps.hash_keys([pa.array(range(100))])]


class Work:
    """A job of one or more operators that count; what they hold is in files, and in a dict."""

    def __init__(
        self, root: Path, name: str = "job", uids: Sequence[str] = ("op",), groups: int = 128
    ) -> None:
        self.root, self.name, self.uids = root, name, uids
        self.storage = LocalStorage(root)
        self.counts: dict[int, int] = {}
        self.committed: list[int] = []
        self.groups = groups

    def coordinator(self, **options: Any) -> Coordinator:
        options.setdefault("parallelism", 2)
        options.setdefault("commit_sinks", lambda manifest: self.committed.append(manifest.epoch))
        options.setdefault("merge_policy", None)
        return coordinator_of(self.storage, job=self.name, **options)

    def evaluate(self, counts: Mapping[int, int]) -> Callable[[Epoch], Sequence[Any]]:
        def evaluate(epoch: Epoch) -> Sequence[Any]:
            for uid in self.uids:
                for state in epoch.declare(uid, key_schema=KEY, state_schema=STATE):
                    assert epoch.report(self._report(uid, state, counts, epoch))
            return ("out",)

        return evaluate

    def _report(self, uid: str, state: Any, counts: Mapping[int, int], epoch: Epoch) -> RangeReport:
        worker = Worker(str(self.root), TableHome(None, None), groups=self.groups, uid=uid)
        bounds = range(state.first_key_group, state.last_key_group + 1)
        mine = {k: n for k, n in counts.items() if ps.key_group(HASHES[k], self.groups) in bounds}
        ref = worker.epoch(state, mine, epoch.number)
        worker.stop()
        return RangeReport(uid, state.index, epoch.evaluation_id, ref.id, state.id, ref)

    def run(self, coordinator: Coordinator, counts: Mapping[int, int], **position: Any) -> int:
        outcome = coordinator.run(self.evaluate(counts), **position)
        if not outcome.already_done:
            for key, count in counts.items():
                self.counts[key] = self.counts.get(key, 0) + count
        return outcome.epoch

    def some(self, epochs: int, **options: Any) -> Work:
        """Run a few epochs; returns itself."""
        with self.coordinator(**options) as coordinator:
            for number in range(epochs):
                self.run(coordinator, dict.fromkeys(range(number, number + 40), number + 1))
        return self

    def go_on(self, savepoint: Path, root: Path, **options: Any) -> Work:
        """A second job, which begins with a savepoint."""
        other = Work(root, options.pop("name", self.name), options.pop("uids", self.uids))
        assert begin_with(LocalStorage(savepoint), other.storage, job=other.name, **options)
        other.counts = dict(self.counts)
        return other


def read(folder: Path, uid: str = "op") -> dict[int, int]:
    table = ps.read_state(folder, uid)
    return dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))


def content(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def spark_files(root: Path, query_id: str, batches: int) -> None:
    """What Spark leaves of a query over files."""
    for name, data in {
        "metadata": json.dumps({"id": query_id}),
        ".metadata.crc": "crc",
        **{f"offsets/{n}": f'v1\n{{"batchTimestampMs":1}}\noffset {n}' for n in range(batches)},
        **{f"offsets/.{n}.crc": "crc" for n in range(batches)},
        **{f"commits/{n}": "v1\n{}" for n in range(batches)},
        **{f"sources/0/{n}": f"v1\nfile {n}" for n in range(batches)},
    }.items():
        path = root / "spark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data)


def batch(number: int, query_id: str) -> dict[str, Any]:
    return {
        "query_id": query_id,
        "batch_id": number,
        "offsets_hash": f"offsets {number}",
        "processing_time_ms": 1000 + number,
    }


def a_run_and_a_stream(work: Work) -> None:
    """A run of one epoch, then two batches of a query."""
    query_id = str(uuid.uuid4())
    with work.coordinator(retained=1) as coordinator:
        work.run(coordinator, {1: 1}, run_key="r")
        for number in range(2):
            work.run(coordinator, {number: 1}, **batch(number, query_id), restore="latest")
    spark_files(work.root, query_id, 2)


class CutError(Exception):
    """The process ends here."""


class Cut(LocalStorage):
    """A storage that ends the process before the n-th thing that it does."""

    left = 1 << 30

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CutError

    def publish(self, path: str, data: bytes) -> None:
        self._step()
        super().publish(path, data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if not path.endswith(".closed"):  # the process does not end: its driver is not to be alive
            self._step()
        super().replace(path, data, durable=durable)

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        self._step()
        return super().create(path)

    def share(self, path: str, other: CheckpointStorage, other_path: str) -> bool:
        self._step()
        return super().share(path, other, other_path)

    def list(self, prefix: str, *, temporary: bool = False) -> list[FileEntry]:
        self._step()
        return super().list(prefix, temporary=temporary)

    def read_bytes(self, path: str) -> bytes:
        self._step()
        return super().read_bytes(path)

    def delete(self, path: str) -> bool:
        self._step()
        return super().delete(path)

    def remove_folder(self, path: str) -> None:
        self._step()
        super().remove_folder(path)


def cuts(root: Path, act: Callable[[Cut], Any], every: int = 1) -> Iterator[bool]:
    """Do something in folders 0, 1, ..., cut some steps later each time; False when it was not."""
    for number, left in enumerate(range(0, 1000, every)):
        storage = Cut(root / str(number))
        storage.left = left
        try:
            act(storage)
        except CutError:
            yield True
        else:
            yield False
            return
    raise AssertionError("it never came to its end")
