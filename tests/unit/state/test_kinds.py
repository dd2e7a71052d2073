"""The kinds of state: what must know each of them does."""

from __future__ import annotations

import gc
import pickle
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pystate as ps
from pystate.state import aggregators, kinds
from pystate.state.declaration import State
from pystate.state.identity import StoredFold
from pystate.state.list import UnionListState
from pystate.state.operator_state import KeylessState

DECLARATIONS: list[State] = [
    ps.ValueState("struct<a: long, b: string>"),
    ps.ValueState(object),
    ps.ListState("string"),
    UnionListState("long"),
    ps.MapState("string", "array<long>"),
    ps.MapState("string", object),
    ps.ListState("struct<`it's`: long>"),
    ps.ListState('struct<`"it\'s" \\\\ é 猫\\n`: long>'),
    ps.ReducingState("long", max),
    StoredFold("#Count() of string"),
    StoredFold("State('decimal(10,2)')"),
    ps.AggregatingState(ps.Mean(), "double"),
    ps.AggregatingState(ps.ApproxDistinct(), "string"),
    ps.AggregatingState(ps.TopK(31), "long"),
    ps.AggregatingState(ps.Variance(sample=False), "long"),
]

OPERATOR_STATES: list[KeylessState] = [
    ps.OperatorListState("struct<a:bigint>", redistribute="union"),
    ps.OperatorListState(object),
    ps.BroadcastState("string", "array<bigint>"),
    ps.BroadcastState("string", object),
    ps.RawState(),
    ps.RawState("key_group"),
]


def test_each_public_kind_is_one_that_files_can_name() -> None:
    public = {getattr(ps, name) for name in ps.__all__}
    states = {kind for kind in public if isinstance(kind, type) and issubclass(kind, State)}
    states = {kind for kind in states if not issubclass(kind, KeylessState)}
    # A union is one of instances, which has its own name; a fold is read without its function.
    assert states == set(kinds.KINDS) - {UnionListState, StoredFold}
    assert {type(declaration) for declaration in DECLARATIONS} == set(kinds.KINDS)


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=str)
def test_a_kind_is_read_as_it_was_stored(declaration: State) -> None:
    stored = declaration.stored_as()
    again = kinds.declared_as(stored)
    # What a reducing state keeps is a value, and what made it is not known by more than its name.
    kind = StoredFold if isinstance(declaration, ps.ReducingState) else type(declaration)
    assert type(again) is kind and again.stored_as() == stored
    assert [column.name for column in again.columns("n")] == [
        column.name for column in declaration.columns("n")
    ]


def test_states_are_declared_in_several_threads_at_once() -> None:
    # Parsing Python would not be safe here before 3.11.8: a collection of garbage amid it, with a
    # callback as Hypothesis has one, lets another thread in.
    def let_another_in(phase: str, _: object) -> None:
        if phase == "start":
            time.sleep(1e-4)

    stored = [declaration.stored_as() for declaration in DECLARATIONS] * 400
    often, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(let_another_in)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            again = list(threads.map(lambda text: kinds.declared_as(text).stored_as(), stored))
    finally:
        gc.set_threshold(*often)
        sys.setswitchinterval(interval)
        gc.callbacks.remove(let_another_in)
    assert again == stored


@pytest.mark.parametrize("declaration", OPERATOR_STATES, ids=str)
def test_operator_state_is_stored_as_a_keyed_kind(declaration: KeylessState) -> None:
    stored = declaration.stored()
    assert type(stored) in kinds.KINDS and declaration.stored_as() == stored.stored_as()
    assert kinds.declared_as(declaration.stored_as()) == stored
    assert declaration.arrow_type == stored.arrow_type
    assert pickle.loads(pickle.dumps(declaration)) == declaration
    assert eval(repr(declaration), vars(ps)) == declaration


def test_numbers_of_accumulators_are_the_cores() -> None:
    header = (Path(__file__).parents[3] / "csrc" / "interface" / "access.h").read_text("utf-8")
    core = {name: int(number) for name, number in re.findall(r"PST_AGG_(\w+) = (\d+)", header)}
    assert core and core == {name: getattr(aggregators, name) for name in core}
    constants = {n for n, value in vars(aggregators).items() if type(value) is int and n[0] != "_"}
    assert constants == {"COLUMN", *core}
