"""The page's routes: what they answer, and with which headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from tests.served import serving

pytest.importorskip("starlette", reason="the package starlette is not installed")
pytest.importorskip("uvicorn", reason="the package uvicorn is not installed")
pytest.importorskip("httptools", reason="the package httptools is not installed")
pytest.importorskip("httpx", reason="the package httpx is not installed")

import httpx

from pystate.serve import page

FILES = Path(page.__file__).parent / "page_files"
TOKEN = "a token of these tests, and no other".replace(" ", "-")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    states = {"n": ps.ValueState("long")}
    with ps.open(tmp_path / "c", key={"a": "string", "b": "int"}, states=states) as store:
        store["n"].update_all(store.keys([["x", ""], [1, 2]]), [10, 20])
        store.checkpoint()
        yield tmp_path / "c"


@pytest.fixture
def client(folder: Path) -> Iterator[httpx.Client]:
    with (
        serving({"jöb": str(folder), "c": str(folder)}) as url,
        httpx.Client(base_url=url) as client,
    ):
        yield client


def answer(client: httpx.Client, what: str, status: int = 200) -> Any:
    got = client.get(f"/v1/jobs/c/page/{what}")
    assert got.status_code == status, got.text
    assert got.headers["cache-control"] == "no-store"
    return got.json()


def test_every_answer_is_found(client: httpx.Client) -> None:
    assert [job["job"] for job in client.get("/v1/page/pulse").json()["jobs"]] == ["jöb", "c"]
    assert answer(client, "overview")["epoch"] == 1
    assert answer(client, "epochs?last=1")["figures"]["epoch"] == [1]
    assert answer(client, "files?uid=embedded")["ranges"]
    assert sum(answer(client, "heat?uid=embedded")["rows"]) == 2
    assert len(answer(client, "heaviest?uid=embedded")["keys"]) == 2
    assert len(answer(client, "changed?uid=embedded")["changes"]) == 2
    assert answer(client, "key?uid=embedded&key=x&key=1")["rows"][0]["values"] == [10]
    assert answer(client, "key?uid=embedded&key=&key=2")["rows"][0]["values"] == [20]
    assert not answer(client, "key?uid=embedded&key=&key=2&null=0")["found"]
    assert answer(client, "verify") == {"state": "none"}


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("epochs?last=0", 400, "last"),
        ("epochs?last=x", 400, "whole number"),
        ("epochs?last=9999999999999999999999", 400, ", and must be"),
        ("epochs?first=1", 400, "no parameter 'first'"),
        ("files", 400, "uid is missing"),
        ("files?uid=other", 404, "no operator 'other'"),
        ("key?uid=embedded&key=x", 400, "2 columns"),
        ("key?uid=embedded&key=x&key=one", 400, "'b' is int"),
        ("key?uid=embedded&key=x&key=1&null=7", 400, "null is"),
        ("key?uid=embedded&key=x&key=1&epoch=9", 404, "epoch 9"),
        ("key?uid=embedded&key=1&key=" + "x" * 20_000, 400, "at most"),
        ("changed?uid=embedded&epoch=5", 404, "epoch 5"),
    ],
)
def test_bad_requests_get_one_line(
    client: httpx.Client, what: str, status: int, said: str, tmp_path: Path
) -> None:
    error = answer(client, what, status)["error"]["message"]
    assert said in error and "\n" not in error and str(tmp_path) not in error


def test_an_unknown_job_is_named(client: httpx.Client) -> None:
    got = client.get("/v1/jobs/other/page/overview")
    assert got.status_code == 404 and "'other'" in got.json()["error"]["message"]


def test_other_sites_cannot_begin_a_check(client: httpx.Client) -> None:
    path = "/v1/jobs/c/page/verify"
    assert client.post(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.get(path).json() == {"state": "none"}
    assert client.post(path, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    while client.get(path).json()["state"] == "running":
        pass
    assert client.get(path).json()["result"]["ok"]


def test_the_files_are_the_package_s_and_no_others(client: httpx.Client) -> None:
    assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
    for path in FILES.iterdir():
        got = client.get(f"/page/{path.name}")
        assert got.content == path.read_bytes()
        assert got.headers["x-content-type-options"] == "nosniff"
    for other in ("page.py", "%2e%2e%2fpage.py", "..%2fpage.py", "%00", ""):
        assert client.get(f"/page/{other}").status_code == 404


def test_the_policy_is_strict(client: httpx.Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "script-src 'self'" in policy and "frame-ancestors 'none'" in policy


def test_the_files_need_no_token_and_all_else_does(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(TOKEN)
    with (
        serving({"c": str(folder)}, token_file=str(tmp_path / "token")) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert client.get("/").status_code == client.get("/page/main.js").status_code == 200
        paths = [
            ("GET", "/v1/page/pulse"),
            *(
                (route.method, route.path.replace("{job}", "c"))
                for route in page.ROUTES
                if "{job}" in route.path
            ),
        ]
        assert len(paths) > 10
        for method, path in paths:
            assert client.request(method, path).status_code == 401
        held = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/v1/page/pulse", headers=held).status_code == 200


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_nothing_comes_from_elsewhere_or_stands_in_the_document() -> None:
    tags = _Tags()
    tags.feed((FILES / "index.html").read_text("utf-8"))
    for tag, attributes in tags.tags:
        assert not {name for name in attributes if name.startswith("on")} | (
            {"style"} & {*attributes}
        )
        if tag == "script":
            assert attributes["src"]
        for name in ("src", "href"):
            assert not re.match(r"(\w+:)?//", attributes.get(name) or "")
    for path in FILES.iterdir():
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?://|@import|\beval\(|innerHTML|outerHTML|insertAdjacent", text
        ), path
        assert len(text) < 64_000
