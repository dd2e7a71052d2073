"""Owners, folders and limits of a host."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pystate as ps
from pystate.base.memory import memory_limit_bytes
from pystate.errors import (
    CheckpointError,
    InvalidArgumentError,
    MemoryLimitError,
    NoSpaceError,
    SystemCallError,
)
from pystate.tables import host
from pystate.tables.host import (
    TableHome,
    ancestor_named,
    choose_home,
    process_start,
    sweep,
    table_identity,
)
from tests.control_groups import memory_limited
from tests.forks import FORKS, copied

APPLICATION = bytes(range(32))


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def test_identity_of_this_process() -> None:
    identity = table_identity(APPLICATION)
    assert identity.owner_pid == os.getpid()
    assert identity.owner_start == process_start(os.getpid())
    assert len(identity.boot_id) == 16 and identity.application == APPLICATION
    assert identity.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert identity == table_identity(APPLICATION, os.getpid())


def test_identity_of_nobody(child: subprocess.Popen[bytes]) -> None:
    child.communicate(b"\n")
    assert process_start(child.pid) is None
    with pytest.raises(CheckpointError, match=f"process {child.pid} "):
        table_identity(APPLICATION, child.pid)
    assert choose_home(APPLICATION, owner_pid=child.pid) == TableHome(None, None)


def test_home_is_private(tmp_path: Path) -> None:
    home = choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0)
    assert home.folder is not None
    path = home.table_path("a/b", 3, 7, "f" * 64)
    assert path is not None and path.startswith(f"{home.folder}/0001020304050607/a%2Fb/00003-00007")
    for folder in (home.folder, os.path.dirname(home.folder)):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    with pytest.raises(InvalidArgumentError, match="uid"):
        home.table_path("..", 0, 1, "f")
    assert choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0) == home
    assert TableHome(None, None).table_path("a", 0, 1, "f") is None


def test_files_beside_tables_are_private(tmp_path: Path) -> None:
    """Also where they come before a table that has outgrown its file system."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "disk").mkdir()
    local = str(tmp_path / "disk")
    home = choose_home(APPLICATION, shm=str(tmp_path / "memory"), least_bytes=0, fallback=local)
    folder = home.local_folder("steps", "a/b")
    assert folder == f"{home.folders[1]}/0001020304050607/steps/a%2Fb"
    assert os.path.dirname(host.task_folder(folder)) == folder
    for made in (home.folders[1], os.path.dirname(home.folders[1])):
        assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    path = home.table_path("a/b", 3, 7, "f" * 64)
    assert path is not None
    home.leave(path)
    moved = home.table_path("a/b", 3, 7, "f" * 64)
    assert moved is not None and moved.startswith(home.folders[1])
    # A folder that others may enter is not used.
    os.chmod(os.path.dirname(home.folders[1]), 0o755)
    other = home.local_folder("steps", "a/b")
    assert not other.startswith(str(tmp_path)) and other.endswith("/steps/a%2Fb")
    assert TableHome(None, None).local_folder("steps", "a/b") == other
    alone = choose_home(APPLICATION, shm=str(tmp_path / "memory"), least_bytes=0)
    assert alone.local_folder("steps", "a").startswith(str(alone.folder))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NoSpaceError(errno.ENOSPC, "full"), "op: there is no room on the executor's disk, in /x"),
        (OSError(errno.EDQUOT, "full"), "op: there is no room on the executor's disk, in /x"),
        (PermissionError(errno.EACCES, "no"), "op: cannot write into /x: "),
        (SystemCallError(errno.EIO, "a file of the checkpoint"), None),
    ],
)
def test_errors_of_a_local_disk(error: OSError, told: str | None) -> None:
    with (
        pytest.raises(CheckpointError if told else SystemCallError, match=told),
        host.on_local_disk("/x", "op"),
    ):
        raise error


def test_small_memory_file_system_falls_back(tmp_path: Path) -> None:
    shm, local = tmp_path / "shm", tmp_path / "local"
    shm.mkdir()
    home = choose_home(APPLICATION, shm=str(shm), fallback=str(local), least_bytes=1 << 60)
    assert home.folder is not None and home.folder.startswith(str(local))
    assert os.listdir(shm) == []
    missing = choose_home(APPLICATION, shm=str(tmp_path / "none"), fallback=str(local))
    assert missing == home
    assert choose_home(APPLICATION, shm=str(shm), least_bytes=1 << 60).folder is None


@pytest.mark.parametrize("trap", ["open to others", "a link", "a file"])
def test_folder_that_is_not_safe(
    tmp_path: Path, trap: str, caplog: pytest.LogCaptureFixture
) -> None:
    shm, local = tmp_path / "shm", tmp_path / "local"
    shm.mkdir()
    base = shm / f"pystate-{os.geteuid()}"
    if trap == "open to others":
        base.mkdir(mode=0o755)
        base.chmod(0o755)
    elif trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(tmp_path / "elsewhere")
    else:
        base.write_text("")
    home = choose_home(APPLICATION, shm=str(shm), fallback=str(local), least_bytes=0)
    assert home.folder is not None and home.folder.startswith(str(local))
    assert str(base) in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user(tmp_path: Path) -> None:
    base = tmp_path / "pystate-0"
    base.mkdir(mode=0o700)
    os.chown(base, 12345, 12345)
    assert choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0).folder is None


def owner(base: Path, boot: str, namespace: int, pid: int, start: int) -> Path:
    folder = base / f"{boot}-{namespace}-{pid}-{start}"
    (folder / "app" / "op").mkdir(parents=True)
    (folder / "app" / "op" / "x.table").write_bytes(b"1")
    return folder


def test_sweep(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    me = table_identity(APPLICATION)
    boot, namespace = me.boot_id.hex(), me.pid_namespace
    started = process_start(child.pid)
    assert started is not None
    alive = owner(tmp_path, boot, namespace, child.pid, started)
    reused_pid = owner(tmp_path, boot, namespace, child.pid, started - 1)
    earlier_boot = owner(tmp_path, "0" * 32, namespace + 1, child.pid, started)
    other_container = owner(tmp_path, boot, namespace + 1, 1 << 30, 1)
    gone = owner(tmp_path, boot, namespace, 1 << 30, 1)
    foreign = tmp_path / "something else"
    foreign.mkdir()
    assert sweep(str(tmp_path)) == 3
    assert sorted(tmp_path.iterdir()) == sorted([alive, other_container, foreign])
    assert not reused_pid.exists() and not earlier_boot.exists() and not gone.exists()
    child.communicate(b"\n")
    assert sweep(str(tmp_path)) == 1
    assert not alive.exists() and (other_container / "app" / "op" / "x.table").exists()


def test_choosing_a_home_sweeps(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    home = choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0, owner_pid=child.pid)
    assert home.folder is not None and os.path.isdir(home.folder)
    child.communicate(b"\n")
    choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0)
    assert not os.path.isdir(home.folder)


def test_process_that_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc does not show a process, a signal tells whether it is there."""
    monkeypatch.setattr(host, "_stat_fields", lambda pid: None)
    assert not host._is_gone(os.getpid(), 1)
    assert host._is_gone(1 << 30, 1)

    def not_mine(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_mine)
    assert not host._is_gone(1, 1)


def test_ancestor() -> None:
    with open("/proc/self/comm", encoding="ascii") as comm:
        name = comm.read().strip()
    assert ancestor_named(name, os.getpid()) == os.getpid()
    assert ancestor_named("no such command") is None
    script = f"from pystate.tables import host; print(host.ancestor_named({name!r}, None))"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == os.getpid()


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("", {}, 8 << 30),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000\n"}, 1000),
        ("0::/a/b\n", {"a/b/memory.max": "900\n", "a/memory.max": "1000\n"}, 900),
        ("0::/\n", {"memory.max": "4096\n"}, 4096),
        ("0::/gone\n", {"memory.max": "4096\n"}, 4096),
        ("5:cpu:/x\n4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "77\n"}, 77),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": "78\n"}, 78),
        ("4:memory:/x\n0::/y\n", {"unified/y/memory.max": "79\n"}, 79),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n"}, 8 << 30),
    ],
)
def test_memory_limit(tmp_path: Path, groups: str, files: dict[str, str], limit: int) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(groups)
    (proc / "meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\n")
    for name, text in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(text)
    assert memory_limit_bytes(proc=str(proc), cgroups=str(cgroups)) == limit


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "limit"),
    [
        ("0::/a\n", "/ {at}/v2 x:1 - cgroup2 c rw", {"v2/a/memory.max": "91\n"}, 91),
        # Of a container that sees the host's paths only its own part is mounted.
        ("0::/pod/a\n", "/pod {at}/v2 - cgroup2 c rw", {"v2/a/memory.max": "92\n"}, 92),
        ("0::/pod/a\n", "/pod/a {at}/v2 - cgroup2 c rw", {"v2/memory.max": "93\n"}, 93),
        ("0::/pod/a\n", "/other {at}/v2 - cgroup2 c rw", {"v2/memory.max": "94\n"}, 94),
        (
            "7:cpu,memory:/b\n0::/b\n",
            "/ {at}/a\\040b - cgroup c rw,cpu,memory",
            {"a b/b/memory.limit_in_bytes": "95\n", "a b/b/memory.max": "1\n"},
            95,
        ),
        (
            "7:memory:/b\n",
            "/ {at}/cpu - cgroup c rw,cpu,memoryless",
            {"cpu/b/memory.limit_in_bytes": "1\n", "memory/b/memory.limit_in_bytes": "96\n"},
            96,
        ),
    ],
)
def test_memory_limit_of_mounts(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], limit: int
) -> None:
    at = tmp_path / "cgroup"
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(groups)
    (own / "mountinfo").write_text(
        f"1 0 0:1 / / rw - tmpfs t rw\n36 35 0:30 {mounts.format(at=at)}\n"
    )
    for name, text in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    assert memory_limit_bytes(proc=str(own.parent), cgroups=str(at)) == limit


def test_memory_limit_of_this_host() -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory_limit_bytes() <= physical * 1.01
    assert memory_limit_bytes(proc="/nowhere") == physical


@FORKS
def test_a_table_in_a_nested_group_meets_its_limit() -> None:
    def grow() -> None:
        enter()
        backend = ps.KeyedStateBackend("long", states={"n": ps.ValueState("bigint")})
        with pytest.raises(MemoryLimitError):
            for first in range(0, 1 << 26, 1 << 16):
                backend["n"].add(backend.keys(np.arange(first, first + (1 << 16))), 1)
        backend.rollback(0)
        print("limit", len(backend))

    with memory_limited(400 << 20) as enter:
        assert copied(grow) == (0, "limit 0\n", "")
