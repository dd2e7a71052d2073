"""Keys that are structs: their fields are the key's columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import DeclarationError, InvalidArgumentError
from pystate.types.keys import leaf, leaves
from pystate.types.state_type import parse_type

PLACE = "struct<city:string,at:struct<x:long,`y z`:long>>"


def test_the_columns_of_a_struct() -> None:
    names = [name for name, _ in leaves("st", parse_type(PLACE))]
    assert names == ["st.city", "st.at.x", "st.at.`y z`"]
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
    assert found == [["a", "b", None], [1, None, None], [2, None, None], [7, 8, 9]]
    for name in ("st.town", "no.city", "no"):
        with pytest.raises((InvalidArgumentError, pa.ArrowInvalid)):
            leaf(rows, name)


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        ctx.register_processing_time_timer(10)
        place = key if hasattr(key, "city") else key[0]
        assert place == (row.st.city, row.st.at) or row.st.at is None
        yield place.city, place.at.x, self.n.value()

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        place = key if hasattr(key, "city") else key[0]
        yield place.city, place.at["y z"], -1


class CountsRows(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + len(batch))
        yield key.city, key.at.x, self.n.value()


def test_the_rows_of_a_struct_come_together() -> None:
    rows = [
        {"st": {"city": c, "at": {"x": x, "y z": 0}}} for c, x in (("a", 1), ("b", 1), ("a", 1))
    ]
    with ps.testing.Harness(CountsRows(), key="st", columns=f"st {PLACE}") as harness:
        assert harness.process([*rows, {"st": None}]) == [("a", 1, 2), ("b", 1, 1), (None, None, 1)]


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
