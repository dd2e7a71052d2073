"""Readers that stay open, SQL, servers and the page: what has expired at an epoch is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import pystate as ps
from pystate.processor.lookup import StateLookup
from pystate.processor.selection import EVERYTHING, Selection
from pystate.query.connection import View
from pystate.query.entries import _is_changed
from pystate.query.operator_reader import OperatorReader
from pystate.serve.page_data import JobView
from pystate.state.declaration import State
from tests.serving import served
from tests.unit.processor.test_expired import SECOND, Clock, checkpoint

UID = "embedded"
HOMES = [{}, {"home": "disk", "limit_bytes": 64 << 20}]
LENIENT: Literal["return_if_not_cleaned_up"] = "return_if_not_cleaned_up"


def states(ttl: ps.StateTtl = SECOND) -> dict[str, State[Any]]:
    return {
        "v": ps.ValueState("long", ttl=ttl, default=-1),
        "l": ps.ListState("long", ttl=ttl),
        "m": ps.MapState("long", "long", ttl=ttl),
        "most": ps.ReducingState("long", max, ttl=ttl),
        "n": ps.ValueState("long"),
    }


def put(store: ps.Store, key: int, value: int) -> None:
    store.set_current_key(key)
    store["v"].update(value)
    store["l"].add(value)
    store["m"].put(value, value)
    store["most"].add(value)


@pytest.fixture(params=HOMES, ids=["heap", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Epochs at 1000, 1900 and 2500, of which none has removed anything."""
    clock = Clock()
    given: Any = {"key": "long", "states": states(), "clock": clock, "retained": 9}
    with ps.open(tmp_path / "s", **given, **request.param) as store:
        put(store, 1, 1)
        store["n"].update(1)
        put(store, 2, 2)
        checkpoint(store, clock, 1900)
        store.set_current_key(1)
        store["l"].add(10)
        store["m"].put(10, 10)
        put(store, 3, 3)
        checkpoint(store, clock, 2500)
        store.set_current_key(4)
        store["n"].update(4)
        checkpoint(store, clock, 9000)
        yield tmp_path / "s"


NOTHING = {"v": None, "l": None, "m": None, "most": None, "n": None}
ONE = {"v": -1, "l": [10], "m": [(10, 10)], "most": None, "n": 1}
THREE = {"v": 3, "l": [3], "m": [(3, 3)], "most": 3, "n": None}
FOUR = {"v": -1, "l": [], "m": [], "most": None, "n": 4}
#: What each key has in the newest epoch.
NEWEST = {1: ONE, 2: NOTHING, 3: THREE, 4: FOUR, 5: NOTHING}


def without_key(rows: pa.Table) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "key"} for row in rows.to_pylist()]


def test_keys_are_looked_up_as_of_the_epoch(folder: Path) -> None:
    with ps.connect(folder) as reader:
        operator, asked = reader[UID], [2, 1, 5, 3, 1, 4]
        got = operator.get(asked)
        assert got["key"].to_pylist() == asked
        assert without_key(got) == [NEWEST[key] for key in asked]
        for key, row in NEWEST.items():
            assert without_key(operator.get([key])) == [row]
        assert operator.get([1, 2], states=["v"]).to_pylist() == [
            {"key": 1, "v": -1},
            {"key": 2, "v": None},
        ]
        before = reader.at(2)[UID].get([2, 1])
        assert without_key(before) == [
            {"v": 2, "l": [2], "m": [(2, 2)], "most": 2, "n": None},
            {"v": 1, "l": [1, 10], "m": [(1, 1), (10, 10)], "most": 1, "n": 1},
        ]
        # The times of epochs that share files are not mixed up.
        assert without_key(operator.get(asked)) == [NEWEST[key] for key in asked]


def test_files_with_guides_need_no_table_for_it(tmp_path: Path) -> None:
    clock, given = Clock(), {"key": "long", "states": states(), **HOMES[1]}
    with ps.open(tmp_path, clock=clock, **given) as store:  # type: ignore[arg-type]
        put(store, 1, 1)
        checkpoint(store, clock, 5000)
        put(store, 2, 2)
        checkpoint(store, clock, 9000)
    lookup, every = StateLookup(tmp_path), Selection(expired=True)
    assert lookup._read.key_rows(EVERYTHING) is not None
    assert lookup._read.key_rows(every) is not None
    assert lookup.get([1, 2])["v"].to_pylist() == [None, 2]
    assert lookup.get([1, 2], selection=every)["v"].to_pylist() == [1, 2]
    assert lookup.rows([1, 2]).num_rows == 1


def test_a_reader_that_moves_on_takes_the_next_time(tmp_path: Path) -> None:
    for home in HOMES:
        clock, place = Clock(), tmp_path / home.get("home", "heap")  # type: ignore[operator]
        given: Any = {"key": "long", "states": states(), "clock": clock, **home}
        with ps.open(place, **given) as store:
            put(store, 1, 1)
            checkpoint(store, clock, 2500)
            with ps.connect(place) as reader:
                assert reader[UID].get([1])["v"].to_pylist() == [1]
                store.set_current_key(2)
                store["n"].update(2)
                checkpoint(store, clock, 2500)
                reader.refresh()
                assert reader[UID].get([1])["v"].to_pylist() == [None]
                assert reader[UID].scan().read_all()["key"].to_pylist() == [2]


def test_scans_and_statements(folder: Path) -> None:
    with ps.connect(folder) as reader:
        check_scans(reader[UID])
        check_scans(reader[UID])  # which have changed nothing
        assert reader.sql("select key from embedded order by key")["key"].to_pylist() == [1, 3, 4]
        assert reader.sql("select v from embedded where key in (2, 3)")["v"].to_pylist() == [3]
        entries = reader.sql("select key, m_key from embedded__m order by all").to_pylist()
        assert entries == [{"key": 1, "m_key": 10}, {"key": 3, "m_key": 3}]
        one = reader.sql("select l, l_index from embedded__l where key = 1").to_pylist()
        assert one == [{"l": 10, "l_index": 0}]


def check_scans(operator: OperatorReader) -> None:
    scanned = {row.pop("key"): row for row in operator.scan().read_all().to_pylist()}
    assert scanned == {key: row for key, row in NEWEST.items() if row is not NOTHING}
    assert sorted(operator.scan(columns=["key"]).read_all()["key"].to_pylist()) == [1, 3, 4]
    for where, keys in (
        ([("v", ">", 0)], [3]),
        ([("most", "!=", None)], [3]),
        ([("v", "==", -1)], [1, 4]),
        ([("key", "in", [1, 2])], [1]),
    ):
        found = operator.scan(columns=["key"], where=where).read_all()
        assert sorted(found["key"].to_pylist()) == keys


@pytest.mark.parametrize("home", HOMES, ids=["heap", "disk"])
@pytest.mark.parametrize(
    "options", [{}, {"update": "read_and_write"}, {"visibility": LENIENT}], ids=repr
)
def test_pieces_of_lists_and_maps(tmp_path: Path, home: Any, options: Any) -> None:
    clock, ttl = Clock(), ps.StateTtl(seconds=1, **options)
    with ps.open(tmp_path, key="long", states=states(ttl), clock=clock, **home) as store:
        for now_ms, values in ((1900, [-1, 2, 5]), (2500, [-2, 3, 4, 9]), (9000, [])):
            store.set_current_key(1)
            store["n"].update(now_ms)
            for value in values:
                put(store, 1, value)
            checkpoint(store, clock, now_ms)
    # What was written at 1000 has expired in the last epoch, at 2500.
    early = [-1, 2, 5] if "visibility" in options else []
    items, keys = [*early, -2, 3, 4, 9], sorted([*early, -2, 3, 4, 9])
    with ps.connect(tmp_path) as reader:
        operator = reader[UID]
        for _ in range(2):  # a reader is no user
            for first, end in ((None, None), (-1, 4), (3, None), (None, 3)):
                found = operator.entries("m", 1, from_=first, to=end).read_all()
                assert found["m_key"].to_pylist() == [
                    key
                    for key in keys
                    if (first is None or key >= first) and (end is None or key < end)
                ]
            assert operator.entries("l", 1).read_all()["l"].to_pylist() == items
            assert operator.entries("l", 1, from_=1, to=3).read_all()["l"].to_pylist() == items[1:3]


@pytest.mark.parametrize("time", ["processing", "event"])
def test_only_tables_that_change_nothing_are_put_above_files(time: Any) -> None:
    """A map by event time, or that is seen once more, comes whole: a small table has no room."""
    for visibility in ("never_return_expired", LENIENT):
        ttl = ps.StateTtl(seconds=1, time=time, visibility=visibility)
        changed = time == "event" or visibility == LENIENT
        assert _is_changed(ps.MapState("long", "long", ttl=ttl)) is changed
        assert not _is_changed(ps.ValueState("long", ttl=ttl))


def test_a_server_says_and_hides_the_same(folder: Path) -> None:
    with (
        served({"shop": folder}) as server,
        ps.connect(folder) as here,
        ps.connect(f"{server.url}/shop") as there,
    ):
        assert repr(there[UID].states) == repr(here[UID].states)
        assert there[UID].states["v"].ttl == SECOND and there[UID].states["n"].ttl is None
        keys = pa.array([2, 1, 5, 3, 4])
        assert there[UID].get(keys).to_pylist() == here[UID].get(keys).to_pylist()
        check_scans(there[UID])
        assert there[UID].entries("m", 1).read_all()["m_key"].to_pylist() == [10]


def test_the_page_shows_no_key_that_has_expired(folder: Path) -> None:
    page = JobView(folder)
    assert not page.key(UID, ["2"])["found"]
    assert page.key(UID, ["2"], epoch=2)["found"]
    assert page.heaviest(UID)["rows_read"] == 3
    # Where the state is heavy is told by what is stored.
    assert sum(page.heat(UID)["rows"]) == 4


def test_a_view_has_the_clock_of_its_epoch(folder: Path) -> None:
    with ps.connect(folder) as reader:
        for epoch, now_ms in ((1, 1000), (2, 1900), (3, 2500)):
            view: View = reader.at(epoch)._place.view
            assert view.scan(UID).clock == view.lookup(UID).scan.clock == (now_ms, None)


@pytest.mark.parametrize("home", HOMES, ids=["heap", "disk"])
def test_followers_are_told_what_is_stored(tmp_path: Path, home: Any) -> None:
    """What a reader of all that is stored begins with, and all changes, are what is stored."""
    clock = Clock()
    given: Any = {"key": "long", "states": states(), "clock": clock, "retained": 9, **home}
    with ps.open(tmp_path, **given) as store:
        put(store, 1, 1)
        put(store, 2, 2)
        checkpoint(store, clock, 5000)
        with ps.connect(tmp_path) as reader, reader.follow() as follower:
            known = stored(tmp_path)
            for key in (2, 3, 1):
                store.set_current_key(key)
                store["n"].update(key)
                if key == 1:
                    store.checkpoint()  # which removes what has expired, in memory
                else:
                    checkpoint(store, clock, clock.now_ms + 5000)
                changes = follower.next(10)
                assert changes is not None
                for row in changes.read(UID).to_pylist():
                    assert known.pop(row["key"], None) == row["before"]
                    if row["after"] is not None:
                        known[row["key"]] = row["after"]
                assert known == stored(tmp_path)
        shown = {row["key"] for row in ps.read_state(tmp_path).to_pylist()}
    assert shown == {1, 2, 3}


def stored(folder: Path) -> dict[int, Any]:
    """All that is stored in the newest epoch, whether it has expired or not."""
    rows = ps.read_state(folder, expired=True).to_pylist()
    return {row.pop("key"): row for row in rows}
