"""Declarations are immutable values that check what they declare."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import DeclarationError


def test_a_declaration_says_what_it_declares() -> None:
    declaration = ps.ValueState("BIGINT", default=5)
    assert declaration.type.ddl == "long"
    assert declaration.default == 5
    assert repr(declaration) == "ValueState('long', default=5)"
    assert repr(ps.ValueState(object)) == "ValueState(object)"


@pytest.mark.parametrize("name", ["type", "default", "_type", "_default", "ttl", "anything"])
def test_it_cannot_be_changed(name: str) -> None:
    declaration = ps.ValueState("long")
    with pytest.raises(DeclarationError, match=name):
        setattr(declaration, name, 1)
    with pytest.raises(DeclarationError, match=name):
        delattr(declaration, name)
    assert declaration == ps.ValueState("long")


@pytest.mark.parametrize(
    ("type_", "default"),
    [("long", "0"), ("long", 1.5), ("int", 2**31), ("string", 0), ("boolean", 0), ("long", True)],
)
def test_a_default_of_another_type_is_refused(type_: str, default: Any) -> None:
    with pytest.raises(DeclarationError, match=rf"ValueState\('{type_}'\)"):
        ps.ValueState(type_, default=default)


def test_an_unsupported_type_is_named() -> None:
    with pytest.raises(DeclarationError, match="array<interval>"):
        ps.ValueState("array<interval>")


def test_equal_declarations_are_equal() -> None:
    assert ps.ValueState("long", 0) == ps.ValueState(pa.int64(), default=0)
    assert hash(ps.ValueState("long", 0)) == hash(ps.ValueState(pa.int64(), 1))
    assert ps.ValueState("long", 0) != ps.ValueState("long")
    assert ps.ValueState("long") != ps.ValueState("int")
    assert ps.ValueState("double", float("nan")) == ps.ValueState("double", float("nan"))
    assert ps.ValueState("long") != "long"


def test_a_mutable_default_is_never_shared() -> None:
    given: dict[str, list[int]] = {"a": []}
    declaration = ps.ValueState(object, default=given)
    given["a"].append(1)
    first = declaration.default
    first["a"].append(2)
    assert declaration.default == {"a": []}


@pytest.mark.parametrize(
    "declaration",
    [ps.ValueState("long", 3), ps.ValueState("decimal(5,2)"), ps.ValueState(object, [1])],
)
def test_it_can_be_pickled_and_copied(declaration: ps.ValueState) -> None:
    assert pickle.loads(pickle.dumps(declaration)) == declaration
    assert copy.copy(declaration) is declaration
    assert copy.deepcopy(declaration) is declaration
