"""Makes a lost manifest anew, from the state files, ``job.json`` and the history.

State files say on what they follow, and an epoch's record has the fingerprint of each operator's
state, and where the stream stood. Records are written after the output is committed, so that an
epoch with a record has nothing left to commit.

Thread safety: functions without state; results are immutable.

Invariants
----------
1. An epoch is made anew only if all its operators have the fingerprints that were recorded. So no
   file of an attempt that lost is taken for an epoch's, none is missing, and schemas and what
   counts in files are those of the epoch.
2. What else only manifests know, and does not follow, is said.
3. The same files give the same manifest.
"""

from __future__ import annotations

import hashlib
import itertools
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from pystate._core.core import range_bounds
from pystate.checkpoint.copies import for_all
from pystate.checkpoint.epoch_log import KEPT_EPOCHS, EpochRecord, OperatorRecord, read_records
from pystate.checkpoint.job_file import (
    JOB_FILE,
    RESTORED_FILE,
    JobFile,
    OperatorEntry,
    library,
    read_job,
)
from pystate.checkpoint.manifest import Manifest, QueryProgress
from pystate.checkpoint.manifest_log import survey
from pystate.checkpoint.refs import (
    EMPTY_ID,
    TIMERS,
    FileRef,
    OperatorState,
    RangeState,
    fingerprint,
    parted_fingerprint,
    state_epoch,
    state_folder,
)
from pystate.checkpoint.run_keys import covered_epoch
from pystate.checkpoint.source_position import SPARK_FOLDER, offsets_hash, read_query_id
from pystate.checkpoint.state_files import file_schema, open_file, verify_file
from pystate.checkpoint.storage import CheckpointStorage
from pystate.checkpoint.traces import STATE, marked_epoch
from pystate.errors import CheckpointError, CorruptFileError, NewerFormatError

#: So many of the newest epochs are tried: older ones have lost files that were merged since.
_MOST_EPOCHS = 100
#: So many choices of files are compared with a fingerprint.
_CHOICES = 4096
#: Earlier than any timer: the range's next task finds out which timer is its first one.
_EARLY_MS = -(1 << 62)
#: What a store calls its operator, and its epochs' query.
_STORE = "embedded"


class RecoveredEpoch(NamedTuple):
    """An epoch whose manifest was made anew."""

    manifest: Manifest
    unknown: tuple[str, ...]
    """What is not known any more."""
    records: Mapping[int, EpochRecord]
    """The records up to the epoch."""
    runs: tuple[tuple[int, str], ...]
    """Runs before the epoch whose keys only lost manifests and the history have."""
    unknown_runs: tuple[int, ...]
    """Epochs before it that may have been runs."""


class _ImpossibleError(Exception):
    """An epoch cannot be made anew; the message says why."""


class _File(NamedTuple):
    """An intact state file."""

    ref: FileRef
    max_parallelism: int
    has_timers: bool


#: State files by their folders, the ranges of operators.
_Files: TypeAlias = dict[str, list[_File]]


def recover_newest(storage: CheckpointStorage, newest: int) -> RecoveredEpoch | str:
    """Find the newest epoch that other files than manifests know completely, or why there is none.

    `newest` is the newest epoch of the checkpoint, whose newest manifests are lost or damaged.
    """
    try:
        job = read_job(storage)
    except CorruptFileError:
        job = None
    if job is None:
        return f"{JOB_FILE}, which names the operators, is lost, too"
    recorded = {record.epoch: record for record in read_records(storage).records}
    records = {
        epoch: recorded[epoch] for epoch in sorted(recorded, reverse=True) if epoch <= newest
    }
    if not records:
        return "the history, which knows what epochs were published, is lost, too"
    files = _read(storage)
    reason = ""
    for epoch in itertools.islice(records, _MOST_EPOCHS):
        try:
            recovered = _at(epoch, storage, job, records, files)
        except _ImpossibleError as error:
            reason = reason or f"epoch {epoch} cannot be made anew from the other files: {error}"
            continue
        if newest > epoch:
            said = "where the output of later epochs is: readers may see their rows twice"
            recovered = recovered._replace(unknown=(*recovered.unknown, said))
        return recovered
    return reason


def is_store(storage: CheckpointStorage) -> bool:
    """Whether a checkpoint is that of a store, which no stream and no run computes again."""
    try:
        job = read_job(storage)
    except CorruptFileError:
        return False
    return job is not None and job.name == _STORE


def _read(storage: CheckpointStorage) -> _Files:
    """Read all state files that are intact, from end to end; return them by their folders."""
    intact: dict[str, _File] = {}
    newer: list[NewerFormatError] = []

    def read(path: str) -> None:
        local = storage.local_path(path)
        try:
            with storage.open_read(path) as data:
                info = verify_file(local or data)
                with open_file(local or data) as opened:
                    columns = file_schema(opened.reader).states
        except NewerFormatError as error:
            newer.append(error)
        except (CheckpointError, FileNotFoundError):
            return  # as good as lost
        else:
            timers = any(column.name == TIMERS for column in columns)
            intact[path] = _File(FileRef.from_info(path, info), info.max_parallelism, timers)

    for_all(read, [e.path for e in storage.list(STATE) if state_epoch(e.path) is not None])
    if newer:
        raise newer[0]
    folders: dict[str, list[_File]] = {}
    for path in sorted(intact):
        folders.setdefault(posixpath.dirname(path), []).append(intact[path])
    return folders


def _at(
    epoch: int,
    storage: CheckpointStorage,
    job: JobFile,
    all_records: Mapping[int, EpochRecord],
    files: _Files,
) -> RecoveredEpoch:
    records = {number: record for number, record in all_records.items() if number <= epoch}
    unknown: list[str] = []
    for number, later in all_records.items():
        for operator in later.operators if number > epoch else ():
            if any(first > epoch for _, first in operator.since):
                # Merges since then may have dropped what was a state of that name before.
                raise _ImpossibleError(f"states of operator {operator.uid!r} were changed since")
    operators = tuple(_operators(epoch, job, records, files))
    record = records[epoch]
    progress = _progress(storage, record, records)
    if any(op.watermark_ms is not None for op in operators):
        unknown.append(
            "the newest event times of the inputs: watermarks stand where they stood until later "
            "rows come"
        )
    restored = marked_epoch(storage, RESTORED_FILE, "restored") or 0
    known = max(survey(storage).floor, covered_epoch(storage), restored, epoch - KEPT_EPOCHS)
    gaps = tuple(number for number in range(known + 1, epoch) if number not in records)
    if gaps:
        unknown.append(f"of which runs the epochs {_numbers_text(gaps)} were")
    unique = hashlib.sha256(f"{job.checkpoint_id} {epoch}".encode()).hexdigest()[:32]
    manifest = Manifest(
        epoch=epoch,
        predecessor=epoch - 1,
        evaluation_id=unique,
        run_id=unique,
        term=record.term,
        host=record.host,
        max_parallelism=job.max_parallelism,
        processing_time_ms=record.processing_time_ms,
        watermark_ms=record.watermark_ms,
        created_ms=record.published_ms,
        library=library(),
        operators=operators,
        query_id=progress.query_id if progress and progress.epoch == epoch else None,
        batch_id=progress.batch_id if progress and progress.epoch == epoch else None,
        offsets_hash=progress.offsets_hash if progress and progress.epoch == epoch else None,
        run_key=record.run_key,
        queries=() if progress is None else (progress,),
    )
    runs = tuple(
        (number, records[number].run_key or "")
        for number in sorted(records)
        if known < number < epoch and records[number].run_key is not None
    )
    return RecoveredEpoch(manifest, tuple(unknown), records, runs, gaps)


# ---- the stream ----------------------------------------------------------------------------------


def _progress(
    storage: CheckpointStorage, record: EpochRecord, records: Mapping[int, EpochRecord]
) -> QueryProgress | None:
    """Where the checkpoint's query stood after an epoch."""
    if [operator.uid for operator in record.operators] == [_STORE] and not record.term:
        return QueryProgress(_STORE, record.epoch, "", record.epoch)
    try:
        query_id = read_query_id(storage)
    except CorruptFileError as error:
        raise _ImpossibleError(str(error)) from None
    if query_id is None:
        return None
    for number in range(record.epoch, 0, -1):
        if number not in records:
            # It may have been a batch, or what the checkpoint began with.
            raise _ImpossibleError(
                f"where the stream stood is not known: the history lacks epoch {number}"
            )
        earlier = records[number]
        if earlier.query_id == query_id and earlier.batch_id is not None:
            path = f"{SPARK_FOLDER}/offsets/{earlier.batch_id}"
            try:
                digest = offsets_hash(storage.read_bytes(path), path)
            except (FileNotFoundError, CorruptFileError):
                raise _ImpossibleError(
                    f"where the stream stood is not known: {path} is lost or damaged"
                ) from None
            return QueryProgress(query_id, earlier.batch_id, digest, number)
    return None


# ---- operators -----------------------------------------------------------------------------------


def _operators(
    epoch: int,
    job: JobFile,
    records: Mapping[int, EpochRecord],
    files: _Files,
) -> Iterator[OperatorState]:
    last: dict[str, OperatorRecord] = {}
    # An operator that an epoch does not have stays as it was. In one without a record it may have
    # changed.
    complete = next(number for number in range(epoch, -1, -1) if number not in records)
    for record in records.values():  # the newest first
        for operator in record.operators if record.epoch > complete else ():
            last.setdefault(operator.uid, operator)
    of_operators: dict[str, _Files] = {}
    for folder, in_folder in files.items():
        of_operators.setdefault(posixpath.dirname(folder), {})[folder] = in_folder
    for uid in sorted({*last, *(entry.uid for entry in job.operators)}):
        mine = of_operators.get(posixpath.dirname(state_folder(uid, 0, 0)), {})
        entry, record_of = job.operator(uid), last.get(uid)
        if entry is None:
            raise _ImpossibleError(f"{JOB_FILE} does not have operator {uid!r}")
        if record_of is None:
            if any(f.ref.epoch <= epoch for in_folder in mine.values() for f in in_folder):
                raise _ImpossibleError(
                    f"the history does not have operator {uid!r}, which has state files, after "
                    f"epoch {complete}"
                )
            continue
        yield _operator(epoch, entry, record_of, job.max_parallelism, mine)


def _operator(
    epoch: int,
    entry: OperatorEntry,
    record: OperatorRecord,
    groups: int,
    files: _Files,
) -> OperatorState:
    """Choose the files of an operator by its fingerprint."""
    uid, marks = entry.uid, parted_fingerprint(record.fingerprint)
    if not marks:
        raise _ImpossibleError(f"an earlier version wrote the record of operator {uid!r}")
    choices: list[list[RangeState]] = []
    for index, mark in enumerate(marks):
        first, last = range_bounds(index, groups, len(marks))
        mine = [
            f
            for f in files.get(state_folder(uid, first, last), ())
            if (f.ref.first_key_group, f.ref.last_key_group) == (first, last)
            and f.ref.epoch <= epoch
            and f.max_parallelism == groups
        ]
        empty = RangeState(index, first, last, EMPTY_ID, since=record.since)
        states = [state for state in _states(empty, mine) if state.id.startswith(mark)]
        if not states:
            raise _ImpossibleError(
                f"operator {uid!r}, range {index}: state files are lost, or are those of a former "
                "parallelism, whose order only manifests tell"
            )
        choices.append(states)
    timers = any(file.has_timers for states in files.values() for file in states)
    for ranges in itertools.islice(itertools.product(*choices), _CHOICES):
        for has_timers in (timers, not timers):
            candidate = OperatorState(
                uid=uid,
                parallelism=len(marks),
                key_schema=entry.key_schema,
                state_schema=entry.state_schema,
                ranges=ranges if has_timers else tuple(map(_without_timers, ranges)),
                timers=has_timers,
                watermark_ms=record.watermark_ms,
                defaults=entry.defaults,
                ttls=entry.ttls,
            )
            if fingerprint(candidate) == record.fingerprint:
                return candidate
    raise _ImpossibleError(
        f"operator {uid!r}: its files, or its states in {JOB_FILE}, are not those of the epoch"
    )


def _without_timers(state: RangeState) -> RangeState:
    return replace(state, next_event_timer_ms=None, next_processing_timer_ms=None)


def _states(empty: RangeState, files: Sequence[_File]) -> Iterator[RangeState]:
    """All states of a range that files lead to without a gap."""
    yield empty
    reached: dict[str, tuple[_File | None, int]] = {EMPTY_ID: (None, 0)}
    for file in sorted(files, key=lambda f: (f.ref.epoch, f.ref.kind)):
        ref = file.ref
        steps = 1
        if ref.kind == "delta":
            if ref.parent not in reached:
                continue
            steps += reached[ref.parent][1]
        if ref.id not in reached or steps < reached[ref.id][1]:
            reached[ref.id] = (file, steps)
    for id_ in reached:
        chain: list[_File] = []
        at: _File | None = reached[id_][0]
        while at is not None:
            chain.append(at)
            at = None if at.ref.kind == "base" else reached[at.ref.parent][0]
        if not chain:
            continue
        refs = tuple(file.ref for file in reversed(chain))
        early = _EARLY_MS if any(file.has_timers for file in chain) else None
        base = refs[0] if refs[0].kind == "base" else None
        yield replace(
            empty,
            id=id_,
            base=base,
            deltas=refs if base is None else refs[1:],
            next_event_timer_ms=early,
            next_processing_timer_ms=early,
        )


def _numbers_text(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
