"""The rules of the extension module: who may use a handle when, and what an unmade one does."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate._core import calls, core, ported
from pystate.errors import ClosedError, InvalidArgumentError
from pystate.types.arrays import reference
from tests.forks import FORKS, copied

SOURCES = sorted(Path(core.__file__).parent.glob("*.p[yx]*"))
#: Functions that use nobody's handle, or one that many threads use and nobody closes.
NO_HANDLE = {"find", "hash_keys", "nested_columns", "wanted_order"}


def indent(line: str) -> int:
    """The blanks before a line."""
    return len(line) - len(line.lstrip())


def releases(lines: list[str]) -> list[int]:
    """The lines that release the GIL."""
    return [i for i, line in enumerate(lines) if re.match(r"\s*with nogil\b", line)]


def function_of(lines: list[str], at: int) -> tuple[str, int]:
    """The name of the function around a line, and where it begins."""
    for i in range(at, -1, -1):
        found = re.match(r"\s*(?:cpdef|cdef|def)\b[^=]*?(\w+)\(", lines[i])
        if found and indent(lines[i]) < indent(lines[at]):
            return found[1], i
    raise AssertionError(f"line {at + 1} is in no function")


def is_guarded(lines: list[str], at: int) -> bool:
    """Whether a line lies in a `try` before which something began, and after which it ends."""
    depth = indent(lines[at])
    for i in range(at - 1, -1, -1):
        line = lines[i]
        if not line.strip() or indent(line) >= depth:
            continue
        depth = indent(line)
        if line.strip() != "try:":
            continue
        begun = "\n".join(lines[function_of(lines, at)[1] : at])
        after = lines[at:]
        ends = next((k for k, x in enumerate(after) if x == " " * depth + "finally:"), None)
        if ends is None or not re.search(r"\.(begin(_reading)?(_of)?|hold)\(", begun):
            continue
        body = []
        for x in after[ends + 1 :]:
            if x.strip() and indent(x) <= depth:
                break
            body.append(x)
        if any(re.search(r"\.end\(\)", x) for x in body):
            return True
    return False


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_gil_is_released_in_one_way(path: Path) -> None:
    """Every `with nogil` lies between a handle's `begin` and its `end`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for at in releases(lines):
        name, _ = function_of(lines, at)
        assert name in NO_HANDLE or is_guarded(lines, at), f"{path.name}:{at + 1}, in {name}"


def test_the_rule_sees_what_breaks_it() -> None:
    """A release without a mark, without an end, or outside of the `try`."""
    bad = [
        "def f(self):\n    with nogil:\n        g()",
        "def f(self):\n    try:\n        with nogil:\n            g()\n"
        "    finally:\n        self.end()",
        "def f(self):\n    self.begin()\n    with nogil:\n        g()\n    self.end()",
        "def f(self):\n    self.begin()\n    try:\n        with nogil:\n            g()\n"
        "    finally:\n        free(x)",
    ]
    for text in bad:
        lines = text.splitlines()
        assert not is_guarded(lines, releases(lines)[0]), text
    good = "def f(self):\n    self.begin()\n    try:\n        with nogil:\n            g()\n"
    lines = f"{good}    finally:\n        self.end()".splitlines()
    assert is_guarded(lines, releases(lines)[0])


# -- types that were made by __new__ alone ---------------------------------------------------------

TYPES = sorted(
    (value for module in (core, calls, ported) for value in vars(module).values()
     if isinstance(value, type) and value.__module__ == module.__name__),
    key=lambda kind: kind.__name__,
)  # fmt: skip

#: What is tried for each argument.
FILLERS: list[Any] = [None, 0, 1, "", b"", [], [None], "event"]


def unmade(kind: type) -> list[Any]:
    """Objects of a type, and of a subclass that does without its `__init__`."""
    found = []
    for each in (kind, type("Sub", (kind,), {"__init__": lambda self, *args: None})):
        for make in (lambda each=each: each.__new__(each), lambda each=each: each()):
            try:
                found.append(make())
            except (TypeError, ValueError):
                continue
    return found


def use_unmade(kind: type) -> None:
    """Call everything that objects of a type have, with all kinds of arguments."""
    for thing in unmade(kind):
        for attribute in dir(kind):
            if attribute in ("__class__", "__init__", "__new__", "__init_subclass__"):
                continue
            try:
                value = getattr(thing, attribute)
            except Exception:
                continue
            if not callable(value):
                continue
            for filler in FILLERS:
                for count in range(14):
                    try:
                        value(*[filler] * count)
                    except Exception:
                        continue
        for act in (copy.copy, copy.deepcopy, pickle.dumps, len, iter, repr, bytes, memoryview):
            try:
                act(thing)
            except Exception:
                continue
        del thing


def use_all() -> None:
    """What is printed says how far this has come."""
    for kind in TYPES:
        print(kind.__name__, flush=True)
        use_unmade(kind)


@FORKS
def test_unmade_objects_raise() -> None:
    """`__new__` without `__init__` gives something that refuses, and takes nothing with it."""
    code, said, wrong = copied(use_all)
    assert code == 0, f"{said.splitlines()[-1:]}: {wrong[-3000:]}"
    assert said.splitlines() == [kind.__name__ for kind in TYPES]


def test_an_unmade_handle_says_so() -> None:
    for kind in (ps.KeyBatch, core.ScalarHandle, core.TimerService, core.DueTimers):
        thing: Any = kind.__new__(kind)
        with pytest.raises(ClosedError, match="made by __new__ alone"):
            {
                "KeyBatch": lambda thing=thing: thing.check(),
                "ScalarHandle": lambda thing=thing: thing.value(),
                "TimerService": lambda thing=thing: thing.next("event"),
                "DueTimers": lambda thing=thing: thing.fire_all(),
            }[kind.__name__]()


class Pretender:
    """Another object that `isinstance` takes for a handle."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property
    def __class__(self) -> Any:
        return self.kind

    def __len__(self) -> int:
        return 1


def test_a_handle_is_what_its_type_says() -> None:
    """The modules beside the core look at a handle's type once, and then read its fields."""
    rows, to, checked = [(1,)], calls.Emitted(None), (set[type](), None)
    makers: dict[type, Any] = {
        core.Batch: lambda keys: calls.RowLoop(keys, rows, [1], None, print, None, to, checked),
        core.DueTimers: lambda due: calls.TimerLoop(due, [1], True, print, None, to, checked),
        core.ScalarHandle: lambda handle: ported.TupleValue(handle, 1, tuple),
        core.MapElements: lambda handle: ported.TupleMap(handle, 1, tuple, tuple, tuple),
        core.ArrayRef: lambda array: calls.ColumnReader(array),
    }
    for kind, make in makers.items():
        pretender = Pretender(kind)
        assert isinstance(pretender, kind)
        for wrong in (pretender, None, 3):
            with pytest.raises(TypeError):
                make(wrong)


def test_a_loop_that_was_refused_has_no_rows() -> None:
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        keys, loop = backend.keys(pa.array([1])), calls.RowLoop.__new__(calls.RowLoop)
        to, checked = calls.Emitted(None), (set[type](), None)
        for rows, key_of in [([3], 0), ([3], [1, 2]), ([3, 4], [1])]:
            with pytest.raises(InvalidArgumentError):
                loop.__init__(keys, rows, key_of, None, print, None, to, checked)
            assert not loop.run(1)
            loop = calls.RowLoop.__new__(calls.RowLoop)


def test_what_is_made_is_made_once() -> None:
    """A second `__init__` would pull away what others rely on."""
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}, timers=True) as backend:
        keys = backend.keys(pa.array([1]))
        backend.set_current_key(1)
        backend.register_timer("event", 1)
        due = backend.due_timers("event", 1)
        n, table = backend["n"], backend._table
        array = pa.array([1])
        made = reference(array, n.type)
        again: list[Any] = [
            lambda: table.__init__("x", lambda: None),
            lambda: keys.__init__(table, [array], [n.type]),
            lambda: core.Batch.__init__(keys, table, None),
            lambda: core.ScalarHandle.__init__(n, table, 0, n.codec, None),
            lambda: core.DueTimers.__init__(due, keys, memoryview(b""), None, "event"),
            lambda: n.codec.__init__("n", 5, 0, 0, "long"),
        ]
        if made is not None:
            again.append(lambda: made.__init__(5, 0, 1, 0, 0, 0, 0, None))
        for second in again:
            with pytest.raises((InvalidArgumentError, TypeError)):
                second()
        n.update(3)
        assert n.values(keys).to_pylist() == [3]
