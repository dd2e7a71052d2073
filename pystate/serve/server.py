"""The server as a process, or a thread: its address, its certificate, its begin and its end.

Thread safety: a `Server` runs in one thread; `Server.stop` may be called from any.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from pystate.base.arguments import integer, shown, text
from pystate.errors import InUseError, InvalidArgumentError
from pystate.serve.answers import StreamBrokenError
from pystate.serve.app import Application, create_app
from pystate.serve.auth import Guard, is_loopback, read_token
from pystate.serve.jobs import REFRESH_SECONDS, open_jobs
from pystate.serve.limits import Limits, Workers
from pystate.serve.protocol import bounded

_BACKLOG = 512
_STOP_SECONDS = 10
_KEEP_ALIVE_SECONDS = 75


@dataclass(frozen=True)
class ServeOptions:
    """How a server is reached, and by whom.

    Attributes
    ----------
    host, port : str, int
        Where it listens; port 0 is any that is free.
    token_file : str or None
        The file of the token that clients have to know; required where other machines reach it.
    cert, key : str or None
        Files of a certificate, and of its private key: then it speaks HTTPS.
    allow_hosts : tuple of str
        Names of this server by which clients may call it.
    cache_bytes : int
        What is kept in memory of the files of each job.
    refresh_seconds : float
        For so long the newest epoch counts as such before it is looked for again.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token_file: str | None = None
    cert: str | None = None
    key: str | None = None
    allow_hosts: tuple[str, ...] = ()
    cache_bytes: int = 64 << 20
    refresh_seconds: float = REFRESH_SECONDS
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        text(self.host, "ServeOptions: host")
        integer(self.port, "ServeOptions: port", least=0, most=65535)
        for name in ("token_file", "cert", "key"):
            path = getattr(self, name)
            if path is not None:
                text(path, f"ServeOptions: {name}")
        if not isinstance(self.allow_hosts, tuple):
            raise InvalidArgumentError(
                f"ServeOptions: allow_hosts is a tuple of names, not {shown(self.allow_hosts)}"
            )
        for host in self.allow_hosts:
            text(host, "ServeOptions: allow_hosts")
        integer(self.cache_bytes, "ServeOptions: cache_bytes", least=0)
        seconds: Any = self.refresh_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise InvalidArgumentError(
                f"ServeOptions: refresh_seconds is a number from 0 on, not {shown(seconds)}"
            )
        if not isinstance(self.limits, Limits):
            raise InvalidArgumentError(
                f"ServeOptions: limits is of the class Limits, not {shown(self.limits)}"
            )


class Server:
    """Serves jobs, from when it is made until it is stopped.

    Made is the application, and bound the address: what is wrong with either is an error at once.
    """

    def __init__(self, locations: Mapping[str, str], options: ServeOptions) -> None:
        self._options = options
        guard = _guard(options)
        context = _certificate(options)
        self._socket = _bound(options.host, options.port)
        try:
            workers = Workers(options.limits.threads, options.limits.seconds)
            jobs = open_jobs(
                locations,
                workers,
                cache_bytes=options.cache_bytes,
                refresh_seconds=options.refresh_seconds,
            )
        except BaseException:
            self._socket.close()
            raise
        self.app = create_app(jobs, options.limits, workers, guard)
        limits = options.limits
        config = uvicorn.Config(
            self.app,
            http=bounded(limits.connections, limits.stall_seconds),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            h11_max_incomplete_event_size=None,
        )
        config.load()
        config.ssl = context
        self._server = _Uvicorn(config, self.app)
        self._begun = threading.Event()
        logging.getLogger("uvicorn.error").addFilter(_is_news)

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self._options.cert is None else 'https'}://{shown}:{port}"

    @property
    def is_in_the_open(self) -> bool:
        """Whether what goes to and fro between machines can be read on its way."""
        return not is_loopback(self._options.host) and self._options.cert is None

    def run(self, begun: Callable[[], object] = lambda: None) -> None:
        """Serve until it is stopped: by `stop`, or in the main thread by SIGTERM or SIGINT."""
        self._server.begun = begun
        before = None
        if threading.current_thread() is threading.main_thread():
            # uvicorn raises the signal once more after it has ended for it: that is no second one.
            before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            self._server.run(sockets=[self._socket])
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    def stop(self) -> None:
        """Begin no more requests, and end when those that are under way have ended."""
        self._server.should_exit = True


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Application) -> None:
        super().__init__(config)
        self._app = app
        self.begun: Callable[[], object] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stop()  # else it would wait for those that follow
        await super().shutdown(sockets)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of the log says what is not known: of broken streams their clients know."""
    said = record.exc_info
    return not (isinstance(said, tuple) and isinstance(said[1], StreamBrokenError))


def _guard(options: ServeOptions) -> Guard:
    token = None if options.token_file is None else read_token(options.token_file)
    if token is None and not is_loopback(options.host):
        raise InvalidArgumentError(
            f"--host {options.host} can be reached from other machines: give --token-file FILE, of "
            "a token that clients have to know (and --cert and --key, so that nobody reads it on "
            "its way), or leave --host out"
        )
    names = {name.strip().lower().rstrip(".") for name in options.allow_hosts}
    return Guard(token, frozenset(names))


def _certificate(options: ServeOptions) -> ssl.SSLContext | None:
    if options.cert is None and options.key is None:
        return None
    if options.cert is None or options.key is None:
        given, missing = ("--key", "--cert") if options.cert is None else ("--cert", "--key")
        raise InvalidArgumentError(f"{given} is there without {missing}: HTTPS needs both")
    for path, name in ((options.cert, "--cert"), (options.key, "--key")):
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            raise InvalidArgumentError(f"{name} {path} cannot be read: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.cert, options.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidArgumentError(
            f"--cert {options.cert} and --key {options.key} are no certificate and its key, in "
            f"PEM and without a password: {reason}"
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")


def _bound(host: str, port: int) -> socket.socket:
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise InvalidArgumentError(
            f"--host {host} is no address of this machine: {error}"
        ) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)  # else two servers could have one port, until both listen
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise InUseError(
                f"port {port} of {host} is in use by another program, perhaps another `pystate "
                "serve`: stop it, or give another --port (0 is any that is free)"
            ) from None
        reason = os.strerror(error.errno) if error.errno else error
        raise InvalidArgumentError(f"cannot listen at {host}, port {port}: {reason}") from None
    return listening
