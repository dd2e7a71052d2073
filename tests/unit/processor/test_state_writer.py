"""State written from tables, and read again."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.manifest import FORMAT_VERSION
from pystate.checkpoint.savepoint import read_savepoint
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import InputSeen, RangeReport
from pystate.epochs.watermarks import Input
from pystate.errors import DeclarationError, NoSpaceError, PystateError
from tests.drawn import drawn

LONG = ps.ValueState("long")


def rows_of(folder: Path, uid: str, **asked: Any) -> list[dict[str, Any]]:
    return sorted(ps.read_state(folder, uid, **asked).to_pylist(), key=str)


class Everything(ps.KeyedProcessFunction):
    """A state of each kind that can be written."""

    n = ps.ValueState("long", default=0, ttl=ps.StateTtl(hours=1))
    at = ps.ValueState("timestamp")
    place = ps.ValueState("struct<x: double, tags: array<string>>")
    seen = ps.ListState("int")
    by = ps.MapState("string", "decimal(9,2)")
    kept = ps.ValueState(object)
    objects = ps.ListState(object)
    lookup = ps.MapState("long", object)
    best = ps.ReducingState("double", max)
    total = ps.AggregatingState(ps.Sum(), "int")


DUMP = st.binary(max_size=4).map(pickle.dumps)
STATES = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-5, 5),
        "at": st.none() | st.datetimes().map(lambda t: t.replace(tzinfo=None)),
        "place": st.none()
        | st.fixed_dictionaries(
            {"x": st.none() | st.floats(-1, 1), "tags": st.none() | st.lists(st.none() | st.text())}
        ),
        "seen": st.none() | st.lists(st.integers(-9, 9), max_size=4),
        "by": st.none() | st.dictionaries(st.text(max_size=2), st.decimals(-9, 9, places=2)),
        "kept": st.none() | DUMP,
        "objects": st.none() | st.lists(DUMP, max_size=3),
        "lookup": st.none() | st.dictionaries(st.integers(0, 9), DUMP, max_size=3),
        "best": st.none() | st.floats(-1, 1),
        "total": st.none() | st.integers(-9, 9),
    }
)
TYPES = {
    "a": pa.string(),
    "b": pa.int32(),
    "n": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
    "place": pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))]),
    "seen": pa.list_(pa.int32()),
    "by": pa.map_(pa.string(), pa.decimal128(9, 2)),
    "kept": pa.binary(),
    "objects": pa.list_(pa.binary()),
    "lookup": pa.map_(pa.int64(), pa.binary()),
    "best": pa.float64(),
    "total": pa.int64(),
}
KEY = st.tuples(st.none() | st.text(max_size=3), st.none() | st.integers(-9, 9))


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row in which what is absent, and the order of entries, do not matter."""
    found = {}
    for name, value in row.items():
        if name in ("by", "lookup"):
            value = sorted(dict(value or ()).items())
        found[name] = value or [] if name in ("seen", "objects") else value
    return found


@drawn(40)
@given(st.dictionaries(KEY, STATES, max_size=12), st.sampled_from([1, 3, 8]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, found: dict[Any, Any], parallelism: int
) -> None:
    folder = tmp_path_factory.mktemp("written") / "savepoint"
    rows = [{"a": a, "b": b, **states} for (a, b), states in found.items()]
    entries = {"by", "lookup"}
    listed = [
        {n: list(v.items()) if n in entries and v is not None else v for n, v in row.items()}
        for row in rows
    ]
    table = pa.Table.from_pylist(listed, pa.schema(list(TYPES.items())))
    written = ps.StateRows(table, {"a": "string", "b": "int"}, Everything)
    ps.write_state(folder, {"all": written}, parallelism=parallelism)
    read = ps.read_state(folder, "all", defaults=False)
    assert read.schema.names == list(TYPES)
    as_read = [plain(row) for row in read.to_pylist()]
    wanted = [plain(row) for row in table.to_pylist()]
    wanted = [row for row in wanted if any(v not in (None, []) for v in list(row.values())[2:])]
    assert sorted(as_read, key=str) == sorted(wanted, key=str)
    # A function sees a default where nothing is stored, and no default is stored by reading it.
    seen = ps.read_state(folder, "all")
    assert seen.column("n").combine_chunks() == pc.fill_null(read.column("n"), 0).combine_chunks()
    again = folder.with_name("again")
    ps.write_state(again, {"all": ps.StateRows(seen, {"a": "string", "b": "int"}, Everything)})
    for row in wanted:
        others = [value for name, value in row.items() if name not in ("a", "b", "n")]
        if row["n"] == 0 and any(value not in (None, []) for value in others):
            row["n"] = None
    kept = [plain(row) for row in rows_of(again, "all", defaults=False)]
    assert sorted(kept, key=str) == sorted(wanted, key=str)


def test_timers_and_namespaces(tmp_path: Path) -> None:
    class Windows(ps.KeyedProcessFunction):
        namespace = "timestamp"
        n = LONG

        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any: ...

    when = pa.array([0, 60_000_000, 0], pa.timestamp("us", "UTC"))
    rows = pa.table({"k": [1, 1, 2], "namespace": when, "n": [5, 6, 7]})
    timers = pa.table(
        {
            "k": [1, 1, 3],
            "namespace": when,
            "timer_domain": ["event", "processing", "event"],
            "timer_ms": [70, 80, 90],
        }
    )
    written = ps.StateRows(rows, {"k": "long"}, Windows, "timestamp", timers, 65)
    ps.write_state(tmp_path / "s", {"w": written}, max_parallelism=16, parallelism=3)
    assert rows_of(tmp_path / "s", "w") == sorted(rows.to_pylist(), key=str)
    assert rows_of(tmp_path / "s", "w", timers=True) == sorted(timers.to_pylist(), key=str)
    assert set(ps.state_metadata(tmp_path / "s")["max_parallelism"].to_pylist()) == {16}


def test_one_operator_of_a_savepoint_is_replaced(tmp_path: Path) -> None:
    key = {"k": "long"}
    first = {
        uid: ps.StateRows({"k": [1, 2], "n": [10, 20]}, key, {"n": LONG}, None, None, 99)
        for uid in ("one", "two")
    }
    ps.write_state(tmp_path / "first", first, max_parallelism=64, job="mine")
    before = sorted((tmp_path / "first").rglob("*"))
    table = ps.read_state(tmp_path / "first", "two")
    other = {"k": [f"key-{k}" for k in table["k"].to_pylist()], "n": table["k"]}
    second = {"two": ps.StateRows(other, {"k": "string"}, {"n": LONG})}
    made = ps.write_state(tmp_path / "second", second, base=tmp_path / "first")
    assert made.job == "mine" and read_savepoint(LocalStorage(tmp_path / "second")) == made
    assert rows_of(tmp_path / "second", "one") == rows_of(tmp_path / "first", "one")
    assert rows_of(tmp_path / "second", "two") == [{"k": "key-1", "n": 1}, {"k": "key-2", "n": 2}]
    assert sorted((tmp_path / "first").rglob("*")) == before
    shared = [
        path for path in (tmp_path / "second/state").rglob("*.delta") if path.stat().st_nlink == 2
    ]
    assert shared and all(path.parts[-3] == "one" for path in shared)


def test_rows_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"k": [1, 2], "n": [3, 4]})
    ps.write_state(tmp_path / "s", {"c": ps.StateRows(frame, {"k": "long"}, {"n": LONG})})
    assert rows_of(tmp_path / "s", "c") == frame.to_dict("records")


def _rows(**columns: Any) -> ps.StateRows:
    states = {"n": LONG, "l": ps.ListState("int")}
    given: dict[str, Any] = {"k": [1], "n": [1], "l": [[1]], **columns}
    timers = given.pop("timers", None)
    return ps.StateRows(pa.table(given), {"k": "long"}, states, None, timers)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (_rows(k=[7, 7], n=[1, 2], l=[[], []]), r"'c': the key \{'k': 7\} stands in two rows"),
        (_rows(k=[None, None], n=[1, 2], l=[[], []]), r"the key \{'k': None\} stands in two rows"),
        (_rows(m=[1]), "nothing declares the column 'm'"),
        (_rows(n=["x"]), "state 'n' is long"),
        (_rows(k=["x"]), "key column 'k' is long"),
        (_rows(l=[[None]]), "'l'"),
        (_rows(l=["x"]), "state 'l': a column of string is not list<item: int32>"),
        (_rows(timers=pa.table({"k": [1]})), "timers: there is no column 'timer_domain'"),
        (
            _rows(timers=pa.table({"k": [1], "timer_domain": ["e"], "timer_ms": [1]})),
            "timer_domain 'e' and timer_ms 1: they are 'event' or",
        ),
        (ps.StateRows({"k": [1]}, {"k": "long"}, {"n": LONG}), "there is no column 'n'"),
        (ps.StateRows(5, {"k": "long"}, {"n": LONG}), "rows are a pyarrow.Table"),
        (ps.StateRows({}, {"k": "long"}, {"n": "long"}), "expected a declaration, not 'long'"),
        (
            ps.StateRows(
                {"k": [1], "m": [1.0]}, {"k": "long"}, {"m": ps.AggregatingState(ps.Mean(), "long")}
            ),
            "does not follow from its result",
        ),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path: Path, rows: ps.StateRows, message: str) -> None:
    with pytest.raises(PystateError, match=message):
        ps.write_state(tmp_path / "s", {"c": rows})
    assert not [path for path in (tmp_path / "s").rglob("*") if path.is_file()]


def test_an_operator_is_left_out(tmp_path: Path) -> None:
    rows = ps.StateRows({"k": [1], "n": [1]}, {"k": "long"}, {"n": LONG})
    ps.write_state(tmp_path / "base", {"kept": rows, "gone": rows, "old": rows})
    base = {"base": tmp_path / "base"}
    ps.write_state(tmp_path / "less", {"new": rows}, remove=["gone", "old"], **base)
    assert [o.uid for o in ps.describe(tmp_path / "less").operators] == ["kept", "new"]
    assert ps.verify(tmp_path / "less").ok and not list(tmp_path.glob("less/state/gone*"))
    for remove, message in (
        (["other"], r"has no operator 'other' to remove; it has 'gone', 'kept', 'old'"),
        (["new"], r"'new' is to be written and to be removed"),
        ("gone", r"remove is a list of uids, not 'gone'"),
        ([1], r"uid"),
    ):
        with pytest.raises(PystateError, match=message):
            ps.write_state(tmp_path / "x", {"new": rows}, remove=remove, **base)  # type: ignore[arg-type]
    with pytest.raises(PystateError, match="and there is no base"):
        ps.write_state(tmp_path / "x", {"new": rows}, remove=["gone"])
    assert not list((tmp_path / "x").rglob("*.*"))


def test_wrong_arguments(tmp_path: Path) -> None:
    good = {"c": ps.StateRows({"k": [1], "n": [1]}, {"k": "long"}, {"n": LONG})}
    ps.write_state(tmp_path / "s", good)
    with pytest.raises(PystateError, match="holds a savepoint already"):
        ps.write_state(tmp_path / "s", good)
    with pytest.raises(PystateError, match="has max_parallelism=128, not 64"):
        ps.write_state(tmp_path / "t", good, base=tmp_path / "s", max_parallelism=64)
    with pytest.raises(PystateError, match="is not a savepoint"):
        ps.write_state(tmp_path / "t", good, base=tmp_path / "nothing")
    with pytest.raises(PystateError, match="operator 'c' is a StateRows"):
        ps.write_state(tmp_path / "t", {"c": {}})  # type: ignore[dict-item]
    with pytest.raises(PystateError, match="parallelism is 0"):
        ps.write_state(tmp_path / "t", good, parallelism=0)
    with pytest.raises(DeclarationError):
        ps.write_state(tmp_path / "t", {"c": ps.StateRows({}, {"k": "map<int,int>"}, {"n": LONG})})
    assert rows_of(tmp_path / "s", "c") == [{"k": 1, "n": 1}]


@pytest.mark.parametrize("last", ["job.json", "savepoint.json", "manifests/00000001.manifest"])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    real = LocalStorage.publish

    def publish(self: LocalStorage, path: str, data: bytes) -> None:
        if path == last:
            raise NoSpaceError(28, "No space left on device")
        real(self, path, data)

    monkeypatch.setattr(LocalStorage, "publish", publish)
    good = {"c": ps.StateRows({"k": [1], "n": [1]}, {"k": "long"}, {"n": LONG})}
    with pytest.raises(NoSpaceError):
        ps.write_state(tmp_path / "s", good)
    assert not [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    monkeypatch.undo()
    ps.write_state(tmp_path / "s", good)
    assert rows_of(tmp_path / "s", "c") == [{"k": 1, "n": 1}]


def test_event_time_is_carried_over_or_begins_anew(tmp_path: Path) -> None:
    key, states = {"k": "bigint"}, {"n": LONG}

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        for uid in ("kept", "replaced", "reset"):
            given = Input(event_time=True, allowed_delay_ms=10)
            ranges = epoch.declare(
                uid, key_schema=(("k", "bigint"),), state_schema=(("n", "bigint"),), inputs=(given,)
            )
            for state in ranges:
                saw = (InputSeen(rows=1, max_event_time_ms=100),)
                epoch.report(
                    RangeReport(
                        uid, state.index, epoch.evaluation_id, state.id, state.id, None, inputs=saw
                    )
                )
        return ()

    with Coordinator(LocalStorage(tmp_path / "c"), job="job", parallelism=2) as coordinator:
        coordinator.run(evaluate)
    ps.savepoint(tmp_path / "c", tmp_path / "base")
    rows = {"k": [1], "n": [2]}
    ps.write_state(
        tmp_path / "written",
        {
            "replaced": ps.StateRows(rows, key, states),
            "reset": ps.StateRows(rows, key, states, max_event_time_ms=70),
            "new": ps.StateRows(rows, key, states, max_event_time_ms=-5),
        },
        base=tmp_path / "base",
    )
    found = ps.describe(tmp_path / "written")
    assert {op.uid: (op.max_event_time_ms, op.watermark_ms) for op in found.operators} == {
        "kept": (100, 90),
        "replaced": (100, 90),
        "reset": (70, None),
        "new": (-5, None),
    }
    assert (found.watermark_ms, found.format_version) == (90, FORMAT_VERSION)
