"""Epochs of a server's job, followed as they are published: server-sent events, read in a thread.

Thread safety: as `pystate.query.follow`.
"""

from __future__ import annotations

import base64
import http.client
import json
import queue
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from pystate.errors import NoSpaceError, PystateError, ServerError
from pystate.query.follow import EpochChanges, Follower
from pystate.query.lease import Lease

#: Epochs that have come and are not asked for yet.
_WAITING = 1
#: So much of an epoch's changes is in memory; all of them, if they are more, in a file.
_IN_MEMORY = 8 << 20


class Sent(Protocol):
    """An answer of a server that has begun."""

    @property
    def connection(self) -> http.client.HTTPConnection:
        """Its connection."""

    def lines(self) -> Iterator[bytes]:
        """Its lines, as they come."""

    def broken(self, error: Exception) -> ServerError:
        """The error where it has broken off."""

    def told(self, said: Mapping[str, Any]) -> Exception:
        """An error of which it tells."""


class RemoteChanges(EpochChanges):
    """What has changed in an epoch, as a server says."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.epoch, self.since = int(said["epoch"]), int(said["since"])
        self.uids, self.dropped = tuple(said["operators"]), tuple(said["dropped"])
        self.processing_time_ms = int(said["processing_time_ms"])
        self.published_ms = int(said["published_ms"])


class AskedChanges(RemoteChanges):
    """Changes that are asked for when they are read."""

    def __init__(self, said: Mapping[str, Any], ask: Callable[..., pa.RecordBatchReader]) -> None:
        super().__init__(said)
        self._ask = ask

    def schema(self, uid: str) -> pa.Schema:
        """The columns of an operator's batches."""
        return self._ask(uid, self.epoch, self.epoch, 0).schema

    def read(self, uid: str) -> pa.Table:
        """Read all changes of one operator."""
        return self._ask(uid, self.since, self.epoch).read_all()

    def _batches(self, uids: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        for uid in uids:
            for rows in self._ask(uid, self.since, self.epoch):
                yield uid, rows


class SentChanges(RemoteChanges):
    """Changes that have come, all of them."""

    def __init__(
        self, said: Mapping[str, Any], kept: _Kept, schema: Callable[[str, int], pa.Schema]
    ) -> None:
        super().__init__(said)
        self._kept, self._schema = kept, schema

    def schema(self, uid: str) -> pa.Schema:
        """The columns of an operator's batches."""
        for _, rows in self._kept.batches((uid,)):
            return rows.schema
        return self._schema(uid, self.epoch)

    def read(self, uid: str) -> pa.Table:
        """All changes of one operator."""
        return pa.Table.from_batches([rows for _, rows in self._batches((uid,))], self.schema(uid))

    def _batches(self, uids: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        return self._kept.batches(uids)


class _Kept:
    """Batches of an epoch: in memory, and in a temporary file if they are many."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._places: list[tuple[str, int, int]] = []
        self._size, self._turn = 0, threading.Lock()
        weakref.finalize(self, self._file.close)

    def add(self, uid: str, data: bytes) -> None:
        """Keep a stream of Arrow."""
        try:
            self._file.write(data)
        except OSError as error:
            raise NoSpaceError(
                error.errno,
                f"the changes of an epoch cannot be kept in {tempfile.gettempdir()} "
                f"({error.strerror}): make room there, or let TMPDIR name another folder",
            ) from error
        self._places.append((uid, self._size, len(data)))
        self._size += len(data)

    def batches(self, uids: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Those of some operators."""
        for uid, at, size in self._places:
            if uid in uids:
                with self._turn:
                    self._file.seek(at)
                    data = self._file.read(size)
                for rows in pa.ipc.open_stream(data):
                    yield uid, rows


class RemoteFollower(Follower):
    """Gives the changes of each epoch, as a server sends them; `StateReader.follow` makes it.

    The epoch after the one that is read comes meanwhile, and no later one.
    """

    def __init__(
        self,
        reply: Sent,
        since: int,
        lease: Lease | None,
        schema: Callable[[str, int], pa.Schema],
    ) -> None:
        self._reply, self._done, self._lease, self._schema = reply, since, lease, schema
        self._given_epoch: int | None = None
        self._is_stopped = threading.Event()
        self._ready: queue.Queue[RemoteChanges | Exception] = queue.Queue(_WAITING)
        self._reader = threading.Thread(target=self._receive, name="pystate-follow", daemon=True)
        self._reader.start()

    @property
    def epoch(self) -> int:
        """The last epoch that was done, with which to go on after a failure."""
        return self._done

    def next(self, timeout: float | None = None) -> EpochChanges | None:
        """Wait for the next epoch; as `Follower.next`, and `ServerError` if the server is gone."""
        if self._given_epoch is not None:
            self._done, self._given_epoch = self._given_epoch, None
            if self._lease is not None and not self._is_stopped.is_set():
                self._lease.move(self._done)
        if self._is_stopped.is_set():
            return None
        try:
            found = self._ready.get(timeout=timeout) if timeout != 0 else self._ready.get_nowait()
        except queue.Empty:
            return None
        if self._is_stopped.is_set():
            return None
        if isinstance(found, Exception):
            self.stop()
            raise found
        self._given_epoch = found.epoch
        return found

    def stop(self) -> None:
        """End the iteration, from any thread; who waits does so no longer."""
        self._is_stopped.set()
        connection = self._reply.connection
        with suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)
        with suppress(queue.Full):
            self._ready.put_nowait(ServerError("stopped"))

    def close(self) -> None:
        """Stop, and end the lease. Does nothing the second time."""
        self.stop()
        if self._lease is not None:
            self._lease.close()

    def __repr__(self) -> str:
        return f"<Follower after epoch {self.epoch}>"

    def _receive(self) -> None:
        try:
            for found in self._epochs():
                self._put(found)
            self._put(self._reply.broken(EOFError("the changes have ended")))
        except Exception as error:
            # Whatever it is, who iterates has to know.
            self._put(error if isinstance(error, PystateError) else self._reply.broken(error))
        finally:
            self._reply.connection.close()

    def _put(self, found: RemoteChanges | Exception) -> None:
        while not self._is_stopped.is_set():
            with suppress(queue.Full):
                self._ready.put(found, timeout=0.2)
                return

    def _epochs(self) -> Iterator[RemoteChanges]:
        kept = _Kept()
        for name, said in self._events():
            if name == "change":
                kept.add(said["operator"], base64.b64decode(said["arrow"]))
            elif name == "epoch":
                yield SentChanges(said, kept, self._schema)
                kept = _Kept()
            elif name == "error":
                raise self._reply.told(said["error"])

    def _events(self) -> Iterator[tuple[str, Any]]:
        name, data = "", b""
        for line in self._reply.lines():
            line = line.rstrip(b"\r\n")
            if not line:
                if data:
                    yield name, json.loads(data)
                name, data = "", b""
            elif line.startswith(b"event: "):
                name = line[7:].decode()
            elif line.startswith(b"data: "):
                data += line[6:]
