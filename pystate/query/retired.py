"""What is said to a reader whose epoch a job has retired: where to begin anew.

Thread safety: functions without state.
"""

from __future__ import annotations

from contextlib import suppress

from pystate.checkpoint.job_file import REPAIR_FILE
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import Listing, list_manifests
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, InUseError, InvalidArgumentError, RetiredEpochError


def retired_error(storage: CheckpointStorage, epoch: int, why: str = "") -> RetiredEpochError:
    """The error to raise where it is not known any more what has changed since an epoch."""
    listing = list_manifests(storage)
    newest = listing.epochs[-1] if listing.epochs else 0
    has = f"it has epochs {listing.epochs[0]} to {newest}" if newest else "it has no epoch"
    error = RetiredEpochError(
        f"checkpoint {storage.uri}: what changed since epoch {epoch} is not known any more: "
        f"{why or 'the job has retired the epoch, or one after it'} ({has}): read the state of "
        f"epoch {newest}, as reader.at({newest}) has it, and go on with follow(since={newest}); a "
        "lease, or Job(retained=...), keeps epochs for slower readers"
    )
    error.epoch, error.start_at = epoch, newest
    return error


def lost_error(place: str, epoch: int, moved: int) -> CheckpointError:
    """The error where the epoch is gone, too, to which a reader has moved in a call."""
    return CheckpointError(
        f"{place}: epoch {epoch} was retired while it was read, and so was epoch {moved}, to which "
        "the reader had moved: let the job retain more epochs, or read less at a time"
    )


def check_retained(storage: CheckpointStorage, epoch: int) -> Listing:
    """Make sure that an epoch is retained; `RetiredEpochError` if it was."""
    listing = list_manifests(storage)
    if epoch not in listing.epochs:
        newest = listing.epochs[-1] if listing.epochs else 0
        if epoch > newest:
            raise InvalidArgumentError(
                f"checkpoint {storage.uri} has no epoch {epoch} yet, the newest is {newest}: if it "
                "was set back by a repair, begin anew there"
            )
        raise retired_error(storage, epoch)
    return listing


def manifest_at(storage: CheckpointStorage, epoch: int) -> Manifest | None:
    """Read the manifest of a retained epoch; None for epoch 0, before the first.

    `RetiredEpochError` if it is not retained any more.
    """
    if storage.exists(REPAIR_FILE):
        raise InUseError(
            f"checkpoint {storage.uri} is being repaired ({REPAIR_FILE} is there): follow it again "
            "when the repair has ended"
        )
    if epoch == 0:
        if list_manifests(storage).floor:
            raise retired_error(storage, 0)
        return None
    check_retained(storage, epoch)
    with suppress(FileNotFoundError):
        return read_manifest(storage, manifest_path(epoch))
    raise retired_error(storage, epoch)
