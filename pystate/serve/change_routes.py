"""What has changed: since an epoch, or in each one as it is published; and leases of epochs.

The changes of each epoch are server-sent events. A stream begins with an event `begin`, of the
epoch whose state the client is taken to know. For each epoch after it there are events `change`,
some rows of one operator each, and then one event `epoch`. Only `begin` and `epoch` have an id, the
epoch's number: so a client that connects again with the last id that it has seen, as browsers do by
themselves (Last-Event-ID), goes on after the last epoch that it has got whole, and gets the changes
of one that broke off again from their begin.

A lease is a file of the checkpoint, and nothing of the server's: it goes on when the server ends,
and a client renews it by any server of that checkpoint.

Thread safety: functions without state; `_Events` belongs to one request.
"""

from __future__ import annotations

import base64
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from pystate.base.arguments import integer, shown
from pystate.checkpoint.leases import LEASES, LeaseName, ended_leases
from pystate.checkpoint.storage import FileEntry
from pystate.errors import InvalidArgumentError, NotReachedError
from pystate.query.follow import EpochChanges, Follower
from pystate.query.json_form import document, rows_of
from pystate.query.lease import LeaseFiles
from pystate.query.waiting import EpochPosition
from pystate.serve.answers import answer_rows, pieces
from pystate.serve.jobs import View
from pystate.serve.operations import EVENTS, Body, Call, Operation, Parameter, Success
from pystate.serve.problems import BusyError, RequestError
from pystate.serve.state_routes import (
    EPOCHS,
    FORMS,
    FORMS_SAID,
    JOB,
    LIMIT,
    OPERATOR_PATH,
    SOME_ROWS,
    UID,
    answer_document,
    members,
)

#: After so long without an epoch a comment is sent, by which a client that is gone is found out.
_SILENCE_SECONDS = 15.0
_LEASE_ID = re.compile("[0-9a-f]{32}")
_MOST_EPOCH, _MOST_SECONDS = (1 << 63) - 1, 86_400


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
        yield _event("epoch", said_of(changes), changes.epoch)

    def close(self) -> None:
        """Read no more."""
        with self._turn, suppress(Exception):
            self._made.close()  # type: ignore[attr-defined]


def said_of(changes: EpochChanges) -> dict[str, Any]:
    """What is said of changes beside their rows."""
    return {
        "epoch": changes.epoch,
        "since": changes.since,
        "operators": list(changes.uids),
        "dropped": list(changes.dropped),
        "processing_time_ms": changes.processing_time_ms,
        "published_ms": changes.published_ms,
    }


_NUMBER, _NAMES = {"type": "integer"}, {"type": "array", "items": {"type": "string"}}
_CHANGED = {
    "type": "object",
    "required": ["epoch", "since", "operators", "dropped", "processing_time_ms", "published_ms"],
    "properties": {
        "epoch": _NUMBER,
        "since": _NUMBER,
        "operators": _NAMES,
        "dropped": _NAMES,
        "processing_time_ms": _NUMBER,
        "published_ms": _NUMBER,
    },
    "additionalProperties": False,
}


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
                    await call.job.reached(EpochPosition(follower.epoch + 1), _SILENCE_SECONDS)
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


# -- changes since an epoch


async def _changed(call: Call) -> None:
    since, uids = call.query["since"], call.query.get("operator")

    def read(view: View) -> bytes:
        return document(said_of(view.reader.changes(since, uids=uids)))

    await answer_document(call, read)


async def _operator_changes(call: Call) -> None:
    uid, since = call.path["uid"], call.query["since"]
    await answer_rows(
        call, lambda view: view.operator(uid).changes(since), gate=call.service.streams
    )


# -- leases


async def _ask_for_lease(call: Call) -> None:
    call.content()
    asked = members(await call.body(), ("epoch", "seconds"), ("id",))
    epoch = integer(asked["epoch"], "epoch", least=1, most=_MOST_EPOCH)
    seconds = integer(asked["seconds"], "seconds", least=1, most=_MOST_SECONDS)
    given = asked.get("id")
    name = uuid.uuid4().hex if given is None else _lease_id(given)
    job, most = call.job, call.limits.leases
    lease, storage = LeaseName(epoch, seconds, name), job.reader._place.connection.storage

    def write() -> None:
        found = storage.list(LEASES)
        before = _lease_of(found, name)
        if before is None:
            over = set(ended_leases(found, time.time_ns() // 1_000_000))
            if len(found) - len(over) >= most:
                raise BusyError(f"the job has {most} leases, and no more: ask again later")
        LeaseFiles(storage).write(lease, before)

    await job.newest()
    await call.service.workers.run(write)
    await call.answer(document({"id": name, "epoch": epoch, "seconds": seconds}))


async def _end_lease(call: Call) -> None:
    name = _lease_id(call.path["lease"])
    storage = call.job.reader._place.connection.storage

    def end() -> None:
        lease = _lease_of(storage.list(LEASES), name)
        if lease is None:
            raise RequestError(404, f"there is no lease {name}: it has ended")
        LeaseFiles(storage).end(lease)

    await call.service.workers.run(end)
    await call.answer(document({"id": name}))


def _lease_id(given: Any) -> str:
    if not isinstance(given, str) or not _LEASE_ID.fullmatch(given):
        raise InvalidArgumentError(
            f"the id of a lease is 32 hexadecimal digits, not {shown(given)}"
        )
    return given


def _lease_of(entries: Iterable[FileEntry], name: str) -> LeaseName | None:
    leases = (LeaseName.parse(entry.path) for entry in entries)
    return next((lease for lease in leases if lease is not None and lease.id == name), None)


_LEASE = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "epoch": {"type": "integer"},
        "seconds": {"type": "integer"},
    },
    "additionalProperties": False,
}
_SINCE = Parameter(
    "since",
    "A retained epoch; 0 for the empty state before the first.",
    int,
    required=True,
    example=41,
)

ROUTES = (
    Operation(
        "GET",
        "/v1/jobs/{job}/changed",
        _changed,
        "changed",
        "Which operators have changed since an epoch.",
        Success(
            "The operators that may have changes, and those that the job has dropped meanwhile.",
            _CHANGED,
        ),
        (
            JOB,
            _SINCE,
            Parameter("operator", "Only this operator; may be repeated.", many=True),
            *EPOCHS,
        ),
        errors=(410,),
    ),
    Operation(
        "GET",
        f"{OPERATOR_PATH}/changes",
        _operator_changes,
        "operator_changes",
        "What has changed in an operator since an epoch.",
        Success(
            "A row for each key whose states differ: the key, `change` (`put` or `delete`), "
            f"`before` and `after`. {FORMS_SAID}",
            SOME_ROWS,
            FORMS,
        ),
        (JOB, UID, _SINCE, *EPOCHS, LIMIT),
        is_watched=True,
        errors=(410,),
    ),
    Operation(
        "POST",
        "/v1/jobs/{job}/leases",
        _ask_for_lease,
        "ask_for_lease",
        "Ask the job to keep an epoch, and all later ones, for a while.",
        Success("The lease.", _LEASE, has_epoch=False),
        (JOB,),
        Body(
            "The epoch, and for how many seconds. With the `id` of a lease that one is renewed, "
            "and may move to a later epoch.",
            {
                "type": "object",
                "required": ["epoch", "seconds"],
                "properties": {
                    "epoch": {"type": "integer", "minimum": 1, "maximum": _MOST_EPOCH},
                    "seconds": {"type": "integer", "minimum": 1, "maximum": _MOST_SECONDS},
                    "id": {"type": "string", "pattern": f"^{_LEASE_ID.pattern}$"},
                },
                "additionalProperties": False,
            },
            example={"epoch": 1, "seconds": 60},
        ),
        errors=(410,),
        description="The job has bounds of its own, `Job(max_lease=...)`.",
    ),
    Operation(
        "DELETE",
        "/v1/jobs/{job}/leases/{lease}",
        _end_lease,
        "end_lease",
        "End a lease: the job may retire the epoch.",
        Success("It has ended.", _LEASE, has_epoch=False),
        (JOB, Parameter("lease", "Its id.", required=True, example="0" * 32)),
    ),
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
