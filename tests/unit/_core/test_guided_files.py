"""Guided files: written by the extension, and read by all that reads files of other kinds."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate._core import core

GUIDED = 8  # the incompatible feature, at 24 in the header

KEYS = list(range(20000))


def changed(backend: ps.KeyedStateBackend, step: int) -> bytes:
    """Change some keys; return the epoch as a guided file."""
    keys = KEYS[:: 1 + step]
    batch = backend.keys(keys)
    backend["n"].update_all(batch, [k * 3 + step for k in keys])
    backend["text"].update_all(batch, [f"text {k % 13} of step {step}" for k in keys])
    out = io.BytesIO()
    backend.seal()._sealed.write(out, "delta", 4096)
    return out.getvalue()


def values(backend: ps.KeyedStateBackend) -> tuple[list[Any], list[Any]]:
    batch = backend.keys(KEYS)
    return backend["n"].values(batch).to_pylist(), backend["text"].values(batch).to_pylist()


@pytest.fixture
def merging_guided(monkeypatch: pytest.MonkeyPatch) -> None:
    merge: Any = core.merge

    def merged(*args: Any) -> Any:
        return merge(*args, block_bytes=8192)

    monkeypatch.setattr(core, "merge", merged)


@pytest.mark.usefixtures("merging_guided")
def test_they_are_read_like_others(tmp_path: Path) -> None:
    states = {"n": ps.ValueState("long"), "text": ps.ValueState("string")}
    with ps.KeyedStateBackend("long", states=states, max_parallelism=16) as backend:
        files = [changed(backend, step) for step in range(3)]
        expected = values(backend)
    base = io.BytesIO()
    ps.merge_files([io.BytesIO(file) for file in files], base)
    for data in (*files, base.getvalue()):
        assert data[24] == GUIDED
        path = tmp_path / "guided"
        path.write_bytes(data)
        assert ps.verify_file(path).rows > 0
    with ps.KeyedStateBackend("long", states=states, max_parallelism=16) as restored:
        restored.restore([io.BytesIO(base.getvalue())])
        assert values(restored) == expected
