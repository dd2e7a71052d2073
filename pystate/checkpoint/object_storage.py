"""Checkpoints in object stores, through the package obstore.

Thread safety: as for every storage, any number of threads and processes may use one at once; the
threads of a process share a client. The client's own threads are not in a forked child, which
therefore can use no object store if its parent has used one. An `ObjectReader` belongs to one
thread at a time.

Invariants
----------
1. An object appears under its final name complete, or not at all: stores have no partial objects.
2. `publish`, `create`, `share` and `mark` are conditional writes, which the store decides: of two
   writers of one name exactly one succeeds. A store that ignores the condition is refused at the
   first `publish` of a process.
3. A request whose connection fails, before or after the store has handled it, or in the middle of
   its answer, is sent again for up to a minute (`_with_retries`). The answer may have been that it
   was done: a second write, delete or listing does no harm, and of a conditional write it is found
   out whether what exists is our own. Each small object names its writer; a copy is compared with
   its origin, byte by byte, and nobody else writes the same, since state files have random ids.
4. What is larger than `_ONE_PUT` is uploaded in pieces, which no store makes conditional, under a
   temporary name. It is then copied to its final name inside the store, which is conditional.
5. A folder in which marks are made is an object in it. `mark` writes first and then looks for that
   object; `remove_folder` removes the object first and then looks for marks. Stores list what was
   written before. So a mark either sees that its folder is gone, and takes itself back, or the
   removal sees the mark.
6. Of a file that is read at most one window is in memory, of `RangedFile.most_bytes`. Who reads on
   where the last window has ended gets a larger one each time: a scan takes few requests, and jumps
   waste little.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

from pystate.base.installation import extra
from pystate.checkpoint.storage import (
    FULL,
    CheckpointStorage,
    FileEntry,
    checked_path,
    is_temporary,
)
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    InvalidArgumentError,
    MissingPackageError,
    NoSpaceError,
)
from pystate.redaction import has_credentials, logger

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from typing_extensions import Buffer

_LOG = logger("pystate.checkpoint.object_storage")
_Entries = list[FileEntry]  # `list` is a method's name inside the class below

#: The schemes of URLs, and the extra that installs what each needs.
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
#: Where credentials are taken from.
ACCESS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS",
    "azure": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_RETRIES = 8
_RETRY_TIMEOUT = timedelta(seconds=60)
#: How much an `ObjectReader` fetches at once, at least and at most.
_LEAST, _MOST = 1 << 20, 4 << 20
#: Up to this size an object is written in one request, from memory.
_ONE_PUT = 16 << 20
_PIECE = 8 << 20
_PIECES_AT_ONCE = 4
#: What S3 copies in one request.
_LARGEST = 5 << 30
#: The metadata that names an object's writer. Azure takes no hyphen, and proxies no underscore.
_WRITER = "pystatewriter"
#: The object that stands for a folder; listings take it for a leftover of an unfinished write.
_FOLDER = ".folder.tmp"
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>", re.I)
_QUERY = re.compile(r"\?\S*")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_DENIED_SIGNS = (
    *("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "Forbidden"),
    *("Unauthorized", "AuthenticationFailed", "InvalidToken", "InvalidClientTokenId"),
)
#: For how long requests are repeated, and how long is waited before they are.
_PATIENCE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
#: What errors of the network say, and codes of a store that cannot answer now.
_NETWORK = ("HTTP error", "response body", "error decoding", "onnection", "timed out")
_BUSY = ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "ServerBusy")
_COMPARE_BYTES = 8 << 20
_proved: set[str] = set()
_forked = False
Result = TypeVar("Result")


class Place(NamedTuple):
    """A URL, taken apart."""

    scheme: str
    root: str
    """The URL of the bucket or container."""
    prefix: str
    """The path in it: empty, or with a slash at its end."""


def refuse_credentials(location: str, what: str) -> None:
    """Refuse a location that is more than a place; the message has only its scheme."""
    scheme, colon, _ = location.partition(":")
    is_url = bool(colon) and scheme.isascii() and scheme.replace("+", "").isalnum()
    if has_credentials(location):
        shown = f"{scheme.lower()}://..." if is_url else "(a connection string)"
        access = ACCESS.get(SCHEMES.get(scheme.lower(), ""))
        raise InvalidArgumentError(
            f"{what} {shown}: credentials are taken from the environment"
            f"{f' ({access})' if access else ''}, not from the URL"
        )
    try:
        urlsplit(location)
    except ValueError:
        # Its message may quote any part of the URL.
        if is_url:
            raise InvalidArgumentError(f"{what} {scheme}:...: that is no URL") from None


def parse_url(url: str) -> Place:
    """Take a URL apart; `InvalidArgumentError` if it is none of a prefix in an object store."""
    refuse_credentials(url, "checkpoint")
    parts = urlsplit(url)
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.query or parts.fragment:
        raise InvalidArgumentError(f"checkpoint {shown!r}: a URL here has no ? and no #")
    if not parts.netloc:
        raise InvalidArgumentError(
            f"checkpoint {url!r} names no bucket: write {parts.scheme}://BUCKET/PREFIX"
        )
    prefix = parts.path.strip("/")
    if prefix:
        try:
            checked_path(prefix)
        except InvalidArgumentError:
            raise InvalidArgumentError(
                f"checkpoint {shown!r}: the path has an empty part, or . or .."
            ) from None
    return Place(scheme, f"{scheme}://{parts.netloc}", f"{prefix}/" if prefix else "")


def package(place: Place) -> Any:
    """Return the package obstore; `MissingPackageError` if it is not installed."""
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise MissingPackageError(
            f"a checkpoint in {place.root} needs obstore, here and on the executors ({error}): "
            f"{extra(SCHEMES[place.scheme])}"
        ) from error


def _environment() -> tuple[tuple[str, str], ...]:
    """What a client depends on."""
    ours = ("AWS_", "GOOGLE_", "AZURE_")
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(ours)))


def client_of(place: Place) -> ObjectStore:
    """Return a client, which the tasks of one worker share.

    `CheckpointError` if this process was forked from one that had used an object store.
    """
    if _forked:
        raise CheckpointError(
            f"{place.root}: this process was forked from one that had used an object store, which "
            "does not work: start it by spawn, not by fork"
        )
    return _client_of(place, _environment())


@lru_cache(maxsize=16)
def _client_of(place: Place, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    store = importlib.import_module("obstore.store")
    options: dict[str, Any] = {}
    if place.scheme == "s3" and "AWS_COPY_IF_NOT_EXISTS" not in dict(environment):
        # S3's own copy has no condition, but the end of one in pieces has.
        options["copy_if_not_exists"] = "multipart"
    client: ObjectStore = store.from_url(
        place.root,
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
        **options,
    )
    return client


def _note_fork() -> None:
    # The client's threads are not in the child, which would wait for them for ever.
    global _forked
    _forked = _forked or _client_of.cache_info().currsize > 0


os.register_at_fork(after_in_child=_note_fork)


class RangedFile(io.RawIOBase):
    """A binary file of which `_piece` brings what is read.

    Attributes
    ----------
    most_bytes : int
        Of it that are in memory at a time.
    """

    def __init__(self, name: str, size_bytes: int) -> None:
        self.name = name
        self.most_bytes = _MOST
        self._size = size_bytes
        self._at = 0
        self._window = memoryview(b"")
        self._start = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position; nothing is fetched."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: negative position {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer, up to the end of the file."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size - self._at))
        done = 0
        while done < wanted:
            piece = self._piece(wanted - done)
            view[done : done + len(piece)] = piece
            done += len(piece)
            self._at += len(piece)
        return done

    def readall(self) -> bytes:
        """Return the rest of the file."""
        return self.read(max(0, self._size - self._at)) or b""

    def _piece(self, most: int) -> memoryview:
        """Up to `most` bytes from the position on, and at least one."""
        inside = self._at - self._start
        if not 0 <= inside < len(self._window):
            goes_on = len(self._window) > 0 and inside == len(self._window)
            self._window = memoryview(b"")
            self._move(goes_on)
            inside = self._at - self._start
        return self._window[inside : inside + most]

    def _move(self, goes_on: bool) -> None:
        """Bring a window with the position; `goes_on`: it follows on the last one."""
        raise NotImplementedError


class ObjectReader(RangedFile):
    """A file that is read by ranges: `fetch` returns the bytes between two offsets."""

    def __init__(self, name: str, size_bytes: int, fetch: Callable[[int, int], memoryview]) -> None:
        super().__init__(name, size_bytes)
        self._fetch = fetch
        self._ahead = _LEAST

    def _move(self, goes_on: bool) -> None:
        """See `RangedFile._move`."""
        least = min(_LEAST, self.most_bytes)
        self._ahead = min(2 * self._ahead, self.most_bytes) if goes_on else least
        # Behind the footer is nothing to read ahead: what is before it is read next.
        self._start = max(0, min(self._at, self._size - self._ahead))
        end = min(self._size, self._start + self._ahead)
        window = self._fetch(self._start, end)
        if len(window) != end - self._start:
            raise OSError(f"{self.name}: the store returned too few bytes at {self._start}")
        self._window = window


class _TransientError(CheckpointError):
    """A request failed on its way, or the store could not answer: it may be sent again."""


class ObjectStorage:
    """A checkpoint in an object store, as `open_storage` takes its URL.

    A prefix is taken literally: ``%20`` is no space. Credentials, region and endpoint come from the
    environment of each process, by the names that obstore reads (``AWS_ACCESS_KEY_ID``,
    ``AWS_ENDPOINT_URL``, ...); none is part of an instance, of its pickle, or of a message. A file
    has at most 5 GiB. Instances compare equal by URL.
    """

    #: A touch is two requests.
    touch_every_s = 5.0

    def __init__(self, url: str) -> None:
        self._place = parse_url(url)
        package(self._place)

    @property
    def uri(self) -> str:
        """The URL of the root, without a slash at its end."""
        return f"{self._place.root}/{self._place.prefix}".rstrip("/")

    def __repr__(self) -> str:
        return f"ObjectStorage({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStorage) and other._place == self._place

    def __hash__(self) -> int:
        return hash(self._place)

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[str]]:
        return ObjectStorage, (self.uri,)

    # ---- writing -------------------------------------------------------------------------------

    def publish(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.publish`."""
        key = self._key(path)
        writer = self._put_new(key, data)
        if self._place.root not in _proved:
            self._prove(key, data, writer)
            _proved.add(self._place.root)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """See `CheckpointStorage.replace`."""
        key = self._key(path)
        self._with_retries(
            "write",
            key,
            lambda: self._obstore.put(self._client, key, data, use_multipart=False),
        )

    @contextmanager
    def create(self, path: str, spool: BinaryIO | None = None) -> Iterator[BinaryIO]:
        """See `CheckpointStorage.create`; it is written to a temporary file before it is sent.

        That is `spool`, if one is given, which stays open then.
        """
        key = self._key(path)
        with ExitStack() as stack:
            out = spool
            if out is None:
                made = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=_ONE_PUT))
                out = cast(BinaryIO, made)
            try:
                yield out
                size = out.seek(0, os.SEEK_END)
                out.seek(0)
                data = out.read() if size <= _ONE_PUT else None
            except OSError as error:
                if error.errno not in FULL or isinstance(error, NoSpaceError):
                    raise
                folder = tempfile.gettempdir() if spool is None else os.path.dirname(spool.name)
                full = NoSpaceError(
                    f"{folder} is full, where {self._url(key)} is kept until it is "
                    "sent; nothing was left behind, free space, or name another folder in "
                    f"{'TMPDIR' if spool is None else 'spark.local.dir'}"
                )
                full.errno = error.errno
                raise full from error
            if data is not None:
                self._put_new(key, data)
            else:
                self._put_large(key, out, size)

    def share(self, path: str, other: CheckpointStorage, other_path: str) -> bool:
        """See `CheckpointStorage.share`; it is a copy that the store makes."""
        if not isinstance(other, ObjectStorage) or other._place.root != self._place.root:
            return False
        self._copy_new(other._key(other_path), self._key(path))
        return True

    def delete(self, path: str) -> bool:
        """See `CheckpointStorage.delete`."""
        key = self._key(path)
        if self.size_bytes(path) is None:
            return False  # some stores do not say that there was nothing to delete
        self._delete(key)
        return True

    def sync_folder(self, path: str) -> None:
        """Do nothing: what an object store has answered is durable."""

    # ---- reading -------------------------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        """See `CheckpointStorage.read_bytes`."""
        key = self._key(path)
        return self._with_retries(
            "read", key, lambda: bytes(self._obstore.get(self._client, key).bytes())
        )

    def open_read(self, path: str) -> BinaryIO:
        """See `CheckpointStorage.open_read`; pieces are fetched as they are read."""
        key = self._key(path)
        size = self.size_bytes(path)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", self._url(key))

        return cast(
            BinaryIO,
            ObjectReader(self._url(key), size, lambda start, end: self._range(key, start, end)),
        )

    def read_range(self, path: str, start: int, end: int) -> memoryview:
        """Read the bytes between two offsets; `FileNotFoundError` if there is no such object."""
        return self._range(self._key(path), start, end)

    def list(self, prefix: str, *, temporary: bool = False) -> _Entries:
        """See `CheckpointStorage.list`."""
        entries = self._list_folder(prefix)
        return [e for e in entries if is_temporary(e.path.rpartition("/")[2]) == temporary]

    def exists(self, path: str) -> bool:
        """See `CheckpointStorage.exists`."""
        return self.size_bytes(path) is not None

    def size_bytes(self, path: str) -> int | None:
        """See `CheckpointStorage.size_bytes`."""
        return self._size(self._key(path))

    def local_path(self, path: str) -> None:
        """Return None: an object has no path."""
        checked_path(path)

    # ---- marks ---------------------------------------------------------------------------------

    def make_folder(self, path: str) -> None:
        """See `CheckpointStorage.make_folder`."""
        self.replace(f"{path}/{_FOLDER}", b"")

    def remove_folder(self, path: str) -> None:
        """See `CheckpointStorage.remove_folder`."""
        try:
            if self.exists(f"{path}/{_FOLDER}"):
                self._delete(self._key(f"{path}/{_FOLDER}"))  # first: see the invariants
            keys = [self._key(entry.path) for entry in self._list_folder(path)]
            if keys:
                with suppress(FileNotFoundError):
                    self._with_retries(
                        "delete", keys[0], lambda: self._obstore.delete(self._client, keys)
                    )
        except CheckpointError as error:
            _LOG.warning("%s; orphan collection tries again", error)

    def mark(self, path: str, data: bytes) -> bytes | None:
        """See `CheckpointStorage.mark`."""
        key, folder = self._key(path), path.rpartition("/")[0]
        content = None
        try:
            self._put_new(key, data)
        except AlreadyPublishedError:
            content = self.read_bytes(path)
        if not self.exists(f"{folder}/{_FOLDER}"):
            if content is None:
                self._delete(key)
            raise FileNotFoundError(errno.ENOENT, "the folder was removed", self._url(key))
        return content

    def touch(self, path: str) -> bool:
        """See `CheckpointStorage.touch`; it is for small files: the object is written once more."""
        key = self._key(path)

        def touch() -> bool:
            answer = self._obstore.get(self._client, key)
            version = {k: v for k in ("e_tag", "version") if (v := answer.meta.get(k))}
            attributes, data = answer.attributes, bytes(answer.bytes())
            try:
                # Only over what was read: an object that was deleted meanwhile stays away.
                self._obstore.put(
                    self._client,
                    key,
                    data,
                    mode=cast(Any, version),
                    attributes=attributes,
                    use_multipart=False,
                )
            except self._obstore.exceptions.PreconditionError:
                return self.exists(path)
            return True

        try:
            return self._with_retries("touch", key, touch)
        except FileNotFoundError:
            return False

    # ---- requests ------------------------------------------------------------------------------

    @property
    def _obstore(self) -> Any:
        return package(self._place)

    @property
    def _client(self) -> ObjectStore:
        try:
            return client_of(self._place)
        except (self._obstore.exceptions.BaseError, ValueError) as error:
            self._fail("open", "", error)

    def _key(self, path: str) -> str:
        return f"{self._place.prefix}{checked_path(path)}"

    def _url(self, key: str) -> str:
        return f"{self._place.root}/{key}".rstrip("/")

    def _with_retries(self, action: str, key: str, request: Callable[[], Result]) -> Result:
        """Send a request, and send it again while connections fail; errors are translated."""
        until_s, pause_s = time.monotonic() + _PATIENCE_S, _FIRST_PAUSE_S
        while True:
            try:
                with self._translate_errors(action, key):
                    return request()
            except _TransientError as error:
                if time.monotonic() + pause_s >= until_s:
                    raise CheckpointError(str(error)) from None
                _LOG.info("%s; it is tried again", error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _put_new(self, key: str, data: bytes) -> str:
        """Write a new object in one request; return the name of its writer."""
        writer = uuid.uuid4().hex
        try:
            self._with_retries("write", key, lambda: self._put_as(writer, key, data))
        except AlreadyPublishedError:
            # It may be ours: of a request that is repeated the first answer was lost.
            if self._writer_of(key) != writer:
                raise
        except CheckpointError:
            with suppress(CheckpointError):
                if self._writer_of(key) == writer:
                    return writer
            raise
        except FileNotFoundError as error:
            self._fail("write", key, error)
        return writer

    def _put_as(self, writer: str, key: str, data: bytes) -> None:
        self._obstore.put(
            self._client,
            key,
            data,
            mode="create",
            attributes={_WRITER: writer},
            use_multipart=False,
        )

    def _writer_of(self, key: str) -> str | None:
        def look() -> str | None:
            answer = self._obstore.get(self._client, key, options={"head": True})
            writer: str | None = answer.attributes.get(_WRITER)
            return writer

        with suppress(FileNotFoundError):
            return self._with_retries("look at", key, look)
        return None

    def _range(self, key: str, start: int, end: int) -> memoryview:
        """Fetch some bytes of an object."""

        def fetch() -> memoryview:
            data = memoryview(self._obstore.get_range(self._client, key, start=start, end=end))
            if len(data) != end - start:
                if (self._size(key) or 0) < end:
                    raise CheckpointError(f"{self._url(key)}: it ends before byte {end}")
                raise _TransientError(f"{self._url(key)}: the store returned too few bytes")
            return data

        return self._with_retries("read", key, fetch)

    def _prove(self, key: str, data: bytes, writer: str) -> None:
        """Make sure that the store honours conditions, by the same write once more."""
        try:
            self._with_retries("write", key, lambda: self._put_as(writer, key, data))
        except AlreadyPublishedError:
            return
        raise CheckpointError(
            f"{self._place.root} replaces an object that was to be written only if there was none "
            "(If-None-Match): two drivers could destroy each other's epochs; use a store that "
            "supports conditional writes"
        )

    def _put_large(self, key: str, source: BinaryIO, size: int) -> None:
        if size > _LARGEST:
            raise CheckpointError(
                f"{self._url(key)} would have {size} bytes, and a file in an object store has at "
                f"most {_LARGEST}: use a higher parallelism, so that each range has less state"
            )
        folder, slash, name = key.rpartition("/")
        temporary = f"{folder}{slash}.{name}.{uuid.uuid4().hex}.tmp"

        def upload() -> None:
            source.seek(0)
            try:
                with self._translate_errors("write", key):
                    self._obstore.put(
                        self._client,
                        temporary,
                        source,
                        use_multipart=True,
                        chunk_size=_PIECE,
                        max_concurrency=_PIECES_AT_ONCE,
                    )
            except FileNotFoundError:
                # As of a copy in pieces: it may have ended, and the answer was lost.
                if self._size(temporary) != size:
                    raise _TransientError(f"{self._url(key)}: the upload was ended") from None

        try:
            self._with_retries("write", key, upload)
            # The package repeats requests itself, and does not tell: what exists may be ours.
            self._copy_new(temporary, key, is_unsure=True)
        except FileNotFoundError as error:
            self._fail("write", key, error)
        finally:
            with suppress(CheckpointError):
                self._delete(temporary)

    def _copy_new(self, origin: str, key: str, *, is_unsure: bool = False) -> None:
        """Copy an object to a new name.

        If an answer was lost, or may have been (`is_unsure`), an object that is there already, and
        equal, is our copy.
        """

        def copy() -> None:
            nonlocal is_unsure
            try:
                with self._translate_errors("write", key):
                    self._obstore.copy(self._client, origin, key, overwrite=False)
            except _TransientError:
                is_unsure = True
                raise
            except (AlreadyPublishedError, FileNotFoundError):
                # A copy in pieces that is done says that there is none to be ended.
                if not is_unsure or not self._are_equal(origin, key):
                    raise

        self._with_retries("write", key, copy)

    def _are_equal(self, origin: str, key: str) -> bool:
        size = self._size(key)
        return (size is not None and size == self._size(origin)) and all(
            self._range(origin, start, end) == self._range(key, start, end)
            for start in range(0, size, _COMPARE_BYTES)
            for end in (min(start + _COMPARE_BYTES, size),)
        )

    def _size(self, key: str) -> int | None:
        try:
            return self._with_retries(
                "look at", key, lambda: int(self._obstore.head(self._client, key)["size"])
            )
        except FileNotFoundError:
            return None

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._with_retries("delete", key, lambda: self._obstore.delete(self._client, key))

    def _list_folder(self, folder: str) -> _Entries:
        key = self._key(folder) if folder else self._place.prefix.rstrip("/")
        skipped = len(self._place.prefix)

        def listing() -> _Entries:
            return [
                FileEntry(
                    meta["path"][skipped:],
                    int(meta["size"]),
                    int(meta["last_modified"].timestamp() * 1000),
                )
                for chunk in self._obstore.list(self._client, key or None, chunk_size=1000)
                for meta in chunk
                # Consoles and Hadoop make empty objects that stand for folders.
                if len(meta["path"]) > len(key)
            ]

        try:
            entries = self._with_retries("list", key, listing)
        except FileNotFoundError as error:
            self._fail("list", key, error)
        entries.sort()
        return entries

    # ---- errors --------------------------------------------------------------------------------

    @contextmanager
    def _translate_errors(self, action: str, key: str) -> Iterator[None]:
        """Turn the package's errors into ours: `FileNotFoundError` if there is no such object."""
        exceptions = self._obstore.exceptions
        try:
            yield
        except (exceptions.AlreadyExistsError, FileExistsError):
            raise AlreadyPublishedError(
                f"{self._url(key)} exists: somebody else published it first"
            ) from None
        except (exceptions.BaseError, OSError) as error:
            missing = isinstance(error, (exceptions.NotFoundError, FileNotFoundError))
            if missing and not _says(str(error), _NO_BUCKET):
                raise FileNotFoundError(errno.ENOENT, "no such object", self._url(key)) from None
            self._fail(action, key, error)

    def _fail(self, action: str, key: str, error: Exception) -> NoReturn:
        # The package's error is not the cause that is shown: it has requests with their signatures.
        if isinstance(error, CheckpointError):
            raise error
        text, extra = str(error), SCHEMES[self._place.scheme]
        where = f"could not {action} {self._url(key)}"
        if isinstance(error, FileNotFoundError) or _says(text, _NO_BUCKET):
            raise CheckpointError(
                f"{where}: there is no bucket or container {self._place.root}: create it, or "
                "correct the name"
            ) from None
        code = _CODE.search(text)
        reason = code[1] if code else _QUERY.sub("", (text.splitlines() or [""])[0])[:300].strip()
        if "builder error" in text or "scheme is not allowed" in text:
            raise CheckpointError(
                f"{where}: the endpoint is no https address: correct it, or allow http by "
                "AWS_ALLOW_HTTP=true in the environment of the driver and the executors"
            ) from None
        if isinstance(error, PermissionError) or _says(text, _DENIED_SIGNS) or "169.254." in text:
            raise CheckpointError(
                f"{where}: access is denied ({reason}): the driver and the executors take "
                f"credentials from the environment ({ACCESS[extra]})"
            ) from None
        is_passing = code[1] in _BUSY if code else _says(text, _NETWORK)
        raise (_TransientError if is_passing else CheckpointError)(
            f"{where}: {reason}; look at the endpoint, the region and the network"
        ) from None


def _says(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
