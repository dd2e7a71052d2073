"""Deduplication against a list of rows, over random streams that are cut at random places."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.epochs.watermarks import OperatorTime
from pystate.operators.runtime.deduplicate import DeduplicateSpec, Deduplicator
from tests.drawn import drawn
from tests.model.ranges import Ranges, Row
from tests.range_backends import DiskRanges, on_disk

SCHEMA = pa.schema({"k": pa.int64(), "name": pa.string(), "at": pa.int64(), "v": pa.int64()})
KEY = ("k", "name")


class Task(Ranges):
    def __init__(self, spec: DeduplicateSpec, disk: DiskRanges | None = None) -> None:
        super().__init__({"k": "long", "name": "string"}, SCHEMA, disk)
        self.spec = spec

    def run(
        self, batches: Sequence[list[Row]], parallelism: int, now: int, watermark: int | None
    ) -> tuple[list[Row], list[Row]]:
        """An epoch's rows, and those that were late."""
        late: list[Row] = []
        early, last = self.epoch(
            self.spec,
            Deduplicator,
            batches,
            parallelism,
            processing_time=now,
            time=OperatorTime(watermark, watermark),
            side=lambda _, rows: late.extend(rows.to_pylist()),
        )
        pieces = early + last
        assert all(piece.schema == SCHEMA for piece in pieces)
        return [row for piece in pieces for row in piece.to_pylist()], late


@dataclass
class Model:
    """The same with a list of what was passed on."""

    spec: DeduplicateSpec
    passed: dict[Any, list[int | None]] = field(default_factory=dict)

    def epoch(
        self, rows: list[Row], now: int, watermark: int | None
    ) -> tuple[list[Row], list[Row]]:
        spec = self.spec
        late: list[Row] = []
        if spec.event_time and spec.late != "process" and watermark is not None:
            late = [r for r in rows if r["at"] is not None and r["at"] < watermark]
            rows = [r for r in rows if r not in late]
        if spec.event_time is not None and not spec.ordered:
            unknown = -(10**6) if spec.keep == "last" else 10**6
            rows = sorted(rows, key=lambda r: unknown if r["at"] is None else r["at"])
        if spec.keep == "last":
            rows = list({(r["k"], r["name"]): r for r in rows}.values())
        out = [r for r in rows if self._passes(r, now, watermark)]
        return out, late if spec.late == "side" else []

    def _passes(self, row: Row, now: int, watermark: int | None) -> bool:
        spec, at = self.spec, row["at"]
        passed = self.passed.setdefault((row["k"], row["name"]), [])
        clock = now if spec.event_time is None else watermark
        forgotten = None
        if spec.within_ms is not None and clock is not None:
            forgotten = clock - spec.within_ms
            passed[:] = [p for p in passed if p is None or p > forgotten]
        if spec.keep == "last":
            if spec.event_time is None:
                return True
            newest = max((p for p in passed if p is not None), default=None)
            if newest is not None and (at is None or at < newest):
                return False
            passed.append(at)
            return True
        if spec.event_time is None or spec.within_ms is None:
            if passed:
                return False
            passed.append(now)
            return True
        if at is None or (forgotten is not None and at <= forgotten):
            return True
        if any(p is not None and abs(p - at) < spec.within_ms for p in passed):
            return False
        passed.append(at)
        return True


def expected_order(row: Row) -> int:
    return int(row["v"])


specs = st.builds(
    DeduplicateSpec,
    key=st.just(KEY),
    within_ms=st.sampled_from([None, 1, 3, 10, 40]),
    keep=st.sampled_from(["first", "last"]),
    event_time=st.sampled_from([None, "at", "at"]),
    ordered=st.booleans(),
    late=st.sampled_from(["process", "drop", "side"]),
)


@drawn(150)
@given(st.data(), specs)
def test_random_streams(data: st.DataObject, spec: DeduplicateSpec) -> None:
    compare(data, Task(spec))


@drawn(40)
@given(st.integers(0, 1 << 30), st.data(), specs)
def test_on_disk(seed: int, data: st.DataObject, spec: DeduplicateSpec) -> None:
    with on_disk(seed) as ranges:
        compare(data, Task(spec, ranges))


def compare(data: st.DataObject, operator: Task) -> None:
    spec = operator.spec
    model = Model(spec)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    spread = data.draw(st.sampled_from([0, 5, 60]))
    keys = data.draw(st.sampled_from([1, 3, 20]))
    now, watermark, number = 1000, None, 0
    for _ in range(data.draw(st.integers(1, 5))):
        rows = []
        for _ in range(int(rng.integers(0, 40))):
            number += 1
            at: int | None = number // 2 + int(rng.integers(-spread, spread + 1))
            rows.append(
                {
                    "k": None if rng.random() < 0.1 else int(rng.integers(keys)),
                    "name": [None, "a", "b" * 20][rng.integers(3)],
                    "at": None if rng.random() < 0.05 else at,
                    "v": number,
                }
            )
        cuts = sorted(int(c) for c in rng.integers(0, len(rows) + 1, int(rng.integers(0, 3))))
        given_rows = rows
        if spec.event_time is not None and not spec.ordered and cuts and spec.keep == "first":
            given_rows = sorted(rows, key=lambda r: 10**6 if r["at"] is None else r["at"])
        edges = [0, *cuts, len(rows)]
        batches = [given_rows[a:b] for a, b in itertools.pairwise(edges)]
        found = operator.run(batches, int(rng.integers(1, 4)), now, watermark)
        wanted = model.epoch(rows, now, watermark)
        for mine, theirs in zip(found, wanted, strict=True):
            assert sorted(mine, key=expected_order) == sorted(theirs, key=expected_order)
        now += int(rng.integers(0, 20))
        times = [r["at"] for r in rows if r["at"] is not None]
        if times:
            delay = data.draw(st.sampled_from([0, 10, 100]))
            watermark = max(max(times) - delay, -(10**6) if watermark is None else watermark)


def test_a_late_row_does_not_make_its_key_forgotten() -> None:
    spec = DeduplicateSpec(KEY, within_ms=40, event_time="at")
    operator = Task(spec)
    row = {"k": 1, "name": "a", "v": 0}
    for at, watermark, passes in [
        (44, None, 1),
        (-26, None, 1),
        (54, 64, 0),
        (70, 64, 0),
        (84, 64, 1),
    ]:
        found, _ = operator.run([[{**row, "at": at}]], 1, 0, watermark)
        assert len(found) == passes, at


@pytest.mark.parametrize("ordered", [False, True])
def test_a_key_with_very_many_rows(ordered: bool) -> None:
    spec = DeduplicateSpec(KEY, within_ms=3, event_time="at", ordered=ordered)
    rng = np.random.default_rng(7)
    operator, model = Task(spec), Model(spec)
    for epoch in range(3):
        rows = [
            {"k": int(rng.integers(2)), "name": None, "at": int(at), "v": i}
            for i, at in enumerate(rng.integers(0, 1000, 600) + epoch * 300)
        ]
        found, _ = operator.run([rows], 1, 0, None)
        wanted, _ = model.epoch(rows, 0, None)
        assert sorted(found, key=expected_order) == sorted(wanted, key=expected_order)
        assert len(found) > 60 if epoch == 0 else found
