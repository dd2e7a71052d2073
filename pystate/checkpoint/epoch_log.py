"""The history of a checkpoint: a record per published epoch, kept for thousands of them.

``history/<first>-<unique>.epochs`` holds the records of epochs from the first on, one per line,
each with a checksum of its own, so that damage costs only the records that it hits. A driver
rewrites its own newest file with each epoch, until the file is full; nobody else writes to it.

Thread safety: an `EpochLog` belongs to one thread; `EpochLog.tidy` may run in another one. Drivers
may use their own meanwhile.

Invariants
----------
1. A record is written after its epoch is published, by the driver that has published it. So no
   record tells of an epoch that does not exist, unless a repair has set the state back, which
   removes the records of the epochs that it gives up.
2. Nothing is synced for a record, and no error of it reaches its epoch. A killed driver loses at
   most the record of its last epoch; a failure of power may lose some of the newest ones.
3. A file that is not its driver's newest one is never changed. Merged files are durable before
   their sources are removed, and records that two files have count once, so that any driver may
   merge, also one that was delayed.
4. The number of files is bounded: eight neighbours of about one size are merged, and files are
   removed once all their records are older than `KEPT_EPOCHS`.
5. What removed records add up to is kept: ``history/<epoch>-<unique>.totals`` counts the epochs up
   to its own, and is durable before a record that it counts is removed. A record of an epoch that
   it counts does not count again. Whoever adds up reads records first, and these totals then.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.refs import FileRef, fingerprint
from pystate.checkpoint.size_tiers import newest_tier
from pystate.checkpoint.storage import CheckpointStorage, FileEntry
from pystate.errors import CheckpointError, CorruptFileError, NewerFormatError, PystateError
from pystate.redaction import logger, redacted

_LOG = logger("pystate.checkpoint.epoch_log")
#: One line per published epoch, with fields.
_EPOCHS = logger("pystate.epoch")
HISTORY = "history"
#: Records are kept for at least so many epochs.
KEPT_EPOCHS = 10_000
#: Version 2 has the watermarks of operators, version 3 what went through the whole pipeline,
#: version 4 the fingerprints of the operators' state, version 5 what merges wrote for them, and
#: version 6 what tables on disk looked up.
_VERSION = 6
#: The values that version 3 has added, before the operators.
_FLOW_VALUES = 3
_NAME = re.compile(HISTORY + r"/(\d{8,})-[0-9a-f]{12}\.epochs")
_TOTALS = re.compile(HISTORY + r"/(\d{8,})-[0-9a-f]{12}\.totals")
_TOTALS_VERSION = 1
#: What is added up over all epochs: of their records, and of those of operators.
_ADDED = (
    "batches",
    "evaluations",
    "publish_ms",
    "commit_ms",
    "total_ms",
    "rows_in",
    "rows_out",
    "late_rows",
)
_OPERATOR_TIMES = ("attach_ms", "process_ms", "seal_ms", "write_ms")
_OPERATOR_ADDED = (
    *_OPERATOR_TIMES,
    "rows_in",
    "rows_out",
    "late_rows",
    "invalid_rows",
    "rows_changed",
    "rows_restored",
    "rows_copied",
    "checkpoint_bytes",
    "merged_bytes",
    "cache_hits",
    "cache_misses",
    "files_asked",
    "read_bytes",
    "rows_left",
)
#: The records of a file when its driver begins the next one.
_FULL = 64
#: Of a large file at first so many bytes are read, from its end.
_TAIL = 256 << 10
#: So many neighbours that are smaller than one of these sizes are merged.
_FAN_IN = 8
_SIZES = (8 << 10, 64 << 10, 512 << 10)
_LISTINGS = 10


@dataclass(frozen=True)
class OperatorRecord:
    """An operator in an epoch.

    Attributes
    ----------
    uid : str
        Its name.
    ranges : int
        Its parallelism.
    rows_in, rows_out : int
        Rows that it read and emitted; 0 for a store.
    late_rows : int or None
        Rows below the watermark; None without event time.
    keys : int
        Keys that its ranges hold, as far as the driver has seen these ranges. Where tables are on
        disk it is an estimate: what their files put, less what they delete, and the rows in memory
        where these are more. A key counts in each file that puts it, until they are merged.
    state_bytes : int
        Memory of the tables of these ranges.
    rows_changed : int
        State rows that the epoch changed.
    rows_restored : int
        State rows that tables read from files before it.
    rows_copied : int
        State rows that tables took from tables of another parallelism in their host's memory.
    checkpoint_bytes : int
        Size of the state files that the epoch wrote for it: deltas, with what has changed.
    attach_ms : float
        How long it took to find a range's table, or to restore it. This and the following times are
        the longest of any range, added up over the batches of the epoch.
    process_ms : float
        How long the function took over a range's rows and timers.
    seal_ms : float
        How long it took to end the epoch in memory.
    write_ms : float
        How long it took to write a range's file.
    watermark_ms : int or None
        Its watermark after the epoch; None without event time, and in records that were written
        before operators had watermarks of their own.
    invalid_rows : int
        Rows that it could not process.
    fingerprint : str
        By which its state in this epoch is recognised among files, as `fingerprint` of
        `pystate.checkpoint.refs`; empty in records that were written before this was kept.
    since : tuple of (str, int)
        From which epoch on files count, as in `RangeState`.
    merged_bytes : int
        Size of its files, made of earlier ones by merging, that this epoch is the first to name.
        With `checkpoint_bytes` it is all that was written for the state; a history's
        `written_per_byte` says how much that is for each byte that has changed. 0 in records that
        were written before this was kept, as the next one.
    most_files : int
        How many files count for one key group, in the range and key group that have the most: so
        many are read where a table is restored.
    rows_in_memory : int
        Of tables on disk, the rows that are in memory, as far as the driver has seen these ranges.
        This and what follows is 0 of other tables, and in records written before it was kept.
    cache_hits, cache_misses : int
        Keys whose rows were in memory when the epoch needed them, and keys that it had to look up
        in files, new ones among them.
    files_asked : int
        Files in which the latter were looked up, added up over the keys.
    read_bytes : int
        What was read of files for that.
    rows_left : int
        Rows that left memory.
    """

    uid: str
    ranges: int
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int | None = None
    keys: int = 0
    state_bytes: int = 0
    rows_changed: int = 0
    rows_restored: int = 0
    rows_copied: int = 0
    checkpoint_bytes: int = 0
    attach_ms: float = 0.0
    process_ms: float = 0.0
    seal_ms: float = 0.0
    write_ms: float = 0.0
    watermark_ms: int | None = None
    invalid_rows: int = 0
    fingerprint: str = ""
    since: tuple[tuple[str, int], ...] = ()
    merged_bytes: int = 0
    most_files: int = 0
    rows_in_memory: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    files_asked: int = 0
    read_bytes: int = 0
    rows_left: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The share of hits among the keys that were needed; None where nothing was counted."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else None

    @property
    def files_per_lookup(self) -> float | None:
        """In how many files a key was looked up on average; None if none was."""
        return self.files_asked / self.cache_misses if self.cache_misses else None

    @classmethod
    def decode(cls, values: Sequence[Any]) -> OperatorRecord:
        """Take the values of a record's line."""
        record = cls(*values)
        return replace(record, since=tuple((name, epoch) for name, epoch in record.since))


@dataclass(frozen=True)
class EpochRecord:
    """What is kept of a published epoch.

    Attributes
    ----------
    epoch : int
        Its number.
    published_ms : int
        When its manifest was made, in milliseconds since 1970.
    processing_time_ms : int
        Its processing time.
    watermark_ms : int or None
        The smallest watermark of the operators that have one.
    query_id, batch_id, run_key : str, int and str, or None
        The stream's batch, the last one if there are several, or the key of the run.
    batches : int
        How many batches the epoch has: more than 1 with an interval between checkpoints.
    evaluations : int
        How often its batches were computed; more than `batches` after failures.
    term : int
        Which driver of the checkpoint has published it: 1 for the first; 0 for a store.
    host : str
        Where that driver ran.
    publish_ms : float
        How long the driver took to publish it, merges that it waited for among it.
    commit_ms : float
        How long it took to commit the output.
    total_ms : float
        From the begin to the committed output, added up over its batches.
    merged_bytes : int
        Size of the files, made of earlier epochs' files by merging, that it is the first to name.
    operators : tuple of OperatorRecord
        Each operator, in the order of their uids.
    rows_in, rows_out : int or None
        Rows that came into the pipeline, and that were written. None for a store, and in records
        that were written before this was kept.
    late_rows : int or None
        How many of the rows that came were late; None without event time.
    """

    epoch: int
    published_ms: int
    processing_time_ms: int
    watermark_ms: int | None = None
    query_id: str | None = None
    batch_id: int | None = None
    run_key: str | None = None
    batches: int = 1
    evaluations: int = 1
    term: int = 0
    host: str = ""
    publish_ms: float = 0.0
    commit_ms: float = 0.0
    total_ms: float = 0.0
    merged_bytes: int = 0
    operators: tuple[OperatorRecord, ...] = ()
    rows_in: int | None = None
    rows_out: int | None = None
    late_rows: int | None = None

    def total(self, name: str) -> int:
        """Add up a number of all operators."""
        return sum(getattr(operator, name) or 0 for operator in self.operators)

    def longest(self, name: str) -> float:
        """The longest of a time of all operators."""
        return max((getattr(operator, name) for operator in self.operators), default=0.0)

    def encode(self) -> bytes:
        """Return the record's line."""
        # Values in the order of the fields: names would take most of the space.
        *values, operators = list(vars(self).values())[:-_FLOW_VALUES]
        flow = self.rows_in, self.rows_out, self.late_rows
        records = tuple(tuple(vars(operator).values()) for operator in operators)
        values = _round_times((_VERSION, *values, *flow, records))
        data = json.dumps(values, separators=(",", ":"), ensure_ascii=True).encode("ascii")
        return b"%08x %s\n" % (zlib.crc32(data), data)

    @classmethod
    def decode(cls, line: bytes, path: str) -> EpochRecord:
        """Parse a line; `CorruptFileError` or `NewerFormatError` if that cannot be."""
        checksum, _, data = line.rstrip(b"\n").partition(b" ")
        if line.endswith(b"\n") and checksum == b"%08x" % zlib.crc32(data):
            with suppress(ValueError, TypeError):  # it has our form, or is none of ours
                version, *values, operators = json.loads(data)
                if version > _VERSION:
                    raise NewerFormatError(
                        f"{path}: format version {version} was written by a later pystate; "
                        f"this one reads up to {_VERSION}: upgrade pystate"
                    )
                flow = values[-_FLOW_VALUES:] if version > 2 else []
                values = values[: len(values) - len(flow)]
                records = tuple(OperatorRecord.decode(each) for each in operators)
                return cls(*[*values, records, *flow])
        raise CorruptFileError(f"{path}: a line is not the record of an epoch")


def written_per_byte(records: Iterable[EpochRecord], uid: str | None = None) -> float | None:
    """How many bytes deltas and merges wrote in some epochs, per byte of the deltas.

    Of one operator, or of all; None if there was nothing to write. Merges are counted where they
    are adopted, which is later than what they merge, so that few epochs say little.
    """
    changed = merged = 0
    for record in records:
        for operator in record.operators:
            if uid in (None, operator.uid):
                changed += operator.checkpoint_bytes
                merged += operator.merged_bytes
    return (changed + merged) / changed if changed else None


def _round_times(values: Sequence[object]) -> list[object]:
    """The same values, with times to the microsecond."""
    return [
        _round_times(value)
        if isinstance(value, tuple)
        else round(value, 3)
        if isinstance(value, float)
        else value
        for value in values
    ]


class Totals:
    """What the epochs of a checkpoint add up to, each of which counts once.

    Thread safety: it belongs to one thread at a time.

    Attributes
    ----------
    epoch : int
        The newest epoch that is counted; those up to it are not counted any more.
    sums : dict of str to dict of str to float
        By uid, and under the empty name of the whole pipeline, the sums of what records have under
        these names. ``epochs`` is how many records were counted. What no record knows is not there.
    """

    def __init__(self, epoch: int = 0, sums: dict[str, dict[str, float]] | None = None) -> None:
        self.epoch = epoch
        self.sums = {} if sums is None else sums

    def add(self, record: EpochRecord) -> None:
        """Count an epoch, unless it is counted."""
        if record.epoch <= self.epoch:
            return
        self.epoch = record.epoch
        whole = self.sums.setdefault("", {})
        whole["epochs"] = whole.get("epochs", 0) + 1
        _add(whole, record, _ADDED)
        for name in _OPERATOR_TIMES:
            whole[name] = whole.get(name, 0.0) + record.longest(name)
        for operator in record.operators:
            _add(self.sums.setdefault(operator.uid, {}), operator, _OPERATOR_ADDED)

    def encode(self) -> bytes:
        """Return the form in which they are stored."""
        sums = {
            uid: {name: round(value, 3) for name, value in numbers.items()}
            for uid, numbers in self.sums.items()
        }
        return encode_document("totals", _TOTALS_VERSION, {"epoch": self.epoch, "sums": sums})

    @classmethod
    def decode(cls, data: bytes, path: str) -> Totals:
        """Parse what `encode` returned; errors are those of `decode_document`."""
        fields = decode_document("totals", _TOTALS_VERSION, data, path)
        totals = cls(fields.integer("epoch"))
        for uid, numbers in fields.mapping("sums").items():
            if not isinstance(numbers, dict) or not all(
                type(value) in (int, float) for value in numbers.values()
            ):
                raise CorruptFileError(f"{path}: the sums of {uid!r:.60} are no numbers by name")
            totals.sums[uid] = numbers
        fields.finish()
        return totals


def _add(sums: dict[str, float], record: object, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None:
            sums[name] = sums.get(name, 0) + value


def add_up(storage: CheckpointStorage, records: Iterable[EpochRecord]) -> Totals:
    """Add up all epochs of a checkpoint: those whose records were read, and removed ones.

    `NewerFormatError` if a later version has stored what removed ones add up to.
    """
    totals = _intact_totals(storage).totals
    for record in records:
        totals.add(record)
    return totals


class _StoredTotals(NamedTuple):
    """What removed records add up to."""

    totals: Totals
    paths: list[str]
    """The files that say so."""
    problems: dict[str, CheckpointError]
    """Those that cannot be read, and what is wrong with each."""


def _stored_totals(storage: CheckpointStorage) -> _StoredTotals:
    found = _StoredTotals(Totals(), [], {})
    for entry in storage.list(HISTORY):
        if _TOTALS.fullmatch(entry.path) is None:
            continue
        found.paths.append(entry.path)
        try:
            stored = Totals.decode(storage.read_bytes(entry.path), entry.path)
        except FileNotFoundError:
            continue  # a newer one has replaced it
        except (CorruptFileError, NewerFormatError) as error:
            found.problems[entry.path] = error
            continue
        if stored.epoch > found.totals.epoch:
            found = found._replace(totals=stored)
    return found


def _intact_totals(storage: CheckpointStorage) -> _StoredTotals:
    """The same; damage is only logged, but `NewerFormatError` raised."""
    found = _stored_totals(storage)
    for error in found.problems.values():
        if isinstance(error, NewerFormatError):
            raise error
        _LOG.warning("%s: what older epochs add up to is lost: %s", storage.uri, error)
    return found


def _keep_totals(storage: CheckpointStorage, gone: Sequence[str]) -> None:
    """Add up records that are about to be removed; `FileNotFoundError` if some are."""
    records = _merge_contents({path: _read(storage, path) for path in gone}).records
    totals, earlier, _ = _intact_totals(storage)
    before = totals.epoch
    for record in records:
        totals.add(record)
    if totals.epoch == before:
        return
    path = f"{HISTORY}/{totals.epoch:08d}-{uuid.uuid4().hex[:12]}.totals"
    storage.publish(path, totals.encode())
    for superseded in earlier:
        storage.delete(superseded)


def log_epoch(record: EpochRecord, job: str, location: str) -> None:
    """Log a published epoch in one line, whose fields are those of its record.

    It is logged at INFO by ``pystate.epoch``. Keys, values and rows are never logged.
    """
    # An epoch is published, whatever handlers and formatters of the user do.
    with suppress(Exception):
        if _EPOCHS.isEnabledFor(logging.INFO):
            fields = _epoch_fields(record, job, location)
            flow = ""
            if record.rows_in is not None:  # a store has none
                flow = f"{record.rows_in} rows in, {record.rows_out} out, "
            _EPOCHS.info(
                "job %r: epoch %d: %s%d keys, %d rows of state changed, %.3f s",
                job,
                record.epoch,
                flow,
                fields["keys"],
                fields["rows_changed"],
                record.total_ms / 1000,
                extra=fields,
            )


#: Of operators' numbers an epoch's line has the sum, and of their times the longest.
_SUMMED = (
    *("keys", "state_bytes", "rows_changed", "rows_restored", "invalid_rows"),
    *("checkpoint_bytes", "cache_hits", "cache_misses", "read_bytes"),
)
#: How to find files, and nothing for people.
_UNLOGGED = frozenset(["fingerprint", "since"])


def _epoch_fields(record: EpochRecord, job: str, location: str) -> dict[str, Any]:
    """The fields of an epoch's line."""
    fields = {name: value for name, value in vars(record).items() if name != "operators"}
    for name in ("run_key", "query_id", "host"):
        fields[name] = None if fields[name] is None else redacted(fields[name])
    return {
        "event": "epoch",
        "job": redacted(job),
        "checkpoint": redacted(location),
        **fields,
        **{name: record.longest(name) for name in _OPERATOR_TIMES},
        **{name: record.total(name) for name in _SUMMED},
        "operators": [
            {
                name: redacted(value) if isinstance(value, str) else value
                for name, value in vars(operator).items()
                if name not in _UNLOGGED
            }
            for operator in record.operators
        ],
    }


class _Content(NamedTuple):
    """A file's lines."""

    records: dict[bytes, EpochRecord]
    """The intact ones, in their order."""
    problem: CheckpointError | None
    """What is wrong with the others, if there are any."""


def _read(storage: CheckpointStorage, path: str) -> _Content:
    """Read a file; `FileNotFoundError` if it was merged meanwhile."""
    records: dict[bytes, EpochRecord] = {}
    damaged = 0
    problem: CheckpointError | None = None
    for line in storage.read_bytes(path).splitlines(keepends=True):
        try:
            records[line] = EpochRecord.decode(line, path)
        except NewerFormatError as error:
            problem = error
        except CorruptFileError:
            damaged += 1
    if damaged:
        number = f"{damaged} records are" if damaged > 1 else "a record is"
        problem = CorruptFileError(f"{path}: {number} damaged")
    return _Content(records, problem)


def _list_files(storage: CheckpointStorage) -> list[tuple[int, FileEntry]]:
    """The files and their first epochs, ascending."""
    matches = ((_NAME.fullmatch(entry.path), entry) for entry in storage.list(HISTORY))
    return sorted((int(match[1]), entry) for match, entry in matches if match)


class HistoryRecords(NamedTuple):
    """What a checkpoint's history says."""

    records: tuple[EpochRecord, ...]
    """One per epoch, ascending."""
    problems: tuple[tuple[str, CheckpointError], ...]
    """Files with damage, or of a later version, and what is wrong with them."""


def read_records(storage: CheckpointStorage) -> HistoryRecords:
    """Read the history of a checkpoint, whose job may be running."""
    before = None
    for _ in range(_LISTINGS):
        # A listing that is made while files are merged can miss the merged one and its sources,
        # but not twice in the same way.
        paths = [entry.path for _, entry in _list_files(storage)]
        if paths != before:
            before = paths
            continue
        with suppress(FileNotFoundError):
            return _with_totals(storage, {path: _read(storage, path) for path in paths})
    return _with_totals(storage, {path: _read(storage, path) for path in before or ()})


def _with_totals(storage: CheckpointStorage, files: dict[str, _Content]) -> HistoryRecords:
    found = _merge_contents(files)
    problems = _stored_totals(storage).problems.items()
    return found._replace(problems=(*found.problems, *problems))


def newest_records(storage: CheckpointStorage) -> list[EpochRecord]:
    """Read the last records of the newest file that has intact ones; none if none has.

    It costs the same for any number of epochs. Damage, and what later versions have written, is
    left out.
    """
    for _, entry in reversed(_list_files(storage)):
        intact: list[EpochRecord] = []
        size, wanted = entry.size_bytes, _TAIL
        while True:
            # A file grows while its job runs, so it is read up to its end.
            start = max(0, size - wanted)
            try:
                with storage.open_read(entry.path) as file:
                    file.seek(start)
                    lines = file.read().splitlines(keepends=True)
            except FileNotFoundError:
                break  # merged meanwhile, into one that has another name
            intact = list(_intact(lines[1:] if start else lines, entry.path))
            if intact or not start:
                break
            wanted *= 8
        if intact:
            return intact
    return []


def _intact(lines: Sequence[bytes], path: str) -> Iterator[EpochRecord]:
    for line in lines:
        with suppress(CheckpointError):
            yield EpochRecord.decode(line, path)


def _merge_contents(files: dict[str, _Content]) -> HistoryRecords:
    newest: dict[int, EpochRecord] = {}
    for content in files.values():
        for record in content.records.values():
            known = newest.get(record.epoch)
            if known is None or (known.term, known.published_ms) < (
                record.term,
                record.published_ms,
            ):
                newest[record.epoch] = record
    problems = [
        (path, content.problem) for path, content in files.items() if content.problem is not None
    ]
    return HistoryRecords(tuple(newest[epoch] for epoch in sorted(newest)), tuple(problems))


def without_epochs_after(storage: CheckpointStorage, epoch: int) -> list[str]:
    """Keep only the intact records up to an epoch; returns the files that may go after that.

    Nobody else may write meanwhile.
    """
    superfluous = []
    for _, entry in _list_files(storage):
        content = _read(storage, entry.path)
        kept = {line: r for line, r in content.records.items() if r.epoch <= epoch}
        if len(kept) < len(content.records) or content.problem is not None:
            if kept:
                _publish(storage, kept)
            superfluous.append(entry.path)
    totals, paths, problems = _stored_totals(storage)
    return superfluous + (paths if totals.epoch > epoch else list(problems))


def _publish(storage: CheckpointStorage, records: dict[bytes, EpochRecord]) -> None:
    first = min(record.epoch for record in records.values())
    storage.publish(_path(first), b"".join(records))


def _path(first: int) -> str:
    return f"{HISTORY}/{first:08d}-{uuid.uuid4().hex[:12]}.epochs"


class EpochLog:
    """Writes the records of one driver's epochs, and keeps those of `kept` epochs at least."""

    def __init__(self, storage: CheckpointStorage, kept: int = KEPT_EPOCHS) -> None:
        self._storage = storage
        self._kept = kept
        self._own = ""
        self._lines: list[bytes] = []

    def add(self, record: EpochRecord) -> bool:
        """Write a record; returns whether it is time to tidy up."""
        begins = not self._lines or len(self._lines) >= _FULL
        if begins:
            self._own, self._lines = _path(record.epoch), []
        self._lines.append(record.encode())
        self._storage.replace(self._own, b"".join(self._lines), durable=False)
        return begins

    def tidy(self, newest: int, check_owner: Callable[[], None]) -> None:
        """Merge small files, and remove old ones.

        `check_owner` raises `FencedError` if this driver is no longer the owner.
        """
        check_owner()
        files = _list_files(self._storage)
        gone = []
        while len(files) > 1 and files[1][0] <= newest - self._kept + 1:
            gone.append(files.pop(0)[1].path)
        if gone:
            try:
                _keep_totals(self._storage, gone)
            except FileNotFoundError:
                return  # another driver has removed them, and tidies up
            for path in gone:
                self._storage.delete(path)
        # The file that this driver writes now stays as it is.
        paths = [entry.path for _, entry in files]
        own = paths.index(self._own) if self._own in paths else len(files)
        with suppress(FileNotFoundError):  # another driver has merged it
            self._merge([entry for _, entry in files[:own]])

    def _merge(self, entries: Sequence[FileEntry]) -> None:
        sizes = [entry.size_bytes for entry in entries]
        start = newest_tier(sizes, [(0, size) for size in _SIZES], _FAN_IN)
        records: dict[bytes, EpochRecord] = {}
        merged = []
        for entry in entries[start:]:
            content = _read(self._storage, entry.path)
            if content.problem is None:
                records.update(content.records)
                merged.append(entry.path)
            else:
                # Damage stays where it can be found, and what a later version has written, too.
                # Files on both sides of it are not merged, since a file ends where the next begins.
                records, merged = {}, []
        if len(merged) > 1:
            _publish(self._storage, records)
            for path in merged:
                self._storage.delete(path)


class StoreChronicle:
    """Writes a store's records, and belongs to the store; no error of it reaches that one."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._log = EpochLog(storage)

    def published(
        self,
        manifest: Manifest,
        deltas: Sequence[FileRef],
        counted: Mapping[str, int],
        began_s: float,
        written_s: float,
        before: Sequence[FileRef],
    ) -> None:
        """Write the record of an epoch that was just published, of one operator with one range.

        `before` are the files that the range had before: what is neither among them nor the deltas
        was merged. `counted` has numbers of the table by the names that `OperatorRecord` gives
        them. The times are those of `time.monotonic` when the checkpoint began, and when its deltas
        were written.
        """
        [operator] = manifest.operators
        ended_s, known = time.monotonic(), {ref.path for ref in (*deltas, *before)}
        merged_bytes = sum(ref.file_bytes for ref in operator.files if ref.path not in known)
        of_operator = OperatorRecord(
            uid=operator.uid,
            ranges=1,
            checkpoint_bytes=sum(ref.file_bytes for ref in deltas),
            write_ms=(written_s - began_s) * 1000,
            fingerprint=fingerprint(operator),
            since=operator.ranges[0].since,
            merged_bytes=merged_bytes,
            most_files=operator.ranges[0].depth,
            **counted,
        )
        record = EpochRecord(
            epoch=manifest.epoch,
            published_ms=manifest.created_ms,
            processing_time_ms=manifest.processing_time_ms,
            host=manifest.host,
            publish_ms=(ended_s - written_s) * 1000,
            total_ms=(ended_s - began_s) * 1000,
            merged_bytes=merged_bytes,
            operators=(of_operator,),
        )
        try:
            if self._log.add(record):
                self._log.tidy(record.epoch, lambda: None)
        except (PystateError, OSError) as error:
            _LOG.warning(
                "%s: its history lacks epoch %d: %s", self._storage.uri, record.epoch, error
            )
        log_epoch(record, operator.uid, self._storage.uri)
