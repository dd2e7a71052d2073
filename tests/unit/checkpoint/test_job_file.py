"""The small files of a checkpoint: its identity, its owners, its run keys."""

from __future__ import annotations

import hashlib
import importlib.metadata
import threading
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint import job_file
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.job_file import (
    JobFile,
    OperatorEntry,
    check_schemas,
    default_max_parallelism,
    library,
    open_job,
    read_job,
)
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.ownership import Ownership, current_owner
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    NewerFormatError,
    UnclaimedStateError,
)
from pystate.state.evolution import stored_change
from tests.conftest import FakeWork


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "ck")


@pytest.mark.parametrize(
    ("parallelism", "groups"),
    [(1, 128), (85, 128), (86, 256), (4, 128), (1000, 2048), (21845, 32768), (32768, 32768)],
)
def test_default_max_parallelism_is_flinks(parallelism: int, groups: int) -> None:
    assert default_max_parallelism(parallelism) == groups


def test_first_job_makes_the_identity(storage: LocalStorage) -> None:
    assert read_job(storage) is None
    job = open_job(storage, "flights", 4, None)
    assert (job.name, job.max_parallelism, job.operators) == ("flights", 128, ())
    assert job.library == library() == f"pystate {ps.__version__}"
    assert open_job(storage, "flights", 4, None) == job == read_job(storage)


def test_the_version_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each manifest names it, and a look-up reads the folders of all packages."""
    looked: list[str] = []
    monkeypatch.setattr(importlib.metadata, "version", lambda name: looked.append(name) or "1.2")
    library.cache_clear()
    try:
        assert library() == library() == "pystate 1.2"
        assert looked == ["pystate-spark"]
    finally:
        library.cache_clear()


def test_two_first_jobs_agree(storage: LocalStorage) -> None:
    found: list[JobFile] = []
    barrier = threading.Barrier(4)

    def open_it() -> None:
        barrier.wait()
        found.append(open_job(storage, "flights", 4, None))

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1


def test_lost_identity_is_not_made_anew(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate())
        lost = work.storage.read_bytes("job.json")
    work.storage.delete("job.json")
    for name in ("job", "another"):
        with pytest.raises(CheckpointError, match=r"job\.json.* is lost: bring"):
            work.coordinator(job=name)
    assert not work.storage.exists("job.json")
    work.storage.publish("job.json", lost)
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate())


def test_identity_that_another_driver_makes_meanwhile(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first epoch may be there already."""

    def lists(self: LocalStorage, prefix: str) -> list[str]:
        monkeypatch.undo()
        open_job(storage, "j", 2, None)
        return [f"{prefix}/00000001.manifest"]

    monkeypatch.setattr(LocalStorage, "list", lists)
    assert open_job(storage, "j", 2, None) == read_job(storage)


def test_stored_max_parallelism_wins(storage: LocalStorage) -> None:
    open_job(storage, "j", 2, 64)
    storage.publish("manifests/00000001.manifest", b"")
    assert open_job(storage, "j", 2, None).max_parallelism == 64
    assert open_job(storage, "j", 2, 64).max_parallelism == 64
    with pytest.raises(InvalidArgumentError, match="multiply it by pystate"):
        open_job(storage, "j", 2, 128)
    with pytest.raises(InvalidArgumentError, match="more than the 64 key groups"):
        open_job(storage, "j", 65, None)


def test_until_an_epoch_is_published_a_job_begins_anew(storage: LocalStorage) -> None:
    fenced: list[int] = []
    first = open_job(storage, "j", 2, 64, lambda: fenced.append(1))
    assert open_job(storage, "j", 2, 64, lambda: fenced.append(1)) == first and not fenced
    second = open_job(storage, "other", 300, None, lambda: fenced.append(2))
    assert (second.name, second.max_parallelism) == ("other", 512)
    assert second.application(storage) != first.application(storage)
    assert read_job(storage) == second and fenced == [2]

    def refuse() -> None:
        raise InvalidArgumentError("it runs")

    with pytest.raises(InvalidArgumentError, match="it runs"):
        open_job(storage, "j", 2, 64, refuse)

    def publish() -> None:
        storage.publish("manifests/00000001.manifest", b"")

    with pytest.raises(InvalidArgumentError, match="belongs to the job 'other'"):
        open_job(storage, "j", 2, 64, publish)  # the other driver was faster
    assert read_job(storage) == second


SPARKS = [
    {"metadata": '{"id":"d1"}'},
    {"metadata": '{"id":"d1"}', "offsets/0": "v1", "commits/0": "v1", "state/0/0/1.delta": "x"},
    {"offsets/3": "v1", "commits/3": "v1"},
]


@pytest.mark.parametrize("files", SPARKS)
def test_a_query_of_sparks_own_is_no_checkpoint(
    storage: LocalStorage, tmp_path: Path, files: dict[str, str]
) -> None:
    for name, content in files.items():
        path = Path(storage.uri, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    before = content_of(storage)
    states = {"n": ps.ValueState("long")}
    for act in (
        lambda: open_job(storage, "j", 2, None),
        lambda: ps.open(storage.uri, key="long", states=states),
        lambda: ps.read_state(storage.uri, "u"),
        lambda: ps.savepoint(storage.uri, tmp_path / "sp"),
        lambda: begin_with(storage, LocalStorage(tmp_path / "new"), job="j"),
        lambda: ps.describe(storage.uri),
        lambda: ps.verify(storage.uri),
        lambda: ps.collect(storage.uri),
        lambda: ps.repair(storage.uri),
    ):
        with pytest.raises(InvalidArgumentError, match=r"(?s)checkpointLocation.*from-spark"):
            act()
    after = {name: data for name, data in content_of(storage).items() if name != "lock"}
    assert after == before and not (tmp_path / "sp").exists()


def content_of(storage: LocalStorage) -> dict[str, bytes]:
    return {entry.path: storage.read_bytes(entry.path) for entry in storage.list("")}


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"of": "another program"}'])
def test_a_folder_with_a_file_of_that_name(storage: LocalStorage, content: str) -> None:
    Path(storage.uri).mkdir()
    Path(storage.uri, "metadata").write_text(content)
    assert open_job(storage, "j", 2, None).name == "j"


def test_refused_before_anything_is_written(storage: LocalStorage) -> None:
    wrong = [("", 1, None), ("j", 0, None), ("j", 5, 4), ("j", 1, -1), ("j", 1, 0), ("j", 1, 32769)]
    for name, parallelism, groups in [*wrong, ("j", 40000, None)]:
        with pytest.raises(InvalidArgumentError):
            open_job(storage, name, parallelism, groups)
    assert not Path(storage.uri).exists()


def test_operators(storage: LocalStorage) -> None:
    job = open_job(storage, "j", 2, None)
    entries = (OperatorEntry("b", (("k", "string"),), ()), OperatorEntry("a", (), ()))
    more = job.with_operators(entries)
    assert [e.uid for e in more.operators] == ["a", "b"]
    assert more.with_operators(entries) is more
    more.save(storage)
    assert read_job(storage) == more and more.application(storage) == job.application(storage)
    copy = LocalStorage(f"{storage.uri}-copy")  # it may be used beside the other, with the same id
    assert more.application(copy) != more.application(storage)


def test_renames_are_looked_for_among_states_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two types are compared once, however many states have them."""
    compared: list[tuple[str, str]] = []
    monkeypatch.setattr(
        job_file, "stored_change", lambda *pair: compared.append(pair) or stored_change(*pair)
    )
    key = (("k", "long"),)
    kinds = ["long", "ReducingState('long', 'max')", "ListState('long')"]
    old = tuple((f"old{i}", kinds[i % 3]) for i in range(60))
    new = tuple((f"new{i}", kinds[i % 3 - 1]) for i in range(59))
    with pytest.raises(UnclaimedStateError) as raised:
        check_schemas("u", (key, old), (key, new), allow_unclaimed_state=False)
    assert len(compared) <= 9
    text = str(raised.value)
    assert "looks like a rename: old0 -> new1, old1 -> new2, old2 -> new0, old3 -> new4," in text
    assert "old59" in text and "-> new58" in text


def test_a_state_of_a_later_kind_is_named() -> None:
    key = (("k", "long"),)
    stored, declared = (("n", "BagState('long')"),), (("n", "long"),)
    with pytest.raises(NewerFormatError, match=r"'u', state 'n' is stored as BagState\('long'\)"):
        check_schemas("u", (key, stored), (key, declared), allow_unclaimed_state=True)


def test_every_flipped_byte_of_the_identity(storage: LocalStorage) -> None:
    open_job(storage, "j", 2, None).with_operators((OperatorEntry("a", (), ()),)).save(storage)
    data = storage.read_bytes("job.json")
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 0x20]) + data[position + 1 :]
        with pytest.raises(CorruptFileError, match=r"job\.json"):
            JobFile.decode(damaged)
        with pytest.raises(CorruptFileError, match=r"job\.json"):
            JobFile.decode(data[:position])
    with pytest.raises(NewerFormatError, match=r"job\.json"):
        JobFile.decode(encode_document("job", 9, {}))


def test_owners_succeed_each_other(storage: LocalStorage) -> None:
    assert current_owner(storage) is None
    for number in range(1, 20):
        ownership = Ownership(storage, f"run{number}")
        ownership.acquire()
        ownership.check()
        assert ownership.term == number
        found = current_owner(storage)
        assert found is not None and (found.term, found.run_id) == (number, f"run{number}")
    assert [e.path for e in storage.list("owners")] == [
        f"owners/{n:08d}.owner" for n in range(4, 20)
    ]


def test_owners_that_ask_at_once_get_different_terms(storage: LocalStorage) -> None:
    owners = [Ownership(storage, f"run{n}") for n in range(6)]
    threads = [threading.Thread(target=owner.acquire) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(owner.term for owner in owners) == [1, 2, 3, 4, 5, 6]


def test_run_key_that_collides(work: FakeWork) -> None:
    with work.coordinator(retained=1) as coordinator:
        coordinator.run(work.evaluate(), run_key="a")
        coordinator.run(work.evaluate(), run_key="b")
        (entry,) = work.storage.list("runs")
        data = work.storage.read_bytes(entry.path)
        work.storage.replace(entry.path, data.replace(b'"first"', b'"First"'))
    with work.coordinator() as coordinator:
        with pytest.raises(CorruptFileError, match=r"runs/.*\.keys"):
            coordinator.open_epoch(run_key="a")
        content = {"first": 1, "last": 2, "runs": {}}
        work.storage.replace(entry.path, encode_document("run keys", 1, content))
        with pytest.raises(CorruptFileError, match="other epochs"):
            coordinator.open_epoch(run_key="a")
        work.storage.delete(entry.path)
        path = f"runs/{hashlib.sha256(b'a').hexdigest()}.run"
        work.storage.publish(path, encode_document("run", 1, {"run_key": "z", "epoch": 1}))
        with pytest.raises(CorruptFileError, match="another run key"):
            coordinator.open_epoch(run_key="a")
