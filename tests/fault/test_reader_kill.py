"""A writer that is killed in a roll back leaves a table that readers do not wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pystate as ps
from pystate.errors import TableBusyError
from pystate.types.keys import parse_key

ROWS = 1_000_000
STATES = {"n": ps.ValueState("long", default=0)}

# Changes every row and takes it back, over and over, and says when it begins to.
WRITER = """
import sys
import pyarrow as pa
import pystate as ps
from pystate.state.value import ValueState
rows = pa.array(range(int(sys.argv[2])))
states = {"n": ValueState("long", default=0)}
with ps.KeyedStateBackend("long", states=states, home="shared", path=sys.argv[1]) as backend:
    while True:
        backend["n"].add(backend.keys(rows), 5)
        print("back", flush=True)
        backend.rollback()
"""


def kill_in_rollback(path: Path) -> None:
    """Kill a writer just when it begins a roll back; at times the signal comes too late."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(ROWS)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "back\n"
    finally:
        process.kill()
        process.communicate()


def test_a_reader_says_that_a_roll_back_was_cut_short(tmp_path: Path) -> None:
    path, key = tmp_path / "t.table", parse_key("long")
    with ps.KeyedStateBackend("long", states=STATES, home="shared", path=path) as backend:
        backend["n"].add(backend.keys(range(ROWS)), 1)
        backend.seal()
    with ps.SealedReader(None, key, STATES, path) as reader:
        busy = None
        while busy is None:
            kill_in_rollback(path)
            try:
                assert reader.get(7) == {"n": 1}
            except TableBusyError as error:
                busy = error
        assert "opens the table to write" in str(busy)
        with pytest.raises(TableBusyError):
            reader.to_arrow()
        with pytest.raises(TableBusyError):
            ps.SealedReader(None, key, STATES, path)
        with ps.KeyedStateBackend("long", states=STATES, home="shared", path=path) as backend:
            backend.open()
            assert reader.get(7) == {"n": 1}
        assert reader.to_arrow().column("n").unique().to_pylist() == [1]
