"""Every byte of small files flipped in turn, and every truncation: an error that names the file.

Never a wrong value, never a crash: where an operation succeeds in spite of the damage, what it
read is right.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.errors import CorruptFileError, NewerFormatError, PystateError
from tests.drawn import stride

KEY = [("k", "long"), ("s", "string")]
STATES = {
    "n": ps.ValueState("long"),
    "flag": ps.ValueState("boolean"),
    "price": ps.ValueState("decimal(20,3)"),
    "text": ps.ValueState("string"),
    "any": ps.ValueState(object),
}


def fill(backend: ps.KeyedStateBackend, step: int) -> None:
    ks = list(range(step, 24 + step))
    keys = backend.keys([ks, [None if k % 5 == 0 else "key" * (k % 7) for k in ks]])
    backend["n"].add(keys, step)
    backend["flag"].update_all(keys, [k % 3 == 0 if k % 2 else None for k in ks])
    backend["price"].update_all(keys, [Decimal(k) / 8 for k in ks])
    backend["text"].update_all(keys, ["value " * k for k in ks])
    backend["any"].update_all(keys, [{"k": k} if k % 4 else None for k in ks])


def made(backend: ps.KeyedStateBackend) -> bytes:
    out = io.BytesIO()
    backend.seal().write(out)
    return out.getvalue()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A first delta, one with deletes on top of it, and the base of both."""
    with ps.KeyedStateBackend(KEY, states=STATES, max_parallelism=4) as backend:
        fill(backend, 1)
        first = made(backend)
        fill(backend, 5)
        backend.delete(backend.keys([[3, 4], ["key" * 3, "key" * 4]]))
        second = made(backend)
    base = io.BytesIO()
    ps.merge_files([io.BytesIO(first), io.BytesIO(second)], base)
    return {"first": first, "delta": second, "base": base.getvalue()}


def content(*files: Any) -> tuple[Any, ...]:
    """What a restore gives, and where it stands."""
    with ps.KeyedStateBackend(KEY, states=STATES, max_parallelism=4) as backend:
        backend.restore(files)
        table = backend.to_arrow().sort_by([("k", "ascending"), ("s", "ascending")])
        return table.to_pydict(), backend.lineage()


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Bytes with one or all of their bits flipped, truncations, and what is too long."""
    every = stride(3)
    for i in range(0, len(data), every):
        for mask in (1 << i % 8, 0xFF):
            yield f"byte {i} ^ {mask:#x}", data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :]
    for i in range(0, len(data), every):
        yield f"the first {i} bytes", data[:i]
    for extra in (b"\0", b"\0" * 4096, data):
        yield f"{len(extra)} bytes more", data + extra


def check(path: Path, data: bytes, read: Callable[[Path], Any], wanted: Any) -> None:
    unnamed, wrong, silent = [], [], []
    for damage, damaged in damages(data):
        path.write_bytes(damaged)
        try:
            found = read(path)
        except PystateError as error:
            if path.name not in str(error):
                unnamed.append((damage, error))
            if not isinstance(error, (CorruptFileError, NewerFormatError)):
                wrong.append((damage, error))
        else:
            if found != wanted:
                silent.append((damage, found))
    assert silent == []
    assert wrong == []
    assert unnamed == []


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["delta", "base"])
def test_damage_to_a_state_file_is_never_read(
    files: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    first = () if name == "base" else (io.BytesIO(files["first"]),)

    def read(path: Path) -> Any:
        return content(*first, path)

    path = tmp_path / f"{name}.file"
    path.write_bytes(files[name])
    check(path, files[name], read, read(path))


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["delta", "base"])
def test_verify_finds_all_damage(files: dict[str, bytes], tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.file"
    path.write_bytes(files[name])
    info = ps.verify_file(path)
    for damage, damaged in damages(files[name]):
        path.write_bytes(damaged)
        with pytest.raises((CorruptFileError, NewerFormatError), match=path.name):
            found = ps.verify_file(path, info)
            pytest.fail(f"{damage} was not found: {found}")


def test_a_merge_of_damaged_files_names_the_one(files: dict[str, bytes], tmp_path: Path) -> None:
    names = ("first", "delta")
    for bad in names:
        for i in range(0, len(files[bad]), 7):
            for name in names:
                data = bytearray(files[name])
                if name == bad:
                    data[i] ^= 0x10
                (tmp_path / f"{name}.file").write_bytes(data)
            out = io.BytesIO()
            try:
                ps.merge_files([tmp_path / f"{name}.file" for name in names], out)
            except (CorruptFileError, NewerFormatError) as error:
                assert f"{bad}.file" in str(error), (bad, i)
            else:
                assert out.getvalue() == files["base"], (bad, i)


@pytest.mark.parametrize("name", ["delta", "base"])
def test_a_file_object_is_named_too(files: dict[str, bytes], tmp_path: Path, name: str) -> None:
    data = files[name]
    path = tmp_path / f"{name}.file"
    for damaged in (data[:-1], data[: len(data) // 2], b"", data[:40] + b"\xff" + data[41:]):
        path.write_bytes(damaged)
        with open(path, "rb") as source, pytest.raises(CorruptFileError, match=path.name):
            content(source)


@pytest.mark.drawn
def test_a_range_is_checked_like_the_whole(files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "base.file"
    path.write_bytes(files["base"])

    def read(path: Path) -> Any:
        with ps.KeyedStateBackend(
            KEY, states=STATES, max_parallelism=4, key_group_range=(1, 2)
        ) as backend:
            backend.restore([path])
            return sorted(map(repr, backend.to_arrow().to_pylist()))

    wanted = read(path)
    assert wanted
    check(path, files["base"], read, wanted)


@pytest.mark.drawn
def test_damage_to_a_manifest_is_never_read(tmp_path: Path) -> None:
    with ps.open(tmp_path / "store", key="long", states=STATES) as store:
        for step in range(2):
            store["n"].add(store.keys([step]), 1)
            store.checkpoint()
    [first, newest] = sorted((tmp_path / "store" / "manifests").glob("*.manifest"))
    data = newest.read_bytes()
    wanted = Manifest.decode(data, newest.name)

    def read(path: Path) -> Any:
        return Manifest.decode(path.read_bytes(), str(path))

    check(newest, data, read, wanted)
    # The store itself: all of it for a few, as each opening is some milliseconds.
    for i in range(0, len(data), 97):
        newest.write_bytes(data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :])
        with pytest.raises(PystateError, match=newest.name):
            ps.open(tmp_path / "store", key="long", states=STATES)
    newest.write_bytes(data)
    with ps.open(tmp_path / "store", key="long", states=STATES) as store:
        assert sorted(store) == [0, 1]
    assert first.exists()
