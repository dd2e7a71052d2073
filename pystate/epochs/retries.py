"""Repeats an epoch's work until an evaluation counts.

Thread safety: functions without state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pystate.base.notes import add_note
from pystate.epochs.epoch import Epoch, RepeatableError
from pystate.errors import EvaluationError, PystateError
from pystate.redaction import logger

_LOG = logger("pystate.epochs.retries")
_NUMBER = re.compile(r"[0-9a-f-]*[0-9][0-9a-f-]*")


def evaluate_epoch(
    epoch: Epoch,
    evaluate: Callable[[Epoch], Sequence[Any] | None],
    max_evaluations: int,
    retryable: Callable[[Exception], bool] | None = None,
) -> Sequence[Any]:
    """Evaluate an epoch until its reports are complete, each time anew from its base."""
    previous: str | None = None
    discarded: str | None = None
    failed = 0
    put_right: set[str] = set()
    while True:
        try:
            sinks = evaluate(epoch) or ()
            epoch.collect()
            return sinks
        except Exception as error:
            repeated = isinstance(error, RepeatableError)
            if not repeated and not (retryable or _is_retryable)(error):
                if discarded is not None:
                    add_note(error, f"the epoch's evaluation before was discarded: {discarded}")
                raise
            signature = _signature(error)
            again = signature == previous
            if isinstance(error, RepeatableError) and error.is_progress and not again:
                failed += signature in put_right
                put_right.add(signature)
            else:
                failed += 1
            if again or failed >= max_evaluations:
                if not isinstance(error, RepeatableError):
                    raise
                raise EvaluationError(
                    f"{error}. This happened in "
                    f"{len(epoch.discarded_evaluations) + 1} evaluations: "
                    f"{error.hint}"
                ) from error
            previous, discarded = signature, _brief(error)
            _LOG.warning(
                "epoch %d: evaluation %s is discarded and runs again: %s",
                epoch.number,
                epoch.evaluation_id,
                discarded,
            )
        epoch.restart()


def _is_retryable(error: Exception) -> bool:
    return not isinstance(error, PystateError)


def _brief(error: Exception) -> str:
    """The first line of an error and its continuation, without Java's trace, which comes after."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Py4J names the Java exception in its second line, which begins with a colon.
    first = " ".join(lines[: 2 if len(lines) > 1 and lines[1].startswith(":") else 1])
    return f"{type(error).__qualname__}: {first}"


def _signature(error: Exception) -> str:
    """The part of an error that is the same if it happens again: no task numbers, ids or traces."""
    if isinstance(error, RepeatableError):
        return error.kind
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__qualname__}: {_NUMBER.sub('#', first_line)}"
