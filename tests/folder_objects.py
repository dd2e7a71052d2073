"""An object store that is a folder: it counts what is asked of it, and fails when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pystate.checkpoint.object_storage import ObjectStorage
from pystate.checkpoint.storage import FileEntry, LocalStorage
from pystate.errors import CheckpointError


class FolderObjects(ObjectStorage):
    """The storage of a folder, whose files have no path that a host may open."""

    def __init__(self, root: Path) -> None:
        self.files = LocalStorage(root)
        self.lock = threading.Lock()
        #: What ranges were read of each object, and how many bytes in all.
        self.ranges: list[tuple[str, int, int]] = []
        self.bytes = 0
        #: How many requests ran at a time, and how long each takes.
        self.at_once = self.most_at_once = 0
        self.takes_s = 0.0
        #: Raises what a request is to raise.
        self.fault: Callable[[str], None] = lambda path: None

    @property
    def uri(self) -> str:
        return f"s3://folder{self.files.uri}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FolderObjects) and other.files == self.files

    def __hash__(self) -> int:
        return hash(self.files)

    def __reduce__(self) -> Any:
        return FolderObjects, (Path(self.files.uri),)

    def read_range(self, path: str, start: int, end: int) -> memoryview:
        with self.lock:
            self.ranges.append((path, start, end))
            self.bytes += end - start
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.takes_s:
                time.sleep(self.takes_s)
            self.fault(path)
            with self.files.open_read(path) as file:
                file.seek(start)
                data = file.read(end - start)
            if len(data) < end - start:
                raise CheckpointError(f"{self.uri}/{path}: it ends before byte {end}")
            return memoryview(data)
        finally:
            with self.lock:
                self.at_once -= 1

    @contextmanager
    def create(self, path: str, spool: BinaryIO | None = None) -> Iterator[BinaryIO]:
        with self.files.create(path) as out:
            yield out if spool is None else spool
            if spool is not None:
                spool.seek(0)
                out.write(spool.read())

    def read_bytes(self, path: str) -> bytes:
        return self.files.read_bytes(path)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.files.replace(path, data, durable=durable)

    def open_read(self, path: str) -> BinaryIO:
        return self.files.open_read(path)

    def size_bytes(self, path: str) -> int | None:
        return self.files.size_bytes(path)

    def exists(self, path: str) -> bool:
        return self.files.exists(path)

    def list(self, prefix: str, *, temporary: bool = False) -> list[FileEntry]:
        return self.files.list(prefix, temporary=temporary)

    def delete(self, path: str) -> bool:
        return self.files.delete(path)
