"""How manifests name the files of operators: most of them in a part that manifests share.

A chain of deltas grows by one file per epoch, in every range that changes. A manifest that named
all files in full would be as long as all chains together, in every epoch. Instead it names a part,
``manifests/<epoch>-<evaluation>.part``, which an earlier epoch wrote, and says how each range
differs from it: not at all, by files added at its end, or by files that a base has replaced.

Thread safety: all types are immutable, but for `Parts`, which has one user at a time.

Invariants
----------
1. A manifest names at most one part, and a part names none: at most two files are read, however
   many epochs there were. A part is durable before the first manifest that names it, and is kept
   while a manifest names it.
2. A new part is written when manifests have named more files beside the last part than it holds. An
   epoch then writes, on average, twice the square root of (files in its chains times files that it
   adds).
3. Like a delta, a part is first named by the manifest of its own epoch. So a part of an epoch up to
   the newest that no retained manifest names will never be named.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pystate._core.core import range_bounds
from pystate.checkpoint.metadata import Fields, decode_document, encode_document
from pystate.checkpoint.refs import (
    EMPTY_ID,
    WITH_DEFAULTS,
    WITH_PARTS,
    WITH_TIME,
    WITH_TTLS,
    WITH_WATERMARKS,
    FileRef,
    InputState,
    OperatorState,
    RangeState,
    decode_defaults,
    decode_schema,
    decode_since,
    decode_states,
    decode_ttls,
    encode_states,
    encode_ttls,
    has_timers,
    only_input,
    path_in,
    state_folder,
)
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CorruptFileError

MANIFESTS = "manifests"
_FORMAT_VERSION = 1
#: Operators have the form of this format of manifests. Of their fields only the ranges count here.
_OPERATORS_FORM = WITH_PARTS
_NAME = re.compile(re.escape(MANIFESTS) + r"/(\d{8,})-[0-9a-f]+\.part")
#: Up to this many files are named in the manifest itself: a second file would cost more.
_LEAST_FILES = 128
_PARTS_CACHED = 4
_HEX = frozenset("0123456789abcdef")

#: An operator's uid, and a range's first and last key group.
_Key = tuple[str, int, int]


def part_epoch(path: str) -> int | None:
    """Return the epoch of a part, or None for other files."""
    match = _NAME.fullmatch(path)
    return None if match is None else int(match[1])


@dataclass(frozen=True)
class Part:
    """The ranges after an epoch, in a file of their own."""

    path: str
    digest: str
    """SHA-256 of the file; hex."""
    ranges: Mapping[_Key, RangeState]

    @property
    def files(self) -> int:
        """Number of state files that it names."""
        return sum(len(state.files) for state in self.ranges.values())

    @classmethod
    def of(cls, operators: Sequence[OperatorState], epoch: int, unique: str) -> tuple[Part, bytes]:
        """Make the part of some operators, and its file's bytes."""
        path = f"{MANIFESTS}/{epoch:08d}-{unique}.part"
        fields = {"epoch": epoch, "operators": encode_operators(operators, None, _OPERATORS_FORM)}
        data = encode_document("part", _FORMAT_VERSION, fields)
        return cls(path, hashlib.sha256(data).hexdigest(), _by_key(operators)), data

    @classmethod
    def decode(cls, data: bytes, path: str, groups: int) -> Part:
        """Verify and parse a part's file; errors are those of `decode_document`."""
        fields = decode_document("part", _FORMAT_VERSION, data, path)
        epoch = fields.integer("epoch", least=1)
        items = fields.items("operators")
        operators = decode_operators(items, path, groups, None, _OPERATORS_FORM)
        fields.finish()
        if epoch != part_epoch(path):
            raise CorruptFileError(f"{path}: is of epoch {epoch}")
        return cls(path, hashlib.sha256(data).hexdigest(), _by_key(operators))


@dataclass(frozen=True)
class PartUse:
    """A manifest's part, and how much manifests have named beside it."""

    part: Part
    spent: int = 0
    """Number of files that this manifest and earlier ones named beside the part."""

    def encode(self) -> dict[str, Any]:
        """Return the manifest's entry for the part."""
        return {"path": self.part.path, "digest": self.part.digest, "spent": self.spent}


class Parts:
    """Reads parts, and caches those read last."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._kept: OrderedDict[str, Part] = OrderedDict()

    def use(self, content: Any, path: str, groups: int) -> PartUse | None:
        """Read a manifest's entry for its part, and the part.

        `CorruptFileError` if the file is not the part that the manifest names.
        """
        if content is None:
            return None
        fields = Fields(content, path)
        name, digest = fields.text("path"), fields.hexadecimal("digest", 64)
        spent = fields.integer("spent")
        fields.finish()
        part = self._kept.get(digest)
        if part is None:
            if part_epoch(name) is None:
                raise CorruptFileError(f"{path}: {name!r:.80} is not a part")
            part = Part.decode(self._storage.read_bytes(name), name, groups)
            if part.digest != digest:
                raise CorruptFileError(f"{name}: is not the part that {path} names")
            self.keep(part)
        return PartUse(part, spent)

    def keep(self, part: Part) -> None:
        """Cache a part, so that manifests read later share its objects."""
        self._kept[part.digest] = part
        while len(self._kept) > _PARTS_CACHED:
            self._kept.popitem(last=False)


def share(
    operators: Sequence[OperatorState], epoch: int, unique: str, use: PartUse | None
) -> tuple[PartUse | None, bytes | None]:
    """Choose the part of a manifest of `epoch`, after that of the previous manifest.

    Returned is the part, or None if the manifest names everything itself; and the bytes of a new
    part, which must be published first. `unique` are hexadecimal digits that no other part of this
    epoch has.
    """
    if sum(len(state.files) for op in operators for state in op.ranges) <= _LEAST_FILES:
        return None, None
    if use is not None:
        spent = use.spent + _files_beside(operators, use.part)
        if spent <= max(use.part.files, _LEAST_FILES):
            return replace(use, spent=spent), None
    part, data = Part.of(operators, epoch, unique)
    return PartUse(part), data


def _by_key(operators: Iterable[OperatorState]) -> dict[_Key, RangeState]:
    return {(op.uid, *state.bounds): state for op in operators for state in op.ranges}


def _range_in(part: Part | None, uid: str, state: RangeState) -> RangeState | None:
    if part is None:
        return None
    return part.ranges.get((uid, *state.bounds))


def _files_beside(operators: Sequence[OperatorState], part: Part) -> int:
    count = 0
    for operator in operators:
        for state in operator.ranges:
            known = _range_in(part, operator.uid, state)
            if known is None:
                count += len(state.files)
            else:
                kept = len(known.deltas) - _first_kept(state, known)
                count += len(state.deltas) - kept + (state.base != known.base)
    return count


def _first_kept(state: RangeState, known: RangeState) -> int:
    """How many of the known deltas were removed; the others are the first deltas of `state`."""
    if state.deltas:
        path = state.deltas[0].path
        for position, ref in enumerate(known.deltas):
            if ref.path == path:
                kept = known.deltas[position:]
                return position if state.deltas[: len(kept)] == kept else len(known.deltas)
    return len(known.deltas)


# ---- the form in manifests and parts ---------------------------------------------------------


def encode_operators(
    operators: Sequence[OperatorState], part: Part | None, version: int
) -> list[dict[str, Any]]:
    """Return operators in the form of manifests of a format, which is at least 3."""
    return [
        {
            "uid": op.uid,
            "parallelism": op.parallelism,
            "key_schema": op.key_schema,
            "state_schema": encode_states(op.state_schema, version),
            "timers": op.timers,
            **_encode_time(op, version),
            **({"defaults": dict(op.defaults)} if version >= WITH_DEFAULTS else {}),
            **({"ttls": encode_ttls(op.ttls)} if version >= WITH_TTLS else {}),
            "ranges": [
                _encode_range(op.uid, state, _range_in(part, op.uid, state))
                if version >= WITH_PARTS
                else state.encode()
                for state in op.ranges
            ],
        }
        for op in operators
    ]


def _encode_time(operator: OperatorState, version: int) -> dict[str, Any]:
    if version < WITH_WATERMARKS:
        return {"max_event_time_ms": operator.max_event_time_ms}
    inputs = [given.encode() for given in operator.inputs]
    return {"watermark_ms": operator.watermark_ms, "inputs": inputs}


def decode_operators(
    items: Sequence[Any], path: str, groups: int, part: Part | None, version: int
) -> tuple[OperatorState, ...]:
    """Parse what `encode_operators` returned, or an earlier version."""
    return tuple(_decode_operator(item, path, groups, part, version) for item in items)


def _decode_operator(
    content: Any, path: str, groups: int, part: Part | None, version: int
) -> OperatorState:
    fields = Fields(content, path)
    uid, parallelism = fields.text("uid"), fields.integer("parallelism", least=1)
    items = fields.items("ranges")
    wrong = CorruptFileError(
        f"{path}: operator {uid!r} does not have the {parallelism} ranges of {groups} key groups"
    )
    if not len(items) == parallelism <= groups:
        raise wrong
    ranges = []
    for index, item in enumerate(items):
        empty = RangeState(index, *range_bounds(index, groups, parallelism), EMPTY_ID)
        state = (
            _decode_range(uid, item, path, empty, _range_in(part, uid, empty))
            if version >= WITH_PARTS
            else RangeState.decode(item, path, version)
        )
        if (state.index, state.bounds) != (index, empty.bounds):
            raise wrong
        ranges.append(state)
    if version < WITH_WATERMARKS:
        latest = fields.optional_integer("max_event_time_ms") if version >= WITH_TIME else None
        inputs, watermark_ms = only_input(latest), None
    else:
        inputs = tuple(InputState.decode(item, path) for item in fields.items("inputs"))
        watermark_ms = fields.optional_integer("watermark_ms")
    operator = OperatorState(
        uid=uid,
        parallelism=parallelism,
        key_schema=decode_schema(fields.items("key_schema"), path),
        state_schema=decode_states(fields.items("state_schema"), path, version),
        ranges=tuple(ranges),
        timers=fields.boolean("timers") if version >= 3 else has_timers(tuple(ranges)),
        inputs=inputs,
        watermark_ms=watermark_ms,
        defaults=decode_defaults(fields.mapping("defaults"), path)
        if version >= WITH_DEFAULTS
        else (),
        ttls=decode_ttls(fields.mapping("ttls"), path) if version >= WITH_TTLS else (),
    )
    fields.finish()
    return operator


def _encode_range(uid: str, state: RangeState, known: RangeState | None) -> dict[str, Any] | None:
    """Encode how a range differs from the known one; None if it does not."""
    if known == state:
        return None
    entry: dict[str, Any] = {}
    added = state.deltas
    if known is not None:
        entry["from"] = first = _first_kept(state, known)
        added = added[len(known.deltas) - first :]
    if state.base != (None if known is None else known.base):
        entry["base"] = None if state.base is None else state.base.encode()
    before = state.files[: len(state.files) - len(added)]
    parent = before[-1].id if before else EMPTY_ID
    rows: list[Any] = []
    folder = state_folder(uid, *state.bounds) if added else ""
    for ref in added:
        rows.append(_encode_delta(folder, state, ref, parent))
        parent = ref.id
    if rows:
        entry["add"] = rows
    if state.id != parent:
        entry["id"] = state.id
    if (state.next_event_timer_ms, state.next_processing_timer_ms) != (None, None):
        entry["next"] = [state.next_event_timer_ms, state.next_processing_timer_ms]
    if state.since:
        entry["since"] = dict(state.since)
    return entry


def _decode_range(
    uid: str, content: Any, path: str, empty: RangeState, known: RangeState | None
) -> RangeState:
    if content is None:
        if known is None or known.index != empty.index:
            raise CorruptFileError(f"{path}: operator {uid!r}: range {empty.index} is not known")
        return known
    fields = Fields(content, path)
    base: FileRef | None = None
    deltas: tuple[FileRef, ...] = ()
    if known is not None:
        first = fields.integer("from")
        base, deltas = known.base, known.deltas[first:]
    if "base" in content:
        stored = fields.value("base")
        base = None if stored is None else FileRef.decode(stored, path)
    files = list(deltas if base is None else (base, *deltas))
    parent = files[-1].id if files else EMPTY_ID
    added = []
    folder = state_folder(uid, *empty.bounds)
    for row in fields.items("add") if "add" in content else ():
        added.append(_decode_delta(folder, row, path, empty, parent))
        parent = added[-1].id
    times: list[Any] = fields.items("next") if "next" in content else [None, None]
    if len(times) != 2 or not all(time is None or type(time) is int for time in times):
        raise CorruptFileError(f"{path}: {times!r:.60} are not the times of timers")
    state = replace(
        empty,
        id=fields.hexadecimal("id", 32) if "id" in content else parent,
        base=base,
        deltas=(*deltas, *added),
        next_event_timer_ms=times[0],
        next_processing_timer_ms=times[1],
        since=decode_since(fields.mapping("since"), path) if "since" in content else (),
    )
    fields.finish()
    return state


def _encode_delta(folder: str, state: RangeState, ref: FileRef, parent: str) -> Any:
    """A delta as a row of numbers; the rest follows from its position."""
    if (
        ref.kind != "delta"
        or ref.parent != parent
        or ref.bounds != state.bounds
        or ref.path != path_in(folder, ref.epoch, ref.id, "delta")
    ):
        return ref.encode()
    return [
        ref.epoch,
        ref.id,
        ref.file_bytes,
        f"{ref.checksum:016x}",
        ref.rows,
        ref.tombstones,
        ref.raw_bytes,
    ]


def _decode_delta(folder: str, row: Any, path: str, state: RangeState, parent: str) -> FileRef:
    if not isinstance(row, list):
        return FileRef.decode(row, path)
    numbers, texts = [*row[:1], *row[2:3], *row[4:]], [*row[1:2], *row[3:4]]
    if (
        len(row) != 7
        or not all(type(number) is int and number >= 0 for number in numbers)
        or not all(isinstance(text, str) and set(text) <= _HEX for text in texts)
        or [len(text) for text in texts] != [32, 16]
    ):
        raise CorruptFileError(f"{path}: {row!r:.80} is not a delta")
    epoch, file_id, file_bytes, checksum, rows, tombstones, raw_bytes = row
    return FileRef(
        path=path_in(folder, epoch, file_id, "delta"),
        kind="delta",
        id=file_id,
        parent=parent,
        epoch=epoch,
        first_key_group=state.first_key_group,
        last_key_group=state.last_key_group,
        file_bytes=file_bytes,
        checksum=int(checksum, 16),
        rows=rows,
        tombstones=tombstones,
        raw_bytes=raw_bytes,
    )
