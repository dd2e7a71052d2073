"""Runs that a job makes itself: the end of a stream, and the rounds of a loop.

An epoch that drains is a run whose key names the epoch before it. So it is computed only once, even
if the query is started again without new input. Rounds are epochs over a batch and what it leads
to, until nothing is in flight on a loop.

Thread safety: functions without state; the caller's thread runs the epochs.

Invariants
----------
1. A round is a run with a key of its own, which follows from the key of all rounds and its number.
   So a round that was published is never computed again, whenever the driver was killed.
2. A round is computed only if the one before it has left rows in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pystate.base.arguments import text
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError, LoopNotEmptyError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark.epochs.result import EpochResult

_DRAIN = "pystate drain after epoch "


def drains_a_stream(run_key: str | None) -> bool:
    """Whether a run key is that of an epoch that drains a stream."""
    return run_key is not None and run_key.startswith(_DRAIN)


def drain_key(storage: CheckpointStorage) -> str | None:
    """The run key of the epoch that drains a checkpoint; None if the checkpoint has no epoch.

    If the newest epoch has drained already, it is that epoch's key.
    """
    head = read_head(storage)
    if head is None:
        return None
    return head.run_key if drains_a_stream(head.run_key) else f"{_DRAIN}{head.epoch}"


def checked_run_key(run_key: str | None) -> str | None:
    """Return a user's run key, which may be None; refuse one of the keys made here."""
    if run_key is not None and drains_a_stream(text(run_key, "run_key")):
        raise InvalidArgumentError(
            f"run_key={run_key!r:.80}: run keys that begin like this are reserved for epochs "
            "that drain a stream: take another one, with drain=True if the run is to drain"
        )
    return run_key


def no_rows(like: DataFrame) -> DataFrame:
    """A frame of the same columns without rows, which Spark does not know to be empty.

    What it knows to be empty it removes from a plan, with the operators above it, or what is joined
    with it.
    """
    session = like.sparkSession
    return session.createDataFrame(session.sparkContext.emptyRDD(), like.schema)


def run_rounds(
    data: DataFrame,
    run_key: str | None,
    max_rounds: int,
    *,
    run: Callable[[DataFrame, str | None], EpochResult],
    is_done: Callable[[str], bool],
    in_flight: Callable[[bool], Mapping[str, int]],
    owner: str,
) -> list[EpochResult]:
    """Run rounds until no loop has a row in flight; `LoopNotEmptyError` after `max_rounds` of them.

    Only the first round has the input. `run_key` is that of all rounds together. `in_flight` gives
    the rows on each loop after the last round; its argument says whether that was just computed.
    """
    results: list[EpochResult] = []
    rows, key = data, _key(run_key, 0)
    while True:
        result = run(rows, key)
        results.append(result)
        key = _key(run_key, len(results))
        if len(results) == 1:
            rows = no_rows(data)
        if result.already_done and key is not None and is_done(key):
            continue
        left = {uid: count for uid, count in in_flight(not result.already_done).items() if count}
        if not left:
            return results
        if len(results) >= max_rounds:
            shown = ", ".join(f"{count} on {uid!r}" for uid, count in left.items())
            again = "with a larger max_rounds"
            if run_key is not None:
                again += f" and run_key={run_key!r:.80}"
            raise LoopNotEmptyError(
                f"{owner}: after {len(results)} rounds {sum(left.values())} rows are in flight: "
                f"{shown}. They are in the checkpoint, and nothing is lost: call run_until_empty "
                f"again {again} to go on; or look for rows that the pipeline feeds for ever"
            )


def _key(run_key: str | None, number: int) -> str | None:
    return None if run_key is None else f"{run_key}, round {number}"
