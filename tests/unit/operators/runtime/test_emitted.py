"""What functions yield, taken apart as it comes, compared with rows converted at once."""

from __future__ import annotations

import datetime
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pystate as ps
from pystate._core import calls
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.output import OutputColumns, RowsAsYielded, parse_columns
from tests.drawn import drawn

COLUMNS = parse_columns(
    "a long, b int, c short, d byte, e double, f string, g boolean, h timestamp, i float",
    "operator 'one'",
)
NAMES = COLUMNS.names
UTC = datetime.timezone.utc
Named = namedtuple("Named", NAMES)  # type: ignore[misc]


def ints(bits: int) -> st.SearchStrategy[Any]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


FITTING = (
    ints(64),
    ints(32),
    ints(16),
    ints(8),
    st.floats(),
    st.text(max_size=5),
    st.booleans(),
    st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)).map(
        lambda at: at.replace(tzinfo=UTC)
    ),
    st.floats(width=32),
)
#: Values that some columns take and others refuse.
ODD = st.sampled_from(
    [
        *(
            True,
            1,
            1 << 63,
            -(1 << 40),
            1.0,
            0.5,
            "x",
            "\ud800",
            b"x",
            np.int64(7),
            np.float64(2.5),
        ),
        *(np.str_("y"), np.bool_(True), Decimal(3), datetime.date(2020, 1, 1), [1], float("nan")),
    ]
)
FITTING_ROWS = st.tuples(*(st.none() | each for each in FITTING))
SHAPES = st.sampled_from([tuple, list, Named._make, lambda row: dict(zip(NAMES, row, strict=True))])


@st.composite
def rows(draw: st.DrawFn) -> list[Any]:
    """Rows of which most fit, some have an odd value, and some are no plain tuples."""
    made: list[Any] = draw(st.lists(FITTING_ROWS, max_size=12))
    for _ in range(draw(st.integers(0, 2)) if made else 0):
        i = draw(st.integers(0, len(made) - 1))
        row = list(made[i])
        row[draw(st.integers(0, len(row) - 1))] = draw(ODD)
        made[i] = tuple(row)
    for _ in range(draw(st.integers(0, 2)) if made else 0):
        i = draw(st.integers(0, len(made) - 1))
        if type(made[i]) is tuple:
            made[i] = draw(SHAPES)(made[i])
    if made and draw(st.integers(0, 9)) == 0:
        made[draw(st.integers(0, len(made) - 1))] = draw(st.sampled_from([(), (1,), 5, None]))
    return made


def collected(output: OutputColumns, given: list[Any]) -> list[dict[str, Any]]:
    emitted = output.collector()
    emitted.extend(given)
    assert len(emitted) == len(given)
    found = list(output.pieces(emitted))
    assert not len(emitted) and all(piece.schema == output.schema for piece in found)
    for piece in found:
        piece.validate(full=True)
    return [row for piece in found for row in piece.to_pylist()]


@drawn(150)
@given(rows())
@example([(None,) * 9])
@example([(1, 2, 3, 4, 5.0, "", True, None, None), (1 << 63,) + (None,) * 8])
@example([(None, None, odd) + (None,) * 6 for odd in (np.True_, 10)])
@example([(None, None, odd) + (None,) * 6 for odd in (Decimal(3), 10)])
def test_collected_rows_are_those_that_are_converted_at_once(given: list[Any]) -> None:
    try:
        expected = COLUMNS.from_rows(list(given)).to_pylist()
    except WrongTypeError:
        with pytest.raises(WrongTypeError, match="operator 'one'"):
            collected(COLUMNS, given)
        return
    assert repr(collected(COLUMNS, given)) == repr(expected)


def test_a_column_of_odd_values_goes_on_as_objects() -> None:
    output = parse_columns("a long, e double, f string", "one")
    emitted = output.collector()
    emitted.extend([(1, 0.5, "x"), (None, None, None)])
    emitted.append((np.int64(3), 2, "é"))
    emitted.append([4, 0.25, "z"])
    [(n, columns)] = emitted.take()  # type: ignore[misc]
    assert n == 4 and columns[0] == [1, None, 3, 4] and columns[1] == [0.5, None, 2, 0.25]
    assert columns[2] == (1, b"\x0d", "xéz".encode(), np.array([0, 1, 1, 3, 4], "<i4").tobytes())
    # The next rows begin with empty columns again.
    emitted.append((5, 1.5, "w"))
    [piece] = output.pieces(emitted)
    assert piece.to_pylist() == [{"a": 5, "e": 1.5, "f": "w"}]


def test_rows_behind_an_odd_one_keep_their_order() -> None:
    output = parse_columns("a long", "one")
    emitted = output.collector()
    emitted.extend(iter([(1,), {"a": 2}, (3,)]))
    assert [len(part) for part in output.pieces(emitted)] == [1, 2]
    emitted.extend([(4,)])
    assert [piece.to_pylist() for piece in output.pieces(emitted)] == [[{"a": 4}]]


def test_a_null_is_refused_where_there_may_be_none() -> None:
    output = parse_columns("a long not null", "one")
    emitted = output.collector()
    emitted.append((None,))
    with pytest.raises(WrongTypeError, match="'a' is declared not null and got a null"):
        list(output.pieces(emitted))


def test_rows_as_they_are() -> None:
    output = RowsAsYielded()
    emitted = output.collector()
    given = [(1,), "x", None]
    emitted.extend(given)
    assert list(output.pieces(emitted)) == [given] and list(output.pieces(emitted)) == []


def test_what_a_generator_yields_before_it_raises_is_not_output_twice() -> None:
    def broken() -> Any:
        yield (1,)
        raise RuntimeError("in the middle")

    emitted = calls.Emitted([COLUMNS._codes[0]])
    with pytest.raises(RuntimeError, match="in the middle"):
        emitted.extend(broken())
    assert len(emitted) == 1
    [(n, _)] = emitted.take()  # type: ignore[misc]
    assert n == 1


def test_columns_that_it_cannot_have() -> None:
    for codes, kind, names in (([99], None, ()), ([1, 1], tuple, ("a",))):
        with pytest.raises(InvalidArgumentError):
            calls.Emitted(codes, kind, names)


class Odd(ps.KeyedProcessFunction):
    """Yields rows of all kinds, and keeps what it gets."""

    n = ps.ValueState("long", default=0)

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.kept.append(row)
        self.n.update(self.n.value() + 1)
        if row.v % 3 == 0:
            return [(key, row.v), {"v": row.v, "k": key}]
        if row.v % 3 == 1:
            return ((key, float(v)) for v in range(row.v % 2))
        return None


def test_a_function_that_yields_all_kinds_of_rows() -> None:
    batch = {"k": ["a", "b", None] * 20, "v": list(range(60))}
    output = "k string, v double"
    with ps.testing.Harness(Odd(), key="k", schema=output, batch_rows=7) as harness:
        found = harness.process(pa.table(batch))
    expected: list[Any] = []
    for key, v in zip(batch["k"], batch["v"], strict=True):
        if v % 3 == 0:
            expected += [(key, v), (key, v)]
        elif v % 3 == 1:
            expected += [(key, float(w)) for w in range(v % 2)]
    assert [tuple(row) for row in found] == expected
