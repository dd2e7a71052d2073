"""`pystate.connect` of a server gives what it gives of the checkpoint's folder."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate import errors
from pystate.query.operator_reader import OperatorReader
from pystate.query.reader import StateReader
from pystate.query.remote import RemoteOperator, RemoteReader
from pystate.serve.server import Server
from tests.serving import served, shop


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    store = shop(tmp_path / "shop", 50)
    try:
        store["n"].update_all(store.keys(["word 1"]), pa.array([2**60]))
        store.checkpoint()
        yield tmp_path / "shop"
    finally:
        store.close()


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with served({"shop": folder}) as server:
        yield server


def same(one: pa.Table, other: pa.Table) -> bool:
    return one.schema.equals(other.schema) and one.to_pylist() == other.to_pylist()


def test_it_has_every_method_of_a_reader_itself() -> None:
    for local, remote in ((StateReader, RemoteReader), (OperatorReader, RemoteOperator)):
        for name, method in vars(local).items():
            if name.startswith("_") and name != "__getitem__":
                continue
            assert name in vars(remote), name
            if inspect.isfunction(method) and name not in ("sql", "scan_sql"):
                parameters = inspect.signature(method).parameters
                assert [*parameters] == [*inspect.signature(vars(remote)[name]).parameters], name


def test_it_reads_what_a_reader_of_files_reads(server: Server, folder: Path) -> None:
    with ps.connect(folder) as local, ps.connect(f"{server.url}/shop") as reader:
        assert isinstance(reader, StateReader) and reader.location == f"{server.url}/shop"
        assert (reader.epoch, reader.uids) == (local.epoch, local.uids) == (2, ("embedded",))
        assert list(reader) == list(local) and "embedded" in reader
        assert same(reader.epochs(), local.epochs())
        here, there = local["embedded"], reader["embedded"]
        assert there.schema.equals(here.schema, check_metadata=True)
        assert there.key_schema.equals(here.key_schema)
        assert repr(there.states) == repr(here.states)
        keys = pa.array(["word 1", "nix", "word 0", "word 1"])
        assert same(there.get(keys), here.get(keys))
        assert same(there.get(["word 3"], states=["n"]), here.get(["word 3"], states=["n"]))
        for asked in (
            {},
            {"columns": ["n", "key"]},
            {"where": [("n", ">", 40)]},
            {"where": [[("key", "in", {"word 1", "nix"})], [("n", "==", 3)]]},
            {"where": [("n", "!=", None)], "key_groups": range(64)},
        ):
            one, other = (r.scan(**asked).read_all() for r in (there, here))  # type: ignore[arg-type]
            assert same(one.sort_by("n"), other.sort_by("n"))
        for bounds in ({}, {"from_": "y"}, {"to": "z"}):
            one, other = (r.entries("seen", "word 0", **bounds).read_all() for r in (there, here))
            assert same(one, other)
        query = "select count(*) as rows, max(n) as most from embedded where n >= ?"
        assert same(reader.sql(query, [2]), local.sql(query, [2]))


def test_epochs_are_pinned_waited_for_and_moved_to(server: Server, folder: Path) -> None:
    with ps.connect(server.url) as reader, ps.connect(server.url, epoch=1) as first:
        assert reader.at(1)["embedded"].get(["word 1"], states=["n"])["n"].to_pylist() == [1]
        assert first.epoch == first.refresh() == 1
        assert first["embedded"].get(["word 1"])["n"].to_pylist() == [1]
        with pytest.raises(errors.NotReachedError, match="epoch 3 was not published"):
            reader.wait_for(epoch=3, timeout=50)
        with pytest.raises(errors.CheckpointError, match="does not hold epoch 7"):
            reader.at(7)
        assert reader.wait_for(epoch=2) == reader.refresh() == 2


def test_a_reader_moves_once_in_a_call(tmp_path: Path) -> None:
    store = shop(tmp_path / "shop")
    with store, served({"shop": tmp_path / "shop"}) as server, ps.connect(server.url) as reader:

        def retired(epoch: int) -> Any:
            for _ in range(5):
                store["n"].update_all(store.keys(["word 1"]), pa.array([epoch]))
                store.checkpoint()
            raise errors.CheckpointError("gone")

        assert isinstance(reader, RemoteReader)
        with pytest.raises(errors.CheckpointError, match=r"epoch 1 was .*, and so was epoch 6, to"):
            reader.read(retired)
        assert reader.epoch == 6


@pytest.mark.parametrize(
    ("kind", "said", "ask"),
    [
        (errors.CheckpointError, "has no operator 'nix'", lambda r: r["nix"]),
        (errors.InvalidArgumentError, "'nix'", lambda r: r["embedded"].get(["a"], states=["nix"])),
        (errors.WrongTypeError, "key column 'key'", lambda r: r["embedded"].get([1])),
        (
            errors.InvalidArgumentError,
            "no column",
            lambda r: r["embedded"].scan(where=[("x", "=", 1)]),
        ),
        (errors.InvalidArgumentError, "has no timers", lambda r: r["embedded"].timers()),
        (errors.QueryError, "nix", lambda r: r.sql("select nix from embedded")),
        (
            errors.InvalidArgumentError,
            "namespaces",
            lambda r: r["embedded"].get(["a"], namespaces=[1]),
        ),
    ],
)
def test_errors_are_those_of_a_reader_of_files(
    server: Server, folder: Path, kind: type[Exception], said: str, ask: Any
) -> None:
    with ps.connect(server.url) as reader, ps.connect(folder) as local:
        for each in (reader, local):
            with pytest.raises(kind, match=said) as caught:
                ask(each)
        assert caught.type is not Exception
        # The connection is as good as before.
        assert reader["embedded"].get(["word 0"])["n"].to_pylist() == [0]


def test_a_stream_that_breaks_off_is_an_error(folder: Path) -> None:
    with served({"shop": folder}, rows=10) as server, ps.connect(server.url) as reader:
        with pytest.raises(errors.InvalidArgumentError, match="more rows than 10"):
            reader["embedded"].scan().read_all()
        assert len(reader["embedded"].scan(where=[("n", "<", 5)]).read_all()) == 4


def test_a_stream_that_is_not_read_to_its_end_takes_nothing_with_it(server: Server) -> None:
    with ps.connect(server.url) as reader:
        rows = reader["embedded"].scan()
        rows.read_next_batch()
        rows.close()
        del rows
        assert reader["embedded"].get(["word 2"])["n"].to_pylist() == [2]


def test_servers_that_are_not_there_or_ask_for_more(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(errors.ServerError, match="cannot be reached"):
        ps.connect("http://127.0.0.1:9/shop")
    with pytest.raises(errors.InvalidArgumentError, match="not the address of a server"):
        ps.connect("http://user:password@host/")
    with pytest.raises(errors.InvalidArgumentError, match="a token is for a server"):
        ps.connect(folder, token="0123456789abcdef")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    with served({"a": folder, "b": folder}, token_file=str(token)) as server:
        with pytest.raises(errors.ServerError, match="asks for a token"):
            ps.connect(f"{server.url}/a")
        with pytest.raises(errors.InvalidArgumentError, match="has the jobs 'a', 'b': name one"):
            ps.connect(server.url, token="0123456789abcdef")
        with ps.connect(f"{server.url}/b", token="0123456789abcdef") as reader:
            assert reader.epoch == 2
        with pytest.raises(errors.ClosedError):
            reader.refresh()
