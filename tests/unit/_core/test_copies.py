"""What is copied out of a table is of one moment, and what is copied in stays as it was.

A Python signal handler runs between any two lines of Python code. `at_every_line` stands for one:
it runs an operation once for each line of pystate that it goes through, with a write there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, PystateError

PACKAGE = str(Path(ps.__file__).parent)
KEYS = [1, 2, 3]


class Interrupt:
    """Calls something at the n-th line of pystate that is reached, in no deeper call of its own."""

    def __init__(self, at: int, call: Callable[[], object]) -> None:
        self.left = at
        self.call = call
        self.reached = False

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """As `sys.settrace` has it."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and not self.reached:
            if self.left == 0:
                self.reached = True
                sys.settrace(None)
                self.call()
            self.left -= 1
        return self.trace


def backend() -> ps.KeyedStateBackend:
    """Short values under some keys."""
    made = ps.KeyedStateBackend(
        "string",
        states={
            "s": ps.ValueState("string"),
            "p": ps.ValueState("array<string>"),
            "l": ps.ListState("long"),
            "ls": ps.ListState("string"),
            "m": ps.MapState("long", "string"),
            "top": ps.AggregatingState(ps.TopK(64), "long"),
        },
    )
    write(made, 1)
    return made


def keys(made: ps.KeyedStateBackend) -> ps.KeyBatch:
    """The batch of all of them."""
    return made.keys([f"key {i}" for i in KEYS])


def write(made: ps.KeyedStateBackend, n: int) -> None:
    """Make what the keys have `n` times as long."""
    all_ = keys(made)
    made["s"].update_all(all_, [f"{i} of some length " * n for i in KEYS])
    made["p"].update_all(all_, [[f"{i} of some length"] * n for i in KEYS])
    made["top"].add_all(all_, n)
    made["m"].put_entries(all_, [7] * len(KEYS), [f"{i} of some length " * n for i in KEYS])
    made["l"].extend(all_, [[i] * n for i in KEYS])
    made["ls"].extend(all_, [[f"{i} of some length"] * n for i in KEYS])


def rows_of(made: ps.KeyedStateBackend) -> list[Any]:
    """The keys that the epoch touched."""
    return sorted(key for batch in made.changed() for key in batch.to_pylist())


READS: dict[str, Callable[[ps.KeyedStateBackend], Any]] = {
    "values": lambda b: b["s"].values(keys(b)).to_pylist(),
    "nested values": lambda b: b["p"].values(keys(b)).to_pylist(),
    "results": lambda b: b["top"].results(keys(b)).to_pylist(),
    "lists": lambda b: b["l"].lists(keys(b)).to_pylist(),
    "lists of strings": lambda b: b["ls"].lists(keys(b)).to_pylist(),
    "maps": lambda b: b["m"].maps(keys(b)).to_pylist(),
    "entries": lambda b: b["m"].get_entries(keys(b), [7] * len(KEYS)).to_pylist(),
    "keys of rows": rows_of,
}


def at_every_line(read: str) -> Iterator[None]:
    """Read with a write in the midst, at one line after the other."""
    plain = backend()
    before = READS[read](plain)
    write(plain, 200)
    after = READS[read](plain)
    plain.close()
    at, reached = 0, True
    while reached:
        made = backend()
        interrupt = Interrupt(at, lambda made=made: write(made, 200))
        sys.settrace(interrupt.trace)
        try:
            found = READS[read](made)
        except PystateError:
            found = before
        finally:
            sys.settrace(None)
        assert found in (before, after), f"{read}, line {at}: a mixture"
        made.close()
        at, reached = at + 1, interrupt.reached
        yield


def test_a_write_between_any_two_lines() -> None:
    """What is read is what was there before, or after; and nobody writes where nobody allocated."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.splitlines() == [*READS]


# -- what goes in ----------------------------------------------------------------------------------


def buffers_of(kind: str) -> tuple[Any, Any, Any, Any]:
    """A column of the keys 0 to 99 over memory of numpy, that memory, others, and their type."""
    numbers, others = np.arange(100, dtype=np.int64), np.arange(1000, 1100, dtype=np.int64)
    if kind == "numpy":
        return numbers, numbers, others, "long"
    if kind == "Arrow over numpy":
        return pa.array(numbers), numbers, others, "long"
    if kind == "buffers":
        array = pa.Array.from_buffers(pa.int64(), 100, [None, pa.py_buffer(numbers)])
        return array, numbers, others, "long"
    if kind == "a slice":
        return pa.array(np.concatenate([others, numbers]))[100:], None, None, "long"
    if kind == "times":
        return pa.array(numbers).cast(pa.timestamp("us", "UTC")), numbers, others, "timestamp"
    if kind == "doubles":
        doubles = numbers.astype(np.float64)
        return doubles, doubles, others.astype(np.float64), "double"
    offsets = np.arange(0, 404, 4, dtype=np.int32)
    data = np.frombuffer("".join(f"{i:4}" for i in range(100)).encode(), np.uint8).copy()
    array = pa.Array.from_buffers(
        pa.string(), 100, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return array, data, np.frombuffer(b"zzzz" * 100, np.uint8), "string"


KINDS = ["numpy", "Arrow over numpy", "buffers", "a slice", "times", "doubles", "strings"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_of_keys_is_filled_anew(kind: str) -> None:
    """Keys are those that `keys` was given: they are found again, and the epoch is sealed."""
    column, memory, others, type_ = buffers_of(kind)
    with ps.KeyedStateBackend(
        type_, states={"n": ps.ValueState("long"), "o": ps.ValueState(object)}
    ) as made:
        batch = made.keys(column)
        wanted = batch.to_pylist()
        if memory is not None:
            memory[:] = others
        made["n"].add(batch, 1)
        made["o"].update_all(batch, [[i] for i in range(100)])
        assert batch.to_pylist() == wanted
        batch.select(7)
        assert made.current_key == wanted[7]
        made.seal().close()
        assert len(made) == 100
        again = made.keys(wanted)
        assert made["n"].values(again).to_pylist() == [1] * 100
        assert made["o"].values(again) == [[i] for i in range(100)]


BAD = {
    "behind the data": [0, 4, 4000, 4000],
    "descending": [0, 12, 4, 12],
    "before the data": [-4000, 0, 4, 12],
    "only the last": [0, 4, 8, 1 << 30],
    "in the middle": [0, 4, 1 << 30, 12],
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("as_type", ["string", "large_string"])
def test_offsets_that_lead_outside(bad: str, as_type: str) -> None:
    """An error, before anything is read or written."""
    offsets = np.array([0, 4, 8, 12], np.int32 if as_type == "string" else np.int64)
    array = pa.Array.from_buffers(
        pa.string() if as_type == "string" else pa.large_string(),
        3,
        [None, pa.py_buffer(offsets), pa.py_buffer(b"abcdefghijkl")],
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), array)
    # Arrow looks at them when the array is made.
    offsets[:] = BAD[bad]
    with ps.KeyedStateBackend(
        "string",
        states={
            "s": ps.ValueState("string"),
            "l": ps.ListState("string"),
            "m": ps.MapState("string", "string"),
            "p": ps.ValueState("array<string>"),
        },
    ) as made:
        three = made.keys(["a", "b", "c"])
        for use in (
            lambda: made.keys(array),
            lambda: made["s"].update_all(three, array),
            lambda: made["l"].append(three, array),
            lambda: made["m"].put_entries(three, array, "x"),
            lambda: made["m"].get_entries(three, array),
            lambda: made["p"].update_all(three, lists),
        ):
            with pytest.raises((InvalidArgumentError, ps.errors.WrongTypeError)):
                use()
        assert len(made) == 0


if __name__ == "__main__":
    for each in READS:
        print(each, flush=True)
        lines = sum(1 for _ in at_every_line(each))
        assert lines > 5, lines
