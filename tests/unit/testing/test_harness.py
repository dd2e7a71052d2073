"""The harness: functions in unit tests, with snapshots and failures, without Spark."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    ReplayError,
    SchemaError,
    UnclaimedStateError,
    WrongTypeError,
)
from pystate.testing import Harness, HarnessSnapshot

pytestmark = pytest.mark.usefixtures("table_home")


class Moves(ps.KeyedProcessFunction):
    clicks = ps.ValueState("long", default=0)
    page = ps.ValueState("string")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.clicks.update(self.clicks.value() + 1)
        before = self.page.value()
        if before != row["page"]:
            self.page.update(row["page"])
            yield key, self.clicks.value(), before, row["page"]


class Sums(ps.VectorizedFunction):
    n = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.add(keys, batch.column("v"))
        return {"k": batch.column("k"), "n": self.n.values(keys)}


class RowSums(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)
    seen = ps.ValueState(object)

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + sum(batch.column("v").to_pylist()))
        self.seen.update([*(self.seen.value() or []), batch.num_rows])
        yield key, self.n.value()


def of(process: Any, base: Any = ps.KeyedProcessFunction, **members: Any) -> Any:
    """A function with a number, and with these members."""
    number = ps.ValueState("long", default=0)
    return type("Of", (base,), {"n": number, "process": process, **members})()


def clicks(*pairs: tuple[Any, str]) -> list[dict[str, Any]]:
    return [{"user": user, "page": page} for user, page in pairs]


def values(*pairs: tuple[Any, int]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v} for k, v in pairs]


def all_sums(harness: Harness) -> dict[Any, int]:
    keys = harness.keys()
    return {key: harness.state("n", key) for key in keys}


MOVES = "user string, clicks long, came_from string, page string"


# -- epochs and state


def test_a_functions_own_unit_test() -> None:
    with Harness(Moves(), key="user", schema=MOVES) as harness:
        assert harness.process(clicks(("ada", "home"), ("bob", "home"), ("ada", "home"))) == [
            ("ada", 1, None, "home"),
            ("bob", 1, None, "home"),
        ]
        [moved] = harness.process(clicks(("ada", "shop")))
        assert (moved.user, moved["clicks"], moved.came_from) == ("ada", 3, "home")
        assert harness.states("ada") == {"clicks": 3, "page": "shop"}
        assert harness.state("clicks", "nobody") == 0
        assert sorted(harness.keys()) == ["ada", "bob"]
        assert (harness.epoch, len(harness.output)) == (2, 3)
        assert len(harness.take_output()) == 3 and harness.output == []


def test_without_a_schema_rows_are_taken_as_they_are() -> None:
    with Harness(of(lambda self, key, row, ctx: [row, {"any": key}]), key="k") as harness:
        first, second = harness.process(values((1, 2)))
        assert (first.k, first.v, second) == (1, 2, {"any": 1})


def test_what_is_yielded_is_checked_as_on_spark() -> None:
    with (
        Harness(Moves(), key="user", schema="user string, clicks string") as harness,
        pytest.raises(WrongTypeError, match="operator 'harness' yielded 4 values"),
    ):
        harness.process(clicks(("ada", "home")))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_vectorised_and_by_key(parallelism: int) -> None:
    rows = values(("a", 1), ("b", 2), ("a", 3))
    with Harness(Sums(), key="k", parallelism=parallelism, batch_rows=2) as harness:
        found = sorted(harness.process(rows), key=tuple)
        assert found[0].n in (1, 4) and harness.state("n", "a") == 4
    with Harness(RowSums(), key="k", parallelism=parallelism) as harness:
        assert sorted(harness.process(rows)) == [("a", 4), ("b", 2)]
        assert harness.states("a") == {"n": 4, "seen": [2]}


def test_several_key_columns_of_declared_types() -> None:
    with Harness(Sums(), key={"k": "string", "v": "int"}, parallelism=2) as harness:
        assert harness.state("n", ("x", 1)) == 0
        harness.process(values(("x", 1), ("x", 1), ("y", 2), (None, 3)))
        assert harness.state("n", ("x", 1)) == 2
        assert harness.state("n", (None, 3)) == 3
        assert set(harness.keys()) == {("x", 1), ("y", 2), (None, 3)}
        with pytest.raises(InvalidArgumentError, match="'x' is no tuple of k, v"):
            harness.state("n", "x")
    with Harness(Sums(), key=["k", "v"]) as harness:
        harness.process(values(("x", 1)))
        assert harness.keys() == [("x", 1)]


def test_every_epoch_works_on_a_copy_of_the_function() -> None:
    class Remembers(ps.KeyedProcessFunction):
        n = ps.ValueState("long")

        def __init__(self) -> None:
            self.calls = 0

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            self.calls += 1
            yield self.calls

    with Harness(Remembers(), key="k") as harness:
        assert harness.process(values(("a", 1), ("a", 1))) == [1, 2]
        assert harness.process(values(("a", 1))) == [1]


def test_an_object_changed_in_place_without_update_is_gone_with_the_epoch() -> None:
    class Forgetful(ps.KeyedProcessFunction):
        seen = ps.ValueState(object)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            found = self.seen.value()
            if found is None:
                found = set()
                self.seen.update(found)
            found.add(row["v"])
            yield len(found)

    with Harness(Forgetful(), key="k") as harness:
        assert [harness.process(values((1, i)))[0] for i in range(4)] == [1, 2, 2, 2]
        assert harness.state("seen", 1) == {0}
        with Harness.restore(harness.snapshot(), Forgetful()) as restored:
            assert restored.state("seen", 1) == {0}


def test_an_epoch_that_raises_changes_nothing() -> None:
    class Picky(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            self.n.update(self.n.value() + 1)
            ctx.output("all", (key,))
            yield key
            if row.v < 0:
                raise ValueError("negative")

    with Harness(Picky(), key="k", side_outputs=["all"], parallelism=2) as harness:
        harness.process(values(("a", 1)))
        with pytest.raises(ValueError, match="negative"):
            harness.process(values(("a", 1), ("b", 1), ("c", -1)))
        assert harness.states("a") == {"n": 1} and harness.keys() == ["a"]
        assert (harness.output, harness.side_output("all"), harness.epoch) == (["a"], [("a",)], 1)
        assert harness.process(values(("a", 1))) == ["a"]


def test_looking_at_state_changes_nothing() -> None:
    with Harness(RowSums(), key="k") as harness:
        harness.process(values(("a", 1)))
        before = harness.snapshot()
        for key in ("a", "b"):
            harness.states(key)["seen"]
        assert harness.keys() == ["a"]
        assert harness.snapshot()._files == before._files
        with pytest.raises(InvalidArgumentError, match="no state 'm'; declared: 'n', 'seen'"):
            harness.state("m", "a")


# -- what it is fed


def test_kinds_of_rows() -> None:
    click = namedtuple("click", ["user", "page"])
    table = pa.table({"page": ["p"], "user": ["ada"]})
    with Harness(Moves(), key="user") as harness:
        harness.process({"user": "ada", "page": "p"})
        harness.process([click("ada", "p"), ("ada", "p"), {"page": "p", "user": "ada"}])
        harness.process(table)
        harness.process(table.to_batches()[0])
        harness.process(row for row in clicks(("ada", "p")))
        harness.process([])
        harness.process(table.slice(1))
        assert harness.states("ada") == {"clicks": 7, "page": "p"}


def test_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    with Harness(Sums(), key="k") as harness:
        harness.process(pandas.DataFrame({"k": ["a", "a"], "v": [1, 2]}))
        assert harness.state("n", "a") == 3


def test_declared_columns() -> None:
    with Harness(Sums(), key="k", columns="k int, v long not null, note string") as harness:
        harness.process([(1, 2, None), {"k": 1, "v": 3}])
        assert harness.state("n", 1) == 5
        with pytest.raises(WrongTypeError, match="column 'v' is declared not null"):
            harness.process([{"k": 1}])
        with pytest.raises(WrongTypeError, match="column 'k' is declared int and got 'x'"):
            harness.process([("x", 1, None)])
        with pytest.raises(InvalidArgumentError, match="is no row of 3 columns: k, v, note"):
            harness.process([(1, 2)])
        with pytest.raises(InvalidArgumentError, match=r"has the columns k, w, not k, v, note$"):
            harness.process([{"k": 1, "w": 2}])


def test_columns_of_the_first_rows() -> None:
    with Harness(Moves(), key="user") as harness:
        with pytest.raises(InvalidArgumentError, match="column 'user' holds only nulls so far"):
            harness.process(clicks((None, "p")))
        harness.process([{"user": "ada", "page": None}])
        harness.process(clicks(("ada", "p")))
        assert harness.state("page", "ada") == "p"
        with pytest.raises(WrongTypeError, match=r"the first rows decide.*'page' .*got 1"):
            harness.process([{"user": "ada", "page": 1}])
        with pytest.raises(InvalidArgumentError, match=r"has the columns user, when.*first rows"):
            harness.process([{"user": "ada", "when": 1}])
    for rows, error in (
        ("rows", "not 'rows'"),
        (3, "not 3"),
        ([3], "does not say which value"),
        ([("ada", "p")], "columns='key string, n long'"),
        ([{"user": "ada", "page": "p"}, {"user": 1, "page": "p"}], "no one type"),
        ([{"name": "ada"}], "key column 'user' is not among name$"),
        ([{"usr": "ada", "n": 1}], "'user' is not among usr, n; did you mean 'usr'?"),
    ):
        with (
            Harness(Moves(), key="user") as harness,
            pytest.raises(InvalidArgumentError, match=error),
        ):
            harness.process(rows)


def test_a_row_without_its_key_is_refused() -> None:
    click = namedtuple("click", ["page"])
    with Harness(Moves(), key=["user"]) as harness:
        harness.process([{"user": "ada"}, {"user": "ada", "page": "p"}, {"user": None}])
        assert harness.states("ada") == {"clicks": 2, "page": "p"}
        for row in ({"page": "p"}, click("p")):
            with pytest.raises(InvalidArgumentError, match=r"lacks the key column 'user'; .*None}"):
                harness.process([{"user": "ada"}, row])
        assert set(harness.keys()) == {"ada", None} and harness.epoch == 1
        again = Harness.restore(harness.snapshot(), Moves())
    with again, pytest.raises(InvalidArgumentError, match="lacks the key column 'user'"):
        again.process({"page": "p"})


def test_a_failed_first_epoch_decides_no_columns() -> None:
    class Picky(RowSums):
        def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
            if batch.schema.field("v").type != pa.int64():
                raise ValueError("v is a number")
            return super().process_rows(key, batch, ctx)

    with Harness(Picky(), key="k") as harness:
        with pytest.raises(ValueError, match="v is a number"):
            harness.process([{"k": "a", "v": "1"}])
        with pytest.raises(InvalidArgumentError, match="no row has come yet"):
            harness.state("n", 1)
        assert harness.process(values((1, 5))) == [(1, 5)]
        with pytest.raises(WrongTypeError, match="the first rows decide"):
            harness.process([{"k": 1, "v": "x"}])
        assert harness.states(1) == {"n": 5, "seen": [1]}


def test_arguments_that_make_no_sense() -> None:
    class Stateless(ps.KeyedProcessFunction):
        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None: ...

    for function, options, error, match in (
        (Stateless(), {}, DeclarationError, "'harness': Stateless declares no state and has"),
        (Sums(), {"parallelism": 0}, InvalidArgumentError, "parallelism is 1 to"),
        (Sums(), {"parallelism": 129}, InvalidArgumentError, r"max_parallelism \(128\)"),
        (Sums(), {"schema": "k"}, InvalidArgumentError, "schema 'k' does not parse"),
        (Sums(), {"schema": 3}, InvalidArgumentError, "columns are DDL"),
        (Sums(), {"schema": "k int, K int"}, InvalidArgumentError, "names k more than once"),
        (Sums(), {"side_outputs": "late"}, InvalidArgumentError, "side_outputs is a list of tags"),
        (Sums(), {"allowed_delay": -1}, InvalidArgumentError, "allowed_delay"),
        (Sums(), {"allowed_delay": "5 s"}, InvalidArgumentError, "allowed_delay .* event_time="),
        (Sums(), {"late": "late"}, InvalidArgumentError, "late is about .* event_time="),
        (Sums(), {"key": []}, DeclarationError, "a key has 1 to"),
        (
            Sums(),
            {"columns": "k long, at long", "event_time": "zz"},
            InvalidArgumentError,
            "event_time='zz' is not a column; columns: k, at",
        ),
        (
            Sums(),
            {"columns": "k long, at string", "event_time": "at"},
            WrongTypeError,
            "event-time column 'at': event time is a timestamp, .* not string",
        ),
        (
            Sums(),
            {"columns": "v long"},
            InvalidArgumentError,
            "operator 'harness': key column 'k' is not among v$",
        ),
        (
            Sums(),
            {"columns": "kk long, key long", "key": "keys"},
            InvalidArgumentError,
            r"key column 'keys' is not among kk, key; did you mean 'key'\?",
        ),
        (
            Sums(),
            {"columns": "k long, when timestamp", "event_time": "whem"},
            InvalidArgumentError,
            r"event_time='whem' is not a column; columns: k, when; did you mean 'when'\?",
        ),
        (Sums, {}, DeclarationError, "Sums'> is no KeyedProcessFunction .*; pass an instance"),
        (Sums(), {"processing_time": "now"}, WrongTypeError, "processing_time is an int"),
    ):
        with pytest.raises(error, match=match):
            Harness(function, **{"key": "k", **options})
    with Harness(Sums(), key="k") as harness:
        with pytest.raises(InvalidArgumentError, match="no row has come yet"):
            harness.state("n", "a")
        with pytest.raises(InvalidArgumentError, match="no side output 'x'; declared: none"):
            harness.side_output("x")
        assert harness.keys() == [] and harness.process([]) == []


def test_schemas_in_all_spellings() -> None:
    for schema in (
        "`k` string, n: bigint NOT NULL",
        {"k": "string", "n": pa.int64()},
        pa.schema([("k", pa.string()), pa.field("n", pa.int64(), nullable=False)]),
    ):
        with Harness(Sums(), key="k", schema=schema) as harness:
            assert harness.process(values(("a", 1))) == [("a", 1)]


# -- time and side outputs


class Timed(ps.KeyedProcessFunction):
    last = ps.ValueState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.last.update(ctx.timestamp)
        yield key, ctx.timestamp, ctx.watermark, ctx.processing_time


def at(*times: Any) -> list[dict[str, Any]]:
    return [{"k": "a", "at": time} for time in times]


def test_times_stand_still_until_they_are_moved() -> None:
    with Harness(Timed(), key="k", event_time="at", processing_time=7) as harness:
        assert harness.process(at(10)) == [("a", 10, None, 7)]
        assert harness.advance_watermark(20) == []
        assert harness.advance_processing_time(timedelta(seconds=1)) == []
        assert harness.process(at(15, 30)) == [("a", 15, 20, 1007), ("a", 30, 20, 1007)]
        assert (harness.late_rows, harness.watermark, harness.processing_time) == (1, 20, 1007)
        assert harness.epoch == 4
        with pytest.raises(InvalidArgumentError, match="watermark is 20 and never goes back"):
            harness.advance_watermark(19)
        with pytest.raises(InvalidArgumentError, match="processing time is 1007 and never"):
            harness.advance_processing_time(1006)


def test_the_watermark_follows_the_rows_with_an_allowed_delay() -> None:
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)
    begin = int(moment.timestamp() * 1000)
    minutes = [moment + timedelta(minutes=m) for m in range(20)]
    with Harness(
        Timed(), key="k", event_time="at", allowed_delay="5 minutes", late="late"
    ) as harness:
        harness.process(at(minutes[10], minutes[2]))
        assert harness.watermark == begin + 5 * 60_000
        assert harness.late_rows == 0
        harness.process(at(minutes[4], minutes[5]))
        assert harness.late_rows == 1
        assert [row.at for row in harness.side_output("late")] == [minutes[4]]
        assert harness.watermark == begin + 5 * 60_000
        harness.advance_watermark(minutes[9])
        assert harness.watermark == begin + 9 * 60_000
        assert harness.state("last", "a") == begin + 5 * 60_000


def telling(told: Any, base: Any = ps.KeyedProcessFunction) -> Any:
    return of(lambda self, key, rows, ctx: ctx.output("news", told), base)


def test_a_dict_is_a_row_of_a_side_output_unless_the_function_is_vectorised() -> None:
    row = {"b": "x", "a": 1}
    with Harness(telling(row), key="k", side_outputs={"news": "a long, b string"}) as harness:
        harness.process([{"k": 1}])
        assert harness.side_output("news") == [(1, "x")]
    with Harness(telling(row), key="k", side_outputs=["news"]) as harness:
        harness.process([{"k": 1}])
        assert harness.side_output("news") == [row]
    with Harness(
        telling({"a": [1, 2]}, ps.VectorizedFunction), key="k", side_outputs={"news": "a long"}
    ) as harness:
        harness.process([{"k": 1}])
        assert harness.side_output("news") == [(1,), (2,)]


@pytest.mark.parametrize("told", [{"a": 1}, {"a": [1], "b": [1, 2]}, {"a": ["x", 1]}], ids=str)
@pytest.mark.parametrize("sides", [["news"], {"news": "a long"}], ids=str)
def test_a_dict_that_is_no_batch_is_refused_by_the_side_outputs_name(sides: Any, told: Any) -> None:
    with (
        Harness(
            telling(told, ps.VectorizedFunction), key="k", side_outputs=sides, uid="one"
        ) as harness,
        pytest.raises(WrongTypeError, match=r"^operator 'one', side output 'news' got .* a tuple"),
    ):
        harness.process([{"k": 1}])


class Maps(ps.KeyedProcessFunction):
    seen = ps.MapState("string", "long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        for name, number in row["m"].items():
            self.seen.put(name, number)
        ctx.output("copies", (row["m"],))
        yield key, row["m"], [row["m"]]


def test_maps_are_dicts_in_rows_and_outputs() -> None:
    with Harness(
        Maps(),
        key="k",
        columns="k long, m map<string,long>",
        schema="k long, m map<string,long>, l array<map<string,long>>",
        side_outputs={"copies": "m map<string,long>"},
    ) as harness:
        found = harness.process([{"k": 1, "m": {"a": 1, "b": 2}}])
        assert found == [(1, {"a": 1, "b": 2}, [{"a": 1, "b": 2}])]
        assert harness.side_output("copies") == [({"a": 1, "b": 2},)]
        assert harness.state("seen", 1) == {"a": 1, "b": 2}


def test_side_outputs_with_and_without_columns() -> None:
    splits = of(lambda self, k, row, ctx: ctx.output("odd" if row.v % 2 else "even", (k, row.v)))
    rows = values(("a", 1), ("b", 2))
    with Harness(splits, key="k", side_outputs=["odd", "even"]) as harness:
        harness.process(rows)
        assert harness.side_output("odd") == [("a", 1)]
        assert harness.side_output("even") == [("b", 2)]
    sides = {"odd": "user string, n int", "even": "user string, n byte"}
    with Harness(splits, key="k", side_outputs=sides) as harness:
        harness.process(rows)
        assert harness.side_output("odd")[0].user == "a"
        with pytest.raises(WrongTypeError, match=r"side output 'even': column 'n' .*byte"):
            harness.process(values(("a", 1000)))
        assert len(harness.side_output("odd")) == 1


# -- snapshots


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(-9, 9)), max_size=30), max_size=6),
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
)
def test_uneven_scale_up_and_down(
    epochs: list[list[tuple[int, int]]], parallelisms: list[int]
) -> None:
    key: dict[str, Any] = {"k": "long"}
    harness = Harness(Sums(), key=key, parallelism=parallelisms[0])
    wanted: dict[int, int] = {}
    for rows, parallelism in zip(epochs, itertools.cycle(parallelisms), strict=False):
        snapshot: HarnessSnapshot = pickle.loads(pickle.dumps(harness.snapshot()))
        harness.close()
        harness = Harness.restore(snapshot, Sums(), parallelism=parallelism)
        harness.process(values(*rows))
        for k, v in rows:
            wanted[k] = wanted.get(k, 0) + v
        assert all_sums(harness) == wanted
    assert harness.epoch == len(epochs)
    harness.close()


def test_a_snapshot_stands_still() -> None:
    with Harness(Moves(), key="user", schema=MOVES, parallelism=2) as harness:
        harness.process(clicks(("ada", "a"), ("bob", "b")))
        snapshot = harness.snapshot()
        harness.process(clicks(("ada", "x"), ("eve", "y")))
        assert repr(snapshot).startswith("<HarnessSnapshot of epoch 1, ")
    for parallelism in (1, 7):
        with Harness.restore(snapshot, Moves(), parallelism=parallelism) as restored:
            assert sorted(restored.keys()) == ["ada", "bob"]
            assert restored.epoch == 1 and restored.output == []
            assert restored.process(clicks(("ada", "x"))) == [("ada", 2, "a", "x")]
            assert restored.snapshot().epoch == 2


def test_times_and_options_survive_a_restore() -> None:
    with Harness(Timed(), key="k", event_time="at", late="late", processing_time=5) as harness:
        harness.process(at(10))
        harness.advance_watermark(8)
        snapshot = harness.snapshot()
    with Harness.restore(snapshot, Timed()) as restored:
        assert restored.process(at(7, 9)) == [("a", 9, 8, 5)]
        assert len(restored.side_output("late")) == 1


def test_a_snapshot_before_the_first_row() -> None:
    with Harness(Moves(), key="user") as harness:
        snapshot = harness.snapshot()
    with Harness.restore(snapshot, Moves()) as restored:
        assert len(restored.process(clicks(("ada", "a")))) == 1


def test_a_restore_with_other_code() -> None:
    class More(Moves):
        extra = ps.ValueState("long", default=7)

    class Less(ps.KeyedProcessFunction):
        clicks = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None: ...

    text = ps.ValueState("string")
    other = type("Other", (Less.__base__,), {"clicks": text, "page": text, "process": Less.process})
    with Harness(Moves(), key="user") as harness:
        harness.process(clicks(("ada", "a")))
        snapshot = harness.snapshot()
    with Harness.restore(snapshot, More()) as restored:
        assert restored.states("ada") == {"clicks": 1, "page": "a", "extra": 7}
    with pytest.raises(UnclaimedStateError, match="claims: page;"):
        Harness.restore(snapshot, Less())
    with Harness.restore(snapshot, Less(), allow_unclaimed_state=True) as restored:
        assert restored.states("ada") == {"clicks": 1}
    with pytest.raises(SchemaError, match="clicks"):
        Harness.restore(snapshot, other())


class TimersAlone(ps.KeyedProcessFunction):
    namespace = "string"

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.set_namespace(row["room"])
        ctx.register_event_time_timer(row["at"] + 10)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp


class VectorTimersAlone(ps.VectorizedFunction):
    def process(self, keys: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timers(keys, pc.add(batch.column("at"), 10))

    def on_timers(self, keys: Any, timestamps: Any, ctx: ps.RuntimeContext) -> Any:
        return {"k": keys.key_arrays()[0], "at": timestamps}


@pytest.mark.parametrize("function", [TimersAlone, VectorTimersAlone])
@pytest.mark.parametrize(("before", "after"), [(1, 7), (7, 1), (3, 2)])
def test_timers_alone_are_state(function: Any, before: int, after: int) -> None:
    rows = [{"k": k, "at": k, "room": room} for k in range(40) for room in ("a", None)]
    each = 2 if function is TimersAlone else 1
    with Harness(function(), key="k", event_time="at", parallelism=before) as harness:
        harness.process(rows)
        assert sorted(harness.advance_watermark(20)) == sorted(
            [(k, k + 10) for k in range(11)] * each
        )
        snapshot = harness.snapshot()
    with Harness.restore(snapshot, function(), parallelism=after) as harness:
        assert harness.next_timer("event") == 21
        harness.fail_after(timers=3)
        fired = harness.advance_watermark(1000)
        assert sorted(fired) == sorted([(k, k + 10) for k in range(11, 40)] * each)
        assert harness.next_timer("event") is None and harness.advance_watermark(2000) == []


# -- failures


ROWS = values(("a", 1), ("b", 2), ("a", 3), ("c", 4))


class Running(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + row.v)
        ctx.output("seen", (key, row.v))
        yield key, self.n.value()


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("n_rows", [0, 1, 2, 3, 4])
def test_a_failure_leaves_no_trace(n_rows: int, parallelism: int) -> None:
    wanted = Harness(Running(), key="k", side_outputs=["seen"], parallelism=parallelism)
    with Harness(Running(), "k", side_outputs=["seen"], parallelism=parallelism) as harness:
        for h in (wanted, harness):
            h.process(values(("a", 10)))
        harness.fail_after(n_rows)
        assert harness.process(ROWS) == wanted.process(ROWS)
        assert harness.failures == 1
        assert harness.side_output("seen") == wanted.side_output("seen")
        assert all_sums(harness) == {"a": 14, "b": 2, "c": 4}
        assert harness.epoch == 2


@pytest.mark.parametrize("function", [Sums, RowSums, Running])
@pytest.mark.parametrize("point", ["seal", "publish"])
def test_a_failure_of_the_commit_leaves_no_trace(function: Any, point: Any) -> None:
    with Harness(function(), key="k", side_outputs=["seen"], parallelism=2) as harness:
        harness.process(ROWS)
        harness.fail_at(point)
        harness.process(ROWS)
        assert harness.failures == 1
        assert harness.state("n", "a") == 8
        with Harness.restore(harness.snapshot(), function()) as restored:
            assert restored.state("n", "a") == 8
        with pytest.raises(InvalidArgumentError, match="'seal' or 'publish', not 'open'"):
            harness.fail_at("open")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [Sums, RowSums])
def test_a_failure_between_calls_with_several_rows(function: Any) -> None:
    with Harness(function(), key="k", batch_rows=2) as harness:
        for n_rows in (1, 3):
            harness.fail_after(n_rows)
            harness.process(ROWS)
        assert (harness.failures, harness.state("n", "a")) == (2, 8)


def test_rows_until_the_failure_are_counted_over_epochs() -> None:
    with Harness(Running(), key="k", side_outputs=["seen"]) as harness:
        harness.fail_after(6)
        harness.process(ROWS)
        assert harness.failures == 0
        harness.process(ROWS)
        assert (harness.failures, harness.state("n", "a")) == (1, 8)


def test_what_a_function_keeps_elsewhere_does_not_roll_back() -> None:
    total = itertools.count()

    for function in (
        of(lambda self, key, row, ctx: [(key, next(total))]),
        of(lambda self, keys, batch, ctx: {"total": [next(total)]}, ps.VectorizedFunction),
    ):
        with Harness(function, key="k", batch_rows=2) as harness:
            harness.fail_after(2)
            with pytest.raises(ReplayError, match=r"epoch 1 was computed twice.*its row 0 was"):
                harness.process(ROWS)
            assert harness.output == [] and harness.keys() == []


def test_a_failure_that_never_happened_is_an_error() -> None:
    with (
        pytest.raises(InvalidArgumentError, match=r"left: rows=96\): the failure never happened"),
        Harness(Running(), key="k", side_outputs=["seen"]) as harness,
    ):
        harness.fail_after(100)
        harness.process(ROWS)
    with Harness(Running(), key="k") as harness:
        for wrong in ({}, {"rows": 1, "timers": 1}):
            with pytest.raises(InvalidArgumentError, match="a number of rows or of timers"):
                harness.fail_after(**wrong)


# -- without Spark


def test_it_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "class NoSpark:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyspark', 'py4j', 'pandas'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, NoSpark())\n"
        "import pystate as ps\n"
        "class Count(ps.KeyedProcessFunction):\n"
        "    n = ps.ValueState('long', default=0)\n"
        "    def process(self, key, row, ctx):\n"
        "        self.n.update(self.n.value() + 1)\n"
        "        yield key, self.n.value()\n"
        "with ps.testing.Harness(Count(), key='k') as harness:\n"
        "    harness.fail_after(1)\n"
        "    print(harness.process([{'k': 1}, {'k': 1}]))\n"
    )
    environment = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    # An instrumented extension does not load without them.
    kept = {k: v for k, v in os.environ.items() if k == "LD_PRELOAD" or k.endswith("SAN_OPTIONS")}
    environment |= kept
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(ps.__file__).parents[1],
    )
    assert (done.stderr, done.stdout) == ("", "[(1, 1), (1, 2)]\n")


def test_rows_of_any_kind_survive_an_injected_failure() -> None:
    def process(self: Any, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield {"k": key, "nan": float("nan"), "many": np.array([key, np.nan])}

    with Harness(of(process), key="k") as harness:
        harness.fail_after(2)
        rows = harness.process([{"k": k} for k in (1, 2, 3)])
        assert [row["k"] for row in rows] == [1, 2, 3]
        assert [harness.state("n", k) for k in (1, 2, 3)] == [1, 1, 1]


def test_a_function_learns_of_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    class Told(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            self.n.update(self.n.value() + 1)
            yield key, self.n.value()

        def on_checkpoint_complete(self, epoch: int) -> None:
            told.append(epoch)
            self.n.update(9)  # there is no key

    with ps.testing.Harness(Told(), key={"k": "long"}) as harness:
        for number in range(3):
            assert harness.process([{"k": 1}]) == [(1, number + 1)]
    assert told == [1, 2]
    assert "on_checkpoint_complete(2) failed" in caplog.text


class EveryKind(ps.KeyedProcessFunction):
    value = ps.ValueState("long", default=0)
    nested = ps.ValueState("struct<a:long>")
    items = ps.ListState("string")
    entries = ps.MapState("string", "long")
    most = ps.ReducingState("long", max)
    mean = ps.AggregatingState(ps.Mean(), "long")
    namespace = "long"

    def process(self, key: Any, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.set_namespace(row["n"])
        yield self.value.value(), self.items.get(), self.entries.items(), self.most.get()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_states_are_set_and_read_between_epochs(parallelism: int) -> None:
    values: dict[str, Any] = {
        "value": 7,
        "nested": {"a": 1},
        "items": ["x", "y"],
        "entries": {"k": 3},
        "most": 9,
    }
    with Harness(EveryKind(), key={"k": "string"}, parallelism=parallelism) as harness:
        for name, value in values.items():
            harness.set_state(name, "a", 0 if name == "most" else value, namespace=5)
            harness.set_state(name, "a", value, namespace=5)
            assert harness.state(name, "a", namespace=5) == value
        harness.set_state("mean", "a", [1, 2, 6], namespace=5)
        assert harness.state("mean", "a", namespace=5) == 3.0
        assert harness.state("value", "a") == 0 and harness.epoch == 0
        shown = (7, ["x", "y"], [("k", 3)], 9)
        assert harness.process([{"k": "a", "n": 5}]) == [shown]
        # What was set stays if an epoch after it fails, and is in snapshots.
        harness.set_state("value", "a", 8, namespace=5)
        with pytest.raises(WrongTypeError):
            harness.process([{"k": "a", "n": "x"}])
        with pytest.raises(WrongTypeError):
            harness.set_state("value", "a", "x", namespace=5)
        snapshot = harness.snapshot()
        with pytest.raises(ps.errors.PystateError, match="values"):
            harness.set_state("values", "a", 1)
    with Harness.restore(snapshot, EveryKind(), parallelism=2) as harness:
        assert harness.process([{"k": "a", "n": 5}]) == [(8, *shown[1:])]
        for name in ("value", "items", "entries", "most", "mean", "nested"):
            harness.set_state(name, "a", None, namespace=5)
        assert harness.keys() == []
    with Harness(EveryKind(), key="k") as harness, pytest.raises(InvalidArgumentError, match="say"):
        harness.set_state("value", "a", 1)


def test_a_state_that_was_set_expires_by_the_harness_s_time() -> None:
    kept = ps.ValueState("long", ttl=ps.StateTtl(1_000))
    function = of(lambda self, key, row, ctx: [self.v.value()], v=kept)
    with Harness(function, key={"k": "string"}, processing_time=50_000) as harness:
        harness.set_state("v", "a", 1)
        harness.advance_processing_time(50_999)
        assert harness.process([{"k": "a"}]) == [1]
        harness.advance_processing_time(51_000)
        assert harness.process([{"k": "a"}]) == [None]


def test_a_snapshot_that_another_version_has_pickled_is_refused() -> None:
    with Harness(Sums(), key={"k": "long"}) as harness:
        make, (version, *rest) = harness.snapshot().__reduce__()
    assert make(version, *rest).epoch == 0
    with pytest.raises(
        InvalidArgumentError,
        match="HarnessSnapshot was pickled by a version of pystate that writes format 2, and this "
        "one reads 1: take the snapshot again",
    ):
        make(version + 1, *rest)
