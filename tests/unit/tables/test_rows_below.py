"""What comes out of the files below a table, and what it becomes there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystate as ps

NOW = 1_000_000
TTL = ps.StateTtl(40, update="read_and_write")


def on_disk(folder: Path, state: ps.State) -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend("long", states={"s": state}, home="disk", path=folder)


def seal(backend: ps.KeyedStateBackend, folder: Path) -> Path:
    before = backend.lineage()
    assert before is not None
    lineage = ps.Lineage(uuid.uuid4().bytes, before.id, before.epoch + 1, 7)
    path = folder / f"{lineage.epoch}.delta"
    with backend.seal(lineage) as snapshot, open(path, "wb") as out:
        snapshot.write(out)
    return path


KINDS: dict[str, tuple[Callable[..., ps.State], Callable[..., Any], Callable[..., Any]]] = {
    "value": (ps.ValueState, lambda s, k: s.update_all(k, [7]), lambda s, k: s.values(k)),
    "list": (ps.ListState, lambda s, k: s.append(k, [7]), lambda s, k: s.lists(k)),
    "map": (
        lambda type_, **more: ps.MapState("long", type_, **more),
        lambda s, k: s.put_entries(k, [5], [7]),
        lambda s, k: s.maps(k),
    ),
}


@pytest.mark.parametrize("before", [TTL, None], ids=["timed", "untimed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_time_that_a_row_gets_is_a_change_of_it(
    kind: str, before: ps.StateTtl | None, tmp_path: Path
) -> None:
    """What files have without a time lives from its first use on, not from each time it comes."""
    make, write, read = KINDS[kind]
    with on_disk(tmp_path, make("long", ttl=before)) as old:
        write(old["s"], old.keys([1]))
        first = seal(old, tmp_path)
    with on_disk(tmp_path, make("long", ttl=TTL)) as made:
        made.restore([first])
        made.set_clock(processing_time=NOW)
        assert read(made["s"], made.keys([1])).to_pylist()[0]
        assert made.dirty
        second = seal(made, tmp_path)
        groups = (0, made.max_parallelism - 1)
        made.below.set_files([*made.below.files, (str(second), *groups)])
        assert made.below._make_room(1000, True) and made.stats().keys == 0
        made.set_clock(processing_time=NOW + 40)
        assert not read(made["s"], made.keys([1])).to_pylist()[0]
