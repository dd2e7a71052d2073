"""What a repair would do, and what is lost by it.

Epochs share files, and a merge leaves the same state in two forms: a base, and the files that it
was made from. While epochs of both forms are retained, one form replaces the other, where files are
damaged.

Thread safety: functions without state; plans are immutable.

Invariants
----------
1. A lineage id names one state of a range, whichever files it is read from. A replacement has the
   same ids from the replaced files' newest on.
2. Files of a former parallelism have the ids of other ranges, so that only their range's own files
   are compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pystate.checkpoint.epoch_log import HISTORY
from pystate.checkpoint.job_file import JOB_FILE, REPAIR_FILE
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState
from pystate.checkpoint.source_position import (
    METADATA,
    SPARK_FOLDER,
    batches_of,
    query_of,
    read_query_id,
)
from pystate.checkpoint.storage import CheckpointStorage
from pystate.checkpoint.traces import COMMITTED, LATEST
from pystate.epochs.ownership import OWNERS
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    NewerFormatError,
)
from pystate.maintenance.manifest_recovery import RecoveredEpoch, is_store, recover_newest
from pystate.maintenance.verification import Examination, Finding


@dataclass(frozen=True)
class LostEpoch:
    """An epoch that is lost by a repair.

    Attributes
    ----------
    epoch : int
        Its number.
    published_ms : int or None
        When it was published. This and the following are None if its manifest cannot be read.
    rows_changed : int or None
        State rows that it changed.
    batch_id : int or None
        The stream's batch that it was, if it was one.
    run_key : str or None
        The key of the run that it was, if it had one.
    """

    epoch: int
    published_ms: int | None
    rows_changed: int | None
    batch_id: int | None
    run_key: str | None


@dataclass(frozen=True)
class LostOutput:
    """Output of a lost epoch, which is written again when the epoch is computed again.

    Attributes
    ----------
    epoch : int
        The epoch.
    where : str
        A folder, or the name of a sink.
    set_aside : bool
        Whether the repair moves it away. If not, its readers may see the rows twice.
    """

    epoch: int
    where: str
    set_aside: bool


@dataclass(frozen=True)
class RepairPlan:
    """What a repair does, or has done.

    Attributes
    ----------
    location : str
        The checkpoint.
    findings : tuple of Finding
        What is wrong.
    newest_epoch, good_epoch : int
        The newest epoch, and the one that is the newest after the repair.
    lost : tuple of LostEpoch
        The epochs after the good one.
    rebuilt : tuple of int
        Epochs whose damaged files are superfluous: others hold the same state.
    unreadable : tuple of int
        Older epochs that can no longer be read as of. The job's state loses nothing by them.
    stream_batches : tuple of int
        Batches of the stream that are computed again.
    outputs : tuple of LostOutput
        What the lost epochs have written outside of the state.
    marks : tuple of str
        Small damaged files that are made anew, or are not needed.
    remaining : tuple of Finding
        What cannot be repaired.
    folder : str or None
        Where in the checkpoint everything is kept that the repair has set aside; None before it.
    remade : int or None
        The epoch whose manifest is made anew from the state files and the history, since no
        manifest is left, or of a store none of so new an epoch.
    unknown : tuple of str
        What is not known any more of that epoch.
    """

    location: str
    findings: tuple[Finding, ...]
    newest_epoch: int
    good_epoch: int
    lost: tuple[LostEpoch, ...]
    rebuilt: tuple[int, ...]
    unreadable: tuple[int, ...]
    stream_batches: tuple[int, ...]
    outputs: tuple[LostOutput, ...]
    marks: tuple[str, ...]
    remaining: tuple[Finding, ...]
    folder: str | None = None
    remade: int | None = None
    unknown: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return len(self.remaining) < len(self.findings)


@dataclass(frozen=True)
class Work:
    """The plan, and the manifests that are needed to carry it out."""

    plan: RepairPlan
    good: Manifest
    rewritten: tuple[Manifest, ...]
    kept: tuple[Manifest, ...]
    """The manifests of the epochs that stay, as they are after the repair."""
    manifests: dict[int, Manifest]
    remade: RecoveredEpoch | None = None
    """The good epoch, if its manifest is to be made anew."""


def plan(examination: Examination, job: str | None) -> Work:
    """Find the newest epoch that can be restored, and what must be given up for it.

    `job` is the name for a ``job.json`` that is lost. `CheckpointError` says that no epoch can be
    restored; for a file of a later version, which is not damaged, nothing is given up.
    """
    storage, epochs = examination.storage, examination.epochs
    if examination.kind == "savepoint":
        raise InvalidArgumentError(
            f"{storage.uri} is a savepoint: nothing changes one; copy it once more"
        )
    errors = tuple(examination.result().errors)
    newer = next((finding.message for finding in errors if finding.kind == "newer"), None)
    if newer is not None:
        raise NewerFormatError(f"checkpoint {storage.uri} is not repaired: {newer}")
    usable, manifests = dict(_usable(examination)), examination.manifests
    if not epochs:
        raise CheckpointError(
            f"checkpoint {storage.uri} has no epoch: there is nothing to repair; remove the folder "
            "to begin anew"
        )
    recovered = _recover_manifest(examination, max(usable, default=0))
    if recovered is not None:
        remade = recovered.manifest
        usable[remade.epoch] = remade
        epochs = tuple(sorted({*epochs, *range(remade.epoch, max(epochs) + 1)}))
        others = {
            epoch: replace(remade, epoch=epoch, run_key=recovered.records[epoch].run_key)
            for epoch in epochs
            if epoch < remade.epoch and epoch in recovered.records
        }
        manifests = {**others, **manifests}
    if not usable:
        raise CheckpointError(
            f"checkpoint {storage.uri}: none of its {len(epochs)} retained epochs can be restored: "
            "bring the damaged files back from a copy, or begin from a savepoint"
        )
    good = max(usable)
    first = max((e for e in epochs if e < good and e not in usable), default=0) + 1
    kept = tuple(usable[epoch] for epoch in sorted(usable) if first <= epoch)
    remade_epoch = None if recovered is None else recovered.manifest.epoch
    rewritten = tuple(
        m for m in kept if m.epoch != remade_epoch and m is not examination.manifests[m.epoch]
    )
    lost = tuple(epoch for epoch in epochs if epoch > good)
    marks = tuple(f.path for f in errors if _is_mark(f.path) or (f.path == JOB_FILE and job))
    goes_back = (
        bool(lost) or recovered is not None or any(finding.kind == "position" for finding in errors)
    )
    batches, hindrance = _batches_after(storage, usable[good]) if goes_back else ((), ())
    hindrance = tuple(f for f in hindrance if f.path not in {e.path for e in errors})
    remaining = tuple(f for f in errors if not _is_repairable(f, marks, stuck=not batches))
    result = RepairPlan(
        location=storage.uri,
        findings=(*errors, *hindrance),
        newest_epoch=max(epochs),
        good_epoch=good,
        lost=tuple(_lost_epoch(examination, epoch) for epoch in lost),
        rebuilt=tuple(manifest.epoch for manifest in rewritten),
        unreadable=tuple(epoch for epoch in epochs if epoch < first),
        stream_batches=batches,
        outputs=tuple(_outputs(examination, lost)),
        marks=marks,
        remaining=(*remaining, *hindrance),
        remade=remade_epoch,
        unknown=() if recovered is None else recovered.unknown,
    )
    return Work(result, usable[good], rewritten, kept, manifests, recovered)


def _recover_manifest(examination: Examination, good: int) -> RecoveredEpoch | None:
    """The newest epoch whose manifest is made anew; None if those that are left are to be used.

    Of a store also an epoch that is newer than they are: nothing would make its changes again. A
    job computes once more what it goes back by, from the manifest that is left, which knows what
    other files do not: event times, and the clock.
    """
    storage, epochs, manifests = examination.storage, examination.epochs, examination.manifests
    newest = max(epochs)
    if manifests and (good == newest or newest in manifests or not is_store(storage)):
        return None
    recovered = recover_newest(storage, newest)
    if isinstance(recovered, RecoveredEpoch):
        return None if manifests and recovered.manifest.epoch <= good else recovered
    if manifests:
        return None
    raise CheckpointError(
        f"checkpoint {storage.uri}: none of its {len(epochs)} retained epochs can be restored: "
        f"no manifest is left, and {recovered}. Bring the files back from a copy, or begin "
        "from a savepoint"
    )


def _usable(examination: Examination) -> Iterator[tuple[int, Manifest]]:
    for epoch, manifest in examination.manifests.items():
        if examination.is_good(epoch):
            yield epoch, manifest
            continue
        other = salvage(manifest, examination.manifests, examination.bad_files)
        if other is not None:
            yield epoch, other


def _is_mark(path: str) -> bool:
    return path in (LATEST, COMMITTED) or path.startswith((f"{OWNERS}/", f"{HISTORY}/"))


def _is_repairable(finding: Finding, marks: tuple[str, ...], *, stuck: bool) -> bool:
    if finding.epochs or finding.path in marks or finding.kind == "interrupted":
        return True
    return finding.kind == "position" and not stuck


def _lost_epoch(examination: Examination, epoch: int) -> LostEpoch:
    manifest = examination.manifests.get(epoch)
    if manifest is None:
        return LostEpoch(epoch, None, None, None, None)
    files = {ref.path: ref for o in manifest.operators for ref in o.files}
    changed = sum(
        ref.rows + ref.tombstones
        for ref in files.values()
        if ref.epoch == epoch and ref.kind == "delta"
    )
    return LostEpoch(epoch, manifest.created_ms, changed, manifest.batch_id, manifest.run_key)


# ---- other files of the same state -------------------------------------------------------------


def salvage(
    manifest: Manifest, others: Mapping[int, Manifest], bad: Collection[str]
) -> Manifest | None:
    """Return an epoch's manifest over intact files only; None if there are none for some range."""
    operators = []
    for operator in manifest.operators:
        ranges = []
        for state in operator.ranges:
            intact: RangeState | None = state
            if any(ref.path in bad for ref in state.files):
                intact = _intact_range(manifest, operator, state, others, bad)
            if intact is None:
                return None
            ranges.append(intact)
        operators.append(replace(operator, ranges=tuple(ranges)))
    return replace(manifest, operators=tuple(operators), part=None)


def _intact_range(
    manifest: Manifest,
    operator: OperatorState,
    state: RangeState,
    others: Mapping[int, Manifest],
    bad: Collection[str],
) -> RangeState | None:
    for epoch in sorted(others, key=lambda other: abs(other - manifest.epoch)):
        theirs = others[epoch].operator(operator.uid)
        if theirs is None or epoch == manifest.epoch:
            continue
        # Merges drop the states that the operator did not have at the time.
        if (theirs.state_schema, theirs.timers) != (operator.state_schema, operator.timers):
            continue
        for other in theirs.ranges:
            if other.bounds != state.bounds:
                continue
            if epoch > manifest.epoch and other.since != state.since:
                continue
            combined = _splice_chains(state, other, bad)
            if combined is not None:
                return combined
    return None


def _splice_chains(state: RangeState, other: RangeState, bad: Collection[str]) -> RangeState | None:
    """The first files of the other chain, and the last ones of this, which are all intact."""
    mine, theirs = state.files, other.files
    last_bad = max(i for i, ref in enumerate(mine) if ref.path in bad)
    intact = next((i for i, ref in enumerate(theirs) if ref.path in bad), len(theirs))
    if other.id == state.id and intact == len(theirs):
        return replace(state, base=other.base, deltas=other.deltas)
    mine_by_id = {ref.id: i for i, ref in enumerate(mine) if i >= last_bad and _is_own(ref, state)}
    for j in range(intact - 1, -1, -1):
        q = mine_by_id.get(theirs[j].id) if _is_own(theirs[j], state) else None
        if q is not None:
            files = (*theirs[: j + 1], *mine[q + 1 :])
            deltas = files if other.base is None else files[1:]
            return replace(state, base=other.base, deltas=deltas)
    return None


def _is_own(ref: FileRef, state: RangeState) -> bool:
    """Whether a file was written for this very range, whole."""
    first, last = state.bounds
    return ref.bounds == state.bounds and ref.path.split("/")[-2] == f"{first:05d}-{last:05d}"


# ---- the stream ----------------------------------------------------------------------------------


def _batches_after(
    storage: CheckpointStorage, good: Manifest
) -> tuple[tuple[int, ...], tuple[Finding, ...]]:
    """The batches after an epoch; and what hinders the stream from going back to it."""
    try:
        if read_query_id(storage) is None:
            return (), ()
        progress = query_of(storage, good)
    except CorruptFileError:
        return (), ()  # a finding already, which remains
    last = -1 if progress is None else progress.batch_id
    offsets, commits = batches_of(storage, "offsets"), batches_of(storage, "commits")
    after = tuple(sorted(n for n in offsets | commits if n > last))
    path = f"{SPARK_FOLDER}/offsets/{last}"
    if after and last >= 0 and last not in offsets:
        message = (
            f"the position of batch {last}, the last in the state of epoch {good.epoch}, is lost: "
            f"bring {path} back from a copy, or remove {METADATA.rpartition('/')[0]}/ and begin "
            "the stream anew"
        )
        return (), (Finding(path, "missing", message),)
    return after, ()


# ---- output --------------------------------------------------------------------------------------


def _outputs(examination: Examination, lost: tuple[int, ...]) -> Iterator[LostOutput]:
    known = {
        transaction["path"]: None
        for manifest in examination.manifests.values()
        for transaction in manifest.sinks
        if _is_folder(transaction)
    }
    for epoch in lost:
        manifest = examination.manifests.get(epoch)
        # Of an epoch whose manifest cannot be read, only the folders of others are known.
        for path in known:
            folder = output_folder(examination.storage, path, epoch)
            if folder is not None and os.path.isdir(folder):
                yield LostOutput(epoch, folder, set_aside=True)
            elif folder is not None and _is_compacted(os.path.dirname(folder), epoch):
                yield LostOutput(epoch, folder, set_aside=False)
        for transaction in () if manifest is None else manifest.sinks:
            if not _is_folder(transaction):
                name = transaction.get("name") if isinstance(transaction, dict) else None
                yield LostOutput(epoch, str(name or transaction), set_aside=False)


def _is_folder(transaction: Any) -> bool:
    return isinstance(transaction, dict) and transaction.get("kind") == "parquet"


def output_folder(storage: CheckpointStorage, path: str, epoch: int) -> str | None:
    """The folder of an epoch's rows, of a sink that has one per epoch."""
    root = storage.local_path(REPAIR_FILE)
    if root is None and not os.path.isabs(path):
        return None
    return os.path.join(os.path.dirname(root or path), path, f"epoch={epoch}")


def _is_compacted(folder: str, epoch: int) -> bool:
    try:
        with open(os.path.join(folder, "_compacted.json"), encoding="utf-8") as file:
            spans = json.load(file)["epochs"].values()
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return any(first <= epoch <= last for mine in spans for first, last in mine)
