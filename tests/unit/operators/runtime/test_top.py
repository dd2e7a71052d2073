"""What `TopRows` reads and keeps; tests/model compares it with sorted lists."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import UnclaimedStateError
from pystate.operators.runtime.task import TaskContext
from pystate.operators.runtime.top import By, TopSpec
from pystate.types.state_type import parse_type

COLUMNS = (("n", parse_type("long")), ("s", parse_type("string")))


def spec(k: int = 2, *by: By, **options: Any) -> TopSpec:
    return TopSpec(("id",), k, by or (By("n", True),), COLUMNS, **options)


def backend_of(top: TopSpec) -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend({"id": "long"}, states=top.states())


def run(
    top: TopSpec, backend: ps.KeyedStateBackend, *rows: tuple[int, int | None, str]
) -> list[tuple[Any, ...]]:
    """An epoch; its rows are sorted by key and rank."""
    task = top.make()
    task.open(TaskContext(backend))
    columns = [pa.array([row[i] for row in rows]) for i in range(3)]
    if rows:
        columns[1] = columns[1].cast(pa.int64())
        assert not list(task.process(pa.record_batch(columns, names=["id", "n", "s"])))
    found = [tuple(row.values()) for piece in task.finish() for row in piece.to_pylist()]
    return sorted(found, key=lambda row: (row[0], row[-1]))


def test_a_row_below_the_bar_costs_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    top = spec()
    with backend_of(top) as backend:
        run(top, backend, (1, 5, "a"), (1, 6, "b"), (2, 1, "c"))
        backend.seal(snapshot=False)
        handle = backend["top"]
        looked: list[int] = []
        values = type(handle).values

        def noted(self: Any, keys: ps.KeyBatch) -> Any:
            if self is handle:
                looked.append(len(keys))
            return values(self, keys)

        monkeypatch.setattr(type(handle), "values", noted)
        # A null is below any bar, and an equal row comes too late.
        assert run(top, backend, (1, 5, "late"), (1, 4, "low"), (1, None, "none")) == []
        assert looked == []
        assert not backend.dirty
        assert run(top, backend, (1, 5, "late"), (2, 0, "d")) == [(2, 1, "c", 1), (2, 0, "d", 2)]
        assert looked == [1, 1]


def test_by_the_bar_s_column_and_another() -> None:
    top = spec(2, By("n", False), By("s", True))
    with backend_of(top) as backend:
        run(top, backend, (1, 5, "b"), (1, 5, "c"))
        backend.seal(snapshot=False)
        assert run(top, backend, (1, 5, "a"), (1, 6, "z")) == []
        assert run(top, backend, (1, 5, "bb")) == [(1, 5, "c", 1), (1, 5, "bb", 2)]


def test_another_order_is_another_bar() -> None:
    old = spec(2)
    file = io.BytesIO()
    with backend_of(old) as backend:
        run(old, backend, (1, 5, "a"), (1, 6, "b"), (1, 7, "c"), (2, 1, "z"))
        with backend.seal() as snapshot:
            snapshot.write(file)
    for new, expected in (
        (spec(3), [(1, 7, "c", 1), (1, 6, "b", 2), (1, 0, "n", 3)]),
        (spec(1, By("n", False)), [(1, 0, "n", 1)]),
        (spec(2, By("s", False)), [(1, 6, "b", 1), (1, 7, "c", 2)]),
    ):
        row = (1, 0, "n")
        unclaimed = pytest.raises(UnclaimedStateError, match="bar of 2 by n desc")
        with backend_of(new) as backend, unclaimed:
            backend.restore([io.BytesIO(file.getvalue())])
        with backend_of(new) as backend:
            backend.restore([io.BytesIO(file.getvalue())], allow_unclaimed_state=True)
            assert run(new, backend, row) == expected


def test_fewer_rows_than_were_stored() -> None:
    many, few = spec(3), spec(1)
    file = io.BytesIO()
    with backend_of(many) as backend:
        run(many, backend, (1, 5, "a"), (1, 6, "b"), (1, 7, "c"))
        with backend.seal() as snapshot:
            snapshot.write(file)
    with backend_of(few) as backend:
        backend.restore([file], allow_unclaimed_state=True)
        # The best one is the same: nothing has changed.
        assert run(few, backend, (1, 6, "n")) == []
        assert run(few, backend, (1, 8, "m")) == [(1, 8, "m", 1)]


def test_rows_of_one_epoch_in_several_batches_are_emitted_once() -> None:
    top = spec(2)
    with backend_of(top) as backend:
        task = top.make()
        task.open(TaskContext(backend))
        for n in range(5):
            rows = pa.record_batch(
                [pa.array([1]), pa.array([n]), pa.array([str(n)])], names=["id", "n", "s"]
            )
            assert not list(task.process(rows))
        [piece] = task.finish()
        assert piece.to_pylist() == [
            {"id": 1, "n": 4, "s": "4", "rank": 1},
            {"id": 1, "n": 3, "s": "3", "rank": 2},
        ]


def test_more_keys_than_sixteen_bits() -> None:
    keys = 70_000
    top = spec(1)
    with backend_of(top) as backend:
        task = top.make()
        task.open(TaskContext(backend))
        ids = [*range(keys), *range(keys)]
        values = [*range(keys), *range(keys, 0, -1)]
        columns = [pa.array(ids), pa.array(values), pa.array(["x"] * (2 * keys))]
        assert not list(task.process(pa.record_batch(columns, names=["id", "n", "s"])))
        found = pa.Table.from_batches(task.finish()).sort_by("id")
        assert found["n"].to_pylist() == [max(key, keys - key) for key in range(keys)]
