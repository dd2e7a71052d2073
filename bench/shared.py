"""Taking over a shared table, from a worker that has ended and from one that was killed."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import count, fill, in_batches, random_keys, seal
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pystate import KeyedStateBackend

ATTACHES = 50
LOCK_TIMEOUT_MS = 30_000
TOUCHED_ROWS = 1_000
"""Rows that each process changes while it has the table, so that the other finds work done."""


def shared_backend(path: str) -> KeyedStateBackend:
    """The table of this benchmark, which the first process creates."""
    states = {"n": ps.ValueState("long", default=0)}
    backend = ps.KeyedStateBackend(key="long", states=states, home="shared", path=path)
    backend.open()
    return backend


def page_faults() -> int:
    """Minor faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def attach_in_turn(connection: Connection, path: str, n_keys: int) -> None:
    """The other process: attaches, detaches, and reports how long each took."""
    backend = None
    while connection.recv():
        faults = page_faults()
        start = time.perf_counter()
        if backend is None:
            backend = shared_backend(path)
        else:
            backend.attach(LOCK_TIMEOUT_MS)
        attached = time.perf_counter()
        faults = page_faults() - faults
        count(backend, [pa.array(random_keys(n_keys, TOUCHED_ROWS))])
        seal(backend)
        detaching = time.perf_counter()
        backend.detach()
        detached = time.perf_counter()
        connection.send(((attached - start) * 1e6, (detached - detaching) * 1e6, faults))
    if backend is not None:
        backend.close()


def die_dirty(connection: Connection, path: str, n_keys: int, rows: int) -> None:
    """The victim: changes rows, seals nothing, and waits to be killed."""
    backend = shared_backend(path)
    chosen = np.random.default_rng().choice(n_keys, rows, replace=False)
    count(backend, in_batches(pa.array(chosen)))
    connection.send(backend.stats().changed_rows)
    connection.recv()


def start(target: Any, *arguments: Any) -> tuple[Any, Connection]:
    """A fresh interpreter with a pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def shared(scale: Scale) -> list[Row]:
    """Attach, detach and recovery."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="pystate-bench-", dir=memory) as folder:
        path = os.path.join(folder, "table")
        backend = shared_backend(path)
        try:
            fill(backend, scale.shared_keys, "n")
            backend.detach()
            return [*warm_attach(backend, path, scale), *recovery(backend, path, scale)]
        finally:
            backend.close()


def warm_attach(backend: KeyedStateBackend, path: str, scale: Scale) -> list[Row]:
    """Two processes pass the table to each other."""
    process, connection = start(attach_in_turn, path, scale.shared_keys)
    keys = pa.array(random_keys(scale.shared_keys, TOUCHED_ROWS))
    seen = []
    for _ in range(ATTACHES):
        connection.send(True)
        seen.append(connection.recv())
        backend.attach(LOCK_TIMEOUT_MS)
        count(backend, [keys])
        seal(backend)
        backend.detach()
    connection.send(False)
    process.join()
    attaches, detaches, faults = zip(*seen[3:], strict=True)
    about = f"{scale.shared_keys:,} keys"
    warm = f"attach, warm, after another process sealed, {about}"
    return [
        Row("attach", warm, Spread.of(attaches), "µs", expected="<= 50 µs"),
        Row("attach", "its page faults", Spread.of(faults), "faults"),
        Row("attach", "detach", Spread.of(detaches), "µs"),
        Row("attach", f"first attach of a process, {about}", Spread.of([seen[0][0]]), "µs"),
    ]


def recovery(backend: KeyedStateBackend, path: str, scale: Scale) -> list[Row]:
    """A writer dies by SIGKILL within an epoch; a process that has the mapping attaches."""
    records = min(scale.undo_records, scale.shared_keys)
    per_record, faults = [], []
    for _ in range(scale.rounds + 1):
        process, connection = start(die_dirty, path, scale.shared_keys, records)
        connection.recv()
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        before = page_faults()
        backend.attach(LOCK_TIMEOUT_MS)
        faults.append(page_faults() - before)
        stats = backend.stats()
        backend.detach()
        if stats.recovered_records < records:
            raise AssertionError(f"{stats.recovered_records} of {records} records recovered")
        per_record.append(stats.recovery_ns / stats.recovered_records)
    what, figure = f"recovery after SIGKILL with {records:,} rows changed", per_record[1:]
    return [
        Row("attach", what, Spread.of(figure), "ns/record", expected="<= 5 ns"),
        Row("attach", "its page faults", Spread.of(faults[1:]), "faults"),
    ]
