"""Declared defaults: read where nothing is stored, as a function sees it, and never stored."""

from __future__ import annotations

import datetime
import json
import math
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.job_file import read_job
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.processor.state_writer import StateRows

UTC = datetime.timezone.utc
#: A type, a default, and what a row has for it.
DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("long", 5, 5),
    ("byte", 0, 0),
    ("double", 0.5, 0.5),
    ("double", math.inf, math.inf),
    ("float", 1, 1.0),
    ("boolean", False, False),
    ("string", "new", "new"),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("decimal(9,2)", Decimal("1.50"), Decimal("1.50")),
    ("date", datetime.date(2026, 1, 2), datetime.date(2026, 1, 2)),
    (
        "timestamp",
        datetime.datetime(2026, 1, 2, 3, tzinfo=UTC),
        datetime.datetime(2026, 1, 2, 3, tzinfo=UTC),
    ),
    (
        "timestamp_ntz",
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    ),
    ("struct<a:int,b:array<string>>", {"a": 1}, {"a": 1, "b": None}),
    ("array<int>", [1, None], [1, None]),
    ("map<string,long>", {"x": 1}, [("x", 1)]),
    (object, {"any": 1}, pickle.dumps({"any": 1}, protocol=5)),
]


def some(folder: Path, states: dict[str, Any], *, also: bool = True) -> Path:
    """A store with a key that has no value but `other`, and one that has `n` as well."""
    states = {**states, "other": ps.ListState("long")}
    with ps.open(folder, key="string", states=states) as store:
        for key in ("a", "b") if also else ("a",):
            store.set_current_key(key)
            store["other"].add(1)
        store.checkpoint()
    return folder


@pytest.mark.parametrize(("type_", "default", "seen"), DEFAULTS, ids=lambda case: str(case)[:20])
def test_each_type(type_: Any, default: Any, seen: Any, tmp_path: Path) -> None:
    folder = some(tmp_path / "store", {"n": ps.ValueState(type_, default=default)}, also=False)
    [row] = ps.read_state(folder).to_pylist()
    assert row == {"key": "a", "n": seen, "other": [1]}
    assert ps.read_state(folder, defaults=False).to_pylist() == [{**row, "n": None}]
    assert ps.read_state(folder, state="n").num_rows == 0  # the key does not have it
    made = ps.write_state(tmp_path / "made", {"embedded": StateRows.read(folder)}, base=None)
    assert ps.read_state(made.location, defaults=False).to_pylist() == [{**row, "n": None}]
    if type_ is not object:
        assert ps.read_state(made.location).to_pylist() == [row]


def test_nan(tmp_path: Path) -> None:
    folder = some(tmp_path / "store", {"n": ps.ValueState("double", default=math.nan)})
    assert all(math.isnan(row["n"]) for row in ps.read_state(folder).to_pylist())


def test_counts(tmp_path: Path) -> None:
    states = {"c": ps.AggregatingState(ps.Count()), "s": ps.AggregatingState(ps.Sum(), "long")}
    folder = some(tmp_path / "store", states, also=False)
    with ps.open(folder, key="string", states={**states, "other": ps.ListState("long")}) as store:
        store.set_current_key("a")
        seen = {"c": store["c"].get(), "s": store["s"].get()}
    assert ps.read_state(folder).to_pylist() == [{"key": "a", **seen, "other": [1]}]
    assert seen == {"c": 0, "s": None}


def test_rows_of_the_own_tables_and_of_merged_files_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = some(tmp_path / "store", {"n": ps.ValueState("long", default=3)})
    merged = ps.read_state(folder).to_pylist()
    monkeypatch.setattr("pystate.processor.scan.can_merge", lambda key, states: False)
    assert ps.read_state(folder).to_pylist() == merged
    assert [row["n"] for row in merged] == [3, 3]


def test_what_is_read_and_written_stores_no_default(tmp_path: Path) -> None:
    states = {"n": ps.ValueState("long", default=0), "m": ps.ListState("long")}
    table = pa.table({"key": ["a", "b", "c"], "n": [None, 7, 0], "m": [[1], None, None]})
    for rows, name in ((table, "first"), (None, "second")):
        if rows is None:
            rows = ps.read_state(tmp_path / "first")
            rows = rows.set_column(0, "key", pa.compute.utf8_upper(rows["key"])).sort_by("key")
        ps.write_state(tmp_path / name, {"op": ps.StateRows(rows, {"key": "string"}, states)})
    found = ps.read_state(tmp_path / "second", defaults=False).sort_by("key").to_pylist()
    # `c` exists by nothing but a stored 0, which therefore stays.
    assert [(row["key"], row["n"]) for row in found] == [("A", None), ("B", 7), ("C", 0)]
    seen = ps.read_state(tmp_path / "second").sort_by("key")["n"].to_pylist()
    assert seen == [0, 7, 0]


def test_a_computed_column_is_stored_as_it_is(tmp_path: Path) -> None:
    states = {"n": ps.ValueState("long", default=0), "m": ps.ListState("long")}
    table = pa.table({"key": ["a"], "n": pa.array([None], pa.int64()), "m": [[1]]})
    ps.write_state(tmp_path / "one", {"op": ps.StateRows(table, {"key": "string"}, states)})
    rows = ps.read_state(tmp_path / "one")
    rows = rows.set_column(1, "n", pa.compute.multiply(rows["n"], 2))
    ps.write_state(tmp_path / "two", {"op": ps.StateRows(rows, {"key": "string"}, states)})
    assert ps.read_state(tmp_path / "two", defaults=False)["n"].to_pylist() == [0]


def test_each_epoch_has_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    for default in (1, 2):
        states = {"n": ps.ValueState("long", default=default), "other": ps.ListState("long")}
        with ps.open(folder, key="string", states=states, retained=5) as store:
            store.set_current_key("a")
            store["other"].add(default)
            store.checkpoint()
    assert [ps.read_state(folder, epoch=e)["n"].to_pylist() for e in (1, 2)] == [[1], [2]]
    job = read_job(LocalStorage(folder))
    assert job is not None and job.operators[0].defaults == (("n", "2"),)
    [change] = ps.changes(folder, from_epoch=1, to_epoch=2).to_pylist()
    assert change["before"] == {"n": 2, "other": [1]}  # both sides have the newer epoch's
    assert change["after"] == {"n": 2, "other": [1, 2]}


def test_changes_are_those_that_a_function_sees(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    states = {"n": ps.ValueState("long", default=0), "other": ps.ListState("long")}
    with ps.open(folder, key="string", states=states, retained=5) as store:
        for key in ("a", "b"):
            store.set_current_key(key)
            store["n"].update(0)
            store["other"].add(1)
        store.set_current_key("c")
        store["n"].update(0)
        store.checkpoint()
        for key in ("a", "c"):
            store.set_current_key(key)
            store["n"].clear()
        store.checkpoint()
    found = ps.changes(folder, from_epoch=1).to_pylist()
    assert found == [
        {"key": "c", "change": "delete", "before": {"n": 0, "other": []}, "after": None}
    ]
    found = ps.changes(folder, from_epoch=1, state="n").sort_by("key").to_pylist()
    assert [(row["key"], row["before"], row["after"]) for row in found] == [
        ("a", 0, None),
        ("c", 0, None),
    ]


def test_savepoints_keep_them(tmp_path: Path) -> None:
    folder = some(tmp_path / "store", {"n": ps.ValueState("long", default=4)})
    ps.savepoint(folder, tmp_path / "savepoint")
    ps.rescale(tmp_path / "savepoint", tmp_path / "wide", max_parallelism=256)
    for made in ("savepoint", "wide"):
        assert ps.read_state(tmp_path / made)["n"].to_pylist() == [4, 4]


def test_an_object_keeps_its_default_when_its_rows_are_rewritten(tmp_path: Path) -> None:
    folder = some(tmp_path / "store", {"n": ps.ValueState(object, default=[1])}, also=False)
    ps.savepoint(folder, tmp_path / "base")
    rows = StateRows.read(folder)
    ps.write_state(tmp_path / "made", {"embedded": rows}, base=tmp_path / "base")
    assert ps.read_state(tmp_path / "made")["n"].to_pylist() == [pickle.dumps([1], protocol=5)]


def test_what_metadata_does_not_keep(tmp_path: Path) -> None:
    states = {
        "long": ps.ValueState("string", default="x" * 70_000),
        "local": ps.ValueState(object, default=lambda: 0),
        "none": ps.ValueState("string"),
    }
    folder = some(tmp_path / "store", states, also=False)
    [row] = ps.read_state(folder).to_pylist()
    assert row == {"key": "a", "long": None, "local": None, "none": None, "other": [1]}
    head = read_head(LocalStorage(folder))
    assert head is not None and head.operators[0].defaults == ()


def test_export(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder = some(tmp_path / "store", {"n": ps.ValueState("long", default=4)})
    ps.export_state(folder, tmp_path / "made")
    assert pq.read_table(tmp_path / "made")["n"].to_pylist() == [4, 4]


def test_objects_are_kept_as_the_digits_of_their_pickle() -> None:
    stored = ps.ValueState(object, default=[1]).stored_default()
    assert stored == json.dumps(pickle.dumps([1], protocol=5).hex())
    with_it = ps.ValueState(object).default_column(stored, "n")
    assert with_it.to_pylist() == [pickle.dumps([1], protocol=5)]
