"""Small JSON files with a checksum.

A document is one line of JSON and one line with the SHA-256 of everything before it::

    {"format_version":1,"kind":"manifest",...}
    sha256:3f5a...

The form of the checksum line is the same in every format version, so that damage can be
distinguished from a later version. Thread safety: functions without state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pystate.errors import CorruptFileError, NewerFormatError

_PREFIX = b"sha256:"
Value = TypeVar("Value")
_TAIL_SIZE = len(_PREFIX) + 64 + 1


def encode_document(kind: str, format_version: int, fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document; equal fields give equal bytes.

    `TypeError` or `ValueError` if a field cannot be written as JSON.
    """
    content = {"kind": kind, "format_version": format_version, **fields}
    line = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    body = line.encode("ascii") + b"\n"
    return body + _PREFIX + hashlib.sha256(body).hexdigest().encode("ascii") + b"\n"


def decode_document(kind: str, format_version: int, data: bytes, path: str) -> Fields:
    """Verify and parse a document of a kind, of at most that version; errors name `path`.

    `CorruptFileError` if the bytes contradict the checksum, or are no such document;
    `NewerFormatError` if it is intact, but of a later version.
    """
    body, tail = data[:-_TAIL_SIZE], data[-_TAIL_SIZE:]
    digest = hashlib.sha256(body).hexdigest().encode("ascii")
    if not body or tail != _PREFIX + digest + b"\n":
        raise CorruptFileError(f"{path}: the checksum contradicts the content ({len(data)} bytes)")
    try:
        content = json.loads(body)
    except ValueError as error:
        raise CorruptFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path}: not a JSON object")
    fields = Fields(content, path)
    if fields.text("kind") != kind:
        raise CorruptFileError(f"{path}: not a {kind}")
    version = fields.integer("format_version")
    if version > format_version:
        raise NewerFormatError(
            f"{path}: format version {version} was written by a later version of pystate; "
            f"this one reads up to {format_version}: upgrade pystate"
        )
    fields.version = version
    return fields


def is_torn(data: bytes) -> bool:
    """Whether a document's end is missing, as in a file that was not synced when a machine stopped.

    Some file systems show zeros in place of what was not written.
    """
    tail = data.rstrip(b"\0")[-_TAIL_SIZE:]
    return not (tail.startswith(_PREFIX) and tail.endswith(b"\n"))


class Fields:
    """Typed access to a JSON object; unexpected content raises a `CorruptFileError`.

    Call `finish` when all fields have been taken: a remaining field is unexpected, too. `version`
    is the document's format version, and 0 in objects inside it.
    """

    __slots__ = ("_content", "_path", "version")

    def __init__(self, content: Any, path: str) -> None:
        if not isinstance(content, dict):
            raise CorruptFileError(f"{path}: expected an object, found {content!r:.60}")
        self._content: dict[str, Any] = dict(content)
        self._path = path
        self.version = 0

    def _take(self, name: str) -> Any:
        try:
            return self._content.pop(name)
        except KeyError:
            raise CorruptFileError(f"{self._path}: field {name!r} is missing") from None

    def _wrong(self, name: str, wanted: str, value: Any) -> CorruptFileError:
        return CorruptFileError(f"{self._path}: field {name!r} is not {wanted}: {value!r:.60}")

    def _take_as(self, name: str, kind: type[Value], wanted: str) -> Value:
        value = self._take(name)
        if not isinstance(value, kind):
            raise self._wrong(name, wanted, value)
        return value

    def integer(self, name: str, *, least: int = 0, most: int | None = None) -> int:
        """Take a whole number of at least `least`, and at most `most`."""
        value = self._take(name)
        if type(value) is not int or value < least or (most is not None and value > most):
            bound = f">= {least}" if most is None else f"from {least} to {most}"
            raise self._wrong(name, f"a whole number {bound}", value)
        return value

    def optional_integer(self, name: str) -> int | None:
        """Take a whole number of any sign, or null."""
        value = self._take(name)
        if value is not None and type(value) is not int:
            raise self._wrong(name, "a whole number or null", value)
        return value

    def boolean(self, name: str) -> bool:
        """Take true or false."""
        return self._take_as(name, bool, "true or false")

    def text(self, name: str) -> str:
        """Take a string."""
        return self._take_as(name, str, "a string")

    def optional_text(self, name: str) -> str | None:
        """Take a string or null."""
        value = self._take(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string or null", value)
        return value

    def hexadecimal(self, name: str, digits: int) -> str:
        """Take a string of exactly `digits` lower-case hexadecimal digits."""
        value = self._take(name)
        if (
            not isinstance(value, str)
            or len(value) != digits
            or not set(value) <= set("0123456789abcdef")
        ):
            raise self._wrong(name, f"{digits} hexadecimal digits", value)
        return value

    def items(self, name: str) -> list[Any]:
        """Take a list."""
        return self._take_as(name, list, "a list")

    def mapping(self, name: str) -> dict[str, Any]:
        """Take an object."""
        return self._take_as(name, dict, "an object")

    def value(self, name: str) -> Any:
        """Take a field of any type, null included."""
        return self._take(name)

    def finish(self) -> None:
        """Refuse fields that were not taken."""
        if self._content:
            names = ", ".join(sorted(self._content))
            raise CorruptFileError(f"{self._path}: unknown fields: {names}")
