"""A server of S3 for tests, as a process: moto's, with a gate before it.

    python -m tests.object_server

It makes the bucket `BUCKET`, prints its port, and ends when its standard input does. The gate
handles one request after the other: moto looks whether an object exists and then writes it, which
is one step in S3. The gate also makes what tests need: the access key ``denied`` is refused; of a
name with ``lost-answer``, the first write is done and then answered by an error; in a bucket named
``careless``, conditions are ignored.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = "pystate-tests"
CARELESS = "careless"
_ERROR = "<Error><Code>{}</Code><Message>by the gate</Message></Error>"

Start = Callable[..., Any]
App = Callable[[dict[str, Any], Start], Iterable[bytes]]


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """Run the server; yields the environment of its users."""
    command = [sys.executable, "-m", "tests.object_server"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.strip().isdigit(), "the server of S3 did not start"
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(line)}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "not-so-secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class Gate:
    """What is before moto."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._one_by_one = threading.Lock()
        self._lost: set[str] = set()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Handle a request."""
        path = environ["PATH_INFO"]
        with self._one_by_one:
            if "Credential=denied/" in environ.get("HTTP_AUTHORIZATION", ""):
                return _answer(start, "403 Forbidden", "InvalidAccessKeyId")
            if path.startswith(f"/{CARELESS}/"):
                environ.pop("HTTP_IF_NONE_MATCH", None)
            answer = b"".join(self._app(environ, start))
            lost = environ["REQUEST_METHOD"] == "PUT" and "lost-answer" in path
            if lost and path not in self._lost:
                self._lost.add(path)
                return _answer(start, "503 Slow Down", "SlowDown")
            return [answer]


class Faults:
    """A connection to a server that fails when it is told to: a proxy of a thread per connection.

    A request is lost (``"reset before"``), or its answer is (``"reset after"``), or the answer ends
    in its middle (``"cut"``); one without content is lost then.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._wanted: tuple[str, str, int] | None = None
        self._lock = threading.Lock()
        #: How many requests of each method there were.
        self.counts: Counter[str] = Counter()
        proxy = self

        class Handler(_Proxy):
            faults = proxy

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def next(self, method: str, fault: str, skipped: int = 0) -> None:
        """Let a request of that method fail, after some that do not."""
        with self._lock:
            self._wanted = method, fault, skipped

    def reached(self) -> bool:
        """Whether that has happened; it does not happen any more."""
        with self._lock:
            wanted, self._wanted = self._wanted, None
        return wanted is None

    def take(self, method: str) -> str:
        """The fault of a request that begins; empty for none."""
        with self._lock:
            self.counts[method] += 1
            if self._wanted is None or self._wanted[0] != method:
                return ""
            _, fault, skipped = self._wanted
            self._wanted = (method, fault, skipped - 1) if skipped else None
            return "" if skipped else fault

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[HTTPResponse, bytes]:
        """Send a request on."""
        upstream = HTTPConnection(self._upstream.partition("://")[2])
        headers = {k: v for k, v in request.headers.items() if k.lower() != "connection"}
        upstream.request(request.command, request.path, body, headers)
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        return answer, data


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, ValueError):
            self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.faults.take(self.command)
        if fault == "reset before":
            self._reset()
            return
        answer, data = self.faults.forward(self, body)
        is_head = self.command == "HEAD"
        if fault == "reset after" or (fault and (is_head or not data)):
            self._reset()
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") or "0" if is_head else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if fault:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self._reset()
        elif not is_head:
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error."""


@contextmanager
def faults(upstream: str) -> Iterator[Faults]:
    """Run a proxy before a server."""
    made = Faults(upstream)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def _answer(start: Start, status: str, code: str) -> list[bytes]:
    body = _ERROR.format(code).encode()
    try:
        raise OSError(code)
    except OSError:  # with it, `start` may be called a second time
        start(status, [("Content-Length", str(len(body)))], sys.exc_info())
    return [body]


def _main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server
    from werkzeug.test import Client

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    for bucket in (BUCKET, CARELESS):
        answer = Client(app).put(f"http://s3.amazonaws.com/{bucket}")
        assert answer.status_code == 200, answer.get_data(as_text=True)
    made = make_server("127.0.0.1", 0, Gate(app), threaded=True)
    print(made.server_port, flush=True)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    sys.stdin.read()  # it ends with whoever has started this process
    os._exit(0)


if __name__ == "__main__":
    _main()
