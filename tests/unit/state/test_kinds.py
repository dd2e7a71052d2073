"""The kinds of state: what must know each of them does."""

from __future__ import annotations

import gc
import io
import pickle
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError, NewerFormatError
from pystate.state import aggregators, evolution, kinds
from pystate.state.declaration import State
from pystate.state.handle import StateHandle
from pystate.state.identity import StoredFold
from pystate.state.list import UnionListState
from pystate.state.operator_state import KeylessState
from pystate.state.value import ValueHandle


class Thing:
    """A value of any class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.name == other.name

    __hash__ = None  # type: ignore[assignment]


class Things(ps.AggregateFunction[Thing, list[Thing], list[Thing]]):
    """An aggregate of objects, which are changed in place."""

    def __repr__(self) -> str:
        return "Things()"  # for the names of tests

    def create(self) -> list[Thing]:
        return []

    def add(self, accumulator: list[Thing], value: Thing) -> list[Thing]:
        accumulator.append(value)
        return accumulator

    def merge(self, a: list[Thing], b: list[Thing]) -> list[Thing]:
        return a + b

    def result(self, accumulator: list[Thing]) -> list[Thing]:
        return accumulator


#: Declarations of each kind, and what is put into such a state.
VALUES: list[tuple[State, Any]] = [
    (ps.ValueState("struct<a: long, b: string>"), {"a": 1, "b": "x"}),
    (ps.ValueState(object), Thing("v")),
    (ps.ListState("string"), "x"),
    (ps.ListState(object), Thing("l")),
    (UnionListState("long"), 7),
    (UnionListState(object), Thing("u")),
    (ps.MapState("string", "array<long>"), [1, 2]),
    (ps.MapState("string", object), Thing("m")),
    (ps.ListState("struct<`it's`: long>"), {"it's": 1}),
    (
        ps.ListState('struct<`"it\'s" \\\\ é 猫\\n`: long>'),
        {'"it\'s" \\\\ é 猫\\n': 1},
    ),
    (ps.ReducingState("long", max), 5),
    (ps.ReducingState(object, max), Thing("r")),
    (StoredFold("#Count() of string"), 3),
    (StoredFold("State('decimal(10,2)')"), Decimal("1.50")),
    (StoredFold("State(object)"), Thing("f")),
    (ps.AggregatingState(ps.Mean(), "double"), 2.0),
    (ps.AggregatingState(ps.ApproxDistinct(), "string"), "x"),
    (ps.AggregatingState(ps.TopK(31), "long"), 4),
    (ps.AggregatingState(ps.Variance(sample=False), "long"), 6),
    (ps.AggregatingState(ps.Max(), "long"), 8),
    (ps.AggregatingState(Things()), Thing("a")),
]
DECLARATIONS = [declaration for declaration, _ in VALUES]

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
    of_objects, others = (
        {type(state) for state in DECLARATIONS if state.type.is_object is pickles}
        for pickles in (True, False)
    )
    assert of_objects == others == set(kinds.KINDS)


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=str)
def test_a_kind_is_read_as_it_was_stored(declaration: State) -> None:
    stored = declaration.stored_as()
    again = kinds.declared_as(stored)
    # What a fold keeps is a value, unless it is an accumulator of the core, and what made it is not
    # known by more than its name.
    bound = getattr(declaration, "bound", None)
    folds = isinstance(declaration, (ps.ReducingState, ps.AggregatingState))
    kind = StoredFold if folds and (bound is None or bound.column) else type(declaration)
    assert type(again) is kind and again.stored_as() == stored
    assert [column.name for column in again.columns("n")] == [
        column.name for column in declaration.columns("n")
    ]


def put(handle: Any, value: Any) -> None:
    """Put a value into a state of the current key."""
    if isinstance(handle, ValueHandle):
        handle.update(value)
    elif isinstance(handle, ps.MapHandle):
        handle.put("k", value)
    else:
        handle.add(value)


def seen(handle: Any) -> Any:
    """What a state of the current key has."""
    if isinstance(handle, ValueHandle):
        return handle.value()
    return handle.items() if isinstance(handle, ps.MapHandle) else handle.get()


@pytest.mark.parametrize(("declaration", "value"), VALUES, ids=map(str, DECLARATIONS))
def test_what_is_put_into_a_state_is_there_in_the_next_run(declaration: State, value: Any) -> None:
    """Two epochs, of which each puts it into one key, and writes a file."""
    files: list[Any] = []
    with ps.KeyedStateBackend("long", states={"n": declaration}) as backend:
        for key in (1, 2):
            backend.set_current_key(key)
            put(backend["n"], value)
            before = seen(backend["n"])
            files.append(io.BytesIO())
            with backend.seal() as snapshot:
                snapshot.write(files[-1])
    assert before is not None and before != []
    with ps.KeyedStateBackend("long", states={"n": declaration}) as backend:
        backend.restore(files)
        for key in (1, 2):
            backend.set_current_key(key)
            assert seen(backend["n"]) == before


def test_a_handle_says_which_objects_it_keeps() -> None:
    """Who forgets `objects` would lose those that wait for the end of the epoch."""

    class Forgetful(StateHandle):
        def _exported(self, keys: Any) -> Any:
            raise AssertionError

    with pytest.raises(TypeError, match=r"abstract.*objects"):
        Forgetful()  # type: ignore[abstract]


class BagState(ps.ValueState):
    """A kind whose column is that of a value."""

    def _spelled(self) -> str:
        return f"BagState({self._type.ddl!r})"

    @classmethod
    def from_stored(cls, stored: str) -> BagState | None:  # type: ignore[override]
        return cls(stored[len("BagState('") : -2]) if stored.startswith("BagState(") else None


def test_a_kind_does_not_become_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", (BagState, *kinds.KINDS))
    bag, value = BagState("long").stored_as(), ps.ValueState("long").stored_as()
    assert not evolution.stored_change(bag, BagState("long").stored_as()).types.refused
    for before, after, words in [
        (bag, value, "a bag does not become a value"),
        (value, bag, "a value does not become a bag"),
        (bag, ps.ReducingState("long", max).stored_as(), "a bag does not become what max has"),
        (bag, ps.ListState("long").stored_as(), "does not change its kind"),
    ]:
        refused = evolution.stored_change(before, after).types.refused
        assert len(refused) == 1 and words in refused[0]


@pytest.mark.parametrize("stored", ["BagState('long')", "variant", "#Median() of long"])
def test_a_kind_of_a_later_version_is_no_value(stored: str) -> None:
    with pytest.raises(DeclarationError):
        kinds.declared_as(stored)
    with pytest.raises(NewerFormatError, match=r"operator 'u', state 'n'.*later one") as raised:
        kinds.stored_state("u", "n", f'"m": 5 ms: {stored}')
    assert stored in str(raised.value)


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
