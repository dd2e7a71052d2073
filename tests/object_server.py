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
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
