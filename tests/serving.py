"""Servers of live state for tests: in a thread of this process, on a port that is free."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import pystate as ps
from pystate.serve.limits import Limits
from pystate.serve.server import ServeOptions, Server

ARROW, LINES, JSON = (
    "application/vnd.apache.arrow.stream",
    "application/x-ndjson",
    "application/json",
)
OPERATOR = "/v1/jobs/shop/operators/embedded"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def said(self) -> str:
        """The message of an error."""
        error = self.json["error"]
        assert error["status"] == self.status and "\n" not in error["message"]
        return f"{error['type']}: {error['message']}"


@contextmanager
def served(folders: Mapping[str, Path | str], **options: Any) -> Iterator[Server]:
    """Serve checkpoints while a block runs; limits and options by their names."""
    names = {n for n in Limits.__dataclass_fields__ if n in options}
    limits = replace(Limits(), **{name: options.pop(name) for name in names})
    chosen = ServeOptions(**{"port": 0, "refresh_seconds": 0.02, "limits": limits, **options})
    server, begun = Server({n: str(p) for n, p in folders.items()}, chosen), threading.Event()
    thread = threading.Thread(target=server.run, args=(begun.set,), daemon=True)
    thread.start()
    assert begun.wait(30)
    try:
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


def address(server: Server) -> tuple[str, int]:
    host, _, port = server.url.rpartition("//")[2].rpartition(":")
    return host.strip("[]"), int(port)


def ask(
    server: Server, path: str, body: bytes | dict[str, Any] | None = None, **headers: str
) -> Answer:
    """Ask for a path: GET, or POST where there is a body, which is JSON if it is a dict."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(body, dict):
        body, sent = json.dumps(body).encode(), {"Content-Type": JSON, **sent}
    connection = http.client.HTTPConnection(*address(server), timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, sent)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def in_arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def shop(folder: Path, rows: int = 3) -> ps.Store:
    """A store of words with a count and a map each, after one checkpoint; left open."""
    store = ps.open(
        folder,
        key="string",
        states={"n": ps.ValueState("long"), "seen": ps.MapState("string", "long")},
    )
    words = [f"word {i}" for i in range(rows)]
    store["n"].update_all(store.keys(words), pa.array(range(rows)))
    store.set_current_key("word 0")
    store["seen"].put_all({"x": 1, "y": 2, "z": 3})
    store.checkpoint()
    return store
