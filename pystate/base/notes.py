"""What exceptions carry beside their message: notes, and the exceptions that led to them.

Notes say in which call of a user's function an exception happened. Python keeps and prints them
from 3.11 on. Before, they are kept here in the same place, and an exception that leaves a worker
says them in its message.

What led to an exception is printed with it. It may be of another library, such as a database's,
whose messages have addresses with passwords.
"""

from __future__ import annotations

import sys
from typing import Any

from pystate.redaction import redacted

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
    copy: Exception = _named_like(error, Exception)("\n".join([str(error), *notes]))
    copy.__cause__, copy.__suppress_context__ = error.__cause__, True
    copy.__traceback__ = error.__traceback__
    return copy


def hide_in_causes(error: BaseException) -> None:
    """Exchange each exception that led to an error, and shows a secret, for one that does not.

    The one in its place has its name, and is of its class as far as ``except`` and ``isinstance``
    ask; what else it knew, such as a connection, it has not.
    """
    seen = {id(error)}
    while (led := _printed_before(error)) is not None and id(led) not in seen:
        seen.add(id(led))
        clean = _clean(led)
        if clean is not led and led is error.__cause__:
            error.__cause__ = clean
        elif clean is not led:
            error.__context__ = clean
        error = clean


def _printed_before(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _clean(error: BaseException) -> BaseException:
    text, notes = str(error), notes_of(error)
    if redacted(text) == text and all(redacted(note) == note for note in notes):
        return error
    text = redacted(text)
    try:
        kind = _named_like(error, type(error), __init__=_no_arguments, __str__=lambda _: text)
        copy: BaseException = kind.__new__(kind)
        copy.args = (text,)
    except Exception:
        # The class cannot be derived from, or not be made without its arguments.
        copy = _named_like(error, Exception)(text)
    copy.__cause__, copy.__context__ = error.__cause__, error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    copy.__traceback__ = error.__traceback__
    for note in notes:
        add_note(copy, redacted(note))
    return copy


def _named_like(error: BaseException, base: type[BaseException], **members: Any) -> Any:
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (base,), {**names, **members})


def _no_arguments(_: BaseException) -> None:
    """In place of the constructor of a class whose arguments are not known."""
