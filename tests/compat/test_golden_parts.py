"""A manifest and its part, as format 4 wrote them, must be read for ever.

``tests/compat/parts1`` was written once by ``python tests/compat/test_golden_parts.py`` and never
is again. Its number is the parts' own.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from pystate._core.core import range_bounds
from pystate.checkpoint.manifest import (
    ClockReading,
    Manifest,
    QueryProgress,
    read_manifest,
)
from pystate.checkpoint.parts import PartUse, share
from pystate.checkpoint.refs import (
    FileRef,
    InputState,
    OperatorState,
    RangeState,
    empty_range,
    state_path,
)
from pystate.checkpoint.storage import LocalStorage

FOLDER = Path(__file__).parent / "parts1"
GROUPS = 128


def ref(uid: str, state: RangeState, epoch: int, parent: str, kind: str = "delta") -> FileRef:
    first, last = state.first_key_group, state.last_key_group
    name = f"{epoch:016x}{state.index:016x}"
    path = state_path(uid, first, last, epoch, name if kind == "delta" else f"t3-{name}", kind)
    checksum = (1 << 63) + epoch
    return FileRef(path, kind, name, parent, epoch, first, last, 99, checksum, 5, 1, 500)


def chain(uid: str, index: int, width: int, epochs: int, base: int = 0) -> RangeState:
    state = empty_range(index, GROUPS, width)
    for epoch in range(1, epochs + 1):
        delta = ref(uid, state, epoch, state.id)
        state = dataclasses.replace(state, id=delta.id, deltas=(*state.deltas, delta))
    if base:
        merged = ref(uid, state, base, state.deltas[base - 1].parent, "base")
        state = dataclasses.replace(state, base=merged, deltas=state.deltas[base:])
    return state


def operators(epochs: int) -> tuple[OperatorState, ...]:
    """One range stands still, two grow, one of them gets a base, one has a timer."""
    key, states = (("k", "string"),), (("n", "State('bigint')"),)
    ranges = (
        chain("é/op", 0, 4, 40),
        chain("é/op", 1, 4, epochs),
        chain("é/op", 2, 4, epochs, base=epochs - 20),
        dataclasses.replace(
            chain("é/op", 3, 4, 40), next_event_timer_ms=-epochs, since=(("n", epochs),)
        ),
    )
    narrowed = tuple(
        RangeState(
            index,
            *range_bounds(index, GROUPS, 2),
            id="d" * 32,
            deltas=tuple(
                dataclasses.replace(file, first_key_group=index * 64, last_key_group=index * 64 + 9)
                for file in chain("b", 0, 1, 3).deltas
            ),
        )
        for index in range(2)
    )
    return (
        OperatorState("é/op", 4, key, states, ranges, True, (InputState("input", 77),)),
        OperatorState("b", 2, key, states, narrowed),
    )


def manifest(epochs: int) -> Manifest:
    return Manifest(
        epoch=epochs,
        predecessor=epochs - 1,
        evaluation_id="e" * 32,
        run_id="r" * 32,
        term=3,
        host="host",
        max_parallelism=GROUPS,
        processing_time_ms=-5,
        created_ms=1,
        library="pystate 0",
        operators=operators(epochs),
        query_id="q",
        batch_id=epochs,
        offsets_hash="h",
        queries=(QueryProgress("q", epochs, "h", epochs),),
        sinks=({"files": ["a"]},),
        read_clock=ClockReading(9, 7, 8),
        format_version=4,
    )


def make() -> None:
    storage = LocalStorage(FOLDER)
    use: PartUse | None = None
    for epochs in (40, 45):
        found = manifest(epochs)
        use, part = share(found.operators, epochs, "ab" * 16, use)
        assert use is not None and (part is None) == (epochs == 45)
        if part is not None:
            storage.publish(use.part.path, part)
        found = dataclasses.replace(found, part=use)
        storage.publish(found.path, found.encode())


def test_both_manifests_are_read() -> None:
    storage = LocalStorage(FOLDER)
    for epochs in (40, 45):
        found = read_manifest(storage, manifest(epochs).path)
        assert found == manifest(epochs)
        assert found.part is not None and found.part.part.path.endswith(
            "00000040-" + "ab" * 16 + ".part"
        )
        assert found.encode() == storage.read_bytes(found.path)


if __name__ == "__main__":
    sys.exit(make())
