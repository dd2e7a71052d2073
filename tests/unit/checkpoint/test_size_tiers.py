"""Which files are merged, by their sizes alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pystate.checkpoint.size_tiers import newest_similar, newest_tier, similar_run, steps_to_join

TIERS = [(8**power, 8 ** (power + 1)) for power in range(8)]


def test_a_byte_is_merged_as_often_as_the_logarithm_of_the_files() -> None:
    """Each file has its size, and how often a byte of it was merged at most."""
    files: list[tuple[int, int]] = []
    for _ in range(4000):
        files.append((1, 0))
        first = newest_tier([size for size, _ in files], TIERS, 8)
        if first < len(files) - 1:
            taken = files[first:]
            files[first:] = [(sum(s for s, _ in taken), 1 + max(times for _, times in taken))]
        assert len(files) <= 7 * 4
    assert max(times for _, times in files) <= 12


def test_the_largest_full_tier_counts() -> None:
    assert newest_tier([], TIERS, 8) == 0
    assert newest_tier([100, *[1] * 8], TIERS, 8) == 1
    assert newest_tier([100, *[8] * 7, *[1] * 7], TIERS, 8) == 15
    assert newest_tier([100, *[8] * 8, 1], TIERS, 8) == 1
    assert newest_tier([9, *[1] * 7], [(0, 8), (0, 64)], 8) == 0


def test_what_is_added_takes_those_that_are_not_much_larger() -> None:
    assert newest_similar([8, 4, 2, 1], 1, 4) == 0
    assert newest_similar([100, 8, 4, 2, 1], 1, 4) == 1
    assert newest_similar([100, 4, 2, 1], 1, 4) == 4


@given(st.lists(st.integers(0, 600), max_size=40))
def test_a_run_is_the_longest_of_its_size(each: list[int]) -> None:
    first, after = similar_run(each, 8)
    taken = each[first:after]
    assert len(taken) >= min(8, len(each))
    assert all(size <= max(taken) for size in taken)
    if first > 0:
        assert each[first - 1] > max(taken)
    if after < len(each):
        assert each[after] > max(taken)


def test_steps_to_join() -> None:
    assert steps_to_join([1] * 15) == (0, 0)
    assert steps_to_join([1] * 16) == (0, 16)
    assert steps_to_join([100, *[1] * 15]) == (1, 16)
    assert steps_to_join([]) == (0, 0)
