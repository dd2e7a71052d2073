"""When rows are combined before the shuffle."""

from __future__ import annotations

import pytest

from pystate.epochs.range_report import RangeReport
from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.partial_rows import COMBINED_ROWS
from pystate.spark.base.partial_aggregation import checked_combine, may_combine
from pystate.spark.evaluation.operator_traits import CombinePolicy


def reports(rows: int, changed: int, came: int | None = None, uid: str = "a") -> list[RangeReport]:
    found = []
    for index in range(2):
        metrics: dict[str, float | int | str] = {}
        metrics.update(rows_in=rows // 2, rows_changed=changed // 2)
        if came is not None:
            metrics[COMBINED_ROWS] = came // 2
        found.append(
            RangeReport(uid, index, "e", "00", "00", None, metrics=metrics)
        )  # fmt: skip
    return found


def test_it_begins_after_an_epoch_with_many_rows_to_a_key() -> None:
    policy = CombinePolicy()
    assert not policy.combines("a")
    for rows, changed, expected in (
        (1_000_000, 500_000, False),
        (1_000, 10, False),
        (1_000_000, 10_000, True),
        (1_000_000, 900_000, True),
    ):
        policy.note(reports(rows, changed))
        assert policy.combines("a") == expected
    assert not policy.combines("b")


def test_it_ends_when_too_many_rows_come_and_pauses_longer_each_time() -> None:
    policy = CombinePolicy()
    paused = []
    for _ in range(3):
        assert not policy.combines("a")
        epochs = 0
        while not policy.combines("a"):
            policy.note(reports(1_000_000, 10_000))
            epochs += 1
        paused.append(epochs)
        policy.note(reports(1_000_000, 10_000, came=400_000))
        assert policy.combines("a")
        policy.note(reports(1_000_000, 10_000, came=600_000))
    assert paused == [1, 9, 17]


def test_it_ends_with_few_rows_and_begins_again_at_once() -> None:
    policy = CombinePolicy()
    policy.combines("a")
    policy.note(reports(1_000_000, 10_000))
    policy.note(reports(1_000, 10, came=10))
    assert not policy.combines("a")
    policy.note(reports(1_000_000, 10_000))
    assert policy.combines("a")


def test_epochs_without_rows_say_nothing() -> None:
    policy = CombinePolicy()
    policy.combines("a")
    policy.note(reports(0, 0))
    policy.note(reports(1_000_000, 10, uid="b"))
    assert not policy.combines("a") and not policy.combines("b")


@pytest.mark.parametrize("given", [None, 1, "yes", "AUTO", object()])
def test_the_argument_is_checked(given: object) -> None:
    with pytest.raises(InvalidArgumentError, match="combine="):
        checked_combine(given, "operator 'a'")


def test_what_is_asked_for_and_cannot_be_is_an_error() -> None:
    assert may_combine("auto", None, "a") and may_combine(True, None, "a")
    assert not may_combine(False, None, "a") and not may_combine("auto", "too hard", "a")
    with pytest.raises(InvalidArgumentError, match=r"a: combine=True: .*too hard"):
        may_combine(True, "too hard", "a")
