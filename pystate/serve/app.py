"""The server as an ASGI application: routes, and what is asked of each request before them.

Thread safety: it belongs to the thread of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from pystate.query.json_form import document
from pystate.redaction import logger
from pystate.serve import change_routes, metrics, openapi, page, state_routes
from pystate.serve.answers import StreamBrokenError
from pystate.serve.auth import Guard
from pystate.serve.jobs import Jobs
from pystate.serve.limits import Limits, Workers
from pystate.serve.operations import JSON, Call, ClientGoneError, Operation, Service
from pystate.serve.problems import BusyError, RequestError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_LOG = logger("pystate.serve")
#: After so many seconds a client may ask again that was refused because there was no room.
_RETRY_SECONDS = "1"


def all_routes() -> tuple[Operation, ...]:
    """The routes of all parts of the server: one line for each part."""
    return (
        *state_routes.ROUTES,
        *change_routes.ROUTES,
        *metrics.ROUTES,
        *page.ROUTES,
        *openapi.ROUTES,
    )


def create_app(
    jobs: Jobs,
    limits: Limits,
    workers: Workers,
    guard: Guard,
    routes: Sequence[Operation] | None = None,
) -> Application:
    """Make the application; it closes `jobs` and `workers` when it shuts down."""
    return Application(jobs, limits, workers, guard, all_routes() if routes is None else routes)


class Application:
    """What a server of ASGI calls."""

    def __init__(
        self,
        jobs: Jobs,
        limits: Limits,
        workers: Workers,
        guard: Guard,
        routes: Sequence[Operation],
    ) -> None:
        self.operations, self.guard = tuple(routes), guard
        self._jobs, self._limits, self._workers = jobs, limits, workers
        self._service: Service | None = None
        endpoints = [
            Route(each.path, _Endpoint(self, each), methods=[each.method], name=each.name)
            # They are tried one after the other: what is asked for most comes first.
            for each in sorted(self.operations, key=lambda each: each.name != "keys")
        ]
        # An application of Starlette has layers around this that take as long as a look-up.
        self._router = Router(endpoints)

    @property
    def service(self) -> Service:
        """What requests share; made in the event loop to which it belongs."""
        if self._service is None:
            self._service = Service(self.operations, self._jobs, self._limits, self._workers)
        return self._service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or begin and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        # A uid may have a slash, which is escaped in the path as it was sent.
        raw = scope.get("raw_path")
        path = scope["path"] if raw is None else raw.decode("latin-1").partition("?")[0]
        scope = {**scope, "path": path, "app": self}
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            await self.tell(self._known_problem(scope, error), send)

    def stop(self) -> None:
        """End what would not end by itself: streams, and clients that follow."""
        if self._service is not None:
            self._service.stopping.set()
        for job in self._jobs.values():
            job.closed = True

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                self.stop()
                self._workers.close()
                self._jobs.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _known_problem(self, scope: Scope, error: HTTPException) -> RequestError:
        """What the router knows to be wrong: no such path, or no such method."""
        path = scope["path"]
        said = f"there is no {path!r:.200}: /openapi.json says what there is"
        if error.status_code == 405:
            said = f"{scope['method']} is not a method of {path!r:.200}"
        try:
            self.guard.check(dict(scope["headers"]), is_open=False)
        except RequestError as refused:
            return refused
        return RequestError(error.status_code, said, error.headers or {})

    async def tell(self, error: BaseException, send: Send) -> None:
        """Answer with an error."""
        status, problem = self._jobs.veil.problem(error)
        headers = {"content-type": JSON, "cache-control": "no-store"}
        if isinstance(error, RequestError):
            headers |= {name.lower(): value for name, value in error.headers.items()}
        if status == 503:
            headers["retry-after"] = _RETRY_SECONDS
        body = document(problem)
        sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        sent.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": body})


class _Endpoint:
    """Carries one operation out: admits the request, watches its client, tells of errors."""

    def __init__(self, app: Application, operation: Operation) -> None:
        self._app, self._operation = app, operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, call = self._app.service, None
        is_open = self._operation.is_open
        service.requests += 1
        try:
            self._app.guard.check(dict(scope["headers"]), is_open=is_open)
            if service.requests > service.limits.requests and not is_open:
                raise BusyError(
                    f"the server has {service.limits.requests} requests under way, and no more: "
                    "ask again later"
                )
            call = Call(self._operation, service, scope, receive, send)
            if self._operation.is_watched or call.is_waiting:
                await _watched(call, self._operation)
            else:
                await self._operation.carry_out(call)
        except ClientGoneError:
            pass
        except StreamBrokenError:
            raise  # the server of ASGI closes the connection for it
        except Exception as error:
            if call is not None and call.begun:
                raise StreamBrokenError from error
            await self._app.tell(error, send)
        finally:
            service.requests -= 1
            if call is not None:
                call.end()


async def _watched(call: Call, operation: Operation) -> None:
    """Carry an operation out until its client goes away."""
    if operation.body is not None:
        await call.body()  # while nobody else waits for what the client sends
    work = asyncio.ensure_future(operation.carry_out(call))
    gone = asyncio.ensure_future(call.gone())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGoneError
        work.result()
    finally:
        for task in (work, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
