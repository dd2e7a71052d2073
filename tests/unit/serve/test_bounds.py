"""What a server gives at most, and to whom: bounds, tokens, names, addresses, certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import InUseError, InvalidArgumentError
from pystate.serve.app import all_routes
from pystate.serve.auth import Guard
from pystate.serve.jobs import Jobs
from pystate.serve.limits import Limits, Workers
from pystate.serve.operations import Call, Service
from pystate.serve.problems import BusyError, RequestError
from pystate.serve.server import ServeOptions, Server
from tests.serving import ARROW, LINES, OPERATOR, address, ask, served, shop

TOKEN = "0123456789abcdefghij"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bounds") / "shop"
    shop(folder, 60_000).close()
    return folder


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def raw(server: Server, request: bytes) -> socket.socket:
    connection = socket.create_connection(address(server), timeout=30)
    connection.sendall(request)
    return connection


def all_of(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_body_that_is_too_large_is_refused_without_being_read(folder: Path) -> None:
    with served({"shop": folder}, body_bytes=1 << 20) as server:
        head = (
            f"POST {OPERATOR}/get HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        )
        before = memory()
        with raw(server, f"{head}Content-Length: {1 << 30}\r\n\r\n".encode()) as connection:
            said = all_of(connection)
        assert said.startswith(b"HTTP/1.1 413 ") and b"larger than 1048576 bytes" in said
        # One that does not say how large it is, is read up to the bound.
        with raw(server, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()) as connection:
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            sent = 0
            try:
                while sent < 1 << 30:
                    connection.sendall(chunk)
                    sent += len(chunk)
            except OSError:
                pass
        assert sent < 100 << 20
        assert memory() - before < 64 << 20
        assert ask(server, f"{OPERATOR}/get", {"keys": ["a"]}).status == 200


def test_bodies_have_a_bound_together(folder: Path) -> None:
    with served({"shop": folder}, body_bytes=1 << 20) as server, contextlib.ExitStack() as held:
        service, size = server.app.service, 900_000
        head = (
            f"POST {OPERATOR}/get HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {size + 1}\r\n\r\n"
        ).encode()
        for number in (1, 2):
            held.enter_context(raw(server, head + b" " * size))
            until(lambda number=number: service.body_bytes == number * size)
        body = json.dumps({"keys": ["word 7"]}).encode()
        refused = ask(
            server, f"{OPERATOR}/get", body + b" " * size, Content_Type="application/json"
        )
        assert refused.status == 503 and "2097152 bytes of bodies" in refused.said
        assert ask(server, f"{OPERATOR}/get", {"keys": ["word 7"]}).status == 200
        held.close()
        until(lambda: service.body_bytes == 0)
        taken = ask(server, f"{OPERATOR}/get", body + b" " * size, Content_Type="application/json")
        assert taken.json["rows"][0]["n"] == 7 and service.body_bytes == 0


def test_of_bodies_that_come_together_some_have_the_room() -> None:
    [operation] = [each for each in all_routes() if each.name == "get"]
    scope: dict[str, Any] = {"headers": [], "path_params": {}, "query_string": b""}

    async def body(service: Service) -> str:
        parts = [{"type": "http.request", "body": b" " * 60, "more_body": more} for more in (1, 0)]

        async def receive() -> dict[str, object]:
            await asyncio.sleep(0)
            return parts.pop(0)

        async def send(message: object) -> None:
            raise AssertionError("nothing is answered")

        try:
            return f"{len(await Call(operation, service, scope, receive, send).body())}"
        except BusyError:
            return "refused"

    async def three() -> tuple[list[str], int]:
        workers = Workers(1, 1)
        service = Service((), Jobs([]), Limits(body_bytes=120), workers)
        workers.close()
        return await asyncio.gather(*(body(service) for _ in range(3))), service.body_bytes

    assert asyncio.run(three()) == (["120", "refused", "120"], 240)


def test_a_body_that_does_not_come_is_not_waited_for(folder: Path) -> None:
    with served({"shop": folder}, seconds=1) as server:
        head = (
            f"POST {OPERATOR}/get HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        )
        with raw(server, f"{head}Content-Length: 10\r\nConnection: close\r\n\r\n{{".encode()) as c:
            assert b" 408 " in all_of(c).partition(b"\r\n")[0]


def test_a_request_that_does_not_go_on_is_not_waited_for(folder: Path) -> None:
    with served({"shop": folder}, stall_seconds=1) as server:
        for begun in (b"", b"GET /v1/jobs HTTP/1.1\r\nHost: 127"):
            with raw(server, begun) as connection, contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_bounds_on_keys_rows_and_connections(folder: Path) -> None:
    with served({"shop": folder}, keys=3, document_rows=100, connections=3) as server:
        for body in ({"keys": list("abcd")}, {"keys": [[c] for c in "abcd"]}):
            answer = ask(server, f"{OPERATOR}/get", body)
            assert answer.status == 400 and "looks up 3 at a time" in answer.said
        assert ask(server, f"{OPERATOR}/keys?key=a&key=b&key=c&key=d").status == 400
        many = ask(server, f"{OPERATOR}/scan", {"limit": 101})
        assert many.status == 400 and "at most 100" in many.said
        idle = [socket.create_connection(address(server)) for _ in range(3)]
        refused = ask(server, "/v1/health")
        assert refused.status == 503 and "no room for another connection" in refused.said
        for connection in idle:
            connection.close()


def test_a_stream_that_cannot_go_on_says_why_and_has_no_end(folder: Path) -> None:
    with served({"shop": folder}, rows=50_000) as server:
        request = f"POST {OPERATOR}/scan HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
        with raw(server, f"{request}Accept: {LINES}\r\n\r\n".encode()) as connection:
            said = all_of(connection)
        assert said.startswith(b"HTTP/1.1 200 ") and not said.endswith(b"0\r\n\r\n")
        [line] = [line for line in said.splitlines() if line.startswith(b'{"error"')]
        assert "more rows than 50000" in json.loads(line)["error"]["message"]
        with ps.connect(server.url) as reader:
            rows, read = reader["embedded"].scan(columns=["key"]), 0
            with pytest.raises(InvalidArgumentError, match="more rows than 50000"):
                for batch in rows:
                    read += batch.num_rows
            assert 0 < read <= 50_000


def test_many_slow_readers_take_bounded_memory_and_do_not_stop_others(folder: Path) -> None:
    """Two hundred ask for all rows, and read nothing."""
    bounds = {"streams": 4, "seconds": 3, "stall_seconds": 1}
    with served({"shop": folder}, **bounds) as server:
        assert ask(server, f"{OPERATOR}/scan", {}, Accept=ARROW).status == 200
        before = memory()
        request = (
            f"POST {OPERATOR}/scan HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
            f"Accept: {LINES}\r\n\r\n"
        ).encode()
        slow = []
        for _ in range(200):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(address(server))
            connection.sendall(request)
            slow.append(connection)
        for _ in range(20):
            assert ask(server, f"{OPERATOR}/keys?key=word+7").json["rows"][0]["n"] == 7
        assert memory() - before < 200 << 20
        begun = time.monotonic()
        while ask(server, f"{OPERATOR}/scan", {"limit": 1}).status != 200:
            assert time.monotonic() - begun < 120
        for connection in slow:
            connection.close()


def test_work_ends_when_its_client_goes_away(folder: Path) -> None:
    with served({"shop": folder}, seconds=60, stall_seconds=60) as server:
        service = server.app.service
        wait = f"GET {OPERATOR}/keys?key=a&min_epoch=99 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        scan = (
            f"POST {OPERATOR}/scan HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
            f"Accept: {LINES}\r\n\r\n"
        )
        for request in (wait, scan):
            with raw(server, request.encode()) as connection:
                if request is scan:
                    connection.recv(100)
                until(lambda: service.requests == 1)
            until(lambda: service.requests == 0)
        assert service.streams.inside == 0


def until(holds: object) -> None:
    end = time.monotonic() + 30
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_more_requests_than_there_is_room_for_are_refused(folder: Path) -> None:
    with served({"shop": folder}, requests=4) as server, ThreadPoolExecutor(12) as threads:
        path = f"{OPERATOR}/keys?key=a&min_epoch=2&wait_ms=1000"
        answers = list(threads.map(lambda _: ask(server, path), range(12)))
        assert {answer.status for answer in answers} == {404, 503}
        busy = next(answer for answer in answers if answer.status == 503)
        assert "4 requests under way" in busy.said and busy.headers["retry-after"] == "1"
        assert sum(answer.status == 404 for answer in answers) >= 4
        assert ask(server, "/v1/health").status == 200


def test_a_token_is_asked_for(folder: Path, token_file: Path) -> None:
    with served({"shop": folder}, token_file=str(token_file)) as server:
        for headers in (
            {},
            {"Authorization": "Bearer 0123456789abcdefghi"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": "Bearer"},
        ):
            for path in ("/v1/jobs", "/nix", f"{OPERATOR}/keys"):
                answer = ask(server, path, **headers)
                assert answer.status == 401 and "asks for a token" in answer.said
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert ask(server, "/v1/jobs", Authorization=f"Bearer {TOKEN}").status == 200
        assert ask(server, "/v1/health").status == ask(server, "/openapi.json").status == 200


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "[::1]:80", "LOCALHOST:8765"])
def test_own_names_are_answered(host: str) -> None:
    Guard().check({b"host": host.encode()}, is_open=False)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", ""]
)
def test_other_names_are_not_answered(host: str) -> None:
    with pytest.raises(RequestError, match="does not answer to the name") as caught:
        Guard().check({b"host": host.encode()}, is_open=True)
    assert caught.value.status == 421
    Guard(hosts={"evil.example"}).check({b"host": b"evil.example:1"}, is_open=False)


def test_no_other_origin_is_allowed(folder: Path) -> None:
    with served({"shop": folder}) as server:
        answer = ask(server, "/v1/jobs", Origin="http://evil.example")
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert ask(server, "/v1/jobs", Host="evil.example").status == 421


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "0.0.0.0"}, "can be reached from other machines: give --token-file"),
        ({"host": "no.such.invalid"}, "--token-file"),
        ({"cert": "c"}, "--cert is there without --key"),
        ({"cert": "TOKEN", "key": "TOKEN"}, "are no certificate and its key"),
        ({"cert": "nix", "key": "nix"}, "--cert nix cannot be read"),
        ({"token_file": "nix"}, "it cannot be read: No such file"),
    ],
)
def test_what_is_not_safe_is_not_served(
    folder: Path, token_file: Path, options: dict[str, str], said: str
) -> None:
    given = {name: value.replace("TOKEN", str(token_file)) for name, value in options.items()}
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        Server({"shop": str(folder)}, ServeOptions(port=0, **given))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "token", "said"),
    [
        (0o640, TOKEN, "can be read or changed by others"),
        (0o604, TOKEN, "can be read or changed by others"),
        (0o600, "short", "a token has 16 to"),
        (0o600, "with a space in it, and long", "and no spaces"),
    ],
)
def test_token_files_that_are_refused(
    folder: Path, tmp_path: Path, mode: int, token: str, said: str
) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    path.chmod(mode)
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        Server({"shop": str(folder)}, ServeOptions(port=0, token_file=str(path)))
    assert token not in str(caught.value)


def test_https(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-out", str(cert), "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    with served({"shop": folder}, cert=str(cert), key=str(key)) as server:
        assert server.url.startswith("https://")
        with pytest.raises(ps.errors.ServerError, match="CERTIFICATE_VERIFY_FAILED"):
            ps.connect(server.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with ps.connect(server.url) as reader:
            assert reader["embedded"].get(["word 3"])["n"].to_pylist() == [3]
        with socket.create_connection(address(server)) as plain:
            plain.sendall(b"GET /v1/jobs HTTP/1.1\r\n\r\n")
            plain.settimeout(10)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert b"HTTP/1.1 200" not in plain.recv(100)


def test_a_second_server_on_the_port(folder: Path) -> None:
    with served({"shop": folder}) as server:
        with pytest.raises(
            InUseError, match="is in use by another program, perhaps another `pystate"
        ):
            Server({"shop": str(folder)}, ServeOptions(port=address(server)[1]))
        assert ask(server, "/v1/health").status == 200


@pytest.fixture
def program(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pystate", "serve", str(folder), f"two={folder}"]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def test_the_command_serves_until_it_is_told_to_end(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None and program.stderr is not None
    said = program.stdout.readline()
    assert said.startswith("Serving shop, two at http://127.0.0.1:")
    url = said.split()[-1]
    with ps.connect(f"{url}/two") as reader:
        assert reader["embedded"].get(["word 5"])["n"].to_pylist() == [5]
        host, port = url.rpartition("//")[2].split(":")
        with socket.create_connection((host, int(port))) as waiting:
            path = f"{OPERATOR}/keys?key=a&min_epoch=99"
            waiting.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert threading.active_count() and reader.refresh() == 1
            program.send_signal(signal.SIGTERM)
            assert waiting.recv(100).startswith(b"HTTP/1.1 503 ")  # it is told, and waits no more
    assert program.wait(30) == 0
    assert program.stderr.read() == ""


def test_the_command_ends_with_one_line(folder: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ([str(tmp_path / "nix")], "nix"),
        ([str(folder), f"{folder}/"], "two jobs would be called 'shop'"),
        ([str(folder), "--host", "0.0.0.0"], "give --token-file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pystate", "serve", *arguments, "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in (1, 2) and said in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("pystate: ")


def test_rows_of_large_bodies_are_of_one_epoch(folder: Path) -> None:
    keys = pa.array([f"word {i % 60_000}" for i in range(40_000)])
    with served({"shop": folder}) as server, ps.connect(server.url) as reader:
        found = reader["embedded"].get(keys, states=["n"])
        assert found["n"].to_pylist() == [i % 60_000 for i in range(40_000)]
