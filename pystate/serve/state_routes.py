"""The routes that read state: jobs, operators, keys, rows, elements, timers, epochs and SQL.

Thread safety: functions without state.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, NotReachedError, WrongTypeError
from pystate.query.json_form import (
    column_of,
    document,
    key_of_text,
    keys_of,
    parsed,
    rows_of,
    value_of_text,
)
from pystate.query.operator_reader import OperatorReader
from pystate.query.waiting import parse_position
from pystate.serve.answers import FEW_ROWS, Rows, answer_rows
from pystate.serve.jobs import View
from pystate.serve.operations import ARROW, JSON, LINES, Body, Call, Operation, Parameter, Success
from pystate.state.columns import NAMESPACE
from pystate.state.declaration import State
from pystate.state.map import MapState
from pystate.types.state_type import parse_type

#: The type of a body that is SQL.
SQL = "application/sql"
#: Keys of an Arrow answer that are looked up at a time.
_KEYS_AT_ONCE = 1 << 15
#: So many keys are looked up at once if they are at hand.
_FEW_KEYS = 8

JOB = Parameter("job", "The name of a job.", required=True, example="shop")
UID = Parameter("uid", "The uid of an operator.", required=True, example="totals")
EPOCH = Parameter(
    "epoch", "Read this epoch, which is retained, and no other.", int, least=1, example=42
)
MIN_EPOCH = Parameter(
    "min_epoch",
    "Read the newest epoch, and wait for this one if it is not there yet.",
    int,
    least=1,
    example=42,
)
WAIT = Parameter(
    "wait_ms",
    "With `min_epoch`, or a position: for how many milliseconds at most. The server has a bound of "
    "its own.",
    int,
    example=5000,
)
EPOCHS = (EPOCH, MIN_EPOCH, WAIT)
LIMIT = Parameter(
    "limit",
    f"So many rows at most; of a JSON document {FEW_ROWS} if nothing is said, else all.",
    int,
    example=100,
)
STATES = Parameter("state", "Only this state; may be repeated.", many=True, example="n")
KEY = (
    "The key column's value: a text as it is, anything else as JSON has it. Of a key of several "
    'columns a JSON list of their values, such as `["a", 1]`.'
)

_VALUE: dict[str, Any] = {"description": "A value in the form of JSON; see Values."}
_ROW: dict[str, Any] = {"type": "object", "additionalProperties": _VALUE}
_ROWS = {"type": "array", "items": _ROW}
_NAMES = {"type": "array", "items": {"type": "string"}, "example": ["n"]}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Any:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


_INTEGER, _TEXT = {"type": "integer"}, {"type": "string"}
_ALL_ROWS = _object({"epoch": _INTEGER, "rows": _ROWS})
SOME_ROWS = _object(
    {
        "epoch": _INTEGER,
        "rows": _ROWS,
        "more": {"type": "boolean", "description": "Whether there are more rows than these."},
    }
)
_COLUMN = _object({"name": _TEXT, "type": _TEXT})
_OPERATOR = _object(
    {
        "uid": _TEXT,
        "key": {"type": "array", "items": _COLUMN},
        "namespace": {"type": ["string", "null"], "description": "The type of its namespaces."},
        "states": {
            "type": "array",
            "items": _object(
                {
                    "name": _TEXT,
                    "kind": _TEXT,
                    "type": _TEXT,
                    "stored": {"type": "string", "description": "How a checkpoint declares it."},
                    "ttl": {
                        "type": ["object", "null"],
                        "description": "Its time to live: null if it has none that is known.",
                    },
                }
            ),
        },
        "schema": {"type": "string", "description": "That of rows: Arrow's, in Base64."},
    }
)
_JOB = _object({"name": _TEXT, "epoch": _INTEGER, "operators": {"type": "array", "items": _TEXT}})
FORMS = (JSON, LINES, ARROW)
FORMS_SAID = (
    f"As a JSON document, as lines of JSON (`Accept: {LINES}`), or as a stream of Arrow "
    f"(`Accept: {ARROW}`)."
)


# -- jobs and operators


async def _health(call: Call) -> None:
    await call.answer(document({"status": "ok"}))


async def _jobs(call: Call) -> None:
    said = []
    for job in call.service.jobs.values():
        view = await job.newest()
        said.append({"name": job.name, "epoch": view.epoch, "operators": list(view.reader.uids)})
    await call.answer(document({"jobs": said}))


async def _job(call: Call) -> None:
    epoch, least, seconds = call.epochs
    wanted = None
    if "position" in call.query:
        wanted = parse_position(None, parsed(call.query["position"], "parameter position"))
        if least is not None:
            raise InvalidArgumentError("give min_epoch= or position=, not both")
    if epoch is None and wanted is not None:
        least = (await call.job.reached(wanted, seconds)).epoch
    elif epoch is None and least is None:
        await call.job.refreshed()  # what is asked for is which epoch is the newest

    def read(view: View) -> bytes:
        place = view.reader._place
        where = place.connection, place.view.manifest
        if epoch is not None and wanted is not None and not wanted.is_in(*where, 0):
            raise NotReachedError(f"job {view.job.name!r}: epoch {epoch} does not have {wanted}")
        return document(
            {"name": view.job.name, "epoch": view.epoch, "operators": list(view.reader.uids)}
        )

    async with call.job.reading(epoch, least, seconds, read) as (view, body):
        await call.answer(body, epoch=view.epoch)


async def _operators(call: Call) -> None:
    def read(view: View) -> bytes:
        said = [_described(view.operator(uid)) for uid in view.reader.uids]
        return document({"epoch": view.epoch, "operators": said})

    await answer_document(call, read)


def _described(operator: OperatorReader) -> dict[str, Any]:
    namespace = _namespace_of(operator)
    stored = dict(operator._place.view.operator(operator.uid).state_schema)
    return {
        "uid": operator.uid,
        "key": [
            {"name": field.name, "type": parse_type(field.type).ddl}
            for field in operator.key_schema
        ],
        "namespace": None if namespace is None else parse_type(namespace).ddl,
        "states": [
            {
                "name": name,
                "kind": _kind(state),
                "type": parse_type(state.arrow_type).ddl,
                "stored": stored[name],
                "ttl": None if state.ttl is None else state.ttl.stored_as(),
            }
            for name, state in operator.states.items()
        ],
        "schema": base64.b64encode(operator.schema.serialize().to_pybytes()).decode("ascii"),
    }


def _kind(state: State[Any]) -> str:
    return str(getattr(state, "kind", type(state).__name__.removesuffix("State").lower()))


# -- keys


async def _keys(call: Call) -> None:
    """One key, or some, in JSON: what is asked for most."""
    uid, query = call.path["uid"], call.query
    texts, states, spaces = query["key"], query.get("state"), query.get("namespace")
    _check_keys(call, len(texts))

    def found(view: View, get: Callable[..., pa.Table | None]) -> bytes | None:
        operator = view.operator(uid)
        schema = operator.key_schema
        keys = keys_of([key_of_text(text, schema) for text in texts], schema)
        namespaces = None
        if spaces is not None:
            type_ = _namespace_type(operator)
            given = [value_of_text(text, type_, "the namespace") for text in spaces]
            namespaces = column_of(given, type_, "the namespace")
        rows = get(keys, states=states, namespaces=namespaces)
        return None if rows is None else document({"epoch": view.epoch, "rows": rows_of(rows)})

    def read(view: View) -> bytes:
        answer = found(view, view.operator(uid).get)
        assert answer is not None
        return answer

    def at_hand(view: View) -> bytes | None:
        return found(view, view.operator(uid)._get_at_hand)

    await answer_document(call, read, at_hand if len(texts) <= _FEW_KEYS else None)


def _check_keys(call: Call, count: int) -> None:
    if count > call.limits.keys:
        raise InvalidArgumentError(
            f"{count} keys are asked for, and this server looks up {call.limits.keys} at a time: "
            "ask for fewer, several times"
        )


async def _get(call: Call) -> None:
    uid, media, body = call.path["uid"], call.content(), await call.body()
    is_arrow = call.form() == ARROW

    def read(view: View) -> Rows:
        operator = view.operator(uid)
        schema = operator.key_schema
        states = call.query.get("state")
        if media == ARROW:
            keys, namespaces = _arrow_keys(body, schema)
        else:
            asked = members(body, ("keys",), ("states", "namespaces"))
            given = _list_of(asked["keys"], "keys")
            _check_keys(call, len(given))
            keys = keys_of(given, schema)
            states = asked.get("states", states)
            namespaces = None
            if asked.get("namespaces") is not None:
                spaces = _list_of(asked["namespaces"], "namespaces")
                namespaces = column_of(spaces, _namespace_type(operator), "the namespaces")
        count = len(keys[0])
        _check_keys(call, count)
        if count <= _KEYS_AT_ONCE or not is_arrow:
            return operator.get(keys, states=states, namespaces=namespaces)
        parts = (
            operator.get(
                [column.slice(at, _KEYS_AT_ONCE) for column in keys],
                states=states,
                namespaces=None if namespaces is None else namespaces.slice(at, _KEYS_AT_ONCE),
            )
            for at in range(0, count, _KEYS_AT_ONCE)
        )
        first = next(parts)
        rest = (batch for part in (first, *()) for batch in part.to_batches())
        more = (batch for part in parts for batch in part.to_batches())
        return pa.RecordBatchReader.from_batches(first.schema, _chained(rest, more))

    await answer_rows(call, read, is_whole=True)


def _chained(*batches: Any) -> Any:
    for each in batches:
        yield from each


def _arrow_keys(body: bytes, schema: pa.Schema) -> tuple[list[Any], Any]:
    """The key columns of a stream of Arrow, by their names, and the namespaces if there are any."""
    try:
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
        table = table.combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgumentError(f"the body is no stream of Arrow: {error}") from error
    given = table.schema.names
    wanted = schema.names
    if sorted(set(given) - {NAMESPACE}) != sorted(set(wanted) - {NAMESPACE}) or len(
        set(given)
    ) != len(given):
        raise WrongTypeError(
            f"the body has the columns {', '.join(given) or 'none'}, and a key has "
            f"{', '.join(wanted)}: send these, and {NAMESPACE} where namespaces are given"
        )

    def column(name: str) -> Any:
        chunks = table.column(name).chunks
        return chunks[0] if chunks else pa.array([], table.schema.field(name).type)

    spaces = None if NAMESPACE in wanted or NAMESPACE not in given else column(NAMESPACE)
    return [column(name) for name in wanted], spaces


# -- rows


async def _scan(call: Call) -> None:
    uid = call.path["uid"]
    asked: dict[str, Any] = {}
    if b"content-type" in call.headers or call.headers.get(b"content-length", b"0") != b"0":
        call.content()
    body = await call.body()
    if body:
        asked = members(body, (), ("columns", "where", "key_groups", "limit"))
    _take_limit(call, asked)

    def read(view: View) -> Rows:
        operator = view.operator(uid)
        where = asked.get("where")
        return operator.scan(
            columns=asked.get("columns"),
            where=None if not where else _typed_where(where, operator.schema),
            key_groups=asked.get("key_groups"),
        )

    await answer_rows(call, read, gate=call.service.streams)


def _typed_where(where: Any, schema: pa.Schema) -> Any:
    """Conditions whose values, in the form of JSON, have become those of their columns."""
    if not isinstance(where, list):
        raise InvalidArgumentError(f"where is a list of conditions, not {shown(where)}")
    if _is_condition(where):
        return _typed_condition(where, schema)
    return [_typed_where(each, schema) if isinstance(each, list) else each for each in where]


def _is_condition(given: list[Any]) -> bool:
    return len(given) == 3 and isinstance(given[0], str)


def _typed_condition(given: list[Any], schema: pa.Schema) -> Any:
    column, op, value = given
    if schema.get_field_index(column) < 0 or not isinstance(op, str):
        return (column, op, value)  # what is wrong with it the scan says
    type_ = schema.field(column).type
    what = f"where: column {column!r}"
    if op in ("in", "not in"):
        return (column, op, column_of(_list_of(value, what), type_, what))
    if pa.types.is_nested(type_):
        return (column, op, value)
    return (column, op, column_of([value], type_, what)[0].as_py() if value is not None else None)


async def _entries(call: Call) -> None:
    uid, query = call.path["uid"], call.query
    state = query["state"]

    def read(view: View) -> Rows:
        operator = view.operator(uid)
        schema = operator.key_schema
        key = keys_of([key_of_text(query["key"], schema)], schema)
        bounds: list[Any] = [query.get("from"), query.get("to")]
        declared = operator.states.get(state)
        if isinstance(declared, MapState):
            type_, what = declared.key_type.arrow, f"a key of map {state!r}"
        else:
            type_, what = pa.int64(), f"a position of list {state!r}"
        bounds = [None if text is None else _scalar(text, type_, what) for text in bounds]
        space = None
        if "namespace" in query:
            space = _scalar(query["namespace"], _namespace_type(operator), "the namespace")
        values = [column[0].as_py() for column in key]
        return operator.entries(
            state,
            values[0] if len(values) == 1 else tuple(values),
            from_=bounds[0],
            to=bounds[1],
            namespace=space,
        )

    await answer_rows(call, read, gate=call.service.streams)


def _scalar(text: str, type_: pa.DataType, what: str) -> Any:
    return column_of([value_of_text(text, type_, what)], type_, what)[0].as_py()


async def _timers(call: Call) -> None:
    uid, query = call.path["uid"], call.query

    def read(view: View) -> Rows:
        return view.operator(uid).timers(domain=query.get("domain"), until=query.get("until"))

    await answer_rows(call, read, gate=call.service.streams)


async def _epochs(call: Call) -> None:
    await answer_rows(call, lambda view: view.reader.epochs())


async def _sql(call: Call) -> None:
    media, body, limits = call.content(), await call.body(), call.limits
    if media == SQL:
        try:
            asked: dict[str, Any] = {"query": body.decode()}
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"the body is no text: {error}") from None
    else:
        asked = members(body, ("query",), ("parameters", "limit"))
        _take_limit(call, asked)

    def read(view: View) -> Rows:
        return view.reader.scan_sql(
            asked["query"],
            asked.get("parameters"),
            timeout=limits.seconds * 900,  # so that it is the statement that took too long
            memory_bytes=limits.statement_bytes,
            isolated=True,
        )

    await answer_rows(call, read, gate=call.service.statements)


async def _sql_tables(call: Call) -> None:
    await answer_rows(call, lambda view: view.reader.sql_tables())


# -- what routes share


def _take_limit(call: Call, asked: Mapping[str, Any]) -> None:
    """The limit that a body has counts as if it were a parameter."""
    limit = asked.get("limit")
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 1 << 63:
            raise InvalidArgumentError(f"limit is a whole number from 0 on, not {shown(limit)}")
        call.query["limit"] = limit


async def answer_document(
    call: Call,
    read: Callable[[View], bytes],
    at_hand: Callable[[View], bytes | None] | None = None,
) -> None:
    """Answer with a document that is made in the thread in which a job is read, or `at_hand`."""
    async with call.job.reading(*call.epochs, read, at_hand=at_hand) as (view, body):
        await call.answer(body, epoch=view.epoch)


def members(body: bytes, required: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    """The members of a JSON object; an error if one is missing, or not known."""
    asked = parsed(body, "the body")
    if not isinstance(asked, dict):
        raise InvalidArgumentError(f"the body is a JSON object, not {shown(asked)}")
    for name in required:
        if name not in asked:
            raise InvalidArgumentError(f"the body has no {name!r}")
    for name in asked:
        if name not in required and name not in optional:
            known = ", ".join((*required, *optional))
            raise InvalidArgumentError(f"the body has {name!r:.80}; known are {known}")
    return asked


def _list_of(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArgumentError(f"{what} is a list, not {shown(value)}")
    return value


def _namespace_of(operator: OperatorReader) -> pa.DataType | None:
    """The type of an operator's namespaces; None if it has none."""
    place, schema = len(operator.key_schema), operator.schema
    if place == len(schema) or schema.names[place] != NAMESPACE or NAMESPACE in operator.states:
        return None
    type_: pa.DataType = schema.field(place).type
    return type_


def _namespace_type(operator: OperatorReader) -> pa.DataType:
    type_ = _namespace_of(operator)
    if type_ is None:
        raise InvalidArgumentError(f"operator {operator.uid!r} has no namespaces")
    return type_


_PREFIX = "/v1/jobs/{job}"
OPERATOR_PATH = f"{_PREFIX}/operators/{{uid}}"

ROUTES: tuple[Operation, ...] = (
    Operation(
        "GET",
        "/v1/health",
        _health,
        "health",
        "Whether the server is there.",
        Success("It is.", _object({"status": {"const": "ok"}}), has_epoch=False),
        is_open=True,
    ),
    Operation(
        "GET",
        "/v1/jobs",
        _jobs,
        "jobs",
        "The jobs, and the newest epoch of each.",
        Success("The jobs.", _object({"jobs": {"type": "array", "items": _JOB}}), has_epoch=False),
    ),
    Operation(
        "GET",
        _PREFIX,
        _job,
        "job",
        "A job, and its newest epoch, which is looked for now.",
        Success("The job.", _JOB),
        (
            JOB,
            *EPOCHS,
            Parameter(
                "position",
                "Wait for the first newest epoch that has what somebody wrote, in JSON: the key of "
                "a run, a string; a batch of a stream, an object with `id` and `batchId`; or how "
                "far its sources have been read at least, as their `endOffset` says, a list of "
                "several. With `epoch` whether that one has it.",
                example='"load-7"',
            ),
        ),
    ),
    Operation(
        "GET",
        f"{_PREFIX}/operators",
        _operators,
        "operators",
        "The operators of a job: their keys and states.",
        Success(
            "The operators.",
            _object({"epoch": _INTEGER, "operators": {"type": "array", "items": _OPERATOR}}),
        ),
        (JOB, *EPOCHS),
    ),
    Operation(
        "GET",
        f"{_PREFIX}/epochs",
        _epochs,
        "epochs",
        "The epochs that are retained, and so can be asked for, the oldest first.",
        Success(FORMS_SAID, SOME_ROWS, FORMS),
        (JOB, *EPOCHS, LIMIT),
    ),
    Operation(
        "GET",
        f"{OPERATOR_PATH}/keys",
        _keys,
        "keys",
        "The state of a key, or of some.",
        Success(
            "A row per key, in their order; a key that does not exist has null states. Of an "
            "operator with namespaces a row per namespace that a key has, unless they are given.",
            _ALL_ROWS,
        ),
        (
            JOB,
            UID,
            Parameter("key", f"{KEY} May be repeated.", many=True, required=True, example="a"),
            STATES,
            Parameter("namespace", "One for each key, written as a key is.", many=True),
            *EPOCHS,
        ),
    ),
    Operation(
        "POST",
        f"{OPERATOR_PATH}/get",
        _get,
        "get",
        "The state of many keys.",
        Success(f"A row per key, as for `keys`. {FORMS_SAID}", _ALL_ROWS, FORMS),
        (JOB, UID, STATES, *EPOCHS),
        Body(
            "The keys: JSON, or a stream of Arrow with their columns, and `namespace` if "
            "namespaces are given.",
            _object(
                {"keys": {"type": "array", "items": _VALUE}},
                {"states": _NAMES, "namespaces": {"type": "array", "items": _VALUE}},
            ),
            (JSON, ARROW),
            example={"keys": ["a", "b"]},
        ),
    ),
    Operation(
        "POST",
        f"{OPERATOR_PATH}/scan",
        _scan,
        "scan",
        "The state of all keys, or of those for which conditions hold.",
        Success(f"Rows, in no particular order. {FORMS_SAID}", SOME_ROWS, FORMS),
        (JOB, UID, *EPOCHS),
        Body(
            "Which columns, and which rows: conditions `[column, op, value]`, all of which hold, "
            "or lists of such lists, one of which does. Ops are Python's, `in` and `not in`.",
            _object(
                {},
                {
                    "columns": _NAMES,
                    "where": {"type": "array", "items": {}},
                    "key_groups": {"type": "array", "items": {"type": "integer"}},
                    "limit": {"type": "integer", "minimum": 0},
                },
            ),
            required=False,
            example={"columns": ["key", "n"], "where": [["n", ">", 3]], "limit": 100},
        ),
        is_watched=True,
    ),
    Operation(
        "GET",
        f"{OPERATOR_PATH}/entries",
        _entries,
        "entries",
        "The elements of one list or map, or a piece of it.",
        Success(
            f"A row per element: its position or key, and its value. {FORMS_SAID}",
            SOME_ROWS,
            FORMS,
        ),
        (
            JOB,
            UID,
            Parameter("state", "The list or map.", required=True, example="visits"),
            Parameter("key", KEY, required=True, example="a"),
            Parameter("from", "Elements from this position, or key of the map, on."),
            Parameter("to", "Elements before this position, or key of the map."),
            Parameter("namespace", "The namespace of the key."),
            *EPOCHS,
            LIMIT,
        ),
        is_watched=True,
    ),
    Operation(
        "GET",
        f"{OPERATOR_PATH}/timers",
        _timers,
        "timers",
        "The timers of an operator.",
        Success(f"A row per timer, in no particular order. {FORMS_SAID}", SOME_ROWS, FORMS),
        (
            JOB,
            UID,
            Parameter("domain", "Only those of this time.", choices=("event", "processing")),
            Parameter(
                "until", "Only those until then, in milliseconds since 1970.", int, least=-(1 << 63)
            ),
            *EPOCHS,
            LIMIT,
        ),
        is_watched=True,
    ),
    Operation(
        "POST",
        f"{_PREFIX}/sql",
        _sql,
        "sql",
        "A SELECT statement over the state of one epoch.",
        Success(f"The rows. {FORMS_SAID}", SOME_ROWS, FORMS),
        (JOB, *EPOCHS),
        Body(
            "The statement, in JSON or as it is. Each operator is a table that has the name of its "
            "uid; `sql/tables` lists them all.",
            _object(
                {"query": _TEXT},
                {
                    "parameters": {
                        "type": ["array", "object"],
                        "description": "Values for `?`, or for `$name`.",
                    },
                    "limit": {"type": "integer", "minimum": 0},
                },
            ),
            (JSON, SQL),
            example={"query": "select count(*) as n from totals"},
        ),
        is_watched=True,
        errors=(501,),
    ),
    Operation(
        "GET",
        f"{_PREFIX}/sql/tables",
        _sql_tables,
        "sql_tables",
        "The tables that SQL may name, with their columns.",
        Success(f"A row per column. {FORMS_SAID}", SOME_ROWS, FORMS),
        (JOB, *EPOCHS, LIMIT),
        errors=(501,),
    ),
)
