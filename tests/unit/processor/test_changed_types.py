"""Changes between epochs whose states have other types; keys that change by a rewrite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import InvalidArgumentError, SchemaError


def epoch(folder: Path, write: Callable[[ps.Store], None], **states: Any) -> None:
    """A checkpoint of a store by a program that declares these states."""
    with ps.open(
        folder, key={"k": "long"}, states=states, retained=9, allow_unclaimed_state=True
    ) as store:
        write(store)
        store.checkpoint()


def setter(**values: Any) -> Callable[[ps.Store], None]:
    def write(store: ps.Store) -> None:
        for name, value in values.items():
            store.set_current_key(int(name[1:]))
            store["s"].update(value)

    return write


def changed(folder: Path, first: int, **options: Any) -> dict[int, tuple[Any, Any]]:
    table = ps.changes(folder, from_epoch=first, state="s", **options)
    return {row["k"]: (row["before"], row["after"]) for row in table.to_pylist()}


def test_a_wider_type_is_no_change(tmp_path: Path) -> None:
    """Compared by the deltas between, and with one side of one type, and from the beginning."""
    epoch(tmp_path, setter(k1=1, k2=2), s=ps.ValueState("int"))
    epoch(tmp_path, setter(k2=2**40, k3=3), s=ps.ValueState("long"))
    epoch(tmp_path, setter(k1=5), s=ps.ValueState("long"))
    assert changed(tmp_path, 1, to_epoch=2) == {2: (2, 2**40), 3: (None, 3)}
    assert changed(tmp_path, 1) == {1: (1, 5), 2: (2, 2**40), 3: (None, 3)}
    assert changed(tmp_path, 2) == {1: (1, 5)}
    assert changed(tmp_path, 0, to_epoch=1) == {1: (None, 1), 2: (None, 2)}


def test_fields_that_come_and_go_are_no_change(tmp_path: Path) -> None:
    epoch(
        tmp_path, setter(k1={"a": 1, "b": "x"}, k2=None), s=ps.ValueState("struct<a:int,b:string>")
    )
    later = ps.ValueState("struct<c:array<int>,a:long>")
    epoch(tmp_path, setter(k3={"c": [1], "a": 3}), s=later)
    assert changed(tmp_path, 1) == {3: (None, {"c": [1], "a": 3})}
    epoch(tmp_path, setter(k1={"c": [], "a": 1}), s=later)
    assert changed(tmp_path, 1)[1] == ({"c": None, "a": 1}, {"c": [], "a": 1})


def test_a_type_that_does_not_become_the_other_is_refused(tmp_path: Path) -> None:
    """The state was dropped, and another one has its name."""

    def only_t(store: ps.Store) -> None:
        store.set_current_key(7)
        store["t"].update(7)

    epoch(tmp_path, setter(k1="x"), s=ps.ValueState("string"), t=ps.ValueState("long"))
    epoch(tmp_path, only_t, t=ps.ValueState("long"), u=ps.ValueState("long"))
    epoch(tmp_path, setter(k2=[2]), s=ps.ListState("long"), t=ps.ValueState("long"))
    with pytest.raises(
        SchemaError,
        match=r"^changes: operator 'embedded', state 's' is string in epoch 1 and "
        r"ListState\('long'\) in epoch 3: a state does not change its kind: "
        r"read both epochs by ps.read_state",
    ):
        ps.changes(tmp_path, from_epoch=1)
    assert ps.changes(tmp_path, from_epoch=1, state="t")["k"].to_pylist() == [7]
    assert changed(tmp_path, 2) == {2: (None, [2])}


def test_a_key_changes_by_reading_and_writing_the_state(tmp_path: Path) -> None:
    """As the error says, which names both schemas."""
    checkpoint, savepoint = tmp_path / "checkpoint", tmp_path / "savepoint"
    state = {"s": ps.ValueState("long")}
    epoch(checkpoint, setter(k1=1, k2=2), **state)
    wanted = r"keyed by \(k long\), the job declares \(k string\).*ps.read_state.*ps.write_state"
    with pytest.raises(SchemaError, match=wanted):
        ps.open(checkpoint, key={"k": "string"}, states=state)
    table = ps.read_state(checkpoint)
    table = table.set_column(0, "k", table["k"].cast(pa.string()))
    rows = ps.StateRows(table, {"k": "string"}, state)
    ps.write_state(savepoint, {"embedded": rows}, job="embedded", parallelism=1)
    begun = tmp_path / "begun"
    begin_with(LocalStorage(savepoint), LocalStorage(begun), job="embedded")
    with ps.open(begun, key={"k": "string"}, states=state) as store:
        found = {}
        for key in store:
            store.set_current_key(key)
            found[key] = store["s"].value()
    assert found == {"1": 1, "2": 2}


def test_a_store_has_one_range(tmp_path: Path) -> None:
    """What was written in several would be lost in part."""
    rows = ps.StateRows({"k": [1, 2], "s": [1, 2]}, {"k": "long"}, {"s": ps.ValueState("long")})
    ps.write_state(tmp_path / "written", {"embedded": rows}, parallelism=2)
    begin_with(LocalStorage(tmp_path / "written"), LocalStorage(tmp_path / "s"), job="embedded")
    with pytest.raises(
        InvalidArgumentError, match=r"is in 2 ranges.*write_state with parallelism=1"
    ):
        ps.open(tmp_path / "s", key={"k": "long"}, states={"s": ps.ValueState("long")})
