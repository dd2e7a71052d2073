"""Keys that are structs: their fields are the key's columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.types.arrays import hash_keys
from pystate.types.keys import has_null_marks, key_columns, leaf, leaves
from pystate.types.state_type import parse_type

PLACE = "struct<city:string,at:struct<x:long,`y z`:long>>"


def test_the_columns_of_a_struct() -> None:
    names = [name for name, _ in leaves("st", parse_type(PLACE))]
    assert names == ["st.city", "st.at.x", "st.at.`y z`", "st.at is null", "st is null"]
    rows = pa.record_batch(
        [
            pa.array(
                [{"city": "a", "at": {"x": 1, "y z": 2}}, {"city": "b"}, None],
                parse_type(PLACE).arrow,
            ),
            pa.array([7, 8, 9]),
        ],
        names=["st", "a.b"],
    )
    found = [leaf(rows, name).to_pylist() for name in (*names, "a.b")]
    assert found == [
        ["a", "b", None],
        [1, None, None],
        [2, None, None],
        [None, True, True],
        [None, None, True],
        [7, 8, 9],
    ]
    assert leaf(pa.table(rows), "st.at is null").to_pylist() == [None, True, True]
    for name in ("st.town", "no.city", "no", "no is null", "st.town is null", "no.city is null"):
        with pytest.raises((InvalidArgumentError, pa.ArrowInvalid)):
            leaf(rows, name)


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        ctx.register_processing_time_timer(10)
        place = key if hasattr(key, "city") else key[0]
        assert place == row.st
        yield place.city, place.at.x, self.n.value()

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        place = key if hasattr(key, "city") else key[0]
        yield place.city, place.at["y z"], -1


class CountsRows(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + len(batch))
        at = None if key is None else key.at
        yield key and key.city, at and at.x, self.n.value()


def test_the_rows_of_a_struct_come_together() -> None:
    rows = [
        {"st": {"city": c, "at": {"x": x, "y z": 0}}} for c, x in (("a", 1), ("b", 1), ("a", 1))
    ]
    with ps.testing.Harness(CountsRows(), key="st", columns=f"st {PLACE}") as harness:
        nulls = {"city": None, "at": None}, {"city": None, "at": {"x": None, "y z": None}}, None
        rows += [{"st": st} for st in (*nulls, nulls[0], None)]
        assert harness.process(rows) == [
            ("a", 1, 2),
            ("b", 1, 1),
            *((None, None, n) for n in (2, 1, 2)),
        ]


def test_a_struct_and_one_without_its_nulls_have_one_key_group() -> None:
    rows = pa.record_batch(
        [pa.array([{"city": "a", "at": {"x": 1, "y z": 2}}], parse_type(PLACE).arrow)], ["st"]
    )
    columns = [leaf(rows, name) for name, _ in leaves("st", parse_type(PLACE))]
    assert hash_keys(columns) == hash_keys(columns[:3])


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("key", [["st"], ["st", "k"]])
def test_a_struct_is_a_key_of_a_harness(key: list[str], parallelism: int) -> None:
    rows = [
        {"k": 1, "st": {"city": "a", "at": {"x": 1, "y z": 5}}},
        {"k": 1, "st": {"city": "a", "at": {"x": 2, "y z": 6}}},
        {"k": 1, "st": {"city": "a", "at": {"x": 1, "y z": 5}}},
    ]
    with ps.testing.Harness(
        Counts(), key=key, columns=f"k long, st {PLACE}", parallelism=parallelism
    ) as harness:
        assert sorted(harness.process(rows)) == [("a", 1, 1), ("a", 1, 2), ("a", 2, 1)]
        harness.fail_after(timers=1)
        assert sorted(harness.advance_processing_time(10)) == [("a", 5, -1), ("a", 6, -1)]
        with ps.testing.Harness.restore(harness.snapshot(), Counts(), parallelism=2) as other:
            assert ("a", 1, 3) in other.process(rows[:1])


class Seen(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        ctx.register_processing_time_timer(10)
        yield key, self.n.value()

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, -1


def test_null_structs_are_keys_of_their_own_in_timers_and_beginnings() -> None:
    rows: list[Any] = [{"st": None}, {"st": {"a": None, "b": None}}, {"st": {"a": None, "b": (1,)}}]
    rows.append({"st": {"a": None, "b": (None,)}})
    columns = "st struct<a:string,b:struct<x:long>>"
    with ps.testing.Harness(Seen(), key="st", columns=columns, parallelism=3) as harness:
        keys = [None, *((None, each) for each in (None, (1,), (None,)))]
        found = harness.process([*rows, *rows])
        found.sort(key=lambda pair: (keys.index(pair[0]), pair[1]))
        assert found == [(key, n) for key in keys for n in (1, 2)]
        fired = harness.advance_processing_time(10)
        assert {key for key, _ in fired} == {*harness.keys()} == {*keys}
        # A key is given as the function sees it, or as a dict.
        harness.set_state("n", None, 7)
        others = [{"a": None, "b": None}, (None, {"x": 1}), keys[3]]
        assert [harness.state("n", key) for key in (None, *others)] == [7, 2, 2, 2]
        for key in ((), (None, 1), {"a": 1}, "a"):
            with pytest.raises(InvalidArgumentError, match="is not as a function sees it: struct"):
                harness.state("n", key)
    types = parse_type(columns.removeprefix("st ")).arrow
    whole = pa.table({"st": pa.array([row["st"] for row in rows], types), "n": [10, 20, 30, 40]})
    flat = {name: leaf(whole, name) for name, _ in leaves("st", parse_type(types))}
    for state in (whole, {**flat, "n": whole["n"]}):
        with ps.testing.Harness(Seen(), key="st", columns=columns, initial_state=state) as harness:
            assert [n for _, n in harness.process(rows)] == [11, 21, 31, 41]
    # Without the marks no struct is null.
    for name in ("st.b is null", "st is null"):
        del flat[name]
    state = pa.table({**flat, "n": whole["n"]}).slice(2, 1)
    with ps.testing.Harness(Seen(), key="st", columns=columns, initial_state=state) as harness:
        assert [n for _, n in harness.process(rows)] == [1, 1, 31, 1]


def test_a_snapshot_without_marks_goes_on_with_its_keys() -> None:
    columns = "st struct<a:string,b:struct<x:long>>"
    st = parse_type(columns.removeprefix("st "))
    with ps.testing.Harness(Seen(), key="st", columns=columns) as harness:
        key = tuple(pair for pair in leaves("st", st) if not pair[0].endswith(" is null"))
        assert not has_null_marks([name for name, _ in key], [st])
        harness._make_ranges(key)
        first = harness.process([{"st": {"a": None, "b": None}}])
        snapshot = harness.snapshot()
    with ps.testing.Harness.restore(snapshot, Seen()) as harness:
        assert first == [((None, (None,)), 1)]
        assert harness.process([{"st": None}]) == [((None, (None,)), 2)]


def test_a_struct_is_no_key_of_two_inputs() -> None:
    class Both(ps.KeyedCoProcessFunction):
        n = ps.ValueState("long")

        def process_left(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any: ...

        def process_right(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any: ...

    with pytest.raises(WrongTypeError, match="a key of two inputs is no struct"):
        ps.testing.TwoInputHarness(
            Both(), "st", left="st struct<a:long>", right="st struct<a:long>", schema="n long"
        )


def test_a_struct_of_many_fields_has_too_many_columns() -> None:
    fields = ",".join(f"f{i}:long" for i in range(16))
    with (
        ps.testing.Harness(Seen(), key="st", columns=f"st struct<{fields}>") as harness,
        pytest.raises(DeclarationError, match="1 to 16 columns, got 17; a struct stands for its"),
    ):
        harness.process([{"st": None}])


def test_a_list_inside_a_struct_is_no_key() -> None:
    with (
        ps.testing.Harness(Counts(), key="st", columns="st struct<a:array<long>>") as harness,
        pytest.raises(
            DeclarationError, match=r"key column 'st.a': array<long> is no type of a key"
        ),
    ):
        harness.process([{"st": {"a": [1]}}])


def test_groups_and_ranges_are_whole_numbers() -> None:
    for call, what in (
        (lambda: ps.key_group("a", 128), "key_group: hash is a whole number, not 'a'"),  # type: ignore[arg-type]
        (lambda: ps.key_group(1, None), "max_parallelism is a whole number, not None"),  # type: ignore[arg-type]
        (lambda: ps.key_group(1, 0), "max_parallelism 0"),
        (lambda: ps.range_of(1.0, 128, 2), "range_of: key_group is a whole number, not 1.0"),  # type: ignore[arg-type]
        (lambda: ps.range_of(128, 128, 2), "no key group 128 of 128"),
        (lambda: ps.range_of(1, 128, 1 << 40), "parallelism 1099511627776"),
        (lambda: ps.range_bounds(True, 128, 2), "range_bounds: index is a whole number, not True"),
        (lambda: ps.range_bounds(-(1 << 70), 128, 2), "no range -1180591620717411303424 of 2"),
    ):
        with pytest.raises(InvalidArgumentError, match=what):
            call()
    assert ps.key_group(-(1 << 70) - 1, 128) == 127


def test_keys_are_named_by_structs_or_their_fields() -> None:
    st = parse_type(PLACE)
    key = tuple(leaves("st", st))
    values = [{"city": "a", "at": {"x": 1, "y z": 2}}, None, {"city": "b", "at": None}]
    rows = pa.table({"st": pa.array(values, st.arrow)})
    whole = [column.to_pylist() for column in key_columns(key, rows)]
    assert whole[3:] == [[None, True, True], [None, True, None]]
    flat = {name: leaf(rows.slice(0, 1), name) for name, _ in key[:3]}
    lists = [column.to_pylist() for column in flat.values()]
    for given in (pa.table(flat), list(flat.values()), lists):
        found = [
            column if isinstance(column, list) else column.to_pylist()
            for column in key_columns(key, given)
        ]
        assert found == [column[:1] for column in whole]
    one = tuple(leaves("st", parse_type("struct<a:string>")))
    for named_by in (["a", "b"], pa.array(["a", "b"]), [pa.array(["a", "b"])]):
        named, marks = key_columns(one, named_by)
        assert list(named) in (["a", "b"], [pa.scalar("a"), pa.scalar("b")])
        assert marks.to_pylist() == [None, None]
