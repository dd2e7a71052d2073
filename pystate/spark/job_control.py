"""What an operator of a job does with it while it runs: savepoints, a stop, another parallelism.

Thread safety: any thread may call the methods while the job runs.
"""

from __future__ import annotations

import os
from functools import partial

from pystate.base.arguments import flag, folder_path, integer
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.savepoint import Savepoint, check_destination
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError
from pystate.processor.in_flight import rows_in_flight
from pystate.spark.base.options import JobOptions
from pystate.spark.epochs.epochs import EpochRunner
from pystate.spark.epochs.stream import StreamRun
from pystate.spark.operators.pipeline import PipelineContext
from pystate.spark.query_registry import require_unused
from pystate.types.keys import MAX_PARALLELISM


class JobControl(PipelineContext):
    """The part of `Job` that does not compute epochs.

    Parameters
    ----------
    name : str
        The job's name.
    storage : CheckpointStorage
        Its checkpoint.
    options : JobOptions
        Its options.
    """

    def __init__(self, name: str, storage: CheckpointStorage, options: JobOptions) -> None:
        super().__init__(name, storage.uri)
        self._storage = storage
        self._epochs = EpochRunner(self, storage, options)
        self._stream_run: StreamRun | None = None

    def latest_epoch(self) -> int | None:
        """Return the newest epoch that the checkpoint holds, or None for an empty checkpoint."""
        manifest = read_head(self._storage)
        return None if manifest is None else manifest.epoch

    def in_flight(self) -> dict[str, int]:
        """Count the rows in flight on each loop of the newest epoch, by the loop's uid.

        They are read from the checkpoint's files, while the job runs or later.
        """
        return rows_in_flight(self._storage)

    def savepoint(
        self,
        destination: str | os.PathLike[str],
        *,
        previous: str | os.PathLike[str] | None = None,
        copy: bool = False,
    ) -> Savepoint:
        """Take a savepoint of the newest epoch, while the job runs or after it.

        Waits for an epoch that is being computed. While the files are copied, epochs go on.

        Parameters
        ----------
        destination : str or PathLike
            A folder that is empty, or is not there yet.
        previous : str or PathLike, optional
            An earlier savepoint, for what it has already; see `pystate.savepoint`.
        copy : bool
            Copy all files, rather than share them by hard links where the file system can do it.

        Returns
        -------
        Savepoint

        Raises
        ------
        InvalidArgumentError, CheckpointError
            As for `pystate.savepoint`.
        """
        target, earlier = _places("savepoint", destination, previous)
        return self._epochs.savepoint(target, earlier, copy=flag(copy, "savepoint: copy"))

    def stop_with_savepoint(
        self,
        destination: str | os.PathLike[str],
        *,
        drain: bool = False,
        previous: str | os.PathLike[str] | None = None,
        copy: bool = False,
    ) -> Savepoint:
        """Stop the query after the batch that it computes, with a savepoint of that batch's epoch.

        No later batch is computed, so that the savepoint and the checkpoint are at the same epoch
        once the query has stopped. If the savepoint cannot be taken, the query goes on.

        Parameters
        ----------
        destination : str or PathLike
            A folder that is empty, or is not there yet.
        drain : bool
            Take the watermark to its end first, in an epoch of its own, so that all event-time
            timers fire: for a job whose input has ended for good. See `start`.
        previous : str or PathLike, optional
            An earlier savepoint, for what it has already; see `pystate.savepoint`.
        copy : bool
            Copy all files, rather than share them by hard links where the file system can do it.

        Returns
        -------
        Savepoint

        Raises
        ------
        InvalidArgumentError
            This job has started no query; or as for `pystate.savepoint`.
        CheckpointError
            The query has failed; or as for `pystate.savepoint`.
        NoEventTimeError
            `drain` is True, and no operator has event time.
        """
        target, earlier = _places("stop_with_savepoint", destination, previous)
        flag(copy, "stop_with_savepoint: copy")
        flag(drain, "stop_with_savepoint: drain")
        if self._stream_run is None:
            raise InvalidArgumentError(
                f"job {self.name!r} has started no query that could be stopped: savepoint takes a "
                "savepoint of its newest epoch"
            )
        check_destination(self._storage, target)
        save = partial(self._epochs.savepoint, target, earlier, copy=copy)
        return self._stream_run.stop_after(save, drain=drain)

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism of all operators, also while a query runs.

        It takes effect with the next epoch, which moves the state: a range takes its rows from
        tables in the memory of its host, as far as they are there, and from the checkpoint's files
        for the rest. No file is rewritten. The job's `parallelism` counts again when the job is
        made anew.

        Parameters
        ----------
        parallelism : int
            The new number of key-group ranges of each operator, at most `max_parallelism`.

        Raises
        ------
        InvalidArgumentError
            There are not that many key groups, or the job's `AutoRescale` has other bounds.
        """
        most = MAX_PARALLELISM
        self._epochs.rescale(integer(parallelism, "rescale: parallelism", least=1, most=most))

    def abandon_output(self, epoch: int) -> list[str]:
        """Give up, for good, the rows that an epoch has staged and that no sink can commit.

        It lets a job continue if the newest output cannot be committed, because the sink or the
        staged rows are gone. State and stream position are kept, so the rows are not computed
        again.

        Parameters
        ----------
        epoch : int
            The number of the newest epoch, required as a safeguard against mistakes.

        Returns
        -------
        list of str
            The sinks, by name or folder, whose rows are given up. If such a sink is registered, or
            was passed to this job, its commit was tried once more first.

        Raises
        ------
        InvalidArgumentError
            It is not the newest epoch, or its output is committed.
        InUseError
            This process runs a query on the checkpoint.
        """
        number = integer(epoch, "abandon_output: epoch", least=1)
        require_unused(self, but_for_own=False)
        if self.latest_epoch() is None:
            raise InvalidArgumentError(f"abandon_output: {self.checkpoint} has no epoch")
        return self._epochs.give_up_output(number)


def _places(
    call: str, destination: str | os.PathLike[str], previous: str | os.PathLike[str] | None
) -> tuple[CheckpointStorage, CheckpointStorage | None]:
    """Open the folder of a savepoint, and that of an earlier one."""
    target = open_storage(folder_path(destination, f"{call}: destination"))
    if previous is None:
        return target, None
    return target, open_storage(folder_path(previous, f"{call}: previous"))
