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
from tests.serving import OPERATOR, address, ask, served, shop

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


def test_changes_since_an_epoch_by_operator(job: Shop) -> None:
    job.write("word 1", 7)
    job.write("new", 1)
    said = ask(job.server, "/v1/jobs/shop/changed?since=1").json
    assert (said["epoch"], said["since"], said["operators"]) == (3, 1, ["embedded"])
    assert ask(job.server, "/v1/jobs/shop/changed?since=3").json["operators"] == []
    rows = ask(job.server, f"{OPERATOR}/changes?since=1").json["rows"]
    assert sorted((row["key"], row["after"]["n"]) for row in rows) == [("new", 1), ("word 1", 7)]
    [row] = ask(job.server, f"{OPERATOR}/changes?since=1&epoch=2").json["rows"]
    assert (row["key"], row["before"]["n"], row["after"]["n"]) == ("word 1", 1, 7)
    for since, status, said in (("9", 400, "the reader's epoch 3"), ("x", 400, "whole number")):
        answer = ask(job.server, f"{OPERATOR}/changes?since={since}")
        assert answer.status == status and said in answer.said
    for n in range(12):
        job.write("word 1", n)
    for path in ("/v1/jobs/shop/changed", f"{OPERATOR}/changes"):
        answer = ask(job.server, f"{path}?since=1")
        assert answer.status == 410 and answer.json["error"]["start_at"] == 15
    answer = ask(job.server, f"{OPERATOR}/changes?since=1&epoch=4")
    assert answer.status == 404 and "does not hold epoch 4" in answer.said


def test_changes_that_are_retired_before_they_are_read(job: Shop) -> None:
    with ps.connect(job.server.url) as reader:
        job.write("word 1", 7)
        assert reader.refresh() == 2
        changes = reader.changes(since=1)
        for n in range(12):
            newest = job.write("word 1", n)
        with pytest.raises(errors.RetiredEpochError, match="go on with follow") as caught:
            list(changes)
        assert (caught.value.epoch, caught.value.start_at) == (1, newest)


def test_many_changes_wait_in_a_file(job: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystate.query.remote_follow._IN_MEMORY", 1000)
    with ps.connect(job.server.url) as reader, reader.follow() as follower:
        keys = [f"new {i}" for i in range(5000)]
        job.store["n"].update_all(job.store.keys(keys), pa.array(range(5000)))
        job.store.checkpoint()
        changes = follower.next(30)
        assert changes is not None
        for _ in range(2):
            rows = [row for _, batch in changes for row in batch.to_pylist()]
            assert {row["key"]: row["after"]["n"] for row in rows} == {
                key: n for n, key in enumerate(keys)
            }
        job.write("new 1", 1)
        nothing = follower.next(30)
        assert nothing is not None and nothing.read("embedded").num_rows == 0


def test_no_room_for_changes_is_said(job: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", lambda size: Full())
    with ps.connect(job.server.url) as reader, reader.follow() as follower:
        job.write("word 1", 7)
        with pytest.raises(errors.NoSpaceError, match=r"cannot be kept in .* TMPDIR"):
            follower.next(30)


LEASES = "/v1/jobs/shop/leases"


def held(job: Shop) -> list[str]:
    return sorted(p.name for p in (Path(job.store.path) / "manifests/leases").glob("*.lease"))


def test_a_client_has_an_epoch_kept(job: Shop) -> None:
    with ps.connect(job.server.url) as reader:
        lease = reader.lease("1 minute")
        assert held(job) == [Path(lease.path).name] and repr(lease).endswith("from epoch 1 on>")
        for n in range(12):
            job.write("word 1", n)
        assert reader.at(1)["embedded"].get(["word 1"])["n"].to_pylist() == [1]
        lease.move(4)
        lease._renew()
        assert held(job) == [Path(lease.path).name] and lease.path.endswith(lease._name.path)
        assert Path(lease.path).name.startswith("00000004-60-")
        lease.close()
        lease.close()
        assert held(job) == []
        with reader.at(13).lease():
            assert len(held(job)) == 1
    assert held(job) == []
    with pytest.raises(errors.ClosedError):
        lease.move(5)


def test_leases_end_with_their_reader(job: Shop) -> None:
    with ps.connect(job.server.url) as reader:
        follower, _ = reader.follow(lease="1 minute"), reader.lease()
        assert len(held(job)) == 2
        for n in range(12):
            job.write("word 1", n)
        for epoch in range(2, 14):
            changes = follower.next(30)
            assert changes is not None and changes.epoch == epoch
    assert held(job) == [] and follower.next(0) is None


def test_leases_that_are_refused(tmp_path: Path) -> None:
    body: dict[str, Any] = {"epoch": 1, "seconds": 60}
    with (
        shop(tmp_path / "shop") as store,
        served({"shop": tmp_path / "shop"}, leases=2) as server,
    ):
        job = Shop(store, server)
        for wrong, said in (
            ({"epoch": 0}, "epoch is 0"),
            ({"epoch": 9}, "has no epoch 9 yet"),
            ({"seconds": 10**6}, "seconds is 1000000, and must be 1 to 86400"),
            ({"id": "../x"}, "32 hexadecimal digits"),
            ({"more": 1}, "known are epoch, seconds, id"),
        ):
            answer = ask(server, LEASES, {**body, **wrong})
            assert answer.status == 400 and said in answer.said
        given = [ask(server, LEASES, body).json for _ in range(2)]
        answer = ask(server, LEASES, body)
        assert answer.status == 503 and "2 leases, and no more" in answer.said
        assert ask(server, LEASES, {**body, "id": given[0]["id"]}).json == given[0]
        assert len(held(job)) == 2
        with ps.connect(server.url) as reader, pytest.raises(errors.ServerError, match="2 leases"):
            reader.lease()
    with served({"shop": tmp_path / "shop"}) as server:  # it has forgotten nothing
        connection = http.client.HTTPConnection(*address(server), timeout=60)
        for status in (200, 404):
            connection.request("DELETE", f"{LEASES}/{given[0]['id']}")
            response = connection.getresponse()
            response.read()
            assert response.status == status
        connection.close()
        assert len(held(job)) == 1


def test_a_position_is_waited_for(job: Shop) -> None:
    path = "/v1/jobs/shop?wait_ms=1&position="
    assert ask(job.server, f'{path}{{"id":"embedded","batchId":1}}').json["epoch"] == 1
    for position, status, said in (
        ('"load-3"', 404, "run 'load-3' was not published within 0.001 seconds"),
        ('["x"]', 400, "position is a run's key"),
        ("null", 400, "an epoch, or a position"),
        ("{", 400, "parameter position is not JSON"),
        ('"x"&min_epoch=1', 400, "min_epoch= or position=, not both"),
        ('"x"&epoch=1', 404, "epoch 1 does not have run 'x'"),
    ):
        answer = ask(job.server, path + position)
        assert answer.status == status and said in answer.said
    with ps.connect(job.server.url) as reader:
        with pytest.raises(errors.InvalidArgumentError, match="a server takes what JSON has"):
            reader.wait_for(position={"topic": {"0": {1, 2}}})
        with pytest.raises(errors.InvalidArgumentError, match="does not have run 'x'"):
            reader.at(1).wait_for(position="x")


def test_a_follower_says_when_the_server_is_gone(tmp_path: Path) -> None:
    shop(tmp_path / "shop").close()
    with served({"shop": tmp_path / "shop"}) as server:
        reader = ps.connect(server.url)
        follower = reader.follow()
    with pytest.raises(errors.ServerError):
        follower.next(30)
    assert follower.next() is None
