"""SQL over a checkpoint's state."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pystate as ps
from pystate.base import installation
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import (
    CheckpointError,
    InvalidArgumentError,
    MemoryLimitError,
    MissingPackageError,
    PystateError,
    QueryError,
    QueryTimeoutError,
)
from pystate.processor.epochs import missing_file
from tests.forks import heeds_interrupts
from tests.unit.processor.test_key_files import KEYS, fill, sorted_rows
from tests.unit.query.test_operators import in_ranges
from tests.work import Work

duckdb = pytest.importorskip("duckdb", reason="needs the package duckdb: pip install duckdb")

from pystate.query.connection import View  # noqa: E402
from pystate.query.sql import execution, process, tables  # noqa: E402
from pystate.query.sql.statement import one_line  # noqa: E402

UID = "embedded"
UTC = datetime.timezone.utc
STATES: dict[str, Any] = {
    "n": ps.ValueState("long", default=0),
    "text": ps.ValueState("string"),
    "list": ps.ListState("long"),
    "map": ps.MapState("string", "double"),
}
#: A loop without an end that needs no memory.
ENDLESS = "select sum(i % 7) from range(1000000000000000) t(i)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ps.Store]:
    key = {"k": "string", "d": "long"}
    with ps.open(tmp_path / "store", key=key, states=STATES, retained=3) as store:
        change(store, 20, 1)
        yield store


@pytest.fixture
def reader(store: ps.Store) -> Iterator[ps.StateReader]:
    with ps.connect(store.path) as reader:
        yield reader


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Which tables are read, and which keys of them; None for all."""
    asked: list[tuple[str, Any]] = []
    real = tables.StateTable._batches

    def spy(table: Any, only: Any, keys: Any) -> Any:
        rows = None if keys is None else sorted(zip(*(k.to_pylist() for k in keys), strict=True))
        asked.append((table._table.name, rows))
        return real(table, only, keys)

    monkeypatch.setattr(tables.StateTable, "_batches", spy)
    return asked


def change(store: ps.Store, keys: int, n: int) -> int:
    for i in range(keys):
        store.set_current_key((f"k{i}", i))
        store["n"].update(n * i)
        store["list"].add_all([n, i])
        store["map"].put(f"m{n}", i / 2)
    return store.checkpoint()


def one_batch(reader: ps.StateReader, only: Any) -> pa.RecordBatch:
    found = reader[UID].scan(columns=["k", "d", *sorted(only)]).read_all()
    return found.combine_chunks().to_batches()[0]


def rows(reader: ps.StateReader, query: str, *given: Any) -> list[tuple[Any, ...]]:
    table = reader.sql(query, list(given))
    return [tuple(row.values()) for row in table.to_pylist()]


def test_tables_of_all_kinds(reader: ps.StateReader) -> None:
    assert rows(reader, "select count(*), sum(n) from embedded") == [(20, 190)]
    assert rows(reader, "select sum(list), max(list_index) from embedded__list") == [(210, 1)]
    assert rows(reader, "select map_key, max(map) from embedded__map group by all") == [("m1", 9.5)]
    assert rows(reader, "select epoch from epochs") == [(1,)]
    assert rows(reader, "select list, map from \"EMBEDDED\" where k = 'k3' and d = 3") == [
        ([1, 3], [("m1", 1.5)])
    ]
    assert reader.sql("from embedded limit 0").schema.names == reader[UID].schema.names
    listed = reader.sql_tables().to_pylist()
    assert [row["column"] for row in listed if row["table"] == "embedded__map"] == [
        *("k", "d", "map_key", "map")
    ]
    assert {row["holds"] for row in listed} == {
        "the retained epochs",
        "the elements of state 'list' of 'embedded'",
        "the elements of state 'map' of 'embedded'",
        "the state of 'embedded', a row per key",
    }
    assert [row[0] for row in rows(reader, "show tables")] == sorted(
        {row["table"] for row in listed}
    )
    assert len(rows(reader, "describe embedded__list")) == 4


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ("k = 'k1' and d = 1", [("k1", 1)]),
        ("k in ('k1', 'k2') and d in (1, 5)", [("k1", 1), ("k1", 5), ("k2", 1), ("k2", 5)]),
        ("(k, d) = ('k1', 1)", [("k1", 1)]),
        ("(k, d) in (('k1', 1), ('k2', 7), ('x', 0))", [("k1", 1), ("k2", 7), ("x", 0)]),
        ("(d, k) in ((1, 'k1'), (1, 'k1'))", [("k1", 1)]),
        ("k = 'k1' and d = 1 or k = 'k2' and d = 2", [("k1", 1), ("k2", 2)]),
        ("k = 'k1' and d = 1 and n > 5", [("k1", 1)]),
        ("k = 'k1' and d = 1 and d = 2", []),
        ("k = 'k' || 1 and d = 3 - 2", [("k1", 1)]),
        ("k = ? and d = ?", [("k1", 1)]),
        ("k is null and d = 1", [(None, 1)]),
        ("k = 'k1'", None),
        ("k = 'k1' and d > 0", None),
        ("(k = 'k1' and d = 1) or n = 4", None),
        ("not (k = 'k1' and d = 1)", None),
        ("k like 'k1%' and d = 1", None),
        ("(k, d) in (('k1', 1), (null, 2))", None),
        ("true", None),
    ],
)  # fmt: skip
def test_conditions_on_keys_become_look_ups(
    reader: ps.StateReader, looked: list[Any], condition: str, keys: Any
) -> None:
    """What is found is what the engine finds in a table of its own."""
    given = ["k1", 1] if "?" in condition else []
    with duckdb.connect() as engine:
        engine.register("embedded", reader[UID].scan().read_all())
        query = f"select k, d, n from embedded where {condition} order by all"
        expected = engine.execute(query, given).fetchall()
    assert rows(reader, query, *given) == expected
    # That there is none an engine may find out by itself; older ones hand less on.
    assert (
        looked == [(UID, keys)]
        or (not keys and looked == [])
        or (int(duckdb.__version__.split(".")[0]) < 2 and looked == [(UID, None)])
    )


def test_only_states_that_are_needed_are_read(
    store: ps.Store, reader: ps.StateReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key without any of them is a row all the same."""
    read = []
    real = View.rows

    def spy(view: View, uid: str, selection: Any, **given: Any) -> Any:
        read.append(selection.only)
        return real(view, uid, selection, **given)

    monkeypatch.setattr(View, "rows", spy)
    store.set_current_key(("only text", 1))
    store["text"].update("x")
    store.checkpoint()
    reader.refresh()
    for query, expected, only in [
        ("select count(*) from embedded", 21, frozenset()),
        ("select count(k) from embedded", 21, frozenset()),
        ("select max(len(list)) from embedded", 2, {"list"}),
        ("select sum(d) from embedded where n > 1 and text is null", 189, {"n", "text"}),
        ("select count(*) from embedded where k = 'only text' and d = 1", 1, frozenset()),
        ("select text from embedded where k = 'only text' and d = 1 and n = 0", "x", {"n", "text"}),
    ]:
        read.clear()
        assert rows(reader, query) == [(expected,)], query
        assert read == [only], query


def test_elements_are_looked_up_by_their_key(reader: ps.StateReader, looked: list[Any]) -> None:
    query = "select list from embedded__list where k = 'k4' and d = 4 and list > 2"
    assert rows(reader, query) == [(4,)]
    assert looked == [("embedded__list", [("k4", 4)])]


def test_a_join_hands_the_key_on(reader: ps.StateReader, looked: list[Any]) -> None:
    joined = "embedded join embedded__map e using (k, d)"
    query = f"select n, e.map from {joined} where k = 'k4' and d = 4"
    assert rows(reader, query) == [(4, 2.0)]
    assert sorted(looked) == [("embedded", [("k4", 4)]), ("embedded__map", [("k4", 4)])]


def test_only_tables_that_are_named_are_read(
    reader: ps.StateReader, looked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = tables.StateTable.__init__

    def spy(table: Any, view: Any, name: Any, *rest: Any) -> None:
        made.append(name.name)
        real(table, view, name, *rest)

    monkeypatch.setattr(tables.StateTable, "__init__", spy)
    query = "with epochs as (select max(n) m from embedded) select * from epochs -- embedded__map"
    assert rows(reader, query) == [(19,)]
    assert made == [UID] and looked == [(UID, None)]


def test_a_uid_that_is_no_word(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a.b", 'q"t', "Sum", "sum", "epochs")).some(2)
    with ps.connect(work.root) as reader:
        for name in ('"a.b"', '"q""t"', '"Sum"', '"sum"', "epochs"):
            found = dict(rows(reader, f"select k, n from {name}"))
            assert found == work.counts, name
        with pytest.raises(QueryError, match=r"no schema 'a': if the uid is 'a.b', .*: \"a.b\""):
            reader.sql("select * from a.b")
        with pytest.raises(QueryError, match=r"which table is 'SUM'\? There are 'Sum', 'sum': wr"):
            reader.sql("select * from SUM")
        joined = 'select count(*) from "a.b" x join "q""t" y using (k) where x.n <> y.n'
        assert rows(reader, joined) == [(0,)]
        with pytest.raises(QueryError, match="only in their case"):
            reader.sql('select * from "Sum", "sum"')


@pytest.mark.parametrize("namespace", [None, "long"])
def test_timers_namespaces_and_several_ranges(
    tmp_path: Path, namespace: str | None, looked: list[Any]
) -> None:
    """Each table says what `read_state` does, also of some keys alone."""
    fill(tmp_path, 3, namespace)
    in_ranges(LocalStorage(tmp_path))
    kinds: dict[str, dict[str, Any]] = {
        "op": {},
        "op__timers": {"timers": True},
        "op__map": {"state": "map", "explode": True},
        "op__list": {"state": "list", "explode": True},
    }
    wanted = [f"key {n}" for n in range(0, 2 * KEYS, 5)]
    with ps.connect(tmp_path) as reader:
        for table, selection in kinds.items():
            whole = ps.read_state(tmp_path, **selection)
            assert sorted_rows(reader.sql(f"from {table}")) == sorted_rows(whole), table
            some = reader.sql(f"from {table} where list_contains(?, k)", [wanted])
            assert sorted_rows(some) == sorted_rows(whole.filter(pc.field("k").isin(wanted))), table
            if namespace is not None:
                one = reader.sql(f"from {table} where k = 'key 5' and namespace = 2")
                assert sorted_rows(one) == sorted_rows(
                    whole.filter((pc.field("k") == "key 5") & (pc.field("namespace") == 2))
                )
    assert {table for table, keys in looked if keys is None} == set(kinds)
    assert namespace is None or (("op__timers", [("key 5",)]) in looked)


def test_names_that_differ_in_their_case(tmp_path: Path) -> None:
    states = {"K": ps.ValueState("long"), "k_1": ps.ValueState("long")}
    with ps.open(tmp_path, key="long", states=states) as store:
        store.set_current_key(1)
        store["K"].update(2)
        store["k_1"].update(3)
        store.checkpoint()
    with ps.connect(tmp_path) as reader:
        assert reader.sql("from embedded").to_pylist() == [{"key": 1, "K": 2, "k_1": 3}]


def test_values_of_all_types_come_back(tmp_path: Path) -> None:
    types: dict[str, tuple[Any, Any]] = {
        "b": ("boolean", True),
        "i": ("int", -3),
        "f": ("double", float("inf")),
        "s": ("string", "ü'"),
        "bin": ("binary", b"\xff\x00"),
        "dec": ("decimal(20,3)", Decimal("12345678901234567.125")),
        "date": ("date", datetime.date(1969, 12, 31)),
        "ts": ("timestamp", datetime.datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)),
        "ntz": ("timestamp_ntz", datetime.datetime(1970, 1, 1, 0, 0, 1, 5)),
        "st": ("struct<a:int,b:array<string>>", {"a": 1, "b": ["x", None]}),
        "arr": ("array<map<string,int>>", [[("k", 1)], None]),
        "none": ("string", None),
    }
    states = {name: ps.ValueState(ddl) for name, (ddl, _) in types.items()}
    states["obj"] = ps.ValueState(object)
    with ps.open(tmp_path, key="timestamp", states=states, allow_pickle=True) as store:
        at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
        store.set_current_key(at)
        for name, (_, value) in types.items():
            given = tuple(value.values()) if isinstance(value, dict) else value
            if name == "arr":
                given = [{"k": 1}, None]
            store[name].update(given)
        store["obj"].update({"x": 1})
        store.checkpoint()
    with ps.connect(tmp_path) as reader:
        [row] = reader.sql("from embedded").to_pylist()
        stored = reader["embedded"].scan().read_all()
        assert {name: row[name] for name in types} == {name: v for name, (_, v) in types.items()}
        assert row["key"] == at and isinstance(row["obj"], bytes)
        for name in types:
            literal = f'"{name}" = (select "{name}" from embedded)'
            assert rows(reader, f"select count(*) from embedded where {literal}") == [
                (0 if name == "none" else 1,)
            ]
        for query in (
            "from embedded where key = timestamptz '2026-01-02 03:04:05.000006+00'",
            "from embedded where dec = 12345678901234567.125 and date < date '1970-01-01'",
            "from embedded where ts = '1970-01-01 00:00:01.000005+00' and ntz > '1970-01-01'",
            "from embedded where bin = '\\xff\\x00'::blob and st.a = 1 and not none = 'x' is true",
        ):
            found = reader.sql(query)
            assert found.num_rows == 1 and found.schema.names == stored.schema.names, query


def test_an_answer_is_of_one_epoch(
    store: ps.Store, reader: ps.StateReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tables.StateTable._batches

    def moved(table: Any, only: Any, keys: Any) -> Any:
        if store.epoch < 3:
            change(store, 30, 100)
            reader.refresh()
        return real(table, only, keys)

    monkeypatch.setattr(tables.StateTable, "_batches", moved)
    query = "select sum(n), sum(e.list) from embedded join embedded__list e using (k, d)"
    assert rows(reader, query) == [(380, 210)]
    assert reader.epoch == 3
    assert rows(reader, query) != [(380, 210)]
    assert rows(reader.at(1), query) == [(380, 210)]


def test_rows_are_read_as_they_are_asked_for(
    reader: ps.StateReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, closed = [], threading.Event()

    def endless(table: Any, only: Any, keys: Any) -> Any:
        [batch] = (
            reader[UID].scan(columns=["k", "d", *only]).read_all().combine_chunks().to_batches()
        )
        try:
            while True:
                given.append(batch.num_rows)
                yield batch
        finally:
            closed.set()

    monkeypatch.setattr(tables.StateTable, "_batches", endless)
    scanned = reader.scan_sql("select k from embedded")
    assert scanned.schema == pa.schema({"k": pa.string()})
    assert scanned.read_next_batch().num_rows > 0
    scanned.close()
    del scanned
    assert closed.wait(3)
    assert rows(reader, "select count(*) from (from embedded limit 99)") == [(99,)]


def test_an_epoch_that_is_retired_meanwhile(
    store: ps.Store, reader: ps.StateReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader moves once to the newest one; if rows have been given, it says so."""
    real = tables.StateTable._batches
    lost = {1}

    def fails(table: Any, only: Any, keys: Any) -> Any:
        view = table._view
        yield from real(table, only, keys)
        if view.epoch in lost:
            raise missing_file(view.connection.storage, view.epoch, "x")

    monkeypatch.setattr(tables.StateTable, "_batches", fails)
    change(store, 3, 7)
    assert rows(reader, "select sum(n) from embedded where d < 3") == [(21,)]
    assert reader.epoch == 2
    lost.add(2)
    with pytest.raises(CheckpointError, match="names is missing: x"):
        reader.sql("from embedded")


def test_a_damaged_file_is_named(store: ps.Store, tmp_path: Path) -> None:
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.stat().st_size > 500 and "manifest" not in str(path):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    with ps.connect(store.path) as reader, pytest.raises(PystateError, match=r"\S+: "):
        reader.sql("from embedded")


#: What somebody might try who may write statements and nothing else.
HOSTILE = """
select * from read_csv('/etc/passwd')
select * from read_text('/etc/passwd')
select * from read_blob('/etc/passwd')
select * from '/etc/passwd'
select * from "/tmp/x.parquet"
select * from 'http://127.0.0.1:1/x.parquet'
select * from parquet_scan('x')
select * from read_json_auto('x')
select * from read_duckdb('x')
select * from sniff_csv('/etc/passwd')
select * from glob('/*')
select (select count(*) from glob('/*'))
select * from embedded where exists (from read_text('/etc/passwd'))
copy (select 1) to '/tmp/pystate_x'
copy embedded to '/tmp/pystate_x'
export database '/tmp/pystate_x'
import database '/tmp/pystate_x'
attach '/tmp/pystate_x.db'
attach ':memory:' as other
detach memory
use memory
install httpfs
load httpfs
load '/tmp/x.duckdb_extension'
force install httpfs
pragma version
pragma database_list
set threads = 9
set memory_limit = '1TB'
set global enable_external_access = true
reset threads
set variable x = 1
select current_setting('secret_directory')
select getvariable('x')
select getenv('HOME')
select * from duckdb_settings()
select * from duckdb_secrets()
select * from duckdb_extensions()
select * from which_secret('s3://x', 's3')
create secret (type s3)
call duckdb_settings()
call enable_logging()
select * from enable_logging(storage='file')
select * from enable_profiling()
select * from add_parquet_key('x', 'y')
select * from checkpoint()
select * from force_checkpoint()
select * from import_database()
select * from create_external_resource('x')
select * from arrow_scan(1, 2, 3)
select * from pandas_scan(1)
select * from python_map_function(1)
select * from query('select 1')
select * from query_table('embedded')
select * from json_execute_serialized_sql('{}')
select write_log('x')
select nextval('x')
select sleep_ms(1)
select Sleep_MS(1)
select "sleep_ms"(1)
select main.sleep_ms(1)
select /* */ sleep_ms /* */ (1)
select list_transform([1], lambda x: sleep_ms(x))
select 1 where 1 in (select sleep_ms(1))
with recursive r as (select 1 i union all select i + sleep_ms(1) from r) select * from r
create table x as select 1
create view x as select 1
create macro x() as 1
create temp table embedded as select 1
create or replace view embedded as select 1
drop view embedded
alter table embedded rename to x
comment on table embedded is 'x'
insert into embedded values (1)
delete from embedded
update embedded set n = 0
truncate embedded
merge into embedded using (select 1) on true when matched then delete
with x as (insert into embedded values (1) returning n) select * from x
with x as (delete from embedded returning n) select * from x
explain select 1
explain analyze select 1
prepare p as select 1
execute p
deallocate p
begin
commit
checkpoint
vacuum
analyze
kill 1
select 1; select 2
select 1; copy (select 1) to '/tmp/pystate_x'
select * from embedded; drop view embedded
pivot embedded on k using sum(n)
select * from information_schema.tables
select * from pg_catalog.pg_settings
select * from pg_settings
select * from duckdb_views
select * from sqlite_master
select * from system.main.duckdb_tables
with pg_settings as (select 1) select * from pg_settings
(with pg_settings as (select 1) from pg_settings) union all by name from pg_settings
with x as (select 1) from pg_settings
show databases
show variables
select * from secret
select * from os
select * from __file__
select * from embedded at (version => 1)
"""


@pytest.mark.parametrize("query", HOSTILE.strip().splitlines())
def test_a_statement_reaches_nothing_but_the_tables(
    reader: ps.StateReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = pa.table({"password": ["x"]})
    with pytest.raises(QueryError) as raised:
        reader.sql(query)
    assert secret.num_rows and "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == ["store"] and not os.path.exists("/tmp/pystate_x")


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "copy (select 1) to '{}/x'",
        "attach '{}/x.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set memory_limit = '1TB'",
        "set temp_directory = '{}'",
        "set lock_configuration = false",
        "create persistent secret x (type s3)",
        "select * from secret",
        "export database '{}/x'",
    ],
)
def test_the_engine_itself_reaches_nothing_either(tmp_path: Path, query: str) -> None:
    """Had the statement been let through."""
    secret = pa.table({"password": ["x"]})
    engine = execution.new_engine(execution.Limits.of())
    engine.execute("SET lock_configuration = true")
    with pytest.raises(duckdb.Error):
        engine.execute(query.format(tmp_path)).fetchall()
    assert secret.num_rows and os.listdir(tmp_path) == []
    engine.close()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select nn from embedded", '^sql: Binder Error: Referenced column "nn" not found .*"n"'),
        ("selec 1", '^sql: .*syntax error at or near "selec"'),
        (
            "select * from embeded",
            "no table 'embeded'; there are emb.*, epochs; did you mean 'emb",
        ),
        ("select n + from embedded", "syntax error"),
        ("select sqrtt(1)", "sqrtt.*Did you mean"),
        ("select 'x'::int", "^sql: Conversion Error: Could not convert string 'x' to INT32"),
        ("select * from embedded where k = ?", "^sql: .*[Pp]arameter"),
        ("-- nothing", "only one SELECT"),
        (
            "select " + "abs(" * 2000 + "1" + ")" * 2000,
            r"Max expression depth limit of 1000 exceeded.$",
        ),
        ("select " + "not " * 900 + "true", "nested too deeply|expression depth"),
        (" union all ".join(["select 1"] * 300), "more than 200 queries and tables"),
        ("select 1 from " + ", ".join(["embedded"] * 300), "more than 200 queries and tables"),
        ("select error('a\nb\n\nLINE 1: c')", "^sql: .*a b"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    reader: ps.StateReader, query: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as raised:
        reader.sql(query)
    assert "\n" not in str(raised.value)


def test_the_picture_of_a_statement_becomes_a_place() -> None:
    """Some versions of the engine draw one."""
    said = 'Binder Error: no column "x"\nCandidates: "n"\n\nLINE 2:   x\n          ^'
    assert one_line(said) == 'Binder Error: no column "x" Candidates: "n" (line 2, column 3)'
    cut = 'Parser Error: at "x"\n\nLINE 1: ...a, b, x\n          ^'
    assert one_line(cut) == 'Parser Error: at "x"'


def test_arguments(reader: ps.StateReader) -> None:
    for given, message in [
        ({"query": ""}, "the statement is a string, such as"),
        ({"query": 3}, "the statement is a string, such as"),
        ({"query": "select 1", "parameters": 3}, "sql: parameters is a list of values"),
        ({"query": "select 1", "timeout": 0}, "sql: timeout"),
        ({"query": "select 1", "timeout": "soon"}, "sql: timeout"),
        ({"query": "select 1", "memory_bytes": 5}, "sql: memory_bytes is 5"),
        ({"query": "select 1", "threads": 0}, "sql: threads is 0"),
    ]:
        for read in (reader.sql, reader.scan_sql):
            with pytest.raises(InvalidArgumentError, match=message):
                read(**given)  # type: ignore[arg-type]
    assert reader.sql("select $a + 1 as b", {"a": 2}).to_pylist() == [{"b": 3}]


@pytest.mark.parametrize(
    "query",
    [
        ENDLESS,
        "with recursive r as (select 1 i union all select (i + 1) % 7 from r) select max(i) from r",
        "select max(n) from embedded",
    ],
)
def test_a_statement_ends_in_time(
    reader: ps.StateReader, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    def endless(table: Any, only: Any, keys: Any) -> Any:
        [batch] = (
            reader[UID].scan(columns=["k", "d", *only]).read_all().combine_chunks().to_batches()
        )
        while True:
            yield batch

    monkeypatch.setattr(tables.StateTable, "_batches", endless)
    with pytest.raises(QueryTimeoutError, match=r"took longer than 0.1 s \(timeout\): ask for"):
        reader.sql(query, timeout=100)
    with pytest.raises(QueryTimeoutError, match=r"took longer than 0.1 s \(timeout\): ask for"):
        reader.scan_sql(query, timeout=100).read_all()


def test_memory_is_bounded_and_nothing_is_put_on_the_disk(
    reader: ps.StateReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for query in (
        "select count(*) from (select distinct i * 7 as i from range(3000000) t(i))",
        "select i from range(5000000) t(i) order by hash(i) offset 4999999",
    ):
        with pytest.raises(MemoryLimitError, match=r"more memory than 16.0 MiB \(memory_bytes\)"):
            reader.sql(query, memory_bytes=16 << 20)
    with pytest.raises(MemoryLimitError, match=r"more memory than 16.0 MiB \(memory_bytes\)"):
        reader.sql("from range(100000000000)", memory_bytes=16 << 20)  # its rows do not fit
    assert os.listdir(tmp_path) == ["store"]
    assert rows(reader, "select count(*) from embedded") == [(20,)]


def test_a_process_of_its_own_gets_no_more_memory(store: ps.Store, reader: ps.StateReader) -> None:
    """What the engine does not count ends a process, and not the program."""
    small: dict[str, Any] = {"isolated": True, "memory_bytes": 64 << 20}
    with pytest.raises(MemoryLimitError, match=r"more memory than 64.0 MiB"):
        reader.sql("select length(repeat('x', 1500000000))", **small)
    with pytest.raises(QueryError, match="did you mean 'embedded'"):
        reader.sql("from embeded", **small)
    with pytest.raises(
        InvalidArgumentError, match="sql: parameter 'x' is no value of SQL: <object"
    ):
        reader.sql("select $x", {"x": object()}, **small)
    at = datetime.datetime(2026, 1, 2, tzinfo=UTC)
    assert reader.sql(
        "select $x as x, $y as y", {"x": at, "y": [None, "é"]}, **small
    ).to_pylist() == [{"x": at, "y": [None, "é"]}]
    with pytest.raises(InvalidArgumentError, match="isolated is True or False"):
        reader.sql("select 1", isolated=1)  # type: ignore[arg-type]


def test_a_process_of_its_own_reads_the_next_epoch_where_one_is_retired(
    store: ps.Store, reader: ps.StateReader
) -> None:
    query = "select max(n) as n from embedded"
    pinned = reader.at(1)
    for n in range(2, 6):
        change(store, 20, n)
    assert reader.epoch == 1
    assert reader.sql(query, isolated=True).to_pylist() == [{"n": 95}]
    assert reader.epoch == 5
    with pytest.raises(CheckpointError, match="does not hold epoch 1; it has 3 to 5"):
        pinned.sql(query, isolated=True)


def test_a_process_of_its_own_ends_with_its_rows(
    store: ps.Store, reader: ps.StateReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = process.SeparateQuery.__init__

    def spy(query: Any, *given: Any) -> None:
        made.append(query)
        real(query, *given)

    monkeypatch.setattr(process.SeparateQuery, "__init__", spy)
    rows = reader.scan_sql("from range(100000000)", isolated=True)
    assert rows.read_next_batch().num_rows
    del rows
    [query] = made
    assert query._process.poll() is not None
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(PystateError, match="has ended with an error: run `/bin/false -m pystate"):
        reader.sql("select 1", isolated=True)


def test_threads_ask_at_the_same_time(store: ps.Store, reader: ps.StateReader) -> None:
    failed: list[Any] = []

    def ask(number: int) -> None:
        for i in range(5):
            query = "select n from embedded where k = ? and d = ?"
            found = rows(reader, query, f"k{i}", i)
            if found != [(i,)]:
                failed.append((number, found))

    threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("call", ["sql(q)", "scan_sql(q).read_all()"])
def test_ctrl_c_ends_a_statement(store: ps.Store, call: str) -> None:
    program = (
        "import sys, pystate as ps\n"
        "from pystate.query.sql import execution\n"
        "real = execution.parse_statement\n"
        "def said(*given):\n"
        "    print('begun', flush=True)\n"
        "    return real(*given)\n"
        "execution.parse_statement = said\n"
        f"q = {ENDLESS!r}\n"
        f"reader = ps.connect({str(store.path)!r})\n"
        "try:\n"
        f"    reader.{call}\n"
        "except KeyboardInterrupt:\n"
        "    print(reader.sql('select 7 as x').to_pylist())\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n", running.communicate()
    running.send_signal(signal.SIGINT)
    said, told = running.communicate(timeout=60)
    assert said.endswith("[{'x': 7}]\n"), (said, told)


def test_without_duckdb(reader: ps.StateReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingPackageError, match=r"^SQL needs duckdb .*'sql'") as raised:
        reader.sql("select 1")
    assert "\n" not in str(raised.value) and installation.extra("sql") in str(raised.value)
