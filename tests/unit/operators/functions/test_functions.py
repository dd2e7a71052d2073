"""Stateful functions: names are checked when the class is made, handles come and go."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from abc import abstractmethod
from typing import Any

import pytest
from pyspark import cloudpickle

import pystate as ps
from pystate.errors import DeclarationError, NoCurrentKeyError
from pystate.operators.functions.base import RESERVED
from pystate.operators.functions.binding import (
    bind,
    declarations,
    for_tasks,
    shape,
    task_copy,
    unbind,
)


class Counter(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)
    last = ps.ValueState("string")

    def __init__(self, step: int = 1) -> None:
        self.step = step

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + self.step)
        yield key, self.n.value()


def backend() -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend("long")


# -- names


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_reserved_name_fails_when_the_class_is_made(name: str) -> None:
    with pytest.raises(DeclarationError, match=rf"Bad\.{name}\b"):
        type(ps.KeyedProcessFunction)(
            "Bad", (ps.KeyedProcessFunction,), {name: ps.ValueState("long")}
        )


def test_a_name_used_twice_in_the_body_fails() -> None:
    with pytest.raises(DeclarationError, match=r"Twice\.n is defined twice.*'long'.*'string'"):

        class Twice(ps.KeyedProcessFunction):
            n = ps.ValueState("long")
            n = ps.ValueState("string")  # noqa: PIE794


def test_a_state_and_a_method_of_one_name_fail() -> None:
    with pytest.raises(DeclarationError, match=r"Twice\.n is defined twice.*a method"):

        class Twice(ps.KeyedProcessFunction):
            n = ps.ValueState("long")

            def n(self) -> int:  # noqa: F811
                return 1


class Stepping(ps.KeyedProcessFunction):
    def step(self) -> int:
        return 1


class Other(ps.KeyedProcessFunction):
    n = ps.ValueState("string")


@pytest.mark.parametrize(
    ("bases", "members", "match"),
    [
        (
            ps.VectorizedFunction,
            {"process": ps.ValueState("long")},
            r"Bad\.process: 'process' is reserved",
        ),
        (
            Counter,
            {"n": ps.ValueState("long", previously="count")},
            r"Bad\.n .*Counter\.n, which it inherits, .*: a subclass cannot declare a state again; "
            "change the declaration in Counter itself, or copy the class$",
        ),
        (
            Counter,
            {"n": None},
            r"Bad\.n is None, and Counter\.n, .*: a subclass cannot hide a state; to do without "
            "the state, take it out of Counter, or copy the class$",
        ),
        (Counter, {"n": 3}, r"Bad\.n is int 3, .* not a state another name$"),
        (Counter, {"last": lambda self: None}, r"Bad\.last is a method, and Counter\.last"),
        (
            Stepping,
            {"step": ps.ValueState("long")},
            r"Bad\.step .*Stepping\.step, .* give the state another name$",
        ),
        ((Counter, Other), {}, "'n' from Counter and from Other.*another name$"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
def test_names_that_clash_fail(bases: Any, members: dict[str, Any], match: str) -> None:
    bases = bases if isinstance(bases, tuple) else (bases,)
    with pytest.raises(DeclarationError, match=match):
        type("Bad", bases, members)


def test_underscored_names_fail_only_with_two() -> None:
    class Fine(ps.KeyedProcessFunction):
        _n = ps.ValueState("long")

    assert list(declarations(Fine)) == ["_n"]
    with pytest.raises(DeclarationError, match="two underscores"):
        type(ps.KeyedProcessFunction)(
            "Bad", (ps.KeyedProcessFunction,), {"__n": ps.ValueState("long")}
        )


def test_states_are_inherited_in_order() -> None:
    class Child(Counter):
        extra = ps.ValueState("double")

    assert list(declarations(Child)) == ["n", "last", "extra"]
    assert list(declarations(Child())) == ["n", "last", "extra"]
    assert Child.n is Counter.n


def test_an_abstract_base_class_can_be_mixed_in() -> None:
    class Abstract(ps.KeyedProcessFunction):
        @abstractmethod
        def rule(self) -> int: ...

    with pytest.raises(TypeError, match="abstract"):
        Abstract()  # type: ignore[abstract]


# -- handles


def test_state_outside_a_run_is_a_clear_error() -> None:
    with pytest.raises(NoCurrentKeyError, match="'n' of Counter exists only while"):
        _ = Counter().n


def test_each_instance_has_handles_of_its_own() -> None:
    one, two, first, second = Counter(), Counter(), backend(), backend()
    bind(one, first)
    bind(two, second)
    first.set_current_key(1)
    second.set_current_key(1)
    one.n.update(5)
    assert (one.n.value(), two.n.value()) == (5, 0)
    unbind(one)
    with pytest.raises(NoCurrentKeyError):
        _ = one.n
    assert two.n.value() == 0


def test_a_state_assigned_to_an_instance_is_refused() -> None:
    class Late(Counter):
        def __init__(self) -> None:
            self.late = ps.ValueState("long")

    with pytest.raises(DeclarationError, match=r"Late.late = ValueState.* in the class's body"):
        Late()


@pytest.mark.parametrize("bound", [False, True])
def test_a_state_can_neither_be_assigned_nor_deleted(bound: bool) -> None:
    function = Counter()
    if bound:
        bind(function, backend())
    with pytest.raises(DeclarationError, match=r"Counter\.n is a state.*update"):
        function.n = 5  # type: ignore[assignment]
    with pytest.raises(DeclarationError, match=r"Counter\.n is a state"):
        del function.n
    function.step = 7
    del function.step


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_pickling_drops_the_handles_and_nothing_else(pickler: Any) -> None:
    function = Counter(step=3)
    bind(function, backend())
    found = pickle.loads(pickler.dumps(function))
    assert found.step == 3
    with pytest.raises(NoCurrentKeyError):
        _ = found.n
    bind(found, backend())


def test_copying_drops_the_handles() -> None:
    function = Counter(step=3)
    bind(function, backend())
    for found in (copy.copy(function), copy.deepcopy(function)):
        assert found.step == 3
        with pytest.raises(NoCurrentKeyError):
            _ = found.n
    assert function.n is function.__dict__["n"]


def test_a_class_made_in_a_script_travels_by_value() -> None:
    source = (
        "import pystate as ps\n"
        "class Local(ps.KeyedProcessFunction):\n"
        "    n = ps.ValueState('long', default=4)\n"
        "    def process(self, key, row, ctx):\n"
        "        yield self.n.value()\n"
    )
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(source, namespace)
    # Another process, as cloudpickle remembers the classes that it has seen in this one.
    worker = (
        "import pickle, sys\n"
        "import pystate as ps\n"
        "from pystate.operators.functions.binding import bind\n"
        "found = pickle.loads(sys.stdin.buffer.read())\n"
        "keyed = ps.KeyedStateBackend('long')\n"
        "bind(found, keyed)\n"
        "keyed.set_current_key(1)\n"
        "print(type(found).__name__, type(found).n, list(found.process(1, None, None)))\n"
    )
    data = cloudpickle.dumps(namespace["Local"]())
    done = subprocess.run([sys.executable, "-c", worker], input=data, capture_output=True)
    assert done.stderr == b""
    assert done.stdout == b"Local ValueState('long', default=4) [4]\n"


def test_a_handle_alone_cannot_be_pickled() -> None:
    function = Counter()
    bind(function, backend())
    with pytest.raises(DeclarationError, match="'n': a handle"):
        pickle.dumps(function.n)


def test_an_attribute_that_cannot_be_copied_is_named() -> None:
    function: Any = Counter()
    function.names, function.lock = ["a"], threading.Lock()
    with pytest.raises(DeclarationError, match=r"Counter.lock = .*make it in open\(self, ctx\)"):
        task_copy(function)
    function.lock = None
    other: Any = task_copy(function)
    assert other.names == ["a"] and other.names is not function.names
    with (
        pytest.raises(DeclarationError, match=r"Counter.lock = "),
        ps.testing.Harness(function, key="k") as harness,
    ):
        function.lock = threading.Lock()
        harness.process([{"k": 1}])


# -- shapes


@pytest.mark.parametrize("base", [ps.KeyedProcessFunction, ps.VectorizedFunction])
@pytest.mark.parametrize(
    "name", ["process", "process_rows", "on_timer", "on_timers", "open", "close"]
)
def test_an_async_method_fails_when_the_class_is_made(base: Any, name: str) -> None:
    async def waits(self: Any, *_: Any) -> None: ...

    async def yields(self: Any, *_: Any) -> Any:
        yield 1

    for method in (waits, yields):
        with pytest.raises(DeclarationError, match=f"Odd.{name} is async: .* write def"):
            type(base)("Odd", (base,), {name: method})
    type(base)("Fine", (base,), {"fetch": waits})


def test_shapes_are_told_apart() -> None:
    class Rows(ps.KeyedProcessFunction):
        def process_rows(self, key: Any, batch: Any, ctx: Any) -> Any: ...

    class Vector(ps.VectorizedFunction):
        def process(self, keys: Any, batch: Any, ctx: Any) -> Any: ...

    assert shape(Counter()) == "process"
    assert shape(Rows()) == "process_rows"
    assert shape(Vector()) == "vectorized"


def test_a_function_without_or_with_two_shapes_is_refused() -> None:
    class Both(Counter):
        def process_rows(self, key: Any, batch: Any, ctx: Any) -> Any: ...

    with pytest.raises(DeclarationError, match="Both has both process and process_rows"):
        shape(Both())
    with pytest.raises(DeclarationError, match="has neither"):
        shape(ps.KeyedProcessFunction())
    with pytest.raises(DeclarationError, match="has no process"):
        shape(ps.VectorizedFunction())
    with pytest.raises(DeclarationError, match="pass an instance"):
        shape(Counter)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="is no KeyedProcessFunction"):
        shape(print)  # type: ignore[arg-type]


def test_a_plain_function_gets_the_class_to_write() -> None:
    def follow_users(key: Any, row: Any, ctx: Any) -> Any: ...

    for given, wanted in {
        follow_users: "class FollowUsers(ps.KeyedProcessFunction): def process(self, key, row, "
        "ctx: ps.RuntimeContext): ..., and pass FollowUsers()",
        (lambda key, row, ctx: None): "class Lambda(ps.KeyedProcessFunction): def process(",
        7: "pass an instance of a class that derives from ps.KeyedProcessFunction",
        Counter: "pass an instance: Counter()",
    }.items():
        with pytest.raises(DeclarationError) as caught:
            shape(given)  # type: ignore[arg-type]
        assert wanted in str(caught.value)


LOCK = threading.Lock()


class UsesGlobal(ps.KeyedProcessFunction):
    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        with LOCK:
            yield key


class Folds(ps.KeyedProcessFunction):
    largest = ps.ReducingState("long", lambda a, b: max(a, b) if LOCK else a)

    def process(self, key: Any, row: Any, ctx: Any) -> Any: ...


def test_what_code_refers_to_and_cannot_be_sent_is_named_with_the_way_out() -> None:
    inner = threading.Lock()

    class UsesClosure(UsesGlobal):
        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            with inner:
                yield key

    for function, name, place in (
        (UsesGlobal(), "LOCK", "UsesGlobal.process"),
        (UsesClosure(), "inner", "UsesClosure.process"),
        (Folds(), "LOCK", "Folds.largest"),
    ):
        # As of a program's own module, whose classes go to the tasks with their code.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        try:
            with pytest.raises(DeclarationError) as caught:
                for_tasks(function, cloudpickle.dumps)
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        said = str(caught.value)
        assert said.startswith(f"{type(function).__name__} cannot go to the tasks, ")
        assert f"refers to {name} = <unlocked _thread.lock object" in said
        assert f"(in {place})" in said
        assert f"make one for each task in open(self, ctx), self.{name} = ..., and use" in said
