"""``/metrics`` of a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_open
from prometheus_client.parser import text_string_to_metric_families as parsed

from pystate.serve.server import ServeOptions, Server
from tests.work import Work

TOKEN = "a" * 40


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "job").some(2)


@pytest.fixture
def server(work: Work, tmp_path: Path) -> Iterator[str]:
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    made = Server({"shop": str(work.root)}, ServeOptions(port=0, token_file=str(secret)))
    begun = threading.Event()
    thread = threading.Thread(target=made.run, args=(begun.set,))
    thread.start()
    try:
        assert begun.wait(30)
        yield made.url
    finally:
        made.stop()
        thread.join(30)


def get(url: str, **headers: str) -> tuple[str, str]:
    request = Request(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}", **headers})
    with urlopen(request, timeout=30) as answer:
        assert answer.status == 200
        return answer.read().decode(), answer.headers["content-type"]


def test_metrics_of_a_server(server: str, work: Work) -> None:
    text, content_type = get(server)
    assert content_type.startswith("text/plain; version=")
    found = {f.name: f.samples[0] for f in parsed(text)}
    assert found["pystate_epoch"].value == 2
    assert found["pystate_epoch"].labels == {"job_name": "shop"}
    assert str(work.root) not in text
    text, content_type = get(server, Accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {f.name: f.samples[0].value for f in parsed_open(text)}["pystate_epoch"] == 2


def test_metrics_need_the_token(server: str) -> None:
    with pytest.raises(HTTPError) as refused:
        get(server, Authorization="Bearer other")
    assert refused.value.code == 401
    refused.value.close()
