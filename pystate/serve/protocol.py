"""Connections that end when their clients do not go on.

What uvicorn does for a connection, and beyond it: a client that reads nothing of what waits for it,
that begins a request and does not end its headers, or that comes when there are too many, is not
waited for. The kernel, too, gives a connection up whose peer takes nothing (TCP_USER_TIMEOUT), also
when all that is left to send lies there.

Thread safety: a connection belongs to the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pystate.query.json_form import document

_FULL = document(
    {
        "error": {
            "type": "TimeoutError",
            "message": "the server has no room for another connection: ask again later",
            "status": 503,
        }
    }
)


def bounded(connections: int, stall_seconds: float) -> type[HttpToolsProtocol]:
    """The class of the connections of a server with these bounds."""

    class Bounded(_BoundedProtocol):
        most, stall = connections, stall_seconds

    return Bounded


class _BoundedProtocol(HttpToolsProtocol):
    most: int
    stall: float
    _stalled: asyncio.TimerHandle | None = None
    _beginning: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        super().connection_made(made)
        connection: Any = made.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(self.stall * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        if len(self.connections) > self.most:
            head = (
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
                f"retry-after: 1\r\ncontent-length: {len(_FULL)}\r\nconnection: close\r\n\r\n"
            )
            made.write(head.encode() + _FULL)
            made.close()
            return
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Take what has come; a request that is not whole yet has to go on."""
        super().data_received(data)
        cycle: Any = self.cycle  # there is none before the first request
        waits = cycle is None or cycle.response_complete
        if waits and not self.pipeline:
            self._expect_request()
        else:
            self._cancel("_beginning")

    def on_response_complete(self) -> None:
        """Between two requests uvicorn's own time counts."""
        self._cancel("_beginning")
        super().on_response_complete()

    def pause_writing(self) -> None:
        """More waits for the client than may wait: it has to take some of it."""
        super().pause_writing()
        loop = asyncio.get_running_loop()
        self._stalled = loop.call_later(self.stall, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken some."""
        self._cancel("_stalled")
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, by whomever."""
        self._cancel("_stalled")
        self._cancel("_beginning")
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._beginning is None:
            loop = asyncio.get_running_loop()
            self._beginning = loop.call_later(self.stall, self.transport.abort)

    def _cancel(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
