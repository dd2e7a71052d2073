"""Where late rows of two inputs go."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pystate.errors import InvalidArgumentError
from pystate.operators.joins.late import LateInputs

LEFT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("same", pa.int32())])
RIGHT = pa.schema([("key", pa.string()), ("same", pa.int32())])
BOTH: Any = {"left": LEFT, "right": RIGHT}


def test_rows_have_the_columns_of_their_tag() -> None:
    rows = pa.record_batch({"key": ["a"], "same": [1]})
    both = LateInputs.of("late", BOTH, "test")
    tag, piece = both.piece("right", rows)
    assert tag == "late" and piece.schema.names == ["k", "v", "same", "key"]
    assert piece.to_pylist() == [{"k": None, "v": None, "same": 1, "key": "a"}]
    assert (
        piece.schema
        == both.piece("left", pa.record_batch({"k": ["x"], "v": [1], "same": [2]}))[1].schema
    )
    one = LateInputs.of({"right": "r"}, BOTH, "test")
    assert one.schemas == {"r": RIGHT} and one.takes("right") and not one.takes("left")
    assert one.piece("right", rows)[1].schema == RIGHT
    assert dict(LateInputs.of({"left": "drop"}, BOTH, "test", processes=True).words) == {
        "left": "drop",
        "right": "process",
    }


@pytest.mark.parametrize(
    ("late", "message"),
    [
        ("process", "'drop'ped"),
        ({"left": "process"}, "'drop'ped"),
        ({"lefft": "x"}, "left"),
        (7, "late is a string"),
        ({"left": None}, "late is a string"),
        ({"left": "aside"}, "a tag of their own"),
    ],
)
def test_what_cannot_be(late: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        LateInputs.of(late, BOTH, "test", sides=["aside"])


@pytest.mark.parametrize("field", [("v", pa.string()), ("V", pa.int64())])
def test_columns_that_one_tag_cannot_have(field: Any) -> None:
    inputs: Any = {"left": LEFT, "right": pa.schema([field])}
    with pytest.raises(InvalidArgumentError, match="a tag of its own"):
        LateInputs.of("late", inputs, "test")
    assert len(LateInputs.of({"left": "a", "right": "b"}, inputs, "test").schemas) == 2
