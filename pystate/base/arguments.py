"""Users' arguments, checked where they arrive, with messages that say what to write."""

from __future__ import annotations

import difflib
import operator
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pystate.errors import InvalidArgumentError
from pystate.redaction import has_credentials, redacted, without_secrets

#: The one rule of datetimes without a time zone.
NO_INSTANT = (
    "a time without a time zone is no instant: attach the one that it is in "
    "(tzinfo=datetime.timezone.utc; astimezone() for the host's, which Spark's own rows are in)"
)


def integer(value: Any, what: str, *, least: int | None = None, most: int | None = None) -> int:
    """A whole number within inclusive bounds; a bool or a float is refused, too."""
    whole = None
    if not isinstance(value, bool):
        with suppress(TypeError):
            whole = operator.index(value)
    if whole is None:
        raise InvalidArgumentError(f"{what} is a whole number, not {shown(value)}")
    if (least is not None and whole < least) or (most is not None and whole > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise InvalidArgumentError(f"{what} is {whole}, and must be {bounds}")
    return whole


def duplicates(names: Iterable[Any]) -> list[Any]:
    """What is there more than once, in the order in which it first is."""
    return [name for name, count in Counter(names).items() if count > 1]


def flag(value: Any, what: str) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what} is True or False, not {shown(value)}")
    return value


def check_callback(value: object, what: str) -> None:
    """Refuse what is neither a function nor None."""
    if value is not None and not callable(value):
        raise InvalidArgumentError(f"{what} is a function, not {shown(value)}")


def text(value: Any, what: str, hint: str = "") -> str:
    """A string that is not empty, nor a secret: names are in manifests, logs and Spark's UI.

    The message ends with `hint`.
    """
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{what} is a string, not {shown(value)}{hint}")
    require_no_credentials(value, what)
    return value


def require_no_credentials(value: Any, what: str) -> None:
    """Refuse plain JSON for a manifest, which others read, if a string in it has credentials.

    The message begins with `what`, and does not show them.
    """
    if isinstance(value, str) and has_credentials(value):
        raise InvalidArgumentError(
            f"{what} contains credentials, and would be in every manifest: keep only the place "
            "there, and take credentials from the environment of each process"
        )
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            require_no_credentials(item, what)


def folder_path(value: Any, what: str) -> str:
    """A path, as a string that is not empty."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidArgumentError(f"{what} is the path of a folder, not {shown(value)}")
    return path


def checked_uid(uid: str | None) -> str:
    """Return the uid; without one, say why it matters."""
    if uid is not None and not isinstance(uid, str):
        raise InvalidArgumentError(
            f"uid is a string that names the operator, such as 'aircraft', not {shown(uid)}"
        )
    if not uid:
        raise InvalidArgumentError(
            "a stateful operator needs a uid, e.g. uid='aircraft': the checkpoint keeps its state "
            "under that name, and without one a later version of the job, with an operator more "
            "or in another order, could not tell whose state is whose"
        )
    require_no_credentials(uid, "uid")
    return uid


def choice(value: Any, what: str, choices: Iterable[str]) -> str:
    """A word out of a choice of words, which the message lists, suggesting the nearest."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise InvalidArgumentError(
            f"{what} is {' or '.join(map(repr, known))}, not {shown(value)}{nearest(value, known)}"
        )
    return value


def mapping(value: Any, what: str, example: str) -> Mapping[str, Any]:
    """A mapping whose keys are strings that are not empty; the message ends with an example."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{what} is a dict, not {shown(value)}: write {example}")
    for name in value:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(
                f"{what} has the key {name!r:.80}, which is no name: write {example}"
            )
    return value


def nearest(name: object, known: Iterable[str]) -> str:
    """The name that a misspelt one may stand for, as the end of a message; else nothing."""
    if not isinstance(name, str):
        return ""
    by_lower = {each.lower(): each for each in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, 1, 0.7)
    return f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""


def shown(value: object) -> str:
    """A value and its type, in one line of a message."""
    if value is None:
        return "None"
    module = type(value).__module__
    kind = type(value).__qualname__
    name = kind if module in ("builtins", "__main__") else f"{module}.{kind}"
    if isinstance(value, Mapping):
        value = without_secrets(value)
    return f"{shortened(' '.join(repr(value).split()))} of type {name}"


def shortened(line: str) -> str:
    """The line without secrets, cut to the length that a message has room for."""
    line = redacted(line)
    return line if len(line) <= 80 else line[:77] + "..."
