"""Rows as an answer: one JSON document, a JSON object per line, or a stream of Arrow.

What is read is read a part at a time, and a part is only read when the one before it is on its way
to the client: so an answer of any size takes the memory of a part.

A stream that cannot go on ends with what is wrong, in its own form: a line ``{"error": …}``, or a
batch without rows whose metadata have it; and then the connection is closed without the end that a
whole stream has, so that nobody takes it for one.

Thread safety: `Parts` belongs to one request, whose calls follow one another; it may be closed
meanwhile.
"""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from pystate.errors import InvalidArgumentError
from pystate.query.json_form import document, lines_of, rows_of
from pystate.serve.jobs import View
from pystate.serve.limits import Gate
from pystate.serve.operations import ARROW, JSON, LINES, Call
from pystate.serve.problems import BusyError

#: About the size of a part of a stream.
_PART_BYTES = 256 << 10
#: Rows of a document for which nobody has said how many.
FEW_ROWS = 1000
Rows = pa.RecordBatchReader | pa.Table


class Parts:
    """The parts of an answer, made one after the other."""

    def __init__(self, rows: Rows, form: str, limit: int | None, most: int) -> None:
        self.schema, self._source = rows.schema, rows
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        self._batches = pieces(iter(batches))
        self._form, self._limit, self._most = form, limit, most
        self._rows = self._size = 0
        self._turn = threading.Lock()
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, self.schema) if form == ARROW else None

    def next(self) -> tuple[bytes, bool]:
        """The next part, and whether it is the last one; parts of several small batches."""
        with self._turn:
            return self._next()

    def _next(self) -> tuple[bytes, bool]:
        size, made = 0, []
        while size < _PART_BYTES:
            batch = self._next_batch()
            if batch is None:
                if self._writer is not None:
                    self._writer.close()
                    made.append(self._written())
                return b"".join(made), True
            made.append(self._made(batch))
            size += len(made[-1])
        return b"".join(made), False

    def _made(self, batch: pa.RecordBatch) -> bytes:
        if self._writer is None:
            return lines_of(batch)
        self._writer.write_batch(batch)
        return self._written()

    def _written(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data

    def _next_batch(self) -> pa.RecordBatch | None:
        if self._limit is not None and self._rows >= self._limit:
            return None
        batch = next(self._batches, None)
        if batch is None:
            return None
        if self._limit is not None:
            batch = batch.slice(0, self._limit - self._rows)
        self._rows += batch.num_rows
        if self._rows > self._most:
            raise InvalidArgumentError(
                f"there are more rows than {self._most}, the most that this server gives in one "
                "answer: give limit=, or a condition"
            )
        return batch

    def rows(self, most: int, most_bytes: int) -> tuple[list[dict[str, Any]], bool, bool]:
        """Some more rows for a document; whether it is full, or there are no more."""
        with self._turn:
            batch = next(self._batches, None)
        if batch is None:
            return [], False, True
        left = most - self._rows
        kept = batch.slice(0, left)
        self._rows += kept.num_rows
        self._size += kept.nbytes
        return rows_of(kept), batch.num_rows > left or self._size > most_bytes, False

    def failed(self, problem: dict[str, Any]) -> bytes:
        """What a stream ends with that cannot go on."""
        if self._writer is None:
            return document(problem) + b"\n"
        empty = pa.RecordBatch.from_pylist([], self.schema)
        metadata = pa.KeyValueMetadata({b"error": document(problem["error"])})
        self._writer.write_batch(empty, custom_metadata=metadata)
        return self._written()

    def close(self) -> None:
        """Read no more, once the part that is being made has been."""
        with self._turn:
            if isinstance(self._source, pa.RecordBatchReader):
                self._source.close()


def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches cut to about the size of a part."""
    for batch in batches:
        rows = max(1, batch.num_rows * _PART_BYTES // max(1, batch.nbytes))
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, rows)


async def answer_rows(
    call: Call,
    read: Callable[[View], Rows],
    *,
    gate: Gate | None = None,
    is_whole: bool = False,
) -> None:
    """Answer with the rows that are read of a job; with those of all keys, if it `is_whole`.

    They wait for their turn at a `gate`.
    """
    form, limit, limits = call.form(), call.query.get("limit"), call.limits
    if form == JSON and not is_whole:
        if limit is not None and limit > limits.document_rows:
            raise InvalidArgumentError(
                f"limit is {limit}, and a JSON document has at most {limits.document_rows} rows: "
                f"ask for {LINES} or {ARROW} (Accept)"
            )
        limit = FEW_ROWS if limit is None else limit
    most = limits.rows

    def begin(view: View) -> tuple[Parts, Any]:
        parts = Parts(read(view), form, limit if form != JSON else None, most)
        try:
            # What is wrong with the request is found out while there is no answer yet.
            first = parts.rows(*bounds) if form == JSON else parts.next()
        except BaseException:
            parts.close()
            raise
        return parts, first

    bounds = (limit if limit is not None else limits.document_rows, limits.document_bytes)
    job = call.job
    async with _turn(gate, limits.seconds), job.reading(*call.epochs, begin) as (view, begun):
        parts, first = begun
        try:
            if form == JSON:
                await _answer_document(call, view, parts, first, bounds, is_whole=is_whole)
            else:
                await _stream(call, view, parts, first, form)
        finally:
            # A thread may be at work in it, if the client has gone away.
            call.service.workers.begin(parts.close)


@asynccontextmanager
async def _turn(gate: Gate | None, seconds: float) -> AsyncIterator[None]:
    if gate is None:
        yield
    else:
        async with gate.entered(seconds):
            yield


async def _answer_document(
    call: Call, view: View, parts: Parts, first: Any, bounds: tuple[int, int], *, is_whole: bool
) -> None:
    rows, full, ended = first
    while not full and not ended:
        more, full, ended = await call.service.workers.run(parts.rows, *bounds)
        rows += more
    if is_whole and full:
        raise InvalidArgumentError(
            f"the answer has more than {bounds[0]} rows, or {bounds[1]} bytes, the most that a "
            f"JSON document has: ask for fewer keys, or for {ARROW} (Accept)"
        )
    said = {"epoch": view.epoch, "rows": rows}
    if not is_whole:
        said["more"] = full
    body = await call.service.workers.run(document, said)
    await call.answer(body, epoch=view.epoch)


async def _stream(
    call: Call, view: View, parts: Parts, first: tuple[bytes, bool], form: str
) -> None:
    part, last = first
    if last:
        await call.answer(part, form, epoch=view.epoch)
        return
    end = time.monotonic() + call.limits.stream_seconds
    await call.begin(form, view.epoch)
    try:
        while True:
            await call.more(part, last=last)
            if last:
                return
            if time.monotonic() > end:
                raise BusyError(
                    f"the stream took longer than {call.limits.stream_seconds} seconds, the most "
                    "that this server gives to one: ask for less, or read faster"
                )
            part, last = await call.service.workers.run(parts.next)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        _, problem = call.service.jobs.veil.problem(error)
        await call.send(
            {"type": "http.response.body", "body": parts.failed(problem), "more_body": True}
        )
        raise StreamBrokenError from error


class StreamBrokenError(Exception):
    """A stream has ended early, and its client was told so: the connection is to be closed."""
