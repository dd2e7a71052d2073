"""The state of an epoch: its files, the ranges that they make up, and the operators.

Thread safety: all types are immutable.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from pystate._core.core import range_bounds
from pystate.checkpoint.metadata import Fields
from pystate.checkpoint.state_files import FileInfo
from pystate.errors import CorruptFileError, DeclarationError, InvalidArgumentError
from pystate.state.declaration import Defaults, Ttls, file_name
from pystate.state.identity import of_unknown_kind, without_kind
from pystate.state.ttl import StateTtl

#: The first formats of manifests that have event time and timers, that name files in a part, and
#: that have a watermark per operator.
WITH_TIME, WITH_PARTS, WITH_WATERMARKS = 2, 4, 5
#: The first format of manifests that says of what kind states are, and what files call them.
WITH_KINDS = 6
#: The first format of manifests that says what keys have that have no value.
WITH_DEFAULTS = 7
#: The first format of manifests that says how long what is in states lives.
WITH_TTLS = 8
#: The lineage id of a range that has never been written: the empty table.
EMPTY_ID = "0" * 32
#: What state files name timers.
TIMERS = "#timers"
#: The input of an operator that has only one.
INPUT = "input"
#: What stands among an operator's inputs, and is none: its time is the oldest that the operator may
#: still emit of what it keeps, and null if it keeps nothing. Without it that is not known. Older
#: versions take it for an input that they do not have, and leave it out.
KEPT = "#kept"
#: The key column of the rows in flight on a loop, and the key as checkpoints spell it: no column of
#: a user begins so.
BUCKET = "__pystate_bucket"
LOOP_KEY = ((BUCKET, "long"),)
#: The state that has the number of a bucket's rows.
COUNT = "count"
_FILE_NUMBERS = (
    *("epoch", "first_key_group", "last_key_group"),
    *("file_bytes", "rows", "tombstones", "raw_bytes"),
)
_ID_DIGITS = 32
_CHECKSUM_DIGITS = 16
_FINGERPRINT = 32
_STATE_FILE = re.compile(r".*/(\d{8,})-(t\d+-)?[0-9a-f]+\.(?:delta|base)")
_HOT_FILE = re.compile(r".*/(\d{8,})-[0-9a-f]{32}\.hot")
_FOLDER = re.compile(r".*/(\d{5,})-(\d{5,})")

Counting = TypeVar("Counting", "FileRef", "RangeState")

#: Columns in order: (name, type in DDL).
Schema = tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def uid_folder(uid: str) -> str:
    """Return the name of an operator's folder: its uid, percent-encoded."""
    name = quote(uid, safe="")
    if not name or name.strip(".") == "" or len(name) > 200:
        raise InvalidArgumentError(
            f"uid {uid!r}: an operator's uid names a folder: "
            "at least one character that is not a dot, at most 200 once percent-encoded"
        )
    return name


@lru_cache(maxsize=1024)
def groups_of(folder: str) -> int:
    """How many key groups the folder of a range's files names; 0: it is none."""
    match = _FOLDER.fullmatch(folder)
    return 0 if match is None else max(int(match[2]) - int(match[1]) + 1, 1)


def state_folder(uid: str, first_key_group: int, last_key_group: int) -> str:
    """Name the folder of a range's files."""
    return f"state/{uid_folder(uid)}/{first_key_group:05d}-{last_key_group:05d}"


def state_path(
    uid: str, first_key_group: int, last_key_group: int, epoch: int, file_id: str, kind: str
) -> str:
    """Name a delta (`file_id`: its lineage id) or a base file (`file_id`: any fresh id)."""
    return path_in(state_folder(uid, first_key_group, last_key_group), epoch, file_id, kind)


def path_in(folder: str, epoch: int, file_id: str, kind: str) -> str:
    """Name a file in a range's folder, as `state_path` does."""
    return f"{folder}/{epoch:08d}-{file_id}.{kind}"


def state_epoch(path: str) -> int | None:
    """Return the epoch in the name of a delta, a base or a merged file; None for other files."""
    match = _STATE_FILE.fullmatch(path)
    return None if match is None else int(match[1])


def hot_path(uid: str, bounds: tuple[int, int], epoch: int, lineage_id: str) -> str:
    """Name the list of a range's hot keys; see `pystate.tables.hot_keys`."""
    return f"{state_folder(uid, *bounds)}/{epoch:08d}-{lineage_id}.hot"


def hot_epoch(path: str) -> int | None:
    """Return the epoch in the name of a list of hot keys; None for other files."""
    match = _HOT_FILE.fullmatch(path)
    return None if match is None else int(match[1])


def is_merged(path: str) -> bool:
    """Whether a file of a job was made of others, by its name; a store's deltas do not say so."""
    match = _STATE_FILE.fullmatch(path)
    return path.endswith(".base") or (match is not None and match[2] is not None)


class KeyGroups:
    """What counts for some key groups, from the first to the last one, both inclusive."""

    first_key_group: int
    last_key_group: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last one."""
        return self.first_key_group, self.last_key_group

    def overlap(self, bounds: tuple[int, int]) -> tuple[int, int] | None:
        """The first and the last one that lie within bounds, too; None if there are none."""
        first, last = max(self.first_key_group, bounds[0]), min(self.last_key_group, bounds[1])
        return (first, last) if first <= last else None


@dataclass(frozen=True)
class FileRef(KeyGroups):
    """A state file as a manifest names it."""

    path: str
    """The file's path, relative to the checkpoint's root."""
    kind: str
    """``"delta"`` or ``"base"``."""
    id: str
    """The lineage id that a table has once this file is applied."""
    parent: str
    """The lineage id that a delta was built on."""
    epoch: int
    first_key_group: int
    """First key group for which the file counts here; the file itself may hold more."""
    last_key_group: int
    """Last one, inclusive."""
    file_bytes: int
    checksum: int
    """XXH64 of the whole file."""
    rows: int
    tombstones: int
    raw_bytes: int

    @property
    def share(self) -> float:
        """About which part of the file counts here, by its key groups, which its folder names."""
        groups = groups_of(self.path.rpartition("/")[0])
        return (
            min((self.last_key_group - self.first_key_group + 1) / groups, 1.0) if groups else 1.0
        )

    @classmethod
    def from_info(cls, path: str, info: FileInfo) -> FileRef:
        """Name a file that was just written, from what its writer returned."""
        values = info._asdict()
        del values["max_parallelism"], values["block_bytes"]
        return cls(path, **values)

    def encode(self) -> dict[str, Any]:
        """Return the form that manifests up to format 3 have."""
        return {**vars(self), "checksum": f"{self.checksum:016x}"}

    @classmethod
    def decode(cls, content: Any, path: str) -> FileRef:
        """Parse what `encode` returned, or an earlier version's."""
        fields = Fields(content, path)
        kind = fields.text("kind")
        if kind not in ("delta", "base"):
            raise CorruptFileError(f"{path}: {kind!r} is not a kind of state file")
        ref = cls(
            path=fields.text("path"),
            kind=kind,
            id=fields.hexadecimal("id", _ID_DIGITS),
            parent=fields.hexadecimal("parent", _ID_DIGITS),
            checksum=int(fields.hexadecimal("checksum", _CHECKSUM_DIGITS), 16),
            **{name: fields.integer(name) for name in _FILE_NUMBERS},
        )
        fields.finish()
        return ref


@dataclass(frozen=True)
class RangeState(KeyGroups):
    """The state of one key-group range: a base, then deltas, oldest first.

    After a change of parallelism the deltas begin with the files of the old ranges, each restricted
    to the key groups for which it counts.
    """

    index: int
    first_key_group: int
    last_key_group: int
    id: str
    """The lineage id of the whole range, which a table with this state must have."""
    base: FileRef | None = None
    deltas: tuple[FileRef, ...] = ()
    next_event_timer_ms: int | None = None
    """The earliest event-time timer that the range holds, or an earlier time; None for none."""
    next_processing_timer_ms: int | None = None
    """The same for processing-time timers."""
    since: tuple[tuple[str, int], ...] = ()
    """From which epoch on files count, for some states by name: older files hold a dropped state of
    that name. A state that the operator does not have counts in no file. The same of fields of
    structs, and their defaults: see `pystate.epochs.schema_match`."""

    held: tuple[FileRef, ...] = ()
    """Deltas after those, which no manifest names; see `pystate.epochs.interval`."""

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All files that a manifest names, oldest first."""
        return self.deltas if self.base is None else (self.base, *self.deltas)

    @property
    def estimated_keys(self) -> int:
        """About how many keys the files hold: what they put, less what they delete.

        A key counts in each file that puts it, and so do elements: it is too many rather than few.
        """
        return max(0, int(sum((ref.rows - ref.tombstones) * ref.share for ref in self.files)))

    @property
    def depth(self) -> int:
        """How many files count for one key group, in the key group that has the most."""
        files, first, last = self.files, self.first_key_group, self.last_key_group
        # Nearly always; and an epoch asks it of each range.
        if all(ref.first_key_group == first and ref.last_key_group == last for ref in files):
            return len(files)
        deep, ends = (
            [0],
            sorted(
                end
                for ref in files
                for end in ((ref.first_key_group, 1), (ref.last_key_group + 1, -1))
            ),
        )
        for _, step in ends:  # where one ends and another begins, the end comes first
            deep.append(deep[-1] + step)
        return max(deep)

    @property
    def changes_parallelism(self) -> bool:
        """Whether the parallelism changes with the epoch that is built on this state."""
        return False

    @property
    def sources(self) -> tuple[RangeSource, ...]:
        """What the range takes over from ranges of another parallelism, in the epoch of a change.

        Empty if the range has kept its key groups.
        """
        return ()

    def whole(self) -> RangeState:
        """Return all key groups of the operator as one range, as the base has them.

        `LookupError` if it is not known whose range it is.
        """
        raise LookupError(f"range {self.index} is of no known operator")

    def deltas_after(self, table_id: str) -> tuple[FileRef, ...] | None:
        """Find the deltas that bring a table at `table_id` to this state, oldest first.

        None if the table's id is not in the chain, so that only a restore helps. The parents are
        followed back from `id`; files of other ranges, and deltas that count for only some key
        groups, end the walk, so that they are never applied to a table.
        """
        wanted = self.id
        for position in range(len(self.deltas), -1, -1):
            if wanted == table_id:
                return self.deltas[position:]
            delta = self.deltas[position - 1] if position else None
            if delta is None or delta.id != wanted or delta.kind != "delta":
                return None
            if delta.bounds != self.bounds:  # a base has what it holds of the other key groups
                return None
            wanted = delta.parent
        return None

    def encode(self) -> dict[str, Any]:
        """Return the form that manifests up to format 3 have."""
        return {
            "index": self.index,
            "first_key_group": self.first_key_group,
            "last_key_group": self.last_key_group,
            "id": self.id,
            "base": None if self.base is None else self.base.encode(),
            "deltas": [delta.encode() for delta in self.deltas],
            "next_event_timer_ms": self.next_event_timer_ms,
            "next_processing_timer_ms": self.next_processing_timer_ms,
            "since": dict(self.since),
        }

    @classmethod
    def decode(cls, content: Any, path: str, version: int) -> RangeState:
        """Parse what `encode` returned, or an earlier version's."""
        fields = Fields(content, path)
        base = fields.value("base")
        state = cls(
            index=fields.integer("index"),
            first_key_group=fields.integer("first_key_group"),
            last_key_group=fields.integer("last_key_group"),
            id=fields.hexadecimal("id", _ID_DIGITS),
            base=None if base is None else FileRef.decode(base, path),
            deltas=tuple(FileRef.decode(item, path) for item in fields.items("deltas")),
            next_event_timer_ms=_since_2(fields, "next_event_timer_ms", version),
            next_processing_timer_ms=_since_2(fields, "next_processing_timer_ms", version),
            since=decode_since(fields.mapping("since"), path) if version >= 3 else (),
        )
        fields.finish()
        return state


@dataclass(frozen=True)
class RangeSource(KeyGroups):
    """Some key groups of a range, as a range of another parallelism takes them over."""

    range: RangeState
    """The range that has them."""
    first_key_group: int
    last_key_group: int
    """Inclusive; both ranges have them."""
    files: tuple[FileRef, ...]
    """The files of that range, restricted to these key groups."""


def restrict(counting: Counting, bounds: tuple[int, int]) -> Counting:
    """A file or a range as it counts for key groups within bounds only."""
    return replace(counting, first_key_group=bounds[0], last_key_group=bounds[1])


def has_timers(ranges: tuple[RangeState, ...]) -> bool:
    """Whether these ranges have any timer."""
    times = ((s.next_event_timer_ms, s.next_processing_timer_ms) for s in ranges)
    return any(pair != (None, None) for pair in times)


def empty_range(index: int, max_parallelism: int, parallelism: int) -> RangeState:
    """Return a range without state."""
    first, last = range_bounds(index, max_parallelism, parallelism)
    return RangeState(index, first, last, EMPTY_ID)


@dataclass(frozen=True)
class InputState:
    """What an operator knows of one of its inputs."""

    name: str = INPUT
    max_event_time_ms: int | None = None
    """The largest event time that it has ever had."""
    active_ms: int | None = None
    """The processing time of its last epoch with rows, or of its first one; None if that is not
    known."""

    def encode(self) -> list[Any]:
        """Return the form that manifests have."""
        return [self.name, self.max_event_time_ms, self.active_ms]

    @classmethod
    def decode(cls, content: Any, path: str) -> InputState:
        """Parse what `encode` returned."""
        if (
            not isinstance(content, list)
            or len(content) != 3
            or not isinstance(content[0], str)
            or not all(time is None or type(time) is int for time in content[1:])
        ):
            raise CorruptFileError(f"{path}: {content!r:.60} is not an operator's input")
        return cls(*content)


@dataclass(frozen=True)
class OperatorState:
    """One operator: its ranges cover all key groups."""

    uid: str
    parallelism: int
    key_schema: Schema
    state_schema: Schema
    ranges: tuple[RangeState, ...]
    timers: bool = False
    """Whether it has timers, beside the states of its schema."""
    inputs: tuple[InputState, ...] = ()
    """Its inputs; none for a store."""
    watermark_ms: int | None = None
    """Its watermark after the epoch; None if it has no event time, or has not seen any."""
    defaults: Defaults = ()
    """What keys have in states that hold nothing for them, as the epoch's program declared it."""
    ttls: Ttls = ()
    """How long what is in states lives, as the epoch's program declared it: what has expired by the
    epoch's processing time, or `watermark_ms`, is not there for readers. A manifest of an older
    format says of no state that it expires."""

    @property
    def max_event_time_ms(self) -> int | None:
        """The largest event time that the operator has ever seen."""
        times = (given.max_event_time_ms for given in self.inputs if given.name != KEPT)
        return max((time for time in times if time is not None), default=None)

    @property
    def states(self) -> frozenset[str]:
        """The names of the operator's states and timers in state files."""
        names = frozenset(file_name(*pair) for pair in self.state_schema)
        return names | {TIMERS} if self.timers else names

    @property
    def is_loop(self) -> bool:
        """Whether its state is the rows in flight on a loop."""
        return [name for name, _ in self.key_schema] == [BUCKET]

    @property
    def files(self) -> tuple[FileRef, ...]:
        """The files of all ranges."""
        return tuple(ref for state in self.ranges for ref in state.files)


def only_input(max_event_time_ms: int | None) -> tuple[InputState, ...]:
    """The input of an operator as manifests up to format 4 know it."""
    return () if max_event_time_ms is None else (InputState(INPUT, max_event_time_ms),)


def _since_2(fields: Fields, name: str, version: int) -> int | None:
    return fields.optional_integer(name) if version >= 2 else None


def decode_since(content: Any, path: str) -> tuple[tuple[str, int], ...]:
    """Parse from which epoch on states count."""
    fields = Fields(content, path)
    return tuple((name, fields.integer(name, least=1)) for name in sorted(content))


def decode_schema(items: list[Any], path: str) -> Schema:
    """Parse columns as `encode_document` wrote them."""
    columns = []
    for item in items:
        if (
            not isinstance(item, list)
            or len(item) != 2
            or not all(isinstance(part, str) for part in item)
        ):
            raise CorruptFileError(f"{path}: {item!r:.60} is not a column")
        columns.append((item[0], item[1]))
    return tuple(columns)


def decode_states(items: list[Any], path: str, version: int) -> Schema:
    """Parse an operator's states in a manifest of that format."""
    states = decode_schema(items, path)
    if version >= WITH_KINDS:
        return states
    return tuple((name, of_unknown_kind(stored)) for name, stored in states)


def decode_defaults(content: Any, path: str) -> Defaults:
    """Parse what keys without a value have."""
    fields = Fields(content, path)
    return tuple((name, fields.text(name)) for name in sorted(content))


def encode_ttls(ttls: Ttls) -> dict[str, Any]:
    """Return how long states live in the form of manifests and ``job.json``."""
    return {name: ttl.stored_as() for name, ttl in ttls}


def decode_ttls(content: Any, path: str) -> Ttls:
    """Parse what `encode_ttls` returned."""
    fields = Fields(content, path)
    ttls = []
    for name in sorted(content):
        try:
            ttls.append((name, StateTtl.from_stored(fields.value(name))))
        except DeclarationError as error:
            raise CorruptFileError(f"{path}: state {name!r}: {error}") from error
    return tuple(ttls)


def encode_states(states: Schema, version: int) -> Schema:
    """The inverse of `decode_states`."""
    if version >= WITH_KINDS:
        return states
    return tuple((name, without_kind(stored)) for name, stored in states)


def fingerprint(operator: OperatorState) -> str:
    """What tells an operator's state from any other that its files could be read as.

    It begins with a digest of the ids of its ranges, of its schemas, and of what counts in its
    files. Then follow two digits of each range's id, by which few candidates are left for each.
    Defaults and times to live are not in it: no file is read otherwise because of them.
    """
    said = [
        operator.uid,
        operator.key_schema,
        operator.state_schema,
        operator.timers,
        [(*state.bounds, state.id) for state in operator.ranges],
        [state.since for state in operator.ranges],
    ]
    digest = hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()
    return digest[:_FINGERPRINT] + "".join(state.id[:2] for state in operator.ranges)


def parted_fingerprint(text: str) -> list[str]:
    """The two digits of each range's id in a fingerprint."""
    return [text[at : at + 2] for at in range(_FINGERPRINT, len(text), 2)]


def as_schema(columns: Mapping[str, str] | Schema) -> Schema:
    """Bring columns into their stored form."""
    pairs = columns.items() if isinstance(columns, Mapping) else columns
    return tuple((str(name), str(ddl)) for name, ddl in pairs)
