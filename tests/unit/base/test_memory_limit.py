"""One memory limit for the tables and buffers of a process, and for the shared tables of a host."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pystate as ps
from pystate._core import core
from pystate.base.memory import MemoryUse, memory_limit_bytes, memory_use
from pystate.checkpoint.state_files import merge_files, open_file
from pystate.errors import InvalidArgumentError, MemoryLimitError
from pystate.tables.host import choose_home, counted_home
from pystate.tables.options import TableOptions
from tests.forks import FORKS, copied, ended, forked

STATES: dict[str, Any] = {"n": ps.ValueState("bigint"), "s": ps.ValueState("string")}
MIB = 1 << 20


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Callable[[], MemoryUse]]:
    """Gives this process a limit of its own; returns what tells how much is taken."""

    def set_limit(limit_bytes: int) -> Callable[[], MemoryUse]:
        budget = core.Budget(limit_bytes)
        for module in ("tables.backend", "checkpoint.state_files"):
            monkeypatch.setattr(f"pystate.{module}.process_budget", lambda: budget)
        return lambda: MemoryUse(*budget.stats())

    return set_limit


def fill(backend: ps.KeyedStateBackend, keys: int, first: int = 0) -> None:
    for start in range(first, first + keys, 1 << 14):
        end = min(first + keys, start + (1 << 14))
        backend["n"].add(backend.keys(np.arange(start, end)), 1)


def test_tables_of_a_process_share_the_limit(limit: Any) -> None:
    use = limit(32 * MIB)
    with ps.KeyedStateBackend("long", states=STATES, uid="one") as one:
        fill(one, 150_000)
        one.seal(snapshot=False)
        with ps.KeyedStateBackend("long", states=STATES, uid="two") as two:
            with pytest.raises(MemoryLimitError) as caught:
                fill(two, 1_000_000)
            taken = one.stats().committed_bytes + two.stats().committed_bytes
            assert 31 * MIB < taken <= 32 * MIB
            # The batch that could not be counted lives as long as the error.
            assert use().limit_bytes == 32 * MIB >= use().private_bytes >= taken
            assert use().shared_bytes == 0
            two.rollback()
            one.close()
            fill(two, 150_000)
    message = str(caught.value)
    sizes = re.fullmatch(
        r"operator 'two': ([\d.]+) [KM]iB more would pass the memory limit of 32\.0 MiB: this "
        r"process has ([\d.]+) MiB in heap tables and buffers, and shared tables of this host take "
        r"0\.0 KiB; raise PYSTATE_MEMORY_LIMIT_BYTES in the environment, give the table "
        r"limit_bytes of its own \(a Job: memory_limit_bytes\), or use more ranges on more hosts",
        message,
    )
    assert sizes, message
    assert float(sizes[1]) > 0
    assert 31 < float(sizes[2]) <= 32
    assert use().private_bytes == 0


def test_a_limit_of_its_own(limit: Any) -> None:
    use = limit(16 * MIB)
    with ps.KeyedStateBackend("long", states=STATES, limit_bytes=32 * MIB, uid="own") as own:
        fill(own, 400_000)
        taken = own.stats().committed_bytes
        assert taken > 16 * MIB
        assert use().private_bytes >= taken
        with pytest.raises(MemoryLimitError, match=r"limit of 16\.0 MiB"):
            ps.KeyedStateBackend("long", states=STATES).open()
        file, snapshot = io.BytesIO(), own.seal()
        assert snapshot is not None
        snapshot.write(file)
        snapshot.close()
        with ps.KeyedStateBackend("long", states=STATES, limit_bytes=32 * MIB) as other:
            assert other.restore([file]) == 400_000
        with pytest.raises(
            MemoryLimitError,
            match=r"operator 'own': [\d.]+ [KM]iB more would pass the table's own limit: it has "
            r"3[12]\.\d MiB of 32\.0 MiB; raise limit_bytes",
        ):
            fill(own, 1_000_000)


def test_buffers_count(limit: Any, tmp_path: Path) -> None:
    use = limit(64 * MIB)
    rows = 200_000
    with ps.KeyedStateBackend("long", states=STATES) as backend:
        fill(backend, rows)
        before = use().private_bytes
        keys = backend.keys(np.arange(rows))
        assert use().private_bytes >= before + rows * 12
        keys.close()
        assert use().private_bytes == before
        snapshot = backend.seal()
        assert snapshot is not None
        gathered = use().private_bytes - backend.stats().committed_bytes
        assert gathered >= rows * 24
        # Written with less room than sorting takes: nothing is lost.
        with ps.KeyedStateBackend("long", states=STATES) as ballast:
            with pytest.raises(MemoryLimitError):
                fill(ballast, 10_000_000)
            gc.collect()
            held = []
            with pytest.raises(MemoryLimitError):
                while True:
                    held.append(ballast.keys(np.arange(55_000)))
            with (
                open(tmp_path / "out.delta", "wb") as out,
                pytest.raises(MemoryLimitError, match=r"out\.delta: .* more would pass"),
            ):
                snapshot.write(out)
            for batch in held:
                batch.close()
        with open(tmp_path / "out.delta", "wb") as out:
            snapshot.write(out)
        snapshot.close()
    assert use().private_bytes == 0
    with open_file(tmp_path / "out.delta") as opened:
        opened.reader.count()
        assert use().private_bytes > 256 << 10
    assert use().private_bytes == 0

    tight = limit(MIB // 8)
    with pytest.raises(MemoryLimitError, match=r"more would pass the memory limit of 128\.0 KiB"):
        merge_files([tmp_path / "out.delta"], io.BytesIO())
    assert tight().private_bytes == 0


KINDS: dict[str, Any] = {
    **STATES,
    "items": ps.ListState("bigint"),
    "entries": ps.MapState("bigint", "string"),
}


def load_up(backend: ps.KeyedStateBackend, first: int, count: int) -> None:
    numbers = np.arange(first, first + count)
    with closing(backend.keys(numbers)) as keys:
        backend["n"].update_all(keys, numbers)
        backend["s"].update_all(keys, [f"{number:050d}" for number in numbers])
        for more in range(3):
            backend["items"].append(keys, numbers)
            backend["entries"].put_entries(keys, numbers + more, ["v" * 30] * count)
        backend.register_timers(keys, "event", numbers)


@contextmanager
def full_table(
    home: str,
    folder: Path,
    states: dict[str, Any],
    limit_bytes: int,
    few: int,
    load: Callable[[ps.KeyedStateBackend, int, int], None],
) -> Iterator[tuple[ps.KeyedStateBackend, int]]:
    """Yield a table that has no room for `few` keys more, and how many it has."""
    shared: dict[str, Any] = {"home": "shared", "path": folder / "t.table"}
    options: dict[str, Any] = {"limit_bytes": limit_bytes, "timers": True}
    if home == "shared":
        options |= shared
    with ps.KeyedStateBackend("long", states=states, **options) as backend:
        keys = 0
        with pytest.raises(MemoryLimitError):
            while True:
                load(backend, keys, few)
                backend.seal(snapshot=False)
                keys += few
        backend.rollback()
        assert keys > 10 * few
        assert backend.stats().committed_bytes <= limit_bytes
        yield backend, keys


@pytest.mark.parametrize("home", ["heap", "shared"])
def test_a_full_table_can_be_emptied(home: str, tmp_path: Path) -> None:
    """Small epochs that delete find memory, and what they free comes back."""
    limit_bytes, few = 24 * MIB, 500
    with full_table(home, tmp_path, KINDS, limit_bytes, few, load_up) as (backend, keys):
        acts: list[Callable[[ps.KeyBatch, Any], None]] = [
            lambda batch, at: backend["entries"].remove_entries(batch, at),
            lambda batch, at: backend["items"].clear_all(batch),
            lambda batch, at: backend.delete_timers(batch, "event", at),
            lambda batch, at: backend.delete(batch),
        ]
        for first in range(0, keys, few):
            numbers = np.arange(first, first + few)
            for act in acts:
                with closing(backend.keys(numbers)) as batch:
                    act(batch, numbers)
                with backend.seal() as snapshot, open(tmp_path / "x.delta", "wb") as out:
                    snapshot.write(out)
        assert len(backend) == 0
        for first in range(keys, keys + keys // 2, few):
            load_up(backend, first, few)
            backend.seal(snapshot=False)


@pytest.mark.parametrize("home", ["heap", "shared"])
def test_a_full_table_of_small_rows_can_be_emptied(home: str, tmp_path: Path) -> None:
    """Where names of free rows take most: four bytes each, and their list doubles."""
    limit_bytes, few = 24 * MIB, 5000
    states = {"n": ps.ValueState("bigint")}

    def load(backend: ps.KeyedStateBackend, first: int, count: int) -> None:
        with closing(backend.keys(np.arange(first, first + count))) as batch:
            backend["n"].add(batch, 1)

    with full_table(home, tmp_path, states, limit_bytes, few, load) as (backend, keys):
        for first in range(0, keys, few):
            with closing(backend.keys(np.arange(first, first + few))) as batch:
                backend.delete(batch)
            backend.seal(snapshot=False)
            assert backend.stats().committed_bytes <= limit_bytes * 5 // 4 + 4 * (first + few)
        assert len(backend) == 0
        for _ in range(5000):
            load(backend, 0, 1)
            backend.seal(snapshot=False)
            if backend.stats().committed_bytes < limit_bytes // 2:
                return
        raise AssertionError(backend.stats())


def start(path: Path, keys: int, limit_bytes: int) -> tuple[int, str]:
    """A process that fills a shared table, and the line that it says then."""

    def act() -> None:
        os.environ["PYSTATE_MEMORY_LIMIT_BYTES"] = str(limit_bytes)
        backend = ps.KeyedStateBackend("long", states=STATES, home="shared", path=path)
        try:
            fill(backend, keys)
            backend.seal(snapshot=False)
            print("full", memory_use().shared_bytes, flush=True)
        except MemoryLimitError as error:
            print("limit", error, flush=True)
        signal.pause()

    reading, writing = os.pipe()
    process = forked((0, writing, 2), act)
    os.close(writing)
    with os.fdopen(reading) as said:
        return process, said.readline()


def stop(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL


@pytest.fixture
def shm() -> Any:
    folder = Path(f"/dev/shm/pystate-{os.geteuid()}-test-{os.getpid()}")
    folder.mkdir()
    try:
        yield folder
    finally:
        for file in folder.rglob("*.table"):
            file.unlink()
        folder.rmdir()


@FORKS
def test_processes_of_a_host_share_the_limit(shm: Path) -> None:
    one, said = start(shm / "one.table", 200_000, 32 * MIB)
    try:
        assert said.startswith("full ")
        taken = (shm / "one.table").stat().st_blocks * 512
        assert int(said.split()[1]) == taken > 8 * MIB
        two, said = start(shm / "two.table", 2_000_000, 32 * MIB)
        stop(two)
        pattern = r"limit of 32\.0 MiB: this process has [\d.]+ KiB .* take 3[12]"
        assert re.search(pattern, said), said
        together = taken + (shm / "two.table").stat().st_blocks * 512
        assert 31 * MIB < together <= 32 * MIB
    finally:
        stop(one)
    # Both were killed. Their tables stay, and count, until somebody removes them.
    three, said = start(shm / "three.table", 300_000, 32 * MIB)
    stop(three)
    assert said.startswith("limit "), said
    for name in ("one", "two", "three"):
        (shm / f"{name}.table").unlink()
    four, said = start(shm / "four.table", 300_000, 32 * MIB)
    stop(four)
    assert said.startswith("full "), said
    assert int(said.split()[1]) == (shm / "four.table").stat().st_blocks * 512


def test_tables_of_all_owners_count(limit: Any, tmp_path: Path) -> None:
    """Jobs and executors have folders of their own in the home that all of them share."""
    use = limit(64 * MIB)
    shm = tmp_path / "shm"
    shm.mkdir()
    paths = []
    for application in (b"a" * 32, b"b" * 32):
        home = choose_home(application, shm=str(shm), least_bytes=0)
        path = home.table_path("counts", 0, 127, "f" * 64)
        assert path is not None
        assert home.folder is not None
        assert counted_home(path) == (os.path.dirname(home.folder), 3)
        paths.append(path)
        with ps.KeyedStateBackend(
            "long", states=STATES, home="shared", path=path, identity=home.identity
        ) as table:
            fill(table, 50_000)
            table.seal(snapshot=False)
    assert use().shared_bytes == sum(os.stat(path).st_blocks * 512 for path in paths)
    assert TableOptions().limit_bytes == 0


@pytest.mark.parametrize(
    ("path", "home", "depth"),
    [
        ("/a/b/t.table", "/a/b", 0),
        ("/a/b/state", "/a/b/state", 0),
        ("/a/pystate-7/owner/job/uid/t.table", "/a/pystate-7", 3),
        ("/a/pystate-7/1/2/3/4/t.table", "/a/pystate-7/1/2/3/4", 0),
        ("/a/pystate-me/t.table", "/a/pystate-me", 0),
    ],
)
def test_counted_home(path: str, home: str, depth: int) -> None:
    assert counted_home(path) == (home, depth)


@FORKS
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("123456789", "123456789"),
        (None, str(memory_limit_bytes() // 4 * 3)),
        ("0", str(memory_limit_bytes() // 4 * 3)),
        ("1g", "pystate.errors.InvalidArgumentError: PYSTATE_MEMORY_LIMIT_BYTES"),
    ],
)
def test_the_limit_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    monkeypatch.delenv("PYSTATE_MEMORY_LIMIT_BYTES", raising=False)
    if value is not None:
        monkeypatch.setenv("PYSTATE_MEMORY_LIMIT_BYTES", value)
    _, printed, wrong = copied(lambda: print(memory_use().limit_bytes))
    assert (printed or wrong).splitlines()[-1].startswith(said)


def test_a_forked_child_begins_anew() -> None:
    with ps.KeyedStateBackend("long", states=STATES) as backend:
        fill(backend, 10_000)
        assert memory_use().private_bytes >= backend.stats().committed_bytes
        child = os.fork()
        if not child:
            os._exit(0 if memory_use().private_bytes == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert issubclass(MemoryLimitError, MemoryError)
    with pytest.raises(InvalidArgumentError):
        ps.KeyedStateBackend("long", states=STATES, max_parallelism=0)


_MANY = """
import resource
import sys
from contextlib import ExitStack

import pystate as ps

if int(sys.argv[2]):
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)


def opened():
    return ps.KeyedStateBackend("bigint", states={"n": ps.ValueState("bigint")}, uid="many")


with ExitStack() as stack:
    tables = [stack.enter_context(opened()) for _ in range(int(sys.argv[1]))]
    for number, table in enumerate(tables):
        table.set_current_key(number)
        table["n"].update(number)
    for number, table in enumerate(tables):
        table.set_current_key(number)
        assert table["n"].value() == number
# What closed tables had reserved is free for others.
for _ in range(2000):
    with opened():
        pass
print("done")
"""


@pytest.mark.parametrize(
    ("limit_bytes", "tables", "addresses"),
    [(12 << 40, 400, 0), (18 << 30, 900, 0), (18 << 30, 5, 8 << 30)],
)
def test_a_process_has_many_tables(limit_bytes: int, tables: int, addresses: int) -> None:
    """Also on a host with much memory, or where addresses are limited."""
    environment = {**os.environ, "PYSTATE_MEMORY_LIMIT_BYTES": str(limit_bytes)}
    arguments = [str(tables), str(addresses)]
    program = [sys.executable, "-c", _MANY, *arguments]
    run = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert run.stdout == "done\n", run.stderr
