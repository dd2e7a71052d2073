"""The connection over which a worker gets its task's input."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from pystate.spark.base import connection


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def quick(end: socket.socket) -> bool:
    return bool(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


@pytest.fixture
def worker_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The worker's end, which `at_once` finds."""
    executor, worker = tcp_pair()
    monkeypatch.setattr(connection, "_spark_connection", lambda: connection._if_local(worker.dup()))
    with executor, worker:
        yield worker


def late(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)


def test_every_piece_is_acknowledged_at_once(worker_end: socket.socket) -> None:
    def pieces() -> Iterator[int]:
        for number in range(3):
            assert quick(worker_end), number
            late(worker_end)  # as the kernel falls back to it
            yield number

    late(worker_end)
    assert list(connection.at_once(pieces())) == [0, 1, 2]
    assert worker_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_only_a_duplicate_is_closed(worker_end: socket.socket) -> None:
    before = os.listdir("/proc/self/fd")
    pieces = connection.at_once(iter(range(3)))
    assert next(pieces) == 0
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    pieces.close()  # type: ignore[attr-defined]

    def fails() -> Iterator[int]:
        raise RuntimeError("user code")
        yield 0

    with pytest.raises(RuntimeError, match="user code"):
        list(connection.at_once(fails()))
    assert os.listdir("/proc/self/fd") == before
    worker_end.getpeername()


def test_other_sockets_are_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert connection._if_local(one.dup()) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert connection._if_local(server.dup()) is None
    with socket.socket() as unconnected:
        assert connection._if_local(unconnected.dup()) is None


def test_outside_a_task() -> None:
    one, other = tcp_pair()
    with one, other:
        assert list(connection.at_once(iter("ab"))) == ["a", "b"]
        assert connection._spark_connection() is None
