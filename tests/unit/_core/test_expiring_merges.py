"""Merges of files that leave out what has expired."""

from __future__ import annotations

import io
from contextlib import ExitStack

import pytest

import pystate as ps
from pystate._core import core
from pystate.checkpoint.state_files import file_schema, open_file
from pystate.errors import InvalidArgumentError

SECOND = 1000


def backend() -> ps.KeyedStateBackend:
    made = ps.KeyedStateBackend(
        {"k": "long"},
        states={
            "n": ps.ValueState("long", ttl=ps.StateTtl("1 second")),
            "m": ps.MapState("long", "long", ttl=ps.StateTtl("2 seconds")),
            "stays": ps.ValueState("string"),
        },
        max_parallelism=4,
        uid="op",
    )
    made._table.set_whole_rows(512)
    return made


def epoch(of: ps.KeyedStateBackend, now: int, key: int) -> io.BytesIO:
    of.set_clock(processing_time=now)
    of.set_current_key(key)
    of["n"].update(5)
    of["m"].put(now, now)
    if key % 2:
        of["stays"].update("x")
    file = io.BytesIO()
    of.seal().write(file)
    return file


def merged(files: list[io.BytesIO], expiry: core.Expiry | None, kind: str = "base") -> io.BytesIO:
    out = io.BytesIO()
    with ExitStack() as stack:
        readers = [stack.enter_context(open_file(file)).reader for file in files]
        schema = file_schema(readers[0])
        core.merge(
            readers,
            [list(range(len(reader.schema()[1]))) for reader in readers],
            core.Schema(schema.keys, schema.states, schema.hashed),
            kind,
            *readers[-1].lineage(),
            4,
            0,
            3,
            out,
            "merged",
            expiry=expiry,
        )
    return out


SETTINGS = [(0, SECOND, False, False, 0), (2, 2 * SECOND, False, False, 0)]


def rows(file: io.BytesIO) -> list[dict[str, object]]:
    with backend() as loaded:
        loaded.load(file)
        found: list[dict[str, object]] = loaded.to_arrow().sort_by("k").to_pylist()
        return found


def test_a_base_has_what_is_seen() -> None:
    with backend() as written:
        files = [epoch(written, now, key) for now, key in ((5000, 1), (6500, 1), (7000, 2))]
        files.append(epoch(written, 8000, 3))
        base = merged(files, core.Expiry(SETTINGS, 8400, None))
        assert rows(base) == [
            {"k": 1, "n": None, "m": [(6500, 6500)], "stays": "x"},
            {"k": 2, "n": None, "m": [(7000, 7000)], "stays": None},
            {"k": 3, "n": 5, "m": [(8000, 8000)], "stays": "x"},
        ]
        late = merged(files, core.Expiry(SETTINGS, 99000, None))
        assert [row["k"] for row in rows(late)] == [1, 3]
        # What is put again as it was is in the delta with its value.
        again = epoch(written, 99500, 1)
        assert rows(merged([late, again], None))[0] == {
            "k": 1,
            "n": 5,
            "m": [(99500, 99500)],
            "stays": "x",
        }
    for unknown in (core.Expiry(SETTINGS, None, 99000), core.Expiry([], 99000, 99000)):
        assert merged(files, unknown).getvalue() == merged(files, None).getvalue()


def test_only_a_base_of_timed_states() -> None:
    with backend() as written:
        files = [epoch(written, 5000, 1)]
    with pytest.raises(InvalidArgumentError):
        merged(files, core.Expiry(SETTINGS, 8400, None), "delta")
    with pytest.raises(InvalidArgumentError):
        merged(files, core.Expiry([(1, 5, False, False, 0)], 8400, None))
    with pytest.raises(InvalidArgumentError):
        core.Expiry([(64, 5, False, False, 0)], None, None)
