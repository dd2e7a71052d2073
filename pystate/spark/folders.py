"""Folders of an output on a file system: what they hold, and how they become durable.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["data_files", "is_hidden", "sync_file", "sync_folder", "sync_tree"]


def is_hidden(name: str) -> bool:
    """Whether Spark and its like leave a name out when they read the folder above."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def data_files(folder: str, levels: int = 0) -> list[tuple[str, int]] | None:
    """The names and sizes of a folder's files; None where there is no such folder.

    Parameters
    ----------
    levels : int
        Of folders in between, which the names then begin with.
    """
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


def sync_file(path: str) -> None:
    """Make what a file holds survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a power failure."""
    sync_file(path)


def sync_tree(path: str) -> None:
    """Make the names in a folder, and in those below it, survive a power failure."""
    for folder, _, _ in os.walk(path):
        sync_folder(folder)
