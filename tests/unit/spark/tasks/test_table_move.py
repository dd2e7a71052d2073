"""Where tasks find the folder of their executor's tables, and who frees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pystate.spark.tasks import table_move
from pystate.tables import janitor
from pystate.tables.host import TableHome, base_folder, process_start

APPLICATION = bytes(range(32))
#: A process that runs another one, and stays when that has ended.
RUNS = "import subprocess, sys, time; subprocess.run(sys.argv[1:]); time.sleep(600)"
#: A worker: for each line, the folder of a job's tables, itself and its parent.
WORKER = """
import os, sys
from pystate.spark.tasks.table_move import executor_home
for line in sys.stdin:
    home = executor_home(line.encode().ljust(32), sys.argv[1])
    print(home.folder, os.getpid(), os.getppid(), flush=True)
"""


def test_each_task_looks_for_the_janitor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engaged: list[TableHome] = []
    monkeypatch.setattr(table_move, "engage_janitor", engaged.append)
    monkeypatch.setattr(table_move, "_executor", os.getpid)
    homes = [table_move.executor_home(APPLICATION, str(tmp_path / "tables")) for _ in range(2)]
    assert engaged == homes and homes[0] is homes[1]
    assert homes[0].folder is not None
    assert os.path.dirname(homes[0].folder) == table_move.tables_folder(str(tmp_path / "tables"))
    assert table_move.tables_folder("shm") == base_folder()


def test_a_worker_whose_daemon_was_killed_has_the_tables_of_its_executor(tmp_path: Path) -> None:
    """Else a range that changes from worker to worker would be read from files each time."""
    (tmp_path / "java").symlink_to(sys.executable)
    worker = [sys.executable, "-c", WORKER, str(tmp_path / "tables")]
    daemon = [sys.executable, "-c", RUNS, *worker]
    executor = subprocess.Popen(
        [tmp_path / "java", "-c", RUNS, *daemon],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    asked, said = executor.stdin, executor.stdout
    assert asked is not None and said is not None

    def home_of(job: str) -> tuple[Path, int, int]:
        print(job, file=asked, flush=True)
        folder, pid, parent = said.readline().split()
        return Path(folder), int(pid), int(parent)

    try:
        folder, pid, parent = home_of("one")
        assert folder.name.endswith(f"-{executor.pid}-{process_start(executor.pid)}")
        before = f"{janitor.DAEMON}{parent}-{process_start(parent)}"
        os.kill(parent, signal.SIGKILL)
        while process_start(parent) is not None:
            time.sleep(0.01)
        assert home_of("another")[:2] == (folder, pid)
        notes = {path.name for path in folder.glob(f"{janitor.DAEMON}*")}
        assert notes == {before, f"{janitor.DAEMON}{pid}-{process_start(pid)}"}
    finally:
        asked.close()
        executor.kill()
        executor.wait()
        said.close()
