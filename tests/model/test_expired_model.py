"""What readers see of states that expire, against a dict that has the time of each element.

The table of the program, and its sweeps, have their own idea of what has expired; files have what
is left of it. Readers see what lives by the clock and the durations of an epoch's manifest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.processor.lookup import StateLookup
from pystate.state.declaration import State
from tests.drawn import drawn
from tests.written import Written

#: Shorter ones are what manifests say: so nothing is removed that a reader is to see.
LONGEST_MS = 40
FAR_MS = 10**12
KEYS, SPACES = range(4), range(2)
_Time = Literal["processing", "event"]
#: State, key, namespace, entry of the map, how late in the epoch by event time.
writes = st.tuples(
    st.sampled_from("vlmn"),
    st.sampled_from(KEYS),
    st.sampled_from(SPACES),
    st.integers(0, 2),
    st.integers(0, 30),
)
#: How far time moves, what is written then, how long the manifest says that states live, sweeps.
steps = st.tuples(
    st.integers(0, 30),
    st.lists(writes, max_size=6),
    st.sampled_from([None, 5, 20, LONGEST_MS]),
    st.booleans(),
)


def states(ttl_ms: int | None, time: _Time) -> dict[str, State[Any]]:
    ttl = None if ttl_ms is None else ps.StateTtl(ttl_ms, time=time)
    return {
        "v": ps.ValueState("long", ttl=ttl),
        "l": ps.ListState("long", ttl=ttl),
        "m": ps.MapState("long", "long", ttl=ttl),
        "n": ps.ValueState("long"),
    }


class Model:
    """Elements with the times at which they were written: values, items in order, and entries."""

    def __init__(self, time: _Time) -> None:
        self.time = time
        self.rows: dict[Any, dict[str, dict[int, tuple[int, int]]]] = {}

    def write(
        self, row: Any, name: str, entry: int, value: int, now_ms: int, event_ms: int
    ) -> None:
        elements = self.rows.setdefault(row, {}).setdefault(name, {})
        place = {"m": entry, "l": value}.get(name, 0)  # items are never replaced
        written = now_ms
        if self.time == "event":
            written = max(event_ms, elements.get(place, (0, event_ms))[1])
        elements[place] = value, written

    def visible(self, now_ms: int, ttl_ms: int | None) -> dict[Any, dict[str, Any]]:
        found = {}
        for row, of_states in self.rows.items():
            live = {
                name: {
                    place: value
                    for place, (value, written) in elements.items()
                    if name == "n" or ttl_ms is None or now_ms - written < ttl_ms
                }
                for name, elements in of_states.items()
            }
            if any(live.values()):
                found[row] = {
                    "v": live.get("v", {}).get(0),
                    "l": list(live.get("l", {})),
                    "m": sorted(live.get("m", {}).items()),
                    "n": live.get("n", {}).get(0),
                }
        return found


def content(table: Any, spaced: bool) -> dict[Any, dict[str, Any]]:
    found = {}
    for row in table.to_pylist():
        key = (row.pop("key"), row.pop("namespace")) if spaced else row.pop("key")
        found[key] = {**row, "m": sorted(row["m"])}
    assert len(found) == table.num_rows
    return found


@drawn(60)
@given(
    st.lists(steps, min_size=1, max_size=6), st.booleans(), st.sampled_from(["processing", "event"])
)
def test_readers_see_what_lives(drawn_steps: list[Any], spaced: bool, time: _Time) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given: Any = {"namespace": "long"} if spaced else {}
        program, model = Written(Path(folder), states(LONGEST_MS, time), **given), Model(time)
        now_ms, number, expected = 1000, 0, []
        with program.backend as backend:
            for step_ms, written, ttl_ms, sweeps in drawn_steps:
                now_ms += step_ms
                for name, key, space, entry, late_ms in written:
                    number += 1
                    event_ms = now_ms + late_ms
                    backend.set_clock(processing_time=now_ms, watermark=now_ms, event_time=event_ms)
                    program.set_current(key, *([space] if spaced else []))
                    if name == "l":
                        backend["l"].add(number)
                    elif name == "m":
                        backend["m"].put(entry, number)
                    else:
                        backend[name].update(number)
                    row = (key, space) if spaced else key
                    model.write(row, name, entry, number, now_ms, event_ms)
                backend.set_clock(processing_time=now_ms, watermark=now_ms)
                by_rows = time == "event"
                program.publish(
                    FAR_MS if by_rows else now_ms,
                    now_ms if by_rows else FAR_MS,
                    states(ttl_ms, time),
                    sweeps=sweeps,
                )
                short = LONGEST_MS if ttl_ms is None else ttl_ms
                expected.append((model.visible(now_ms, ttl_ms), model.visible(now_ms, short)))
        check(folder, expected, spaced)


def check(folder: str, expected: list[Any], spaced: bool) -> None:
    stored: dict[Any, Any] = {}
    for epoch, (visible, at_least) in enumerate(expected, 1):
        whole = content(ps.read_state(folder, epoch=epoch), spaced)
        every = content(ps.read_state(folder, epoch=epoch, expired=True), spaced)
        if visible != at_least:  # nothing expires for readers, and the program has removed some
            assert whole == every and at_least.keys() <= whole.keys()
        else:
            assert whole == visible and visible.keys() <= every.keys()
        assert content(ps.read_state(folder, epoch=epoch, keys=list(KEYS)), spaced) == whole
        assert content(StateLookup(folder, epoch=epoch).rows(list(KEYS)), spaced) == whole
        for name, nothing in (("v", None), ("l", [])):
            one = ps.read_state(folder, epoch=epoch, state=name).to_pylist()
            present = [row[name] for row in whole.values() if row[name] != nothing]
            assert sorted(map(str, (row[name] for row in one))) == sorted(map(str, present))
        # Changes of one epoch after the other are those since the beginning.
        for key, before, after in changed(folder, epoch - 1, epoch, spaced):
            assert stored.pop(key, None) == before
            if after is not None:
                stored[key] = after
        assert stored == {key: after for key, _, after in changed(folder, 0, epoch, spaced)}
        assert stored.keys() == every.keys()


def changed(folder: str, older: int, newer: int, spaced: bool) -> Iterator[tuple[Any, Any, Any]]:
    """The changes between two epochs: keys, and their states before and after."""
    for row in ps.changes(folder, from_epoch=older, to_epoch=newer).to_pylist():
        for side in filter(None, (row["before"], row["after"])):
            side["m"] = sorted(side["m"])
        key = (row["key"], row["namespace"]) if spaced else row["key"]
        yield key, row["before"], row["after"]
