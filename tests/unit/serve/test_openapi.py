"""The OpenAPI description is true of every answer, also of those to requests that make no sense."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import pystate as ps
from pystate.serve.server import Server
from tests.serving import OPERATOR, ask, served, shop

MINUTES = float(os.environ.get("PYSTATE_FUZZ_MINUTES", "10"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fuzzed")
    shop(folder / "shop", 100).close()
    key = {"carrier": "string", "flight": "int"}
    with ps.open(folder / "two", key=key, states={"l": ps.ListState("double")}) as store:
        store.set_current_key(("AA", 1))
        store["l"].add_all([1.5, float("nan")])
        store.checkpoint()
    with served({"shop": folder / "shop", "two": folder / "two"}, seconds=60) as server:
        yield server


def test_it_is_an_openapi_document_of_all_routes(server: Server) -> None:
    said = ask(server, "/openapi.json").json
    assert said["openapi"] == "3.1.0" and said["info"]["title"] == "pystate"
    names = {op["operationId"] for path in said["paths"].values() for op in path.values()}
    assert names == {operation.name for operation in server.app.operations}
    for path in said["paths"].values():
        for operation in path.values():
            for answer in operation["responses"].values():
                for content in answer["content"].values():
                    Draft202012Validator.check_schema(content.get("schema", {}))
    for path in said["paths"]:
        for part in ("{job}", "{uid}"):
            assert (part in path) == any(
                f"{{{each['name']}}}" == part
                for operation in said["paths"][path].values()
                for each in operation["parameters"]
                if each["in"] == "path"
            )


def test_its_examples_work(server: Server) -> None:
    said = ask(server, "/openapi.json").json
    for path, operations in said["paths"].items():
        where = path.replace("{job}", "shop").replace("{uid}", "embedded")
        for operation in operations.values():
            body = operation.get("requestBody")
            if body is None:
                continue
            example = body["content"]["application/json"]["example"]
            if "query" in example:
                example = {"query": example["query"].replace("totals", "embedded")}
            assert ask(server, where, example).status == 200, (where, example)


def checked(case: schemathesis.Case, server: Server) -> None:
    """Send a request, and hold its answer against the description."""
    case.path_parameters = dict(case.path_parameters or {})
    # Else nearly none would be of a job that there is.
    if "job" in case.path_parameters and random.random() < 0.8:
        case.path_parameters["job"] = "shop"
    if "uid" in case.path_parameters and random.random() < 0.8:
        case.path_parameters["uid"] = "embedded"
    if isinstance(case.query, dict) and {"wait_ms", "min_epoch", "position"} & {*case.query}:
        case.query["wait_ms"] = 1
    response = case.call(base_url=server.url, timeout=60)
    assert response.status_code < 500, (case.as_curl_command(), response.text)
    case.validate_response(
        response,
        excluded_checks=[
            # A value that no schema can know to be wrong, such as a column, is refused; and a
            # server without a token takes requests with any.
            schemathesis.checks.positive_data_acceptance,
            schemathesis.checks.negative_data_rejection,
            schemathesis.checks.ignored_auth,
        ]
        if hasattr(schemathesis.checks, "positive_data_acceptance")
        else None,
    )


def fuzzed(server: Server, examples: int, end: float = float("inf")) -> int:
    """Send so many requests for each operation, until then; how many they were."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    sent = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        @given(case=operation.as_strategy())
        def run(case: Any) -> None:
            nonlocal sent
            if case.path.endswith("{job}/changes") or time.monotonic() > end:
                return
            sent += 1
            checked(case, server)

        run()
    return sent


def test_requests_that_are_drawn_from_it_get_what_it_says(server: Server) -> None:
    assert fuzzed(server, 15) > 100


@pytest.mark.slow
def test_requests_that_are_drawn_from_it_for_long(server: Server) -> None:
    """Ten minutes, or PYSTATE_FUZZ_MINUTES."""
    end, sent = time.monotonic() + MINUTES * 60, 0
    while time.monotonic() < end:
        sent += fuzzed(server, 100, end)
    print(f"{sent} requests")


@settings(max_examples=150, deadline=None)
@given(
    path=st.text(max_size=40),
    query=st.text(max_size=40),
    body=st.binary(max_size=200),
    media=st.sampled_from(["application/json", "application/vnd.apache.arrow.stream", "x"]),
)
def test_anything_at_all_gets_a_plain_error(
    server: Server, path: str, query: str, body: bytes, media: str
) -> None:
    from urllib.parse import quote

    for where in (f"/{quote(path, safe='/')}", f"{OPERATOR}/get", f"{OPERATOR}/scan"):
        answer = ask(server, f"{where}?{quote(query, safe='&=')}", body, Content_Type=media)
        if answer.status >= 400:
            assert answer.status < 500
            assert answer.said
