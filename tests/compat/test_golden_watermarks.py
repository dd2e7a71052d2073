"""Watermarks of operators, as manifests of format 5 have them, must be read for ever.

``tests/compat/watermarks1`` was written once by ``python -m tests.compat.test_golden_watermarks``
and never is again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pystate.checkpoint.manifest import Manifest, read_manifest
from pystate.checkpoint.refs import InputState, OperatorState, empty_range
from pystate.checkpoint.storage import LocalStorage

FOLDER = Path(__file__).parent / "watermarks1"
KEY, STATES = (("k", "string"),), (("n", "State('bigint')"),)


def manifest() -> Manifest:
    ranges = (empty_range(0, 128, 1),)
    return Manifest(
        epoch=7,
        predecessor=6,
        evaluation_id="e" * 32,
        run_id="r" * 32,
        term=3,
        host="host",
        max_parallelism=128,
        processing_time_ms=1_000,
        created_ms=1,
        library="pystate 0",
        operators=(
            OperatorState("one", 1, KEY, STATES, ranges, True, (InputState("input", 90, 900),), 85),
            OperatorState(
                "two",
                1,
                KEY,
                STATES,
                ranges,
                inputs=(InputState("left", -5, 1_000), InputState("right", None, 10)),
                watermark_ms=-7,
            ),
            OperatorState("none", 1, KEY, STATES, ranges, inputs=(InputState(),)),
        ),
        run_key="r",
        watermark_ms=-7,
        format_version=5,
    )


def test_the_manifest_is_read() -> None:
    storage = LocalStorage(FOLDER)
    found = read_manifest(storage, manifest().path)
    assert found == manifest()
    assert found.encode() == storage.read_bytes(found.path)


if __name__ == "__main__":
    sys.exit(LocalStorage(FOLDER).publish(manifest().path, manifest().encode()))  # type: ignore[func-returns-value]
