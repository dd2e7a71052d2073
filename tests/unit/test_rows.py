"""Rows as functions see them."""

from __future__ import annotations

import datetime
import pickle

import pyarrow as pa
import pytest

from pystate.errors import InvalidArgumentError
from pystate.rows import RowFactory


def test_rows_by_name_position_and_attribute() -> None:
    names = ["v", "count", "class", "a b", "_x"]
    factory = RowFactory(names)
    batch = pa.record_batch([[1], [2], [3], [4], [5]], names=names)
    [row] = factory.rows(batch)
    assert (row.v, row.count, row["class"], row["a b"], row["_x"], row[0], row[-1]) == (
        1,
        2,
        3,
        4,
        5,
        1,
        5,
    )
    assert row == (1, 2, 3, 4, 5) and tuple(row) == (1, 2, 3, 4, 5)
    for wrong in ("_x", "w"):
        with pytest.raises(AttributeError, match=f"no column '{wrong}'; columns: v, count"):
            getattr(row, wrong)
    with pytest.raises(KeyError, match="no column 'w'"):
        row["w"]
    copy = pickle.loads(pickle.dumps(row))
    assert copy == row and copy["a b"] == 4
    assert repr(RowFactory(["x"])._make((1,))) == "Row(x=1)"


def test_two_columns_of_one_name() -> None:
    with pytest.raises(InvalidArgumentError, match="two input columns are called v"):
        RowFactory(["v", "k", "v"])


def test_timestamps_are_aware_whatever_the_session() -> None:
    arrays = [
        pa.array([0, None], pa.timestamp("us", "America/New_York")),
        pa.array([0, None], pa.timestamp("us")),
    ]
    rows = list(RowFactory(["t", "n"]).rows(pa.record_batch(arrays, names=["t", "n"])))
    epoch = datetime.datetime(1970, 1, 1)
    assert rows == [(epoch.replace(tzinfo=datetime.timezone.utc), epoch), (None, None)]
