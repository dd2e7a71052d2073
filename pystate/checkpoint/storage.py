"""Storage of checkpoint files, and how files are created.

Thread safety: a storage may be used by any number of threads and processes at once.

Invariants
----------
1. A file appears under its final name complete and durable, or not at all.
2. `publish` and `create` never replace: of two writers of one name exactly one succeeds, the other
   gets `AlreadyPublishedError`, and the file that it finds is durable.
3. A failed write leaves nothing behind. A killed write leaves only a temporary file, which no
   reader sees and orphan collection removes.
4. Names are relative POSIX paths inside the root; nothing outside it can be named.
5. What is removed, marked, or replaced without being durable may come back, or go, in any order
   if the machine stops. `sync_folder` puts an end to that for one folder.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import BinaryIO, NamedTuple, NoReturn, Protocol, cast

from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    InvalidArgumentError,
    NoSpaceError,
    PystateError,
)

#: The errors of a full file system.
FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_ABSENT = (FileNotFoundError, NotADirectoryError)
_Entries = list["FileEntry"]  # `list` is a method's name inside the classes below


class FileEntry(NamedTuple):
    """One file of a listing."""

    path: str
    size_bytes: int
    modified_ms: int


class CheckpointStorage(Protocol):
    """What the coordinator and the workers need of a file system or object store.

    Implement it, and register the scheme in `open_storage`, to add a storage.
    """

    touch_every_s: float
    """How often a task gives a sign of life by `touch`, which takes time and may cost money."""

    @property
    def uri(self) -> str:
        """The root, in the form that `open_storage` takes on another host."""

    def publish(self, path: str, data: bytes) -> None:
        """Create `path` with `data`, durably, unless it exists.

        `AlreadyPublishedError` if the name is taken; the existing file is unchanged. At
        `NoSpaceError` and `CheckpointError` nothing was created; or, only if the last sync of the
        folder failed, the file is complete but may not survive a power failure. If a store does not
        answer any more, the file is complete or not there.
        """

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create `path` or replace it atomically; no other call replaces a file."""

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a new file for writing; it appears as `path` when the block ends without error.

        Errors are those of `publish`; that the name is taken is found out at the end of the block.
        An exception from inside the block is passed on; an ``OSError`` for a full file system
        becomes `NoSpaceError`.
        """

    def share(self, path: str, other: CheckpointStorage, other_path: str) -> bool:
        """Give another storage's file a name here, durably; False if that cannot be.

        No bytes pass through this process. Both names may be of one file, which then exists as long
        as either does. It is for files that never change. `AlreadyPublishedError` if the name is
        taken, `FileNotFoundError` if the other storage has no such file.
        """

    def read_bytes(self, path: str) -> bytes:
        """Read the whole file; `FileNotFoundError` if there is none."""

    def open_read(self, path: str) -> BinaryIO:
        """Open the file for reading; it is seekable. `FileNotFoundError` if there is none."""

    def list(self, prefix: str, *, temporary: bool = False) -> _Entries:
        """List all files below the folder `prefix`, sorted by path.

        With `temporary`, list only the leftovers of unfinished writes; otherwise leave them out.
        """

    def delete(self, path: str) -> bool:
        """Remove a file; return False if there was none."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable as they are now; "" is the root.

        Afterwards what was removed from it stays away, and what was marked or replaced in it stays,
        although perhaps not with its content. It does nothing if there is no such folder.
        """

    def exists(self, path: str) -> bool:
        """Whether the file exists."""

    def size_bytes(self, path: str) -> int | None:
        """Return the file's size; None if there is no file."""

    def local_path(self, path: str) -> str | None:
        """Return an absolute path that this host can open or map, or None."""

    def make_folder(self, path: str) -> None:
        """Make a folder for marks."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder with its content; do nothing if there is none."""

    def mark(self, path: str, data: bytes) -> bytes | None:
        """Create a small file; if it exists already, return its content instead.

        Others see the file complete or not at all, but it is not durable. `FileNotFoundError` if
        `make_folder` has not made the folder, or it was removed.
        """

    def touch(self, path: str) -> bool:
        """Set a file's modification time to now; return False if there is no file."""


class LocalStorage:
    """A checkpoint in a folder of a local or shared (NFS) file system, made at the first write.

    Files are written under ``.<name>.<uuid>.tmp`` beside their final name, synced, and linked:
    ``rename`` would silently replace another driver's file. The folder is synced after the link.
    Instances can be pickled and compare equal by root.
    """

    touch_every_s = 1.0

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._prefix = os.path.join(self._root, "")
        self._synced: set[str] = set()

    @property
    def uri(self) -> str:
        """The absolute path of the root."""
        return self._root

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStorage) and other._root == self._root

    def __hash__(self) -> int:
        return hash(self._root)

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str]]:
        return LocalStorage, (self._root,)

    def local_path(self, path: str) -> str:
        """Return the absolute path of a name, without accessing it."""
        return self._prefix + checked_path(path)

    def publish(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.publish`."""
        with self.create(path) as out:
            out.write(data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """See `CheckpointStorage.replace`."""
        final = self.local_path(path)
        temporary = self._temporary(final)
        try:
            with open(temporary, "xb", buffering=0) as out:
                _write_all(out, data)
                if durable:
                    os.fsync(out.fileno())
            os.replace(temporary, final)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError):
                _fail("write", final, error)
            raise
        if durable:
            with _translate_errors("write", final, passed=()):
                sync_path(os.path.dirname(final))

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """See `CheckpointStorage.create`."""
        final = self.local_path(path)
        temporary = self._temporary(final)
        try:
            try:
                out = open(temporary, "xb", buffering=1 << 20)  # noqa: SIM115
            except OSError as error:
                _fail("create", final, error)
            try:
                yield out
                out.flush()
                os.fsync(out.fileno())
                out.close()
                os.link(temporary, final)
            except OSError as error:
                _abandon(out)
                _sync_if_taken(final, error)
                _fail("write", final, error)
            except BaseException:
                _abandon(out)
                raise
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        with _translate_errors("sync the folder of", final, passed=()):
            sync_path(os.path.dirname(final))

    def share(self, path: str, other: CheckpointStorage, other_path: str) -> bool:
        """See `CheckpointStorage.share`."""
        origin, final = other.local_path(other_path), self.local_path(path)
        if origin is None:
            return False
        self._temporary(final)  # makes the folder
        try:
            os.link(origin, final)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in (errno.EXDEV, *_NO_LINKS):
                return False
            _sync_if_taken(final, error)
            _fail("write", final, error)
        with _translate_errors("sync the folder of", final, passed=()):
            sync_path(os.path.dirname(final))
        return True

    def read_bytes(self, path: str) -> bytes:
        """See `CheckpointStorage.read_bytes`."""
        with self.open_read(path) as source, _translate_errors("read", source.name):
            return source.read()

    def open_read(self, path: str) -> BinaryIO:
        """See `CheckpointStorage.open_read`."""
        final = self.local_path(path)
        with _translate_errors("read", final):
            return open(final, "rb")

    def list(self, prefix: str, *, temporary: bool = False) -> _Entries:
        """See `CheckpointStorage.list`."""
        top = self._root if prefix == "" else self.local_path(prefix)
        listing: _Entries = []
        folders = [top]
        while folders:
            folder = folders.pop()
            with (
                suppress(*_ABSENT),
                _translate_errors("list", folder, passed=_ABSENT),
                os.scandir(folder) as entries,
            ):
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif is_temporary(entry.name) == temporary:
                        self._append(listing, entry)
        listing.sort()
        return listing

    def _append(self, listing: _Entries, entry: os.DirEntry[str]) -> None:
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                relative = os.path.relpath(entry.path, self._root)
                listing.append(FileEntry(relative, status.st_size, status.st_mtime_ns // 1_000_000))

    def delete(self, path: str) -> bool:
        """See `CheckpointStorage.delete`."""
        final = self.local_path(path)
        with suppress(FileNotFoundError), _translate_errors("delete", final):
            os.unlink(final)
            return True
        return False

    def sync_folder(self, path: str) -> None:
        """See `CheckpointStorage.sync_folder`."""
        folder = self.local_path(path) if path else self._root
        with suppress(FileNotFoundError), _translate_errors("sync", folder):
            sync_path(folder)

    def exists(self, path: str) -> bool:
        """See `CheckpointStorage.exists`."""
        return self.size_bytes(path) is not None

    def size_bytes(self, path: str) -> int | None:
        """See `CheckpointStorage.size_bytes`."""
        final = self.local_path(path)
        with suppress(*_ABSENT), _translate_errors("look at", final, passed=_ABSENT):
            status = os.stat(final)
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        return None

    def make_folder(self, path: str) -> None:
        """See `CheckpointStorage.make_folder`."""
        final = self.local_path(path)
        with _translate_errors("create", final, passed=()):
            os.makedirs(final, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        """See `CheckpointStorage.remove_folder`."""
        top = self.local_path(path)
        # The next file there makes its folder again.
        # Other threads add to the set meanwhile; what they add to the old one is synced again.
        known = self._synced.copy()
        self._synced = {f for f in known if f != top and not f.startswith(f"{top}/")}
        # If a late task creates a file meanwhile, the folder is left for orphan collection.
        shutil.rmtree(top, ignore_errors=True)

    def mark(self, path: str, data: bytes) -> bytes | None:
        """See `CheckpointStorage.mark`."""
        final = self.local_path(path)
        folder, name = os.path.split(final)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        with suppress(FileExistsError), _translate_errors("write", final):
            try:
                with open(temporary, "xb", buffering=0) as out:
                    _write_all(out, data)
                os.link(temporary, final)
                return None
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
        return self.read_bytes(path)

    def touch(self, path: str) -> bool:
        """See `CheckpointStorage.touch`."""
        final = self.local_path(path)
        with suppress(FileNotFoundError), _translate_errors("touch", final):
            os.utime(final)
            return True
        return False

    def _temporary(self, final: str) -> str:
        """Return a new temporary name for `final`; its folder is made durable on first use."""
        folder, name = os.path.split(final)
        if folder not in self._synced:
            try:
                os.makedirs(folder, exist_ok=True)
                # Another process may have made these folders and died before it synced them, so
                # every one up to the root's parent is synced.
                above = folder
                while len(above) >= len(self._root):
                    above = os.path.dirname(above)
                    sync_path(above)
                    if above == os.path.dirname(above):
                        break
            except OSError as error:
                _fail("create", folder, error)
            self._synced.add(folder)
        return os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")


def find_bytes(storage: CheckpointStorage, path: str) -> bytes | None:
    """Read the whole file; None if there is none."""
    try:
        return storage.read_bytes(path)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=1024)
def checked_path(path: str) -> str:
    """Return a name inside a root; `InvalidArgumentError` if it could be outside."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidArgumentError(f"{path!r} is not a relative POSIX path inside the checkpoint")
    return path


def final_name(path: str) -> str:
    """Return the final name of an unfinished write; other names are returned as they are."""
    folder, slash, name = path.rpartition("/")
    if not is_temporary(name):
        return path
    return f"{folder}{slash}{name[1:-4].rpartition('.')[0]}"


def is_temporary(name: str) -> bool:
    """Whether a file, named without its folder, is the leftover of an unfinished write."""
    return name.startswith(".") and name.endswith(".tmp")


def _write_all(out: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) :]


def _abandon(out: BinaryIO) -> None:
    # Closing flushes the buffer, which may fail again for the same reason.
    with suppress(OSError, ValueError):
        out.close()


class _GuardedFile:
    def __init__(
        self,
        file: BinaryIO,
        refusal: Callable[[], str | None],
        note: Callable[[int], object] | None,
    ) -> None:
        self._file = file
        self._refusal = refusal
        self._note = note
        self.name = getattr(file, "name", str(file))

    def write(self, data: bytes) -> int:
        wrong = self._refusal()
        if wrong is not None:
            raise CheckpointError(f"{self.name}: {wrong}")
        count = self._file.write(data)
        if self._note is not None:
            self._note(count)
        return count


def guarded_file(
    file: BinaryIO,
    refusal: Callable[[], str | None],
    note: Callable[[int], object] | None = None,
) -> BinaryIO:
    """A file that is written as long as `refusal` returns None, and not what is wrong.

    `note` is told of the bytes that each call has written.
    """
    return cast("BinaryIO", _GuardedFile(file, refusal, note))


def sync_path(path: str) -> None:
    """Make a file's content durable, or links in a folder, where its file system can do that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a folder; nothing more can be done for their links.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def _sync_if_taken(final: str, error: OSError) -> None:
    # Whoever made the file may have ended before it synced the folder.
    if error.errno == errno.EEXIST:
        with suppress(OSError):
            sync_path(os.path.dirname(final))


@contextmanager
def _translate_errors(
    action: str, path: str, *, passed: tuple[type[OSError], ...] = (FileNotFoundError,)
) -> Iterator[None]:
    """Turn errors of the file system into ours, but for those that are passed on."""
    try:
        yield
    except passed:
        raise
    except OSError as error:
        _fail(action, path, error)


def _fail(action: str, path: str, error: OSError) -> NoReturn:
    if isinstance(error, PystateError):
        raise error
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EEXIST and action == "write":
        raise AlreadyPublishedError(f"{path} exists: somebody else published it first") from error
    if error.errno in FULL:
        full = NoSpaceError(
            f"the file system is full: could not {action} {path}; nothing was left behind, "
            "free space and run again"
        )
        full.errno = error.errno
        raise full from error
    if error.errno in _NO_LINKS and action == "write":
        reason += "; the checkpoint's file system must support hard links"
    raise CheckpointError(f"could not {action} {path}: {reason}") from error
