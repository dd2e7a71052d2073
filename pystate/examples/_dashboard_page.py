"""The page of the dashboard: figures of one epoch out of a job's checkpoint, and a small server.

The job is not asked for anything: it need not know that there is a page, nor run.

Thread safety: `Figures` may be used by any threads, as the server does. A `Page` belongs to the
thread that made it.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pystate as ps
from pystate.base.installation import extra
from pystate.errors import (
    CheckpointError,
    InvalidArgumentError,
    MissingPackageError,
    PystateError,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from typing_extensions import Self

_HOST = "127.0.0.1"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
#: Nothing from elsewhere, and no scripts or styles in the document.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_SECONDS = 30


class Figures:
    """Reads what the page shows; before the first epoch there is nothing."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._reader: ps.StateReader | None = None
        self._newest: dict[str, Any] = {}
        self._lock = threading.Lock()

    def newest(self) -> dict[str, Any]:
        """The figures of the newest epoch, which are read when there is a new one."""
        with self._lock:
            reader = self._connected()
            if reader is None:
                return {"epoch": 0, "watermark": None, "products": [], **_parts({})}
            epoch = reader.refresh()
            if self._newest.get("epoch") != epoch:
                self._newest = figures(reader.at(epoch))
            return self._newest

    def of(self, epoch: int) -> dict[str, Any]:
        """The figures of a retained epoch."""
        with self._lock:
            reader = self._connected()
        if reader is None:
            raise CheckpointError(f"there is no epoch {epoch} yet")
        return figures(reader.at(epoch))

    def _connected(self) -> ps.StateReader | None:
        """The reader, as soon as the job has published an epoch."""
        if self._reader is None:
            try:
                self._reader = ps.connect(self._checkpoint)
            except CheckpointError:
                return None
        return self._reader

    def close(self) -> None:
        """Close the files."""
        if self._reader is not None:
            self._reader.close()


def figures(reader: ps.StateReader) -> dict[str, Any]:
    """Read both parts, and the totals, from a reader that stays at one epoch."""
    live = [
        # A window's namespace is the time when it begins.
        _hour(row["product"], row["namespace"], row)
        for row in reader["hours"].scan().read_all().to_pylist()
    ]
    history = [
        _hour(row["product"], hour, counts)
        for row in reader["history"].scan().read_all().to_pylist()
        for hour, counts in row["hours"]
    ]
    products = reader["products"].scan(columns=["product", "orders", "cents"]).read_all()
    [epoch] = [row for row in reader.epochs().to_pylist() if row["epoch"] == reader.epoch]
    watermark = epoch["watermark"]
    return {
        "epoch": reader.epoch,
        "watermark": None if watermark is None else watermark.isoformat(),
        "products": products.sort_by([("orders", "descending")]).to_pylist(),
        **_parts({"history": history, "live": live}),
    }


def _hour(product: str, hour: int, counts: dict[str, Any]) -> dict[str, Any]:
    return {"product": product, "hour": hour, "orders": counts["orders"], "cents": counts["cents"]}


def _parts(hours: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Both parts with their sums, and the sums of both."""
    parts: dict[str, dict[str, Any]] = {}
    for name in ("history", "live"):
        rows = sorted(hours.get(name, []), key=lambda row: (row["hour"], row["product"]))
        parts[name] = {**_sums(rows), "hours": rows}
    return {**parts, "total": _sums(list(parts.values()))}


def _sums(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in ("orders", "cents")}


# -- the server


def application(figures: Figures) -> Starlette:
    """The page, and at ``/figures`` the figures of the newest epoch, or of ``?epoch=``."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    own = {
        each.name: each.read_bytes()
        for each in (files("pystate.examples") / "dashboard_files").iterdir()
        if each.name.rpartition(".")[2] in _TYPES
    }

    # Functions that are not coroutines run in threads: reading a file does not hold others up.
    def answer(request: Request) -> Response:
        given = request.query_params.get("epoch")
        try:
            epoch = None if given is None else int(given)
        except ValueError:
            return JSONResponse({"error": f"epoch {given!r:.40} is no number"}, 400, _HEADERS)
        try:
            said = figures.newest() if epoch is None else figures.of(epoch)
        except PystateError:
            if epoch is None:
                return JSONResponse({"error": "it cannot be read now"}, 503, _HEADERS)
            problem = f"epoch {epoch} is not there, or not any more"
            return JSONResponse({"error": problem}, 404, _HEADERS)
        return JSONResponse(said, headers=_HEADERS)

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in own:
            return Response("not found", 404, _HEADERS, "text/plain")
        return Response(own[name], 200, _HEADERS, _TYPES[name.rpartition(".")[2]])

    routes = [Route("/", file), Route("/figures", answer), Route("/{name}", file)]
    # A page of another name that was made to lead to this machine gets nothing.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"])
    return Starlette(routes=routes, middleware=[hosts])


class Page:
    """Serves the page on this machine while a ``with`` block runs; port 0 is any that is free."""

    def __init__(self, figures: Figures, port: int = 0) -> None:
        try:
            import uvicorn

            app = application(figures)
        except ImportError as error:
            raise MissingPackageError(
                f"the dashboard needs starlette and uvicorn ({error}), of the extra 'demo' of "
                f"pystate-spark: {extra('demo')}"
            ) from error
        self._figures = figures
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((_HOST, port))
            # From now on a client is answered, as soon as the server runs.
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise InvalidArgumentError(
                f"--port {port} of {_HOST} cannot be used ({error.strerror}): give another, or none"
            ) from None
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            # No client, however slow, keeps the example running for longer.
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="page", daemon=True
        )

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_HOST}:{self._socket.getsockname()[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self._figures.close()


def asked(url: str, epoch: int | None = None) -> dict[str, Any]:
    """Ask a page for its figures, as its script does."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_SECONDS)
    try:
        connection.request("GET", "/figures" if epoch is None else f"/figures?epoch={epoch}")
        answer = connection.getresponse()
        said: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        raise CheckpointError(f"the page says: {said['error']}")
    return said
