"""What people who come from Python, Spark and Flink write by habit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError, WrongTypeError
from tests.tables import keyed

STATES: dict[str, ps.State] = {
    "v": ps.ValueState("long", default=0),
    "o": ps.ValueState(object),
    "s": ps.ValueState("struct<a:long>"),
    "l": ps.ListState("long"),
    "lo": ps.ListState(object),
    "m": ps.MapState("string", "long"),
    "mo": ps.MapState("string", object),
    "r": ps.ReducingState("long", max),
    "a": ps.AggregatingState(ps.Mean()),
    "c": ps.AggregatingState(ps.Count()),
}


@pytest.fixture
def states() -> Iterator[Any]:
    with keyed(STATES) as backend:
        yield backend


@pytest.mark.parametrize(
    ("name", "method", "instead"),
    [
        ("v", "get", r"value\(\)$"),
        ("v", "exists", r"value\(\) is not None$"),
        ("o", "put", r"update\(value\)$"),
        ("v", "updateAll", "write update_all$"),
        ("l", "exists", r"len\(self.state\) > 0$"),
        ("l", "appendValue", r"add\(item\)$"),
        ("l", "appendList", r"add_all\(items\)$"),
        ("l", "put", r"update\(items\)$"),
        ("l", "pop", r"update\(items\) with what is to stay$"),
        ("m", "getValue", r"get\(key\)$"),
        ("m", "containsKey", r"contains\(key\)$"),
        ("m", "updateValue", r"put\(key, value\)$"),
        ("m", "iterator", r"items\(\)$"),
        ("m", "update", r"put_all\(entries\)$"),
        ("r", "value", r"get\(\)$"),
        ("a", "update", r"add\(value\)$"),
        ("a", "exists", r"get\(\) is not None$"),
        ("a", "clearAll", "write clear_all$"),
    ],
)
def test_what_others_call_a_method_is_answered_with_its_name(
    states: Any, name: str, method: str, instead: str
) -> None:
    with pytest.raises(
        AttributeError, match=rf"^state '{name}': a \w+ has no '{method}'"
    ) as raised:
        getattr(states[name], method)
    assert re.search(instead, str(raised.value))
    assert not hasattr(states[name], method) and not hasattr(states[name], "__array__")


@pytest.mark.parametrize("name", ["v", "o", "s", "r", "a", "c"])
def test_a_handle_is_never_taken_for_its_value(states: Any, name: str) -> None:
    handle = states[name]
    reads = r"\.get\(\)$" if name in "rac" else r"\.value\(\)$"
    tries: list[Any] = [
        lambda: bool(handle),
        lambda: not handle,
        lambda: handle == 1,
        lambda: handle != None,  # noqa: E711
        lambda: handle == "x",
        lambda: handle < 1,
        lambda: handle >= 1,
        lambda: handle + 1,
        lambda: 1 + handle,
        lambda: handle * 2,
        lambda: int(handle),
        lambda: float(handle),
    ]
    for act in tries:
        with pytest.raises(WrongTypeError, match=rf"^state '{name}' stands in .*{reads}"):
            act()
    assert handle == handle and handle != states["l"] and len({handle, handle}) == 1
    assert f"'{name}'" in repr(handle)


def of(process: Any, **more: Any) -> ps.KeyedProcessFunction:
    members = {"flag": ps.ValueState("boolean"), "process": process, **more}
    return type("Of", (ps.KeyedProcessFunction,), members)()  # type: ignore[no-any-return]


def test_a_condition_in_a_function_says_where() -> None:
    flags = of(lambda self, key, row, ctx: [key] if self.flag else [])
    with (
        ps.testing.Harness(flags, key="k") as harness,
        pytest.raises(WrongTypeError, match=r"'flag' stands in a condition .* write \.value\(\)"),
    ):
        harness.process([{"k": 1}])


@pytest.mark.parametrize("name", ["m", "mo"])
def test_maps_are_used_as_dicts_are(states: Any, name: str) -> None:
    m = states[name]
    assert not m and len(m) == 0 and list(m) == [] and "a" not in m
    m["a"] = 1
    m["b"] = 2
    m["a"] += 10
    assert m and len(m) == 2 and "a" in m and sorted(m) == ["a", "b"]
    assert (m["a"], m["b"], m.get("c"), m.get("c", 5)) == (11, 2, None, 5)
    assert dict(m) == dict(m.items()) == {"a": 11, "b": 2}
    del m["a"]
    assert dict(m) == {"b": 2}
    with pytest.raises(KeyError, match="'a'"):
        m["a"]
    with pytest.raises(KeyError, match="'a'"):
        del m["a"]
    with pytest.raises(WrongTypeError, match="map key"):
        m[None]
    m["a"] = None
    assert "a" in m and m["a"] is None and dict(m) == {"a": None, "b": 2}


@pytest.mark.parametrize("name", ["l", "lo"])
def test_lists_are_used_as_lists_are(states: Any, name: str) -> None:
    items = states[name]
    assert not items and len(items) == 0 and list(items) == []
    items.add_all([3, 1, 2])
    assert items and len(items) == 3 and 1 in items and 5 not in items
    assert (items[0], items[-1], items[1:], sorted(items)) == (3, 2, [1, 2], [1, 2, 3])
    assert list(reversed(items)) == [2, 1, 3]
    with pytest.raises(IndexError):
        items[3]
    with pytest.raises(TypeError):
        items[0] = 5


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("registerTimer", "register_event_time_timer"),
        ("listTimers", "ListState"),
        ("getCurrentProcessingTimeInMs", "processing_time"),
        ("current_watermark", "watermark"),
        ("key", "argument of the method"),
        ("collect", "yield row"),
    ],
)
def test_a_context_answers_to_the_names_of_others(name: str, instead: str) -> None:
    asks = of(lambda self, key, row, ctx: [getattr(ctx, name)])
    with (
        ps.testing.Harness(asks, key="k", columns="k long") as harness,
        pytest.raises(AttributeError, match=f"RuntimeContext has no '{name}': write .*{instead}"),
    ):
        harness.process({"k": 1})
    assert not hasattr(ps.RuntimeContext, name)


def test_methods_that_nobody_would_call_are_refused() -> None:
    for name in ("onTimer", "handleExpiredTimer", "processElement", "handleInputRows"):
        with pytest.raises(DeclarationError, match=rf"Mine\.{name} would never be called: write"):
            type("Mine", (ps.KeyedProcessFunction,), {name: lambda: None})
    with pytest.raises(DeclarationError, match=r"process.*is called with \(self, key, row, ctx\)"):
        of(lambda self, key, row: [key])

    def on_timer(self: Any, key: Any, time: Any, ctx: Any, more: Any) -> None: ...

    with pytest.raises(DeclarationError, match=r"def on_timer\(self, key, timestamp, ctx\)"):
        of(lambda self, key, row, ctx: [key], on_timer=on_timer)
    # Other names, defaults and the like are fine.
    of(lambda self, *given, **more: [given], on_timer=lambda self, key, at, context, more=0: [key])


def test_the_package_says_where_a_name_is() -> None:
    with pytest.raises(AttributeError, match=r"'Job': write from pystate\.spark import"):
        ps.Job  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'TTLConfig': write StateTtl"):
        ps.TTLConfig  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        ps.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_a_state_is_no_variable() -> None:
    class Adds(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)
        top = ps.ReducingState("long", max)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            if key:
                self.n += 1  # type: ignore[operator]
            self.top += 1  # type: ignore[operator]
            yield (key,)

    for key, instead in ((1, r"update\(value\)"), (0, r"add\(value\)")):
        with (
            ps.testing.Harness(Adds(), key="k", columns="k long") as harness,
            pytest.raises(WrongTypeError, match=rf"no variable that \+=.*write \.{instead}"),
        ):
            harness.process({"k": key})
