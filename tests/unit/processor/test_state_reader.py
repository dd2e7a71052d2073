"""Reading state beside a job that goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, state_path
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import CheckpointError, CorruptFileError, PystateError
from pystate.processor import scan
from pystate.processor.scan import StateScan
from pystate.processor.state_reader import read_all, read_state, scan_state
from tests.model.test_merges import GROUPS, KEYS, Operator, run
from tests.work import Work, read


def values(storage: LocalStorage) -> dict[int, int]:
    return {row["k"]: row["v"] for row in read_all(storage, "op").to_pylist()}


def when_opened(patch: pytest.MonkeyPatch, act: Callable[[LocalStorage, str], object]) -> list[str]:
    """Do something before each file that is opened; the value has their paths."""
    opened: list[str] = []
    real = LocalStorage.open_read

    def open_read(self: LocalStorage, path: str) -> BinaryIO:
        opened.append(path)
        act(self, path)
        return real(self, path)

    patch.setattr(LocalStorage, "open_read", open_read)
    return opened


@pytest.mark.parametrize("often", [1, 3])
def test_epochs_that_are_retired_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: int
) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(LocalStorage(tmp_path))
    moved: list[str] = []

    def move(at: LocalStorage, path: str) -> None:
        if at is storage and path.startswith("state/") and len(moved) < often:
            moved.append(path)
            for number in range(4):
                run(coordinator, operator, [(1, "put", 10 * len(moved) + number)])
            assert not storage.exists(path)

    with operator.coordinator(1) as coordinator:
        for number in range(2):
            run(coordinator, operator, [(1, "put", number)])
        when_opened(monkeypatch, move)
        assert values(storage) == {1: 10 * often + 3}


def test_lost_file_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(storage)
    with operator.coordinator(1) as coordinator:
        head = run(coordinator, operator, [(1, "put", 1)])
    [lost] = head.paths
    storage.delete(lost)
    with pytest.raises(CheckpointError, match=f"that {head.path} names is missing: .*{lost}"):
        values(storage)


def test_driver_that_is_always_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(LocalStorage(tmp_path))

    def retire(at: LocalStorage, path: str) -> None:
        if at is storage and path.startswith("state/"):
            run(coordinator, operator, [(1, "put", 1)])
            raise FileNotFoundError(2, "gone", path)

    with operator.coordinator(1) as coordinator:
        run(coordinator, operator, [(1, "put", 1)])
        when_opened(monkeypatch, retire)
        with pytest.raises(CheckpointError, match="each of 10 epochs was retired"):
            values(storage)


def test_ranges_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(LocalStorage(tmp_path))
    together = Barrier(2, timeout=30)
    rows = [(key, "put", 2 * key) for key in range(20)]
    with operator.coordinator(2) as coordinator:
        [first, second] = [
            state.files[0].path for state in run(coordinator, operator, rows).operators[0].ranges
        ]
    opened: list[str] = []

    def meet(_: LocalStorage, path: str) -> None:
        # The first file is opened once before, for what it says of namespaces.
        if path.startswith("state/"):
            opened.append(path)
            if len(opened) > 1:
                together.wait()

    when_opened(monkeypatch, meet)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert values(storage) == {key: 2 * key for key in range(20)}
    assert opened[0] == first and sorted(opened[1:]) == sorted([first, second])


def test_scan_of_an_epoch_that_is_retired_meanwhile(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(storage)
    with operator.coordinator(4) as coordinator:
        head = run(coordinator, operator, [(key, "put", key) for key in range(KEYS)])
        last = head.operators[0].ranges[-1]
        reader = scan_state(tmp_path, "op")
        assert reader.schema.names[:2] == ["k", "v"]
        for ref in last.files:
            storage.delete(ref.path)
        # Rows that are gone to the caller cannot be taken back.
        with pytest.raises(CheckpointError, match=r"is missing: .* read again, or retain more"):
            list(reader)


def test_scan_that_is_dropped_reads_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(16) as coordinator:
        run(coordinator, operator, [(key, "put", key) for key in range(KEYS)])
    scan = StateScan.of(LocalStorage(tmp_path), "op")
    opened = when_opened(monkeypatch, lambda *_: None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    batches = scan.batches()
    first = next(batches)
    assert first.num_rows
    batches.close()
    assert len(opened) <= 4


def test_the_only_operator_needs_no_name(tmp_path: Path) -> None:
    with ps.open(tmp_path, key="long", states={"v": ps.ValueState("long")}) as store:
        store["v"].update_all(store.keys([1, 2]), [10, 20])
        store.checkpoint()
        store["v"].update_all(store.keys([1]), [0])  # not in the checkpoint
        assert sorted(ps.read_state(tmp_path)["v"].to_pylist()) == [10, 20]
        assert ps.scan_state(tmp_path).read_all().equals(ps.read_state(tmp_path))


def test_scan_after_a_change_of_parallelism(tmp_path: Path) -> None:
    rows = [(key, "put", 3 * key) for key in range(KEYS)]
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(3) as coordinator:
        run(coordinator, operator, rows)
    with operator.coordinator(5) as coordinator:
        run(coordinator, operator, [(1, "put", 0)])
    table = read_state(tmp_path, "op")
    assert table.equals(scan_state(tmp_path, "op").read_all())
    assert {r["k"]: r["v"] for r in table.to_pylist()} == {k: 3 * k * (k != 1) for k in range(KEYS)}


# -- what is read


def state_of(folder: Path, **asked: Any) -> list[dict[str, Any]]:
    table = read_state(folder, "op", **asked)
    reader = scan_state(folder, "op", **asked)
    assert reader.schema == table.schema and reader.read_all().equals(table)
    return sorted(table.to_pylist(), key=str)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys 0 to 5 with states of each kind; 6 with only a timer, 7 with only a value."""
    folder = tmp_path_factory.mktemp("filled") / "checkpoint"
    operator = Operator(LocalStorage(folder))
    rows = [(key, "put", number) for key in range(6) for number in (key, key + 4)]
    with operator.coordinator(3, retained=3) as coordinator:
        run(coordinator, operator, rows)
        operator.apply = only_timer_or_value  # type: ignore[method-assign]
        run(coordinator, operator, [(6, "timer", 60), (7, "value", 70)])
        run(coordinator, operator, [(7, "value", 71)])
    return folder


@pytest.fixture
def spoiled(filled: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(filled, tmp_path / "copy")


def only_timer_or_value(backend: ps.KeyedStateBackend, row: tuple[int, str, int]) -> None:
    backend.set_current_key(row[0])
    if row[1] == "timer":
        backend.register_timer("processing", row[2])
    else:
        backend["v"].update(row[2])


def test_one_state(filled: Path) -> None:
    assert state_of(filled, state="v") == [
        *({"k": key, "v": key + 4} for key in range(6)),
        {"k": 7, "v": 71},
    ]
    assert [row["k"] for row in state_of(filled, state="l")] == list(range(6))
    assert [row["k"] for row in state_of(filled)] == [*range(6), 7]


def test_elements(filled: Path) -> None:
    rows = [{"k": key, "l_index": i, "l": key + 4 * i} for key in range(6) for i in range(2)]
    assert state_of(filled, state="l", explode=True) == rows
    # The two numbers of a key differ by 4, and the map has them by their remainder by 3.
    pairs = [(key, number) for key in range(6) for number in (key, key + 4)]
    entries = sorted(({"k": k, "m_key": str(n % 3), "m": n} for k, n in pairs), key=str)
    assert state_of(filled, state="m", explode=True) == entries


def test_values_lists_and_maps_need_no_table(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[dict[str, Any]] = [{}, {"state": "l"}, {"key_groups": range(2)}]
    kinds += [{"state": name, "explode": True} for name in "lm"]
    rows = [read_state(filled, **asked) for asked in kinds]
    # Keys that are looked up give the same.
    every = [read_state(filled, keys=[*range(8)], **asked) for asked in kinds]
    assert [t.schema for t in rows] == [t.schema for t in every]
    assert [sorted(map(str, t.to_pylist())) for t in rows] == [
        sorted(map(str, t.to_pylist())) for t in every
    ]

    def no_table(*arguments: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(scan, "load_files", no_table)
    assert [read_state(filled, **asked).num_rows for asked in kinds] == [t.num_rows for t in rows]
    with pytest.raises(AssertionError):
        read_state(filled, timers=True)


def test_timers(filled: Path) -> None:
    numbers = [(key, number) for key in range(6) for number in (key, key + 4)]
    event = [{"k": k, "timer_domain": "event", "timer_ms": number} for k, number in numbers]
    processing = {"k": 6, "timer_domain": "processing", "timer_ms": 60}
    assert state_of(filled, timers=True) == sorted([*event, processing], key=str)
    assert state_of(filled, timers=True, keys=[6, 7, 99]) == [processing]


def test_more_timers_than_are_taken_at_once(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = state_of(filled, timers=True)
    monkeypatch.setattr("pystate.processor.scan._MOST_TIMERS", 2)
    assert state_of(filled, timers=True) == expected


def test_only_some_keys(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [row for row in state_of(filled) if row["k"] in (2, 7)]
    assert len(wanted) == 2
    assert state_of(filled, keys=[2, 7, 2, 99, None]) == wanted
    assert state_of(filled, keys=pa.table({"x": [1.5, 2.5], "k": [2, 7]})) == wanted
    assert state_of(filled, keys=[]) == []
    assert state_of(filled, keys=[2, 7], key_groups=[GROUPS[7]]) == wanted[1:]
    opened = when_opened(monkeypatch, lambda *_: None)
    scan = StateScan.of(LocalStorage(filled), "op", keys=[2])
    del opened[:]
    assert sum(batch.num_rows for batch in scan.batches()) == 1
    index = ps.range_of(GROUPS[2], 128, 3)
    assert opened and set(opened) <= {ref.path for ref in scan.operator.ranges[index].files}


def test_one_state_of_keys_whose_state_was_cleared(tmp_path: Path) -> None:
    states = {"v": ps.ValueState("long"), "l": ps.ListState("long"), "w": ps.ValueState("long")}
    with ps.open(tmp_path, key="long", states=states) as store:
        for name in ("v", "w"):
            store[name].update_all(store.keys([1, 2]), [1, 2])
        store["l"].extend(store.keys([1, 2]), [[1], [2]])
        store.checkpoint()
        store["v"].clear_all(store.keys([1]))
        store["l"].clear_all(store.keys([1]))
        store.checkpoint()
    assert read_state(tmp_path, state="v")["key"].to_pylist() == [2]
    assert read_state(tmp_path, state="l")["key"].to_pylist() == [2]
    assert sorted(read_state(tmp_path, state="w")["key"].to_pylist()) == [1, 2]


def test_key_groups(filled: Path) -> None:
    for groups in ([GROUPS[1]], range(64), range(64, 128), range(0, 128, 2), []):
        expected = [row for row in state_of(filled) if GROUPS[row["k"]] in set(groups)]
        assert state_of(filled, key_groups=groups) == expected


def test_epochs(filled: Path) -> None:
    assert [row["v"] for row in state_of(filled, keys=[7], epoch=2)] == [70]
    assert state_of(filled, keys=[7], epoch=1) == []
    assert [row["v"] for row in state_of(filled, keys=[7], epoch=3)] == [71]
    with pytest.raises(CheckpointError, match=r"does not hold epoch 4; it has 1 to 3: choose"):
        read_state(filled, "op", epoch=4)


def test_an_epoch_that_was_asked_for_is_not_replaced(spoiled: Path) -> None:
    storage = LocalStorage(spoiled)
    scan = StateScan.of(storage, "op", epoch=1)
    storage.delete(scan.operator.files[-1].path)
    with pytest.raises(CheckpointError, match=r"00000001.manifest names is missing"):
        read_all(storage, "op", epoch=1)


def test_state_in_many_parts(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = state_of(filled)
    monkeypatch.setattr("pystate.processor.scan._PART_BYTES", 1)
    scan = StateScan.of(LocalStorage(filled), "op")
    assert len(scan.split()) == 128 and state_of(filled) == whole
    monkeypatch.setattr("pystate.processor.scan._PART_BYTES", 400)
    assert 3 < len(scan.split()) < 128 and state_of(filled) == whole
    assert state_of(filled, key_groups=range(1, 128, 3)) == [
        row for row in whole if GROUPS[row["k"]] % 3 == 1
    ]


def test_namespaces_and_keys_of_several_columns(tmp_path: Path) -> None:
    states = {"n": ps.ValueState("long"), "l": ps.ListState("string")}
    key = {"a": "string", "b": "int"}
    with ps.KeyedStateBackend(key, states=states, namespace="timestamp", timers=True) as backend:
        for space in (0, 60_000):
            when = pa.array([space * 1000] * 3, pa.timestamp("us", "UTC"))
            rows = [pa.array(["x", None, "y"]), pa.array([1, 2, 3], pa.int32())]
            backend["n"].update_all(backend.keys(rows, when), [space, space + 1, space + 2])
            backend["l"].extend(backend.keys(rows, when), [["p", "q"], [], None])
        storage_of(tmp_path, backend)
    table = read_state(tmp_path, keys=[["x", None], [1, 2]])
    assert table.schema.names == ["a", "b", "namespace", "n", "l"]
    assert sorted(table["n"].to_pylist()) == [0, 1, 60_000, 60_001]
    lists = read_state(tmp_path, state="l", explode=True)
    assert lists.num_rows == 4 and set(lists["l"].to_pylist()) == {"p", "q"}
    assert lists.schema.names == ["a", "b", "namespace", "l_index", "l"]
    [described] = {row["namespace"] for row in ps.state_metadata(tmp_path).to_pylist()}
    assert described == "timestamp"


def storage_of(folder: Path, backend: ps.KeyedStateBackend) -> None:
    """Publish what a backend holds as the only epoch of a checkpoint."""
    storage = LocalStorage(folder)
    path = state_path("op", 0, 127, 1, "0" * 31 + "1", "delta")
    with backend.seal() as snapshot, storage.create(path) as out:
        info = snapshot.write(out)
    ref = FileRef.from_info(path, info)
    key = tuple((name, type_.ddl) for name, type_ in backend.key)
    stored = tuple((name, d.stored_as()) for name, d in backend.declarations.items())
    state = RangeState(0, 0, 127, ref.id, deltas=(ref,))
    operator = OperatorState("op", 1, key, stored, (state,), timers=True)
    manifest = Manifest(1, 0, "e", "r", 0, "h", 128, 0, 0, "pystate test", (operator,))
    storage.publish(manifest.path, manifest.encode())


def test_metadata(filled: Path) -> None:
    rows = ps.state_metadata(filled).to_pylist()
    assert [row["epoch"] for row in rows] == [1] * 4 + [2] * 4 + [3] * 4
    assert rows[:4] == ps.state_metadata(filled, epoch=1).to_pylist()
    assert [(row["state"], row["kind"], row["type"]) for row in rows[8:]] == [
        ("v", "value", "long"),
        ("l", "list", "array<long>"),
        ("m", "map", "map<string,long>"),
        (None, "timers", None),
    ]
    last = rows[-1]
    assert (last["uid"], last["key"], last["namespace"]) == ("op", "k bigint", None)
    assert (last["parallelism"], last["max_parallelism"]) == (3, 128)
    operator = StateScan.of(LocalStorage(filled), "op").operator
    paths = {ref.path for ref in operator.files}
    assert last["files"] == len(paths)
    assert last["size_bytes"] == sum((filled / path).stat().st_size for path in paths)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"state": "w"}, r"no state 'w'; declared: 'v', 'l', 'm'"),
        ({"explode": True}, "name it, state="),
        ({"state": "v", "explode": True}, "'v' is neither a list nor a map"),
        ({"state": "v", "timers": True}, "timers=True reads timers alone"),
        ({"explode": 1, "state": "l"}, "explode is True or False"),
        ({"epoch": 0}, "epoch is 0"),
        ({"epoch": "1"}, "epoch is a whole number"),
        ({"key_groups": [128]}, "a key group is 128, and must be 0 to 127"),
        ({"key_groups": "1"}, "key_groups takes key groups"),
        ({"keys": ["x"]}, "key column 'k'"),
        ({"state": 3}, "state is a string"),
    ],
)
def test_what_cannot_be_read(filled: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(PystateError, match=message):
        read_state(filled, "op", **asked)


def test_timers_of_an_operator_without(tmp_path: Path) -> None:
    with ps.open(tmp_path, key="long", states={"v": ps.ValueState("long")}) as store:
        store["v"].update_all(store.keys([1]), [1])
        store.checkpoint()
    with pytest.raises(PystateError, match="has no timers in this epoch"):
        read_state(tmp_path, timers=True)


def test_a_key_column_with_the_name_of_an_element(tmp_path: Path) -> None:
    with ps.open(tmp_path, key={"l_index": "long"}, states={"l": ps.ListState("long")}) as store:
        store["l"].extend(store.keys([1]), [[5, 6]])
        store.checkpoint()
    with pytest.raises(PystateError, match="both called 'l_index'"):
        read_state(tmp_path, state="l", explode=True)
    assert read_state(tmp_path, state="l").to_pylist() == [{"l_index": 1, "l": [5, 6]}]


def test_duckdb_reads_it(filled: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs the package duckdb: pip install duckdb")
    state = read_state(filled, "op")
    assert state.num_rows == 7
    assert duckdb.sql("SELECT k, v, len(l) FROM state WHERE k < 2 ORDER BY k").fetchall() == [
        (0, 4, 2),
        (1, 5, 2),
    ]
    reader = scan_state(filled, "op", state="v")
    assert reader.schema.names == ["k", "v"]
    assert duckdb.sql("SELECT max(v) FROM reader").fetchall() == [(71,)]


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_damaged_file_is_named(spoiled: Path, damage: str) -> None:
    ref = StateScan.of(LocalStorage(spoiled), "op").operator.ranges[1].files[0]
    path = spoiled / ref.path
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    for asked in ({}, {"state": "v"}, {"timers": True}, {"keys": [*range(KEYS)]}):
        with pytest.raises(CorruptFileError, match=path.name):
            read_state(spoiled, "op", **asked)
    with pytest.raises(CorruptFileError, match=path.name):
        ps.changes(spoiled, "op", from_epoch=0)


def test_files_of_former_ranges_count_for_their_own_keys_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold other keys, too, and may follow newer files of those."""
    work, ways = Work(tmp_path), []
    real = scan.merged_rows

    def noted(*arguments: Any) -> Any:
        ways.append(real(*arguments))
        return ways[-1]

    monkeypatch.setattr(scan, "merged_rows", noted)
    every = dict.fromkeys(range(60), 1)
    for parallelism, counts in ((2, every), (3, every), (1, {0: 1}), (1, {1: 1})):
        with work.coordinator(parallelism=parallelism) as coordinator:
            work.run(coordinator, counts)
        assert read(tmp_path) == work.counts
    with work.coordinator(parallelism=1, merge_policy=MergePolicy(min_deltas=2)) as coordinator:
        for _ in range(3):
            work.run(coordinator, {2: 1})
            coordinator.maintain()
    before = len(ways)
    assert read(tmp_path) == work.counts
    # Where a range has files of its own alone, no table is needed.
    assert None not in ways and 0 < before < len(ways)
