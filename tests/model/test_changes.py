"""What changed between two epochs, against a dict, over rescales and merges."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, PystateError
from pystate.tables.backend import KeyedStateBackend
from tests.drawn import THOROUGH, drawn
from tests.model.test_merges import ALL, GROUPS, KEYS, Model, Operator, follow, run

ROWS = st.lists(
    st.tuples(
        st.integers(0, KEYS - 1),
        st.sampled_from(["put", "put", "delete", "take"]),
        st.integers(1, 6),
    ),
    max_size=12,
)
#: Each epoch: with which parallelism, and what it does.
EPOCHS = st.lists(
    st.tuples(st.sampled_from([None, None, 1, 2, 3, 5]), ROWS),
    min_size=1,
    max_size=9 if THOROUGH else 5,
)


def state_at(row: dict[str, Any]) -> dict[str, Any] | None:
    kept = {name: value for name, value in row.items() if name != "timers"}
    if not kept:
        return None
    whole: dict[str, Any] = {"v": None, "l": [], "m": [], **kept}
    return {**whole, "m": sorted(dict(whole["m"]).items())}


def expected(old: Model, new: Model) -> dict[int, tuple[str, Any, Any]]:
    found = {}
    for key in {*old, *new}:
        before, after = state_at(old.get(key, {})), state_at(new.get(key, {}))
        if before != after:
            found[key] = ("put" if after else "delete", before, after)
    return found


def read(
    folder: str | Path, old: int, new: int | None = None, keys: Any = None
) -> dict[int, tuple[str, Any, Any]]:
    asked: dict[str, Any] = {"from_epoch": old, "to_epoch": new, "keys": keys}
    rows = ps.changes(folder, "op", **asked).to_pylist()
    for row in rows:
        for side in (row["before"], row["after"]):
            if side is not None:
                side["m"] = sorted(side["m"])
    found = {row["k"]: (row["change"], row["before"], row["after"]) for row in rows}
    assert len(found) == len(rows)
    return found


@drawn(12)
@given(epochs=EPOCHS, small_parts=st.booleans())
def test_any_two_epochs(epochs: list[Any], small_parts: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if small_parts:
            patch.setattr("pystate.processor.scan._PART_BYTES", 300)
        operator = Operator(LocalStorage(Path(folder)))
        models: list[Model] = [{}]
        coordinator = operator.coordinator(2, retained=20)
        for parallelism, rows in epochs:
            if parallelism is not None:
                coordinator.close()
                coordinator = operator.coordinator(parallelism, retained=20)
            run(coordinator, operator, rows)
            models.append(copy.deepcopy(models[-1]))
            follow(models[-1], rows, ALL, timers=True)
        for old in range(len(models)):
            for new in range(max(old, 1), len(models)):
                all_of = expected(models[old], models[new])
                assert read(folder, old, new) == all_of, (old, new)
                some = {key: change for key, change in all_of.items() if key in (0, 3)}
                lazily = ps.scan_changes(folder, "op", from_epoch=old, to_epoch=new).read_all()
                assert lazily == ps.changes(folder, "op", from_epoch=old, to_epoch=new)
                assert read(folder, old, new, keys=[3, 0, 3, 10**6]) == some, (old, new)
        coordinator.close()


def loads(patch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Note of which files anything is taken, and how many records."""
    found: list[tuple[str, int]] = []
    real = KeyedStateBackend.load

    def load(self: KeyedStateBackend, source: Any, **options: Any) -> int:
        records = real(self, source, **options)
        found.append((source.name, records))
        return records

    patch.setattr(KeyedStateBackend, "load", load)
    return found


def test_only_files_of_the_ranges_of_keys_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(2, retained=9) as coordinator:
        run(coordinator, operator, [(key, "put", 1) for key in range(KEYS)])
        last = run(coordinator, operator, [(key, "put", 2) for key in range(KEYS)])
    opened: list[str] = []
    real = LocalStorage.open_read

    def noted(self: LocalStorage, path: str) -> BinaryIO:
        opened.append(path)
        return real(self, path)

    monkeypatch.setattr(LocalStorage, "open_read", noted)
    assert set(read(tmp_path, 1, 2, keys=[3])) == {3}
    files = last.operators[0].ranges[ps.range_of(GROUPS[3], 128, 2)].files
    first_of_all = last.operators[0].files[0].path  # which says what the namespaces are
    assert {path for path in opened if path.startswith("state/")} <= {
        first_of_all,
        *(ref.path for ref in files),
    }
    with pytest.raises(PystateError, match="key column"):
        ps.changes(tmp_path, "op", from_epoch=1, keys=["x"])


def test_only_what_may_differ_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(2, retained=9) as coordinator:
        first = run(coordinator, operator, [(key, "put", 1) for key in range(KEYS)])
        second = run(coordinator, operator, [(3, "put", 2)])
        third = run(coordinator, operator, [(3, "delete", 0)])
    index = ps.range_of(GROUPS[3], 128, 2)
    [base] = first.operators[0].ranges[index].files
    [_, delta] = second.operators[0].ranges[index].files
    found = loads(monkeypatch)
    assert set(read(tmp_path, 1, 2)) == {3}
    assert [path for path, _ in found] == [base.path, base.path, delta.path]
    assert len({records for _, records in found[:2]}) == 1
    of_one_key = found[0][1]
    assert 0 < of_one_key < 8 < base.rows  # its row, and its elements
    del found[:]
    assert read(tmp_path, 1, 1) == {} and found == []
    assert {key: row[0] for key, row in read(tmp_path, 2, 3).items()} == {3: "delete"}
    assert {path for path, _ in found} < {ref.path for ref in third.operators[0].files}
    assert all(f"/{base.path.split('/')[2]}/" in path for path, _ in found)


def test_one_state(tmp_path: Path) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(2, retained=9) as coordinator:
        run(coordinator, operator, [(1, "put", 1), (2, "put", 1)])
        run(coordinator, operator, [(1, "put", 1), (2, "delete", 0)])
    table = ps.changes(tmp_path, "op", from_epoch=1, state="l")
    assert sorted(table.to_pylist(), key=lambda row: row["k"]) == [
        {"k": 1, "change": "put", "before": [1], "after": [1, 1]},
        {"k": 2, "change": "delete", "before": [1], "after": None},
    ]
    values = ps.changes(tmp_path, "op", from_epoch=1, state="v").to_pylist()
    assert values == [{"k": 2, "change": "delete", "before": 1, "after": None}]


def test_one_state_of_a_key_that_keeps_another(tmp_path: Path) -> None:
    states = {name: ps.ValueState("long") for name in ("a", "b")}
    with ps.open(tmp_path, key="long", states=states) as store:
        for name in states:
            store[name].update_all(store.keys([1, 2]), [1, 2])
        store.checkpoint()
        store["a"].update_all(store.keys([1]), [None])
        store.checkpoint()
    changed = ps.changes(tmp_path, from_epoch=1, state="a").to_pylist()
    assert changed == [{"key": 1, "change": "delete", "before": 1, "after": None}]


def test_operator_that_came_later(tmp_path: Path) -> None:
    with ps.open(tmp_path, key="long", states={"v": ps.ValueState("double")}) as store:
        store["v"].update_all(store.keys([1, 2]), [1.0, float("nan")])
        store.checkpoint()
        store["v"].update_all(store.keys([1, 2]), [-0.0, float("nan")])
        store.checkpoint()
        store["v"].update_all(store.keys([1, 2]), [0.0, float("nan")])
        store.checkpoint()
    [row] = ps.changes(tmp_path, from_epoch=2).to_pylist()
    assert row["key"] == 1 and str(row["before"]["v"]) == "-0.0" and str(row["after"]["v"]) == "0.0"
    assert ps.changes(tmp_path, from_epoch=0, to_epoch=1).num_rows == 2


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"from_epoch": 3, "to_epoch": 2}, PystateError, "give the older one first"),
        ({"from_epoch": 1, "to_epoch": 9}, CheckpointError, "does not hold epoch 9; it has 1 to 3"),
        ({"from_epoch": -1}, PystateError, "from_epoch is -1"),
        ({"from_epoch": 1, "state": "w"}, PystateError, "no state 'w'"),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path, asked: dict[str, Any], error: type[Exception], message: str
) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(2, retained=9) as coordinator:
        for number in range(3):
            run(coordinator, operator, [(1, "put", number + 1)])
    with pytest.raises(error, match=message):
        ps.changes(tmp_path, "op", **asked)


def test_a_key_column_with_the_name_of_a_column_of_changes(tmp_path: Path) -> None:
    with ps.open(tmp_path, key={"before": "long"}, states={"v": ps.ValueState("long")}) as store:
        store["v"].update_all(store.keys([1]), [1])
        store.checkpoint()
    with pytest.raises(PystateError, match="has a key column 'before'"):
        ps.changes(tmp_path, from_epoch=0)
