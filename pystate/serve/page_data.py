"""What the page shows of a checkpoint, as JSON: each answer costs a bounded amount.

Manifests and the records of epochs are kept from one answer to the next, so that a page which asks
each second reads what is new. State is read by the look-ups, scans and comparisons that users have.

Thread safety: a `JobView` may be used by any thread; those who read metadata wait for each other.

Invariants
----------
1. Nothing is written into a checkpoint.
2. No answer says where the checkpoint is, or names a file by more than its path inside of it.
3. An answer about state is of one epoch, which it names.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pystate.base.arguments import integer
from pystate.checkpoint.epoch_log import (
    EpochRecord,
    OperatorRecord,
    newest_records,
    read_records,
    written_per_byte,
)
from pystate.checkpoint.job_file import JOB_FILE, SAVEPOINT_FILE, read_job
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, is_merged
from pystate.epochs.ownership import current_owner, is_running
from pystate.maintenance.access import open_existing
from pystate.processor.changes import scan_changes
from pystate.processor.epochs import NotHeldError, epoch_of, operator_of, while_retained
from pystate.processor.lookup import StateLookup
from pystate.processor.scan import StateScan
from pystate.processor.selection import Selection
from pystate.serve.page_values import asked_columns, key_texts, shown_rows, typed_key
from pystate.serve.page_weights import heat_map, heaviest_keys
from pystate.state.identity import shown_as
from pystate.types.keys import parse_key

#: The most epochs that a chart has, and ranges, files and changes that a table has.
MOST_EPOCHS = 500
_MOST_RANGES = 512
_MOST_FILES = 500
_MOST_CHANGES = 200
_MOST_TIMERS = 100
#: For so long it is not compared what else may have changed.
_MOST_COMPARED_S = 5.0
#: For so long the newest epoch counts as such, in a folder and in an object store.
_MOMENT_S, _REMOTE_MOMENT_S = 0.3, 5.0

_TIMES = ("attach_ms", "process_ms", "seal_ms", "write_ms")
_OF_OPERATOR = (
    "rows_in",
    "rows_out",
    "late_rows",
    "invalid_rows",
    "keys",
    "state_bytes",
    "rows_changed",
    "rows_restored",
    "checkpoint_bytes",
    "merged_bytes",
    "most_files",
    "rows_in_memory",
    "cache_hits",
    "cache_misses",
    "read_bytes",
)


class JobView:
    """One checkpoint or savepoint, as the page asks for it.

    Parameters
    ----------
    location : str or path
        Its folder or URL.
    name : str, optional
        What the page calls it; by default the name of its job.

    Raises
    ------
    InvalidArgumentError
        Nothing there is a checkpoint or savepoint.
    """

    def __init__(self, location: str | os.PathLike[str], name: str | None = None) -> None:
        self.location = os.fspath(location)
        self.storage = open_existing(location, "serve")
        job = read_job(self.storage)
        self.name = name if name is not None else "" if job is None else job.name
        self.kind = "savepoint" if self.storage.exists(SAVEPOINT_FILE) else "checkpoint"
        place = self.storage.local_path(JOB_FILE)
        self._folder = None if place is None else os.path.dirname(place)
        self._lock = threading.Lock()
        self._history = History(self.storage)
        self._looked_s = float("-inf")
        self._records: dict[int, EpochRecord] = {}
        self._problems: tuple[str, ...] = ()
        self._weighing = threading.Lock()
        self._heat: dict[str, dict[str, Any]] = {}
        self._heaviest: dict[str, dict[str, Any]] = {}

    # ---- metadata ----------------------------------------------------------------------------

    def _head(self) -> Manifest | None:
        self._history.refresh()
        return self._history.head

    def pulse(self) -> dict[str, Any]:
        """Which epoch is the newest, and when it was published; known for a moment.

        Pages ask each second. In an object store each look is a request, which costs money.
        """
        with self._lock:
            moment = _REMOTE_MOMENT_S if self._folder is None else _MOMENT_S
            if time.monotonic() - self._looked_s >= moment:
                self._head()
                self._looked_s = time.monotonic()
            head = self._history.head
        return {
            "job": self.name,
            "kind": self.kind,
            "epoch": None if head is None else head.epoch,
            "published_ms": None if head is None else head.created_ms,
            "now_ms": _now_ms(),
        }

    def overview(self) -> dict[str, Any]:
        """The job, its operators and the retained epochs."""
        with self._lock:
            head = self._head()
            epochs = list(self._history.epochs)
            record = None if head is None else self._newest().get(head.epoch)
        if head is None:
            return {**self.pulse(), "epochs": [], "operators": [], "running": self._running()}
        lag = None if head.watermark_ms is None else head.created_ms - head.watermark_ms
        files = {ref.path: ref.file_bytes for op in head.operators for ref in op.files}
        return {
            "job": self.name,
            "kind": self.kind,
            "epoch": head.epoch,
            "epochs": epochs,
            "published_ms": head.created_ms,
            "now_ms": _now_ms(),
            "processing_time_ms": head.processing_time_ms,
            "watermark_ms": head.watermark_ms,
            "watermark_lag_ms": lag,
            "library": head.library,
            "max_parallelism": head.max_parallelism,
            "term": head.term,
            "running": self._running(),
            "files": len(files),
            "size_bytes": sum(files.values()),
            "keys": None if record is None else record.total("keys"),
            "state_bytes": None if record is None else record.total("state_bytes"),
            "total_ms": None if record is None else record.total_ms,
            "operators": [_operator(op, record) for op in head.operators],
        }

    def _running(self) -> bool | None:
        """Whether its driver runs; None where that is not known, as of a store or savepoint."""
        if self.kind == "savepoint":
            return None
        owner = current_owner(self.storage)
        return None if owner is None else is_running(self.storage, owner)

    def _newest(self) -> dict[int, EpochRecord]:
        """The records that are known, with the newest ones; the lock is held."""
        if self.kind == "savepoint":
            return {}
        newest = {record.epoch: record for record in newest_records(self.storage)}
        known = max(self._records, default=0)
        if newest and (not known or min(newest) > known + 1):
            recorded = read_records(self.storage)
            newest |= {record.epoch: record for record in recorded.records[-MOST_EPOCHS:]}
            self._problems = tuple(str(error) for _, error in recorded.problems)
        self._records |= newest
        for epoch in sorted(self._records)[:-MOST_EPOCHS]:
            del self._records[epoch]
        return self._records

    def epochs(self, uid: str | None = None, *, last: int = 120) -> dict[str, Any]:
        """What the last epochs took and moved, a list per figure; of one operator, or of all."""
        integer(last, "last", least=1, most=MOST_EPOCHS)
        with self._lock:
            head = self._head()
            records = self._newest()
            newest = 0 if head is None else head.epoch
            chosen = [r for epoch, r in sorted(records.items()) if epoch <= newest][-last:]
            problems = self._problems
        if uid is not None:
            operator_of(self.storage, epoch_of(self.storage), uid)
            pairs = [(r, op) for r in chosen for op in r.operators if op.uid == uid]
        else:
            pairs = [(r, _whole(r)) for r in chosen]
        figures = {
            "epoch": [r.epoch for r, _ in pairs],
            "published_ms": [r.published_ms for r, _ in pairs],
            "watermark_ms": [op.watermark_ms for _, op in pairs],
            "watermark_lag_ms": [
                None if op.watermark_ms is None else r.published_ms - op.watermark_ms
                for r, op in pairs
            ],
            "batches": [r.batches for r, _ in pairs],
            "evaluations": [r.evaluations for r, _ in pairs],
            "publish_ms": [r.publish_ms for r, _ in pairs],
            "commit_ms": [r.commit_ms for r, _ in pairs],
            "total_ms": [r.total_ms for r, _ in pairs],
            **{name: [getattr(op, name) for _, op in pairs] for name in (*_TIMES, *_OF_OPERATOR)},
        }
        return {
            "job": self.name,
            "uid": uid,
            "epoch": newest or None,
            "written_per_byte": written_per_byte(chosen, uid),
            "problems": [self.without_place(each) for each in problems],
            "figures": figures,
        }

    def files(self, uid: str, *, index: int | None = None) -> dict[str, Any]:
        """The chains of an operator's ranges, and the files of one range, oldest first."""
        manifest = epoch_of(self.storage)
        operator = operator_of(self.storage, manifest, uid)
        ranges = operator.ranges[:_MOST_RANGES]
        # The one that has most to do first: its chain is the longest to restore.
        chosen = max(ranges, key=lambda state: len(state.files), default=None)
        if index is not None:
            chosen = next((state for state in operator.ranges if state.index == index), None)
            if chosen is None:
                raise NotHeldError(
                    f"operator {uid!r} has no range {index} in epoch {manifest.epoch}: it has 0 to "
                    f"{len(operator.ranges) - 1}"
                )
        files = () if chosen is None else chosen.files
        return {
            "uid": uid,
            "epoch": manifest.epoch,
            "ranges": [_chain(state) for state in ranges],
            "more_ranges": len(operator.ranges) - len(ranges),
            "range": None if chosen is None else chosen.index,
            "files": [_file(ref, manifest.epoch) for ref in files[-_MOST_FILES:]],
            "more_files": max(0, len(files) - _MOST_FILES),
        }

    # ---- state -------------------------------------------------------------------------------

    def heat(self, uid: str) -> dict[str, Any]:
        """The newest epoch's key groups by rows and bytes."""
        return self._once(self._heat, uid, heat_map)

    def heaviest(self, uid: str) -> dict[str, Any]:
        """The newest epoch's heaviest keys."""
        return self._once(self._heaviest, uid, heaviest_keys)

    def _once(self, known: dict[str, dict[str, Any]], uid: str, find: Any) -> dict[str, Any]:
        """What a function finds in an operator's state, once for each epoch."""
        with self._weighing:  # several who ask at once get one answer
            head = epoch_of(self.storage)
            answer = known.get(uid)
            if answer is None or answer["epoch"] != head.epoch:
                answer = known[uid] = while_retained(
                    self.storage, lambda: find(StateScan.of(self.storage, uid)), "weigh keys"
                )
            return answer

    def key(self, uid: str, texts: Sequence[Any], *, epoch: int | None = None) -> dict[str, Any]:
        """All that one key has: each state, in each namespace, and its timers.

        `texts` are what was typed for each of the key's columns, as `typed_key` takes them.
        """
        manifest = epoch_of(self.storage, epoch)
        operator = operator_of(self.storage, manifest, uid)
        key = parse_key(list(operator.key_schema))
        columns = typed_key(key, texts)
        wanted = pa.table(columns, names=[name for name, _ in asked_columns(key)])
        looked = StateLookup(self.storage, uid, epoch=manifest.epoch)
        rows = looked.rows(wanted)
        timers: list[Any] = []
        if operator.timers:
            timing = Selection(timers=True)
            found = StateLookup(self.storage, uid, epoch=manifest.epoch, selection=timing)
            due = found.rows(wanted)
            timers = shown_rows(due.sort_by("timer_ms").slice(0, _MOST_TIMERS), _not_key(due, key))
        states = [name for name, _ in operator.state_schema]
        has_namespace = "namespace" in rows.schema.names and "namespace" not in states
        return {
            "uid": uid,
            "epoch": manifest.epoch,
            "key": shown_rows(wanted)[0],
            "key_columns": [name for name, _ in asked_columns(key)],
            "found": rows.num_rows > 0,
            "states": [
                {"name": name, "type": shown_as(stored)} for name, stored in operator.state_schema
            ],
            "has_namespaces": has_namespace,
            "rows": [
                {"namespace": row[0] if has_namespace else None, "values": row[has_namespace:]}
                for row in shown_rows(
                    rows.slice(0, _MOST_CHANGES),
                    ["namespace", *states] if has_namespace else states,
                )
            ],
            "more_rows": max(0, rows.num_rows - _MOST_CHANGES),
            "timers": timers,
        }

    def changed(self, uid: str, *, epoch: int | None = None) -> dict[str, Any]:
        """The first changes of an epoch, the newest one by default, against the one before.

        `rows_changed` is how many rows the epoch's record counts, `more` whether there may be
        changes beside those that are here.
        """
        manifest = epoch_of(self.storage, epoch)
        operator = operator_of(self.storage, manifest, uid)
        before = manifest.predecessor
        if before and before not in self._retained():
            raise NotHeldError(
                f"epoch {before}, before {manifest.epoch}, is not retained any more, so that they "
                "cannot be compared: choose a later epoch, or let the job retain more of them"
            )
        key = parse_key(list(operator.key_schema))
        batches = scan_changes(self.location, uid, from_epoch=before, to_epoch=manifest.epoch)
        found: list[pa.RecordBatch] = []
        count, end, whole = 0, time.monotonic() + _MOST_COMPARED_S, True
        for batch in batches:
            found.append(batch)
            count += batch.num_rows
            if count > _MOST_CHANGES or time.monotonic() > end:
                whole = False
                break
        table = pa.Table.from_batches(found, batches.schema).slice(0, _MOST_CHANGES)
        names = [name for name, _ in asked_columns(key)]
        has_namespace = "namespace" in batches.schema.names and "namespace" not in dict(key)
        names += ["namespace"] if has_namespace else []
        typed = key_texts(key, table)
        rows = shown_rows(table, [*names, "change", "before", "after"])
        return {
            "uid": uid,
            "epoch": manifest.epoch,
            "before": before,
            "columns": names,
            "states": [name for name, _ in operator.state_schema],
            "changes": [
                {
                    "values": row[:-3],
                    "key": text,
                    "change": "new" if row[-3] == "put" and row[-2] is None else row[-3],
                    "before": row[-2],
                    "after": row[-1],
                }
                for row, text in zip(rows, typed, strict=True)
            ],
            "more": not whole,
            "rows_changed": self._rows_changed(uid, manifest.epoch),
        }

    def _rows_changed(self, uid: str, epoch: int) -> int | None:
        with self._lock:
            record = self._newest().get(epoch)
        operators = () if record is None else record.operators
        return next((each.rows_changed for each in operators if each.uid == uid), None)

    def _retained(self) -> tuple[int, ...]:
        with self._lock:
            self._head()
            return self._history.epochs

    # ---- what is not said --------------------------------------------------------------------

    def without_place(self, said: str) -> str:
        """A message that does not say where the checkpoint is."""
        places = {self.storage.uri, self.location, self._folder or ""}
        for place in sorted((p.rstrip("/") for p in places), key=len, reverse=True):
            if place:
                said = said.replace(f"{place}/", "").replace(place, repr(self.name))
        return said


def _not_key(rows: pa.Table, key: Any) -> list[str]:
    return rows.schema.names[len(key) :]


def _merged(ref: FileRef) -> bool:
    return is_merged(ref.path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _whole(record: EpochRecord) -> OperatorRecord:
    """All operators of an epoch as one: counts are added up, of times the longest counts."""
    added = {name: record.total(name) for name in _OF_OPERATOR}
    known = {name: getattr(record, name) for name in ("rows_in", "rows_out", "late_rows")}
    added |= {name: value for name, value in known.items() if value is not None}
    added["most_files"] = max((op.most_files for op in record.operators), default=0)
    longest = {name: record.longest(name) for name in _TIMES}
    return OperatorRecord(
        uid="",
        ranges=0,
        watermark_ms=record.watermark_ms,
        **{**added, **longest},  # type: ignore[arg-type]
    )


def _operator(operator: OperatorState, record: EpochRecord | None) -> dict[str, Any]:
    files = {ref.path: ref.file_bytes for ref in operator.files}
    key = parse_key(list(operator.key_schema))
    by_uid = {} if record is None else {each.uid: each for each in record.operators}
    last = by_uid.get(operator.uid)
    return {
        "uid": operator.uid,
        "parallelism": operator.parallelism,
        "key": [{"name": name, "type": type_.ddl} for name, type_ in asked_columns(key)],
        "states": [
            {"name": name, "type": shown_as(stored)} for name, stored in operator.state_schema
        ],
        "timers": operator.timers,
        "watermark_ms": operator.watermark_ms,
        "files": len(files),
        "size_bytes": sum(files.values()),
        "longest_chain": max((len(state.deltas) for state in operator.ranges), default=0),
        "depth": max((state.depth for state in operator.ranges), default=0),
        "keys": None if last is None else last.keys,
        "rows_in": None if last is None else last.rows_in,
        "late_rows": None if last is None else last.late_rows,
        "checkpoint_bytes": None if last is None else last.checkpoint_bytes,
    }


def _chain(state: RangeState) -> dict[str, Any]:
    return {
        "index": state.index,
        "first_key_group": state.first_key_group,
        "last_key_group": state.last_key_group,
        "files": len(state.files),
        "deltas": len(state.deltas),
        "has_base": state.base is not None,
        "depth": state.depth,
        "size_bytes": sum(ref.file_bytes for ref in state.files),
        "rows": sum(ref.rows for ref in state.files),
        "next_event_timer_ms": state.next_event_timer_ms,
        "next_processing_timer_ms": state.next_processing_timer_ms,
    }


def _file(ref: FileRef, epoch: int) -> dict[str, Any]:
    merged = _merged(ref)
    kind = "base" if ref.kind == "base" else "merged" if merged else "delta"
    return {
        "path": ref.path,
        "kind": kind,
        "epoch": ref.epoch,
        "is_new": ref.epoch == epoch,
        "first_key_group": ref.first_key_group,
        "last_key_group": ref.last_key_group,
        "size_bytes": ref.file_bytes,
        "rows": ref.rows,
        "tombstones": ref.tombstones,
    }
