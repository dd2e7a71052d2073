"""What long chains of deltas cost: bytes, merging, restoring, storage, files, memory, manifests.

``python -m bench.chains`` runs a driver and its workers in this process, without Spark, over real
files. Tables stay in memory, as in a job that runs. There are two questions, chosen by ``--only``:
epochs that change a part of a large state, and thousands of epochs that change a few of its keys.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import stat
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.merges import merge_range
from pystate.epochs.range_report import RangeReport
from pystate.tables.backend import KeyedStateBackend

if TYPE_CHECKING:
    from pystate.epochs.epoch import Epoch

MB = 1e6
GROUPS = 1024
STATES = {"n": ps.ValueState("long", default=0), "x": ps.ValueState("double")}
#: The key and both values.
ROW_BYTES = 24
KEY_SCHEMA = (("key", "bigint"),)
STATE_SCHEMA = (("n", "bigint"), ("x", "double"))


class Figures(NamedTuple):
    """One epoch; the manifest with its part, if the epoch wrote one."""

    seconds: float
    delta_bytes: int
    manifest_bytes: int


class Chains:
    """A job of one operator, with its checkpoint in a folder, whose tables live here."""

    def __init__(self, root: Path, keys: int, ranges: int) -> None:
        self.storage = LocalStorage(root)
        self.coordinator = Coordinator(
            self.storage, job="chains", parallelism=ranges, max_parallelism=GROUPS
        )
        self.rng = np.random.default_rng(1)
        self.keys = np.arange(keys, dtype=np.int64)
        hashes = np.asarray(ps.hash_keys([pa.array(self.keys)]))
        # As Spark's pmod.
        self.range_of = (hashes.astype(np.int64) % GROUPS) * ranges // GROUPS
        self.tables = [_table(_bounds(i, ranges)) for i in range(ranges)]
        self.merged_bytes = 0
        self._known: set[str] = set()

    def epoch(self, changed: Any) -> Figures:
        """Run an epoch that changes some keys."""
        before = time.perf_counter()
        outcome = self.coordinator.run(lambda epoch: self._evaluate(epoch, changed))
        seconds = time.perf_counter() - before
        assert outcome.manifest is not None
        return self._figures(outcome.manifest, seconds)

    def _evaluate(self, epoch: Epoch, changed: Any) -> Sequence[Any]:
        where = self.range_of[changed]
        ranges = epoch.declare("op", key_schema=KEY_SCHEMA, state_schema=STATE_SCHEMA)
        for state in ranges:
            epoch.report(self._work(epoch, state, changed[where == state.index]))
        return ()

    def _work(self, epoch: Epoch, state: RangeState, changed: Any) -> RangeReport:
        table = self.tables[state.index]
        keys = table.keys(pa.array(changed))
        table["n"].add(keys, pa.array(np.ones(len(changed), np.int64)))
        table["x"].update_all(keys, pa.array(self.rng.random(len(changed))))
        lineage = Lineage(uuid.uuid4().bytes, bytes.fromhex(state.id), epoch.number)
        snapshot = table.seal(lineage)
        bounds = state.first_key_group, state.last_key_group
        path = state_path("op", *bounds, epoch.number, lineage.id.hex(), "delta")
        with self.storage.create(path) as out:
            info = snapshot.write(out)
        snapshot.close()
        ref = FileRef.from_info(path, info)
        return RangeReport("op", state.index, epoch.evaluation_id, ref.id, state.id, ref)

    def _figures(self, manifest: Manifest, seconds: float) -> Figures:
        files = [ref for ref in manifest.operators[0].files if ref.path not in self._known]
        merged = sum(ref.file_bytes for ref in files if "-t" in ref.path)
        self.merged_bytes += merged
        deltas = sum(ref.file_bytes for ref in files) - merged
        self._known = set(manifest.paths)
        size = self.storage.size_bytes(manifest.path) or 0
        part = None if manifest.part is None else manifest.part.part.path
        if part is not None and f"/{manifest.epoch:08d}-" in part:
            size += self.storage.size_bytes(part) or 0
        return Figures(seconds, deltas, size)

    def restore(self, manifest: Manifest) -> float:
        """Seconds to restore all ranges, one after the other."""
        before = time.perf_counter()
        rows = 0
        for state in manifest.operators[0].ranges:
            bounds = state.first_key_group, state.last_key_group
            with _table(bounds) as table:
                table.restore([os.path.join(self.storage.uri, ref.path) for ref in state.files])
                rows += len(table)
        seconds = time.perf_counter() - before
        assert rows == len(self.keys), (rows, len(self.keys))
        return seconds

    def fresh(self, folder: Path) -> Manifest:
        """Merge each range into a base of its own, in another folder."""
        other, ranges, head = LocalStorage(folder), [], self.head
        for state in head.operators[0].ranges:
            bounds = state.first_key_group, state.last_key_group
            path = state_path("op", *bounds, 1, uuid.uuid4().hex, "base")
            given = self.storage, state.files, state.id, path, *bounds
            ranges.append(replace(state, base=merge_range(*given, destination=other), deltas=()))
        return replace(head, operators=(replace(head.operators[0], ranges=tuple(ranges)),))

    @property
    def head(self) -> Manifest:
        """The last checkpoint."""
        head = self.coordinator.head
        assert head is not None
        return head

    def close(self) -> None:
        """End the job."""
        self.coordinator.close()
        for table in self.tables:
            table.close()


def _bounds(index: int, ranges: int) -> tuple[int, int]:
    return -(-index * GROUPS // ranges), -(-(index + 1) * GROUPS // ranges) - 1


def _table(bounds: tuple[int, int]) -> KeyedStateBackend:
    return KeyedStateBackend("long", states=STATES, max_parallelism=GROUPS, key_group_range=bounds)


def changes(folder: Path, given: argparse.Namespace) -> None:
    """Epochs that change a part of a large state."""
    job = Chains(folder / "c", given.keys, given.ranges)
    job.epoch(job.keys)
    changed = max(int(given.keys * given.part), 1)
    figures, stored = [], []
    for _ in range(given.epochs):
        figures.append(job.epoch(job.rng.choice(job.keys, changed, replace=False)))
        stored.append(_usage(folder / "c")[1])
    job.coordinator.maintain()
    head = job.head
    hundred = max(given.epochs // 5, 1)
    written = [f.delta_bytes + f.manifest_bytes for f in figures]
    first, last = statistics.fmean(written[:hundred]), statistics.fmean(written[-hundred:])
    live = sum(t.base.file_bytes for t in job.fresh(folder / "f").operators[0].ranges if t.base)
    times = _restores(job, folder / "g", given.rounds)
    deltas = sum(f.delta_bytes for f in figures)
    named = sum(ref.file_bytes for ref in head.operators[0].files)
    print(
        f"{given.epochs} epochs of {changed:,} of {given.keys:,} keys, {given.ranges} ranges:\n"
        f"  bytes written per epoch: first {hundred} {first:,.0f}, last {hundred} {last:,.0f} "
        f"({last / first:.2f}x); {last / (changed * ROW_BYTES):.2f}x the changed bytes\n"
        f"  merging: {job.merged_bytes / deltas:.2f}x the deltas' bytes\n"
        f"  chain: {named / live:.2f}x a fresh base, "
        f"{len(head.operators[0].files) / given.ranges:.1f} files per range\n"
        f"  restore: {times[0]:.3f} s from the chain, {times[1]:.3f} s from a fresh base "
        f"({times[0] / times[1]:.2f}x)\n"
        f"  storage: median {statistics.median(stored) / live:.2f}x, most "
        f"{max(stored) / live:.2f}x the live state ({live / MB:.1f} MB), with what is retained\n"
        f"  time per epoch: first {hundred} {_ms(figures[:hundred])}, last {hundred} "
        f"{_ms(figures[-hundred:])}",
        flush=True,
    )
    job.close()


def _restores(job: Chains, folder: Path, rounds: int) -> tuple[float, float]:
    places = (job.storage, job.head), (LocalStorage(folder), job.fresh(folder))
    taken: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for (job.storage, manifest), seconds in zip(places, taken, strict=True):
            seconds.append(job.restore(manifest))
    job.storage, _ = places[0]
    return statistics.median(taken[0]), statistics.median(taken[1])


def small(folder: Path, given: argparse.Namespace) -> None:
    """Thousands of small epochs over a large state."""
    job = Chains(folder / "s", given.small_keys, 2)
    job.epoch(job.keys)
    figures: list[Figures] = []
    print(f"epochs of {given.small_changed} of {given.small_keys:,} keys, 2 ranges:")
    marks = [n for n in (100, 1000, 2000, 4000, 7000, 10_000) if n <= given.small_epochs]
    for number in range(1, marks[-1] + 1):
        figures.append(job.epoch(job.rng.choice(job.keys, given.small_changed, replace=False)))
        if number in marks:
            job.coordinator.maintain()
            gc.collect()
            files, size = _usage(folder / "s")
            since = figures[-min(len(figures), 1000) :]
            merging = job.merged_bytes / sum(f.delta_bytes for f in figures)
            print(
                f"  {number:6} epochs: {_ms(figures[-100:])} per epoch, {files} files with "
                f"{size / MB:.1f} MB, {_resident() / MB:.0f} MB resident, manifest "
                f"{statistics.fmean(f.manifest_bytes for f in since):,.0f} bytes per epoch (most "
                f"{max(f.manifest_bytes for f in since):,}), {len(job.head.operators[0].files)} "
                f"files named, merging {merging:.2f}x the deltas' bytes",
                flush=True,
            )
    job.close()


def _ms(figures: Sequence[Figures]) -> str:
    return f"{statistics.median(f.seconds for f in figures) * 1000:.1f} ms"


def _usage(folder: Path) -> tuple[int, int]:
    sizes = []
    for path in folder.rglob("*"):
        # Another thread may delete what was listed.
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                sizes.append(found.st_size)
    return len(sizes), sum(sizes)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    questions = {"changes": changes, "small": small}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=questions, action="append")
    parser.add_argument("--folder", type=Path, help="where the files go")
    parser.add_argument("--part", type=float, default=0.01, help="of the keys, per epoch")
    for name, default in {
        "keys": 1_000_000,
        "epochs": 500,
        "ranges": 8,
        "rounds": 5,
        "small-epochs": 10_000,
        "small-keys": 200_000,
        "small-changed": 100,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pystate-chains-", dir=given.folder) as folder:
        for name in given.only or questions:
            questions[name](Path(folder), given)


if __name__ == "__main__":
    main()
