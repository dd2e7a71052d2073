"""Copies of objects on a local disk, of which some parts are there.

An object of a store is a sparse file here, in *extents* that are fetched as they are read. Behind
its bytes the file has a byte of each extent, which all processes map. So an object is opened
without a transfer, and what is read again is read from the disk. What this host has written itself
is here as a whole.

The folder is a cache: it may be removed at any time, and nothing in it is durable. It is freed with
whatever it lies in.

Thread safety: an `ObjectCache`, and an open object, may be used by any thread, and a folder by any
processes of a host. An `ObjectScan` belongs to one thread at a time.

Invariants
----------
1. An extent is said to be here once all of its bytes are. Before its bytes go it is said to be
   gone, and its state is another one when it comes again: whoever reads it, and then sees the state
   that it saw before, has read what was fetched.
2. A file is removed only while nobody has it open: each who has it open holds its lock.
3. What is here takes no more of the disk than `most_bytes`, and what processes fetch between two
   looks at that; extents leave that were not read for longest. Files that are being written count,
   and stay.
4. What a killed process has left unfinished is removed at the next look.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import TracebackType
from typing import BinaryIO, NamedTuple, cast
from weakref import WeakValueDictionary, finalize

from pystate._core import core
from pystate.checkpoint.object_storage import ObjectStorage, RangedFile
from pystate.checkpoint.storage import FULL, CheckpointStorage, is_temporary
from pystate.errors import CheckpointError, CorruptFileError
from pystate.redaction import logger

_LOG = logger("pystate.checkpoint.object_cache")

#: Small, since of what leads to rows little lies at many places of a file.
EXTENT_BYTES = 16 << 10
#: What is fetched for a row: as much as comes in about the time that a request takes.
GROUP_BYTES = 256 << 10
_GROUP = GROUP_BYTES // EXTENT_BYTES
#: Of what is read from end to end, that much is asked for at once, and is not kept: at least, and
#: once a scan has gone on for a while.
_LEAST_WINDOW_BYTES = 1 << 20
#: Of what is here already, that much is read at first.
_LEAST_HERE_BYTES = 4 * EXTENT_BYTES
#: Requests of `bring_all` that a process sends at a time, and the most bytes of each.
REQUESTS, REQUEST_BYTES = 32, 1 << 20
#: So much comes between two looks at how much there is.
_LOOK_BYTES = 64 << 20
#: Where the states of extents begin: a multiple of the pages of all processors.
_ALIGN = 65536
_ALIGNED = _ALIGN // EXTENT_BYTES
_HERE, _USED = core.EXTENT_HERE, core.EXTENT_USED
_TIME, _ONCE_MORE = 0xFC, 4
_BUT_USED = bytes(state & ~_USED for state in range(256))
_SUFFIX = ".object"
#: What Python's `os` does not have, of the system's fcntl.h and falloc.h.
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


class CopyError(CheckpointError):
    """The local disk does not take what is fetched."""


class MissingObjectError(CheckpointError):
    """The store does not have an object that a manifest names.

    Attributes
    ----------
    path : str
        Its name in the storage.
    """

    path = ""


class ObjectFile(NamedTuple):
    """An object that is read by way of a cache."""

    cache: ObjectCache
    path: str
    """Its name in the storage."""
    size_bytes: int

    @property
    def local_path(self) -> str:
        """Where the copy is."""
        return self.cache.local_path(self.path)

    def open(self) -> CachedObject:
        """Open it; nothing is fetched."""
        return self.cache.open(self.path, self.size_bytes)


class ObjectCache:
    """The copies of a storage's objects in a folder, which is made at the first use.

    Parameters
    ----------
    storage : ObjectStorage
    folder : str
        Of this user alone, and of this storage.
    most_bytes : int
        How much of the disk they may take; 0: half of what would be free without them.
    disk : tuple of str
        Whose disk that is, and where the user names another one, for messages.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        folder: str,
        most_bytes: int = 0,
        disk: tuple[str, str] = ("the executor's disk", "spark.local.dir"),
    ) -> None:
        self.storage = storage
        self.folder = folder
        self.most_bytes = most_bytes
        self._disk = disk
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[str, CachedObject] = WeakValueDictionary()
        self._hand = ""
        #: Whether the file system can free parts of files; if not, only whole ones leave.
        self._frees = True
        self._came = self._look_bytes  # so that it is looked at what is there

    def local_path(self, path: str) -> str:
        """Where the copy of an object is."""
        name = hashlib.sha256(f"{self.storage.uri}\0{path}".encode()).hexdigest()[:32]
        return os.path.join(self.folder, name + _SUFFIX)

    def open(self, path: str, size_bytes: int) -> CachedObject:
        """Open an object's copy, which all threads share.

        `CopyError`: the folder does not take files.
        """
        with self._lock:
            opened = self._open.get(path)
            if opened is None or not opened.is_in_place():
                with self.on_disk():
                    os.makedirs(self.folder, mode=0o700, exist_ok=True)
                    opened = CachedObject(self, path, size_bytes)
                self._open[path] = opened
        return opened

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """As `ObjectStorage.create`; what is written stays here, too."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            local = self._new_file()
        except OSError as error:
            _LOG.warning("%s is not kept on the local disk: %s", path, error)
            with self.storage.create(path) as out:
                yield out
            return
        try:
            with local:
                with self.storage.create(path, local) as out:
                    yield out
                with suppress(OSError):
                    self._keep(local, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(local.name)

    def _new_file(self) -> BinaryIO:
        local = open(os.path.join(self.folder, f".{uuid.uuid4().hex}.tmp"), "x+b")  # noqa: SIM115
        fcntl.flock(local.fileno(), fcntl.LOCK_SH)
        return local

    def _keep(self, local: BinaryIO, path: str) -> None:
        size = local.seek(0, os.SEEK_END)
        local.flush()
        at, extents = _layout(size)
        os.ftruncate(local.fileno(), at + extents)
        os.pwrite(local.fileno(), bytes([_HERE | _USED]) * extents, at)
        os.replace(local.name, self.local_path(path))
        self.came(size)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove copies that nobody has open."""
        for path in paths:
            with suppress(OSError), _locked(self.local_path(path)) as (_, alone):
                if alone:
                    os.unlink(self.local_path(path))

    @contextmanager
    def on_disk(self) -> Iterator[None]:
        """Around what uses the folder: raise `CopyError` if it does not take it.

        The error of a full file system would be taken for one of the table's, which then moved.
        """
        try:
            yield
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            what = "there is no room" if error.errno in FULL else f"{error.strerror}"
            raise CopyError(
                f"{what} on {self._disk[0]}, in {self.folder}, where what is read of the object "
                f"store is kept: free space, or name another disk in {self._disk[1]}"
            ) from error

    # ---- how much there is ---------------------------------------------------------------------

    @property
    def _look_bytes(self) -> int:
        return min(_LOOK_BYTES, self.most_bytes // 16) if self.most_bytes else _LOOK_BYTES

    def came(self, size_bytes: int) -> None:
        """Note that so much was fetched, or written."""
        with self._lock:
            self._came += size_bytes
            if self._came < self._look_bytes:
                return
            self._came = 0
        self.trim()

    @property
    def used_bytes(self) -> int:
        """How much of the disk the copies take."""
        return sum(used for _, used in self._files())

    def _files(self) -> list[tuple[str, int]]:
        found = []
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat().st_blocks * 512))
        return sorted(found)

    def trim(self, wanted_bytes: int = 0) -> int:
        """Let extents leave until there is room for so many bytes; return how many left.

        Another process that does this already is left alone.
        """
        with suppress(OSError), _locked(os.path.join(self.folder, "lock"), make=True) as (_, alone):
            if alone:
                return self._trim(wanted_bytes)
        return 0

    def _trim(self, wanted_bytes: int) -> int:
        files = self._files()
        for name, _ in files:
            if is_temporary(name):
                self._remove_left(os.path.join(self.folder, name))
        used, most = sum(size for _, size in files), self.most_bytes
        if not most:
            disk = os.statvfs(self.folder)
            most = (disk.f_bavail * disk.f_frsize + used) // 2
        excess = max(used - most, wanted_bytes)
        if excess <= 0:
            return 0
        # Some more, so that it is not soon to be done again.
        excess += most // 8 if used > most else 0
        names = [name for name, _ in files if name.endswith(_SUFFIX)]
        ahead = [name for name in names if name > self._hand]
        freed = 0
        # In the first round those leave that were not read since the last one.
        for name in 2 * (ahead + names[: len(names) - len(ahead)]):
            with suppress(OSError):
                freed += self._pass_by(os.path.join(self.folder, name), excess - freed)
            self._hand = name
            if freed >= excess:
                break
        return freed

    def _pass_by(self, path: str, most: int) -> int:
        """Let extents of a file leave that were not read since the clock's hand came last."""
        freed = 0
        with _locked(path) as (descriptor, alone):
            status = os.fstat(descriptor)
            end = _states_at(status.st_size)
            extents = status.st_size - end
            if not extents:
                return 0  # it is being made
            with mmap.mmap(descriptor, extents, offset=end) as states:
                unused = not any(state & _USED for state in states[:])
                for at in range(extents):
                    if not states[at] & _HERE or freed >= most:
                        continue
                    if states[at] & _USED or not self._frees:
                        states[at] &= ~_USED
                        continue
                    states[at] = _gone(states[at])
                    freed += self._free(descriptor, at * EXTENT_BYTES, end)
                is_empty = not any(state & _HERE for state in states[:])
                if alone and (is_empty or (unused and not self._frees)):
                    os.unlink(path)
                    freed += 0 if is_empty else status.st_blocks * 512
        return freed

    def _free(self, descriptor: int, start: int, end: int) -> int:
        size = min(EXTENT_BYTES, end - start)
        try:
            _free_range(descriptor, start, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            self._frees = False
            return 0
        return size

    def _remove_left(self, path: str) -> None:
        with suppress(OSError), _locked(path) as (_, alone):
            if alone:
                os.unlink(path)


class CachedObject:
    """An open copy of an object; it is closed when nothing has it any more.

    Attributes
    ----------
    name : str
        The object's URL.
    path : str
        Of the copy.
    size_bytes, extent_bytes : int
        Of the object, and of each extent but the last one.
    states : mmap
        A byte of each extent.
    """

    extent_bytes = EXTENT_BYTES

    def __init__(self, cache: ObjectCache, path: str, size_bytes: int) -> None:
        self.name = f"{cache.storage.uri}/{path}"
        self.path = cache.local_path(path)
        self.size_bytes = size_bytes
        self._cache = cache
        self._object = path
        self._lock = threading.Lock()
        self._coming: dict[int, threading.Event] = {}
        at, extents = _layout(size_bytes)
        self._descriptor = _opened(self.path, at, extents)
        finalize(self, os.close, self._descriptor)
        self._id = os.fstat(self._descriptor)
        self.states = mmap.mmap(self._descriptor, extents, offset=at)

    @property
    def own_path(self) -> str:
        """A path that leads this process to the copy, also where it has no name any more."""
        return f"/proc/self/fd/{self._descriptor}"

    def is_in_place(self) -> bool:
        """Whether the copy that is open has its name still."""
        try:
            return os.path.samestat(os.stat(self.path), self._id)
        except OSError:
            return False

    def bring(self, first: int, last: int, widely: bool = False) -> None:
        """Fetch those of some extents, both inclusive, that are not here.

        `widely`: and what lies around them, as it comes with the same request.

        `MissingObjectError`, `CopyError`; `CheckpointError`: the store does not give them;
        `CorruptFileError`: the object has another size than it was written with.
        """
        if widely:
            first -= first % _GROUP
            last = min(last - last % _GROUP + _GROUP, len(self.states)) - 1
        mine, others = [], []
        done = threading.Event()
        with self._lock:
            for at in range(first, last + 1):
                if at in self._coming:
                    others.append(self._coming[at])
                elif not self.states[at] & _HERE:
                    mine.append(at)
                    self._coming[at] = done
        try:
            if mine:
                self._fetch(mine)
        finally:
            with self._lock:
                for at in mine:
                    del self._coming[at]
            done.set()
        for other in others:
            other.wait()

    def _fetch(self, extents: list[int]) -> None:
        # What lies between them is fetched, too: it costs less than another request.
        start = extents[0] * EXTENT_BYTES
        data = self.fetched(start, min((extents[-1] + 1) * EXTENT_BYTES, self.size_bytes))
        self._write(data, start)
        with self._lock:
            for at in extents:
                self.states[at] = self.states[at] & _TIME | _HERE | _USED
        self._cache.came(len(data))

    def _write(self, data: memoryview, start: int) -> None:
        with self._cache.on_disk():
            try:
                self._write_to(data, start)
            except OSError as error:
                # Whatever else fills the disk, some of what is here may go.
                if error.errno not in FULL or not self._cache.trim(64 * EXTENT_BYTES):
                    raise
                self._write_to(data, start)

    def _write_to(self, data: memoryview, start: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], start + done)

    def fetched(self, start: int, end: int) -> memoryview:
        """Bytes of the object, from the store; errors are those of `bring`."""
        storage = self._cache.storage
        try:
            return storage.read_range(self._object, start, end)
        except FileNotFoundError as error:
            missing = MissingObjectError(
                f"{self.name} is missing, and a manifest names it: bring it back"
            )
            missing.path = self._object
            raise missing from error
        except CheckpointError:
            actual = None
            with suppress(CheckpointError):
                actual = storage.size_bytes(self._object)
            if actual is None or actual == self.size_bytes:
                raise
            raise CorruptFileError(
                f"{self.name}: corrupt at byte {min(actual, self.size_bytes)}: it has {actual} "
                f"bytes, and was written with {self.size_bytes}"
            ) from None

    def drop(self, first: int, last: int) -> None:
        """Forget extents, both inclusive: what is here of them is not what was written."""
        _LOG.warning("%s: extents %d to %d are fetched once more", self.name, first, last)
        with self._lock:
            for at in range(first, last + 1):
                self.states[at] = _gone(self.states[at])

    def drop_all(self) -> None:
        """Forget all extents, where it is not known which are damaged."""
        self.drop(0, len(self.states) - 1)

    def here(self, first: int, end: int) -> bytes | None:
        """What is here of some extents; None if one of them is not."""
        before = self.states[first:end].translate(_BUT_USED)
        if not all(state & _HERE for state in before):
            return None
        start = first * EXTENT_BYTES
        size = min(end * EXTENT_BYTES, self.size_bytes) - start
        with self._cache.on_disk():
            data = os.pread(self._descriptor, size, start)
        is_whole = len(data) == size and self.states[first:end].translate(_BUT_USED) == before
        return data if is_whole else None

    def lacks(self, first: int, last: int) -> bool:
        """Whether one of some extents, both inclusive, is not here."""
        return not all(state & _HERE for state in self.states[first : last + 1])

    def alike(self, first: int, most: int) -> int:
        """The end of those extents from one on that are here as it is, or as it are not."""
        states = self.states[first : first + most]
        count = 1
        while count < len(states) and not (states[count] ^ states[0]) & _HERE:
            count += 1
        return first + count

    @contextmanager
    def scanned(self) -> Iterator[BinaryIO]:
        """Open it as a binary file.

        After a `CorruptFileError` from inside the block what is here counts no more.
        """
        try:
            yield cast("BinaryIO", ObjectScan(self))
        except CorruptFileError:
            self.drop_all()
            raise


class ObjectScan(RangedFile):
    """A binary file that is read mostly from its beginning to its end.

    What is read at some place alone is kept in the cache, and what is read on from there is not.
    """

    #: Whether anything is kept.
    _keeps = True

    def __init__(self, file: CachedObject) -> None:
        super().__init__(file.name, file.size_bytes)
        self._file = file
        self._ahead = _LEAST_HERE_BYTES

    def _move(self, goes_on: bool) -> None:
        """See `RangedFile._move`."""
        self._ahead = min(2 * self._ahead, self.most_bytes) if goes_on else _LEAST_HERE_BYTES
        first = self._at // EXTENT_BYTES
        self._start = first * EXTENT_BYTES
        end = self._file.alike(first, max(1, self._ahead // EXTENT_BYTES))
        data = self._file.here(first, end)
        while data is None and self._keeps and not goes_on:
            self._file.bring(first, first)
            end = first + 1
            data = self._file.here(first, end)
        if data is not None:
            self._window = memoryview(data)
        else:
            least = min(_LEAST_WINDOW_BYTES, self.most_bytes)
            if self._ahead < least:
                end = self._file.alike(first, max(1, least // EXTENT_BYTES))
            stop = min(end * EXTENT_BYTES, self._file.size_bytes)
            self._window = self._file.fetched(self._start, stop)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS, "pystate-request")


os.register_at_fork(after_in_child=_threads.cache_clear)


def bring_all(parts: Iterable[tuple[CachedObject, int, int]]) -> None:
    """Fetch those of some extents of objects, both inclusive, that are not here.

    Each part is a request, of which many are sent at a time. Errors are those of `bring`.
    """
    wanted = [part for part in parts if part[0].lacks(*part[1:])]
    if len(wanted) == 1:
        [(file, first, last)] = wanted
        file.bring(first, last)
        return
    sent = [_threads().submit(file.bring, first, last) for file, first, last in wanted]
    try:
        for one in wait(sent, return_when=FIRST_EXCEPTION).done:
            one.result()
    finally:
        for one in sent:
            one.cancel()


class TwoTiers:
    """A storage of which what is created is on the local disk, too, and read from there."""

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> object:
        return getattr(self._cache.storage, name)

    def create(self, path: str) -> object:
        """See `CheckpointStorage.create`."""
        return self._cache.create(path)

    def open_read(self, path: str) -> BinaryIO:
        """See `CheckpointStorage.open_read`; what is not here is fetched, and not kept."""
        local = self._cache.local_path(path)
        if not os.path.exists(local):
            return self._cache.storage.open_read(path)
        size = self._cache.storage.size_bytes(path)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        try:
            return cast("BinaryIO", ScannedCopy(self._cache.open(path, size)))
        except CopyError as error:
            _LOG.warning("%s is read from the store: %s", path, error)
            return self._cache.storage.open_read(path)


def two_tiers(cache: ObjectCache) -> CheckpointStorage:
    """A storage that keeps what it creates in a cache, too, and reads what is there."""
    return cast("CheckpointStorage", TwoTiers(cache))


class ScannedCopy(ObjectScan):
    """A file that is read once more, from end to end: nothing is fetched to stay.

    If it is left by a `CorruptFileError` what is here of it counts no more.
    """

    _keeps = False

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(value, CorruptFileError):
            self._file.drop_all()
        super().__exit__(type, value, traceback)


def _layout(size_bytes: int) -> tuple[int, int]:
    """Where a copy's states are, and how many."""
    extents = max(1, -(-size_bytes // EXTENT_BYTES))
    return -(-extents // _ALIGNED) * _ALIGN, extents


def _states_at(size_bytes: int) -> int:
    """Where a copy's states are, by its own size."""
    return -(-size_bytes // (_ALIGN + _ALIGNED)) * _ALIGN if size_bytes else 0


def _free_range(descriptor: int, start: int, size: int) -> None:
    """Free what a part of a file takes on the disk; it reads as zeros then."""
    mode = _KEEP_SIZE | _PUNCH_HOLE
    if _libc.fallocate(descriptor, mode, ctypes.c_int64(start), ctypes.c_int64(size)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _gone(state: int) -> int:
    return (state & _TIME) + _ONCE_MORE & _TIME


def _opened(path: str, at: int, extents: int) -> int:
    """Open a copy, or make it; the lock says that it is open."""
    size = at + extents
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            status = os.fstat(descriptor)
            if status.st_nlink and status.st_size in (0, size):
                # The states are written in mapped memory, where a full disk ends the process.
                os.posix_fallocate(descriptor, at, extents)
                return descriptor
            if status.st_nlink:
                os.unlink(path)  # of another object of that name
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def _locked(path: str, *, make: bool = False) -> Iterator[tuple[int, bool]]:
    """Open a file, and take its lock if nobody has it; yields whether that is so."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags | (os.O_CREAT if make else 0), 0o600)
    try:
        alone = False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        yield descriptor, alone
    finally:
        os.close(descriptor)
