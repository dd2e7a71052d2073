"""Files of a checkpoint that become another folder's: copied or shared, and looked at there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.state_files import open_file
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import AlreadyPublishedError, CheckpointError

_THREADS = 8

Item = TypeVar("Item")


def for_all(
    act: Callable[[Item], None],
    items: Iterable[Item],
    *,
    threads: int = _THREADS,
    size: Callable[[Item], int] = lambda _: 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Call for each, several at a time; the first failure is raised, and ends the others.

    `size` says how much of the work an item is, and `progress` is called from this thread with what
    is done, and all.
    """
    work = list(items)
    done, total = 0, sum(map(size, work))
    with ThreadPoolExecutor(threads, "pystate-files") as pool:
        pending = {pool.submit(act, item): item for item in work}
        try:
            for future in as_completed(pending):
                future.result()
                done += size(pending[future])
                if progress is not None:
                    progress(done, total)
        except BaseException:
            for future in pending:
                future.cancel()
            raise


def place(
    ref: FileRef,
    origins: Sequence[CheckpointStorage],
    destination: CheckpointStorage,
    *,
    copy: bool,
) -> None:
    """Have a state file in `destination`, from one of `origins`, and read it there once.

    `FileNotFoundError` if it is in none of them.
    """
    try:
        shared = not copy and any(
            destination.share(ref.path, origin, ref.path) for origin in origins
        )
        if not shared:
            with origins[0].open_read(ref.path) as data, destination.create(ref.path) as out:
                shutil.copyfileobj(data, out, 1 << 20)
    except AlreadyPublishedError:
        pass  # by an attempt that was killed: it is looked at like any other
    path = destination.local_path(ref.path)
    with destination.open_read(ref.path) as data, open_file(path or data, ref) as opened:
        opened.check(ref)


def keep(destination: CheckpointStorage, path: str, data: bytes) -> None:
    """Write a file, unless it is there; `CheckpointError` if that has another content."""
    try:
        destination.publish(path, data)
    except AlreadyPublishedError:
        if destination.read_bytes(path) != data:
            raise CheckpointError(
                f"{destination.uri}: {path} is there with another content: use an empty folder"
            ) from None
