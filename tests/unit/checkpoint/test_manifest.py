"""Manifests: what is written is read, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from pystate._core.core import range_bounds
from pystate.checkpoint.manifest import (
    FORMAT_VERSION,
    ClockReading,
    Manifest,
    QueryProgress,
    manifest_epoch,
    manifest_path,
)
from pystate.checkpoint.metadata import Fields, decode_document, encode_document
from pystate.checkpoint.refs import (
    EMPTY_ID,
    FileRef,
    InputState,
    OperatorState,
    RangeState,
    empty_range,
    state_folder,
)
from pystate.errors import CorruptFileError, InvalidArgumentError, NewerFormatError
from pystate.state.ttl import StateTtl


def file_ref(number: int, kind: str = "delta", parent: int | None = None) -> FileRef:
    return FileRef(
        path=f"state/op/00000-00127/{number:08d}-{number:032x}.{kind}",
        kind=kind,
        id=f"{number:032x}",
        parent=f"{number - 1 if parent is None else parent:032x}",
        epoch=number,
        first_key_group=0,
        last_key_group=127,
        file_bytes=100 + number,
        checksum=(1 << 63) + number,
        rows=number,
        tombstones=1,
        raw_bytes=3 * number,
    )


def manifest(**changes: Any) -> Manifest:
    files = (file_ref(3), file_ref(4))
    base = file_ref(2, "base")
    state = RangeState(0, 0, 127, file_ref(4).id, base, files, -7, None, (("n", 3),))
    inputs = (InputState("left", 99, -3), InputState("right"))
    operator = OperatorState(
        "op", 1, (("k", "string"),), (("n", "State('bigint')"),), (state,), True, inputs, 77
    )
    empty = OperatorState("émpty", 3, (), (), tuple(empty_range(i, 128, 3) for i in range(3)))
    found = Manifest(
        epoch=42,
        predecessor=41,
        evaluation_id="e" * 32,
        run_id="r" * 32,
        term=7,
        host="host",
        max_parallelism=128,
        processing_time_ms=-5,
        created_ms=1,
        library="pystate 0",
        operators=(operator, empty),
        query_id="q",
        batch_id=3,
        offsets_hash="h",
        watermark_ms=None,
        queries=(QueryProgress("q", 3, "h", 42),),
        sinks=({"files": ["a", "b"], "n": 1.5},),
        read_clock=ClockReading(-3, 7, None),
    )
    return dataclasses.replace(found, **changes)


def test_round_trip() -> None:
    original = manifest()
    data = original.encode()
    assert Manifest.decode(data, "m") == original
    assert Manifest.decode(data, "m").encode() == data
    other = manifest(query_id=None, batch_id=None, offsets_hash=None, run_key="k", watermark_ms=-1)
    assert Manifest.decode(other.encode(), "m") == other


def test_every_flipped_byte_and_every_truncation() -> None:
    data = manifest().encode()
    for position in range(len(data)):
        for bit in (0x01, 0x20, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(CorruptFileError, match=r"a/b\.manifest"):
                Manifest.decode(bytes(damaged), "a/b.manifest")
        with pytest.raises(CorruptFileError, match=r"a/b\.manifest"):
            Manifest.decode(data[:position], "a/b.manifest")
    with pytest.raises(CorruptFileError):
        Manifest.decode(data + b"\n", "m")
    with pytest.raises(CorruptFileError):
        Manifest.decode(data + data, "m")


def test_newer_format_is_told_apart_from_damage() -> None:
    data = encode_document("manifest", FORMAT_VERSION + 1, {"what": "ever"})
    with pytest.raises(NewerFormatError, match=r"m: format version 9 .* upgrade"):
        Manifest.decode(data, "m")


def as_version_1(content: Any) -> Any:
    """What the first version of the format wrote: no event time, no timers."""
    new = {"max_event_time_ms", "next_event_timer_ms", "next_processing_timer_ms"}
    return without(as_version_2(content), new)


def as_version_2(content: Any) -> Any:
    """What the second one wrote: it did not know which states are new, and which were dropped."""
    return without(content, {"since", "timers"})


def without(content: Any, names: set[str]) -> Any:
    if isinstance(content, dict):
        return {k: without(v, names) for k, v in content.items() if k not in names}
    return [without(v, names) for v in content] if isinstance(content, list) else content


def test_version_1_is_read_as_without_event_time() -> None:
    content = json.loads(manifest(watermark_ms=5, format_version=3).encode().splitlines()[0])
    fields = {k: v for k, v in content.items() if k not in ("kind", "format_version")}
    old = Manifest.decode(encode_document("manifest", 1, as_version_1(fields)), "m")
    assert (old.format_version, old.watermark_ms) == (1, 5)
    operator = old.operators[0]
    state = manifest().operators[0].ranges[0]
    assert operator == dataclasses.replace(
        manifest().operators[0],
        inputs=(),
        watermark_ms=5,
        ranges=(dataclasses.replace(state, next_event_timer_ms=None, since=()),),
        timers=False,
    )
    # A version's fields are all there, and no others.
    with pytest.raises(CorruptFileError, match="unknown fields"):
        Manifest.decode(encode_document("manifest", 1, fields), "m")
    with pytest.raises(CorruptFileError, match="is missing"):
        Manifest.decode(encode_document("manifest", 2, as_version_1(fields)), "m")


def test_version_2_has_timers_where_one_waits() -> None:
    content = json.loads(manifest(format_version=3).encode().splitlines()[0])
    fields = {k: v for k, v in content.items() if k not in ("kind", "format_version")}
    old = Manifest.decode(encode_document("manifest", 2, as_version_2(fields)), "m")
    assert [(op.timers, op.ranges[0].since) for op in old.operators] == [(True, ()), (False, ())]
    assert old.operators[0].states == {"n", "#timers"}
    with pytest.raises(CorruptFileError, match="unknown fields"):
        Manifest.decode(encode_document("manifest", 2, fields), "m")
    with pytest.raises(CorruptFileError, match="is missing"):
        Manifest.decode(encode_document("manifest", 3, as_version_2(fields)), "m")


def of_one_watermark(version: int, **changes: Any) -> Manifest:
    """What the formats up to 4 know: an operator has one input, and shares the watermark."""
    named = manifest()
    operators = (
        dataclasses.replace(named.operators[0], inputs=(InputState("input", 99),), watermark_ms=5),
        dataclasses.replace(named.operators[1], watermark_ms=5),
    )
    given: dict[str, Any] = {"operators": operators, "watermark_ms": 5, **changes}
    return dataclasses.replace(named, format_version=version, **given)


def test_in_version_4_operators_share_the_watermark() -> None:
    data = manifest(format_version=4, watermark_ms=5).encode()
    assert b'"inputs"' not in data and data.count(b'"watermark_ms"') == 1
    old = Manifest.decode(data, "m")
    assert old == of_one_watermark(4) and old.encode() == data
    # Written anew, each has its own.
    new = dataclasses.replace(old, format_version=FORMAT_VERSION, watermark_ms=None)
    assert Manifest.decode(new.encode(), "m") == new


@pytest.mark.parametrize("wrong", [{}, ["a"], ["a", 1, "2"], [1, 1, 1], ["a", True, 1]])
def test_wrong_inputs_under_a_right_checksum(wrong: Any) -> None:
    fields = json.loads(manifest().encode().splitlines()[0])
    fields["operators"][0]["inputs"][1] = wrong
    kept = {k: v for k, v in fields.items() if k not in ("kind", "format_version")}
    with pytest.raises(CorruptFileError, match="is not an operator's input"):
        Manifest.decode(encode_document("manifest", FORMAT_VERSION, kept), "m")


TTL = StateTtl(5, update="read_and_write", visibility="return_if_not_cleaned_up", time="event")


def with_ttls() -> Manifest:
    """A manifest that says of a state how long what is in it lives."""
    first, second = manifest().operators
    return manifest(operators=(dataclasses.replace(first, ttls=(("n", TTL),)), second))


def test_only_version_8_says_how_long_states_live() -> None:
    data = with_ttls().encode()
    assert Manifest.decode(data, "m") == with_ttls() and data.count(b'"ttls"') == 2
    older = dataclasses.replace(with_ttls(), format_version=7).encode()
    assert b"ttls" not in older
    assert Manifest.decode(older, "m") == manifest(format_version=7)


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        {},
        {**TTL.stored_as(), "more": 1},
        {**TTL.stored_as(), "duration_ms": 0},
        {**TTL.stored_as(), "duration_ms": "5 ms"},
        {**TTL.stored_as(), "duration_ms": True},
        {**TTL.stored_as(), "time": "other"},
    ],
)
def test_wrong_times_to_live_under_a_right_checksum(wrong: Any) -> None:
    fields = json.loads(with_ttls().encode().splitlines()[0])
    fields["operators"][0]["ttls"]["n"] = wrong
    kept = {k: v for k, v in fields.items() if k not in ("kind", "format_version")}
    with pytest.raises(CorruptFileError, match="m: state 'n': "):
        Manifest.decode(encode_document("manifest", FORMAT_VERSION, kept), "m")


def test_version_3_is_read_as_without_a_clock() -> None:
    data = manifest(format_version=3, watermark_ms=5).encode()
    assert b"next_event_timer_ms" in data and b'"clock"' not in data
    old = Manifest.decode(data, "m")
    assert old == of_one_watermark(3, read_clock=None)
    assert old.clock == ClockReading(-5) and old.encode() == data


def tampered(**fields: Any) -> bytes:
    """A document with a right checksum and wrong content."""
    body = decode_document("manifest", FORMAT_VERSION, manifest().encode(), "m")
    content = {**body._content, **fields}
    return encode_document(
        "manifest", FORMAT_VERSION, {k: v for k, v in content.items() if v is not ...}
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"surprise": 1}, "unknown fields: surprise"),
        ({"epoch": ...}, "'epoch' is missing"),
        ({"epoch": 0}, "'epoch' is not a whole number"),
        ({"epoch": True}, "'epoch' is not"),
        ({"epoch": 1.0}, "'epoch' is not"),
        ({"host": None}, "'host' is not a string"),
        ({"processing_time_ms": None}, "null"),
        ({"operators": [7]}, "expected an object"),
        ({"max_parallelism": 1 << 16}, "a whole number from 1 to 32768"),
        ({"max_parallelism": 2}, "does not have the 3 ranges of 2 key groups"),
        ({"clock": {}}, "'read_ms' is missing"),
        ({"queries": [{}]}, "'query_id' is missing"),
        ({"kind": "job"}, "not a manifest"),
    ],
)
def test_wrong_content_under_a_right_checksum(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        Manifest.decode(tampered(**fields), "m")


def test_fields_refuse_bad_ids() -> None:
    for bad in ("0" * 31, "0" * 31 + "A", "0" * 31 + "g", 5):
        with pytest.raises(CorruptFileError, match="hexadecimal"):
            Fields({"id": bad}, "m").hexadecimal("id", 32)


def test_sinks_must_be_json() -> None:
    with pytest.raises(InvalidArgumentError, match="plain JSON"):
        manifest(sinks=(object(),)).encode()
    with pytest.raises(InvalidArgumentError, match="plain JSON"):
        manifest(sinks=(float("nan"),)).encode()


def test_paths() -> None:
    assert manifest_path(42) == "manifests/00000042.manifest"
    assert manifest_epoch("manifests/00000042.manifest") == 42
    assert manifest_epoch(manifest_path(123456789)) == 123456789
    for other in ("manifests/latest", "manifests/42.manifest", "manifests/000000042.manifest"):
        assert manifest_epoch(other) is None
    assert manifest().paths == {r.path for r in (file_ref(2, "base"), file_ref(3), file_ref(4))}
    assert state_folder("a/b c", 0, 5) == "state/a%2Fb%20c/00000-00005"
    for bad in ("", ".", "..", "x" * 201):
        with pytest.raises(InvalidArgumentError, match="uid"):
            state_folder(bad, 0, 5)


def test_range_bounds_are_flinks() -> None:
    assert [range_bounds(i, 128, 3) for i in range(3)] == [(0, 42), (43, 85), (86, 127)]
    for parallelism in range(1, 129):
        groups = [
            group
            for i in range(parallelism)
            for group in range(
                range_bounds(i, 128, parallelism)[0], range_bounds(i, 128, parallelism)[1] + 1
            )
        ]
        assert groups == list(range(128))


def test_deltas_after() -> None:
    deltas = (file_ref(3), file_ref(4), file_ref(5))
    state = RangeState(0, 0, 127, deltas[-1].id, file_ref(2, "base"), deltas)
    assert state.deltas_after(file_ref(5).id) == ()
    assert state.deltas_after(file_ref(4).id) == deltas[2:]
    assert state.deltas_after(file_ref(2).id) == deltas
    assert state.deltas_after(file_ref(1).id) is None
    assert state.deltas_after(EMPTY_ID) is None
    assert empty_range(0, 128, 1).deltas_after(EMPTY_ID) == ()


def test_deltas_after_never_applies_what_is_not_linked() -> None:
    # Files of two old ranges, then two deltas of this range on the id derived from them.
    derived = "d" * 32
    own = dataclasses.replace(file_ref(7), parent=derived)
    state = RangeState(
        0, 0, 127, file_ref(8).id, None, (file_ref(3), file_ref(4, "base"), own, file_ref(8))
    )
    assert state.deltas_after(file_ref(7).id) == (file_ref(8),)
    assert state.deltas_after(derived) == (own, file_ref(8))
    assert state.deltas_after(file_ref(4).id) is None
    assert state.deltas_after(file_ref(3).id) is None
