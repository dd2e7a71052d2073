"""Folders of an output on a file system: their files, and how they become durable.

Thread safety: functions without state.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from pystate.checkpoint.storage import sync_path
from pystate.errors import CorruptFileError, InUseError, NewerFormatError

#: While a process holds a shared lock on this file, the folder is not exchanged.
LOCK = "_lock"
_LOOK_S = 0.005
#: The most syncs at a time.
_SYNCS = 16
_FORMAT_VERSION = 1
#: Arguments of renameat2: paths relative to the working directory, and the flag to exchange.
_HERE, _EXCHANGE = -100, 2


def is_hidden(name: str) -> bool:
    """Whether Spark and similar readers ignore a name when they read the folder above."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def encode_note(name: str, content: Any) -> str:
    """Return the text of a small JSON file, which says its format's version."""
    return json.dumps({"format_version": _FORMAT_VERSION, name: content})


def read_note(path: str, name: str) -> Any:
    """Read what `encode_note` made; a file without a version is of the first one.

    A missing file raises `FileNotFoundError`.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        content = json.loads(text)
        version = content.get("format_version", 1)
        if version > _FORMAT_VERSION:
            raise NewerFormatError(
                f"{path}: format version {version} was written by a later version of pystate; "
                f"this one reads up to {_FORMAT_VERSION}: upgrade pystate"
            )
        return content[name]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptFileError(f"{path}: not what pystate writes: {error}") from None


def save_note(path: str, name: str, content: Any) -> None:
    """Write a note durably, in place of the one before."""
    folder, file_name = os.path.split(path)
    temporary = os.path.join(folder, f".{file_name}.{uuid.uuid4().hex}")
    with open(temporary, "x", encoding="utf-8") as file:
        file.write(encode_note(name, content))
    sync_path(temporary)
    os.replace(temporary, path)
    sync_path(folder)


def data_files(folder: str, levels: int = 0) -> list[tuple[str, int]] | None:
    """The names and sizes of a folder's files; None if there is no such folder."""
    try:
        return sorted(_walk(folder, "", levels))
    except FileNotFoundError:
        return None


def _walk(folder: str, prefix: str, levels: int) -> Iterator[tuple[str, int]]:
    for name in os.listdir(folder):
        if is_hidden(name):
            continue
        path = os.path.join(folder, name)
        if levels and os.path.isdir(path):
            yield from _walk(path, f"{prefix}{name}/", levels - 1)
        else:
            yield prefix + name, os.path.getsize(path)


def sync_all(paths: Sequence[str]) -> None:
    """Sync files and folders, several at a time: a disk takes them together."""
    if len(paths) < 2:
        list(map(sync_path, paths))
        return
    with ThreadPoolExecutor(min(len(paths), _SYNCS), "pystate-sync") as pool:
        list(pool.map(sync_path, paths))


def sync_tree(path: str) -> None:
    """Make the names in a folder, and in those below it, survive a power failure."""
    sync_all([folder for folder, _, _ in os.walk(path)])


@contextmanager
def shared_locks(folders: Iterable[str]) -> Iterator[None]:
    """While the block runs, none of the folders is exchanged for another one.

    A folder that does not exist yet, or whose file system has no locks, is never exchanged.
    """
    with ExitStack() as stack:
        for folder in folders:
            descriptor = _open_lock(folder)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def exclusive_lock(folder: str, name: str, wait_s: float, what: str) -> Iterator[None]:
    """Hold an exclusive lock in a folder: `InUseError` if a process had it for the whole wait."""
    descriptor = _open_lock(folder, name)
    if descriptor is None:
        raise FileNotFoundError(folder)
    try:
        until_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise InUseError(what) from None
                time.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _open_lock(folder: str, name: str = LOCK) -> int | None:
    path = os.path.join(folder, name)
    try:
        # Every user who may write to the folder can open it.
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        return None


def link_tree(source: str, target: str) -> None:
    """Link a folder's files into another folder, which is created; symbolic links stay links.

    Files that vanish meanwhile, such as those that a killed job's tasks still write, are ignored.
    """
    os.mkdir(target)
    with suppress(FileNotFoundError):
        with os.scandir(source) as entries:
            for entry in entries:
                new = os.path.join(target, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    link_tree(entry.path, new)
                else:
                    link(entry.path, new)
        copy_owner(source, target)


def link(source: str, target: str) -> None:
    """Link a file under another name, if it still exists."""
    with suppress(FileNotFoundError):
        os.link(source, target, follow_symlinks=False)


def copy_owner(source: str, target: str) -> None:
    """Give a folder the mode, the times and if possible the owner of another."""
    status = os.stat(source)
    with suppress(PermissionError):
        os.chown(target, status.st_uid, status.st_gid)
    shutil.copystat(source, target)


def exchange(one: str, other: str) -> None:
    """Exchange the names of two folders in one step; `OSError` if the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        renameat2 = libc.renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, "this C library has no renameat2", one) from None
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)
