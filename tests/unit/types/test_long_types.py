"""Types and rows of many columns: their limits are told at once, and each column costs the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.base.arguments import duplicates
from pystate.errors import DeclarationError
from pystate.operators.runtime.rows import RowFactory
from pystate.state.columns import column_of
from pystate.state.evolution import column_change
from pystate.types.state_type import parse_type


def struct(fields: int, name: str = "c") -> str:
    return "struct<" + ",".join(f"{name}{i}:int" for i in range(fields)) + ">"


@pytest.mark.parametrize(
    "declare",
    [
        ps.ValueState,
        ps.ListState,
        lambda type_: ps.MapState("string", type_),
        lambda type_: ps.ReducingState(type_, max),
        lambda type_: ps.BroadcastState("string", type_),
        ps.OperatorListState,
    ],
)
def test_a_type_that_files_do_not_keep_is_no_declaration(declare: Callable[[str], Any]) -> None:
    longest = "struct<" + "a" * (65535 - len("struct<:int>")) + ":int>"
    declare(longest)
    with pytest.raises(DeclarationError, match=r"has 65536 bytes, and a state file keeps at most"):
        declare(longest.replace("struct<a", "struct<aa"))


def test_the_longest_type_is_kept(tmp_path: Path) -> None:
    type_ = struct(6200)
    row = {f"c{i}": i for i in range(6200)}
    states = {"v": ps.ValueState(type_)}
    with ps.open(tmp_path, key="long", states=states) as store:
        store.set_current_key(1)
        store["v"].update(row)
        store.checkpoint()
    with ps.open(tmp_path, key="long", states=states) as store:
        store.set_current_key(1)
        assert store["v"].value() == row


def test_a_name_that_files_do_not_keep_is_no_state() -> None:
    ps.KeyedStateBackend("int", states={"n" * 60_000: ps.ValueState("int")})
    with pytest.raises(DeclarationError, match="its name has 65536 bytes"):
        ps.KeyedStateBackend("int", states={"n" * 65536: ps.ValueState("int")})


def calls(function: Callable[[], Any]) -> int:
    """How many functions are called, in Python and in C: what takes time, on any machine."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def reopened(fields: int) -> None:
    old, new = column_of("s", parse_type(struct(fields))), struct(fields + 1)
    column_change(old, column_of("s", parse_type(new)))


@pytest.mark.parametrize("work", [lambda n: parse_type(struct(n)), reopened])
def test_calls_grow_with_the_fields(work: Callable[[int], Any]) -> None:
    few, many = calls(lambda: work(100)), calls(lambda: work(1000))
    assert many < 15 * few


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]


def test_names_are_compared_with_few_others() -> None:
    names = [Counted(f"c{i}") for i in range(2000)]
    Counted.compared = 0
    assert duplicates([*names, Counted("c7"), Counted("c7")]) == ["c7"]
    RowFactory(names)
    assert Counted.compared < 20 * len(names)


def test_a_batch_of_many_columns_is_handled() -> None:
    class Sums(ps.KeyedProcessFunction):
        n = ps.ValueState("double", default=0.0)

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            self.n.update(self.n.value() + row["c2999"])
            yield row.asDict()

    columns = {f"c{i}": [1.0, 2.0, 3.0] for i in range(3000)}
    table = pa.table({"k": [1, 2, 1], **columns})
    with ps.testing.Harness(Sums(), key="k", schema=table.schema) as harness:
        rows = harness.process(table)
        assert len(rows) == 3 and rows[2][-1] == 3.0 and harness.state("n", 1) == 4.0
