"""State of four and ten times the memory: pystate on disk and RocksDB by turns, each in a process.

RocksDB writes no log and waits for no disk but for reads; pystate ends each batch with a durable
checkpoint. Both have as much memory for their rows, caches, filters and buffers. RocksDB's C
library comes from Debian's `librocksdb-dev`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import Row, Scale, Spread, Timings
from bench.results import NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
OURS, THEIRS, ALONE = "pystate", "RocksDB, 32 threads", "RocksDB, one thread"
ENGINES = {OURS: "pystate", THEIRS: "rocksdb", ALONE: "rocksdb"}
ROW_BYTES = 24
WARM_UP, TURNS = 2, 5
LAWS = ("uniform", "zipf")
UPDATED = (0.5, 0.9)
#: How much faster than RocksDB in 32 threads it is expected to be: by law, times of the memory, and
#: which of the batches.
EXPECTED = {
    ("uniform", 4): (1.2, 1.3, 2.5),
    ("uniform", 10): (1.2, 1.1, 2.0),
    ("zipf", 4): (1.3, 1.5, 1.8),
    ("zipf", 10): (1.0, 1.2, 1.5),
}
#: How much faster than RocksDB in one thread, with the middle batch.
EXPECTED_ALONE = {"uniform": 8, "zipf": 5}
PROCESSOR = ("", "", "<= 0.25x")


@contextmanager
def library() -> Iterator[Path]:
    """RocksDB's C interface with threads around it, compiled."""
    with tempfile.TemporaryDirectory(prefix="pystate-bench-") as folder:
        made = Path(folder) / "librocksdb-peer.so"
        command = [os.environ.get("CC") or "cc", "-O2", "-shared", "-fPIC", "-o", str(made)]
        command += [str(HERE / "rocksdb.c"), "-lrocksdb", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            if "rocksdb/c.h" in done.stderr or "-lrocksdb" in done.stderr:
                raise NotInstalledError("RocksDB's library is missing: Debian's librocksdb-dev")
            raise RuntimeError(done.stderr)
        yield made


class Engine:
    """A process that serves requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        #: The most memory of all answers.
        self.peak = 0

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        given, told = self._process.stdin, self._process.stdout
        assert given is not None
        assert told is not None
        given.write(json.dumps(request) + "\n")
        given.flush()
        line = told.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        self.peak = max(self.peak, answer.get("peak", 0))
        return answer


@contextmanager
def engine(name: str, given: dict[str, Any]) -> Iterator[Engine]:
    """An engine in a process of its own."""
    command = [sys.executable, "-m", "bench.disk.engine", json.dumps({"engine": name, **given})]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Engine(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


@dataclass
class Measured:
    """What was measured of an engine at one shape of batches."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Shape:
    """Batches of one kind; so many `batches` are timed together."""

    law: str
    times: int
    keys: int
    place: int
    updated: float
    batches: int

    @property
    def text(self) -> str:
        """What a row of the table says of it."""
        return (
            f"{self.law}, {self.times}x memory, {self.keys:,} keys a batch, "
            f"{self.updated:.0%} updated"
        )


def disk(scale: Scale) -> list[Row]:
    """All shapes, for each size of the state."""
    rows = []
    with library() as made:
        for times in (4, 10):
            with ExitStack() as stack:
                # On a disk: what is temporary may be in memory.
                root = Path(tempfile.mkdtemp(prefix="pystate-bench-", dir=scale.disk_folder))
                stack.callback(shutil.rmtree, root, ignore_errors=True)
                n = times * scale.disk_memory // ROW_BYTES
                engines = {}
                for name, kind in ENGINES.items():
                    given = {
                        "folder": str(root / name.replace(" ", "-")),
                        "memory": scale.disk_memory,
                        "rows": n,
                        "library": str(made),
                    }
                    engines[name] = stack.enter_context(engine(kind, given))
                    engines[name].ask(do="fill", memory=scale.disk_memory)
                for law in LAWS:
                    for place, keys in enumerate(scale.disk_batches):
                        for updated in UPDATED:
                            at_once = max(1, scale.disk_rows // keys)
                            shape = Shape(law, times, keys, place, updated, at_once)
                            rows += measured(shape, engines)
                rows += peaks(times, engines)
    return rows


def peaks(times: int, engines: dict[str, Engine]) -> list[Row]:
    """The most memory that the processes have taken, with Python and its libraries."""
    return [
        Row(
            "disk",
            f"{times}x memory: {name}, peak of the process",
            Spread.of([one.peak / (1 << 20)]),
            "MiB",
        )
        for name, one in engines.items()
    ]


def measured(shape: Shape, engines: dict[str, Engine]) -> list[Row]:
    """All engines by turns over the same batches.

    One thread is asked for the middle batch only, since it takes as long as all others together; in
    between its engine keeps pace with the others' states, untimed.
    """
    alone = shape.place == 1
    found = {name: Measured() for name in engines if alone or name != ALONE}
    for turn in range(WARM_UP + TURNS):
        answers = {
            name: one.ask(
                do="run",
                # Each shape has keys of its own: those of another one would be in memory.
                seed=[shape.times, shape.keys, round(100 * shape.updated), len(shape.law), turn],
                law=shape.law,
                keys=shape.keys,
                batches=shape.batches,
                updated=shape.updated,
                alone=alone and name == ALONE,
            )
            for name, one in engines.items()
        }
        if len({answer["sum"] for answer in answers.values()}) > 1:
            raise AssertionError(f"{shape.text}: {answers}")
        if turn >= WARM_UP:
            for name, answer in answers.items():
                if name not in found:
                    continue
                found[name].seconds.append(answer["seconds"])
                found[name].processor.append(answer["processor"])
    return rows_of(shape, found)


def rows_of(shape: Shape, found: dict[str, Measured]) -> list[Row]:
    """Rates, processor time and memory, and how ours compare."""
    amount = shape.keys * shape.batches
    timings = Timings({name: one.seconds for name, one in found.items()})
    expected = {OURS: "", THEIRS: f">= {EXPECTED[shape.law, shape.times][shape.place]}x"}
    expected[ALONE] = f">= {EXPECTED_ALONE[shape.law]}x"
    rows = []
    for name, one in found.items():
        lead = None if name == OURS else (OURS, name)
        rows.append(
            timings.row(
                name,
                "disk",
                f"{shape.text}: {name}",
                amount,
                "k rows/s",
                lead=lead,
                expected=expected[name],
            )
        )
        per_row = Spread.of(seconds / amount * 1e6 for seconds in one.processor)
        ratio = None
        if name == THEIRS:
            pairs = zip(found[OURS].processor, one.processor, strict=True)
            ratio = Spread.of(ours / theirs for ours, theirs in pairs)
        rows.append(
            Row(
                "disk",
                f"{shape.text}: {name}, processor time",
                per_row,
                "µs/row",
                f"{OURS} / {THEIRS}" if ratio else "",
                ratio,
                PROCESSOR[shape.place] if ratio else "",
            )
        )
    return rows
