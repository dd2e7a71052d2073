"""What has expired at an epoch is not there for readers: its manifest says how long states live."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.checkpoint.manifest import FORMAT_VERSION, Manifest, read_manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.processor.lookup import StateLookup
from pystate.processor.selection import Selection
from pystate.state.declaration import State
from tests.written import Written

States = dict[str, State[Any]]
Rows = dict[Any, dict[str, Any]]
Reader = Callable[..., Rows]
SECOND = ps.StateTtl(seconds=1)


class Clock:
    """The time of a store, which reads it when it is opened and after each checkpoint."""

    now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


def timed(ttl: ps.StateTtl | None = SECOND) -> States:
    """States of each kind that expire, and one that does not."""
    return {
        "v": ps.ValueState("long", ttl=ttl, default=-1),
        "l": ps.ListState("long", ttl=ttl),
        "m": ps.MapState("string", "long", ttl=ttl),
        "mean": ps.AggregatingState(ps.Mean(), ttl=ttl),
        "thing": ps.ValueState(object, ttl=ttl),
        "n": ps.ValueState("long"),
    }


def put(store: Any, key: int) -> None:
    """Write all states of a key that expire."""
    store.set_current_key(key)
    store["v"].update(key)
    store["l"].add(key)
    store["m"].put("early", key)
    store["mean"].add(key)
    store["thing"].update((key,))


def checkpoint(store: ps.Store, clock: Clock, now_ms: int) -> None:
    """End an epoch that removes nothing; the next one is at `now_ms`."""
    clock.now_ms = now_ms
    store._backend._swept = True
    store.checkpoint()


def keyed_rows(table: pa.Table) -> Rows:
    """Rows by their keys, with namespaces if there are any; objects as whether there is one."""
    rows = {}
    for row in table.to_pylist():
        if "thing" in row:
            row["thing"] = row["thing"] is not None
        key = row.pop("key")
        rows[(key, row.pop("namespace")) if "namespace" in row else key] = row
    assert len(rows) == table.num_rows
    return rows


def scanned(folder: Path, **asked: Any) -> Rows:
    return keyed_rows(ps.scan_state(folder, **asked).read_all())


def looked_up(folder: Path, *, epoch: int | None = None, **asked: Any) -> Rows:
    lookup = StateLookup(folder, epoch=epoch, selection=Selection(**asked))
    return keyed_rows(lookup.rows(range(100)))


def by_keys(folder: Path, **asked: Any) -> Rows:
    return keyed_rows(ps.read_state(folder, keys=range(100), **asked))


def exported(folder: Path, **asked: Any) -> Rows:
    target = folder.parent / f"{folder.name}-export"
    ps.export_state(folder, target, overwrite=True, **asked)
    return keyed_rows(pq.read_table(target))


READERS = [scanned, looked_up, by_keys, exported]


@pytest.fixture(scope="module", params=["heap", "disk"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Epochs at 1000, 1900 and 2500, of which none has removed anything."""
    folder, clock = tmp_path_factory.mktemp("stores") / "s", Clock()
    given: Any = {"home": "disk", "limit_bytes": 64 << 20} if request.param == "disk" else {}
    with ps.open(folder, key="long", states=timed(), clock=clock, retained=9, **given) as opened:
        put(opened, 1)
        opened["n"].update(1)
        put(opened, 2)
        checkpoint(opened, clock, 1900)
        opened.set_current_key(1)
        opened["l"].add(10)
        opened["m"].put("late", 10)
        put(opened, 3)
        checkpoint(opened, clock, 2500)
        opened.set_current_key(4)
        opened["n"].update(4)
        checkpoint(opened, clock, 9000)
    return folder


NOTHING = {"v": -1, "l": [], "m": [], "mean": None, "thing": False, "n": None}


def of(key: int, **others: Any) -> dict[str, Any]:
    """What `put` has left of a key."""
    written = {"v": key, "l": [key], "m": [("early", key)], "mean": float(key), "thing": True}
    return {**NOTHING, **written, **others}


@pytest.mark.parametrize("read", READERS)
def test_what_has_expired_is_not_there(read: Reader, store: Path) -> None:
    assert read(store) == {
        1: {**NOTHING, "l": [10], "m": [("late", 10)], "n": 1},
        3: of(3),
        4: {**NOTHING, "n": 4},
    }
    # As of the others everything lived.
    late = {"l": [1, 10], "m": [("early", 1), ("late", 10)]}
    assert read(store, epoch=2) == {1: of(1, n=1, **late), 2: of(2), 3: of(3)}
    assert read(store, epoch=1) == {1: of(1, n=1), 2: of(2)}
    every = {1: of(1, n=1, **late), 2: of(2), 3: of(3), 4: {**NOTHING, "n": 4}}
    assert read(store, expired=True) == every


@pytest.mark.parametrize("read", READERS)
def test_one_state_is_read_as_all_are(read: Reader, store: Path) -> None:
    assert read(store, state="v") == {3: {"v": 3}}
    assert read(store, state="mean") == {3: {"mean": 3.0}}
    assert read(store, state="l") == {1: {"l": [10]}, 3: {"l": [3]}}
    assert read(store, state="v", expired=True).keys() == {1, 2, 3}


@pytest.mark.parametrize("expired", [False, True])
def test_elements_are_read_one_by_one(store: Path, expired: bool) -> None:
    asked: Any = {"explode": True, "expired": expired}
    items = ps.read_state(store, state="l", **asked).to_pylist()
    assert sorted((row["key"], row["l"]) for row in items) == (
        [(1, 1), (1, 10), (2, 2), (3, 3)] if expired else [(1, 10), (3, 3)]
    )
    entries = ps.read_state(store, state="m", **asked).to_pylist()
    found = {(row["key"], row["m_key"]) for row in entries}
    early = {(1, "early"), (2, "early")} if expired else set()
    assert found == {(1, "late"), (3, "early"), *early}


def test_metadata_says_how_long_states_live(store: Path) -> None:
    rows = ps.state_metadata(store, epoch=3).to_pylist()
    said = {row["state"]: row["ttl"] for row in rows}
    assert said == {**dict.fromkeys(timed(), repr(SECOND)), "n": None}


# ---- tables that are filled: namespaces, and kinds that no merge reads ---------------------------


@pytest.mark.parametrize("read", READERS)
def test_windows_and_other_namespaces(read: Reader, tmp_path: Path) -> None:
    made = Written(tmp_path / "s", timed(), namespace="string")
    for now_ms, key, space in ((1000, 1, "a"), (1000, 2, "a"), (1900, 1, "b"), (1900, 2, "a")):
        made.backend.set_clock(processing_time=now_ms)
        made.set_current(key, space)
        made.backend["l"].add(now_ms)
        made.backend["m"].put(str(now_ms), now_ms)
        if (key, now_ms) != (2, 1900):
            made.backend["v"].update(now_ms)
            made.backend["thing"].update(now_ms)
            made.backend["mean"].add(now_ms)
    made.publish(2500)
    late = {"l": [1900], "m": [("1900", 1900)]}
    some = {"v": None, "thing": False, "mean": None, "n": None}
    live = {**late, "v": 1900, "thing": True, "mean": 1900.0, "n": None}
    assert read(tmp_path / "s") == {(1, "b"): live, (2, "a"): {**some, **late}}
    assert read(tmp_path / "s", state="v") == {(1, "b"): {"v": 1900}}
    assert read(tmp_path / "s", expired=True).keys() == {(1, "a"), (1, "b"), (2, "a")}


@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("read", READERS)
def test_event_time_is_the_watermark_of_the_operator(
    read: Reader, namespace: str | None, tmp_path: Path
) -> None:
    made = Written(tmp_path / "s", timed(ps.StateTtl(100, time="event")), namespace=namespace)
    for key, event_ms in ((1, 1000), (2, 1050)):
        made.backend.set_clock(processing_time=5, watermark=900, event_time=event_ms)
        space = () if namespace is None else (0,)
        made.set_current(key, *space)
        made.backend["v"].update(key)
        made.backend["l"].add(key)
    for watermark_ms in (None, 1099, 1100, 1150):
        made.set_current(9, *space)
        made.backend["n"].update(watermark_ms)
        made.publish(10**9, watermark_ms)  # processing time does not count
    keys = [{row[0] if namespace else row for row in read(tmp_path / "s", epoch=n)} for n in
            range(1, 5)]  # fmt: skip
    assert keys == [{1, 2}, {1, 2, 9}, {2, 9}, {9}]


@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("read", READERS)
def test_what_a_program_sees_once_more_is_read_until_it_has(
    read: Reader, namespace: str | None, tmp_path: Path
) -> None:
    lenient = ps.StateTtl(100, visibility="return_if_not_cleaned_up")
    made = Written(tmp_path / "s", timed(lenient), namespace=namespace)
    space = () if namespace is None else (0,)
    for key in (1, 2):
        made.backend.set_clock(processing_time=1000)
        made.set_current(key, *space)
        for name in ("v", "thing"):
            made.backend[name].update(key)
        made.backend["l"].add(key)
        made.backend["m"].put("a", key)
        made.backend["mean"].add(key)
        made.backend["n"].update(key)
    made.publish(1000)
    made.backend.set_clock(processing_time=2000)
    made.set_current(1, *space)
    assert made.backend["v"].value() == 1
    assert made.backend["m"].get("a") == 1
    assert list(made.backend["l"].get()) == [1]
    made.publish(2000)
    rows = {key[0] if namespace else key: row for key, row in read(tmp_path / "s").items()}
    absent = {name: rows[1][name] for name in ("v", "l", "m")}
    assert absent == {"v": None, "l": [], "m": []}
    whole = {"v": 2, "l": [2], "m": [("a", 2)], "mean": 2.0, "thing": True, "n": 2}
    assert rows[2] == whole
    # Elements that were walked over are removed, and a value that was seen is there for now.
    [change] = ps.changes(tmp_path / "s", from_epoch=1, to_epoch=2).to_pylist()
    assert (change["before"]["v"], change["after"]["v"], change["after"]["l"]) == (1, 1, [])
    kept = keyed_rows(ps.read_state(tmp_path / "s", accumulators=True))
    assert all(row["mean"] is not None for row in kept.values())


@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("read", READERS)
def test_a_read_that_counts_as_use_keeps_alive(
    read: Reader, namespace: str | None, tmp_path: Path
) -> None:
    made = Written(
        tmp_path / "s", timed(ps.StateTtl(100, update="read_and_write")), namespace=namespace
    )
    space = () if namespace is None else (0,)
    made.backend.set_clock(processing_time=1000)
    for key in (1, 2):
        made.set_current(key, *space)
        made.backend["v"].update(key)
        made.backend["l"].add(key)
    made.publish(1000)
    made.backend.set_clock(processing_time=1090)
    made.set_current(1, *space)
    assert (made.backend["v"].value(), list(made.backend["l"].get())) == (1, [1])
    made.publish(1090)
    made.backend.set_clock(processing_time=1150)
    made.set_current(3, *space)
    made.backend["v"].update(3)
    made.publish(1150)
    for _ in range(2):  # and readers do not
        rows = {key[0] if namespace else key: row for key, row in read(tmp_path / "s").items()}
        assert {key: (row["v"], row["l"]) for key, row in rows.items()} == {
            1: (1, [1]),
            3: (3, []),
        }


# ---- what manifests say -------------------------------------------------------------------------


def test_each_epoch_is_read_as_its_own_program_declared(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "s"
    programs: list[tuple[int, ps.StateTtl | None, set[int]]] = [
        (1000, SECOND, {0}),
        (1900, SECOND, {0, 1}),
        (2500, ps.StateTtl(seconds=5), {0, 1, 2}),
        (3500, ps.StateTtl(milliseconds=10), {3}),
        (9000, None, {0, 1, 2, 3, 4}),
    ]
    for key, (now_ms, ttl, _) in enumerate(programs):
        clock.now_ms = now_ms
        with ps.open(folder, key="long", states=timed(ttl), clock=clock, retained=9) as store:
            put(store, key)
            checkpoint(store, clock, now_ms)

    for read in READERS:
        found = [read(folder, epoch=epoch).keys() for epoch in range(1, len(programs) + 1)]
        assert found == [keys for _, _, keys in programs]
    said = [row["ttl"] for row in ps.state_metadata(folder).to_pylist() if row["state"] == "v"]
    assert said == [None if ttl is None else repr(ttl) for _, ttl, _ in programs]


def test_an_older_manifest_says_nothing(tmp_path: Path) -> None:
    made = Written(tmp_path / "s", timed())
    made.backend.set_clock(processing_time=1000)
    made.backend.set_current_key(1)
    made.backend["v"].update(1)
    made.publish(5000, format_version=FORMAT_VERSION - 1)
    for read in READERS:
        assert read(tmp_path / "s").keys() == {1}
    assert set(ps.state_metadata(tmp_path / "s")["ttl"].to_pylist()) == {None}


def test_a_renamed_state_expires_under_its_new_name(tmp_path: Path) -> None:
    clock = Clock()
    given: Any = {"key": "long", "clock": clock, "retained": 9}
    with ps.open(tmp_path, states={"v": ps.ValueState("long", ttl=SECOND)}, **given) as store:
        store.set_current_key(1)
        store["v"].update(1)
        store.checkpoint()
    clock.now_ms = 1900
    renamed: States = {"w": ps.ValueState("long", ttl=SECOND, previously="v")}
    with ps.open(tmp_path, states=renamed, **given) as store:
        store.set_current_key(2)
        store["w"].update(2)
        checkpoint(store, clock, 1900)
    # Another state has the former name.
    both = {"w": ps.ValueState("long", ttl=SECOND), "v": ps.ValueState("long")}
    with ps.open(tmp_path, states=both, **given) as store:
        store.set_current_key(2)
        store["v"].update(2)
        checkpoint(store, clock, 2500)
        store.set_current_key(3)
        store["v"].update(3)
        checkpoint(store, clock, 9000)
    assert keyed_rows(ps.read_state(tmp_path)) == {2: {"w": 2, "v": 2}, 3: {"w": None, "v": 3}}
    assert keyed_rows(ps.read_state(tmp_path, epoch=1)) == {1: {"v": 1}}


def ttls_of(folder: Path, uid: str = "embedded") -> dict[str, ps.StateTtl]:
    head = read_head(LocalStorage(folder))
    assert head is not None
    operator = head.operator(uid)
    assert operator is not None
    return dict(operator.ttls)


def test_copies_of_a_checkpoint_say_the_same(tmp_path: Path, store: Path) -> None:
    states, expected = timed(), dict.fromkeys(set(timed()) - {"n"}, SECOND)
    before = scanned(store)
    ps.savepoint(store, tmp_path / "savepoint")
    ps.rescale(store, tmp_path / "rescaled", max_parallelism=256)
    whole = ps.StateRows.read(store)
    assert whole.states == {name: state for name, state in states.items() if name != "thing"} | {
        "thing": whole.states["thing"]
    }
    more = ps.StateRows({"key": [1], "n": [1]}, {"key": "long"}, {"n": ps.ValueState("long")})
    ps.write_state(tmp_path / "added", {"other": more}, base=tmp_path / "savepoint")
    for name in ("savepoint", "rescaled", "added"):
        assert keyed_rows(ps.read_state(tmp_path / name, "embedded")) == before
        said = ps.state_metadata(tmp_path / name).to_pylist()
        assert {r["state"]: r["ttl"] for r in said if r["uid"] == "embedded"} == {
            **{name: repr(ttl) for name, ttl in expected.items()},
            "n": None,
        }
    ps.write_state(tmp_path / "written", {"op": whole})
    # What had expired is not brought back, and the rest counts as written later.
    assert scanned(tmp_path / "written") == before
    assert {row["ttl"] for row in ps.state_metadata(tmp_path / "written").to_pylist()} == {
        repr(SECOND),
        None,
    }


def test_a_repair_says_the_same(tmp_path: Path, store: Path) -> None:
    """Also of an epoch whose manifest is lost: `job.json` knows times to live, too."""
    before, said = scanned(store), ttls_of(store)
    shutil.copytree(store, tmp_path / "s")
    for path in (tmp_path / "s" / "manifests").iterdir():
        path.unlink()
    ps.repair(tmp_path / "s")
    assert ttls_of(tmp_path / "s") == said and len(said) == 5
    assert scanned(tmp_path / "s") == before


def test_merges_and_openings_keep_it(tmp_path: Path) -> None:
    clock = Clock()
    with ps.open(tmp_path, key="long", states=timed(), clock=clock) as store:
        for number in range(40):
            clock.now_ms += 100
            put(store, number)
            store.checkpoint()
    head = read_head(LocalStorage(tmp_path))
    assert head is not None and any(ref.kind == "base" for ref in head.operators[0].files)
    assert ttls_of(tmp_path) == dict.fromkeys(set(timed()) - {"n"}, SECOND)
    assert set(scanned(tmp_path)) == set(range(30, 40))


# ---- changes -------------------------------------------------------------------------------------


def test_an_expiry_is_a_change_once_files_say_so(tmp_path: Path) -> None:
    """The changes of one epoch after the other make what is stored in the last one."""
    clock = Clock()
    states = {"v": ps.ValueState("long", ttl=SECOND), "n": ps.ValueState("long")}
    with ps.open(tmp_path, key="long", states=states, clock=clock, retained=9) as store:
        for key in (1, 2):
            store.set_current_key(key)
            store["v"].update(key)
        checkpoint(store, clock, 5000)
        store.set_current_key(2)
        store["n"].update(2)
        checkpoint(store, clock, 6000)
        store.set_current_key(3)
        store["n"].update(3)
        store.checkpoint()  # removes what has expired
    assert keyed_rows(ps.read_state(tmp_path, epoch=2)) == {2: {"v": None, "n": 2}}

    def changed(older: int, newer: int, **asked: Any) -> dict[int, Any]:
        rows = ps.changes(tmp_path, from_epoch=older, to_epoch=newer, **asked).to_pylist()
        return {row["key"]: (row["change"], row["before"], row["after"]) for row in rows}

    both = {"v": 2, "n": 2}
    assert changed(1, 2) == {2: ("put", {"v": 2, "n": None}, both)}
    assert (
        changed(2, 3)
        == changed(2, 3, keys=[1, 2, 3])
        == {
            1: ("delete", {"v": 1, "n": None}, None),
            2: ("put", both, {"v": None, "n": 2}),
            3: ("put", None, {"v": None, "n": 3}),
        }
    )
    stored: dict[int, Any] = {}
    for epoch in (1, 2, 3):
        for key, (_, before, after) in changed(epoch - 1, epoch).items():
            assert stored.pop(key, None) == before
            if after is not None:
                stored[key] = after
        assert stored == keyed_rows(ps.read_state(tmp_path, epoch=epoch, expired=True))


# ---- what is stored ------------------------------------------------------------------------------


def test_a_manifest_of_this_format_has_every_choice(tmp_path: Path) -> None:
    ttl = ps.StateTtl(
        2**63 - 1, update="read_and_write", visibility="return_if_not_cleaned_up", time="event"
    )
    made = Written(tmp_path, {"v": ps.ValueState("long", ttl=ttl), "n": ps.ValueState("long")})
    made.publish(1)
    manifest = read_manifest(made.storage, "manifests/00000001.manifest")
    assert manifest.operators[0].ttls == (("v", ttl),)
    older = dataclasses.replace(manifest, format_version=FORMAT_VERSION - 1)
    assert Manifest.decode(older.encode(), "m").operators[0].ttls == ()
