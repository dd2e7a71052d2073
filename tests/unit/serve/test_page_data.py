"""What the page is told of a checkpoint, and how values and keys are written for it."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import InUseError, InvalidArgumentError, WrongTypeError
from pystate.processor.epochs import NotHeldError
from pystate.processor.scan import StateScan
from pystate.types.keys import parse_key

pytest.importorskip("starlette", reason="the package starlette is not installed")

from pystate.serve import page_checks, page_weights
from pystate.serve.page_checks import Checks
from pystate.serve.page_data import JobView
from pystate.serve.page_values import key_texts, shown_value, typed_key

TYPES = (
    *("string", "binary", "boolean", "byte", "short", "int", "long", "float", "double"),
    *("decimal(10,2)", "date", "timestamp", "timestamp_ntz"),
)
STATES = {
    "clicks": ps.ValueState("long", default=0),
    "pages": ps.ListState("string"),
    "seen": ps.MapState("string", "long"),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ps.Store]:
    with ps.open(tmp_path / "visits", key={"user": "string"}, states=STATES) as store:
        for n, users in enumerate((range(400), range(10), range(3), [1, 500])):
            keys = store.keys([f"user {i}" for i in users])
            store["clicks"].add(keys, n + 1)
            store["pages"].append(keys, ["/home"] * len(users))
            store.checkpoint()
        yield store


@pytest.fixture
def view(store: ps.Store, tmp_path: Path) -> JobView:
    return JobView(tmp_path / "visits", "visits")


# ---- metadata ------------------------------------------------------------------------------------


def test_overview_names_operators_and_epochs(view: JobView) -> None:
    told = view.overview()
    assert (told["job"], told["kind"], told["epoch"]) == ("visits", "checkpoint", 4)
    assert told["epochs"] == [2, 3, 4]
    [operator] = told["operators"]
    assert operator["uid"] == "embedded"
    assert operator["key"] == [{"name": "user", "type": "string"}]
    assert [state["name"] for state in operator["states"]] == [*STATES]
    assert operator["keys"] == told["keys"] == 401


def test_epochs_are_lists_of_figures(view: JobView, store: ps.Store) -> None:
    for told in (view.epochs(), view.epochs("embedded")):
        figures = told["figures"]
        assert figures["epoch"] == [1, 2, 3, 4]
        assert figures["rows_changed"] == [400, 10, 3, 2]
        assert {len(values) for values in figures.values()} == {4}
    assert view.epochs(last=2)["figures"]["epoch"] == [3, 4]
    store["clicks"].add(store.keys(["user 1"]), 1)
    store.checkpoint()
    assert view.epochs()["figures"]["epoch"] == [1, 2, 3, 4, 5]


def test_epochs_beyond_the_newest_file_are_found_once(tmp_path: Path) -> None:
    with ps.open(tmp_path / "c", key="long", states={"n": ps.ValueState("long")}) as store:
        for n in range(150):
            store["n"].update_all(store.keys([n]), [n])
            store.checkpoint()
        view = JobView(tmp_path / "c")
        assert view.epochs(last=500)["figures"]["epoch"] == [*range(1, 151)]


def test_an_unknown_operator_is_named(view: JobView) -> None:
    for ask in (view.epochs, view.files, view.heat, view.heaviest, view.changed):
        with pytest.raises(NotHeldError, match="no operator 'other'"):
            ask("other")


def test_files_are_those_of_a_range(view: JobView) -> None:
    told = view.files("embedded")
    [chain] = told["ranges"]
    assert chain["files"] == len(told["files"]) and told["range"] == 0
    assert [file["is_new"] for file in told["files"]] == [
        file["epoch"] == 4 for file in told["files"]
    ]
    with pytest.raises(NotHeldError, match="no range 9"):
        view.files("embedded", index=9)


def test_a_checkpoint_without_an_epoch_is_empty(tmp_path: Path) -> None:
    with ps.open(tmp_path / "c", key="long", states={"n": ps.ValueState("long")}):
        view = JobView(tmp_path / "c")
        assert view.pulse()["epoch"] is None
        assert view.overview()["operators"] == [] and view.epochs()["figures"]["epoch"] == []


def test_a_savepoint_is_shown(store: ps.Store, tmp_path: Path) -> None:
    ps.savepoint(tmp_path / "visits", tmp_path / "saved")
    view = JobView(tmp_path / "saved", "saved")
    told = view.overview()
    assert (told["kind"], told["epochs"], told["keys"]) == ("savepoint", [4], None)
    assert view.key("embedded", ["user 1"])["found"]


def test_messages_do_not_say_where(view: JobView, tmp_path: Path) -> None:
    said = view.without_place(f"checkpoint {tmp_path}/visits: {tmp_path}/visits/state/x is lost")
    assert said == "checkpoint 'visits': state/x is lost"
    assert str(tmp_path) not in json.dumps([view.overview(), view.files("embedded")])


# ---- keys ----------------------------------------------------------------------------------------


def test_a_key_has_all_of_its_state_at_any_epoch(view: JobView) -> None:
    told = view.key("embedded", ["user 1"])
    [row] = told["rows"]
    assert row["values"] == [
        10,
        {"items": ["/home"] * 4, "more": 0},
        {"entries": [], "more": 0},
    ]
    assert view.key("embedded", ["user 1"], epoch=3)["rows"][0]["values"][0] == 6
    assert not view.key("embedded", ["nobody"])["found"]
    with pytest.raises(NotHeldError, match="epoch 1"):
        view.key("embedded", ["user 1"], epoch=1)
    with pytest.raises(WrongTypeError, match="1 columns"):
        view.key("embedded", ["a", "b"])


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", " a ", " a "),
        ("string", "", ""),
        ("long", "-9223372036854775808", -(1 << 63)),
        ("int", " 7 ", 7),
        ("boolean", "true", True),
        ("double", "1e300", 1e300),
        ("decimal(10,2)", "1.50", Decimal("1.50")),
        ("binary", "00ff", b"\0\xff"),
        ("date", "2026-11-28", dt.date(2026, 11, 28)),
        ("timestamp_ntz", "2026-11-28 09:30:00", dt.datetime(2026, 11, 28, 9, 30)),
        (
            "timestamp",
            "2026-11-28 09:30:00+01:00",
            dt.datetime(2026, 11, 28, 8, 30, tzinfo=dt.timezone.utc),
        ),
        (
            "timestamp",
            "2026-11-28 09:30:00",
            dt.datetime(2026, 11, 28, 9, 30, tzinfo=dt.timezone.utc),
        ),
        ("long", None, None),
    ],
)
def test_keys_are_typed_as_text(type_: str, text: str | None, value: Any) -> None:
    key = parse_key(type_)
    [column] = typed_key(key, [text])
    assert column.to_pylist() == [value]
    # What the page offers to click on is what it takes.
    rows = pa.table([column], names=["key"])
    [[again]] = key_texts(key, rows)
    assert typed_key(key, [again])[0].equals(column)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("long", "seven"),
        ("int", "3000000000"),
        ("boolean", "maybe"),
        ("decimal(3,1)", "1000.5"),
        ("binary", "xyz"),
        ("date", "today"),
        ("timestamp", "9:30"),
        ("long", 7),
    ],
)
def test_text_of_another_type_is_refused(type_: str, text: Any) -> None:
    with pytest.raises(WrongTypeError, match="key column 'key'"):
        typed_key(parse_key(type_), [text])


@given(st.sampled_from(TYPES), st.text() | st.from_regex(r"[-+0-9:. eE]{1,30}", fullmatch=True))
def test_any_text_is_a_key_or_refused(type_: str, text: str) -> None:
    key = parse_key(type_)
    try:
        [column] = typed_key(key, [text])
    except WrongTypeError as error:
        assert "\n" not in str(error)
        return
    assert column.type == key[0][1].arrow and len(column) == 1
    [[again]] = key_texts(key, pa.table([column], names=["key"]))
    assert typed_key(key, [again])[0].equals(column) or text.strip().lower().endswith("nan")


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "type_", "shown"),
    [
        (None, pa.int64(), None),
        (1 << 53, pa.int64(), 1 << 53),
        ((1 << 53) + 1, pa.int64(), {"number": "9007199254740993"}),
        (1.5, pa.float64(), 1.5),
        (float("nan"), pa.float64(), {"number": "nan"}),
        (Decimal("1.50"), pa.decimal128(5, 2), {"number": "1.50"}),
        (b"\0\xff", pa.binary(), {"bytes": "00ff", "size": 2}),
        (dt.date(2026, 11, 28), pa.date32(), {"time": "2026-11-28"}),
        ([1, None], pa.list_(pa.int64()), {"items": [1, None], "more": 0}),
        ({"a": 1}, pa.struct([("a", pa.int64())]), {"fields": [["a", 1]]}),
        ("2", pa.dictionary(pa.int8(), pa.string()), "2"),
        (dt.timedelta(seconds=1), pa.duration("us"), "0:00:01"),
        (dt.time(9, 30), pa.time64("us"), {"time": "09:30:00.000000"}),
        ([1, 2], pa.list_(pa.int64(), 2), {"items": [1, 2], "more": 0}),
        ([("k", 2)], pa.map_(pa.string(), pa.int64()), {"entries": [["k", 2]], "more": 0}),
    ],
)
def test_values_are_plain_json(value: Any, type_: pa.DataType, shown: Any) -> None:
    told = shown_value(pa.scalar(value, type_))
    assert told == shown
    json.dumps(told, allow_nan=False)


def test_large_values_are_cut() -> None:
    items = shown_value(pa.scalar([*range(1_000_000)]))
    assert len(items["items"]) == 100 and items["more"] == 999_900
    text = shown_value(pa.scalar("x" * 10_000))
    assert text == {"text": "x" * 2000, "more": 8000}
    data = shown_value(pa.scalar(b"\1" * 10_000))
    assert data == {"bytes": "01" * 256, "size": 10_000}
    deep: Any = 1
    for _ in range(50):
        deep = [deep] * 2 if deep == 1 else [deep]
    assert len(json.dumps(shown_value(pa.scalar(deep)))) < 1000


# ---- weights -------------------------------------------------------------------------------------


def test_rows_weigh_what_their_values_take() -> None:
    table = pa.table(
        {
            "a": pa.array([1, 2, None], pa.int64()),
            "b": ["x" * 10, None, ""],
            "c": pa.array([["ab", "c"], [], None], pa.list_(pa.string())),
            "d": pa.array([[("k", 1)], [], []], pa.map_(pa.string(), pa.int32())),
            "e": pa.array(
                [{"x": 1, "y": "zz"}] * 3, pa.struct([("x", pa.int8()), ("y", pa.string())])
            ),
        }
    )
    weigh = {
        name: page_weights.row_bytes(table[name].chunk(0)).tolist() for name in table.schema.names
    }
    assert weigh == {
        "a": [8, 8, 8],
        "b": [10, 0, 0],
        "c": [3, 0, 0],
        "d": [5, 0, 0],
        "e": [3, 3, 3],
    }
    sliced = table["c"].chunk(0).slice(1, 2)
    assert page_weights.row_bytes(sliced).tolist() == [0, 0]


def test_key_groups_are_counted(view: JobView, tmp_path: Path) -> None:
    told = view.heat("embedded")
    assert told["counted"] == "rows" and told["key_groups"] == len(told["rows"]) == 128
    assert sum(told["rows"]) == 401
    users = ps.read_state(tmp_path / "visits")["user"]
    groups = [ps.key_group(int(h), 128) for h in ps.hash_keys([users.combine_chunks()])]
    assert told["rows"] == np.bincount(groups, minlength=128).tolist()
    assert told["skew"]["rows"] == round(max(told["rows"]) / (401 / 128), 2)
    assert view.heat("embedded") is told


def test_key_groups_of_large_state_are_weighed_by_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ps.open(tmp_path / "c", key="long", states={"s": ps.ValueState("string")}) as store:
        for count in (200_000, 20_000):
            keys = np.arange(count)
            store["s"].update_all(store.keys(keys), ["x" * 40] * len(keys))
            store.checkpoint()
    scan = StateScan.of(JobView(tmp_path / "c").storage)
    exact = page_weights._counted(scan)
    monkeypatch.setattr(page_weights, "SMALL_BYTES", 1 << 16)
    about = page_weights.weights(scan)
    assert exact.is_exact and not about.is_exact
    # Keys that several files have count in each.
    rows = sum(ref.rows for ref in scan.operator.files)
    assert about.rows.sum() == pytest.approx(rows) and exact.rows.sum() == 200_000
    assert (about.rows > 0).all() and (about.size_bytes > 0).all()
    heavy = page_weights.heaviest_keys(scan)
    assert heavy["of"] == "sample" and 0 < heavy["rows_read"] < 200_000


def test_the_heaviest_keys_come_first(view: JobView, store: ps.Store) -> None:
    store.set_current_key("user 77")
    store["pages"].add("x" * 5000)
    store.set_current_key("user 78")
    store["pages"].add("x" * 9000)
    store.checkpoint()
    told = view.heaviest("embedded")
    assert [row["key"] for row in told["keys"][:2]] == [["user 78"], ["user 77"]]
    assert told["of"] == "all" and told["rows_read"] == 401 and len(told["keys"]) == 20


# ---- changes and checks --------------------------------------------------------------------------


def test_changes_are_those_of_an_epoch(view: JobView, store: ps.Store) -> None:
    told = view.changed("embedded")
    assert (told["before"], told["epoch"], told["more"]) == (3, 4, False)
    changes = {row["key"][0]: row for row in told["changes"]}
    assert {key: row["change"] for key, row in changes.items()} == {
        "user 1": "put",
        "user 500": "new",
    }
    assert changes["user 1"]["before"]["fields"][0] == ["clicks", 6]
    assert changes["user 1"]["after"]["fields"][0] == ["clicks", 10]
    store.set_current_key("user 5")
    store["clicks"].clear()
    store["pages"].clear()
    store.checkpoint()
    assert [row["change"] for row in view.changed("embedded")["changes"]] == ["delete"]
    with pytest.raises(NotHeldError, match="epoch 2, before 3, is not retained"):
        view.changed("embedded", epoch=3)


def test_many_changes_are_cut(view: JobView, store: ps.Store) -> None:
    keys = store.keys([f"user {i}" for i in range(1000)])
    store["clicks"].add(keys, 1)
    store.checkpoint()
    told = view.changed("embedded")
    assert len(told["changes"]) == 200 and told["more"] and told["rows_changed"] == 1000


def ended(checks: Checks, view: JobView) -> dict[str, Any]:
    assert checks._thread is not None
    checks._thread.join()
    return checks.progress(view)


def test_a_check_runs_beside(view: JobView, tmp_path: Path) -> None:
    checks = Checks()
    assert checks.progress(view) == {"state": "none"}
    checks.begin(view)
    told = ended(checks, view)
    assert told["state"] == "done" and told["result"]["ok"]
    assert told["read_bytes"] == told["all_bytes"] > 0
    newest = next((tmp_path / "visits/state").rglob("00000004-*"))
    newest.write_bytes(newest.read_bytes()[:-10])
    checks.begin(view)
    result = ended(checks, view)["result"]
    assert not result["ok"] and 4 not in result["good_epochs"]
    [finding] = result["findings"]
    assert (finding["kind"], finding["uid"], finding["is_error"]) == ("truncated", "embedded", True)


def test_one_checkpoint_is_checked_at_a_time(
    view: JobView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, going_on = threading.Event(), threading.Event()

    def slow(location: Any, *, jobs: int, progress: Any) -> Any:
        progress(1, 3)
        begun.set()
        going_on.wait()
        progress(2, 3)

    monkeypatch.setattr(page_checks, "verify", slow)
    checks, other = Checks(), JobView(tmp_path / "visits", "other")
    checks.begin(view)
    begun.wait()
    told = checks.progress(view)
    assert (told["state"], told["read_bytes"], told["all_bytes"]) == ("running", 1, 3)
    with pytest.raises(InUseError, match="'visits' is being checked"):
        checks.begin(other)
    checks.stop(view)
    going_on.set()
    checks.close()
    assert checks.progress(view)["state"] == "stopped"


def test_nothing_is_written(view: JobView, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    for answer in (
        view.pulse,
        view.overview,
        view.epochs,
        lambda: view.files("embedded"),
        lambda: view.heat("embedded"),
        lambda: view.heaviest("embedded"),
        lambda: view.changed("embedded"),
        lambda: view.key("embedded", ["user 1"]),
    ):
        json.dumps(answer(), allow_nan=False)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="holds no checkpoint"):
        JobView(tmp_path)
