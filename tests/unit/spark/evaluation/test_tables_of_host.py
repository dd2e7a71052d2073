"""Among how many tables a host divides its memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pystate.spark.evaluation.evaluation import _FIRST_OPERATORS, Evaluation


@pytest.mark.parametrize(
    ("base", "declared", "names", "tables"),
    [
        (3, 1, ["a:1"], 12),
        (3, 5, ["a:1"], 20),
        (None, 1, ["a:1"], 4 * _FIRST_OPERATORS),
        (None, 9, [], 36),
        (3, 1, ["driver:1", "a:1"], 12),
        (3, 1, ["driver:1", "a:1", "a:2", "b:1"], 6),
        (3, 1, ["driver:1", *(f"h{i}:1" for i in range(5))], 3),
    ],
)
def test_tables_of_a_host(base: int | None, declared: int, names: list[str], tables: int) -> None:
    """Of all operators, also before all are declared; the driver has none of them."""
    before = None if base is None else SimpleNamespace(operators=[None] * base)
    epoch = SimpleNamespace(base=before, declared=declared)
    evaluation = SimpleNamespace(epoch=epoch, _executors=frozenset(names))
    assert Evaluation._tables_of_host(evaluation, 4) == tables  # type: ignore[arg-type]
