"""The page: its files, and the answers that only it asks for.

The files are in the package and come from memory, so that no path of a request ever becomes a path
of the machine. They hold nothing of a checkpoint, and need no token; all that is shown is asked for
by the scripts, with the token if there is one.

Thread safety: it belongs to the thread of the server's event loop; state is read by the server's
threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, PystateError
from pystate.query.json_form import document, parsed
from pystate.serve.jobs import Job, View
from pystate.serve.operations import Body, Call, Operation, Parameter, Service, Success
from pystate.serve.page_checks import Checks
from pystate.serve.page_data import MOST_EPOCHS, JobView
from pystate.serve.page_values import shown_rows
from pystate.serve.problems import RequestError
from pystate.serve.state_routes import EPOCH, JOB, UID

#: Nothing from elsewhere, no scripts or styles in the document, no frames around it, no forms sent;
#: and scripts cannot make elements out of text.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = tuple(
    (name.encode(), value.encode())
    for name, value in {
        "content-security-policy": CONTENT_SECURITY_POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }.items()
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_MOST_ROWS = 1000
_LONGEST_KEY = 16 << 10
_DOCUMENT = "index.html"

Ask = Callable[["_Shown", JobView, Mapping[str, Any]], Any]


class _Shown:
    """What one server's pages share: a view of each job, and the checks that run."""

    def __init__(self) -> None:
        self.checks = Checks()
        self._views: dict[str, JobView] = {}
        self._lock = threading.Lock()

    def view(self, job: Job) -> JobView:
        """The view of a job, which is opened once."""
        with self._lock:
            view = self._views.get(job.name)
        if view is None:
            made = JobView(job.location, job.name)
            with self._lock:
                view = self._views.setdefault(job.name, made)
        return view


_OF_SERVERS: WeakKeyDictionary[Service, _Shown] = WeakKeyDictionary()


def _shown_by(service: Service) -> _Shown:
    found = _OF_SERVERS.get(service)
    if found is None:
        found = _OF_SERVERS[service] = _Shown()
    return found


# -- files


def _own_files() -> dict[str, bytes]:
    """The page's files by name."""
    folder = files("pystate.serve") / "page_files"
    return {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in _TYPES
    }


_FILES = _own_files()


async def _document(call: Call) -> None:
    await _send_file(call, _DOCUMENT)


async def _file(call: Call) -> None:
    await _send_file(call, call.path["name"])


async def _send_file(call: Call, name: str) -> None:
    data = _FILES.get(name)
    if data is None:
        raise RequestError(404, f"the page has no file {name!r:.80}")
    length = (b"content-length", str(len(data)).encode())
    await call.begin(_TYPES[name.rpartition(".")[2]], None, (*_HEADERS, length))
    await call.more(data, last=True)


# -- answers


async def _pulse(call: Call) -> None:
    """Which epoch of each job is the newest: what the page asks each second."""
    service = call.service
    told, jobs = _shown_by(service), list(service.jobs.values())

    def look() -> bytes:
        said = []
        for job in jobs:
            try:
                said.append(told.view(job).pulse())
            except (PystateError, OSError) as error:
                said.append({"job": job.name, "error": service.jobs.veil.over(str(error))})
        return document({"jobs": said})

    await call.answer(await service.workers.run(look))


def _answering(ask: Ask, *, acts: bool = False) -> Callable[[Call], Any]:
    """What carries a route out that asks the view of a job."""

    async def carry_out(call: Call) -> None:
        if acts:
            _refuse_others(call)
        told, job, query = _shown_by(call.service), call.job, call.query

        def answer() -> bytes:
            return document(ask(told, told.view(job), query))

        await call.answer(await call.service.workers.run(answer))

    return carry_out


def _refuse_others(call: Call) -> None:
    """Refuse pages of other origins: they may send requests, although they cannot read answers."""
    if call.headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
        raise RequestError(403, "only this server's own page, or a program, may ask for this")


async def _sql(call: Call) -> None:
    """The first rows of a statement, as the page shows values."""
    _refuse_others(call)
    call.content()
    asked = parsed(await call.body(), "the body")
    statement = asked.get("query") if isinstance(asked, dict) else None
    if not isinstance(statement, str) or len(asked) > 1:
        raise InvalidArgumentError('the body is {"query": "select ..."}, and nothing else')
    limits = call.limits

    def read(view: View) -> bytes:
        found = view.reader.scan_sql(
            statement,
            timeout=limits.seconds * 1000,
            memory_bytes=limits.statement_bytes,
            isolated=True,
        )
        rows: list[Any] = []
        try:
            for batch in found:
                rows += shown_rows(batch.slice(0, _MOST_ROWS + 1 - len(rows)))
                if len(rows) > _MOST_ROWS:
                    break
        finally:
            found.close()
        more = len(rows) > _MOST_ROWS
        said = {"columns": found.schema.names, "rows": rows[:_MOST_ROWS], "more": more}
        return document({"epoch": view.epoch, **said})

    async with (
        call.service.statements.entered(limits.seconds),
        call.job.reading(*call.epochs, read) as (view, body),
    ):
        await call.answer(body, epoch=view.epoch)


def _key(query: Mapping[str, Any]) -> list[str | None]:
    """The key's columns as they were typed; None where one is null."""
    texts: list[str | None] = list(query["key"])
    if sum(len(text or "") for text in texts) > _LONGEST_KEY:
        raise InvalidArgumentError(f"a key of this page has at most {_LONGEST_KEY} characters")
    for place in query.get("null", ()):
        if place >= len(texts):
            raise InvalidArgumentError(
                f"null is the number of a column of the key, from 0 on, not {shown(place)}"
            )
        texts[place] = None
    return texts


_ANY = {"type": "object"}
_LAST = Parameter("last", f"So many epochs, {MOST_EPOCHS} at most.", int, least=1, example=120)
_SOME_UID = Parameter("uid", "Only this operator.", example="totals")
_RANGE = Parameter("range", "The number of the range whose files are listed.", int, example=0)
_KEY_TEXTS = Parameter(
    "key", "A key column as a person types it, one after the other.", many=True, required=True
)
_NULL = Parameter("null", "The number of a key column that is null.", int, many=True)
_PREFIX = "/v1/jobs/{job}/page"


def _route(
    path: str,
    name: str,
    summary: str,
    ask: Ask,
    parameters: tuple[Parameter, ...] = (),
    *,
    method: str = "GET",
    errors: tuple[int, ...] = (),
) -> Operation:
    return Operation(
        method,
        _PREFIX + path,
        _answering(ask, acts=method != "GET"),
        name,
        summary,
        Success("What the page shows; it may change with any version.", _ANY, has_epoch=False),
        (JOB, *parameters),
        errors=errors,
    )


_STATEMENT = Body(
    "A SELECT statement.",
    {
        "type": "object",
        "required": ["query"],
        "properties": {"query": {"type": "string"}},
        "additionalProperties": False,
    },
    example={"query": "select 1 as one"},
)

#: The routes of the page, which are the page's own: their answers follow what it shows.
ROUTES: tuple[Operation, ...] = (
    Operation(
        "GET",
        "/",
        _document,
        "page",
        "The page: the server's jobs in a browser.",
        Success("HTML.", {}, ("text/html",), has_epoch=False),
        is_open=True,
    ),
    Operation(
        "GET",
        "/page/{name}",
        _file,
        "pageFile",
        "A script, the style sheet or the icon of the page.",
        Success("The file.", {}, ("text/javascript", "text/css", "image/svg+xml"), has_epoch=False),
        (Parameter("name", "Its name.", required=True, example="main.js"),),
        is_open=True,
    ),
    Operation(
        "GET",
        "/v1/page/pulse",
        _pulse,
        "pagePulse",
        "The newest epoch of each job.",
        Success("What the page asks each second.", _ANY, has_epoch=False),
    ),
    _route("/overview", "pageOverview", "A job and its operators.", lambda _, v, q: v.overview()),
    _route(
        "/epochs",
        "pageEpochs",
        "What the last epochs took and moved, a list per figure.",
        lambda _, v, q: v.epochs(q.get("uid"), last=min(q.get("last", 120), MOST_EPOCHS)),
        (_SOME_UID, _LAST),
    ),
    _route(
        "/files",
        "pageFiles",
        "The chains of an operator's ranges, and the files of one.",
        lambda _, v, q: v.files(q["uid"], index=q.get("range")),
        (UID, _RANGE),
    ),
    _route(
        "/heat",
        "pageHeat",
        "An operator's key groups by rows and bytes.",
        lambda _, v, q: v.heat(q["uid"]),
        (UID,),
    ),
    _route(
        "/heaviest",
        "pageHeaviest",
        "An operator's heaviest keys, of all or of a sample.",
        lambda _, v, q: v.heaviest(q["uid"]),
        (UID,),
    ),
    _route(
        "/changed",
        "pageChanged",
        "The first changes of an epoch.",
        lambda _, v, q: v.changed(q["uid"], epoch=q.get("epoch")),
        (UID, EPOCH),
    ),
    _route(
        "/key",
        "pageKey",
        "All that one key has: states, namespaces, timers.",
        lambda _, v, q: v.key(q["uid"], _key(q), epoch=q.get("epoch")),
        (UID, _KEY_TEXTS, _NULL, EPOCH),
    ),
    Operation(
        "POST",
        f"{_PREFIX}/sql",
        _sql,
        "pageSql",
        f"The first {_MOST_ROWS} rows of a statement.",
        Success("What the page shows; it may change with any version.", _ANY),
        (JOB, EPOCH),
        _STATEMENT,
        errors=(403, 501),
    ),
    _route(
        "/verify",
        "pageCheck",
        "How far the last check of all files is, or what it has found.",
        lambda told, v, q: told.checks.progress(v),
    ),
    _route(
        "/verify",
        "pageBeginCheck",
        "Begin to check all files.",
        lambda told, v, q: told.checks.begin(v),
        method="POST",
        errors=(403,),
    ),
    _route(
        "/verify",
        "pageStopCheck",
        "End a check that runs.",
        lambda told, v, q: told.checks.stop(v),
        method="DELETE",
        errors=(403,),
    ),
)
