"""Changes as server-sent events, and the client that follows them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate import errors
from pystate.serve.server import Server
from tests.serving import address, ask, served, shop

PATH = "/v1/jobs/shop/changes"


class Shop:
    def __init__(self, store: ps.Store, server: Server) -> None:
        self.store, self.server = store, server

    def write(self, word: str, n: int) -> int:
        self.store["n"].update_all(self.store.keys([word]), pa.array([n]))
        return self.store.checkpoint()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Shop]:
    with shop(tmp_path / "shop") as store, served({"shop": tmp_path / "shop"}) as server:
        yield Shop(store, server)


OPEN: list[Events] = []


@pytest.fixture(autouse=True)
def close_events() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Events:
    """A client as browsers are: it knows the last id that it has seen."""

    def __init__(self, server: Server, path: str = PATH, **headers: str) -> None:
        self.connection = http.client.HTTPConnection(*address(server), timeout=60)
        self.connection.request("GET", path, headers=headers)
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        assert self.response.headers["content-type"] == "text/event-stream"
        self.last = ""
        OPEN.append(self)

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    def next(self) -> tuple[str, Any]:
        name, data = "", ""
        while line := self.response.readline().decode():
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "id":
                self.last = value
            elif field == "event":
                name = value
            elif field == "data":
                data = value
            elif line == "\n" and data:
                return name, json.loads(data)
        return "end", None


def test_each_epoch_comes_once_and_a_client_goes_on_where_it_was(job: Shop) -> None:
    events = Events(job.server)
    assert events.next() == ("begin", {"epoch": 1}) and events.last == "1"
    job.write("word 1", 7)
    name, said = events.next()
    [row] = said["rows"]
    assert (name, said["epoch"], said["operator"]) == ("change", 2, "embedded")
    assert row == {
        "key": "word 1",
        "change": "put",
        "before": {"n": 1, "seen": []},
        "after": {"n": 7, "seen": []},
    }
    assert events.last == "1"  # an epoch counts when it has come whole
    name, said = events.next()
    assert (name, said["epoch"], said["since"], events.last) == ("epoch", 2, 1, "2")
    events.close()
    job.write("new", 1)
    events = Events(job.server, **{"Last-Event-ID": events.last})
    assert events.next() == ("begin", {"epoch": 2})
    assert [row["key"] for row in events.next()[1]["rows"]] == ["new"]
    assert events.next()[1]["epoch"] == 3
    again = Events(job.server, f"{PATH}?since=1&operator=embedded")
    assert [again.next()[0] for _ in range(5)] == ["begin", "change", "epoch", "change", "epoch"]


def test_events_end_when_the_server_does(tmp_path: Path) -> None:
    shop(tmp_path / "shop").close()
    with served({"shop": tmp_path / "shop"}) as server:
        events = Events(server)
        assert events.next()[0] == "begin"
        server.stop()
        assert events.next() == ("end", None)


def test_followers_are_bounded_and_leave_when_their_clients_do(tmp_path: Path) -> None:
    shop(tmp_path / "shop").close()
    with served({"shop": tmp_path / "shop"}, followers=2) as server:
        two = [Events(server) for _ in range(2)]
        assert [events.next()[0] for events in two] == ["begin", "begin"]
        refused = ask(server, PATH)
        assert refused.status == 503 and "2 clients that follow changes" in refused.said
        for events in two:
            events.close()
        # Each leaves in its own time.
        while server.app.service.followers.inside:
            pass
        assert Events(server).next()[0] == "begin"


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("?since=9", 400, "9"),
        ("?since=x", 400, "since is a whole number"),
        ("?operator=", 400, "uid"),
        ("?nix=1", 400, "there is no parameter 'nix'"),
    ],
)
def test_what_cannot_be_followed(job: Shop, query: str, status: int, said: str) -> None:
    answer = ask(job.server, f"{PATH}{query}")
    assert answer.status in (status, 404) and said in answer.said


def test_a_retired_epoch_says_from_which_one_to_begin_anew(job: Shop) -> None:
    for n in range(12):
        newest = job.write("word 1", 100 + n)
    answer = ask(job.server, PATH, None, **{"Last-Event-ID": "1"})
    error = answer.json["error"]
    assert answer.status == 410 and error["type"] == "RetiredEpochError"
    assert error["epoch"] == 1 and 1 < error["start_at"] <= newest
    assert Events(job.server, f"{PATH}?since={error['start_at']}").next()[0] == "begin"
    with ps.connect(job.server.url) as reader:
        with pytest.raises(errors.RetiredEpochError) as caught:
            reader.follow(since=1)
        assert (caught.value.epoch, caught.value.start_at) == (1, error["start_at"])


def test_the_client_follows_as_a_reader_of_files_does(job: Shop, tmp_path: Path) -> None:
    with ps.connect(job.server.url) as reader, ps.connect(tmp_path / "shop") as local:
        with reader.follow() as follower, local.follow() as other:
            assert follower.next(0) is None and follower.epoch == 1
            job.write("word 1", 2**60)
            job.write("word 2", 5)
            for epoch in (2, 3):
                changes, expected = follower.next(30), other.next(30)
                assert changes is not None and expected is not None
                assert changes.epoch == expected.epoch == epoch == follower.epoch + 1
                assert (changes.since, changes.uids) == (expected.since, expected.uids)
                found, wanted = (c.read("embedded") for c in (changes, expected))
                assert found.schema.equals(wanted.schema) and found.equals(wanted)
            assert follower.next(0.05) is None and follower.epoch == 3
        assert list(follower) == []
        stopped = reader.follow()
        stopped.stop()
        assert stopped.next() is None


def test_a_follower_says_when_the_server_is_gone(tmp_path: Path) -> None:
    shop(tmp_path / "shop").close()
    with served({"shop": tmp_path / "shop"}) as server:
        reader = ps.connect(server.url)
        follower = reader.follow()
    with pytest.raises(errors.ServerError):
        follower.next(30)
    assert follower.next() is None
