"""What a server gives its clients at most, and the threads in which it reads.

Thread safety: `Limits` is immutable; a `Gate` and `Workers` belong to the thread of the server's
event loop.

Invariants
----------
1. What waits for a thread, or for its turn as a stream, is bounded in number, by `Limits.requests`,
   and in time, by `Limits.seconds`. Whatever is beyond is refused at once, with status 503.
2. No request holds a thread while its client is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from pystate.base.arguments import integer
from pystate.serve.problems import BusyError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """The bounds of a server; each is at least 1.

    Attributes
    ----------
    requests : int
        Requests that are under way at a time; more are refused.
    threads : int
        Look-ups that are carried out at a time; others wait for one of these threads.
    streams : int
        Scans that are read at a time, in memory a part of each.
    statements : int
        Statements of SQL that run at a time, each in a process of its own.
    followers : int
        Clients that follow changes at a time.
    connections : int
        Open connections.
    statement_bytes : int
        Memory of a statement of SQL.
    keys : int
        Keys in one request.
    body_bytes : int
        Size of the body of a request.
    rows : int
        Rows of one answer that is a stream.
    document_rows : int
        Rows of one answer that is a JSON document.
    document_bytes : int
        About the size at which a JSON document takes no more rows.
    seconds : int
        How long a request may wait for its turn, a look-up take, and the body of a request come.
    stream_seconds : int
        How long a scan, or SQL, may take altogether.
    stall_seconds : int
        How long a client may read nothing of what waits for it, and begin a request without
        going on with it.
    """

    requests: int = 256
    threads: int = 8
    streams: int = 8
    statements: int = 2
    followers: int = 64
    connections: int = 1024
    statement_bytes: int = 512 << 20
    keys: int = 100_000
    body_bytes: int = 16 << 20
    rows: int = 100_000_000
    document_rows: int = 100_000
    document_bytes: int = 64 << 20
    seconds: int = 30
    stream_seconds: int = 600
    stall_seconds: int = 30

    def __post_init__(self) -> None:
        for field in fields(self):
            integer(getattr(self, field.name), f"Limits: {field.name}", least=1)


class Gate:
    """Lets so many in at a time; others wait for a bounded time, or are refused."""

    def __init__(self, most: int, what: str) -> None:
        self.most, self.what, self.inside = most, what, 0
        self._turns = asyncio.Semaphore(most)

    @asynccontextmanager
    async def entered(self, seconds: float) -> AsyncIterator[None]:
        """Wait for a turn, and give it back; `BusyError` if it does not come in time."""
        try:
            await asyncio.wait_for(self._turns.acquire(), seconds)
        except asyncio.TimeoutError:
            raise self.busy() from None
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self._turns.release()

    @asynccontextmanager
    async def entered_now(self) -> AsyncIterator[None]:
        """The same for who would stay long: `BusyError` if there is no room now."""
        if self._turns.locked():
            raise self.busy()
        async with self.entered(1.0):
            yield

    def busy(self) -> BusyError:
        """The error to raise where there is no room."""
        return BusyError(
            f"the server has {self.most} {self.what} under way, and no more: ask again later"
        )


class Workers:
    """The threads in which state is read."""

    def __init__(self, threads: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(threads, "pystate-serve")
        self._seconds = seconds

    async def run(self, do: Callable[..., Result], *args: Any) -> Result:
        """Carry something out in a thread; `BusyError` if it takes too long.

        The thread then goes on until it has ended; what has not begun does not begin.
        """
        future = asyncio.get_running_loop().run_in_executor(self._pool, do, *args)
        done, _ = await asyncio.wait([future], timeout=self._seconds)
        if done:
            return future.result()
        future.cancel()
        raise BusyError(f"this took longer than {self._seconds:g} seconds: ask for less, or later")

    def begin(self, do: Callable[[], object]) -> None:
        """Carry something out in a thread, for which nobody waits."""
        with suppress(RuntimeError):  # the server has stopped
            self._pool.submit(do)

    def close(self) -> None:
        """Begin nothing more, and do not wait for what is under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)
