"""Every exception that pystate raises.

All derive from :class:`PystateError`; each also derives from the builtin that a caller would
expect, so that ``except ValueError`` keeps working. A message says what went wrong, where (uid,
state, key group, file), and what to do next.
"""

from __future__ import annotations

from typing import Any

from pystate.redaction import redacted

__all__ = [
    "AddressSpaceError",
    "AlreadyPublishedError",
    "CheckpointError",
    "ClosedError",
    "CorruptFileError",
    "DeclarationError",
    "EvaluationError",
    "FencedError",
    "FunctionError",
    "InUseError",
    "InvalidArgumentError",
    "InvalidRowError",
    "LineageError",
    "LoopNotEmptyError",
    "MemoryLimitError",
    "MissingPackageError",
    "MissingRequirementError",
    "NewerFormatError",
    "NoCurrentKeyError",
    "NoEventTimeError",
    "NoSpaceError",
    "NotReachedError",
    "PoisonedError",
    "PystateError",
    "QueryError",
    "QueryTimeoutError",
    "ReadOnlyStateError",
    "ReplayError",
    "SchemaError",
    "ServerError",
    "SinkError",
    "SnapshotTooOldError",
    "StaleKeyBatchError",
    "StateLostError",
    "StateOverflowError",
    "SwappedFileError",
    "SystemCallError",
    "TableBusyError",
    "TableMismatchError",
    "TableMovedError",
    "UnclaimedStateError",
    "UnknownStateError",
    "WrongKeyGroupError",
    "WrongTypeError",
]


class PystateError(Exception):
    """Base of all errors that pystate raises on purpose.

    No message has a secret: what is made into one, whoever wrote it, is redacted here.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*(redacted(arg) if isinstance(arg, str) else arg for arg in args))


class InvalidArgumentError(PystateError, ValueError):
    """An argument has a value that the function does not take."""


class QueryError(InvalidArgumentError):
    """A SQL statement is wrong, or is none that may run."""


class QueryTimeoutError(PystateError, TimeoutError):
    """A SQL statement took longer than it may."""


class InvalidRowError(InvalidArgumentError):
    """An operator cannot process a row, and the job says that such rows fail."""


class DeclarationError(PystateError, TypeError):
    """A stateful function's class or a state's declaration is not valid."""


class NoEventTimeError(DeclarationError):
    """Something waits for a watermark, but no column gives the event time that would move it."""


class WrongTypeError(PystateError, TypeError):
    """A value's or a column's type is not the declared one and cannot be cast without loss."""


class NoCurrentKeyError(PystateError, RuntimeError):
    """Keyed state was used without a current key, or the current key changed during the call."""


class ReadOnlyStateError(PystateError, RuntimeError):
    """A broadcast state was changed where it can only be read."""


class ClosedError(PystateError, ValueError):
    """A handle was used after it was closed, before it was attached, or in a forked child."""


class InUseError(PystateError, RuntimeError):
    """Something was used, closed or started again while it is in use.

    It is a handle that another thread or an enclosing call uses, or a checkpoint on which this
    process runs a query.
    """


class SystemCallError(PystateError, OSError):
    """A system call failed; `errno` says how."""


class StateOverflowError(PystateError, OverflowError):
    """An integer or decimal state overflowed; the epoch can only be rolled back.

    Attributes
    ----------
    row : int or None
        Of an operation on a batch, the row whose key's state has overflowed, if it is known.
    """

    row: int | None = None


class PoisonedError(PystateError, RuntimeError):
    """A write failed half way: the epoch must be rolled back before anything else."""


class WrongKeyGroupError(PystateError, ValueError):
    """A key reached a table whose key-group range does not contain it."""


class StaleKeyBatchError(PystateError, RuntimeError):
    """A `KeyBatch`, or an iterator over rows, was used after a seal or rollback that ended it."""


class SnapshotTooOldError(PystateError, RuntimeError):
    """A reader's epoch has left the undo window."""


class MemoryLimitError(PystateError, MemoryError):
    """A memory limit (a table's, or the host's) would be passed, or memory was refused.

    Attributes
    ----------
    keys : int or None
        Where the rows of a batch of keys do not fit in memory together: how many of its first keys
        would.
    """

    keys: int | None = None


class MissingRequirementError(PystateError, RuntimeError):
    """Something outside pystate is missing; the message is one line that says what to install."""


class MissingPackageError(MissingRequirementError, ImportError):
    """A Python package is missing, or too old; the message says what to install, and where."""


class AddressSpaceError(PystateError, MemoryError):
    """The address range of a table could not be reserved."""


class NoSpaceError(PystateError, OSError):
    """A file system is full."""


class TableMovedError(NoSpaceError):
    """A shared table outgrew its file system within an epoch.

    It lives elsewhere from now on, and the epoch is computed again.
    """


class TableBusyError(PystateError, TimeoutError):
    """Another process held a table's lock for longer than the caller would wait.

    A reader gets it where an undo took longer than the reader waits, or the process that undid was
    killed. The next process that opens the table for writing finishes the undo.
    """


class TableMismatchError(PystateError, RuntimeError):
    """A shared table belongs to another schema, boot, application or format."""


class FunctionError(PystateError, RuntimeError):
    """A user's function raised an exception, which is the cause of this error.

    The message says which exception, in which function of which operator, at which key, and in
    which line of which file.
    """


class LineageError(PystateError, RuntimeError):
    """A table or a file does not descend from the base that the manifest names."""


class SchemaError(PystateError, TypeError):
    """State in a checkpoint has another type than its declaration."""


class UnclaimedStateError(SchemaError):
    """A checkpoint holds state that no declaration claims."""


class UnknownStateError(InvalidArgumentError, KeyError):
    """No state of that name was declared."""

    # A KeyError shows its argument as it would be written in code.
    __str__ = Exception.__str__


class CheckpointError(PystateError, RuntimeError):
    """A checkpoint could not be read, written, completed or found."""


class CorruptFileError(CheckpointError, OSError):
    """A file's bytes contradict its checksums or bounds."""


class SwappedFileError(CorruptFileError):
    """A file is intact, but is another one than its name says."""


class NewerFormatError(CheckpointError):
    """A file was written by a later version in a format that this one cannot read."""


class ReplayError(PystateError, AssertionError):
    """A function yielded something else when the same epoch was computed a second time."""


class LoopNotEmptyError(PystateError, RuntimeError):
    """Rows are in flight on a loop after as many rounds as were allowed; none of them is lost."""


class FencedError(CheckpointError):
    """Another driver, or a later attempt, owns the checkpoint now."""


class NotReachedError(CheckpointError, TimeoutError):
    """An epoch that a reader waits for was not published in time."""


class ServerError(PystateError, OSError):
    """A server of state cannot be reached, or refuses a request for want of room or of a token."""


class EvaluationError(CheckpointError):
    """An epoch's reports were missing, repeated or contradictory, so that nothing was published."""


class StateLostError(CheckpointError):
    """State that was sealed after the last checkpoint is gone.

    The batches since then are computed again, from the checkpoint.
    """


class SinkError(CheckpointError):
    """A user's sink failed, or no sink is there to commit what was staged.

    If the commit failed, the epoch is published and its rows wait; the message says for which sink.
    """


class AlreadyPublishedError(CheckpointError, FileExistsError):
    """A file of this name was published before; what it holds is unchanged."""
