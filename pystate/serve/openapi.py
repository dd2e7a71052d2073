"""The OpenAPI description of the server, made of what its routes say of themselves.

Thread safety: functions without state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pystate.checkpoint.job_file import library
from pystate.query.json_form import document
from pystate.serve.operations import JSON, Call, Operation, Parameter, Success
from pystate.serve.problems import phrase

_ABOUT = """The state of jobs, read from their checkpoints while they run.

Each answer about a job is of one epoch, which its header `Pystate-Epoch` says: the newest one, with
`epoch` another one that is retained, with `min_epoch` one that may have to be waited for.

# Values

| type | in JSON |
|---|---|
| boolean, string, byte, short, int | JSON's own |
| long | a number up to 2^53 - 1 in both directions, beyond it a string of digits |
| float, double | a number; or `"NaN"`, `"Infinity"`, `"-Infinity"` |
| decimal | a string |
| date | `"2026-11-20"` |
| timestamp, timestamp_ntz | `"2026-11-20T08:00:00.250000Z"`, without the Z |
| binary, object (pickled bytes) | a string in Base64 |
| array, struct | a list, an object |
| map | a list of pairs |
| null | null |
"""
#: What any route may answer, beside its own errors.
_ANY = (400, 401, 421, 500, 503)
_WITH_JOB = (404,)
_WITH_BODY = (408, 413, 415)
_WITH_FORMS = (406,)


def description(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI document of some routes."""
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pystate",
            "version": library().rpartition(" ")[2].strip("()"),
            "description": _ABOUT,
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Asked for by a server that was started with --token-file.",
                }
            },
        },
        "security": [{}, {"token": []}],
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message", "status"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "A class of `pystate.errors`, or `TimeoutError`.",
                },
                "message": {"type": "string", "description": "What is wrong, in one line."},
                "status": {"type": "integer"},
            },
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}


def _operation(operation: Operation) -> dict[str, Any]:
    statuses = {*_ANY, *operation.errors}
    in_path = re.findall(r"\{(\w+)\}", operation.path)
    if in_path:
        statuses.update(_WITH_JOB)
    if operation.body is not None:
        statuses.update(_WITH_BODY)
    if len(operation.success.media) > 1:
        statuses.update(_WITH_FORMS)
    said: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [_parameter(each, each.name in in_path) for each in operation.parameters],
        "responses": {
            str(operation.success.status): _success(operation.success),
            **{str(status): _problem(status) for status in sorted(statuses)},
        },
    }
    if operation.description:
        said["description"] = operation.description
    if operation.is_open:
        said["security"] = [{}]
    if operation.body is not None:
        body = operation.body
        content: dict[str, Any] = {}
        for media in body.media:
            content[media] = {"schema": body.schema} if media == JSON else {}
            if media == JSON and body.example is not None:
                content[media]["example"] = body.example
        said["requestBody"] = {
            "description": body.description,
            "required": body.required,
            "content": content,
        }
    return said


def _parameter(parameter: Parameter, in_path: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": {int: "integer", bool: "boolean"}.get(parameter.kind, "string")
    }
    if parameter.kind is int:
        schema |= {"minimum": parameter.least, "maximum": (1 << 63) - 1}
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.many:
        schema = {"type": "array", "items": schema}
    said: dict[str, Any] = {
        "name": parameter.name,
        "in": "path" if in_path else "query",
        "description": parameter.description,
        "required": parameter.required,
        "schema": schema,
    }
    if in_path:
        schema["minLength"] = 1
    if parameter.example is not None:
        said["example"] = [parameter.example] if parameter.many else parameter.example
    return said


def _success(success: Success) -> dict[str, Any]:
    content = {
        media: {"schema": success.schema} if media == JSON and success.schema else {}
        for media in success.media
    }
    said: dict[str, Any] = {"description": success.description, "content": content}
    if success.has_epoch:
        said["headers"] = {
            "Pystate-Epoch": {
                "description": "The epoch that was read.",
                "required": True,
                "schema": {"type": "integer"},
            }
        }
    return said


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    said: dict[str, Any] = {"description": phrase(status), "content": {JSON: {"schema": schema}}}
    if status == 503:
        said["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return said


async def _openapi(call: Call) -> None:
    await call.answer(document(description(call.service.operations)))


ROUTES = (
    Operation(
        "GET",
        "/openapi.json",
        _openapi,
        "openapi",
        "This description.",
        Success("An OpenAPI document.", {"type": "object"}, has_epoch=False),
        is_open=True,
    ),
)
