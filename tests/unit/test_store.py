"""The embedded store: durable at its checkpoints, and at nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.manifest_log import retained_epochs
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import (
    CheckpointError,
    ClosedError,
    CorruptFileError,
    DeclarationError,
    InvalidArgumentError,
    NoEventTimeError,
    NoSpaceError,
    PoisonedError,
    SchemaError,
    StateOverflowError,
    TableBusyError,
    UnclaimedStateError,
)
from pystate.store import Store
from pystate.types import arrays
from tests.forks import FORKS, copied, ended, forked

STATES = {
    "n": ps.ValueState("long", default=0),
    "name": ps.ValueState("string"),
    "seen": ps.ValueState(object),
}

DEFAULTS: dict[str, Any] = {}


@pytest.fixture(params=["heap", "disk"], autouse=True)
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test is of a store in memory, and of one on disk."""
    monkeypatch.setitem(DEFAULTS, "home", request.param)
    return str(request.param)


def opened(folder: Path, **options: Any) -> Store:
    options = DEFAULTS | options
    options.setdefault("key", "long")
    options.setdefault("states", STATES)
    return ps.open(folder, **options)


def rows(store: Store) -> dict[Any, Any]:
    table = store.to_arrow().to_pydict()
    return dict(zip(table["key"], zip(table["n"], table["name"], strict=True), strict=True))


def names(folder: Path, below: str = "") -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in (folder / below).rglob("*")
        if path.is_file()
        and path.suffix != ".retired"
        and path.name not in ("lock", "job.json", "latest")
    }


def test_reopening_restores_the_last_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["n"].add(store.keys(pa.array([1, 2, 1])), 1)
        store.set_current_key(2)
        store["seen"].update({"a": [1]})
        assert store.checkpoint() == 1
        store["n"].add(store.keys([1]), 10)
        store["name"].update_all(store.keys([3]), "three")
        store.delete([2])
        assert store.checkpoint() == 2
        wanted = rows(store)
        store["n"].add(store.keys([1, 4]), 100)
    with opened(tmp_path) as store:
        assert rows(store) == wanted == {1: (12, None), 3: (None, "three")}
        assert store.epoch == 2
        assert (len(store), sorted(store)) == (2, [1, 3])
        store.set_current_key(2)
        assert store["seen"].value() is None


def test_memory_that_ends_while_a_column_is_read_is_no_wrong_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(values: Any, type: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 4032 failed")

    with opened(tmp_path) as store:
        keys = store.keys([1])
        monkeypatch.setattr(arrays, "_infer_array", none_left)
        for use in (lambda: store["n"].add(keys, [1]), lambda: store.keys([1])):
            with pytest.raises(MemoryError, match="malloc"):
                use()
        monkeypatch.undo()
        assert store["n"].values(keys).to_pylist() == [0]


def test_what_was_not_checkpointed_is_gone_after_close(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["n"].add(store.keys([1]), 1)
    with opened(tmp_path) as store:
        assert len(store) == 0
        store["n"].add(store.keys([1]), 1)
        store.close(checkpoint=True)
    with opened(tmp_path) as store:
        assert rows(store) == {1: (1, None)}


def test_a_checkpoint_without_changes_makes_no_files(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.checkpoint() == 1
        before = names(tmp_path)
        store["n"].values(store.keys([1]))
        assert store.checkpoint() == 1
        assert names(tmp_path) == before
    with opened(tmp_path) as store:
        assert (store.epoch, len(store)) == (1, 0)


def test_checkpoints_are_incremental(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["name"].update_all(store.keys(range(10_000)), [f"name {i}" for i in range(10_000)])
        store.checkpoint()
        whole = sum(os.path.getsize(tmp_path / f) for f in names(tmp_path, "state"))
        before = names(tmp_path, "state")
        store["n"].add(store.keys([5]), 1)
        store.checkpoint()
        [delta] = names(tmp_path, "state") - before
        assert os.path.getsize(tmp_path / delta) < whole / 20


def test_what_was_merged_before_a_manifest_named_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that stays open has no more files than one that was just opened."""
    publish, fails = LocalStorage.publish, False

    def published(storage: LocalStorage, path: str, content: bytes) -> None:
        if fails:
            raise NoSpaceError(28, f"{path}: the file system is full")
        publish(storage, path, content)

    monkeypatch.setattr(LocalStorage, "publish", published)
    with opened(tmp_path, retained=1) as store:
        for step in range(59):
            store["n"].add(store.keys([step]), 1)
            fails = step % 7 == 3
            with pytest.raises(NoSpaceError) if fails else nullcontext():
                store.checkpoint()
        store.checkpoint()
        left = names(tmp_path, "state")
    with opened(tmp_path, retained=1):
        kept = names(tmp_path, "state")
    assert kept
    # What the last checkpoint retired is there until the next one.
    assert len(left - kept) <= 6


def test_deltas_are_merged_and_old_files_retired(tmp_path: Path) -> None:
    wanted: dict[int, int] = {}
    kinds = set()
    for start in range(0, 40, 10):
        with opened(tmp_path) as store:
            for step in range(start, start + 10):
                part = range(step * 7, step * 7 + 50)
                store["n"].add(store.keys(part), 1)
                for key in part:
                    wanted[key] = wanted.get(key, 0) + 1
                store.delete([step * 7])
                wanted.pop(step * 7, None)
                store.checkpoint()
                retained = tuple(range(max(1, step - 1), step + 2))
                assert retained_epochs(LocalStorage(tmp_path)) == retained
                kinds |= {Path(f).suffix for f in names(tmp_path, "state")}
        assert names(tmp_path, "manifests") == {f"manifests/{e:08d}.manifest" for e in retained}
        with opened(tmp_path) as store:
            assert {k: n for k, (n, _) in rows(store).items()} == wanted
    assert kinds == {".delta", ".base"}
    named = {path for e in (38, 39, 40) for path in store._history.manifest(e).paths}
    assert names(tmp_path, "state") == named


def test_retained_checkpoints_can_be_chosen(tmp_path: Path) -> None:
    with opened(tmp_path, retained=1) as store:
        for step in range(6):
            store["n"].add(store.keys([step]), 1)
            store.checkpoint()
        # What is retired goes after the next checkpoint, or when the store is closed.
        assert len(names(tmp_path, "manifests")) == 2
    assert names(tmp_path, "manifests") == {"manifests/00000006.manifest"}


@FORKS
def test_one_owner_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path):
        with pytest.raises(TableBusyError, match=rf"open in process {os.getpid()}"):
            opened(tmp_path)

        def open_it() -> None:
            with pytest.raises(TableBusyError, match=rf"open in process {os.getppid()}"):
                opened(tmp_path, lock_timeout_ms=50)

        assert copied(open_it) == (0, "", "")
    with opened(tmp_path):
        pass


@FORKS
def test_a_forked_child_gives_up_the_lock(tmp_path: Path) -> None:
    store = opened(tmp_path)
    child = forked((0, 1, 2), signal.pause)
    try:
        store.close()
        with opened(tmp_path) as again:
            assert again.epoch == 0
    finally:
        os.kill(child, signal.SIGKILL)
        ended(child)


def test_leftovers_of_a_killed_owner_are_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
        before = names(tmp_path)
    folder = next((tmp_path / "state" / "embedded").iterdir())
    (folder / f"00000002-{'ab' * 16}.delta").write_bytes(b"half")
    (folder / f".00000002-{'cd' * 16}.delta.{'0' * 32}.tmp").write_bytes(b"ha")
    (tmp_path / "manifests" / f".00000002.manifest.{'0' * 32}.tmp").write_bytes(b"h")
    with opened(tmp_path) as store:
        assert rows(store) == {1: (1, None)}
        assert names(tmp_path) == before


# -- failures


class Trouble:
    """Makes the storage fail at chosen files."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.suffix = ""
        self.after = False
        real = LocalStorage.create

        def create(storage: LocalStorage, path: str) -> Any:
            return Failing(real(storage, path), self, path)

        patch.setattr(LocalStorage, "create", create)

    def strikes(self, path: str) -> bool:
        return bool(self.suffix) and path.endswith(self.suffix)


class Failing:
    def __init__(self, inner: Any, trouble: Trouble, path: str) -> None:
        self.inner, self.trouble, self.path = inner, trouble, path

    def __enter__(self) -> BinaryIO:
        if self.trouble.strikes(self.path) and not self.trouble.after:
            raise NoSpaceError(28, f"{self.path}: the file system is full")
        made: BinaryIO = self.inner.__enter__()
        return made

    def __exit__(self, *error: Any) -> Any:
        result = self.inner.__exit__(*error)
        if self.trouble.strikes(self.path) and self.trouble.after:
            raise CheckpointError(f"could not sync the folder of {self.path}")
        return result


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    yield Trouble(monkeypatch)


@pytest.mark.parametrize("suffix", [".delta", ".manifest"])
@pytest.mark.parametrize("after", [False, True])
def test_a_failed_checkpoint_loses_nothing(
    tmp_path: Path, trouble: Trouble, suffix: str, after: bool
) -> None:
    with opened(tmp_path) as store:
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
        trouble.after = after
        for step in range(3):
            trouble.suffix = suffix
            store["n"].add(store.keys([1, 10 + step]), 1)
            with pytest.raises((NoSpaceError, CheckpointError)):
                store.checkpoint()
            assert rows(store)[1] == (2 + step, None)
        trouble.suffix = ""
        if not after:
            assert store.epoch == 1
        store["n"].add(store.keys([20]), 1)
        store.checkpoint()
        wanted = rows(store)
        assert wanted == {1: (4, None)} | dict.fromkeys((10, 11, 12, 20), (1, None))
        store.rollback()
        assert rows(store) == wanted
        epoch = store.epoch
    with opened(tmp_path) as store:
        assert rows(store) == wanted
        assert store.epoch == epoch


@pytest.mark.parametrize("after", [False, True])
def test_a_checkpoint_that_failed_is_completed_without_new_changes(
    tmp_path: Path, trouble: Trouble, after: bool
) -> None:
    """A manifest that may not be durable is followed by one that is."""
    with opened(tmp_path) as store:
        store["n"].add(store.keys([1]), 1)
        trouble.suffix, trouble.after = ".manifest", after
        with pytest.raises(CheckpointError if after else NoSpaceError):
            store.checkpoint()
        trouble.suffix = ""
        assert [store.checkpoint() for _ in range(2)] == [1 + after] * 2
    with opened(tmp_path) as store:
        assert rows(store) == {1: (1, None)}


def test_a_full_disk_puts_a_merge_off(tmp_path: Path, trouble: Trouble) -> None:
    with opened(tmp_path) as store:
        trouble.suffix = ".base"
        for step in range(8):
            store["n"].add(store.keys([1, step]), 1)
            store.checkpoint()
        assert {Path(f).suffix for f in names(tmp_path, "state")} == {".delta"}
        trouble.suffix = ""
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
        wanted = rows(store)
        assert any(f.endswith(".base") for f in names(tmp_path, "state"))
    with opened(tmp_path) as store:
        assert rows(store) == wanted


def test_close_with_a_checkpoint_that_fails_keeps_the_store_open(
    tmp_path: Path, trouble: Trouble
) -> None:
    store = opened(tmp_path)
    store["n"].add(store.keys([1]), 1)
    trouble.suffix = ".delta"
    with pytest.raises(NoSpaceError):
        store.close(checkpoint=True)
    trouble.suffix = ""
    store.close(checkpoint=True)
    with opened(tmp_path) as store:
        assert rows(store) == {1: (1, None)}


def test_a_poisoned_epoch_is_rolled_back_to_the_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["n"].update_all(store.keys([1]), 2**63 - 1)
        store.checkpoint()
        with pytest.raises(StateOverflowError):
            store["n"].add(store.keys([2, 1]), 1)
        with pytest.raises(PoisonedError):
            store.checkpoint()
        store.rollback()
        assert rows(store) == {1: (2**63 - 1, None)}
        store["n"].add(store.keys([2]), 1)
        assert store.checkpoint() == 2


def test_after_close_the_store_refuses(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()
    store.close()
    for use in (store.checkpoint, store.rollback, lambda: store.keys([1]), lambda: len(store)):
        with pytest.raises(ClosedError):
            use()
    assert "closed" in repr(store)


# -- schemas


def test_states_can_be_added(tmp_path: Path) -> None:
    with opened(tmp_path, states={"n": STATES["n"]}) as store:
        store["n"].add(store.keys([1, 2]), 1)
        store.checkpoint()
    with opened(tmp_path) as store:
        store["name"].update_all(store.keys([2]), "two")
        store.checkpoint()
    with opened(tmp_path) as store:
        assert rows(store) == {1: (1, None), 2: (1, "two")}


def test_a_dropped_state_stays_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["n"].add(store.keys([1, 2]), 1)
        store["name"].update_all(store.keys([1]), "one")
        store.checkpoint()
    one = {"n": STATES["n"]}
    with pytest.raises(UnclaimedStateError, match="name, seen"):
        opened(tmp_path, states=one)
    with opened(tmp_path, states=one, allow_unclaimed_state=True) as store:
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
    with opened(tmp_path, states=one) as store:
        assert len(store) == 2
    with opened(tmp_path) as store:
        assert rows(store) == {1: (2, None), 2: (1, None)}


def test_the_last_list_can_be_dropped(tmp_path: Path) -> None:
    both = {"n": STATES["n"], "l": ps.ListState("long")}
    with opened(tmp_path, states=both) as store:
        store.set_current_key(1)
        store["l"].add(7)
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
    one = {"n": STATES["n"]}
    with opened(tmp_path, states=one, allow_unclaimed_state=True) as store:
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
    with opened(tmp_path, states=both) as store:
        store.set_current_key(1)
        assert (store["n"].value(), store["l"].get()) == (2, [])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"key": "int"}, SchemaError, "key long"),
        ({"key": {"k": "long"}}, SchemaError, "k long"),
        ({"states": STATES | {"n": ps.ValueState("int")}}, SchemaError, "'n'.*long.*int"),
        ({"max_parallelism": 64}, InvalidArgumentError, "128.*64"),
        ({"key": "array<int>"}, DeclarationError, "array<int>"),
    ],
)
def test_another_schema_is_refused(
    tmp_path: Path, options: Any, error: type[Exception], said: str
) -> None:
    with opened(tmp_path) as store:
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
    with pytest.raises(error, match=said):
        opened(tmp_path, **options)
    with opened(tmp_path) as store:
        assert rows(store) == {1: (1, None)}


def test_a_wrong_declaration_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError):
        ps.open(tmp_path / "new", key="long", states={"key": ps.ValueState("int")})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("pattern", "damaged", "error"),
    [
        ("state/**/00000003-*.delta", False, CheckpointError),
        ("state/**/00000003-*.delta", True, CorruptFileError),
        ("manifests/00000003.manifest", False, CheckpointError),
    ],
)
def test_a_lost_or_damaged_file_is_named(
    tmp_path: Path, pattern: str, damaged: bool, error: type[Exception]
) -> None:
    with opened(tmp_path) as store:
        for _ in range(3):
            store["name"].update_all(store.keys(range(100)), "x" * 20)
            store.checkpoint()
    [path] = tmp_path.glob(pattern)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if damaged:
        path.write_bytes(data)
    with pytest.raises(error, match=path.name):
        opened(tmp_path)


def test_a_jobs_checkpoint_is_not_opened_as_a_store(tmp_path: Path) -> None:
    from pystate.checkpoint.job_file import open_job

    open_job(LocalStorage(tmp_path), "flights", 2, None)
    with pytest.raises(InvalidArgumentError, match="flights"):
        opened(tmp_path)


def test_several_key_columns_and_a_relocated_folder(tmp_path: Path) -> None:
    key = {"host": "string", "port": "int"}
    states = {"n": ps.ValueState("decimal(9,2)")}
    with ps.open(tmp_path / "a", key=key, states=states, max_parallelism=7) as store:
        store["n"].add(store.keys([["x", None], [1, 2]]), 5)
        store.checkpoint()
    (tmp_path / "a").rename(tmp_path / "b")
    with ps.open(tmp_path / "b", key=key, states=states) as store:
        assert sorted(store, key=str) == [("x", 1), (None, 2)]
        store.set_current_key((None, 2))
        assert str(store["n"].value()) == "5.00"


def test_what_expired_is_gone_for_good_with_the_next_checkpoint(tmp_path: Path) -> None:
    now = [1_000]
    ttl = ps.StateTtl(milliseconds=100)
    timed = {"v": ps.ValueState("long", ttl=ttl), "m": ps.MapState("string", "long", ttl=ttl)}
    with ps.open(tmp_path / "s", key="string", states=timed, clock=lambda: now[0]) as store:
        store.set_current_key("x")
        store["v"].update(1)
        store["m"].put("old", 1)
        store.checkpoint()
        now[0] = 1_050
        store.checkpoint()
        store.set_current_key("x")
        store["m"].put("young", 2)
        store.checkpoint()
    now[0] = 1_120
    with ps.open(tmp_path / "s", key="string", states=timed, clock=lambda: now[0]) as store:
        store.set_current_key("x")
        assert (store["v"].value(), store["m"].items()) == (None, [("young", 2)])
        assert store.checkpoint() == 3
    plain = {"v": ps.ValueState("long"), "m": ps.MapState("string", "long")}
    with ps.open(tmp_path / "s", key="string", states=plain, clock=lambda: now[0]) as store:
        store.set_current_key("x")
        assert (store["v"].value(), store["m"].items()) == (None, [("young", 2)])


def test_a_time_to_live_that_is_added_begins_once(tmp_path: Path, home: str) -> None:
    """At the first opening that ends with a checkpoint, for all that is stored."""
    now = [1_000]

    def begun(ttl: ps.StateTtl | None) -> Store:
        states: dict[str, Any] = {
            "v": ps.ValueState("long", ttl=ttl),
            "l": ps.ListState("long", ttl=ttl),
            "m": ps.MapState("long", "long", ttl=ttl),
            "n": ps.ValueState("long"),
        }
        return ps.open(tmp_path / "s", key="long", states=states, clock=lambda: now[0], **DEFAULTS)

    def content(store: Store, key: int) -> tuple[Any, ...]:
        store.set_current_key(key)
        return store["v"].value(), list(store["l"].get()), list(store["m"].keys())

    keys = 5000  # more than an epoch's scan looks at
    with begun(None) as store:
        for key in range(keys):
            store.set_current_key(key)
            store["v"].update(key)
            store["l"].add(key)
            store["m"].put(key, key)
        store.checkpoint()
    ttl = ps.StateTtl(seconds=1)
    now[0] = 1_500
    begun(ttl).close()  # nothing is kept of it
    for now[0] in (2_000, 2_500, 2_999):
        with begun(ttl) as store:
            for key in range(0, keys, 7):
                assert content(store, key) == (key, [key], [key])
            store["n"].update(now[0])
            store.checkpoint()
    now[0] = 3_000
    with begun(ttl) as store:
        for key in range(0, keys, 7):
            assert content(store, key) == (None, [], [])


def test_a_store_has_no_event_time(tmp_path: Path) -> None:
    states = {"n": ps.ValueState("long", ttl=ps.StateTtl(hours=1, time="event"))}
    with pytest.raises(NoEventTimeError, match=r"'n' would never expire: a store has no event"):
        ps.open(tmp_path / "store", key="long", states=states)
    assert not (tmp_path / "store").exists()


def test_a_folder_of_sparks_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "0a1b2c3d"}')
    (tmp_path / "offsets").mkdir()
    with pytest.raises(InvalidArgumentError, match="checkpointLocation of a Spark query"):
        ps.open(tmp_path, key="long", states={"n": ps.ValueState("long")})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["metadata", "offsets"]
