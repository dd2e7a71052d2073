"""Which files are merged, and when: the decisions, and what they cost over many epochs."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterator

import pytest

from pystate.checkpoint.refs import EMPTY_ID, FileRef, RangeState, restrict
from pystate.epochs.merge_policy import DiskMergePolicy, MergePolicy, Run
from tests.simulated_range import GROUPS, PUT, SimulatedRange

# ---- tables in memory ---------------------------------------------------------------------------


def delta(number: int, size: int) -> FileRef:
    ids = f"{number:032x}", f"{number - 1:032x}"
    return FileRef(f"d{number}", "delta", *ids, number, 0, 127, size, 0, 1, 0, size)


def chain(base: int | None, sizes: list[int]) -> RangeState:
    deltas = tuple(delta(i + 2, size) for i, size in enumerate(sizes))
    first = None if base is None else dataclasses.replace(delta(1, base), kind="base", rows=100)
    return RangeState(0, 0, 127, deltas[-1].id, first, deltas)


@pytest.mark.parametrize(
    ("base", "sizes", "merged"),
    [
        (None, [10, 10, 10], (0, 0)),  # too few
        (None, [10, 10, 10, 10], (0, 2)),  # no base yet
        (100, [10, 10, 10, 10], (0, 0)),  # the base outweighs them
        (40, [10, 10, 10, 10], (0, 3)),  # they are half of the base
        (41, [10, 10, 1000, 1000], (0, 0)),  # those that stay out do not count
        (10**9, [1] * 63, (0, 0)),
        (10**9, [1] * 64, (1, 63)),  # so many that their number counts
        (10**9, [9] * 10 + [1] * 54, (11, 63)),  # only the small ones
        (10**9, [1] * 20 + [1000] + [1] * 43, (22, 63)),  # those that follow each other
        (10**9, [1] * 40 + [1000] + [1] * 23, (1, 41)),  # the most
        (2**70, [2**i for i in range(60)] + [1] * 4, (1, 11)),  # none are similar
    ],
)
def test_policy(base: int | None, sizes: list[int], merged: tuple[int, int]) -> None:
    state = chain(base, sizes)
    run = MergePolicy().choose(state)
    files = state.files[merged[0] : merged[1]]
    if not files:
        assert run is None
        return
    assert run is not None and run.sources == files
    assert run.kind == ("delta" if merged[0] else "base")
    assert run.id == state.files[merged[1]].parent == files[-1].id


def test_deletions_make_a_new_base() -> None:
    """However small they are: what they delete is a part of the storage."""
    state = chain(10**9, [1] * 5)
    for deleted, due in ((49, False), (50, True)):
        first = dataclasses.replace(state.deltas[0], tombstones=deleted)
        changed = dataclasses.replace(state, deltas=(first, *state.deltas[1:]))
        run = MergePolicy().choose(changed)
        assert (run is not None) == due
        assert run is None or (run.kind == "base" and run.sources == changed.files[:4])


def test_files_of_former_ranges_become_a_base() -> None:
    """Only deltas of the range itself, each built on the one before, become a delta."""
    state = chain(10**9, [1] * 64)
    for change in ({"last_key_group": 63}, {"kind": "base"}, {"id": "f" * 32}):
        foreign = dataclasses.replace(state.deltas[30], **change)  # type: ignore[arg-type]
        deltas = (*state.deltas[:30], foreign, *state.deltas[31:])
        run = MergePolicy().choose(dataclasses.replace(state, deltas=deltas))
        assert run is not None and run.kind == "delta" and run.sources == deltas[31:62]
        deltas = (*state.deltas[:-3], foreign, *state.deltas[-2:])
        run = MergePolicy().choose(dataclasses.replace(state, deltas=deltas))
        assert run is not None and run.kind == "base" and len(run.sources) == 63


@pytest.mark.parametrize(
    ("base", "epochs", "most"),
    [
        (100, 1000, 2.0),
        (1000, 4000, 3.0),
        pytest.param(10_000, 20_000, 3.5, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_merging_is_bounded(base: int, epochs: int, most: float, seed: int | None) -> None:
    """By the logarithm of how much smaller than the state an epoch's changes are."""
    rng = random.Random(seed)
    state = chain(base, [1])
    written = merged = 0
    for number in range(3, epochs):
        size = 1 if seed is None else int(rng.paretovariate(1.2))
        written += size
        new = dataclasses.replace(delta(number, size), parent=state.id)
        state = dataclasses.replace(state, id=new.id, deltas=(*state.deltas, new))
        run = MergePolicy().choose(state)
        if run is not None:
            # A base stays as large as the state.
            size = base if run.kind == "base" else sum(ref.file_bytes for ref in run.sources)
            merged += size
            first, last = run.sources[0], run.sources[-1]
            new = dataclasses.replace(last, kind=run.kind, parent=first.parent, file_bytes=size)
            found = run.replaced(state, dataclasses.replace(new, path=f"m{number}"))
            assert found is not None
            state = found
        assert len(state.deltas) < 64
        assert sum(ref.file_bytes for ref in state.deltas[:-3]) <= base / 2
    assert merged <= most * written, merged / written


#: Digest of what the policy of tables in memory decides in the histories below.
DECISIONS = "027f883f15c056f4bfea7ce3d40cbbf614d935a05babd199b02e1f829e321316"
POLICIES = (
    MergePolicy(),
    MergePolicy(keep_deltas=0),
    MergePolicy(min_deltas=3, max_deltas=8, keep_deltas=1),
    MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=0),
    MergePolicy(max_deltas=12, base_part=100),
)


def decisions(seed: int, policy: MergePolicy) -> Iterator[tuple[int, object]]:
    """What is decided in a random history, which begins with files of former ranges."""
    rng = random.Random(seed)

    def draw(below: int) -> int:
        return int(rng.random() * below)

    files = tuple(
        dataclasses.replace(
            delta(number, 1 + draw(2000)),
            kind=("base", "delta")[draw(2)],
            first_key_group=64 * (number % 2),
            last_key_group=64 * (number % 2) + 63,
            rows=20,
        )
        for number in range(1, 1 + draw(4))
    )
    state = RangeState(0, 0, 127, "f" * 32 if files else EMPTY_ID, deltas=files)
    for number in range(10, 10 + draw(400)):
        size = int((1 - rng.random()) ** (-draw(3) / 2)) if draw(4) else 1 + draw(50)
        tombstones = draw(size + 1) if draw(5) == 0 else 0
        new = dataclasses.replace(delta(number, size), parent=state.id, tombstones=tombstones)
        state = dataclasses.replace(state, id=new.id, deltas=(*state.deltas, new))
        run = policy.choose(state)
        yield number, run and (run.kind, run.id, [ref.path for ref in run.sources])
        if run is None or draw(3) == 0:
            continue
        size = sum(ref.file_bytes for ref in run.sources)
        if run.kind == "base":
            size = max(1, int(size * (0.5 + rng.random() / 2)))
        merged = dataclasses.replace(
            delta(number, size),
            path=f"m{number}",
            kind=run.kind,
            id=run.id,
            parent=run.sources[0].parent,
            rows=draw(1000),
        )
        found = run.replaced(state, merged)
        assert found is not None
        state = found


def test_what_tables_in_memory_have_decided_stays() -> None:
    """A checkpoint's files are merged as they were by the versions before."""
    digest = hashlib.sha256()
    for policy in POLICIES:
        for seed in range(30):
            for each in decisions(seed, policy):
                digest.update(repr(each).encode())
    assert digest.hexdigest() == DECISIONS


def test_the_bound_of_a_driver_s_first_epoch() -> None:
    policy = MergePolicy(max_deltas=4, most_deltas=7)
    for count in range(1, 9):
        state = chain(10**9, [1] * count)
        assert policy.is_full(state) == (count >= 7)
        assert policy.is_full(state, first=True) == (count >= 4)


# ---- tables on disk -----------------------------------------------------------------------------

DISK = DiskMergePolicy()
#: A scale at which a slice is 50 rows.
SLICED = DiskMergePolicy(slice_above_bytes=500 * PUT, slice_bytes=50 * PUT)


@pytest.mark.parametrize(
    ("base", "sizes", "merged"),
    [
        (1, [10, 10, 10], (0, 0)),  # too few
        (None, [10, 10, 10, 10], (0, 2)),  # no base yet
        (100, [10, 10, 10, 10], (0, 0)),  # the base outweighs them
        (80, [10, 10, 10, 10], (0, 3)),  # they are a quarter of the base
        (10**9, [1] * 18, (0, 0)),
        (10**9, [1] * 19, (1, 18)),  # so many that their number counts
        (10**9, [9] * 5 + [1] * 14, (6, 18)),  # only the small ones
    ],
)
def test_policy_of_tables_on_disk(
    base: int | None, sizes: list[int], merged: tuple[int, int]
) -> None:
    state = chain(base, sizes)
    run = DISK.choose(state)
    files = state.files[merged[0] : merged[1]]
    assert (run.sources if run is not None else ()) == files
    assert run is None or run.kind == ("delta" if merged[0] else "base")


def test_the_deepest_stack_counts() -> None:
    """Files of former ranges are many, and few for each key group."""
    low, high = (0, 63), (64, 127)
    parts = [restrict(delta(number, 1), (low, high)[number % 2]) for number in range(40)]
    state = RangeState(0, 0, 127, "f" * 32, deltas=tuple(parts))
    assert (len(state.files), state.depth, DISK.chain(state)) == (40, 20, 19)
    assert not DISK.is_full(state) and DISK.is_full(state, first=True)
    assert DISK.is_full(chain(1, [1] * 47)) and not DISK.is_full(chain(1, [1] * 46))


def first_base(policy: MergePolicy, keys: int) -> SimulatedRange:
    """A range whose base has so many keys, before the first epoch that counts."""
    simulated = SimulatedRange(policy)
    simulated.run_epoch(dict.fromkeys(range(keys), 0))
    run = Run(simulated.state.files, "base", simulated.state.id)
    simulated.adopt(run, simulated.merge(run))
    simulated.changed_bytes = simulated.merged_bytes = simulated.merges = 0
    return simulated


def test_a_large_base_is_made_in_slices() -> None:
    """One after the other, of about one size; and the deltas count for fewer key groups each."""
    simulated = first_base(SLICED, 1000)
    for number in range(1, 6):
        simulated.run_epoch(dict.fromkeys(range(number, 1000, 10 if number < 4 else 999), number))
    slices = []
    while (run := simulated.plan()) is not None:
        assert run.kind == "base" and run.slice is not None
        assert len(run.sources) == 4 and all(ref.bounds == run.slice for ref in run.sources)
        slices.append(run.slice)
        simulated.adopt(run, simulated.merge(run))
        state = simulated.state
        assert state.base is None and state.depth == (3 if run.slice[1] == GROUPS - 1 else 6)
    ends = [last + 1 for _, last in slices]
    assert [first for first, _ in slices] == [0, *ends[:-1]] and ends[-1] == GROUPS
    assert 26 <= len(slices) <= 33


def test_a_rescale_cuts_deltas_and_slices_replace_them() -> None:
    """What was merged already is not merged again before it is time."""
    simulated = first_base(SLICED, 1000)
    for number in range(1, 5):
        simulated.run_epoch({number: number})
    files = simulated.state.files
    cut = (files[0], *(restrict(ref, (32, 63)) for ref in files[1:3]), *files[3:])
    simulated.state = dataclasses.replace(simulated.state, base=None, deltas=cut)
    taken: list[int] = []
    while (run := simulated.plan()) is not None:
        assert run.slice is not None
        taken += range(run.slice[0], run.slice[1] + 1)
        simulated.adopt(run, simulated.merge(run))
    assert taken == list(range(32, 64))


def test_slices_grow_where_deltas_come_faster() -> None:
    simulated = first_base(SLICED, 1000)
    sizes = []
    for number in range(1, 60):
        simulated.run_epoch(dict.fromkeys(range(number % 10, 1000, 10), number))
        run = simulated.plan()
        if run is not None:
            merged = simulated.merge(run)
            simulated.adopt(run, merged)
            sizes.append(merged.file_bytes)
        assert simulated.state.depth <= 12
    assert max(sizes) > 3 * SLICED.slice_bytes


def test_files_without_guides_become_a_base_first() -> None:
    """All up to the last one, whatever their sizes; and a large range in slices."""
    state = chain(10**9, [1] * 5)
    assert DISK.with_guides and not MergePolicy().with_guides
    assert DISK.choose(state) is None
    assert MergePolicy().choose(state, plain=["d1"]) is None
    for plain, count in ((["d1"], 1), (["d1", "d3"], 3), (["d6", "d2"], 6)):
        run = DISK.choose(state, plain)
        assert run is not None and (run.kind, run.slice) == ("base", None)
        assert run.sources == state.files[:count]
        assert run.id == (state.files[count].parent if count < 6 else state.id)
    simulated = first_base(SLICED, 1000)
    simulated.run_epoch({1: 1})
    simulated.plain = {ref.path for ref in simulated.state.files}
    merges = 0
    while (run := simulated.plan()) is not None:
        assert run.slice is not None and len(run.sources) == 2
        simulated.adopt(run, simulated.merge(run))
        merges += 1
    assert 18 <= merges <= 22 and simulated.state.depth == 1
    assert not simulated.plain & {ref.path for ref in simulated.state.files}


# ---- a thousand epochs --------------------------------------------------------------------------


@dataclasses.dataclass
class Course:
    """What many epochs have come to."""

    simulated: SimulatedRange
    deepest: int = 0
    worst: float = 0.0
    """The most bytes written per byte changed, from the hundredth epoch on."""
    total: float = 0.0

    @property
    def mean(self) -> float:
        """The mean of it over these epochs."""
        return self.total / 900


def changes_of(
    kind: str, number: int, keys: list[int], rng: random.Random
) -> dict[int, int | None]:
    """What an epoch changes: 100 keys of those that there are, or many more or fewer."""
    if kind == "growing":
        return dict.fromkeys(range(50 * number, 50 * (number + 1)), number)
    if kind == "uniform":
        return {keys[int(rng.random() * len(keys))]: number for _ in range(100)}
    if kind == "skewed":
        count = min(int(30 * rng.paretovariate(1.1)), len(keys) // 2)
        return {keys[int(rng.random() ** 4 * len(keys))]: number for _ in range(count)}
    gone = {keys[int(rng.random() * len(keys))]: None for _ in range(50)} if keys else {}
    kept = {keys[int(rng.random() * len(keys))]: number for _ in range(50)} if keys else {}
    return {**kept, **gone}


def course(policy: MergePolicy, kind: str, count: int, late: int) -> Course:
    """A thousand epochs; each merge is adopted so many epochs after it was planned."""
    rng = random.Random(1)
    simulated = first_base(policy, count)
    model: dict[int, int | None] = dict.fromkeys(range(count), 0)
    found = Course(simulated)
    pending: tuple[Run, FileRef, int] | None = None
    keys = list(model)
    for number in range(1000):
        changes = changes_of(kind, number, keys, rng)
        if not changes:
            break
        model.update(changes)
        if kind == "shrinking":
            keys = [key for key in keys if changes.get(key, 0) is not None]
        if pending is not None and simulated.number >= pending[2]:
            simulated.adopt(*pending[:2])
            pending = None
        simulated.run_epoch(changes)
        run = simulated.plan() if pending is None else None
        if run is not None:
            pending = run, simulated.merge(run), simulated.number + late - 1
        found.deepest = max(found.deepest, simulated.state.depth)
        if number >= 100:
            found.worst = max(found.worst, simulated.amplification)
            found.total += simulated.amplification
    assert simulated.read() == {key: value for key, value in model.items() if value is not None}
    return found


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("late", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "count", "most"),
    [
        ("uniform", 3000, 6.5),
        ("uniform", 60_000, 6.5),
        ("skewed", 20_000, 6.5),
        ("shrinking", 20_000, 6.5),
        # Each byte of a growing state is new, so that bases grow by all that was changed.
        ("growing", 500, 7.5),
    ],
)
def test_a_thousand_epochs(kind: str, count: int, most: float, late: int, sliced: bool) -> None:
    """A stack has at most 24 files, and few bytes are written per byte changed."""
    policy = DISK
    if sliced:
        size = PUT * max(count, 20_000)
        policy = DiskMergePolicy(slice_above_bytes=size // 4, slice_bytes=size // 20)
    found = course(policy, kind, count, late)
    assert found.deepest <= 24
    assert found.worst <= most
    assert found.simulated.merges > 30
    if kind == "growing":
        assert found.mean <= 6.5
