"""Commands, and the functions behind them, with the URL of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.object_storage import ObjectStorage
from pystate.errors import InvalidArgumentError
from tests.unit.cli.test_cli import run
from tests.work import Work


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "work").some(4)


@pytest.fixture
def url(work: Work, s3_url: str) -> str:
    """A checkpoint that was copied into a bucket."""
    storage = ObjectStorage(s3_url)
    for entry in work.storage.list(""):
        storage.replace(entry.path, work.storage.read_bytes(entry.path))
    return s3_url


def test_looking(url: str, work: Work) -> None:
    code, said, wrong = run("inspect", url, "--json")
    assert (code, wrong) == (0, "")
    assert json.loads(said)["location"] == url
    code, said, wrong = run("verify", url)
    assert (code, wrong) == (0, ""), said + wrong
    for command in (("history", url), ("read", url, "--limit", "3")):
        code, said, wrong = run(*command)
        assert (code, wrong) == (0, ""), said + wrong
    assert ps.read_state(url, "op").equals(ps.read_state(work.root, "op"))
    [lost, *_] = ObjectStorage(url).list("state")
    ObjectStorage(url).delete(lost.path)
    code, said, _ = run("verify", url)
    assert code == 1 and "is lost" in said


def test_savepoints(url: str, work: Work, tmp_path: Path) -> None:
    code, said, wrong = run("savepoint", url, f"{url}/savepoints/one")
    assert (code, wrong) == (0, ""), said + wrong
    ps.savepoint(url, tmp_path / "two")
    ps.savepoint(work.root, f"{url}/savepoints/three")
    for place in (f"{url}/savepoints/one", tmp_path / "two", f"{url}/savepoints/three"):
        assert run("verify", str(place))[0] == 0
        assert ps.read_state(place, "op").equals(ps.read_state(work.root, "op"))
    with pytest.raises(InvalidArgumentError, match="holds a savepoint already"):
        ps.savepoint(url, f"{url}/savepoints/one")


def test_wrong_places(url: str, tmp_path: Path) -> None:
    for arguments, message in (
        (("inspect", f"{url}/none"), "holds no checkpoint and no savepoint"),
        (("inspect", "s3://no-such-bucket/x"), "there is no bucket or container"),
        (("inspect", "ftp://host/x"), "'ftp' is not supported"),
        (("export", url, "s3://bucket/out"), "export_state: destination is a folder of a local"),
    ):
        code, said, wrong = run(*arguments)
        assert code in (1, 2) and said == ""
        assert message in " ".join(wrong.split()), wrong
    with pytest.raises(InvalidArgumentError, match=r"ps.open: path is a folder of a local"):
        ps.open("s3://bucket/store", key="k string", states={"n": ps.ValueState("long")})
