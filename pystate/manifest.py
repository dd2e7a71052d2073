"""The manifest: one epoch's consistent cut, and the only thing that makes files exist.

Thread safety: all types are immutable.

Invariants
----------
1. ``manifests/<epoch>.manifest`` is published once and never changed.
2. A manifest is complete by itself: for every operator and range it names all files that the state
   consists of, oldest first, and where every streaming query stands.
3. Decoding is strict: a byte that differs from what was written is a `CorruptFileError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

from pystate.document import Fields, decode_document, encode_document
from pystate.errors import CorruptFileError, InvalidArgumentError

__all__ = [
    "EMPTY_ID",
    "FORMAT_VERSION",
    "MANIFESTS",
    "TIMERS",
    "ClockReading",
    "FileRef",
    "Manifest",
    "OperatorState",
    "QueryProgress",
    "RangeState",
    "Schema",
    "as_schema",
    "decode_schema",
    "empty_range",
    "has_timers",
    "manifest_epoch",
    "manifest_path",
    "range_bounds",
    "state_folder",
    "state_path",
    "uid_folder",
]

#: Version 2 knows event time and timers; a file of version 1 is read as one without. Version 3
#: knows whether an operator has timers, and since when states count. Version 4 knows what the clock
#: said.
FORMAT_VERSION = 4
MANIFESTS = "manifests"
#: The lineage id of a range that has never been written: the empty table.
EMPTY_ID = "0" * 32
#: What state files name timers.
TIMERS = "#timers"
_ID_DIGITS = 32
_CHECKSUM_DIGITS = 16
_NAME = re.compile(re.escape(MANIFESTS) + r"/(\d{8,})\.manifest")

#: Columns in order: (name, type in DDL).
Schema = tuple[tuple[str, str], ...]


def manifest_path(epoch: int) -> str:
    """Name the file of an epoch's manifest: ``manifests/00000042.manifest``."""
    return f"{MANIFESTS}/{epoch:08d}.manifest"


def manifest_epoch(path: str) -> int | None:
    """Return the epoch of a file under ``manifests/``, or None for other files."""
    match = _NAME.fullmatch(path)
    if match is None or manifest_path(int(match[1])) != path:
        return None
    return int(match[1])


def uid_folder(uid: str) -> str:
    """Turn an operator's uid into the name of a folder, by percent-encoding it."""
    name = quote(uid, safe="")
    if not name or name.strip(".") == "" or len(name) > 200:
        raise InvalidArgumentError(
            f"uid {uid!r}: an operator's uid names a folder: "
            "at least one character that is not a dot, at most 200 once percent-encoded"
        )
    return name


def state_folder(uid: str, first_key_group: int, last_key_group: int) -> str:
    """Name the folder of a range's files."""
    return f"state/{uid_folder(uid)}/{first_key_group:05d}-{last_key_group:05d}"


def state_path(
    uid: str, first_key_group: int, last_key_group: int, epoch: int, file_id: str, kind: str
) -> str:
    """Name a delta (`file_id`: its lineage id) or a base file (`file_id`: any fresh id)."""
    return f"{state_folder(uid, first_key_group, last_key_group)}/{epoch:08d}-{file_id}.{kind}"


def range_bounds(index: int, max_parallelism: int, parallelism: int) -> tuple[int, int]:
    """First and last key group, inclusive, of range `index`; Flink's arithmetic."""
    first = (index * max_parallelism + parallelism - 1) // parallelism
    last = ((index + 1) * max_parallelism - 1) // parallelism
    return first, last


@dataclass(frozen=True)
class FileRef:
    """A state file as a manifest names it."""

    path: str
    """Relative to the checkpoint's root."""
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

    @classmethod
    def from_info(cls, path: str, info: Any) -> FileRef:
        """Name a file that was just written, from the `FileInfo` that its writer returned."""
        return cls(
            path=path,
            kind=info.kind,
            id=info.id,
            parent=info.parent,
            epoch=info.epoch,
            first_key_group=info.first_key_group,
            last_key_group=info.last_key_group,
            file_bytes=info.file_bytes,
            checksum=info.checksum,
            rows=info.rows,
            tombstones=info.tombstones,
            raw_bytes=info.raw_bytes,
        )

    def _encode(self) -> dict[str, Any]:
        return {**asdict(self), "checksum": f"{self.checksum:016x}"}

    @classmethod
    def _decode(cls, content: Any, path: str) -> FileRef:
        fields = Fields(content, path)
        kind = fields.text("kind")
        if kind not in ("delta", "base"):
            raise CorruptFileError(f"{path}: {kind!r} is not a kind of state file")
        ref = cls(
            path=fields.text("path"),
            kind=kind,
            id=fields.hexadecimal("id", _ID_DIGITS),
            parent=fields.hexadecimal("parent", _ID_DIGITS),
            epoch=fields.integer("epoch"),
            first_key_group=fields.integer("first_key_group"),
            last_key_group=fields.integer("last_key_group"),
            file_bytes=fields.integer("file_bytes"),
            checksum=int(fields.hexadecimal("checksum", _CHECKSUM_DIGITS), 16),
            rows=fields.integer("rows"),
            tombstones=fields.integer("tombstones"),
            raw_bytes=fields.integer("raw_bytes"),
        )
        fields.finish()
        return ref


@dataclass(frozen=True)
class RangeState:
    """The state of one key-group range: a base, then deltas, oldest first.

    After a change of parallelism the deltas begin with the files of the old ranges, each narrowed
    to the key groups for which it counts.
    """

    index: int
    first_key_group: int
    last_key_group: int
    id: str
    """The lineage id of the whole: what a table must stand at to be this state."""
    base: FileRef | None = None
    deltas: tuple[FileRef, ...] = ()
    next_event_timer_ms: int | None = None
    """The earliest event-time timer that the range holds, or an earlier time; None for none."""
    next_processing_timer_ms: int | None = None
    """The same of its processing-time timers."""
    since: tuple[tuple[str, int], ...] = ()
    """States that count only in files of this epoch and later ones, by name: in older files it is
    another state's, which was dropped. A state that the operator does not have counts in none."""

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All files to restore from, oldest first."""
        return self.deltas if self.base is None else (self.base, *self.deltas)

    def deltas_after(self, table_id: str) -> tuple[FileRef, ...] | None:
        """Find the deltas that bring a table standing at `table_id` to this state.

        Returns
        -------
        tuple of FileRef or None
            Oldest first, empty where the table is already there; None where the table's id is not
            in the chain, so that only a restore helps.

        Notes
        -----
        Walks the parents back from `id`, so that files inherited from other ranges, which end the
        walk, are never applied to a table.
        """
        wanted = self.id
        for position in range(len(self.deltas), -1, -1):
            if wanted == table_id:
                return self.deltas[position:]
            delta = self.deltas[position - 1] if position else None
            if delta is None or delta.id != wanted or delta.kind != "delta":
                return None
            wanted = delta.parent
        return None

    def _encode(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "first_key_group": self.first_key_group,
            "last_key_group": self.last_key_group,
            "id": self.id,
            "base": None if self.base is None else self.base._encode(),
            "deltas": [delta._encode() for delta in self.deltas],
            "next_event_timer_ms": self.next_event_timer_ms,
            "next_processing_timer_ms": self.next_processing_timer_ms,
            "since": dict(self.since),
        }

    @classmethod
    def _decode(cls, content: Any, path: str, version: int) -> RangeState:
        fields = Fields(content, path)
        base = fields.anything("base")
        state = cls(
            index=fields.integer("index"),
            first_key_group=fields.integer("first_key_group"),
            last_key_group=fields.integer("last_key_group"),
            id=fields.hexadecimal("id", _ID_DIGITS),
            base=None if base is None else FileRef._decode(base, path),
            deltas=tuple(FileRef._decode(item, path) for item in fields.items("deltas")),
            next_event_timer_ms=_since_2(fields, "next_event_timer_ms", version),
            next_processing_timer_ms=_since_2(fields, "next_processing_timer_ms", version),
            since=_decode_since(fields.mapping("since"), path) if version >= 3 else (),
        )
        fields.finish()
        return state


def has_timers(ranges: tuple[RangeState, ...]) -> bool:
    """Whether any timer waits in these ranges."""
    times = ((s.next_event_timer_ms, s.next_processing_timer_ms) for s in ranges)
    return any(pair != (None, None) for pair in times)


def empty_range(index: int, max_parallelism: int, parallelism: int) -> RangeState:
    """Return a range that holds nothing yet."""
    first, last = range_bounds(index, max_parallelism, parallelism)
    return RangeState(index, first, last, EMPTY_ID)


@dataclass(frozen=True)
class OperatorState:
    """One operator: its ranges cover all key groups."""

    uid: str
    parallelism: int
    key_schema: Schema
    state_schema: Schema
    ranges: tuple[RangeState, ...]
    max_event_time_ms: int | None = None
    """The largest event time that the operator has ever seen."""
    timers: bool = False
    """Whether it has timers, beside the states of its schema."""

    @property
    def states(self) -> frozenset[str]:
        """The names under which state files keep what the operator has."""
        names = frozenset(name for name, _ in self.state_schema)
        return names | {TIMERS} if self.timers else names

    @property
    def files(self) -> tuple[FileRef, ...]:
        """The files of all ranges."""
        return tuple(ref for state in self.ranges for ref in state.files)

    def _encode(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "parallelism": self.parallelism,
            "key_schema": self.key_schema,
            "state_schema": self.state_schema,
            "ranges": [state._encode() for state in self.ranges],
            "max_event_time_ms": self.max_event_time_ms,
            "timers": self.timers,
        }

    @classmethod
    def _decode(cls, content: Any, path: str, version: int, groups: int) -> OperatorState:
        fields = Fields(content, path)
        ranges = tuple(RangeState._decode(r, path, version) for r in fields.items("ranges"))
        operator = cls(
            uid=fields.text("uid"),
            parallelism=fields.integer("parallelism", least=1),
            key_schema=decode_schema(fields.items("key_schema"), path),
            state_schema=decode_schema(fields.items("state_schema"), path),
            ranges=ranges,
            max_event_time_ms=_since_2(fields, "max_event_time_ms", version),
            timers=fields.boolean("timers") if version >= 3 else has_timers(ranges),
        )
        fields.finish()
        bounds = [
            (i, *range_bounds(i, groups, operator.parallelism)) for i in range(operator.parallelism)
        ]
        found = [(r.index, r.first_key_group, r.last_key_group) for r in operator.ranges]
        if found != bounds:
            raise CorruptFileError(
                f"{path}: operator {operator.uid!r} does not have the {operator.parallelism} "
                f"ranges of {groups} key groups"
            )
        return operator


@dataclass(frozen=True)
class QueryProgress:
    """The last batch of a streaming query that an epoch contains."""

    query_id: str
    batch_id: int
    offsets_hash: str
    epoch: int


@dataclass(frozen=True)
class ClockReading:
    """What the driver's clock said for an epoch; the next epoch's processing time follows from it.

    See `pystate.clock`.
    """

    read_ms: int
    """The clock's time for the epoch's position; processing time may be before or after it."""
    pause_ms: int = 0
    """The longest pause between epochs lately."""
    doubted_since_ms: int | None = None
    """The first reading that was too far ahead, while the clock is doubted."""


@dataclass(frozen=True)
class Manifest:
    """An epoch that is complete.

    `predecessor` is the epoch that this one was built on, 0 for none; but for an explicit restore
    of an older epoch it is always ``epoch - 1``.
    """

    epoch: int
    predecessor: int
    evaluation_id: str
    """Of the one evaluation whose reports made this epoch."""
    run_id: str
    """Of the driver (coordinator) that published it."""
    term: int
    """The driver's place in the succession of owners; 0 where there are no owners."""
    host: str
    max_parallelism: int
    processing_time_ms: int
    created_ms: int
    library: str
    """``pystate <version>``."""
    operators: tuple[OperatorState, ...]
    query_id: str | None = None
    """The streaming query whose batch this epoch is, with `batch_id` and `offsets_hash`."""
    batch_id: int | None = None
    offsets_hash: str | None = None
    run_key: str | None = None
    watermark_ms: int | None = None
    """The watermark of the epoch after this one; never less than what this one had itself."""
    queries: tuple[QueryProgress, ...] = ()
    """Every streaming query that the state contains, with its last batch."""
    sinks: tuple[Any, ...] = ()
    """Transactions to commit once this manifest exists; any JSON."""
    read_clock: ClockReading | None = None
    """What the clock said; None where that is not known."""
    format_version: int = FORMAT_VERSION

    @property
    def clock(self) -> ClockReading:
        """What the clock said, or is taken to have said."""
        return self.read_clock or ClockReading(self.processing_time_ms)

    @property
    def path(self) -> str:
        """The manifest's own file."""
        return manifest_path(self.epoch)

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of all state files that this epoch consists of."""
        return frozenset(ref.path for operator in self.operators for ref in operator.files)

    def operator(self, uid: str) -> OperatorState | None:
        """Find the operator of that uid."""
        return next((found for found in self.operators if found.uid == uid), None)

    def progress(self, query_id: str) -> QueryProgress | None:
        """Tell where a streaming query stands."""
        return next((found for found in self.queries if found.query_id == query_id), None)

    def encode(self) -> bytes:
        """Return the manifest's bytes.

        Raises
        ------
        InvalidArgumentError
            `sinks` holds something that is not JSON.
        """
        fields: dict[str, Any] = {
            "epoch": self.epoch,
            "predecessor": self.predecessor,
            "evaluation_id": self.evaluation_id,
            "run_id": self.run_id,
            "term": self.term,
            "host": self.host,
            "max_parallelism": self.max_parallelism,
            "processing_time_ms": self.processing_time_ms,
            "watermark_ms": self.watermark_ms,
            "created_ms": self.created_ms,
            "library": self.library,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "offsets_hash": self.offsets_hash,
            "run_key": self.run_key,
            "queries": [asdict(progress) for progress in self.queries],
            "operators": [operator._encode() for operator in self.operators],
            "sinks": self.sinks,
        }
        if self.format_version >= 4:
            fields["clock"] = None if self.read_clock is None else asdict(self.read_clock)
        try:
            return encode_document("manifest", self.format_version, fields)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{self.path}: a sink's transaction must be plain JSON: {error}"
            ) from error

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Verify and parse a manifest.

        Parameters
        ----------
        data : bytes
            The whole file.
        path : str
            Its name, for errors.

        Raises
        ------
        CorruptFileError
            Any byte is wrong or missing.
        NewerFormatError
            A later pystate wrote it.
        """
        fields = decode_document("manifest", FORMAT_VERSION, data, path)
        max_parallelism = fields.integer("max_parallelism", least=1)
        queries = (_decode_progress(item, path) for item in fields.items("queries"))
        manifest = cls(
            epoch=fields.integer("epoch", least=1),
            predecessor=fields.integer("predecessor"),
            evaluation_id=fields.text("evaluation_id"),
            run_id=fields.text("run_id"),
            term=fields.integer("term"),
            host=fields.text("host"),
            max_parallelism=max_parallelism,
            processing_time_ms=_signed(fields, "processing_time_ms", path),
            watermark_ms=fields.optional_integer("watermark_ms"),
            created_ms=fields.integer("created_ms"),
            library=fields.text("library"),
            query_id=fields.optional_text("query_id"),
            batch_id=fields.optional_integer("batch_id"),
            offsets_hash=fields.optional_text("offsets_hash"),
            run_key=fields.optional_text("run_key"),
            queries=tuple(queries),
            operators=tuple(
                OperatorState._decode(item, path, fields.version, max_parallelism)
                for item in fields.items("operators")
            ),
            sinks=tuple(fields.items("sinks")),
            read_clock=_decode_clock(fields, path) if fields.version >= 4 else None,
            format_version=fields.version,
        )
        fields.finish()
        return manifest


def _since_2(fields: Fields, name: str, version: int) -> int | None:
    return fields.optional_integer(name) if version >= 2 else None


def _decode_since(content: Any, path: str) -> tuple[tuple[str, int], ...]:
    fields = Fields(content, path)
    return tuple((name, fields.integer(name, least=1)) for name in sorted(content))


def _signed(fields: Fields, name: str, path: str) -> int:
    value = fields.optional_integer(name)
    if value is None:
        raise CorruptFileError(f"{path}: field {name!r} is null")
    return value


def _decode_clock(fields: Fields, path: str) -> ClockReading | None:
    content = fields.anything("clock")
    if content is None:
        return None
    inner = Fields(content, path)
    clock = ClockReading(
        read_ms=_signed(inner, "read_ms", path),
        pause_ms=inner.integer("pause_ms"),
        doubted_since_ms=inner.optional_integer("doubted_since_ms"),
    )
    inner.finish()
    return clock


def _decode_progress(content: Any, path: str) -> QueryProgress:
    fields = Fields(content, path)
    progress = QueryProgress(
        query_id=fields.text("query_id"),
        batch_id=fields.integer("batch_id"),
        offsets_hash=fields.text("offsets_hash"),
        epoch=fields.integer("epoch", least=1),
    )
    fields.finish()
    return progress


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


def as_schema(columns: Mapping[str, str] | Schema) -> Schema:
    """Bring columns into their stored form."""
    pairs = columns.items() if isinstance(columns, Mapping) else columns
    return tuple((str(name), str(ddl)) for name, ddl in pairs)
