"""Errors as clients see them: a status, a class and a message, and nothing of the server's files.

Thread safety: functions without state; a `Veil` is immutable.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pystate import errors
from pystate.errors import PystateError
from pystate.processor.epochs import NotHeldError
from pystate.redaction import logger, redacted

_LOG = logger("pystate.serve")


class BusyError(PystateError, TimeoutError):
    """The server has no room, or no time, for a request now."""


class RequestError(errors.InvalidArgumentError):
    """A request that HTTP itself knows to be wrong, with its status."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


#: The statuses of errors, the first that fits.
_STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (NotHeldError, 404),
    (errors.NotReachedError, 404),
    (errors.UnknownStateError, 400),
    (errors.QueryTimeoutError, 408),
    (errors.InvalidArgumentError, 400),
    (errors.WrongTypeError, 400),
    (errors.SchemaError, 400),
    (errors.MissingRequirementError, 501),
    (errors.CorruptFileError, 500),
    (errors.NewerFormatError, 500),
    (errors.PystateError, 503),
    (TimeoutError, 503),
)
#: Not classes of `pystate.errors`, so that clients know the one that is.
_NAMES = {NotHeldError: "CheckpointError", RequestError: "InvalidArgumentError"}


def status_of(error: BaseException) -> int:
    """The status of an answer that tells of an error."""
    if isinstance(error, RequestError):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


class Veil:
    """Takes the places of checkpoints, and other folders of this host, out of messages."""

    def __init__(self, places: Mapping[str, str]) -> None:
        home = os.path.expanduser("~")
        folders = [tempfile.gettempdir(), sys.prefix, os.getcwd(), os.path.dirname(__file__), home]
        named = {folder: "..." for folder in folders if len(folder) > 1}
        for place, name in places.items():
            for spelling in _spellings(place):
                named[spelling] = name
        longest = sorted(named, key=len, reverse=True)
        self._named = named
        self._pattern = re.compile("|".join(map(re.escape, longest)) or r"(?!)")

    def over(self, text: str) -> str:
        """A text in one line that names no folder of this host."""
        text = " ".join(redacted(text).split())
        return self._pattern.sub(lambda found: self._named[found[0]], text)

    def problem(self, error: BaseException) -> tuple[int, dict[str, Any]]:
        """The status and the JSON form of an error."""
        status = status_of(error)
        if isinstance(error, PystateError):
            kind = next(
                _NAMES.get(each, each.__name__)
                for each in type(error).__mro__
                if each in _NAMES or each.__name__ in errors.__all__ or each is BusyError
            )
            message = str(error)
        else:
            # What it says is not known: it may name files, or be the work of a library.
            number = f"{id(error):x}"
            _LOG.error("request failed (%s): %s", number, error, exc_info=error)
            kind, message = "PystateError", f"the server failed; its log says more ({number})"
        if kind == "BusyError":
            kind = "TimeoutError"
        return status, {"error": {"type": kind, "message": self.over(message), "status": status}}


def phrase(status: int) -> str:
    """The words of a status."""
    return HTTPStatus(status).phrase


def _spellings(place: str) -> list[str]:
    """How messages may write the place of a checkpoint, or of a file in it."""
    if "://" in place and not place.startswith("file://"):
        return [place.rstrip("/"), place.partition("://")[2].rstrip("/")]
    path = place.removeprefix("file://")
    paths = {path, os.path.abspath(path), os.path.realpath(path)}
    return [p.rstrip("/") for p in paths if len(p.rstrip("/")) > 1 and "/" in p]
