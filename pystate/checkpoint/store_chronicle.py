"""Writes the records of a store's epochs into its history.

Thread safety: a `StoreChronicle` belongs to its store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pystate.checkpoint.epoch_log import EpochLog, EpochRecord, OperatorRecord
from pystate.checkpoint.manifest import FileRef, Manifest
from pystate.checkpoint.refs import fingerprint
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import PystateError
from pystate.redaction import logger

__all__ = ["StoreChronicle"]

_LOG = logger("pystate.checkpoint.store_chronicle")


class StoreChronicle:
    """Writes records; no error of it reaches the store.

    Parameters
    ----------
    storage : CheckpointStorage
        The store's folder, which its owner has locked.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._log = EpochLog(storage)

    def published(
        self,
        manifest: Manifest,
        deltas: Sequence[FileRef],
        sizes: tuple[int, int, int],
        began_s: float,
        written_s: float,
    ) -> None:
        """Write the record of an epoch that was just published.

        Parameters
        ----------
        manifest : Manifest
            The epoch, of one operator with one range.
        deltas : sequence of FileRef
            The files that were written for it.
        sizes : (int, int, int)
            The rows that have changed, the keys of the table, and its bytes of memory.
        began_s, written_s : float
            When the checkpoint began, and when its deltas were written, by `time.monotonic`.
        """
        [operator] = manifest.operators
        base, ended_s = operator.ranges[0].base, time.monotonic()
        of_operator = OperatorRecord(
            uid=operator.uid,
            ranges=1,
            rows_in=0,
            rows_out=0,
            late_rows=None,
            keys=sizes[1],
            state_bytes=sizes[2],
            rows_changed=sizes[0],
            rows_restored=0,
            rows_copied=0,
            checkpoint_bytes=sum(ref.file_bytes for ref in deltas),
            attach_ms=0.0,
            process_ms=0.0,
            seal_ms=0.0,
            write_ms=(written_s - began_s) * 1000,
            fingerprint=fingerprint(operator),
            since=operator.ranges[0].since,
        )
        record = EpochRecord(
            epoch=manifest.epoch,
            published_ms=manifest.created_ms,
            processing_time_ms=manifest.processing_time_ms,
            watermark_ms=None,
            query_id=None,
            batch_id=None,
            run_key=None,
            batches=1,
            evaluations=1,
            term=0,
            host=manifest.host,
            publish_ms=(ended_s - written_s) * 1000,
            commit_ms=0.0,
            total_ms=(ended_s - began_s) * 1000,
            merged_bytes=0 if base is None or base.epoch != manifest.epoch else base.file_bytes,
            operators=(of_operator,),
        )
        try:
            if self._log.add(record):
                self._log.tidy(record.epoch, lambda: None)
        except (PystateError, OSError) as error:
            _LOG.warning(
                "%s: its history lacks epoch %d: %s", self._storage.uri, record.epoch, error
            )
