"""What the job of the randomised run must come to: its input, and output and state recomputed.

Plain Python. Operators draw a stamp wherever they emit a row, and keep it: another one in each
evaluation, so that a row that is published from an evaluation whose state was thrown away differs
from what the state says.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

__all__ = ["RULES", "MismatchError", "Plan", "Row", "check", "draw_plan", "input_rows", "pad_of"]

GROUPS, NAMES = 5, 11
RING_AFTER_MS = 10
#: A row of the output: kind, k, seq, n, total, stamp.
Published = tuple[Any, ...]


class MismatchError(AssertionError):
    """Output, state and recomputation are not the same."""


class Row(NamedTuple):
    """A row of the input."""

    seq: int
    k: int
    v: int
    t: int


@dataclass(frozen=True)
class Plan:
    """What a job does, drawn at random; the same for all its drivers."""

    seed: str
    stream: bool
    """A streaming query, or runs with a key each."""
    rdd: bool
    """Whether the first operator is over an RDD."""
    ordered: bool
    side: bool
    groups: bool
    """Whether an aggregate over the first operator's output follows."""
    alarms: bool
    """Whether there is an operator with timers beside them."""
    actions: bool
    """Whether the pipeline reads its output more than once, or in part."""
    batches: int
    rows: int
    keys: int
    pad: int
    delay_ms: int
    interval: int = 1
    """Batches of a stream per checkpoint."""


def draw_plan(rng: random.Random, seed: str, batches: int) -> Plan:
    """Draw a job."""
    rdd = rng.random() < 0.2
    plan = Plan(
        seed=seed,
        stream=rng.random() < 0.4,
        rdd=rdd,
        ordered=not rdd and rng.random() < 0.7,
        side=rng.random() < 0.4,
        # An RDD that is read twice is an error, and the operator that follows would read it too.
        groups=not rdd and rng.random() < 0.5,
        alarms=rng.random() < 0.5,
        actions=rng.random() < 0.8,
        batches=batches,
        rows=rng.choice((1, 20, 150, 150, 1000)),
        keys=rng.choice((1, 7, 60, 400)),
        pad=rng.choice((0, 0, 100, 2000, 20000)),
        delay_ms=rng.choice((0, 15)),
    )
    interval = rng.choice((1, 1, 2, 3, 10))
    if not plan.stream or interval == 1:
        return plan
    # An epoch of several batches has the output of one large batch only if no operator emits
    # something once per batch.
    return replace(
        plan, interval=interval, rdd=False, ordered=True, groups=False, alarms=False, actions=False
    )


def input_rows(plan: Plan, batch: int) -> list[Row]:
    """The rows of a batch; its times overlap with those of the next ones."""
    rng = random.Random(f"{plan.seed}/input/{batch}")
    count = rng.randint(1, 2 * plan.rows)
    return [
        Row(
            batch * 1_000_000 + i,
            rng.randrange(plan.keys),
            rng.randrange(-1000, 1000),
            batch * 20 + rng.randrange(60),
        )
        for i in range(count)
    ]


def pad_of(plan_pad: int, k: int, n: int) -> str:
    """A text that makes a key's state large."""
    return "x" * (plan_pad * (1 + (k + n) % 3))


def _all(found: Counter[Published], wanted: Counter[Published]) -> bool:
    return found == wanted


def _some(found: Counter[Published], wanted: Counter[Published]) -> bool:
    return found <= wanted


def _seven(found: Counter[Published], wanted: Counter[Published]) -> bool:
    return found <= wanted and found.total() == min(7, wanted.total())


def _and_three(found: Counter[Published], wanted: Counter[Published]) -> bool:
    more = found - wanted
    return wanted <= found and more <= wanted and more.total() == min(3, wanted.total())


#: Whether what is published of an epoch may come of the rows of its operators.
RULES: dict[str, Callable[[Counter[Published], Counter[Published]], bool]] = {
    "all": _all,
    "some": _some,
    "seven": _seven,
    "and three": _and_three,
}


@dataclass
class Found:
    """What a checkpoint and its output hold in the end."""

    epochs: list[list[Row]]
    """The input of each epoch, as the run keys or the stream's offsets say."""
    out: dict[int, list[Published]]
    side: dict[int, list[Published]]
    states: Mapping[str, list[dict[str, Any]]]
    """By uid."""
    rules: list[str]
    """Of each epoch."""


def check(plan: Plan, found: Found) -> None:
    """Compare output, state and recomputation.

    Raises
    ------
    MismatchError
        They differ; the message says where.
    """
    _equal("the published epochs", sorted(found.out), list(range(1, len(found.epochs) + 1)))
    batches = [row.seq // 1_000_000 for rows in found.epochs for row in rows]
    _equal("the batches of all epochs", list(dict.fromkeys(batches)), list(range(plan.batches)))
    cells = _check_stamps(plan, found)
    wanted = [
        [("row", row.k, row.seq, *cells[row.k][row.seq]) for row in rows] for rows in found.epochs
    ]
    if plan.side:
        for number, rows in enumerate(found.epochs, 1):
            odd = [(r.k, r.seq, cells[r.k][r.seq][2]) for r in rows if r.seq % 2]
            _equal(
                f"epoch {number}: the side output",
                Counter(found.side.get(number, [])),
                Counter(odd),
            )
    if plan.groups:
        _add_groups(found, wanted)
    if plan.alarms:
        _add_alarms(plan, found, wanted)
    for number, (rule, rows) in enumerate(zip(found.rules, wanted, strict=True), 1):
        published, expected = Counter(found.out[number]), Counter(rows)
        if not RULES[rule](published, expected):
            raise MismatchError(
                f"epoch {number} ({rule} of {len(rows)} rows): {published.total()} are published; "
                f"of the state's are missing {_shown(expected - published)}; the state does not "
                f"have {_shown(published - expected)}"
            )


def _check_stamps(plan: Plan, found: Found) -> dict[int, dict[int, list[int]]]:
    """Compare the first operator's state with the input; returns its (n, total, stamp) by seq."""
    rows: dict[int, list[tuple[int, Row]]] = defaultdict(list)
    for number, epoch in enumerate(found.epochs):
        for row in epoch:
            rows[row.k].append((number, row))
    state = {row["k" if not plan.rdd else "key"]: row for row in found.states["stamps"]}
    _equal("the keys of 'stamps'", sorted(state), sorted(rows))
    cells = {}
    for k, mine in rows.items():
        what = f"'stamps', key {k}"
        found_cells = dict(state[k]["stamps"])
        _equal(f"{what}: its rows", sorted(found_cells), sorted(row.seq for _, row in mine))
        # Rows of one epoch come in some order, or in that of seq, and epochs one after the other.
        in_order = (
            sorted(mine, key=lambda each: (each[0], each[1].seq if plan.ordered else 0))
            if plan.ordered
            else sorted(mine, key=lambda each: found_cells[each[1].seq][0])
        )
        _equal(f"{what}: its epochs", [e for e, _ in in_order], [e for e, _ in sorted(mine)])
        total = 0
        for n, (_, row) in enumerate(in_order, 1):
            total += row.v
            _equal(f"{what}, row {row.seq}: n, total", found_cells[row.seq][:2], [n, total])
        _equal(f"{what}: n", state[k]["n"], len(mine))
        _equal(f"{what}: total", state[k]["total"], total)
        wanted = pad_of(plan.pad, k, len(mine)) or None
        if state[k]["pad"] != wanted:
            raise MismatchError(f"{what}: its text has another length")
        cells[k] = found_cells
    return cells


def _add_groups(found: Found, wanted: list[list[Published]]) -> None:
    counts: dict[int, tuple[int, int, int]] = {}
    for rows, out in zip(found.epochs, wanted, strict=True):
        for row in rows:
            n, most, total = counts.get(row.k % GROUPS, (0, 0, 0))
            counts[row.k % GROUPS] = n + 1, max(most, row.seq), total + row.seq
        for g in {row.k % GROUPS for row in rows}:
            n, most, total = counts[g]
            out.append(("group", g, most, n, total, None))
    state = {row["g"]: (row["n"], row["most"], row["total"]) for row in found.states["groups"]}
    _equal("the state of 'groups'", state, counts)


def _add_alarms(plan: Plan, found: Found, wanted: list[list[Published]]) -> None:
    rung: dict[str, list[int]] = defaultdict(list)
    waiting: set[tuple[str, int]] = set()
    names = set()
    watermark, latest = None, None
    marks = {row["name"]: dict(row["marks"] or ()) for row in found.states["alarms"]}
    for rows, out in zip(found.epochs, wanted, strict=True):
        for row in rows:
            names.add(f"a{row.k % NAMES}")
            waiting.add((f"a{row.k % NAMES}", row.t + RING_AFTER_MS))
        for name, time in sorted(waiting):
            if watermark is not None and time <= watermark:
                waiting.remove((name, time))
                rung[name].append(time)
                cell = marks.get(name, {}).get(len(rung[name]))
                if cell is None or cell[0] != time:
                    raise MismatchError(f"'alarms', key {name}: rang for {cell}, not at {time}")
                number = int(name[1:])
                out.append(("alarm", number, time, len(rung[name]), watermark, cell[1]))
        latest = max([row.t for row in rows] + ([] if latest is None else [latest]))
        watermark = latest - plan.delay_ms
    state = {row["name"]: row["rung"] or 0 for row in found.states["alarms"]}
    _equal("the keys of 'alarms'", set(state), names)
    _equal("the state of 'alarms'", state, {name: len(rung[name]) for name in names})
    for name, cells in marks.items():
        _equal(f"'alarms', key {name}: its marks", len(cells), len(rung[name]))


def _equal(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        if isinstance(found, Counter):
            found, wanted = _shown(found - wanted), _shown(wanted - found)
        raise MismatchError(f"{what}: found {found!s:.600}, not {wanted!s:.600}")


def _shown(rows: Counter[Published]) -> str:
    some: Sequence[Published] = sorted(rows, key=repr)[:3]
    return f"{rows.total()}: {some}" if rows else "none"
