"""Removes files that no epoch needs any more.

Thread safety: finding and deleting orphans may run beside everything else.

Which files a manifest may still come to name
---------------------------------------------
A driver that is delayed before it publishes its manifest may resume at any time, so that no age
makes a file safe to remove. The order of epochs and terms determines which files it may name.

1. A driver builds on manifests of its own term and of earlier ones only (`Coordinator`), so that
   terms never decrease along the chain of manifests. Once a manifest of term t exists, as epoch e,
   a driver of an earlier term has a base before e, and can only publish an epoch up to e. Each of
   those names is taken, or was taken and retired, and then does not count (`History`).
2. So a future manifest that counts is of an epoch after the newest manifest, and its term is not
   before that manifest's.
3. A worker's delta, or a part, can first be named by the manifest of its own epoch. A file of an
   epoch up to the newest manifest's is named by now, or never will be.
4. A merged file can first be named by a manifest of the term in its own name. One of an earlier
   term than the newest manifest's is named by now, or never will be. One of this driver's term
   is named, or passed in as `live`, or never will be. Those of later terms belong to its
   successors. So a driver keeps its predecessor's merged files until it has itself published.
5. A base without a term in its name was made by an older version, and so by another driver: it is
   removed once this driver has published.
6. Once all drivers that might publish have ended, no manifest comes to name anything. Then what an
   attempt has left whose epoch was never published goes, too (`find_abandoned`). Whoever knows that
   they have ended then reads the manifests, lists the files before its own first attempt, and makes
   sure that nobody has followed it meanwhile, whose files would be in the list.
7. A file of an epoch after the one that follows the newest manifest shows that manifests are lost.
   Then nothing is removed: what looks superfluous may be the state.
8. A manifest goes before what it names, so that the part of a manifest that is there is lost. A
   retired manifest of which a driver has not removed what it named is removed by who finds that.
   Whoever reads a manifest that goes meanwhile finds that it is gone (`read_manifest`).
9. Files are listed first, then `live` is called, then the manifests are read. A file made later is
   not listed, and a file that moves from `live` to a manifest is seen in at least one of them.

The grace period only spares attempts that outlive their evaluation from failing writes. Correctness
does not depend on it, nor on any clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from math import inf
from typing import NamedTuple

from pystate.checkpoint.begin_marks import EVALUATIONS
from pystate.checkpoint.epoch_log import HISTORY
from pystate.checkpoint.manifest import (
    Manifest,
    manifest_epoch,
    manifest_path,
    read_manifest,
)
from pystate.checkpoint.manifest_log import History, retained_manifests
from pystate.checkpoint.parts import MANIFESTS, Parts, part_epoch
from pystate.checkpoint.refs import hot_epoch
from pystate.checkpoint.storage import CheckpointStorage, FileEntry, final_name
from pystate.checkpoint.traces import STATE, begun_trace
from pystate.errors import CheckpointError
from pystate.redaction import logger

_LOG = logger("pystate.epochs.retention")
_STATE_FILE = re.compile(r".*/(\d{8,})-(?:t(\d+)-)?[0-9a-f]+\.(delta|base)")
_EVALUATION = re.compile(r"(.*/(\d{8,})-[0-9a-f]+)/[^/]+")
_FOLDERS = ("manifests", "owners", "runs", HISTORY)
# A list of hot keys is of use for so many epochs.
_HOT_EPOCHS = 1024
# For leftovers of small files, whose writers may be alive or dead.
_LEAST_GRACE_MS = 60_000


def merged_name(term: int, unique: str) -> str:
    """Return a merged file's name, for `state_path`; no other file has the hexadecimal `unique`."""
    return f"t{term}-{unique}"


class Orphans(NamedTuple):
    """What no manifest can name any more."""

    files: tuple[FileEntry, ...] = ()
    """Files to delete, in this order: retired manifests before anything that they may name."""
    evaluations: tuple[str, ...] = ()
    """Folders of begin marks to remove."""


def find_orphans(
    storage: CheckpointStorage,
    *,
    term: int,
    grace_ms: int,
    live: Callable[[], Collection[str]],
    check_owner: Callable[[], None],
    now_ms: int | None = None,
    at_rest: bool = False,
) -> Orphans:
    """Find files that no manifest can name any more, and leftovers of unfinished work.

    Such work is a write, or an evaluation whose driver ended before it could remove them. `live`
    returns the paths of merged files of this process that a manifest may still name; `check_owner`
    raises if this driver is no longer the owner. Nothing may be deleted after an error: a manifest
    cannot be read, or is lost, or another driver is the owner.

    With `at_rest` all drivers have ended, so that no manifest comes to name a file.
    """
    others = [entry for folder in _FOLDERS for entry in storage.list(folder, temporary=True)]
    candidates = _find_unnamed(storage, live)
    if candidates is None:
        return Orphans()
    check_owner()
    newest = candidates.newest
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    small_ms = max(grace_ms, _LEAST_GRACE_MS)

    def is_orphan(entry: FileEntry) -> bool:
        final = final_name(entry.path)
        if at_rest:
            unnamed = _is_made_by_epoch(final)
        else:
            unnamed = newest is not None and not may_be_named(final, newest, term)
        return unnamed and entry.modified_ms <= now_ms - grace_ms

    leftovers = [entry for entry in others if entry.modified_ms <= now_ms - small_ms]
    epoch = (
        candidates.epoch + 1 if at_rest else candidates.epoch
    )  # also the one that was not published
    return Orphans(
        (*leftovers, *candidates.only(is_orphan)),
        tuple(_evaluations(storage, epoch, now_ms - small_ms)),
    )


def find_abandoned(storage: CheckpointStorage) -> Orphans:
    """Find what attempts left whose epoch was never published; all their drivers have ended.

    It raises `CheckpointError` if a manifest is lost.
    """
    candidates = _find_unnamed(storage, frozenset)
    if candidates is None:
        return Orphans()
    newest = candidates.epoch

    def is_abandoned(entry: FileEntry) -> bool:
        final = final_name(entry.path)
        match, part = _STATE_FILE.fullmatch(final), part_epoch(final)
        if part is not None:
            return part > newest
        # A merged file is one of its driver's, of any epoch.
        return match is not None and (int(match[1]) > newest or match[2] is not None)

    return Orphans(candidates.only(is_abandoned), tuple(_evaluations(storage)))


class _UnnamedFiles(NamedTuple):
    """What the retained manifests do not name."""

    newest: Manifest | None
    retired: tuple[FileEntry, ...]
    """Manifests that do not count any more, and have not been removed yet."""
    files: tuple[FileEntry, ...]
    """State files and parts, temporary ones included."""

    @property
    def epoch(self) -> int:
        return 0 if self.newest is None else self.newest.epoch

    def only(self, is_doomed: Callable[[FileEntry], bool]) -> tuple[FileEntry, ...]:
        """Those files that may go, after the retired manifests that may name them."""
        doomed = tuple(filter(is_doomed, self.files))
        return (*self.retired, *doomed) if doomed else ()


def _find_unnamed(
    storage: CheckpointStorage, live: Callable[[], Collection[str]]
) -> _UnnamedFiles | None:
    """List what no retained manifest names; None if a driver has retired one meanwhile."""
    files = storage.list(STATE) + storage.list(STATE, temporary=True)
    listed = storage.list(MANIFESTS)
    files += [entry for entry in listed if part_epoch(entry.path) is not None]
    protected = set(live())
    newest, parts = None, Parts(storage)
    listing = retained_manifests(storage)
    for epoch in listing.epochs:
        try:
            newest = read_manifest(storage, manifest_path(epoch), parts)
        except FileNotFoundError:
            return None  # the next search sees the new list
        protected |= newest.paths
    check_not_behind(storage, files, 0 if newest is None else newest.epoch)
    known = {entry.path: entry for entry in listed}
    if not known.keys() >= set(listing.leftovers):
        return None  # published and retired since the files were listed
    return _UnnamedFiles(
        newest,
        tuple(known[path] for path in listing.leftovers),
        tuple(entry for entry in files if final_name(entry.path) not in protected),
    )


def check_not_behind(storage: CheckpointStorage, files: Iterable[FileEntry], newest: int) -> None:
    """Raise `CheckpointError` if state files show that an epoch after the newest was published."""
    begun = begun_trace(final_name(entry.path) for entry in files)
    before = begun.epoch - 1
    if before > newest:
        raise CheckpointError(
            f"checkpoint {storage.uri}: {begun.path} was begun after epoch {before}, whose "
            f"manifest {manifest_path(before)} is lost; no file is removed: bring it back "
            "from a copy, or let `pystate repair` set the checkpoint back to what is left of it"
        )


def _is_made_by_epoch(path: str) -> bool:
    return part_epoch(path) is not None or _STATE_FILE.fullmatch(path) is not None


def may_be_named(path: str, newest: Manifest, term: int) -> bool:
    """Whether a future manifest may name a file that no manifest names yet.

    None ever names a list of hot keys, which goes when nobody has written one for long.
    """
    hot = hot_epoch(path)
    if hot is not None:
        return hot + _HOT_EPOCHS > newest.epoch
    part = part_epoch(path)
    if part is not None:
        return part > newest.epoch
    match = _STATE_FILE.fullmatch(path)
    if match is None or int(match[1]) > newest.epoch:
        return True
    if match[2] is None:
        return match[3] == "base" and newest.term != term
    return int(match[2]) >= newest.term and int(match[2]) != term


def _evaluations(
    storage: CheckpointStorage, newest: float = inf, before_ms: float = inf
) -> Iterator[str]:
    """Find the begin marks of evaluations whose driver ended before it could remove them."""
    seen: dict[str, int] = {}
    for entry in storage.list(EVALUATIONS) + storage.list(EVALUATIONS, temporary=True):
        match = _EVALUATION.fullmatch(entry.path)
        if match is not None and int(match[2]) <= newest:
            seen[match[1]] = max(seen.get(match[1], 0), entry.modified_ms)
    for folder, modified_ms in seen.items():
        if modified_ms <= before_ms:
            yield folder


def delete_orphans(storage: CheckpointStorage, orphans: Orphans) -> int:
    """Delete what `find_orphans` has found; return the number of files."""
    for folder in orphans.evaluations:
        storage.remove_folder(folder)
    return delete_retired(storage, [entry.path for entry in orphans.files])


def delete_retired(storage: CheckpointStorage, paths: Collection[str]) -> int:
    """Delete what only retired epochs name, after it is durable that these are retired."""
    if not paths:
        return 0
    storage.sync_folder(MANIFESTS)
    return delete_files(storage, paths)


def delete_files(storage: CheckpointStorage, paths: Iterable[str]) -> int:
    """Delete files in order, skipping those that cannot be deleted; return how many existed.

    A manifest that cannot be deleted keeps what comes after it, which it may name.
    """
    count = 0
    for path in paths:
        try:
            count += storage.delete(path)
        except CheckpointError as error:
            _LOG.warning("%s; the next collection tries again", error)
            if manifest_epoch(path) is not None:
                break
    return count


def delete_unnamed(storage: CheckpointStorage, history: History) -> None:
    """Remove what a killed owner left behind; for a checkpoint whose only owner is at rest.

    Nothing is removed if a manifest is lost, which is an error.
    """
    files = storage.list(STATE)
    check_not_behind(storage, files, history.epochs[-1] if history.epochs else 0)
    try:
        named = {path for epoch in history.epochs for path in history.manifest(epoch).paths}
        doomed = [f.path for f in files if f.path not in named and hot_epoch(f.path) is None]
        for folder in (STATE, MANIFESTS, HISTORY):
            doomed += [f.path for f in storage.list(folder, temporary=True)]
        delete_files(storage, doomed)
    except (CheckpointError, OSError) as error:
        _LOG.warning("%s: leftovers could not be removed: %s", storage.uri, error)
