"""What a route is: its path, its parameters, its answers, and the function that carries it out.

All that the server answers is said here once, by routes as values: the application calls them, and
the OpenAPI description is made of them. A part of the server that has routes of its own gives a
tuple of `Operation` to `create_app`.

Thread safety: an `Operation` is immutable; a `Call` belongs to one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus

from pystate.base.arguments import nearest, shown
from pystate.errors import InvalidArgumentError
from pystate.serve.limits import Gate, Limits, Workers
from pystate.serve.problems import BusyError, RequestError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pystate.serve.jobs import Job, Jobs

#: Media types.
JSON, LINES = "application/json", "application/x-ndjson"
ARROW, EVENTS = "application/vnd.apache.arrow.stream", "text/event-stream"
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
#: No number in a request is larger.
_MOST = (1 << 63) - 1
_MOST_PARAMETERS = 200_000


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query, or a part of a path."""

    name: str
    description: str
    kind: type = str
    """`str`, `int` or `bool`."""
    many: bool = False
    required: bool = False
    least: int = 0
    choices: tuple[str, ...] = ()
    example: Any = None

    def parsed(self, text: str) -> Any:
        """The value that a text stands for."""
        what = f"parameter {self.name}"
        if self.kind is int:
            digits = text[1:] if text[:1] == "-" else text
            if not (digits.isascii() and digits.isdigit()):
                raise InvalidArgumentError(f"{what} is a whole number, not {shown(text)}")
            if len(digits) >= 20 or not self.least <= int(text) <= _MOST:
                raise InvalidArgumentError(
                    f"{what} is {text:.80}, and must be {self.least} to {_MOST}"
                )
            return int(text)
        if self.kind is bool:
            if text not in _TRUTHS:
                raise InvalidArgumentError(f"{what} is true or false, not {shown(text)}")
            return _TRUTHS[text]
        if self.choices and text not in self.choices:
            words = " or ".join(self.choices)
            raise InvalidArgumentError(f"{what} is {words}, not {shown(text)}")
        return text


@dataclass(frozen=True)
class Body:
    """The body of a request: media types, and the JSON schema of the one that is JSON."""

    description: str
    schema: Mapping[str, Any]
    media: tuple[str, ...] = (JSON,)
    required: bool = True
    example: Any = None


@dataclass(frozen=True)
class Success:
    """A good answer: media types, and the JSON schema of the one that is JSON."""

    description: str
    schema: Mapping[str, Any]
    media: tuple[str, ...] = (JSON,)
    has_epoch: bool = True
    """Whether the header Pystate-Epoch says which epoch it is of."""
    status: int = 200


@dataclass(frozen=True)
class Operation:
    """A route.

    Attributes
    ----------
    carry_out
        Answers a `Call`: by `Call.answer`, or by a function that sends.
    is_open
        Whether no token is asked for: it tells nothing of any job.
    is_watched
        Whether it ends when its client goes away.
    errors
        The statuses that it may answer beside those of all.
    """

    method: str
    path: str
    carry_out: Callable[[Call], Awaitable[None]]
    name: str
    summary: str
    success: Success
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    is_open: bool = False
    is_watched: bool = False
    errors: tuple[int, ...] = ()
    description: str = ""
    known: Mapping[str, Parameter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        queried = {p.name: p for p in self.parameters if f"{{{p.name}}}" not in self.path}
        object.__setattr__(self, "known", queried)


class Service:
    """What all requests of a server share."""

    def __init__(
        self, operations: Sequence[Operation], jobs: Jobs, limits: Limits, workers: Workers
    ) -> None:
        self.operations, self.jobs = operations, jobs
        self.limits, self.workers = limits, workers
        self.requests = 0
        self.body_bytes = 0
        """Of the bodies of requests under way, as far as they have come."""
        self.streams = Gate(limits.streams, "streams of rows")
        self.statements = Gate(limits.statements, "statements of SQL")
        self.followers = Gate(limits.followers, "clients that follow changes")
        self.stopping = asyncio.Event()


class Call:
    """One request, and the way its answer goes."""

    def __init__(
        self, operation: Operation, service: Service, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.operation, self.service, self.limits = operation, service, service.limits
        self.send, self._receive = send, receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.path = {name: unquote(text) for name, text in scope["path_params"].items()}
        self.query = _parsed(scope["query_string"], operation)
        self._body: bytes | None = None
        self._body_bytes = 0
        self.begun = False
        """Whether an answer has begun."""

    @property
    def job(self) -> Job:
        """The job that the path names."""
        return self.service.jobs[self.path["job"]]

    @property
    def epochs(self) -> tuple[int | None, int | None, float]:
        """Which epoch is asked for: that one, or one at least, waited for so long."""
        query = self.query
        wait = query.get("wait_ms")
        seconds: float = self.limits.seconds
        if wait is not None:
            seconds = min(seconds, wait / 1000)
        return query.get("epoch"), query.get("min_epoch"), seconds

    @property
    def is_waiting(self) -> bool:
        """Whether the answer may have to wait for an epoch."""
        return "min_epoch" in self.query or "position" in self.query

    def form(self) -> str:
        """The media type that the client wants of those that there are."""
        offered = self.operation.success.media
        accept = self.headers.get(b"accept")
        return offered[0] if accept is None else _chosen(accept.decode("latin-1"), offered)

    def content(self) -> str:
        """The media type of the body."""
        given = self.headers.get(b"content-type", b"").decode("latin-1")
        media = given.partition(";")[0].strip().lower()
        known = () if self.operation.body is None else self.operation.body.media
        if media not in known:
            raise RequestError(
                415, f"the body is {shown(given)}, and must be {' or '.join(known)}: Content-Type"
            )
        return media

    async def body(self) -> bytes:
        """The body of the request; an error if it is too large, or does not come in time."""
        if self._body is None:
            self._body = await self._bounded_body()
        return self._body

    async def _bounded_body(self) -> bytes:
        most = self.limits.body_bytes
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._whole_body(most), self.limits.seconds)
        except BusyError:
            raise  # it is a TimeoutError, too
        except asyncio.TimeoutError:
            raise RequestError(
                408, f"the body did not come within {self.limits.seconds} seconds"
            ) from None

    async def _whole_body(self, most: int) -> bytes:
        parts, service = [], self.service
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            self._body_bytes += len(parts[-1])
            service.body_bytes += len(parts[-1])
            if self._body_bytes > most:
                raise self._too_large()
            if service.body_bytes > 2 * most:
                self.end()  # at once: others, which come together with it, have its room
                raise BusyError(
                    f"the server has {2 * most} bytes of bodies of requests under way, and no "
                    "more: ask again later"
                )
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> RequestError:
        return RequestError(
            413,
            f"the body is larger than {self.limits.body_bytes} bytes, the most that this server "
            "takes: ask for less at a time",
            {"Connection": "close"},
        )

    def end(self) -> None:
        """Nothing is kept of the request any more."""
        self.service.body_bytes -= self._body_bytes
        self._body, self._body_bytes = None, 0

    async def gone(self) -> None:
        """Wait until the client goes away."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def begin(self, media: str, epoch: int | None, headers: Sequence[Any] = ()) -> None:
        """Begin a good answer."""
        self.begun = True
        sent = [(b"content-type", media.encode()), (b"cache-control", b"no-store"), *headers]
        if epoch is not None:
            sent.append((b"pystate-epoch", str(epoch).encode()))
        status = self.operation.success.status
        await self.send({"type": "http.response.start", "status": status, "headers": sent})

    async def answer(self, body: bytes, media: str = JSON, *, epoch: int | None = None) -> None:
        """Give a good answer."""
        length = (b"content-length", str(len(body)).encode())
        await self.begin(media, epoch, (length,))
        await self.send({"type": "http.response.body", "body": body})

    async def more(self, part: bytes, *, last: bool = False) -> None:
        """Send a part of an answer; `BusyError` if the server is stopping."""
        if self.service.stopping.is_set() and not last:
            raise BusyError("the server is stopping: ask again")
        await self.send({"type": "http.response.body", "body": part, "more_body": not last})


class ClientGoneError(Exception):
    """The client has closed its connection; nobody reads an answer."""


def _parsed(query: bytes, operation: Operation) -> dict[str, Any]:
    """The parameters of a query; lists of those of which there may be many."""
    found: dict[str, Any] = {}
    if query:
        for name, text in _pairs(query):
            parameter = operation.known.get(name)
            if parameter is None:
                known = ", ".join(operation.known) or "none"
                near = nearest(name, operation.known)
                raise InvalidArgumentError(
                    f"there is no parameter {name!r:.80}; there are {known}{near}"
                )
            value = parameter.parsed(text)
            if parameter.many:
                found.setdefault(name, []).append(value)
            elif name in found:
                raise InvalidArgumentError(f"parameter {name} is there twice")
            else:
                found[name] = value
    for parameter in operation.known.values():
        if parameter.required and parameter.name not in found:
            raise InvalidArgumentError(
                f"parameter {parameter.name} is missing: {parameter.description}"
            )
    return found


def _pairs(query: bytes) -> list[tuple[str, str]]:
    """The names and texts of a query; `urllib.parse.parse_qsl` takes ten times as long."""
    parts = query.split(b"&", _MOST_PARAMETERS)
    if len(parts) > _MOST_PARAMETERS:
        raise InvalidArgumentError(f"the query has more than {_MOST_PARAMETERS} parameters")
    try:
        named = (part.decode("ascii").partition("=") for part in parts if part)
        return [(_plain(name), _plain(text)) for name, _, text in named]
    except ValueError as error:
        raise InvalidArgumentError(f"the query of the URL cannot be read: {error}") from None


def _plain(text: str) -> str:
    """A text without escapes."""
    return unquote_plus(text, errors="strict") if "%" in text or "+" in text else text


def _chosen(accept: str, offered: Sequence[str]) -> str:
    """The first of the media types that are offered among those that are liked best."""
    best: tuple[float, int] | None = None
    for part in accept.split(","):
        media, *rest = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for each in rest:
            if each.startswith("q="):
                try:
                    quality = float(each[2:])
                except ValueError:
                    quality = 0.0
        for place, each in enumerate(offered):
            fits = media in ("*/*", each) or media == f"{each.partition('/')[0]}/*"
            if fits and quality > 0 and (best is None or (quality, -place) > best):
                best = (quality, -place)
    if best is None:
        raise RequestError(
            406, f"Accept is {shown(accept)}, and there is only {', '.join(offered)}"
        )
    return offered[-best[1]]
