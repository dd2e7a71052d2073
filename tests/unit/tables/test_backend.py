"""The backend: handles, batches, epochs, snapshots, restores, readers, and misuse of each."""

from __future__ import annotations

import errno
import gc
import io
import os
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.state_files import EMPTY_LINEAGE, open_file
from pystate.errors import (
    ClosedError,
    CorruptFileError,
    DeclarationError,
    InUseError,
    InvalidArgumentError,
    LineageError,
    MemoryLimitError,
    NoCurrentKeyError,
    NoSpaceError,
    PoisonedError,
    SchemaError,
    SnapshotTooOldError,
    StaleKeyBatchError,
    StateOverflowError,
    TableBusyError,
    TableMismatchError,
    UnclaimedStateError,
    WrongKeyGroupError,
    WrongTypeError,
)
from pystate.types.keys import parse_key
from tests.forks import FORKS, copied

STATES = {
    "n": ps.ValueState("long", default=0),
    "name": ps.ValueState("string"),
    "seen": ps.ValueState(object, default=[]),
}


@pytest.fixture
def backend() -> Iterator[ps.KeyedStateBackend]:
    with ps.KeyedStateBackend("long", states=STATES, uid="op") as made:
        yield made


def written(snapshot: ps.Snapshot | None) -> io.BytesIO:
    assert snapshot is not None
    out = io.BytesIO()
    snapshot.write(out)
    return out


def rows(backend: ps.KeyedStateBackend, *states: str) -> dict[Any, Any]:
    table = backend.to_arrow()
    names = states or tuple(backend.states)
    columns = [table.column(name).to_pylist() for name in names]
    values = columns[0] if len(names) == 1 else list(zip(*columns, strict=True))
    return dict(zip(backend, values, strict=True))


# -- scalars


def test_a_value_is_the_current_keys(backend: ps.KeyedStateBackend) -> None:
    n = backend["n"]
    backend.set_current_key(1)
    assert n.value() == 0
    n.update(5)
    backend.set_current_key(2)
    assert n.value() == 0
    n.update(7)
    backend.set_current_key(1)
    assert n.value() == 5
    n.update(None)
    assert n.value() == 0
    assert list(backend) == [2]


def test_no_current_key_is_an_error_and_not_key_zero(backend: ps.KeyedStateBackend) -> None:
    for handle in backend.states.values():
        for use in (handle.value, handle.clear, lambda h=handle: h.update(h.name)):
            with pytest.raises(NoCurrentKeyError):
                use()
    backend.set_current_key(1)
    backend.seal()
    with pytest.raises(NoCurrentKeyError, match=r"operator 'op', state 'n'.*seal"):
        backend["n"].value()
    backend.set_current_key(1)
    backend.rollback()
    with pytest.raises(NoCurrentKeyError):
        backend["n"].value()
    backend.set_current_key(1)
    backend.clear_current_key()
    with pytest.raises(NoCurrentKeyError):
        backend["seen"].value()


def test_a_key_that_is_refused_leaves_none_current(backend: ps.KeyedStateBackend) -> None:
    for wrong in ("x", True, 1.0, 2**63, (1,)):
        backend.set_current_key(1)
        with pytest.raises((WrongTypeError, StateOverflowError), match="'key'"):
            backend.set_current_key(wrong)
        with pytest.raises(NoCurrentKeyError):
            backend["n"].update(1)
    assert len(backend) == 0


def test_null_is_an_ordinary_key(backend: ps.KeyedStateBackend) -> None:
    backend.set_current_key(None)
    backend["n"].update(3)
    backend["seen"].update({"x"})
    keys = backend.keys([None, 0])
    assert backend["n"].values(keys).to_pylist() == [3, 0]
    assert list(backend) == [None]
    assert backend["seen"].values(keys) == [{"x"}, []]
    backend.delete([None])
    assert list(backend) == []


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("boolean", [True, False, None]),
        ("byte", [-128, 127, None]),
        ("int", [-(2**31), 2**31 - 1, 0]),
        ("double", [0.5, float("inf"), -1e300]),
        ("float", [0.5, float("-inf"), 0.0]),
        ("decimal(20,2)", [Decimal("-1.25"), Decimal("123456789012345678.00"), None]),
        ("decimal(5,2)", [Decimal("-1.25"), Decimal("0.00"), None]),
        ("string", ["", "a" * 100, None, "ż"]),
        ("binary", [b"", b"\0", b"x" * 13, None]),
        ({"a": "int", "b": "string"}, [(1, "x"), (None, "x"), (1, None), (None, None)]),
        ({"a": "string", "b": "string"}, [("ab", "c"), ("a", "bc"), ("", "abc")]),
    ],
)
def test_every_key_type_meets_itself_in_scalars_and_batches(key: Any, values: list[Any]) -> None:
    with ps.KeyedStateBackend(key, states={"n": ps.ValueState("long")}) as backend:
        for i, value in enumerate(values):
            backend.set_current_key(value)
            backend["n"].update(i)
        columns = values if isinstance(key, str) else [list(c) for c in zip(*values, strict=True)]
        assert backend["n"].values(backend.keys(columns)).to_pylist() == list(range(len(values)))
        assert sorted(map(repr, backend)) == sorted(map(repr, values))
        out = written(backend.seal())
        with ps.KeyedStateBackend(key, states={"n": ps.ValueState("long")}) as other:
            other.restore([out])
            assert rows(other) == rows(backend)


def test_zeros_and_nans_are_one_key_each() -> None:
    odd_nan = np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0]
    states = {"n": ps.ValueState("long", default=0), "o": ps.ValueState(object)}
    with ps.KeyedStateBackend("double", states=states) as backend:
        backend["n"].add(backend.keys(np.array([0.0, -0.0, np.nan, odd_nan])), 1)
        assert len(backend) == 2
        backend.set_current_key(-0.0)
        assert backend["n"].value() == 2
        backend.set_current_key(float("nan"))
        assert backend["n"].value() == 2
        backend["o"].update("x")
        assert backend["o"].values(backend.keys([float(odd_nan), 0.0])) == ["x", None]
        backend.set_current_key(float(odd_nan))
        assert backend["o"].value() == "x"


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("boolean", True),
        ("byte", -1),
        ("short", -300),
        ("int", -70000),
        ("long", -(2**40)),
        ("float", -0.5),
        ("double", 1e-300),
        ("date", __import__("datetime").date(1950, 1, 2)),
        ("timestamp_ntz", __import__("datetime").datetime(1950, 1, 2, 3)),
        ("decimal(38,3)", Decimal("-12345678901234567890.125")),
        ("string", "x" * 300),
        ("binary", b"\0" * 12),
    ],
)
def test_every_value_type_in_scalars_batches_and_files(ddl: str, value: Any) -> None:
    declaration = ps.ValueState(ddl)
    with ps.KeyedStateBackend("int", states={"v": declaration}) as backend:
        backend.set_current_key(1)
        assert backend["v"].value() is None
        backend["v"].update(value)
        assert backend["v"].value() == value
        keys = backend.keys([1, 2, 3])
        assert backend["v"].values(keys).to_pylist() == [value, None, None]
        backend["v"].update_all(keys, [None, value, value])
        assert backend["v"].values(keys).to_pylist() == [None, value, value]
        assert backend["v"].values(keys).type == declaration.type.arrow
        out = written(backend.seal())
    with ps.KeyedStateBackend("int", states={"v": declaration}) as other:
        assert other.restore([out]) == 2
        assert rows(other) == {2: value, 3: value}
        assert other.reader().get(2) == {"v": value}


def test_defaults_of_every_kind_fill_absent_values() -> None:
    defaults = {"boolean": True, "int": -3, "double": 0.5, "string": "none", "binary": b"-",
                "decimal(5,2)": Decimal("1.50")}  # fmt: skip
    states = {name.split("(")[0]: ps.ValueState(name, d) for name, d in defaults.items()}
    with ps.KeyedStateBackend("long", states=states) as backend:
        keys = backend.keys([1, 2])
        backend.set_current_key(1)
        for (name, handle), default in zip(backend.states.items(), defaults.values(), strict=True):
            assert handle.value() == default
            assert handle.values(keys).to_pylist() == [default, default], name
        assert len(backend) == 0


# -- batches


def test_add_sees_earlier_rows_of_a_repeated_key(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys(pa.array([1, 2, 1, None, 1]))
    backend["n"].add(keys, pa.array([1, 10, 2, 5, None]))
    assert rows(backend, "n") == {1: 3, 2: 10, None: 5}
    backend["n"].add(keys, 1)
    assert rows(backend, "n") == {1: 6, 2: 11, None: 6}


def test_min_and_max_replace_an_absent_value(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2])
    backend["n"].max(keys, [-5, None])
    assert rows(backend, "n") == {1: -5}
    backend["n"].min(keys, [-7, 7])
    assert rows(backend, "n") == {1: -7, 2: 7}


def test_nan_is_larger_than_any_number() -> None:
    with ps.KeyedStateBackend("long", states={"x": ps.ValueState("double")}) as backend:
        keys = backend.keys([1, 2])
        backend["x"].update_all(keys, [1.0, float("nan")])
        backend["x"].max(keys, [float("nan"), 5.0])
        assert [v != v for v in backend["x"].values(keys).to_pylist()] == [True, True]
        backend["x"].min(keys, [2.0, 5.0])
        assert backend["x"].values(keys).to_pylist() == [2.0, 5.0]


def test_add_starts_from_the_default() -> None:
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("int", default=100)}) as backend:
        backend["n"].add(backend.keys([1]), 1)
        assert rows(backend) == {1: 101}


def test_the_last_of_a_repeated_key_wins(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 1, 2])
    backend["name"].update_all(keys, ["a", "b" * 20, "c"])
    assert rows(backend, "name") == {1: "b" * 20, 2: "c"}
    backend["name"].update_all(keys, "same")
    assert rows(backend, "name") == {1: "same", 2: "same"}
    backend["name"].update_all(keys, [None, "kept", None])
    assert rows(backend, "name") == {1: "kept"}
    backend["name"].update_all(keys, None)
    assert len(backend) == 0


def test_reading_makes_no_row(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys(range(1000))
    assert backend["n"].values(keys).to_pylist() == [0] * 1000
    assert backend["name"].values(keys).null_count == 1000
    assert len(backend) == 0
    assert not backend.dirty


def test_a_row_made_in_a_batch_is_seen_by_all_views(backend: ps.KeyedStateBackend) -> None:
    keys, same = backend.keys([1, 2]), backend.keys([2, 1])
    backend.set_current_key(2)
    assert backend["n"].value() == 0
    backend["n"].add(keys, [10, 20])
    assert backend["n"].value() == 20
    backend["n"].update(21)
    assert backend["n"].values(same).to_pylist() == [21, 10]
    assert backend["n"].values(keys).to_pylist() == [10, 21]
    assert len(backend) == 2


def test_a_deleted_key_can_come_back_while_it_is_current(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1])
    backend.set_current_key(1)
    backend["n"].update(5)
    backend["name"].update("x")
    backend.delete(keys)
    assert (backend["n"].value(), backend["name"].value(), len(backend)) == (0, None, 0)
    backend["n"].update(6)
    assert backend["n"].values(keys).to_pylist() == [6]
    assert rows(backend, "n", "name") == {1: (6, None)}


def test_a_batch_survives_growth(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, -1])
    backend["n"].add(keys, [5, 6])
    for start in range(0, 60_000, 20_000):
        backend["n"].add(backend.keys(np.arange(start, start + 20_000)), 1)
    assert backend["n"].values(keys).to_pylist() == [6, 6]


@pytest.mark.parametrize("end", ["seal", "rollback"])
def test_a_batch_is_stale_after_seal_and_rollback(backend: ps.KeyedStateBackend, end: str) -> None:
    keys = backend.keys([1])
    backend["seen"].values(keys)
    getattr(backend, end)()
    for use in (
        lambda: backend["n"].values(keys),
        lambda: backend["n"].add(keys, 1),
        lambda: backend["n"].update_all(keys, 1),
        lambda: backend["n"].clear_all(keys),
        lambda: backend["seen"].values(keys),
        lambda: backend["seen"].update_all(keys, [1]),
        lambda: backend["seen"].clear_all(keys),
        lambda: backend.delete(keys),
        lambda: keys.select(0),
    ):
        with pytest.raises(StaleKeyBatchError):
            use()
    assert "Stale" in repr(keys)


def test_select_makes_a_batchs_key_current(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([7, None, 7])
    for i in range(3):
        keys.select(i)
        backend["n"].update(backend["n"].value() + 1)
        backend["seen"].update([*backend["seen"].value(), i])
    assert rows(backend, "n") == {7: 2, None: 1}
    assert backend["seen"].values(keys) == [[0, 2], [1], [0, 2]]
    keys.select(1)
    assert backend.current_key is None
    for i in (-1, 3):
        with pytest.raises(InvalidArgumentError, match=str(i)):
            keys.select(i)


def test_changed_gives_each_touched_key_once() -> None:
    key = {"a": "string", "b": "int"}
    with ps.KeyedStateBackend(key, states=STATES) as backend:
        backend["n"].add(backend.keys([["old", "gone"], [1, 1]]), 1)
        backend.seal()
        backend["n"].add(backend.keys([["new", None, "new"], [2, None, 2]]), 3)
        backend.delete([["gone"], [1]])
        backend.set_current_key(("late", None))
        backend["seen"].update(1)
        found = {}
        for batch in backend.changed(max_rows=2):
            assert len(batch) <= 2
            assert [a.type for a in batch.key_arrays()] == [pa.string(), pa.int32()]
            for key_, n in zip(batch.to_pylist(), backend["n"].values(batch), strict=True):
                assert key_ not in found
                found[key_] = n.as_py()
        assert found == {("new", 2): 6, (None, None): 3, ("late", None): 0}
        backend.seal()
        assert list(backend.changed()) == []


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([1, 2], pa.int32()), pa.array(["a", "b"])],
        (np.array([1, 2], np.int32), ["a", "b"]),
        pa.record_batch({"x": [9, 9], "b": ["a", "b"], "a": pa.array([1, 2], pa.int32())}),
        pa.table({"b": ["a", "b"], "a": [1, 2]}),
    ],
)
def test_columns_come_in_many_forms(columns: Any) -> None:
    with ps.KeyedStateBackend([("a", "int"), ("b", "string")], states=STATES) as backend:
        assert backend.keys(columns).to_pylist() == [(1, "a"), (2, "b")]


def test_a_single_key_takes_a_column_or_a_list_of_one(backend: ps.KeyedStateBackend) -> None:
    column = pa.array([1, 2])
    for columns in (column, [column], [1, 2], [np.array([1, 2])], pa.record_batch({"key": column})):
        assert backend.keys(columns).to_pylist() == [1, 2]
    assert backend.keys([5]).to_pylist() == [5]


def test_wrong_columns_are_named(backend: ps.KeyedStateBackend) -> None:
    with pytest.raises(WrongTypeError, match="key column 'key' is long: a column of string"):
        backend.keys(pa.array(["a"]))
    with pytest.raises(InvalidArgumentError, match="'key' is not among x"):
        backend.keys(pa.record_batch({"x": [1]}))
    keys = backend.keys([1, 2])
    with pytest.raises(WrongTypeError, match="state 'n' is long: a column of double"):
        backend["n"].update_all(keys, pa.array([1.0, 2.0]))
    with pytest.raises(InvalidArgumentError, match="3 values for 2 keys"):
        backend["n"].add(keys, [1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="1 values for 2 keys"):
        backend["n"].update_all(keys, [1])
    with pytest.raises(WrongTypeError, match="no add for string"):
        backend["name"].add(keys, "x")
    with pytest.raises(InvalidArgumentError, match="expected a KeyBatch, got Int64Array"):
        backend["n"].values(pa.array([1]))  # type: ignore[arg-type]
    two = ps.KeyedStateBackend({"a": "int", "b": "int"}, states=STATES)
    with pytest.raises(WrongTypeError, match="a int, b int"):
        two.keys(pa.array([1, 2, 3]))
    with pytest.raises(InvalidArgumentError, match="differ in length: 1 and 2"):
        two.keys([[1], [1, 2]])
    with pytest.raises(WrongTypeError, match="a tuple of as many values"):
        two.set_current_key(1)
    with pytest.raises(InvalidArgumentError, match="another backend"):
        two["n"].values(keys)
    with pytest.raises(InvalidArgumentError, match="another backend"):
        two.delete(keys)


def test_keys_of_another_range_are_refused() -> None:
    groups = {}
    hashes = ps.hash_keys([pa.array(range(100), pa.int64())])
    for key in range(100):
        groups[key] = ps.key_group(int(hashes[key]), 128)
    with ps.KeyedStateBackend("long", states=STATES, key_group_range=(10, 90)) as backend:
        inside = [k for k, g in groups.items() if 10 <= g <= 90]
        outside = next(k for k, g in groups.items() if not 10 <= g <= 90)
        backend["n"].add(backend.keys(inside), 1)
        with pytest.raises(WrongKeyGroupError, match=f"row 1: .*group {groups[outside]}"):
            backend.keys([inside[0], outside])
        with pytest.raises(WrongKeyGroupError, match=str(groups[outside])):
            backend.set_current_key(outside)
        with pytest.raises(NoCurrentKeyError):
            backend["n"].value()


def test_overflow_leaves_only_the_roll_back(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2])
    backend["n"].add(keys, [1, 2**63 - 1])
    backend.seal()
    keys = backend.keys([1, 2])
    with pytest.raises(StateOverflowError, match="operator 'op', state 'n', row 1"):
        backend["n"].add(keys, 5)
    with pytest.raises(PoisonedError):
        backend.seal()
    with pytest.raises(PoisonedError):
        backend["n"].add(keys, 1)
    backend.rollback()
    assert rows(backend, "n") == {1: 1, 2: 2**63 - 1}
    backend["n"].add(backend.keys([1]), 1)
    backend.seal()


@pytest.mark.parametrize(("ddl", "most"), [("byte", 127), ("short", 2**15 - 1), ("int", 2**31 - 1)])
def test_narrow_integers_overflow_at_their_own_ends(ddl: str, most: int) -> None:
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState(ddl)}) as backend:
        backend["n"].update_all(backend.keys([1]), most)
        with pytest.raises(StateOverflowError):
            backend["n"].add(backend.keys([1]), 1)


def test_empty_batches_do_nothing(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys(pa.array([], pa.int64()))
    assert len(keys) == 0
    assert backend["n"].values(keys).to_pylist() == []
    assert backend["name"].values(keys).to_pylist() == []
    backend["n"].add(keys, 1)
    backend["name"].update_all(keys, [])
    backend["seen"].update_all(keys, [])
    backend.delete(keys)
    assert not backend.dirty


# -- objects


class Counted:
    """Counts how often its instances are pickled and unpickled."""

    pickled = unpickled = 0

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __getstate__(self) -> dict[str, Any]:
        Counted.pickled += 1
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        Counted.unpickled += 1
        self.__dict__.update(state)


@pytest.fixture
def counted() -> Iterator[type[Counted]]:
    Counted.pickled = Counted.unpickled = 0
    yield Counted


def test_an_object_is_decoded_and_encoded_once_per_epoch(
    backend: ps.KeyedStateBackend, counted: type[Counted]
) -> None:
    seen = backend["seen"]
    for i in range(10):
        backend.set_current_key(1)
        value = seen.value() or Counted([])
        value.items.append(i)
        seen.update(value)
    assert (counted.pickled, counted.unpickled) == (0, 0)
    backend.seal()
    assert (counted.pickled, counted.unpickled) == (1, 0)
    for _ in range(10):
        backend.set_current_key(1)
        assert seen.value().items == list(range(10))
        assert seen.values(backend.keys([1, 1]))[1].items == list(range(10))
    assert (counted.pickled, counted.unpickled) == (1, 1)
    backend.seal()
    assert (counted.pickled, counted.unpickled) == (1, 1)


def test_a_change_in_place_counts_only_after_update(backend: ps.KeyedStateBackend) -> None:
    seen = backend["seen"]
    backend.set_current_key(1)
    seen.update([1])
    backend.seal()
    backend.set_current_key(1)
    seen.value().append(2)
    backend.seal()
    backend.set_current_key(1)
    assert seen.value() == [1]
    value = seen.value()
    value.append(3)
    seen.update(value)
    backend.seal()
    backend.set_current_key(1)
    assert seen.value() == [1, 3]


def test_an_epoch_without_a_write_drops_what_was_changed_in_place(tmp_path: Path) -> None:
    with ps.open(tmp_path, key="long", states={"o": ps.ValueState(object)}) as store:
        store.set_current_key(1)
        store["o"].update([0])
        store.checkpoint()
        store.set_current_key(1)
        store["o"].value().append(1)
        assert store.checkpoint() == 1
        store.set_current_key(1)
        assert store["o"].value() == [0]


def test_objects_follow_rollbacks_deletes_and_clears(backend: ps.KeyedStateBackend) -> None:
    seen = backend["seen"]
    seen.update_all(backend.keys([1, 2, 3]), ["a", "b", "c"])
    backend.seal()
    keys = backend.keys([1, 2, 3, 4])
    seen.update_all(keys, ["x", None, "y", "z"])
    backend.delete([3])
    assert seen.values(keys) == ["x", [], [], "z"]
    assert backend.dirty
    backend.rollback()
    assert not backend.dirty
    assert seen.values(backend.keys([1, 2, 3, 4])) == ["a", "b", "c", []]
    seen.clear_all(backend.keys([1]))
    backend.set_current_key(2)
    seen.clear()
    assert len(backend) == 1
    backend.seal()
    assert seen.values(backend.keys([1, 2, 3])) == [[], [], "c"]
    backend.rollback(1)
    assert seen.values(backend.keys([1, 2, 3])) == ["a", "b", "c"]


def test_equal_keys_in_other_clothes_share_an_object() -> None:
    states = {"o": ps.ValueState(object)}
    with ps.KeyedStateBackend({"a": "decimal(9,2)", "b": "binary"}, states=states) as backend:
        backend.set_current_key((Decimal("1.5"), bytearray(b"x")))
        backend["o"].update("first")
        backend.set_current_key((Decimal("1.50"), b"x"))
        assert backend["o"].value() == "first"
        keys = backend.keys([[Decimal("1.5")], [b"x"]])
        assert backend["o"].values(keys) == ["first"]
        keys.select(0)
        backend["o"].update("second")
        backend.seal()
        assert backend["o"].values(backend.keys([[Decimal("1.5")], [b"x"]])) == ["second"]


def test_what_cannot_be_pickled_is_named_and_nothing_is_sealed(
    backend: ps.KeyedStateBackend,
) -> None:
    backend.set_current_key(5)
    backend["n"].update(1)
    backend["seen"].update(lambda: None)
    with pytest.raises(WrongTypeError, match="state 'seen', key 5: function cannot be pickled"):
        backend.seal()
    assert backend.lineage() == EMPTY_LINEAGE
    backend.set_current_key(5)
    backend["seen"].update("fine")
    assert backend.seal().rows == 1


def test_many_objects_are_flushed_in_pieces(backend: ps.KeyedStateBackend) -> None:
    count = 20_000
    backend["seen"].update_all(backend.keys(range(count)), [(i, "x") for i in range(count)])
    backend.seal()
    assert backend["seen"].values(backend.keys([0, 8191, 8192, count - 1])) == [
        (i, "x") for i in (0, 8191, 8192, count - 1)
    ]


# -- epochs, snapshots, readers


def test_a_snapshot_holds_what_changed_since_the_last(backend: ps.KeyedStateBackend) -> None:
    backend["n"].add(backend.keys([1, 2, 3]), 1)
    assert backend.seal().rows == 3
    backend["n"].add(backend.keys([2]), 1)
    backend.delete([3])
    second = backend.seal()
    assert second.rows == 2
    info = second.write(io.BytesIO())
    assert (info.kind, info.rows, info.tombstones) == ("delta", 1, 1)
    assert backend.seal().rows == 0


def test_a_snapshot_is_isolated_and_outlives_the_backend(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2])
    backend["name"].update_all(keys, ["one", "two" * 20])
    first = backend.seal()
    backend["name"].update_all(backend.keys([1, 2]), ["changed", None])
    second = backend.seal()
    backend.close()
    gc.collect()
    for snapshot, wanted in ((first, {1: "one", 2: "two" * 20}), (second, {1: "changed"})):
        with ps.KeyedStateBackend("long", states=STATES) as other:
            if snapshot is second:
                other.restore([written(first), written(second)])
            else:
                other.restore([written(snapshot)])
            assert rows(other, "name") == wanted


def test_a_snapshot_can_be_written_twice(backend: ps.KeyedStateBackend) -> None:
    backend["n"].add(backend.keys(range(1000)), 1)
    snapshot = backend.seal()
    assert written(snapshot).getvalue() == written(snapshot).getvalue()
    snapshot.close()
    snapshot.close()
    with pytest.raises(ClosedError):
        snapshot.write(io.BytesIO())


def test_lineages_name_the_undo_window(backend: ps.KeyedStateBackend) -> None:
    assert backend.lineage() == EMPTY_LINEAGE
    made = []
    for epoch in (10, 11, 12):
        parent = made[-1].id if made else bytes(16)
        made.append(ps.Lineage(uuid.uuid4().bytes, parent, epoch, 2**64 - 1))
        backend["n"].add(backend.keys([epoch]), 1)
        assert backend.seal(made[-1]).lineage == made[-1]
    assert [backend.lineage(i) for i in range(4)] == [made[2], made[1], made[0], None]
    with pytest.raises(LineageError):
        backend.rollback(3)
    backend.rollback(1)
    assert backend.lineage() == made[1]
    assert sorted(backend) == [10, 11]
    following = backend.seal()
    assert following.lineage[1:] == (made[1].id, 12, 2**64 - 1)


def test_rolling_back_two_epochs_and_the_open_one(backend: ps.KeyedStateBackend) -> None:
    wanted = []
    for step in range(4):
        backend["n"].add(backend.keys([1, step]), 1)
        backend["name"].update_all(backend.keys([step]), "x" * 20 * step)
        wanted.append(rows(backend, "n", "name"))
        if step < 3:
            backend.seal()
    for back in (0, 1, 1):
        backend.rollback(back)
        wanted.pop()
        assert rows(backend, "n", "name") == wanted[-1]


def test_reader_beside_writer(backend: ps.KeyedStateBackend) -> None:
    backend["n"].add(backend.keys([1, 2]), 1)
    backend["seen"].update_all(backend.keys([1]), [{"x": 1}])
    backend.seal()
    backend["n"].add(backend.keys([1, 3]), 10)
    backend.delete([2])
    with backend.reader() as reader:
        assert reader.lineage == backend.lineage()
        assert reader.get(1) == {"n": 1, "name": None, "seen": {"x": 1}}
        assert reader.get(2) == {"n": 1, "name": None, "seen": []}
        assert reader.get(3) is None
        assert sorted(reader) == [1, 2]
        backend.seal()
        assert reader.get(1) == {"n": 1, "name": None, "seen": {"x": 1}}
        assert reader.to_arrow().num_rows == 2
        for _ in range(3):
            backend["n"].add(backend.keys([1, 2]), 1)
            backend.seal()
        with pytest.raises(SnapshotTooOldError):
            reader.get(1)
    with pytest.raises(ClosedError):
        reader.get(1)


# -- files


def chain(backend: ps.KeyedStateBackend) -> list[io.BytesIO]:
    files = []
    backend["n"].add(backend.keys(range(200)), 1)
    backend["name"].update_all(backend.keys(range(0, 200, 2)), "name" * 5)
    files.append(written(backend.seal()))
    backend["n"].add(backend.keys(range(100, 300)), 5)
    backend["name"].clear_all(backend.keys(range(50)))
    backend.delete(range(190, 200))
    files.append(written(backend.seal()))
    backend["seen"].update_all(backend.keys([1, 250]), [[1], {"two": 2}])
    backend["n"].clear_all(backend.keys(range(10)))
    files.append(written(backend.seal()))
    return files


def test_a_chain_of_deltas_restores_everything(backend: ps.KeyedStateBackend) -> None:
    files = chain(backend)
    with ps.KeyedStateBackend("long", states=STATES) as other:
        other.restore(files)
        assert rows(other) == rows(backend)
        assert other.lineage() == backend.lineage()
        assert not other.dirty


def test_a_merged_base_equals_its_sources(backend: ps.KeyedStateBackend, tmp_path: Path) -> None:
    files = chain(backend)
    with open(tmp_path / "merged.base", "wb") as out:
        info = ps.merge_files(files, out)
    assert (info.kind, info.tombstones, info.rows) == ("base", 0, len(backend))
    assert info.id == backend.lineage().id.hex()
    assert info.file_bytes == os.path.getsize(tmp_path / "merged.base")
    assert ps.verify_file(tmp_path / "merged.base", info) == info
    with ps.KeyedStateBackend("long", states=STATES) as other:
        other.restore([tmp_path / "merged.base"], expected=[info])
        assert rows(other) == rows(backend)
        assert other.lineage() == backend.lineage()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 7), (7, 2), (1, 128)])
def test_ranges_are_restored_at_any_parallelism(before: int, after: int) -> None:
    wanted, files = {}, []
    hashes = ps.hash_keys([pa.array(range(500), pa.int64())])
    owners = [ps.range_of(ps.key_group(int(h), 128), 128, before) for h in hashes]
    for i in range(before):
        bounds = ps.range_bounds(i, 128, before)
        with ps.KeyedStateBackend("long", states=STATES, key_group_range=bounds) as old:
            old["n"].add(old.keys([k for k in range(500) if owners[k] == i]), i + 1)
            wanted.update(rows(old))
            files.append(written(old.seal()))
    found: dict[Any, Any] = {}
    for i in range(after):
        bounds = ps.range_bounds(i, 128, after)
        with ps.KeyedStateBackend("long", states=STATES, key_group_range=bounds) as new:
            new.restore(files, ps.Lineage(uuid.uuid4().bytes, bytes(16), 9))
            part = rows(new)
            assert not part.keys() & found.keys()
            found |= part
    assert found == wanted
    assert len(found) == 500


def test_empty_checkpoint(backend: ps.KeyedStateBackend) -> None:
    out = written(backend.seal())
    with ps.KeyedStateBackend("long", states=STATES) as other:
        assert other.restore([out]) == 0
        assert len(other) == 0
        assert other.lineage() == backend.lineage()


def test_states_are_matched_by_name(backend: ps.KeyedStateBackend) -> None:
    files = chain(backend)
    turned = {"new": ps.ValueState("double", 0.5), **dict(reversed(STATES.items()))}
    with ps.KeyedStateBackend("long", states=turned) as other:
        other.restore(files)
        assert rows(other, *STATES) == rows(backend)
        assert other["new"].values(other.keys([1])).to_pylist() == [0.5]


def test_state_that_nobody_claims_is_an_error(backend: ps.KeyedStateBackend) -> None:
    files = chain(backend)
    with ps.KeyedStateBackend("long", states={"n": STATES["n"]}) as other:
        with pytest.raises(UnclaimedStateError, match=r"'name', 'seen'.*allow_unclaimed_state"):
            other.restore(files)
        assert len(other) == 0
        other.restore(files, allow_unclaimed_state=True)
        wanted = {k: v for k, v in rows(backend, "n").items() if v is not None}
        assert {k: v for k, v in rows(other).items() if v is not None} == wanted


@pytest.mark.parametrize(
    ("key", "states", "options", "said"),
    [
        ("int", STATES, {}, r"key long\).*key int"),
        ({"a": "long", "b": "long"}, STATES, {}, r"key long\).*a long, b long"),
        ("long", STATES | {"n": ps.ValueState("int")}, {}, "'n' is long there.*declared as int"),
        ("long", STATES | {"name": ps.ValueState("binary")}, {}, "'name' is string.*binary"),
        ("long", STATES, {"max_parallelism": 64}, "128 key groups.*64"),
    ],
)
def test_another_schema_is_refused(
    backend: ps.KeyedStateBackend, key: Any, states: Any, options: Any, said: str
) -> None:
    files = chain(backend)
    with ps.KeyedStateBackend(key, states=states, **options) as other:
        with pytest.raises(SchemaError, match=said):
            other.restore(files)
        assert len(other) == 0


def test_restore_wants_an_empty_table(backend: ps.KeyedStateBackend) -> None:
    files = chain(backend)
    with pytest.raises(InvalidArgumentError, match="empty"):
        backend.restore(files)


def test_another_file_than_expected_is_refused(backend: ps.KeyedStateBackend) -> None:
    first, *_ = chain(backend)
    info = ps.verify_file(first)
    for change, said in (
        ({"id": "00" * 16}, "its id is"),
        ({"kind": "base"}, "its kind is delta"),
        ({"epoch": 7}, "its epoch is 1, not 7"),
        ({"file_bytes": info.file_bytes + 1}, "corrupt at byte"),
        ({"checksum": info.checksum ^ 1}, "checksum of the whole file"),
    ):
        with ps.KeyedStateBackend("long", states=STATES) as other:
            with pytest.raises(CorruptFileError, match=said):
                other.restore([first], expected=[info._replace(**change)])
            assert len(other) == 0


class Failing(io.BytesIO):
    """Fails once so many bytes were written."""

    def __init__(self, most: int, error: BaseException) -> None:
        super().__init__()
        self.most, self.error = most, error

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.most:
            raise self.error
        return super().write(data)


@pytest.mark.parametrize("most", [0, 100, 5000])
def test_a_failing_write_hands_its_error_through(backend: ps.KeyedStateBackend, most: int) -> None:
    backend["name"].update_all(backend.keys(range(500)), [f"name {i}" for i in range(500)])
    snapshot = backend.seal()
    with pytest.raises(KeyboardInterrupt):
        snapshot.write(Failing(most, KeyboardInterrupt()))
    with pytest.raises(NoSpaceError) as caught:
        snapshot.write(Failing(most, OSError(errno.ENOSPC, "full")))
    assert caught.value.errno == errno.ENOSPC
    with ps.KeyedStateBackend("long", states=STATES) as other:
        other.restore([written(snapshot)])
        assert rows(other, "name") == rows(backend, "name")


class Short(io.RawIOBase):
    """Writes and reads a few bytes at a time, as raw files may."""

    def __init__(self, data: bytes = b"") -> None:
        self.inner = io.BytesIO(data)

    def write(self, data: Any) -> int:
        return self.inner.write(bytes(data[:97]))

    def readinto(self, buffer: Any) -> int:
        return self.inner.readinto(memoryview(buffer)[:97])

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.inner.seek(offset, whence)


def test_short_writes_and_reads_are_completed(backend: ps.KeyedStateBackend) -> None:
    backend["n"].add(backend.keys(range(500)), 1)
    snapshot = backend.seal()
    short = Short()
    snapshot.write(short)  # type: ignore[arg-type]
    assert short.inner.getvalue() == written(snapshot).getvalue()
    with ps.KeyedStateBackend("long", states=STATES) as other:
        other.restore([short])  # type: ignore[list-item]
        assert rows(other) == rows(backend)


# -- declarations and life


def test_registering(backend: ps.KeyedStateBackend) -> None:
    """What `test_registry.py` has not: the column of namespaces, and a state that is added."""
    for key, name, error in (
        ("namespace", "n", "a key column is called 'namespace'"),
        ("k", "namespace", "state 'namespace': the column of the namespaces has that name"),
    ):
        with pytest.raises(DeclarationError, match=error):
            ps.KeyedStateBackend(
                {key: "long"}, namespace="long", states={name: ps.ValueState("long")}
            )
    extra = backend.register("extra", ps.ValueState("int"))
    backend.set_current_key(1)
    extra.update(1)
    assert backend.register("extra", ps.ValueState("int")) is extra


def test_wrong_keys_are_refused() -> None:
    twice = [("a", "int"), ("a", "int")]
    for key in ([], "array<int>", object, [("a", object)], twice, ["int"], ("a", "int")):
        with pytest.raises(DeclarationError, match="key"):
            ps.KeyedStateBackend(key)  # type: ignore[arg-type]


def test_a_path_and_a_shared_home_belong_together() -> None:
    for options in ({"home": "shared"}, {"path": "x"}):
        with pytest.raises(InvalidArgumentError, match="a shared table needs a path"):
            ps.KeyedStateBackend("long", **options)  # type: ignore[arg-type]


def test_after_close_everything_refuses(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1])
    backend["n"].add(keys, 1)
    backend.seal()
    keys = backend.keys([1])
    reader = backend.reader()
    handle = backend["n"]
    backend.close()
    backend.close()
    for use in (
        handle.value,
        lambda: backend.set_current_key(1),
        lambda: handle.values(keys),
        lambda: len(keys),
        lambda: backend.keys([1]),
        backend.seal,
        backend.rollback,
        backend.stats,
        backend.reader,
        lambda: reader.get(1),
        lambda: list(backend),
    ):
        with pytest.raises(ClosedError):
            use()


def test_batches_may_die_before_and_after_their_table() -> None:
    for order in (0, 1):
        backend: Any = ps.KeyedStateBackend("long", states=STATES)
        keys: Any = backend.keys([1, 2])
        backend["n"].add(keys, 1)
        if order:
            del backend
        else:
            del keys
        gc.collect()
    for _ in range(3):
        cycle: Any = ps.KeyedStateBackend("long", states=STATES)
        cycle.self = cycle
        cycle.batch = cycle.keys([1])
        cycle.open_reader = cycle.reader()
        del cycle
        gc.collect()


def test_the_memory_limit_is_an_error_and_work_goes_on() -> None:
    with ps.KeyedStateBackend("long", states=STATES, limit_bytes=64 << 20) as backend:
        backend["n"].add(backend.keys(range(1000)), 1)
        backend.seal()
        with pytest.raises(MemoryLimitError, match="limit_bytes"):
            for start in range(0, 100_000_000, 100_000):
                backend["n"].add(backend.keys(np.arange(start, start + 100_000)), 1)
        backend.rollback()
        assert len(backend) == 1000
        backend["n"].add(backend.keys([1]), 1)
        backend.seal()


def test_memory_is_given_back() -> None:
    states = {"s": ps.ValueState("string"), "n": ps.ValueState("bigint")}
    with ps.KeyedStateBackend("long", states=states) as backend:
        count, size, last = 4000, 100, 0

        def idle(epochs: int) -> int:
            for _ in range(epochs):
                backend["n"].add(backend.keys([1, 2, 3]), 1)
                backend.seal()
            return backend.stats().committed_bytes

        while size < 3800:
            backend["s"].update_all(backend.keys(range(count)), ["x" * size] * count)
            backend.seal()
            last, size = size, size + size // 6
        assert idle(200) <= 1.5 * count * last
        backend["s"].clear_all(backend.keys(range(4, count)))
        assert idle(100) <= 3 << 20
        assert backend["s"].values(backend.keys([1, 5])).to_pylist() == ["x" * last, None]


class Gate(io.BytesIO):
    """Waits in every read after the first few."""

    def __init__(self, data: bytes, free: int) -> None:
        super().__init__(data)
        self.free, self.reads = free, 0
        self.entered, self.leave = threading.Event(), threading.Event()

    def readinto(self, buffer: Any) -> int:
        self.reads += 1
        if self.reads > self.free:
            self.entered.set()
            assert self.leave.wait(60)
        return super().readinto(buffer)


def test_another_thread_is_told_that_the_table_is_busy(backend: ps.KeyedStateBackend) -> None:
    backend["n"].add(backend.keys(range(100)), 1)
    data = written(backend.seal()).getvalue()
    counting = Gate(data, 1 << 30)
    with open_file(counting):
        gate = Gate(data, counting.reads)
    with ps.KeyedStateBackend("long", states=STATES) as other:
        keys = other.keys([1])
        thread = threading.Thread(target=other.load, args=(gate,))
        thread.start()
        try:
            assert gate.entered.wait(60)
            for use in (
                other.close,
                other.seal,
                keys.close,
                lambda: other["n"].values(keys),
                lambda: other.set_current_key(1),
            ):
                with pytest.raises(InUseError, match="another thread"):
                    use()
        finally:
            gate.leave.set()
            thread.join()
        assert other["n"].values(keys).to_pylist() == [1]


@FORKS
def test_a_forked_childs_handles_refuse_and_harm_nothing(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1])
    backend["n"].add(keys, 1)
    snapshot = backend.seal()
    reader = backend.reader()
    keys = backend.keys([1])
    backend.set_current_key(1)

    def use_all() -> None:
        for use in (
            backend["n"].value,
            lambda: backend["n"].values(keys),
            lambda: backend.set_current_key(2),
            backend.seal,
            lambda: snapshot.write(io.BytesIO()),
            lambda: reader.get(1),
        ):
            with pytest.raises(ClosedError):
                use()
        for each in (reader, snapshot, backend):
            each.close()

    assert copied(use_all) == (0, "", "")
    assert backend["n"].value() == 1
    assert reader.get(1) == {"n": 1, "name": None, "seen": []}
    assert snapshot.write(io.BytesIO()).rows == 1


# -- shared tables


def test_a_shared_table_outlives_its_backend(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "states": STATES, "home": "shared", "path": tmp_path / "t.table", "lock_timeout_ms": 0,
    }  # fmt: skip
    with pytest.raises(FileNotFoundError):
        ps.KeyedStateBackend("long", create=False, **options).open()
    with ps.KeyedStateBackend("long", **options) as first:
        first["n"].add(first.keys([1, 2]), 1)
        assert first.created
        sealed = first.seal().lineage
        first["n"].add(first.keys([1, 3]), 1)
        with pytest.raises(TableBusyError, match="another backend of this one"):
            ps.KeyedStateBackend("long", **options).open()
        first.detach()
        with pytest.raises(ClosedError, match="attach"):
            first["n"].values(first.keys([1]))
        first.attach()
        assert rows(first, "n") == {1: 1, 2: 1}
        first["n"].add(first.keys([9]), 1)
    with ps.KeyedStateBackend("long", **options) as second:
        assert rows(second, "n") == {1: 1, 2: 1}
        assert not second.created
        assert second.lineage() == sealed


@FORKS
def test_a_shared_tables_file_is_read_beside_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "t.table"
    key = parse_key("long")
    with ps.KeyedStateBackend("long", states=STATES, home="shared", path=path) as backend:
        backend["n"].add(backend.keys([1, 2]), 1)
        backend["name"].update_all(backend.keys([1]), "long " * 20)
        backend.seal()
        backend["n"].add(backend.keys([1]), 5)

        def read() -> None:
            with ps.SealedReader(None, key, STATES, path) as reader:
                print(sorted(reader), reader.get(1)["n"], len(reader.get(1)["name"]))

        assert copied(read) == (0, "[1, 2] 1 100\n", "")
        with pytest.raises(FileNotFoundError):
            ps.SealedReader(None, key, STATES, tmp_path / "none")
        with pytest.raises(TableMismatchError):
            ps.SealedReader(None, parse_key("int"), STATES, path)
