"""The routes of the server that read state, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import ANY
from urllib.parse import quote

import pyarrow as pa
import pytest

import pystate as ps
from pystate.serve.server import Server
from tests.serving import ARROW, LINES, OPERATOR, ask, in_arrow, served, shop


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("secret") / "shop"
    with shop(folder) as store:
        store["n"].update_all(store.keys(["word 1"]), pa.array([2**60]))
        store.checkpoint()
    with served({"shop": folder}) as server:
        yield server


def test_jobs_and_operators(server: Server) -> None:
    assert ask(server, "/v1/health").json == {"status": "ok"}
    job = {"name": "shop", "epoch": 2, "operators": ["embedded"]}
    assert ask(server, "/v1/jobs").json == {"jobs": [job]}
    assert ask(server, "/v1/jobs/shop").json == job
    [operator] = ask(server, "/v1/jobs/shop/operators").json["operators"]
    assert operator["key"] == [{"name": "key", "type": "string"}]
    states = [(each["name"], each["kind"], each["type"]) for each in operator["states"]]
    assert states == [("n", "value", "long"), ("seen", "map", "map<string,long>")]
    epochs = ask(server, "/v1/jobs/shop/epochs").json
    assert [row["epoch"] for row in epochs["rows"]] == [1, 2] and not epochs["more"]


def test_keys_are_looked_up_in_their_order_at_any_epoch(server: Server) -> None:
    answer = ask(server, f"{OPERATOR}/keys?key=word+1&key=nix&key=word+0")
    assert answer.headers["pystate-epoch"] == "2"
    assert answer.json == {
        "epoch": 2,
        "rows": [
            {"key": "word 1", "n": str(2**60), "seen": []},
            {"key": "nix", "n": None, "seen": None},
            {"key": "word 0", "n": 0, "seen": [["x", 1], ["y", 2], ["z", 3]]},
        ],
    }
    older = ask(server, f"{OPERATOR}/keys?key=word+1&state=n&epoch=1")
    assert older.headers["pystate-epoch"] == "1"
    assert older.json["rows"] == [{"key": "word 1", "n": 1}]


def test_many_keys_in_json_and_in_arrow(server: Server) -> None:
    asked = {"keys": ["word 2", ["word 0"], {"key": "word 9"}], "states": ["n"]}
    rows = [{"key": "word 2", "n": 2}, {"key": "word 0", "n": 0}, {"key": "word 9", "n": None}]
    assert ask(server, f"{OPERATOR}/get", asked).json == {"epoch": 2, "rows": rows}
    lines = ask(server, f"{OPERATOR}/get", asked, Accept=LINES)
    assert [json.loads(line) for line in lines.body.splitlines()] == rows
    body = in_arrow(pa.table({"key": ["word 2", "word 0", "word 9"]}))
    answer = ask(server, f"{OPERATOR}/get?state=n", body, Content_Type=ARROW, Accept=ARROW)
    assert answer.headers["content-type"] == ARROW
    assert pa.ipc.open_stream(answer.body).read_all().to_pylist() == rows
    none = ask(server, f"{OPERATOR}/get", {"keys": []}, Accept=ARROW)
    assert pa.ipc.open_stream(none.body).read_all().num_rows == 0


def test_rows_with_conditions_columns_and_a_limit(server: Server) -> None:
    asked = {"columns": ["key"], "where": [["n", ">=", 2], ["n", "<", str(2**60)]]}
    assert ask(server, f"{OPERATOR}/scan", asked).json["rows"] == [{"key": "word 2"}]
    some = ask(server, f"{OPERATOR}/scan", {"limit": 2}).json
    assert len(some["rows"]) == 2 and some["more"]
    all_rows = ask(server, f"{OPERATOR}/scan", b"", Accept=ARROW)
    assert pa.ipc.open_stream(all_rows.body).read_all().num_rows == 3
    lists = {"where": [[["key", "==", "word 0"]], [["key", "in", ["word 1"]]]], "columns": ["key"]}
    found = ask(server, f"{OPERATOR}/scan", lists).json["rows"]
    assert sorted(row["key"] for row in found) == ["word 0", "word 1"]


def test_a_piece_of_a_map(server: Server) -> None:
    path = f"{OPERATOR}/entries?state=seen&key=word+0"
    rows = [{"seen_key": "x", "seen": 1}, {"seen_key": "y", "seen": 2}]
    assert ask(server, f"{path}&to=z").json["rows"] == rows
    assert ask(server, f"{path}&from=y&to=z").json["rows"] == rows[1:]
    assert ask(server, f"{path}&limit=1").json == {"epoch": 2, "rows": rows[:1], "more": True}


def test_sql_over_one_epoch(server: Server) -> None:
    query = {"query": "select key, n from embedded where n > ? order by n", "parameters": [1]}
    answer = ask(server, "/v1/jobs/shop/sql?epoch=1", query)
    assert answer.json == {"epoch": 1, "rows": [{"key": "word 2", "n": 2}], "more": False}
    text = ask(
        server, "/v1/jobs/shop/sql", b"select nix from embedded", Content_Type="application/sql"
    )
    assert text.status == 400 and text.said.startswith("QueryError: sql:")
    tables = ask(server, "/v1/jobs/shop/sql/tables").json["rows"]
    assert {"embedded", "epochs"} <= {row["table"] for row in tables}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/jobs/nix", 404, "there is no job 'nix'; there is 'shop'"),
        ("/v1/jobs/shop/operators/nix/keys?key=1", 404, "has no operator 'nix'"),
        ("/nix", 404, "there is no '/nix'"),
        (f"{OPERATOR}/keys", 400, "parameter key is missing"),
        (f"{OPERATOR}/keys?key=a&stat=n", 400, "did you mean 'state'?"),
        (f"{OPERATOR}/keys?key=a&state=nix", 400, "'nix'"),
        (f"{OPERATOR}/keys?key=a&epoch=9", 404, "does not hold epoch 9; it has 1 to 2"),
        (f"{OPERATOR}/keys?key=a&epoch=x", 400, "epoch is a whole number"),
        (f"{OPERATOR}/keys?key=a&epoch=0", 400, "epoch is 0, and must be 1 to"),
        (f"{OPERATOR}/keys?key=a&epoch=1&min_epoch=1", 400, "not both"),
        (f"{OPERATOR}/keys?key=a&min_epoch=3&wait_ms=1", 404, "epoch 3 was not published"),
        (f"{OPERATOR}/keys?key=%FF", 400, "cannot be read"),
        (f"{OPERATOR}/keys?key=a&namespace=1", 400, "has no namespaces"),
        (f"{OPERATOR}/timers", 400, "has no timers"),
        (f"{OPERATOR}/entries?state=n&key=a", 400, "'n'"),
        (f"{OPERATOR}/get", 405, "GET is not a method"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    server: Server, path: str, status: int, said: str
) -> None:
    answer = ask(server, path)
    assert answer.status == status and said in answer.said
    assert "secret" not in answer.said and "/shop" not in answer.said.replace(path, "")


@pytest.mark.parametrize(
    ("part", "body", "status", "said"),
    [
        ("get", {"keys": [1]}, 400, "WrongTypeError: key column 'key' is of type string, not 1"),
        ("get", {"keys": [["a", "b"]]}, 400, "a key has the columns key string"),
        ("get", {"keys": "a"}, 400, "keys is a list"),
        ("get", {"nix": 1}, 400, "the body has no 'keys'"),
        ("get", {"keys": [], "nix": 1}, 400, "the body has 'nix'"),
        ("get", {"keys": ["\ud800"]}, 400, "half of a character is no text"),
        ("scan", {"where": [["nix", "==", 1]]}, 400, "has no column 'nix'"),
        ("scan", {"where": [["n", "~", 1]]}, 400, "'~'"),
        ("scan", {"where": [["n", "==", "a"]]}, 400, "WrongTypeError"),
        ("scan", {"where": 1}, 400, "where is a list of conditions"),
        ("scan", {"columns": 1}, 400, "columns is a list of names"),
        ("scan", {"limit": -1}, 400, "limit is a whole number"),
        ("scan", {"limit": 10**9}, 400, "a JSON document has at most"),
    ],
)
def test_what_is_wrong_in_a_body(
    server: Server, part: str, body: dict[str, object], status: int, said: str
) -> None:
    answer = ask(server, f"{OPERATOR}/{part}", body)
    assert (answer.status, said in answer.said) == (status, True), answer.said


def test_forms_that_there_are_not(server: Server) -> None:
    body = b'{"keys": []}'
    wrong = ask(server, f"{OPERATOR}/get", body, Content_Type="text/plain")
    assert wrong.status == 415 and "application/json" in wrong.said
    assert ask(server, f"{OPERATOR}/get", b"{", Content_Type="application/json").status == 400
    assert ask(server, f"{OPERATOR}/get", b"ARROW1", Content_Type=ARROW).status == 400
    other = in_arrow(pa.table({"k": ["a"]}))
    wrong = ask(server, f"{OPERATOR}/get", other, Content_Type=ARROW)
    assert wrong.status == 400 and "the columns k, and a key has key" in wrong.said
    assert ask(server, "/v1/jobs/shop/epochs", Accept="text/html").status == 406
    liked = ask(server, "/v1/jobs/shop/epochs", Accept=f"text/html, {LINES};q=0.5, */*;q=0.1")
    assert liked.headers["content-type"] == LINES


def test_an_epoch_is_waited_for(tmp_path: Path) -> None:
    with shop(tmp_path / "shop") as store, served({"shop": tmp_path / "shop"}) as server:
        path = f"{OPERATOR}/keys?key=word+0&state=n"
        assert ask(server, path).json["rows"] == [{"key": "word 0", "n": 0}]
        store["n"].update_all(store.keys(["word 0"]), pa.array([7]))
        store.checkpoint()
        answer = ask(server, f"{path}&min_epoch=2")
        assert answer.json == {"epoch": 2, "rows": [{"key": "word 0", "n": 7}]}
        assert ask(server, "/v1/jobs/shop").json["epoch"] == 2


def test_keys_of_all_types_and_uids_with_any_characters(tmp_path: Path) -> None:
    key = {
        "at": "timestamp",
        "who": "binary",
        "much": "decimal(9,2)",
        "day": "date",
        "is": "boolean",
    }
    folder = tmp_path / "types"
    with ps.open(folder, key=key, states={"x": ps.ValueState("double")}) as store:
        columns = [
            pa.array([1_700_000_000_250_000], pa.timestamp("us", "UTC")),
            pa.array([b"\x00\xff"]),
            pa.array([None], pa.decimal128(9, 2)),
            pa.array([19000], pa.date32()),
            pa.array([True]),
        ]
        store["x"].update_all(store.keys(columns), pa.array([float("-inf")]))
        store.checkpoint()
    with served({"a b/ü".replace("/", "-"): folder}) as server:
        form = ["2023-11-14T22:13:20.250000Z", "AP8=", None, "2022-01-08", True]
        job = quote("a b-ü")
        path = f"/v1/jobs/{job}/operators/embedded/keys?key={quote(json.dumps(form))}"
        [row] = ask(server, path).json["rows"]
        assert row == {**dict(zip(key, form, strict=True)), "x": "-Infinity"}


def test_what_is_at_hand_is_answered_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a thread was asked")

    states = {"n": ps.ValueState("long"), "s": ps.ValueState("string")}
    with ps.open(tmp_path / "shop", home="disk", key="long", states=states) as store:
        store["n"].update_all(store.keys(range(9)), pa.array(range(9)))
        store.set_current_key(3)
        store["s"].update("l" * 100_000)
        store.checkpoint()
        with served({"shop": tmp_path / "shop"}) as server, monkeypatch.context() as patch:
            first = ask(server, f"{OPERATOR}/keys?key=5&key=77")
            assert first.json["rows"][0] == {"key": 5, "n": 5, "s": None}
            large = ask(server, f"{OPERATOR}/keys?key=3")
            patch.setattr(server.app._workers, "run_soon", refuse)
            assert ask(server, f"{OPERATOR}/keys?key=5&key=77") == first._replace(
                headers=ANY, body=first.body
            )
            assert ask(server, f"{OPERATOR}/keys?key=5&key=77&state=n").json["rows"][0]["n"] == 5
            assert ask(server, f"{OPERATOR}/keys?key=3").status == 500  # that would take longer
            assert large.status == 200
            patch.undo()
            store.set_current_key(5)
            store["n"].update(6)
            store.checkpoint()
            newer = ask(server, f"{OPERATOR}/keys?key=5&min_epoch=2")
            assert newer.json["rows"] == [{"key": 5, "n": 6, "s": None}]


def test_an_epoch_whose_files_are_gone_is_left_for_the_newest(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with shop(folder) as store, served({"shop": folder}, refresh_seconds=1000) as server:
        assert ask(server, "/v1/jobs").json["jobs"][0]["epoch"] == 1
        for n in range(12):
            store["n"].update_all(store.keys(["word 0", "word 1"]), pa.array([n, n]))
            epoch = store.checkpoint()
        assert not list(folder.glob("state/*/*/00000001-*"))
        answer = ask(server, f"{OPERATOR}/keys?key=word+0&state=n")
        assert answer.headers["pystate-epoch"] == str(epoch)
        assert answer.json == {"epoch": epoch, "rows": [{"key": "word 0", "n": 11}]}
        assert ask(server, f"{OPERATOR}/keys?key=word+0&epoch=1").status == 404
