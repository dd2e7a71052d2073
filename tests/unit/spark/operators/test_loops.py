"""How a loop's rows are read, as far as that needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pystate.spark.operators import loops

ROWS = pa.record_batch({"n": [1, 2]})


@pytest.mark.parametrize("held", [2, 3, 4])
def test_a_table_is_released_early_only_if_its_rows_were_all_taken(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    released: list[int] = []

    class Table:
        def __init__(self, *_: Any) -> None: ...

        def rows(self) -> Iterator[pa.RecordBatch]:
            for _ in range(3):
                assert not released
                yield ROWS

    @contextmanager
    def attached(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(backend=None, release=lambda: released.append(1))

    monkeypatch.setattr(loops, "LoopTable", Table)
    monkeypatch.setattr(loops, "_HELD_BATCHES", held)
    monkeypatch.setattr(loops, "tables", SimpleNamespace(attach_to_read=attached))
    plan: Any = SimpleNamespace(
        operator=SimpleNamespace(uid="l"),
        ranges=[SimpleNamespace(id="1", files=())],
        table=lambda state: None,
    )
    spec: Any = None
    output: Any = SimpleNamespace(from_value=lambda rows: [rows])
    reader = loops._LoopReader(plan, spec, output)
    assert list(reader(iter([pa.record_batch({"id": [0]})]))) == [ROWS] * 3
    assert released == [1] * (held > 3)
