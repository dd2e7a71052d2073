"""The janitor: who is gone, what is closed, and that memory goes back at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.refs import empty_range
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.ownership import Ownership
from pystate.errors import PystateError
from pystate.state.operator_spec import OperatorSpec
from pystate.tables import janitor, upkeep
from pystate.tables.host import TableHome, choose_home, process_start
from pystate.tables.janitor import closing_mark
from pystate.tables.recovery import TableSpec
from pystate.types.keys import parse_key

APPLICATION = bytes(range(32))


def child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


#: Runs a file whose pauses are short.
QUICK = """
import runpy, sys, time
sleep = time.sleep
time.sleep = lambda pause_s: sleep(pause_s / 40)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Executor:
    """An executor's process and daemon, its folders, and a janitor beside it."""

    def __init__(self, folder: Path) -> None:
        self.process = child()
        self.home = choose_home(
            APPLICATION,
            owner_pid=self.process.pid,
            shm=str(folder / "shm"),
            least_bytes=0,
            fallback=str(folder / "local"),
        )
        assert self.home.folder is not None
        self.folder = Path(self.home.folder)
        self.work()

    def work(self) -> None:
        """Start a daemon, whose workers make tables."""
        self.daemon = child()
        start = process_start(self.daemon.pid)
        (self.folder / f"{janitor.DAEMON}{self.daemon.pid}-{start}").touch()
        self.tables = []
        for place in (self.home, TableHome(self.home.folders[1], self.home.identity)):
            path = place.table_path("op", 0, 127, "f" * 16)
            assert path is not None
            Path(path).write_bytes(b"x" * 10_000)
            self.tables.append(Path(path))

    def janitor(self) -> subprocess.Popen[bytes]:
        assert self.home.identity is not None
        owner = map(str, self.home.identity[2:4])
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", QUICK, janitor.__file__, *owner, *self.home.folders]
        )

    @property
    def gone(self) -> bool:
        return not any(Path(folder).exists() for folder in self.home.folders)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    (tmp_path / "shm").mkdir()
    made = Executor(tmp_path)
    yield made
    for process in (made.process, made.daemon):
        end(process)


def test_tables_end_with_their_executor(executor: Executor) -> None:
    first, second = executor.janitor(), executor.janitor()
    # One of them is enough.
    wait_for(lambda: first.poll() is not None or second.poll() is not None)
    assert all(table.exists() for table in executor.tables)
    end(executor.process)
    assert first.wait(60) == second.wait(60) == 0
    assert executor.gone


def test_an_executor_that_works_again_is_still_looked_after(executor: Executor) -> None:
    """Spark starts another daemon where one was killed, and a new session has its own."""
    running = executor.janitor()
    wait_for(lambda: upkeep._is_looked_after(str(executor.folder)))
    end(executor.daemon)
    # With their folders: a task whose folder is removed while it makes it has its table in memory.
    wait_for(lambda: not any(table.parents[1].exists() for table in executor.tables))
    executor.work()
    assert upkeep._is_looked_after(str(executor.folder)) and running.poll() is None
    end(executor.daemon)
    wait_for(lambda: not any(table.exists() for table in executor.tables))
    end(executor.process)
    assert running.wait(60) == 0 and executor.gone


@pytest.mark.parametrize("how", ["closed", "deleted"])
def test_tables_end_with_their_job(executor: Executor, tmp_path: Path, how: str) -> None:
    storage = LocalStorage(tmp_path / "checkpoint")
    storage.publish("job.json", b"{}")
    owner = Ownership(storage, "run")
    owner.acquire()
    job_file = storage.local_path("job.json")
    upkeep.note_use(executor.home, job_file, owner.term)
    running = executor.janitor()
    wait_for(lambda: upkeep._is_looked_after(str(executor.folder)))
    assert all(table.exists() for table in executor.tables)
    if how == "closed":
        owner.close()
    else:
        os.unlink(job_file)
    wait_for(lambda: not any(table.exists() for table in executor.tables))
    assert executor.folder.exists() and running.poll() is None
    end(executor.process)
    assert running.wait(60) == 0


def test_a_worker_engages_one_janitor(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[TableHome] = []
    monkeypatch.setattr(upkeep, "_start_janitor", started.append)
    ours = f"{janitor.DAEMON}{os.getppid()}-{process_start(os.getppid())}"
    upkeep.engage_janitor(TableHome(None, None))
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "process_start", lambda pid: None)
        upkeep._parent.cache_clear()
        upkeep.engage_janitor(executor.home)
    upkeep._parent.cache_clear()
    assert started == [] and not (executor.folder / ours).exists()
    upkeep.engage_janitor(executor.home)
    assert started == [executor.home] and (executor.folder / ours).exists()
    running = executor.janitor()
    wait_for(lambda: upkeep._is_looked_after(str(executor.folder)))
    upkeep.engage_janitor(executor.home)
    assert len(started) == 1
    # This test's own parent works for the executor, too: it takes the process's end.
    end(executor.daemon)
    end(executor.process)
    assert running.wait(60) == 0 and executor.gone


@pytest.mark.parametrize("by", ["a task", "a driver"])
def test_a_janitor_that_was_killed_is_replaced(executor: Executor, tmp_path: Path, by: str) -> None:
    base = str(executor.folder.parent)
    assert upkeep.replace_janitors(base) == 0  # there was none: it may be no executor
    first = executor.janitor()
    wait_for(lambda: upkeep._is_looked_after(str(executor.folder)))
    wait_for(lambda: janitor.looked_after(str(executor.folder)) == list(executor.home.folders))
    assert upkeep.replace_janitors(base) == 0
    first.kill()
    first.wait(60)
    if by == "a task":
        upkeep.engage_janitor(executor.home)
    else:
        assert upkeep.replace_janitors(base) == 1
    wait_for(lambda: upkeep._is_looked_after(str(executor.folder)))
    assert all(table.exists() for table in executor.tables)
    end(executor.process)
    wait_for(lambda: executor.gone)
    assert upkeep.replace_janitors(base) == upkeep.replace_janitors(str(tmp_path / "nothing")) == 0


def test_a_later_process_with_its_number_is_not_the_executor(executor: Executor) -> None:
    pid, start = executor.process.pid, process_start(executor.process.pid)
    assert start is not None
    assert janitor.is_alive(pid, start) and not janitor.is_alive(pid, start - 1)


def test_what_is_over(tmp_path: Path) -> None:
    storage, root = LocalStorage(tmp_path / "ck"), str(tmp_path / "ck")
    assert janitor.is_over(root, closing_mark(1))  # there is no checkpoint
    storage.publish("job.json", b"{}")
    first, second = Ownership(storage, "a"), Ownership(storage, "b")
    first.close()  # it owns nothing
    first.acquire()
    second.acquire()
    assert not janitor.is_over(root, closing_mark(1))
    first.close()
    first.close()
    # The driver that took over goes on.
    assert janitor.is_over(root, closing_mark(1))
    assert not janitor.is_over(root, closing_mark(2))
    for term in range(3, 20):
        Ownership(storage, str(term)).acquire()
    assert not storage.exists(closing_mark(1))
    # A file system that is away says nothing.
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert not janitor.is_over(str(loop), closing_mark(1))


def test_a_later_driver_has_the_last_word(tmp_path: Path) -> None:
    home = choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0)
    assert home.folder is not None and janitor.read_use(home.folder, home.application) is None
    for term, wanted in ((2, 2), (1, 2), (3, 3)):
        upkeep.note_use(home, "/ck/job.json", term)
        found = janitor.read_use(home.folder, home.application)
        assert found == ("/ck", closing_mark(wanted))
    upkeep.note_use(home, "/moved/job.json", 1)
    assert janitor.read_use(home.folder, home.application) == ("/moved", closing_mark(1))
    assert upkeep.note_use(TableHome(None, None), "/ck/job.json", 1) is None


def table(path: Path) -> ps.KeyedStateBackend:
    backend = ps.KeyedStateBackend(
        "long", states={"n": ps.ValueState("long", default=0)}, home="shared", path=path
    )
    backend["n"].add(backend.keys(pa.array(range(50_000))), 1)
    backend.seal(snapshot=False)
    return backend


def test_memory_goes_back_while_others_map_the_table(tmp_path: Path) -> None:
    path = tmp_path / "a.table"
    backend = table(path)
    with open(path, "rb") as file:
        before = os.fstat(file.fileno()).st_blocks
        # Who holds the lock keeps what it works with.
        janitor.remove_table(str(path))
        assert not path.exists() and os.fstat(file.fileno()).st_blocks == before
        assert len(backend) == 50_000
        backend.detach()
    backend.close()
    backend = table(path)
    backend.detach()
    with open(path, "rb") as file:
        assert os.fstat(file.fileno()).st_blocks > 0
        janitor.remove_table(str(path))
        assert not path.exists() and os.fstat(file.fileno()).st_blocks == 0
        with pytest.raises(PystateError):
            backend.attach()
        backend.close()
    janitor.remove_table(str(path))  # is gone


def test_what_is_outdated(tmp_path: Path) -> None:
    home = choose_home(
        APPLICATION, shm=str(tmp_path), least_bytes=0, fallback=str(tmp_path / "local")
    )
    spec = TableSpec(
        LocalStorage(tmp_path / "ck"),
        home,
        OperatorSpec("op", parse_key("long"), {"n": ps.ValueState("long")}),
    )
    base, fingerprint = empty_range(1, 128, 2), spec.operator.fingerprint()
    path = home.table_path("op", 64, 127, fingerprint)
    assert path is not None
    folder = Path(path).parent
    below = Path(home.local_folder("below", "op"))
    below.mkdir(parents=True)
    local = Path(home.folders[1], folder.relative_to(home.folder or "")) / "00000-00127-ab.table"
    local.parent.mkdir(parents=True)
    mine = fingerprint[:16]
    kept = [f"00064-00127-{mine}.table", "00000-00063-ab.table", "00000-00063-cd.table", "other"]
    lost = ["00064-00127-ab.table", "00000-00127-ab.table", f"00032-00063-{mine}.table.outgrown"]
    merged = [below / f"{bounds}-ab.base" for bounds in ("00000-00127", "00032-00063")]
    used = [below / f"{bounds}-ab.base" for bounds in ("00000-00063", "00064-00127")]
    for file in [*(folder / name for name in [*kept, *lost]), local, *merged, *used]:
        file.touch()
    upkeep.remove_outdated(spec, base, 2)
    assert sorted(os.listdir(folder)) == sorted(kept) and not local.exists()
    assert sorted(below.iterdir()) == used


def test_what_is_outdated_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of thousands of tables is gone through again only once it has changed."""
    home = choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0)
    operator = OperatorSpec("op", parse_key("long"), {"n": ps.ValueState("long")})
    spec = TableSpec(LocalStorage(tmp_path / "ck"), home, operator)
    path = home.table_path("op", 0, 63, operator.fingerprint())
    assert path is not None
    folder = Path(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    read: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: read.append(path) or listdir(path))

    def look(index: int = 0, parallelism: int = 2) -> int:
        read.clear()
        upkeep.remove_outdated(spec, empty_range(index, 128, parallelism), parallelism)
        return read.count(str(folder))

    def add(name: str, seconds_ago: float) -> None:
        (folder / name).touch()
        then = time.time() - seconds_ago
        os.utime(folder, (then, then))

    add("00000-00127-ab.table", 0)
    assert look() == 1 and not any(folder.iterdir())
    assert look() == 1  # what else happened within the clock's resolution would not show
    os.utime(folder, (1, 1))
    assert [look(), look(), look(1), look(1)] == [1, 0, 1, 0]
    add("00000-00127-ab.table", 100)
    assert look() == 1 and not any(folder.iterdir())
    os.utime(folder, (2, 2))
    assert [look(), look(), look(parallelism=4), look()] == [1, 0, 1, 0]
