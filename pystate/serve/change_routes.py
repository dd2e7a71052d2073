"""Changes as server-sent events: what each epoch has changed, as epochs are published.

A stream begins with an event `begin`, of the epoch whose state the client is taken to know. For
each epoch after it there are events `change`, some rows of one operator each, and then one event
`epoch`. Only `begin` and `epoch` have an id, the epoch's number: so a client that connects again
with the last id that it has seen, as browsers do by themselves (Last-Event-ID), goes on after the
last epoch that it has got whole, and gets the changes of one that broke off again from their begin.

Thread safety: functions without state; `_Events` belongs to one request.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from pystate.errors import InvalidArgumentError, NotReachedError
from pystate.query.follow import EpochChanges, Follower
from pystate.query.json_form import document, rows_of
from pystate.serve.answers import pieces
from pystate.serve.operations import EVENTS, Call, Operation, Parameter, Success
from pystate.serve.state_routes import JOB

#: After so long without an epoch a comment is sent, by which a client that is gone is found out.
_SILENCE_SECONDS = 15.0


class _Events:
    """The events of one epoch, made one after the other."""

    def __init__(self, changes: EpochChanges, *, as_arrow: bool) -> None:
        self._made = self._events(changes, as_arrow)
        self._turn = threading.Lock()

    def next(self) -> bytes | None:
        """The next event; None if there are no more."""
        with self._turn:
            return next(self._made, None)

    def _events(self, changes: EpochChanges, as_arrow: bool) -> Iterator[bytes]:
        for uid, batch in changes:
            for rows in pieces(iter([batch])):
                said: dict[str, Any] = {"epoch": changes.epoch, "operator": uid}
                if as_arrow:
                    said["arrow"] = base64.b64encode(_in_arrow(rows)).decode("ascii")
                else:
                    said["rows"] = rows_of(rows)
                yield _event("change", said)
        said = {
            "epoch": changes.epoch,
            "since": changes.since,
            "operators": list(changes.uids),
            "dropped": list(changes.dropped),
            "processing_time_ms": changes.processing_time_ms,
            "published_ms": changes.published_ms,
        }
        yield _event("epoch", said, changes.epoch)

    def close(self) -> None:
        """Read no more."""
        with self._turn, suppress(Exception):
            self._made.close()  # type: ignore[attr-defined]


def _in_arrow(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def _event(name: str, said: dict[str, Any], number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), document(said))


async def _changes(call: Call) -> None:
    service, job, query = call.service, call.job, call.query
    call.form()
    since, uids = query.get("since"), query.get("operator")
    last = call.headers.get(b"last-event-id")
    if last:
        if not last.isdigit() or len(last) > 18:
            raise InvalidArgumentError(
                "Last-Event-ID is the number of an epoch, as events here have it"
            )
        since = int(last)
    await job.newest()
    async with service.followers.entered_now():
        follower = await service.workers.run(lambda: job.reader.follow(since, uids=uids))
        try:
            await call.begin(EVENTS, None)
            await call.more(
                b"retry: 1000\n" + _event("begin", {"epoch": follower.epoch}, follower.epoch)
            )
            await _follow(call, follower)
        finally:
            follower.stop()


async def _follow(call: Call, follower: Follower) -> None:
    service = call.service
    try:
        while not service.stopping.is_set():
            changes = await service.workers.run(follower.next, 0)
            if changes is None:
                try:
                    await call.job.after(follower.epoch, _SILENCE_SECONDS)
                except NotReachedError:
                    if not service.stopping.is_set():
                        await call.more(b":\n\n")
                continue
            events = _Events(changes, as_arrow=call.query.get("arrow", False))
            try:
                while (event := await service.workers.run(events.next)) is not None:
                    await call.more(event)
            finally:
                service.workers.begin(events.close)
        await call.more(b"", last=True)
    except Exception as error:
        if service.stopping.is_set():
            await call.more(b"", last=True)
            return
        _, problem = service.jobs.veil.problem(error)
        await call.more(_event("error", problem), last=True)


ROUTES = (
    Operation(
        "GET",
        "/v1/jobs/{job}/changes",
        _changes,
        "changes",
        "What each epoch changes, as epochs are published.",
        Success(
            "Server-sent events: `begin`, with the epoch from which on changes follow; `change`, "
            "with `epoch`, `operator` and `rows`, of a key, `change` (`put` or `delete`), "
            "`before` and `after`; `epoch` after the last change of each epoch; and `error`, after "
            "which there is nothing more.",
            {},
            (EVENTS,),
            has_epoch=False,
        ),
        (
            JOB,
            Parameter(
                "since",
                "The epoch whose state is known: the first changes are those of the next one. By "
                "default the newest; the header Last-Event-ID counts in its place.",
                int,
                example=41,
            ),
            Parameter("operator", "Only this operator; may be repeated.", many=True),
            Parameter(
                "arrow", "Whether `change` has `arrow`, a stream in Base64, for `rows`.", bool
            ),
        ),
        is_watched=True,
        errors=(406, 410),
        description="A client that connects again sends the last id as Last-Event-ID. If the job "
        "has retired that epoch, status 410 says from which one to begin anew.",
    ),
)
