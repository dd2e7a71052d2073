"""Notes of exceptions, which say in which call of a user's function they happened.

Python keeps and prints them from 3.11 on. Before, they are kept here in the same place, and an
exception that leaves a worker says them in its message.

Thread safety: functions without state.
"""

from __future__ import annotations

import sys

__all__ = ["PRINTED", "add_note", "notes_of", "with_notes"]

#: Whether Python prints notes.
PRINTED = sys.version_info >= (3, 11)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception."""
    if PRINTED:
        error.add_note(note)
    else:
        error.__notes__ = [*notes_of(error), note]


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception."""
    notes: list[str] = getattr(error, "__notes__", [])
    return notes


def with_notes(error: Exception) -> Exception:
    """The exception; or, if Python does not print its notes, one of its name that says them.

    Spark reports the text that Python prints of an exception, and of its class no more than the
    name.
    """
    notes = notes_of(error)
    if PRINTED or not notes:
        return error
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    text = "\n".join([str(error), *notes])
    made: Exception = type(kind.__name__, (Exception,), names)(text)
    made.__cause__, made.__suppress_context__ = error.__cause__, True
    made.__traceback__ = error.__traceback__
    return made
