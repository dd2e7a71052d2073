"""A statement in a process of its own, which the system gives no more memory than it may take.

The process is killed when it takes too long, or when nobody reads its rows any more. What it writes
is a sequence of frames: a letter, the length, and the content.

Thread safety: one thread reads a statement's rows; any may close it.
"""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import pyarrow as pa

from pystate import errors
from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, PystateError
from pystate.processor.epochs import MissingFileError
from pystate.query.connection import View
from pystate.query.sql.statement import Limits, memory_error, timeout_error

SCHEMA, BATCH, ERROR, LOST, END = b"S", b"B", b"E", b"L", b"."
_HEAD = struct.Struct("<cQ")
#: The process ends a statement itself; it has so long for it, and to begin.
_GRACE_SECONDS = 10


def write_frame(out: BinaryIO, kind: bytes, content: bytes) -> None:
    """Write a frame."""
    out.write(_HEAD.pack(kind, len(content)))
    out.write(content)
    out.flush()


def _written(view: View, query: str, parameters: Any, limits: Limits) -> bytes:
    """A request: the values of parameters as a row, the rest beside it."""
    named = isinstance(parameters, Mapping)
    given = parameters.items() if named else enumerate(parameters or ())
    columns = {}
    for name, value in given:
        try:
            columns[str(name)] = pa.array([value])
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidArgumentError(
                f"sql: parameter {name!r} is no value of SQL: {shown(value)}"
            ) from error
    request = {
        "location": view.connection.storage.uri,
        "epoch": view.epoch,
        "query": query,
        "named": named,
        "limits": {
            "timeout": limits.timeout_ms,
            "memory_bytes": limits.memory_bytes,
            "threads": limits.threads,
        },
    }
    row = pa.table(columns).replace_schema_metadata({"request": json.dumps(request)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_table(row)
    return sink.getvalue()


def read_request(source: Any) -> dict[str, Any]:
    """The request that was written, with `parameters`."""
    with pa.ipc.open_stream(source) as stream:
        row = stream.read_all()
    request: dict[str, Any] = json.loads((row.schema.metadata or {})[b"request"])
    values = {name: row.column(name)[0].as_py() for name in row.column_names}
    request["parameters"] = values if request.pop("named") else list(values.values())
    return request


class SeparateQuery:
    """A statement that runs in a process of its own."""

    def __init__(self, view: View, query: str, parameters: Any, limits: Limits) -> None:
        self._view, self._limits = view, limits
        self._late = False
        request = _written(view, query, parameters, limits)
        paths = [path for path in sys.path if path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pystate.query.sql.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # what Ctrl-C means is for this process to say
        )
        self._timer = threading.Timer(limits.timeout_ms / 1000 + _GRACE_SECONDS, self._end_in_time)
        self._timer.daemon = True
        self._timer.start()
        try:
            assert self._process.stdin is not None
            # If it has ended, what it has said is read below.
            with suppress(BrokenPipeError), self._process.stdin as request_to:
                request_to.write(request)
            self.schema = pa.ipc.read_schema(pa.py_buffer(self._frame(SCHEMA)))
        except BaseException:
            self.close()
            raise

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they are computed; once."""
        try:
            while content := self._frame(BATCH):
                with pa.ipc.open_stream(content) as stream:
                    yield from stream
        finally:
            self.close()

    def close(self) -> None:
        """End the process; does nothing the second time."""
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _frame(self, wanted: bytes) -> bytes:
        """The content of the next frame, which is of that kind; nothing at the end."""
        out = self._process.stdout
        assert out is not None
        head = out.read(_HEAD.size)
        kind, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
        content = out.read(length)
        if not kind or len(content) < length:
            raise self._ended()
        if kind == LOST:
            lost = MissingFileError(content.decode())
            lost.epoch = self._view.epoch
            raise lost
        if kind == ERROR:
            name, said = json.loads(content)
            raise getattr(errors, name, PystateError)(said)
        assert kind in (wanted, END)
        return content

    def _ended(self) -> PystateError:
        """Why the process has ended without an answer."""
        if self._late:
            return timeout_error(self._limits)
        if self._process.wait() <= 0:
            return memory_error(self._limits)
        return PystateError(
            "sql: the process of the statement has ended with an error: run "
            f"`{sys.executable} -m pystate.query.sql.child < /dev/null`, which says what is missing"
        )

    def _end_in_time(self) -> None:
        self._late = True
        self._process.kill()
