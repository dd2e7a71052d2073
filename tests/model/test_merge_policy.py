"""Every merge that a policy plans keeps each key group's files in order, and loses none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pystate.checkpoint.refs import FileRef, OperatorState, RangeState
from pystate.epochs.merge_policy import DiskMergePolicy, MergePolicy, Run
from pystate.epochs.rescale import plan_rescale
from tests.drawn import drawn
from tests.simulated_range import GROUPS, PUT, Content, SimulatedRange, group_of

KEYS = 4 * GROUPS
POLICIES = (
    MergePolicy(min_deltas=2, max_deltas=6, keep_deltas=1),
    DiskMergePolicy(min_deltas=2, max_deltas=6, keep_deltas=1),
    # Nearly every range is large, and has a dozen slices.
    DiskMergePolicy(max_deltas=9, slice_above_bytes=30 * PUT, slice_bytes=12 * PUT),
    DiskMergePolicy(min_deltas=1, max_deltas=9, keep_deltas=0, slice_above_bytes=0, slice_bytes=1),
)
#: Keys that follow each other, so that some changes are of few key groups.
CHANGES = st.builds(
    lambda first, count, step, values: {
        (first + step * i) % KEYS: values[i % len(values)] for i in range(count)
    },
    st.integers(0, KEYS - 1),
    st.integers(1, 60),
    st.sampled_from((1, 7, GROUPS)),
    st.lists(st.none() | st.integers(0, 99), min_size=1, max_size=5),
)


def stack(state: RangeState, group: int) -> list[str]:
    """The files that count for a key group, oldest first."""
    files = [ref.path for ref in state.files if ref.overlap((group, group)) is not None]
    assert len(set(files)) == len(files)
    return files


class Merging(RuleBasedStateMachine):
    """A range whose merges are planned, carried out, adopted or given up at any time."""

    policies = POLICIES

    @initialize(which=st.integers(0, len(POLICIES) - 1))
    def begin(self, which: int) -> None:
        self.range = SimulatedRange(POLICIES[which])
        self.model: dict[int, int | None] = {}
        self.ready: tuple[Run, FileRef] | None = None
        self.planned = 0

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=12), late=st.integers(0, 3))
    def run_epochs(self, changes: list[dict[int, int | None]], late: int) -> None:
        """Each is followed by a plan; what was planned is adopted so many epochs later."""
        for each in changes:
            self.range.run_epoch(each)
            self.model.update(each)
            if self.ready is not None and self.range.number >= self.planned + late:
                self.adopt()
            if self.ready is None:
                self.plan()
            if late == 0 and self.ready is not None:
                self.adopt()

    @rule(index=st.integers(0, 60))
    def come_from_another_home(self, index: int) -> None:
        """One of the files was written by a table in memory."""
        files = self.range.state.files
        if files and self.range.policy.with_guides:
            self.range.plain.add(files[index % len(files)].path)

    def plan(self) -> None:
        run = self.range.plan()
        if run is not None:
            self.check(run)
            self.ready, self.planned = (run, self.range.merge(run)), self.range.number

    def adopt(self) -> None:
        assert self.ready is not None
        run, merged = self.ready
        self.ready = None
        before = self.range.state
        after = run.replaced(before, merged)
        if after is None:  # the range has changed its bounds, or another driver was faster
            return
        first, last = run.slice or before.bounds
        for group in range(GROUPS):
            old, new = stack(before, group), stack(after, group)
            taken = [ref.path for ref in run.sources if ref.overlap((group, group))]
            if not first <= group <= last:
                assert new == old
                continue
            at = old.index(taken[0]) if taken else 0
            assert at == 0 or run.kind == "delta"
            assert old[at : at + len(taken)] == taken
            assert new == [*old[:at], merged.path, *old[at + len(taken) :]]
        assert after.id == before.id
        self.range.state = after

    @rule()
    def give_up(self) -> None:
        self.ready = None

    @rule(parallelism=st.integers(2, 5), changes=st.lists(CHANGES, max_size=3))
    def rescale(self, parallelism: int, changes: list[Content]) -> None:
        """Several ranges, which change, and one again."""
        one = OperatorState("op", 1, (), (), (self.range.state,))
        ranges = list(plan_rescale(one, parallelism, GROUPS))
        for each in changes:
            self.range.number += 1
            for index, state in enumerate(ranges):
                mine = {key: v for key, v in each.items() if state.overlap((group_of(key),) * 2)}
                if mine:
                    name = f"{self.range.number * 100 + index:032x}"
                    ref = self.range.write(mine, "delta", name, state.id, state.bounds)
                    ranges[index] = replace(state, id=ref.id, deltas=(*state.deltas, ref))
            self.model.update(each)
        many = OperatorState("op", parallelism, (), (), tuple(ranges))
        [self.range.state] = plan_rescale(many, 1, GROUPS)

    def check(self, run: Run) -> None:
        state = self.range.state
        assert run.position(state) is not None
        assert run.kind == "base" or all(ref.kind == "delta" for ref in run.sources)
        if run.slice is not None:
            first, last = run.slice
            assert state.first_key_group <= first <= last <= state.last_key_group
            assert run.kind == "base" and run.slice != state.bounds

    @invariant()
    def all_is_there(self) -> None:
        expected = {key: value for key, value in self.model.items() if value is not None}
        assert self.range.read() == expected
        state = self.range.state
        # A table at any of the ids is brought to the newest by deltas that are whole, or anew.
        for ref in state.files:
            deltas = state.deltas_after(ref.id)
            assert deltas is None or all(d.bounds == state.bounds for d in deltas)


TestMerging: Any = Merging.TestCase
TestMerging.settings = settings(drawn(120), stateful_step_count=30)


@pytest.mark.parametrize("policy", POLICIES)
def test_merges_end(policy: MergePolicy) -> None:
    """Without new deltas a policy soon has nothing left to do."""
    simulated = SimulatedRange(policy)
    for number in range(30):
        simulated.run_epoch(dict.fromkeys(range(number, KEYS, 3), number))
    for _ in range(3 * GROUPS):
        run = simulated.plan()
        if run is None:
            break
        simulated.adopt(run, simulated.merge(run))
    else:
        assert policy.min_deltas <= 1  # whatever it has made it makes again
