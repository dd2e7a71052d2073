"""What long chains of deltas cost: bytes, merging, restoring, storage, files, memory, manifests.

``python -m bench.chains`` runs a driver and its workers in this process, without Spark, over real
files. Tables stay in memory, as in a job that runs. Three questions, chosen by ``--only``:

- ``changes``: epochs that change a part of a large state, at random;
- ``small``: thousands of epochs that change a few keys, of a large state;
- ``manifest``: what an epoch's manifest costs with many ranges that have many deltas each.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
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
from pystate.backend.keyed import KeyedStateBackend, Lineage
from pystate.checkpoint.manifest import FileRef, Manifest, OperatorState, RangeState, state_path
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.parts import share
from pystate.checkpoint.storage import LocalStorage
from pystate.coordinator.coordinator import Coordinator
from pystate.coordinator.epoch import RangeReport
from pystate.coordinator.merges import merge_range

if TYPE_CHECKING:
    from pystate.coordinator.epoch import Epoch

MB = 1e6
GROUPS = 1024
STATES = {"n": ps.ValueState("long", default=0), "x": ps.ValueState("double")}
#: The key and both values.
ROW_BYTES = 24
KEY_SCHEMA = (("key", "bigint"),)
STATE_SCHEMA = (("n", "bigint"), ("x", "double"))


class Figures(NamedTuple):
    """One epoch."""

    seconds: float
    delta_bytes: int
    manifest_bytes: int
    """With the part, if the epoch wrote one."""


class Chains:
    """A job of one operator whose tables live here.

    Parameters
    ----------
    root : Path
        Its checkpoint.
    keys : int
        Number of keys.
    ranges : int
        Number of ranges.
    """

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
        self.tables = [
            KeyedStateBackend(
                "long", states=STATES, max_parallelism=GROUPS, key_group_range=_bounds(i, ranges)
            )
            for i in range(ranges)
        ]
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
        deltas = 0
        for state in manifest.operators[0].ranges:
            for ref in state.files:
                if ref.path in self._known:
                    continue
                if "-t" in ref.path:
                    self.merged_bytes += ref.file_bytes
                else:
                    deltas += ref.file_bytes
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
            with KeyedStateBackend(
                "long", states=STATES, max_parallelism=GROUPS, key_group_range=bounds
            ) as table:
                table.restore([os.path.join(self.storage.uri, ref.path) for ref in state.files])
                rows += len(table)
        seconds = time.perf_counter() - before
        assert rows == len(self.keys), (rows, len(self.keys))
        return seconds

    def fresh(self, folder: Path) -> Manifest:
        """Merge each range into a base of its own, in another folder."""
        other, ranges = LocalStorage(folder), []
        head = self.coordinator.head
        assert head is not None
        for state in head.operators[0].ranges:
            bounds = state.first_key_group, state.last_key_group
            path = state_path("op", *bounds, 1, uuid.uuid4().hex, "base")
            base = merge_range(
                self.storage, state.files, state.id, path, *bounds, destination=other
            )
            ranges.append(replace(state, base=base, deltas=()))
        return replace(head, operators=(replace(head.operators[0], ranges=tuple(ranges)),))

    def close(self) -> None:
        """End the job."""
        self.coordinator.close()
        for table in self.tables:
            table.close()


def _bounds(index: int, ranges: int) -> tuple[int, int]:
    first = -(-index * GROUPS // ranges)
    return first, -(-(index + 1) * GROUPS // ranges) - 1


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
    head = job.coordinator.head
    assert head is not None
    hundred = max(given.epochs // 5, 1)
    written = [f.delta_bytes + f.manifest_bytes for f in figures]
    first, last = statistics.fmean(written[:hundred]), statistics.fmean(written[-hundred:])
    live = sum(t.base.file_bytes for t in job.fresh(folder / "f").operators[0].ranges if t.base)
    times = _restores(job, head, folder, given.rounds)
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


def _restores(job: Chains, head: Manifest, folder: Path, rounds: int) -> tuple[float, float]:
    chain, fresh = [], []
    base = job.fresh(folder / "g")
    storage = job.storage
    for _ in range(rounds):
        chain.append(job.restore(head))
        job.storage = LocalStorage(folder / "g")
        fresh.append(job.restore(base))
        job.storage = storage
    return statistics.median(chain), statistics.median(fresh)


def small(folder: Path, given: argparse.Namespace) -> None:
    """Thousands of small epochs over a large state."""
    job = Chains(folder / "s", given.small_keys, 2)
    job.epoch(job.keys)
    figures: list[Figures] = []
    print(f"epochs of {given.small_changed} of {given.small_keys:,} keys, 2 ranges:")
    marks = [n for n in (100, 1000, 2000, 4000, 7000, 10_000) if n <= given.small_epochs]
    merged = 0
    for number in range(1, marks[-1] + 1):
        figures.append(job.epoch(job.rng.choice(job.keys, given.small_changed, replace=False)))
        if number in marks:
            job.coordinator.maintain()
            gc.collect()
            files, size = _usage(folder / "s")
            since = figures[-min(len(figures), 1000) :]
            head = job.coordinator.head
            assert head is not None
            deltas = sum(f.delta_bytes for f in figures)
            merged = job.merged_bytes
            print(
                f"  {number:6} epochs: {_ms(figures[-100:])} per epoch, {files} files with "
                f"{size / MB:.1f} MB, {_resident() / MB:.0f} MB resident, manifest "
                f"{statistics.fmean(f.manifest_bytes for f in since):,.0f} bytes per epoch (most "
                f"{max(f.manifest_bytes for f in since):,}), {len(head.operators[0].files)} files "
                f"named, merging {merged / deltas:.2f}x the deltas' bytes",
                flush=True,
            )
    job.close()


def manifest(folder: Path, given: argparse.Namespace) -> None:
    """Manifests of many ranges with many deltas each."""
    ranges, deltas, epochs = given.manifest_ranges, given.manifest_deltas, 200
    storage = LocalStorage(folder / "m")
    states = [RangeState(i, *_wide(i, ranges), "0" * 32, None, ()) for i in range(ranges)]
    operator = OperatorState("op", ranges, KEY_SCHEMA, STATE_SCHEMA, tuple(states))
    use, sizes, seconds = None, [], []
    history = History(storage)
    for epoch in range(1, deltas + epochs + 1):
        states = [_grown(state, epoch, deltas) for state in operator.ranges]
        operator = replace(operator, ranges=tuple(states))
        before = time.process_time()
        use, part = share([operator], epoch, uuid.uuid4().hex, use)
        made = _manifest(epoch, operator, use)
        data = made.encode()
        if use is not None and part is not None:
            storage.publish(use.part.path, part)
        storage.publish(made.path, data)
        history.add(made)
        if epoch > deltas:
            seconds.append(time.process_time() - before)
            sizes.append(len(data) + (0 if part is None else len(part)))
    before = time.process_time()
    reader = History(storage)
    reader.refresh()
    opened = time.process_time() - before
    named = sum(len(state.files) for state in operator.ranges)
    print(
        f"manifests of {ranges} ranges x {deltas} deltas ({named:,} files named), every range "
        f"changes in every epoch:\n  {statistics.fmean(sizes):,.0f} bytes per epoch (most "
        f"{max(sizes):,}), {statistics.fmean(seconds) * 1000:.1f} ms (most "
        f"{max(seconds) * 1000:.1f} ms) of processor time; opened in {opened * 1000:.0f} ms",
        flush=True,
    )


def _wide(index: int, ranges: int) -> tuple[int, int]:
    groups = 32768
    return -(-index * groups // ranges), -(-(index + 1) * groups // ranges) - 1


def _grown(state: RangeState, epoch: int, deltas: int) -> RangeState:
    """A range after one more epoch; the oldest delta goes, as if it was merged."""
    new = uuid.uuid4().hex
    bounds = state.first_key_group, state.last_key_group
    path = state_path("op", *bounds, epoch, new, "delta")
    ref = FileRef(path, "delta", new, state.id, epoch, *bounds, 5000, 12345, 100, 0, 4000)
    kept = state.deltas[-(deltas - 1) :]
    base = state.base
    if len(kept) < len(state.deltas) and epoch % deltas == state.index % deltas:
        old = state.deltas[0]
        name = state_path("op", *bounds, old.epoch, f"t1-{uuid.uuid4().hex}", "base")
        base = replace(old, path=name, kind="base")
    elif len(kept) < len(state.deltas):
        kept = state.deltas
    if base is not state.base:
        kept = state.deltas[-(deltas // 2) :]
    return replace(state, id=new, base=base, deltas=(*kept, ref))


def _manifest(epoch: int, operator: OperatorState, use: Any) -> Manifest:
    return Manifest(
        epoch=epoch,
        predecessor=epoch - 1,
        evaluation_id=uuid.uuid4().hex,
        run_id="r",
        term=1,
        host="h",
        max_parallelism=32768,
        processing_time_ms=epoch,
        created_ms=epoch,
        library="pystate",
        operators=(operator,),
        part=use,
    )


def _ms(figures: Sequence[Figures]) -> str:
    return f"{statistics.median(f.seconds for f in figures) * 1000:.1f} ms"


def _usage(folder: Path) -> tuple[int, int]:
    files = size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
            files += 1
    return files, size


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    questions = {"changes": changes, "small": small, "manifest": manifest}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=questions, action="append")
    parser.add_argument("--folder", type=Path, help="where the files go")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--part", type=float, default=0.01, help="of the keys, per epoch")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--ranges", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small-epochs", type=int, default=10_000)
    parser.add_argument("--small-keys", type=int, default=200_000)
    parser.add_argument("--small-changed", type=int, default=100)
    parser.add_argument("--manifest-ranges", type=int, default=1000)
    parser.add_argument("--manifest-deltas", type=int, default=64)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="pystate-chains-", dir=given.folder))
    try:
        for name in given.only or questions:
            questions[name](folder, given)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
