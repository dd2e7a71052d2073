"""Queries of live state beside a job, in process and over HTTP; RocksDB and DuckDB over its rows.

Goals of time are those of a machine of which the job, the server and who asks have two cores.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench import query_peers
from bench.measure import Row, Scale, Spread, Work, by_turns
from bench.query_peers import (
    CACHE_BYTES,
    DUCKDB,
    HOMES,
    OURS,
    ROCKSDB,
    STATES,
    InParquet,
    InRocksDb,
    Job,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from bench.query_peers import Longs
    from pystate.query.reader import StateReader

SINGLE_KEYS, MANY_KEYS = 2_000, 10_000
CONNECTIONS, ARROW_REQUESTS = 16, 10
ARROW = "application/vnd.apache.arrow.stream"
PATH = "/v1/jobs/shop/operators/op"
TICKS = os.sysconf("SC_CLK_TCK")


def queries(scale: Scale) -> list[Row]:
    """All of them, one after the other, while one job goes on."""
    return [
        replace(row, what=f"{row.what}{home}")
        for home, block_bytes in HOMES.items()
        for row in _queries(scale, block_bytes)
    ]


def _queries(scale: Scale, block_bytes: int) -> list[Row]:
    n_keys = scale.query_keys
    with (
        tempfile.TemporaryDirectory(prefix="pystate-bench-", dir=scale.disk_folder) as name,
        ExitStack() as stack,
    ):
        checkpoint = Path(name) / "checkpoint"
        job = stack.enter_context(closing(Job(checkpoint, n_keys, scale.query_period, block_bytes)))
        theirs = None
        if hasattr(query_peers, "rocksdict"):
            theirs = stack.enter_context(closing(InRocksDb(Path(name) / "rocksdict", n_keys)))
        reader = stack.enter_context(ps.connect(checkpoint, cache_bytes=CACHE_BYTES))
        return [
            *point_reads(scale, reader, theirs),
            *epochs(scale, checkpoint, reader, job),
            *memory(scale, checkpoint),
            *over_http(scale, checkpoint, job),
            *scans(scale, reader, Path(name) / "rows.parquet"),
        ]


def _row(what: str, figure: Spread, unit: str, expected: str = "", **more: Any) -> Row:
    return Row("queries", what, figure, unit, expected=expected, **more)


# -- in process


def point_reads(scale: Scale, reader: StateReader, theirs: InRocksDb | None) -> list[Row]:
    """One key after the other, and many at a time."""
    rows, n_keys, draw = [], scale.query_keys, np.random.default_rng(2)
    operator = reader["op"]
    single: list[int] = []
    many: list[int] = []
    column: list[pa.Array[Any]] = []
    taken: list[float] = []

    def other_keys() -> None:
        reader.refresh()
        single[:] = draw.integers(0, n_keys, SINGLE_KEYS).tolist()
        drawn = draw.integers(0, n_keys, min(MANY_KEYS, n_keys))
        many[:], column[:] = drawn.tolist(), [pa.array(drawn)]

    def one_by_one() -> None:
        clock = time.perf_counter
        for k in single:
            begin = clock()
            operator.get([k])
            taken.append(clock() - begin)

    other_keys()
    _check(operator.get(column[0]), np.asarray(many))
    at_once = Work(lambda: operator.get(column[0]), before=other_keys)
    shapes: list[tuple[str, int, dict[str, Work], str]] = [
        ("one key", len(single), {OURS: Work(one_by_one, before=other_keys)}, ""),
        ("10,000 keys", 1, {OURS: at_once}, "<= 50 ms"),
    ]
    if theirs is not None:
        shapes[0][2][ROCKSDB] = Work(lambda: theirs.get(single))
        shapes[1][2][ROCKSDB] = Work(lambda: theirs.get_all(many))
    for what, amount, works, expected in shapes:
        timings = by_turns(works, scale.rounds, warm_up=2)
        unit, factor = ("µs", 1e6) if amount > 1 else ("ms", 1e3)
        for name in works:
            spread = Spread.of(timings.seconds[name]).times(factor / amount)
            told: dict[str, Any] = {"expected": expected}
            if name != OURS:
                told = {"ratio": timings.ratio(OURS, name), "peer": f"{OURS} / {name}"}
            rows.append(_row(f"{what} of {n_keys:,}: {name}", spread, unit, **told))
    warm = np.asarray(taken[2 * len(single) :])
    for share, unit, factor, expected in (
        (0.5, "µs", 1e6, "<= 100 µs"),
        (0.99, "ms", 1e3, "<= 2 ms"),
    ):
        figure = Spread.of([float(np.quantile(warm, share)) * factor])
        name = "median" if share == 0.5 else "p99"
        rows.append(_row(f"one key of {n_keys:,}: {OURS}, {name}", figure, unit, expected))
    return rows


def _check(rows: pa.Table, keys: Longs) -> None:
    """All keys are there, and their states are of one epoch each."""
    a, b, c = (rows[name].to_numpy() for name in STATES)
    number = a - keys
    same = np.array_equal(number, b - 2 * keys) and np.array_equal(number, c - 3 * keys)
    if not same or len(rows) != len(keys) or number.min() < 1:
        raise AssertionError("a look-up has given other rows than were written")


def epochs(scale: Scale, checkpoint: Path, reader: StateReader, job: Job) -> list[Row]:
    """What it takes to open, and to go on to the next epoch, each with a first key."""
    opening, moving, shares, operator = [], [], [], reader["op"]
    for _ in range(scale.rounds):
        begin = time.perf_counter()
        with ps.connect(checkpoint) as other:
            other["op"].get([1])
            opening.append((time.perf_counter() - begin) * 1e3)
        job.epoch()
        reader.refresh()
        _, written = job.epoch()
        begin, before = time.perf_counter(), _bytes_read()
        reader.refresh()
        operator.get([1])
        moving.append((time.perf_counter() - begin) * 1e3)
        shares.append((_bytes_read() - before) / written)
    return [
        _row("open, and one key", Spread.of(opening), "ms", "<= 100 ms"),
        _row(
            f"refresh after {job.changed:,} rows, and one key", Spread.of(moving), "ms", "<= 50 ms"
        ),
        _row("bytes it reads, of the deltas'", Spread.of(shares), "x", "<= 1.2 x"),
    ]


def _bytes_read() -> int:
    """What this process has read of files, wherever they came from."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def memory(scale: Scale, checkpoint: Path) -> list[Row]:
    """The most that a reader takes beyond its cache, in a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read_much, args=(scale, checkpoint, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        most = float(ours.recv())
    finally:
        process.kill()
        process.join()
    return [_row("memory beyond cache_bytes", Spread.of([most]), "MB", "<= 64 MB")]


def _read_much(scale: Scale, checkpoint: Path, said: Connection) -> None:
    """Fill the cache, by single keys and by many, while epochs come."""
    draw, n_keys = np.random.default_rng(4), scale.query_keys
    before = _memory("VmRSS")
    with ps.connect(checkpoint, cache_bytes=CACHE_BYTES) as reader:
        operator, end = reader["op"], time.monotonic() + 5 * scale.query_seconds
        while time.monotonic() < end:
            for k in draw.integers(0, n_keys, SINGLE_KEYS).tolist():
                operator.get([k])
            operator.get(pa.array(draw.integers(0, n_keys, MANY_KEYS)))
            reader.refresh()
        said.send((_memory("VmHWM") - before - CACHE_BYTES) / 1e6)


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    [size] = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(size) << 10


# -- over HTTP


def over_http(scale: Scale, checkpoint: Path, job: Job) -> list[Row]:
    """A server on one core, and who asks it on the others."""
    cores = sorted(os.sched_getaffinity(0))
    rest = set(cores[1:]) or {cores[0]}
    rate, slow, share, sent, draw = [], [], [], [], np.random.default_rng(5)
    job.run_on(rest)
    os.sched_setaffinity(0, rest)
    try:
        with _served(checkpoint, cores[0]) as (server, port):
            _load(port, scale, draw)  # it warms up
            for _ in range(scale.rounds):
                before, begin = _processor_seconds(server), time.perf_counter()
                taken = _load(port, scale, draw)
                rate.append(len(taken) / (time.perf_counter() - begin))
                share.append(len(taken) / max(_processor_seconds(server) - before, 1 / TICKS))
                slow.append(float(np.quantile(taken, 0.99)) * 1e3)
                sent += _arrow(port, scale.query_keys, draw)
    finally:
        os.sched_setaffinity(0, cores)
        job.run_on(set(cores))
    keys = min(MANY_KEYS, scale.query_keys)
    return [
        _row("HTTP, one key: requests on one core", Spread.of(rate), "1/s", ">= 3,000 1/s"),
        _row("HTTP, one key: requests for its time", Spread.of(share), "1/s"),
        _row("HTTP, one key: p99", Spread.of(slow), "ms", "<= 20 ms"),
        _row(
            f"HTTP, {keys:,} keys in Arrow",
            Spread.of(keys / one / 1e3 for one in sent),
            "k keys/s",
            ">= 500 k keys/s",
        ),
    ]


@contextmanager
def _served(checkpoint: Path, core: int) -> Iterator[tuple[int, int]]:
    """A server in a process that has one core; its pid and port."""
    command = [sys.executable, "-m", "pystate", "serve", f"shop={checkpoint}", "--port", "0"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise RuntimeError("the server has not begun")
        yield process.pid, int(said.rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(30)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass
class _Client:
    """A connection that asks for one key after the other."""

    connection: socket.socket
    keys: Iterator[int]
    taken: list[float] = field(default_factory=list)
    begun: float = 0.0
    said: bytes = b""

    def ask(self) -> None:
        """Ask for the next key."""
        request = f"GET {PATH}/keys?key={next(self.keys)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        self.begun, self.said = time.perf_counter(), b""
        self.connection.sendall(request.encode())

    def read(self) -> None:
        """Take what has come; if that is all, ask anew."""
        part = self.connection.recv(1 << 16)
        self.said += part
        head, end, body = self.said.partition(b"\r\n\r\n")
        if not part or not head.startswith(b"HTTP/1.1 200 OK"[: len(head)]):
            raise RuntimeError(f"the server has answered {self.said!r:.200}")
        if end and len(body) == int(head.partition(b"content-length: ")[2].split(b"\r")[0]):
            self.taken.append(time.perf_counter() - self.begun)
            self.ask()


def _load(port: int, scale: Scale, draw: np.random.Generator) -> list[float]:
    """Ask over several connections for a while; how long each request took, in seconds."""
    clients: dict[int, _Client] = {}
    keys = iter(draw.integers(0, scale.query_keys, 1 << 20).tolist())
    with ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            clients[connection.fileno()] = _Client(connection, keys)
            poll.register(connection, select.EPOLLIN)
        for client in clients.values():
            client.ask()
        end = time.perf_counter() + scale.query_seconds
        while time.perf_counter() < end:
            for number, _ in poll.poll(30):
                clients[number].read()
    return [taken for client in clients.values() for taken in client.taken]


def _arrow(port: int, n_keys: int, draw: np.random.Generator) -> list[float]:
    """Ask for many keys at a time, in Arrow; seconds of each request."""
    taken: list[float] = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        for _ in range(ARROW_REQUESTS):
            keys = draw.integers(0, n_keys, min(MANY_KEYS, n_keys))
            begin = time.perf_counter()
            sink = pa.BufferOutputStream()
            table = pa.table({"key": keys})
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            headers = {"Content-Type": ARROW, "Accept": ARROW}
            connection.request("POST", f"{PATH}/get", sink.getvalue().to_pybytes(), headers)
            rows = pa.ipc.open_stream(connection.getresponse().read()).read_all()
            taken.append(time.perf_counter() - begin)
            _check(rows, keys)
    return taken


# -- scans


def scans(scale: Scale, reader: StateReader, path: Path) -> list[Row]:
    """A key and a state of all rows, and of a hundredth of them, of one epoch."""
    n_keys, rows = scale.query_keys, []
    least = n_keys - max(n_keys // 100, 1)
    reader.refresh()
    with reader.at(reader.epoch) as pinned:
        operator = pinned["op"]
        with closing(InParquet(path, operator.scan())) as parquet:
            for what, where, condition, count in (
                ("all rows", None, "true", n_keys),
                ("a hundredth", [("key", ">=", least)], f"key >= {least}", n_keys - least),
            ):

                def ours(where: Any = where, count: int = count) -> None:
                    _count(operator.scan(columns=["key", "a"], where=where), count)

                def theirs(condition: str = condition, count: int = count) -> None:
                    _count(parquet.scan(condition), count)

                timings = by_turns({OURS: Work(ours), DUCKDB: Work(theirs)}, scale.rounds)
                for name, lead in ((OURS, None), (DUCKDB, (OURS, DUCKDB))):
                    title = f"scan of {n_keys:,}, {what}: {name}"
                    rows.append(timings.row(name, "queries", title, n_keys, lead=lead))
    return rows


def _count(batches: Iterator[pa.RecordBatch] | pa.RecordBatchReader, expected: int) -> None:
    found = sum(batch.num_rows for batch in batches)
    if found != expected:
        raise AssertionError(f"a scan has given {found} rows of {expected}")
