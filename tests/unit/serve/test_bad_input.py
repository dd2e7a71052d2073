"""What careless and hostile users get: of any mistake one line that says what, where and what next.

Mistakes in questions are in the tests of readers, `tests/unit/query`, most of which hold of files
and of a server; those of SQL in `test_sql.py` there; and those of a server's own address, token and
certificate in `test_bounds.py`.
"""

from __future__ import annotations

import http.server
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate import errors
from pystate.checkpoint.job_file import REPAIR_FILE
from pystate.checkpoint.manifest import FORMAT_VERSION, manifest_path
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.storage import LocalStorage
from pystate.serve.jobs import named_locations
from tests.serving import OPERATOR, ask, served, shop
from tests.unit.cli.test_cli import run

TOKEN = "0123456789abcdef"
PATHS = (f"{OPERATOR}/keys?key=a", "/v1/jobs/shop", "/v1/jobs", "/v1/jobs/shop/changes")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint whose path has spaces, and other characters."""
    shop(tmp_path / "a shöp, 'too'", 20).close()
    return tmp_path / "a shöp, 'too'"


def said(kind: type[Exception], act: Callable[[], object]) -> str:
    with pytest.raises(kind) as raised:
        act()
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_any_path_is_read(folder: Path) -> None:
    code, rows, _ = run("sql", folder, "select count(*) as n from embedded", "--format", "jsonl")
    assert (code, rows) == (0, '{"n": 20}\n')
    with served({"shop": folder}) as server, ps.connect(server.url) as reader:
        assert reader["embedded"].get(["word 3"], states=["n"])["n"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nix", "does not exist, and so is no checkpoint: give the folder"),
        ("empty", "holds no checkpoint and no savepoint (there is no job.json): give the folder"),
        ("file", "is no folder, and so no checkpoint: give the folder"),
        ("a shöp, 'too'/state", "is only a part of the checkpoint"),
    ],
)
def test_places_that_are_no_checkpoint(folder: Path, place: str, message: str) -> None:
    (folder.parent / "empty").mkdir()
    (folder.parent / "file").write_text("x")
    path = folder.parent / place
    assert "holds no checkpoint: give the folder" in said(
        errors.CheckpointError, lambda: ps.connect(path)
    )
    for command in (["sql", path, "select 1"], ["serve", path, "--port", "0"]):
        code, _, wrong = run(*command)
        [line] = wrong.splitlines()
        assert code == 2 and line.startswith(f"pystate: {path} {message}"), line


def test_a_path_that_none_is() -> None:
    assert "is the path of a folder, not 'a\\x00b'" in said(
        errors.InvalidArgumentError, lambda: ps.connect("a\0b")
    )
    for command in (["sql", "a\0b", "select 1"], ["serve", "a\0b", "--port", "0"]):
        code, _, wrong = run(*command)
        assert code == 2 and len(wrong.splitlines()) == 1


def test_the_folder_in_which_one_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert named_locations([".", "s3://b/p/"]) == {folder.name: ".", "p": "s3://b/p/"}


@contextmanager
def nobody() -> Iterator[None]:
    """Whoever may read nothing of a folder of this user, where this user is root."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_lease_that_cannot_be_written(folder: Path) -> None:
    (folder / "manifests/leases").write_text("")
    with ps.connect(folder) as reader, served({"shop": folder}) as server:
        assert "manifests/leases" in said(errors.CheckpointError, reader.lease)
        answer = ask(server, "/v1/jobs/shop/leases", {"epoch": 1, "seconds": 60})
        assert answer.status == 503 and "manifests/leases" in answer.said
        assert str(folder) not in answer.said


def test_what_may_not_be_read(folder: Path) -> None:
    folder.chmod(0o700)
    with nobody():
        denied = said(errors.CheckpointError, lambda: ps.connect(folder))
        assert str(folder) in denied and denied.endswith("Permission denied")
        for command in (["sql", folder, "select 1"], ["serve", folder, "--port", "0"]):
            code, _, wrong = run(*command)
            assert code == 1 and wrong.endswith("Permission denied\n")
            assert len(wrong.splitlines()) == 1


def damage(folder: Path) -> None:
    path = folder / manifest_path(1)
    path.write_bytes(path.read_bytes()[:-1])


def make_newer(folder: Path) -> None:
    newer = encode_document("manifest", FORMAT_VERSION + 1, {})
    LocalStorage(folder).publish(manifest_path(2), newer)


def begin_repair(folder: Path) -> None:
    LocalStorage(folder).publish(REPAIR_FILE, encode_document("repairing", 1, {"folder": "x"}))


@pytest.mark.parametrize(
    ("do", "kind", "message", "status"),
    [
        (make_newer, errors.NewerFormatError, "later version of pystate.*: upgrade pystate", 500),
        (begin_repair, errors.InUseError, "being repaired.*read it again when", 503),
        (damage, errors.CorruptFileError, "manifest: the checksum.*`pystate verify` says", 500),
    ],
)
def test_a_checkpoint_that_is_not_as_it_should_be(
    folder: Path, do: Any, kind: type[Exception], message: str, status: int
) -> None:
    with served({"shop": folder}, refresh_seconds=0) as server:
        do(folder)
        with pytest.raises(kind, match=f"checkpoint {folder}.*{message}") as raised:
            ps.connect(folder)
        assert "\n" not in str(raised.value)
        if do is not damage:  # what was read before is known
            for path in PATHS:
                answer = ask(server, path)
                assert answer.status == status and "checkpoint job 'shop'" in answer.said
                assert answer.json["error"]["type"] == kind.__name__
            with pytest.raises(kind, match=f"checkpoint job 'shop'.*{message}"):
                ps.connect(server.url)
    for command in (["sql", folder, "select 1"], ["serve", folder, "--port", "0"]):
        code, _, wrong = run(*command)
        [line] = wrong.splitlines()
        assert code == 1 and line.startswith(f"pystate: checkpoint {folder}")


def test_a_server_says_once_that_there_is_no_newer_epoch(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served({"shop": folder}, refresh_seconds=0) as server:
        begin_repair(folder)
        for _ in range(3):
            assert ask(server, "/v1/jobs/shop").status == 503
        assert caplog.text.count("is being repaired") == 1


def test_epochs_are_others_after_a_repair(tmp_path: Path) -> None:
    states = {"n": ps.ValueState("long")}
    for name, more in (("one", 7), ("other", 8)):
        with ps.open(tmp_path / name, key="long", states=states, retained=9) as store:
            for n in (1, more, 3):
                store["n"].update_all(store.keys([1]), [n])
                store.checkpoint()
    with (
        served({"shop": tmp_path / "one"}, refresh_seconds=0) as server,
        ps.connect(server.url) as reader,
    ):

        def at(epoch: int) -> Any:
            return reader.at(epoch)["embedded"].get([1])["n"].to_pylist()

        assert at(2) == [7]
        begin_repair(tmp_path / "one")
        assert ask(server, "/v1/jobs/shop").status == 503
        assert reader["embedded"].get([1])["n"].to_pylist() == [3]  # what is known is read
        (tmp_path / "one").rename(tmp_path / "gone")
        (tmp_path / "other").rename(tmp_path / "one")
        assert at(2) == [8]
        assert [
            row["before"]["n"] for row in reader["embedded"].changes(since=2).read_all().to_pylist()
        ] == [8]


def test_numbers_that_are_too_large(folder: Path) -> None:
    with served({"shop": folder}) as server, ps.connect(server.url) as reader:
        too_large = said(errors.InvalidArgumentError, lambda: reader.at(2**70))
        assert "parameter epoch is 1180591620717411303424, and must be 1 to 922" in too_large


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "httptools"])
def test_without_the_extra_of_a_server(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("pystate.serve")]:
        monkeypatch.delitem(sys.modules, name)
    needed = said(errors.MissingPackageError, lambda: importlib.import_module("pystate.serve"))
    assert "needs starlette, uvicorn and httptools" in needed and "extra 'serve'" in needed
    code, _, wrong = run("serve", folder, "--port", "0")
    assert code == 1 and wrong == f"pystate: {needed}\n"


class Other(http.server.BaseHTTPRequestHandler):
    """A server that is none of pystate, or a bad one."""

    answer: tuple[int, bytes, int] = (200, b"", 0)

    def do_GET(self) -> None:
        status, body, more = self.answer
        if not status:
            self.wfile.write(body)
        else:
            self.send_response(status)
            self.send_header("Location", "http://elsewhere.invalid/")
            self.send_header("Content-Length", str(len(body) + more))
            self.end_headers()
            self.wfile.write(body)
        self.close_connection = True

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


ERROR = b'{"error": {"type": "SystemExit", "message": "x", "status": "y"}}'


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"<html>hello", 0), "nothing that a pystate server says: see whether the address"),
        ((200, b'{"a": 1}', 0), "nothing that a pystate server says"),
        ((200, b"[]", 0), "nothing that a pystate server says"),
        ((200, b"[" * 100_000, 0), "nothing that a pystate server says"),
        ((302, b"", 0), "status 302, and nothing that a pystate server says"),
        ((502, b"<h1>Bad gateway", 0), "status 502, and nothing that a pystate server says"),
        ((400, ERROR, 0), "status 400, and nothing that a pystate server says"),
        ((200, b"{}", 98), "has broken off: IncompleteRead"),
        ((0, b"\0\1\n\2\r\n\r\n", 0), "has broken off: BadStatusLine"),
    ],
)
def test_a_server_that_is_none_of_pystate(
    other: str, answer: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Other, "answer", answer)
    for url in (other, f"{other}/shop"):
        wrong = said(errors.ServerError, lambda url=url: ps.connect(url))  # type: ignore[misc]
        assert other in wrong and message in wrong


def test_an_object_store_that_fails(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second and a half, since the client tries again."""
    pytest.importorskip("obstore", reason="the package obstore is not installed")
    monkeypatch.setattr(Other, "answer", (500, b"<Error/>", 0))
    access = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "r", "ALLOW_HTTP": "true"}
    for name, value in {"ENDPOINT_URL": other, **access}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    failed = said(errors.CheckpointError, lambda: ps.connect("s3://bucket/shop"))
    assert "could not look at s3://bucket/shop/repair.json" in failed
    assert "500 Internal Server Error" in failed and "look at the endpoint" in failed


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    """It runs in a process of its own, which is killed while it sends."""
    with ps.open(tmp_path / "s", key="long", states={"t": ps.ValueState("string")}) as store:
        store["t"].update_all(store.keys(range(100_000)), ["x" * 200] * 100_000)
        store.checkpoint()
    program = subprocess.Popen(
        [sys.executable, "-m", "pystate", "serve", str(tmp_path / "s"), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        url = program.stdout.readline().split()[-1]
        with ps.connect(url) as reader:
            rows, follower = reader["embedded"].scan(), reader.follow()
            rows.read_next_batch()
            program.kill()
            program.wait()
            for act in (rows.read_all, lambda: follower.next(30), reader.refresh):
                gone = said(errors.ServerError, act)
                assert f"the server {url} cannot be reached, or has broken off" in gone
                assert gone.endswith("see whether `pystate serve` runs there")
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize(
    ("token", "kind", "message"),
    [
        (None, errors.ServerError, "asks for a token, which is missing"),
        ("another-token-of-it", errors.ServerError, "one; give connect the text in the file"),
        ("two\nlines", errors.InvalidArgumentError, "has characters that none has"),
        ("grüße" * 4, errors.InvalidArgumentError, "has characters that none has"),
        ("", errors.InvalidArgumentError, "connect: token is a string"),
    ],
)
def test_tokens(
    folder: Path, tmp_path: Path, token: str | None, kind: type[Exception], message: str
) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    with served({"shop": folder}, token_file=str(path)) as server:
        wrong = said(kind, lambda: ps.connect(server.url, token=token))
        assert message in wrong and TOKEN not in wrong and (not token or token not in wrong)
        with ps.connect(server.url, token=path.read_text()) as reader:
            assert reader.epoch == 1


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://h:x/", "http://h/?q=1"])
def test_addresses_that_are_none(url: str) -> None:
    wrong = said(errors.InvalidArgumentError, lambda: ps.connect(url))
    assert "is not the address of a server: write http://127.0.0.1:8765" in wrong
