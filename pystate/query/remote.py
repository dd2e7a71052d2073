"""A reader of state that a server has: the methods of `StateReader`, over HTTP.

Keys and rows go as streams of Arrow, and what is wrong comes back as the error that it is for a
reader of files. A reader reads one epoch, which each of its requests names; where the job has
retired that epoch meanwhile, it moves to the newest one, once in a call.

Thread safety: any thread; a request has a connection to itself, and connections are used again.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

import pyarrow as pa

from pystate import errors
from pystate.base.arguments import integer, nearest, shown, text
from pystate.checkpoint.leases import LeaseName
from pystate.errors import ClosedError, InvalidArgumentError, NotReachedError, ServerError
from pystate.processor.epochs import NotHeldError
from pystate.query.follow import EpochChanges, checked_uids, lease_of_follower, poll_seconds
from pystate.query.json_form import values_of
from pystate.query.lease import DURATION as LEASED
from pystate.query.lease import Lease
from pystate.query.operator_reader import OperatorReader
from pystate.query.reader import StateReader
from pystate.query.remote_follow import AskedChanges, RemoteFollower
from pystate.query.retired import lost_error
from pystate.query.waiting import form_of, not_reached_error, parse_position, pinned_error
from pystate.redaction import logger
from pystate.state.columns import NAMESPACE
from pystate.state.declaration import State
from pystate.state.kinds import stored_state
from pystate.state.ttl import StateTtl
from pystate.types.arrays import as_array
from pystate.types.durations import Duration, milliseconds
from pystate.types.keys import key_columns, parse_key
from pystate.types.state_type import parse_type

_LOG = logger("pystate.query.remote")
_ARROW, _JSON = "application/vnd.apache.arrow.stream", "application/json"
_EVENTS = "text/event-stream"
_TIMEOUT_SECONDS = 60.0
_IDLE = 8
_TOKEN = re.compile("[!-~]+")
#: For so long one request waits for an epoch, after which another one does.
_WAIT_MS = 1000
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
Result = TypeVar("Result")


class Server:
    """The connections to a server, and what it is asked for."""

    def __init__(self, url: str, token: str | None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            is_one = not (parts.query or parts.fragment or parts.username is not None)
        except ValueError:
            host = None
        if not host or not is_one:
            raise InvalidArgumentError(
                f"connect: {shown(url)} is not the address of a server: write "
                "http://127.0.0.1:8765 or http://127.0.0.1:8765/shop, and give the token by itself"
            )
        self._host, self._port = host, port
        self._is_secure = parts.scheme == "https"
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._token = None if token is None else text(token, "connect: token").strip()
        if self._token is not None and not _TOKEN.fullmatch(self._token):
            raise InvalidArgumentError(
                "connect: token has characters that none has: it is the text in the file of the "
                "server's --token-file"
            )
        self._context: ssl.SSLContext | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._closed = False

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        media: str = _JSON,
        form: str = _ARROW,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> Reply:
        """Send a request, and return its answer once it has begun; or raise the error it tells."""
        if self._closed:
            raise ClosedError(f"the reader of {self.origin} is closed: connect again")
        if self._process != os.getpid():
            self._begin()  # what the parent has open is none of a forked child's
        headers = {"Accept": form, "Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = media
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        while True:
            connection, is_used = self._connection(timeout)
            try:
                response = _response(connection, method, path, body, headers)
            except _STALE as error:
                connection.close()
                if is_used:
                    continue  # the server has closed it meanwhile
                raise self._unreached(error) from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                raise self._unreached(error) from error
            reply = Reply(self, connection, response)
            if response.status != 200:
                raise reply.problem()
            return reply

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            return connection, True
        if not self._is_secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout), False
        if self._context is None:
            self._context = ssl.create_default_context()
        made = http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout, context=self._context
        )
        return made, False

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close what is not in use, and end leases; nothing more is asked."""
        for lease in list(self.leases):
            lease.close()
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _unreached(self, error: Exception) -> ServerError:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return ServerError(
            f"the server {self.origin} cannot be reached, or has broken off: {said:.500}: see "
            "whether `pystate serve` runs there"
        )


def _response(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
) -> http.client.HTTPResponse:
    try:
        connection.request(method, path, body, headers)
    except (BrokenPipeError, ConnectionResetError):
        # A server that refuses a body says so without reading it.
        if body is None or connection.sock is None:
            raise
        with suppress(OSError, http.client.HTTPException):
            response = http.client.HTTPResponse(connection.sock, method=method)
            response.begin()
            return response
        raise
    return connection.getresponse()


class Reply:
    """An answer that has begun."""

    def __init__(
        self,
        server: Server,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
    ) -> None:
        self._server, self._connection, self._response = server, connection, response

    @property
    def connection(self) -> http.client.HTTPConnection:
        """The connection, of which this is all that comes."""
        return self._connection

    def lines(self) -> Iterator[bytes]:
        """Its lines, as they come."""
        while line := self._response.readline():
            yield line

    def broken(self, error: Exception) -> ServerError:
        """The error where it has broken off."""
        return self._server._unreached(error)

    def told(self, said: Mapping[str, Any]) -> Exception:
        """An error of which it tells."""
        return error_of(said)

    def data(self) -> bytes:
        """All of it."""
        try:
            data = self._response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._server._unreached(error) from error
        self._end()
        return data

    def document(self, *members: str) -> Any:
        """A JSON object that has some members."""
        data = self.data()
        with suppress(ValueError, RecursionError):
            found = json.loads(data)
            if isinstance(found, dict) and found.keys() >= {*members}:
                return found
        raise self._unknown()

    def rows(self) -> pa.RecordBatchReader:
        """A stream of Arrow, read as it is asked for."""
        try:
            stream = pa.ipc.open_stream(self._response)
        except (pa.ArrowException, OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._server._unreached(error) from error
        batches = self._batches(stream)
        next(batches)  # begun, so that it ends for who reads nothing of it, too
        return pa.RecordBatchReader.from_batches(stream.schema, batches)

    def _batches(self, stream: Any) -> Iterator[Any]:
        is_whole = False
        try:
            yield None
            while True:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
                if metadata is not None and b"error" in metadata:
                    raise error_of(json.loads(metadata[b"error"]))
                yield batch
        except StopIteration:
            self._response.read()
            is_whole = True
        except (pa.ArrowException, OSError, http.client.HTTPException) as error:
            if isinstance(error, errors.PystateError):
                raise
            raise self._server._unreached(error) from error
        finally:
            if is_whole:
                self._end()
            else:
                self._connection.close()

    def problem(self) -> Exception:
        """The error that it tells."""
        data = self.data()
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            error = error_of(json.loads(data)["error"])
            if self._response.status != 401:
                return error
            return ServerError(
                f"{self._server.origin}: {error}; give connect the text in the file of the "
                "server's --token-file, by `token`"
            )
        return self._unknown()

    def _unknown(self) -> ServerError:
        return ServerError(
            f"{self._server.origin} answers with status {self._response.status}, and nothing that "
            "a pystate server says: see whether the address is that of `pystate serve`"
        )

    def _end(self) -> None:
        if self._response.will_close:
            self._connection.close()
        else:
            self._server.keep(self._connection)


def error_of(said: Mapping[str, Any]) -> Exception:
    """The error that a server tells: of the class that a reader of files would raise."""
    name, message, status = str(said["type"]), str(said["message"]), int(said.get("status", 0))
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    if status in (401, 408, 421, 429) or kind is None:
        return ServerError(message)
    if status == 404 and kind in (errors.CheckpointError, InvalidArgumentError):
        kind = NotHeldError
    error: Exception = kind(message)
    for attribute in ("epoch", "start_at"):
        if attribute in said and hasattr(kind, attribute):
            setattr(error, attribute, said[attribute])
    return error


class RemoteLeases:
    """Leases that a server has for its clients."""

    def __init__(self, server: Server, where: str, path: str) -> None:
        self._server, self.where, self._path = server, where, path

    def write(self, lease: LeaseName, before: LeaseName | None) -> None:
        """Ask for a lease, or once more; as `Leases.write`."""
        asked = {"epoch": lease.epoch, "seconds": lease.seconds, "id": lease.id}
        body = json.dumps(asked).encode()
        self._server.ask("POST", self._path, body, form=_JSON).document()

    def end(self, lease: LeaseName) -> None:
        """Ask for it no more; as `Leases.end`."""
        with suppress(errors.PystateError):
            self._server.ask("DELETE", f"{self._path}/{lease.id}", form=_JSON).document()


class RemoteReader(StateReader):
    """Reads a job that a server has, as of one epoch; `pystate.connect` makes it."""

    def __init__(
        self, server: Server, job: str, epoch: int | None, *, owns: bool = True, pin: bool = False
    ) -> None:
        self._server, self._job, self._owns = server, job, owns
        self._pinned = pin or epoch is not None
        self._is_closed = False
        self._known: tuple[int, dict[str, Any]] = (0, {})
        self._moving = threading.Lock()
        self._followers: weakref.WeakSet[RemoteFollower] = weakref.WeakSet()
        said = self._ask_job({} if epoch is None else {"epoch": epoch})
        self._epoch, self._uids = int(said["epoch"]), tuple(said["operators"])

    @property
    def location(self) -> str:
        """The server, and the job."""
        return f"{self._server.origin}/{quote(self._job, safe='')}"

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._epoch

    @property
    def uids(self) -> tuple[str, ...]:
        """The operators of the epoch."""
        return self._uids

    def epochs(self) -> pa.Table:
        """List the epochs that are retained; as `StateReader.epochs`."""
        self._check()
        return self._server.ask("GET", self._path("epochs", {})).rows().read_all()

    def refresh(self) -> int:
        """Move to the newest epoch, and return its number; as `StateReader.refresh`."""
        self._check()
        if not self._pinned:
            with self._moving:
                self._move(self._ask_job({}))
        return self._epoch

    def wait_for(
        self, *, epoch: int | None = None, position: Any = None, timeout: Duration = "10 seconds"
    ) -> int:
        """Move to the newest epoch once it has what somebody wrote; as `StateReader.wait_for`."""
        self._check()
        wanted = parse_position(epoch, position)
        ends = time.monotonic() + milliseconds(timeout, "wait_for: timeout") / 1000
        asked: dict[str, Any] = {"position": None if position is None else form_of(position)}
        if self._pinned:
            if epoch is not None and self._epoch < epoch:
                raise pinned_error(self._epoch, wanted)
            asked["epoch"] = self._epoch
        elif epoch is not None:
            asked["min_epoch"] = epoch
        while True:
            left_ms = max(0, int((ends - time.monotonic()) * 1000))
            try:
                self._move(self._ask_job({**asked, "wait_ms": min(left_ms, _WAIT_MS)}))
                return self._epoch
            except NotReachedError:
                self._check()
                if self._pinned:
                    raise pinned_error(self._epoch, wanted) from None
                if time.monotonic() >= ends:
                    newest = self.refresh()
                    raise not_reached_error(self.location, wanted, timeout, newest) from None

    def at(self, epoch: int) -> RemoteReader:
        """Return a reader that is pinned to an epoch; as `StateReader.at`."""
        self._check()
        number = integer(epoch, "at: epoch", least=1)
        return RemoteReader(self._server, self._job, number, owns=False)

    def follow(
        self,
        since: int | None = None,
        *,
        uids: list[str] | None = None,
        lease: bool | Duration = False,
        poll: Duration | None = None,
    ) -> RemoteFollower:
        """Follow the epochs that are published; as `StateReader.follow`.

        The server looks for the next one by its own time. An epoch is given when all of its changes
        have come; what is large of them waits in a temporary file.
        """
        self._check()
        if poll is not None:
            poll_seconds(poll)
        begin = self._epoch if since is None else integer(since, "follow: since", least=0)
        query = {"since": begin, "operator": checked_uids(uids), "arrow": "true"}
        held = lease_of_follower(self._leases(), begin, lease)
        try:
            reply = self._server.ask("GET", self._path("changes", query), form=_EVENTS)
        except BaseException:
            if held is not None:
                held.close()
            raise
        if held is not None:
            self._server.leases.add(held)
        follower = RemoteFollower(reply, begin, held, self.schema_of_changes)
        self._followers.add(follower)
        return follower

    def changes(self, since: int, *, uids: list[str] | None = None) -> EpochChanges:
        """Find what has changed since an epoch; as `StateReader.changes`."""
        self._check()
        number = integer(since, "changes: since", least=0)
        query = {"since": number, "operator": checked_uids(uids)}

        def ask(epoch: int) -> Any:
            path = self._path("changed", {"epoch": epoch, **query})
            return self._server.ask("GET", path, form=_JSON).document("operators", "dropped")

        return AskedChanges(self.read(ask), self.changed_rows)

    def changed_rows(
        self, uid: str, since: int, epoch: int, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """What has changed in an operator since an epoch, up to another one."""
        self._check()
        query = {"since": since, "epoch": epoch, "limit": limit}
        path = self._path(f"operators/{quote(uid, safe='')}/changes", query)
        try:
            return self._server.ask("GET", path).rows()
        except NotHeldError as error:
            if self._holds(epoch):
                raise
            newest = int(self._ask_job({})["epoch"])
            retired = errors.RetiredEpochError(
                f"{error}: read the state of epoch {newest}, and go on with follow(since={newest})"
            )
            retired.epoch, retired.start_at = since, newest
            raise retired from None

    def schema_of_changes(self, uid: str, epoch: int) -> pa.Schema:
        """The columns of an operator's changes."""
        return self.changed_rows(uid, epoch, epoch, 0).schema

    def _holds(self, epoch: int) -> bool:
        with suppress(NotHeldError):
            self._ask_job({"epoch": epoch})
            return True
        return False

    def lease(self, duration: Duration = LEASED) -> Lease:
        """Ask the job to keep the epoch, by the server; as `StateReader.lease`."""
        self._check()
        lease = Lease(self._leases(), self._epoch, duration)
        self._server.leases.add(lease)
        return lease

    def _leases(self) -> RemoteLeases:
        return RemoteLeases(self._server, self.location, self._path("leases", {}))

    def sql(
        self,
        query: str,
        parameters: list[Any] | Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> pa.Table:
        """Run a SELECT statement, within the bounds of the server; as `StateReader.sql`."""
        return self.scan_sql(query, parameters, **limits).read_all()

    def scan_sql(
        self,
        query: str,
        parameters: list[Any] | Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> pa.RecordBatchReader:
        """Run a SELECT statement, and read its rows as they come; as `StateReader.scan_sql`."""
        self._check()
        if limits:
            raise InvalidArgumentError(
                f"sql: {', '.join(limits)}: a server has bounds of its own for statements: leave "
                "them out"
            )
        asked: dict[str, Any] = {"query": query}
        if parameters is not None:
            asked["parameters"] = parameters
        try:
            body = json.dumps(asked).encode()
        except TypeError as error:
            raise InvalidArgumentError(
                f"sql: a server takes parameters that JSON has, or as text: {error}"
            ) from error
        return self.read(lambda epoch: self._post("sql", epoch, body).rows())

    def sql_tables(self) -> pa.Table:
        """List the tables that statements may name; as `StateReader.sql_tables`."""
        self._check()

        def read(epoch: int) -> pa.Table:
            path = self._path("sql/tables", {"epoch": epoch})
            return self._server.ask("GET", path).rows().read_all()

        return self.read(read)

    def close(self) -> None:
        """Close the connections; does nothing the second time."""
        self._is_closed = True
        for follower in list(self._followers):
            follower.stop()
        if self._owns:
            self._server.close()

    def __getitem__(self, uid: str) -> RemoteOperator:
        self._check()
        reader = RemoteOperator(self, text(uid, "reader[uid]: uid"))
        reader._described()
        return reader

    def __repr__(self) -> str:
        return f"<StateReader of {self.location} at epoch {self.epoch}>"

    def read(self, read: Callable[[int], Result]) -> Result:
        """Read the epoch, or the newest one if the job has retired it meanwhile."""
        self._check()
        epoch = self._epoch
        try:
            return read(epoch)
        except errors.CheckpointError as error:
            if self._pinned and isinstance(error, NotHeldError) and not self._holds(epoch):
                raise NotHeldError(
                    f"{error}; the reader was pinned to epoch {epoch}, which is retired"
                ) from None
            if self._pinned or self.refresh() == epoch:
                raise
            moved = self._epoch
            _LOG.warning(
                "%s: epoch %d was retired while it was read: epoch %d is read from now on",
                self.location,
                epoch,
                moved,
            )
            try:
                return read(moved)
            except errors.CheckpointError as again:
                if moved in self.epochs()["epoch"].to_pylist():
                    raise
                raise lost_error(self.location, epoch, moved) from again

    def operators(self, epoch: int) -> dict[str, Any]:
        """What the server says of the operators of an epoch, by uid."""
        known, found = self._known
        if known != epoch:
            path = self._path("operators", {"epoch": epoch})
            said = self._server.ask("GET", path, form=_JSON).document("operators")
            found = {each["uid"]: each for each in said["operators"]}
            self._known = (epoch, found)
        return found

    def _move(self, said: Mapping[str, Any]) -> None:
        self._epoch, self._uids = int(said["epoch"]), tuple(said["operators"])

    def _ask_job(self, query: Mapping[str, Any]) -> Any:
        reply = self._server.ask("GET", self._path("", query), form=_JSON)
        return reply.document("epoch", "operators")

    def _post(self, part: str, epoch: int, body: bytes, media: str = _JSON) -> Reply:
        return self._server.ask("POST", self._path(part, {"epoch": epoch}), body, media=media)

    def _path(self, part: str, query: Mapping[str, Any]) -> str:
        path = f"/v1/jobs/{quote(self._job, safe='')}{'/' if part else ''}{part}"
        given = {name: value for name, value in query.items() if value is not None}
        return f"{path}?{urlencode(given, doseq=True)}" if given else path

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the reader of {self.location} is closed: connect again")


class RemoteOperator(OperatorReader):
    """The state of one operator of a `RemoteReader`, as of its epoch."""

    def __init__(self, reader: RemoteReader, uid: str) -> None:
        self._reader, self.uid = reader, uid

    @property
    def schema(self) -> pa.Schema:
        """The columns of `get` and `scan`; as `OperatorReader.schema`."""
        data = base64.b64decode(self._described()["schema"])
        return pa.ipc.read_schema(pa.py_buffer(data))

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key."""
        key = parse_key([(each["name"], each["type"]) for each in self._described()["key"]])
        return pa.schema([pa.field(name, type_.arrow) for name, type_ in key])

    @property
    def states(self) -> dict[str, State[Any]]:
        """The states by name, with their declarations."""
        return {each["name"]: _declared(self.uid, each) for each in self._described()["states"]}

    def get(
        self, keys: Any, *, states: list[str] | None = None, namespaces: Any = None
    ) -> pa.Table:
        """Look keys up; as `OperatorReader.get`."""
        key = parse_key([(each["name"], each["type"]) for each in self._described()["key"]])
        columns = {
            name: as_array(column, type_, f"key column {name!r}")
            for (name, type_), column in zip(key, key_columns(key, keys), strict=True)
        }
        if namespaces is not None:
            type_name = self._described()["namespace"]
            if type_name is None:
                raise InvalidArgumentError(f"operator {self.uid!r} has no namespaces")
            columns[NAMESPACE] = as_array(namespaces, parse_type(type_name), "the namespaces")
        if len({len(column) for column in columns.values()}) != 1:
            raise InvalidArgumentError("get: the columns of keys, and namespaces, have one length")
        body = _in_arrow(pa.table(columns))
        query = {"state": _names(states, "get: states")}

        def read(epoch: int) -> pa.Table:
            path = self._path("get", {"epoch": epoch, **query})
            reply = self._reader._server.ask("POST", path, body, media=_ARROW)
            return reply.rows().read_all()

        return self._reader.read(read)

    def entries(
        self, state: str, key: Any, *, from_: Any = None, to: Any = None, namespace: Any = None
    ) -> pa.RecordBatchReader:
        """Read one key's map or list, or a piece of it; as `OperatorReader.entries`."""
        schema = self.key_schema
        parts = key if len(schema) > 1 and isinstance(key, tuple) else (key,)
        if len(parts) != len(schema):
            raise InvalidArgumentError(
                f"entries: a key has {len(schema)} columns, and {shown(key)} has {len(parts)}"
            )
        values = [
            _form_of([part], field.type, f"key column {field.name!r}")[0]
            for part, field in zip(parts, schema, strict=True)
        ]
        query: dict[str, Any] = {"state": text(state, "entries: state")}
        only = len(values) == 1
        query["key"] = _text(values[0], schema.field(0).type) if only else json.dumps(values)
        declared = self.states.get(state)
        element = getattr(declared, "key_type", None)
        bound_type = pa.int64() if element is None else element.arrow
        for name, bound in (("from_", from_), ("to", to)):
            if bound is not None:
                value = _form_of([bound], bound_type, f"entries: {name}")[0]
                query[name.rstrip("_")] = _text(value, bound_type)
        if namespace is not None:
            if self._described()["namespace"] is None:
                raise InvalidArgumentError(f"operator {self.uid!r} has no namespaces")
            space = parse_type(self._described()["namespace"]).arrow
            query["namespace"] = _text(_form_of([namespace], space, "the namespace")[0], space)

        def read(epoch: int) -> pa.RecordBatchReader:
            path = self._path("entries", {"epoch": epoch, **query})
            return self._reader._server.ask("GET", path).rows()

        return self._reader.read(read)

    def scan(
        self, *, columns: list[str] | None = None, where: Any = None, key_groups: Any = None
    ) -> pa.RecordBatchReader:
        """Read all rows, or those for which a condition holds; as `OperatorReader.scan`."""
        asked: dict[str, Any] = {}
        if columns is not None:
            asked["columns"] = _names(columns, "scan: columns")
        if where is not None:
            asked["where"] = self._where(where)
        if key_groups is not None:
            asked["key_groups"] = [integer(group, "a key group", least=0) for group in key_groups]
        body = json.dumps(asked).encode()

        def read(epoch: int) -> pa.RecordBatchReader:
            path = self._path("scan", {"epoch": epoch})
            return self._reader._server.ask("POST", path, body).rows()

        return self._reader.read(read)

    def timers(
        self, *, domain: str | None = None, until: int | None = None
    ) -> pa.RecordBatchReader:
        """Read the timers; as `OperatorReader.timers`."""

        def read(epoch: int) -> pa.RecordBatchReader:
            path = self._path("timers", {"epoch": epoch, "domain": domain, "until": until})
            return self._reader._server.ask("GET", path).rows()

        return self._reader.read(read)

    def changes(self, since: int) -> pa.RecordBatchReader:
        """Find what has changed since an epoch; as `OperatorReader.changes`."""
        number, reader = integer(since, "changes: since", least=0), self._reader
        return reader.read(lambda epoch: reader.changed_rows(self.uid, number, epoch))

    def __repr__(self) -> str:
        return f"<OperatorReader of {self.uid!r} at epoch {self._reader.epoch}>"

    def _described(self) -> Any:
        """What the server says of the operator."""

        def read(epoch: int) -> Any:
            found = self._reader.operators(epoch)
            if self.uid not in found:
                known = ", ".join(map(repr, found)) or "none"
                raise NotHeldError(
                    f"{self._reader.location} has no operator {self.uid!r:.80} in epoch {epoch}; "
                    f"it has {known}{nearest(self.uid, found)}"
                )
            return found[self.uid]

        return self._reader.read(read)

    def _where(self, where: Any) -> Any:
        """Conditions in the form of JSON."""
        if not isinstance(where, (list, tuple)) or not where:
            raise InvalidArgumentError(
                f"where is a list of conditions, not {shown(where)}: write [('n', '>', 3)]"
            )
        if len(where) != 3 or not isinstance(where[0], str):
            return [self._where(each) for each in where]
        column, op, value = where
        schema = self.schema
        if schema.get_field_index(column) < 0 or not isinstance(op, str):
            return [column, op if isinstance(op, str) else shown(op), 0]  # what is wrong, it says
        type_, what = (
            schema.field(column).type,
            f"where: column {column!r} of operator {self.uid!r}",
        )
        if value is None or pa.types.is_nested(type_):
            return [column, op, None if value is None else 0]
        if op not in ("in", "not in"):
            return [column, op, _form_of([value], type_, what)[0]]
        if isinstance(value, (set, frozenset, range)):
            value = list(value)
        return [column, op, _form_of(value, type_, what)]

    def _path(self, part: str, query: Mapping[str, Any]) -> str:
        return self._reader._path(f"operators/{quote(self.uid, safe='')}/{part}", query)


def _declared(uid: str, said: Mapping[str, Any]) -> State[Any]:
    """A state as a server describes it."""
    ttl = said.get("ttl")
    stored = stored_state(uid, said["name"], said["stored"])
    return stored if ttl is None else stored.expiring_by(StateTtl.from_stored(ttl))


def _names(names: Any, what: str) -> list[str] | None:
    if names is not None and not isinstance(names, (list, tuple)):
        raise InvalidArgumentError(f"{what} is a list of names, not {shown(names)}")
    return None if names is None else [text(name, what) for name in names]


def _form_of(values: Any, type_: pa.DataType, what: str) -> list[Any]:
    """Values of a user in the form of JSON."""
    return values_of(as_array(values, parse_type(type_), what))


def _text(value: Any, type_: pa.DataType) -> str:
    """A value in the form of JSON as the text that a parameter has."""
    if value is None and pa.types.is_string(type_):
        raise InvalidArgumentError("entries: a null text is no key of a server's: use scan or get")
    return value if isinstance(value, str) else json.dumps(value)


def _in_arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def connect_remote(url: str, epoch: int | None, token: str | None) -> RemoteReader:
    """Read a job of a server: that of the URL's path, or the only one."""
    server = Server(url, token)
    path = urlsplit(url).path.strip("/").removeprefix("v1/jobs").strip("/")
    try:
        if not path:
            found = server.ask("GET", "/v1/jobs", form=_JSON).document("jobs")["jobs"]
            names = [each["name"] for each in found]
            if len(names) != 1:
                raise InvalidArgumentError(
                    f"connect: {server.origin} has the jobs {', '.join(map(repr, names))}: name "
                    f"one, {server.origin}/{names[0] if names else 'JOB'}"
                )
            path = quote(names[0], safe="")
        return RemoteReader(server, unquote(path), epoch)
    except BaseException:
        server.close()
        raise
