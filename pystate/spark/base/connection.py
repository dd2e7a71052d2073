"""Receives a task's input without waiting for TCP's delayed acknowledgements.

Spark sends a task to its Python worker in several small pieces: what to run, then the schema of the
input, then the rows. By Nagle's algorithm (RFC 896) the JVM's end holds a small piece back until
the one before is acknowledged, and the worker's end acknowledges late, since an answer might carry
the acknowledgement along (RFC 1122, 4.2.3.2): 40 ms on Linux, in which a task that takes two
milliseconds waits for its schema. A worker that asks for it (tcp(7), ``TCP_QUICKACK``) acknowledges
at once. Linux falls back to late acknowledgements by itself, so each piece is asked for anew.

Unix domain sockets, which Spark can be set to use, know no acknowledgements; nothing is done there.

Thread safety: each task has its own generator, used by its thread.

Invariants
----------
1. Only options of a socket are set; nothing is read, written or closed but a duplicate of its
   descriptor.
2. A socket that is not found costs time and nothing else.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_DESCRIPTORS = "/proc/self/fd"
_TCP = (socket.AF_INET, socket.AF_INET6)
_THIS_HOST = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def at_once(pieces: Iterator[T]) -> Iterator[T]:
    """Yield what a Spark task receives, each piece as soon as it was sent."""
    connection = _spark_connection()
    if connection is None:
        yield from pieces
        return
    with connection:
        # An answer leaves as soon as it is written, too.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        for piece in pieces:
            yield piece
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _spark_connection() -> socket.socket | None:
    """Duplicate the worker's TCP connection to its executor; None if there is none.

    The worker's first descriptors are its standard streams, then this connection: everything that
    tasks open comes later, and has larger numbers.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None or not hasattr(socket, "TCP_QUICKACK"):
        return None
    with suppress(OSError):
        for descriptor in sorted(map(int, os.listdir(_DESCRIPTORS))):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    return _if_local(socket.socket(fileno=os.dup(descriptor)))
    return None


def _if_local(connection: socket.socket) -> socket.socket | None:
    """Return a TCP connection within the host, and close any other."""
    with suppress(OSError):
        if connection.family in _TCP and connection.getpeername()[0] in _THIS_HOST:
            return connection
    connection.close()
    return None
