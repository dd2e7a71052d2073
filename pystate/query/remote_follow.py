"""Epochs of a server's job, followed as they are published: server-sent events, read in a thread.

Thread safety: as `pystate.query.follow`.
"""

from __future__ import annotations

import base64
import http.client
import json
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from pystate.errors import InvalidArgumentError, PystateError, ServerError
from pystate.query.follow import EpochChanges, Follower

_WAITING = 1


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
    """What has changed in an epoch, as a server has sent it."""

    def __init__(self, said: Mapping[str, Any], batches: list[tuple[str, pa.RecordBatch]]) -> None:
        self.epoch, self.since = int(said["epoch"]), int(said["since"])
        self.uids, self.dropped = tuple(said["operators"]), tuple(said["dropped"])
        self.processing_time_ms = int(said["processing_time_ms"])
        self.published_ms = int(said["published_ms"])
        self._sent = batches

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        return iter(self._sent)

    def schema(self, uid: str) -> pa.Schema:
        """The columns of an operator's batches, if it has any."""
        for each, rows in self._sent:
            if each == uid:
                return rows.schema
        raise InvalidArgumentError(f"epoch {self.epoch} has no changes of operator {uid!r:.80}")

    def read(self, uid: str) -> pa.Table:
        """All changes of one operator that has any."""
        batches = [rows for each, rows in self._sent if each == uid]
        return pa.Table.from_batches(batches, self.schema(uid))


class RemoteFollower(Follower):
    """Gives the changes of each epoch, as a server sends them; `StateReader.follow` makes it.

    The changes of the epoch that is read, and of one more, are in memory.
    """

    def __init__(self, reply: Sent, since: int) -> None:
        self._reply, self._done = reply, since
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
        """The same as `stop`."""
        self.stop()

    def __repr__(self) -> str:
        return f"<Follower after epoch {self.epoch}>"

    def _receive(self) -> None:
        try:
            for found in self._epochs():
                self._put(found)
            self._put(ServerError(f"the server has ended the changes after epoch {self.epoch}"))
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
        batches: list[tuple[str, pa.RecordBatch]] = []
        for name, said in self._events():
            if name == "change":
                data = base64.b64decode(said["arrow"])
                batches += [(said["operator"], b) for b in pa.ipc.open_stream(data)]
            elif name == "epoch":
                yield RemoteChanges(said, batches)
                batches = []
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
