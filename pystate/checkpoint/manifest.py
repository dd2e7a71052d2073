"""The manifest: one epoch's consistent cut. Only files that a manifest names count.

Thread safety: all types are immutable.

Invariants
----------
1. ``manifests/<epoch>.manifest`` is published once and never changed. Only a repair, while no job
   runs, may let it name other files of the same state.
2. A manifest is complete together with its part, a separate file that several manifests may share.
   They name, for every operator and range, all files of the state, oldest first, and the position
   of every streaming query. No other manifest is needed to read it.
3. Decoding is strict: a byte that differs from what was written is a `CorruptFileError`.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from pystate.checkpoint.metadata import Fields, decode_document, encode_document
from pystate.checkpoint.parts import MANIFESTS, Parts, PartUse, decode_operators, encode_operators
from pystate.checkpoint.refs import (
    WITH_PARTS,
    WITH_WATERMARKS,
    OperatorState,
)
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CorruptFileError, InvalidArgumentError, PystateError, SwappedFileError
from pystate.types.keys import MAX_PARALLELISM

#: Version 2 has event time and timers; a file of version 1 is read as one without. Version 3 has
#: whether an operator has timers, and from which epoch on states count. Version 4 has the clock's
#: reading, and names files in a part that manifests share. Version 5 has a watermark per operator;
#: in older ones all operators share the manifest's. Version 6 has the kind of each state, with the
#: function that made its values, and the name that files have for a renamed one; in older ones a
#: value may be that of a fold. Version 7 has what keys without a value have, the declared default;
#: in older ones that is not known. Version 8 has how long what is in states lives; in older ones
#: that is not known, and readers show what has expired.
FORMAT_VERSION = 8
_NAME = re.compile(re.escape(MANIFESTS) + r"/(\d{8,})\.manifest")


def manifest_path(epoch: int) -> str:
    """Name the file of an epoch's manifest: ``manifests/00000042.manifest``."""
    return f"{MANIFESTS}/{epoch:08d}.manifest"


def manifest_epoch(path: str) -> int | None:
    """Return the epoch of a file under ``manifests/``, or None for other files."""
    match = _NAME.fullmatch(path)
    if match is None or manifest_path(int(match[1])) != path:
        return None
    return int(match[1])


@dataclass(frozen=True)
class QueryProgress:
    """The last batch of a streaming query that an epoch contains."""

    query_id: str
    batch_id: int
    offsets_hash: str
    epoch: int


@dataclass(frozen=True)
class ClockReading:
    """The driver's clock reading for an epoch; the next epoch's processing time depends on it.

    See `pystate.epochs.clock`.
    """

    read_ms: int
    """The clock's time for the epoch's position; processing time may be before or after it."""
    pause_ms: int = 0
    """The longest recent pause between epochs."""
    doubted_since_ms: int | None = None
    """The first reading that was too far ahead, while the clock is doubted."""


@dataclass(frozen=True)
class Manifest:
    """A complete epoch.

    `predecessor` is the epoch that this one was built on, 0 for none. Except after an explicit
    restore of an older epoch it is always ``epoch - 1``.
    """

    epoch: int
    predecessor: int
    evaluation_id: str
    """The id of the evaluation whose reports made this epoch."""
    run_id: str
    """The id of the driver (coordinator) that published it."""
    term: int
    """The driver's place in the succession of owners; 0 if there are no owners."""
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
    """The smallest watermark of the operators that have one."""
    queries: tuple[QueryProgress, ...] = ()
    """Every streaming query that the state contains, with its last batch."""
    sinks: tuple[Any, ...] = ()
    """Transactions to commit once this manifest exists; any JSON."""
    read_clock: ClockReading | None = None
    """The clock's reading; None if it is not known."""
    part: PartUse | None = field(default=None, compare=False)
    """The part that names most of the files, if they are not named here."""
    format_version: int = FORMAT_VERSION

    @property
    def clock(self) -> ClockReading:
        """The clock's reading, or a substitute if the manifest has none."""
        return self.read_clock or ClockReading(self.processing_time_ms)

    @property
    def path(self) -> str:
        """The manifest's own file."""
        return manifest_path(self.epoch)

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of all files of this epoch: state files, and its part."""
        part = () if self.part is None else (self.part.part.path,)
        return frozenset(
            (*part, *(ref.path for operator in self.operators for ref in operator.files))
        )

    def operator(self, uid: str) -> OperatorState | None:
        """Find the operator of that uid."""
        return self._operators_by_uid.get(uid)

    @cached_property
    def _operators_by_uid(self) -> dict[str, OperatorState]:
        # Each of an epoch's operators is looked up several times.
        return {operator.uid: operator for operator in self.operators}

    def progress(self, query_id: str) -> QueryProgress | None:
        """Return the position of a streaming query."""
        return next((each for each in self.queries if each.query_id == query_id), None)

    def encode(self) -> bytes:
        """Return the manifest's bytes, in the format that it was read in.

        What was read in format 1 or 2 is written in format 3, which says the same, and which those
        have no fields for. `InvalidArgumentError` if `sinks` holds something that is not JSON.
        """
        differing = ("format_version", "operators", "part", "read_clock")
        values: dict[str, Any] = {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if each.name not in differing
        }
        values["queries"] = [asdict(progress) for progress in self.queries]
        version = max(self.format_version, 3)
        part = None if self.part is None else self.part.part
        if version >= WITH_PARTS:
            values["clock"] = None if self.read_clock is None else asdict(self.read_clock)
            values["part"] = None if self.part is None else self.part.encode()
        values["operators"] = encode_operators(self.operators, part, version)
        try:
            return encode_document("manifest", version, values)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{self.path}: a sink's transaction must be plain JSON: {error}"
            ) from error

    @classmethod
    def decode(cls, data: bytes, path: str, parts: Parts | None = None) -> Manifest:
        """Verify and parse a manifest; one that has a part cannot be read without `parts`.

        Errors are those of `decode_document`, for its part as well; `FileNotFoundError` if that
        does not exist.
        """
        fields = decode_document("manifest", FORMAT_VERSION, data, path)
        max_parallelism = fields.integer("max_parallelism", least=1, most=MAX_PARALLELISM)
        use = None
        if fields.version >= WITH_PARTS:
            content = fields.value("part")
            if content is not None and parts is None:
                raise InvalidArgumentError(f"{path}: it cannot be read without its part")
            use = None if parts is None else parts.use(content, path, max_parallelism)
        part = None if use is None else use.part
        items = fields.items("operators")
        operators = decode_operators(items, path, max_parallelism, part, fields.version)
        watermark_ms = fields.optional_integer("watermark_ms")
        if fields.version < WITH_WATERMARKS:
            operators = tuple(replace(op, watermark_ms=watermark_ms) for op in operators)
        queries = (_decode_progress(item, path) for item in fields.items("queries"))
        manifest = cls(
            epoch=fields.integer("epoch", least=1),
            predecessor=fields.integer("predecessor"),
            evaluation_id=fields.text("evaluation_id"),
            run_id=fields.text("run_id"),
            term=fields.integer("term"),
            host=fields.text("host"),
            max_parallelism=max_parallelism,
            processing_time_ms=_signed_integer(fields, "processing_time_ms", path),
            watermark_ms=watermark_ms,
            created_ms=fields.integer("created_ms"),
            library=fields.text("library"),
            query_id=fields.optional_text("query_id"),
            batch_id=fields.optional_integer("batch_id"),
            offsets_hash=fields.optional_text("offsets_hash"),
            run_key=fields.optional_text("run_key"),
            queries=tuple(queries),
            operators=operators,
            sinks=tuple(fields.items("sinks")),
            read_clock=_decode_clock(fields, path) if fields.version >= WITH_PARTS else None,
            part=use,
            format_version=fields.version,
        )
        fields.finish()
        return manifest


def read_manifest(storage: CheckpointStorage, path: str, parts: Parts | None = None) -> Manifest:
    """Read a manifest and its part; `parts` keeps parts from one call to the next.

    `CorruptFileError` also if its part is lost; `FileNotFoundError` if the manifest does not exist,
    or no longer.
    """
    data = storage.read_bytes(path)
    try:
        manifest = Manifest.decode(data, path, parts or Parts(storage))
        if manifest.path != path:
            raise SwappedFileError(f"{path}: it holds the manifest of epoch {manifest.epoch}")
        return manifest
    except FileNotFoundError as error:
        # Parts are removed after the manifests that name them, so the part of an existing manifest
        # is lost.
        if not storage.exists(path):
            raise
        raise CorruptFileError(
            f"{path}: its part {error.filename or error} is lost; bring it back from a copy"
        ) from error


def is_published(storage: CheckpointStorage, manifest: Manifest) -> bool:
    """Whether a manifest is there, although the call that published it failed."""
    try:
        stored = read_manifest(storage, manifest.path)
    except (PystateError, OSError):
        return False
    return stored.evaluation_id == manifest.evaluation_id


def _signed_integer(fields: Fields, name: str, path: str) -> int:
    value = fields.optional_integer(name)
    if value is None:
        raise CorruptFileError(f"{path}: field {name!r} is null")
    return value


def _decode_clock(fields: Fields, path: str) -> ClockReading | None:
    content = fields.value("clock")
    if content is None:
        return None
    inner = Fields(content, path)
    clock = ClockReading(
        read_ms=_signed_integer(inner, "read_ms", path),
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
