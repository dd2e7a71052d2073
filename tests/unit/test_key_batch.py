"""Keys of a batch: their canonical form, and rows made current one after the other."""

from __future__ import annotations

import pyarrow as pa
import pytest

import pystate as ps


def counts(**key: str) -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend(key=key or "string", states={"n": ps.ValueState("long", default=0)})


def test_the_bytes_of_a_null_are_no_key() -> None:
    # Arrow lets a null have bytes of its own.
    offsets = pa.array([0, 5, 10, 15], pa.int32()).buffers()[1]
    data = pa.py_buffer(b"firstotherfirst")
    nulls = pa.array([False, False, True]).buffers()[1]
    keys = pa.StringArray.from_buffers(3, offsets, data, nulls)
    assert keys.to_pylist() == [None, None, "first"]
    with counts() as backend:
        backend["n"].add(backend.keys(keys), 1)
        assert sorted(backend, key=str) == [None, "first"]
        assert backend["n"].values(backend.keys([None, "first", "other"])).to_pylist() == [2, 1, 0]


@pytest.mark.parametrize("length", [0, 11, 12, 13, 40, 64, 65, 600])
def test_strings_of_any_length(length: int) -> None:
    # Of more than 12 bytes the rest lies in a block, which may span lines.
    keys = [f"{i:04}".ljust(length, "x")[:length] for i in range(300)]
    with counts() as backend:
        for _ in range(2):
            backend["n"].add(backend.keys(keys), 1)
            backend.seal().close()
        found = backend["n"].values(backend.keys(keys)).to_pylist()
        assert found == [2 * keys.count(key) for key in keys]
        assert (
            backend["n"].values(backend.keys([key + "y" for key in keys])).to_pylist() == [0] * 300
        )
