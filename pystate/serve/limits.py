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
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pystate.base.arguments import integer
from pystate.serve.problems import BusyError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Quick: TypeAlias = "tuple[asyncio.Future[Any], Callable[[], Any]]"
#: Quick look-ups that one thread carries out one after the other.
_TOGETHER = 8


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
    leases : int
        Leases of a job at a time, beyond which clients get no more.
    connections : int
        Open connections.
    statement_bytes : int
        Memory of a statement of SQL.
    keys : int
        Keys in one request.
    body_bytes : int
        Size of the body of a request; all that are under way may have twice that together.
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
    leases: int = 64
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
        self._quick: list[Quick] = []

    async def run(self, do: Callable[..., Result], *args: Any) -> Result:
        """Carry something out in a thread; `BusyError` if it takes too long.

        The thread then goes on until it has ended; what has not begun does not begin.
        """
        loop = asyncio.get_running_loop()
        return await self._in_time(loop.run_in_executor(self._pool, do, *args))

    async def run_soon(self, do: Callable[..., Result], *args: Any) -> Result:
        """The same for what is quick: with others that come at the same time, in one thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        if not self._quick:
            loop.call_soon(self._begin_quick, loop)
        self._quick.append((future, partial(do, *args)))
        return await self._in_time(future)

    def _begin_quick(self, loop: asyncio.AbstractEventLoop) -> None:
        quick, self._quick = self._quick, []
        for at in range(0, len(quick), _TOGETHER):
            self._pool.submit(_carry_out, loop, quick[at : at + _TOGETHER])

    async def _in_time(self, future: asyncio.Future[Result]) -> Result:
        is_late = False

        def give_up() -> None:
            nonlocal is_late
            is_late = future.cancel()

        timer = asyncio.get_running_loop().call_later(self._seconds, give_up)
        try:
            return await future
        except asyncio.CancelledError:
            if not is_late:
                raise
            raise BusyError(
                f"this took longer than {self._seconds:g} seconds: ask for less, or later"
            ) from None
        finally:
            timer.cancel()

    def begin(self, do: Callable[[], object]) -> None:
        """Carry something out in a thread, for which nobody waits."""
        with suppress(RuntimeError):  # the server has stopped
            self._pool.submit(do)

    def close(self) -> None:
        """Begin nothing more, and do not wait for what is under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _carry_out(loop: asyncio.AbstractEventLoop, quick: list[Quick]) -> None:
    """Carry some out in this thread, and tell the event loop once."""
    done: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
    for future, do in quick:
        if future.cancelled():
            continue
        try:
            done.append((future, do(), None))
        except Exception as error:
            done.append((future, None, error))
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(_settle, done)


def _settle(done: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, result, error in done:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
