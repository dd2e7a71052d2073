"""The grammar of nested types in Spark's DDL: text -> a tree of words.

`pystate.types.state_type` gives the words their meaning. Pure functions, safe from any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from pystate.errors import DeclarationError

#: Levels of nesting.
MAX_DEPTH = 32

NESTED = ("struct", "array", "map")

_SPACE = re.compile(r"\s*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORD = re.compile(r"\w+")
_FIELD = re.compile(r"`((?:[^`]|``)+)`|(\w+)")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_SCALAR = re.compile(r"\w+(?:\s*\([^()<>]*\)|\s+collate\s+\w+)?", re.I)
_IGNORED = re.compile(
    r"\s+not\s+null\b|\s*\bcomment\s*(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", re.I
)


@dataclass(frozen=True, slots=True)
class Word:
    """A type as it is written."""

    #: ``struct``, ``array`` or ``map``; else a scalar's text with its parameters.
    text: str
    #: The fields of a struct; ``element`` of an array; ``key`` and ``value`` of a map.
    children: list[tuple[str, Word]] = field(default_factory=list)


def is_nested(text: str) -> bool:
    """Whether a text begins as a nested type does."""
    return re.match(rf"\s*({'|'.join(NESTED)})\s*<", text, re.I) is not None


def quoted(name: str) -> str:
    """A field's name in DDL: in backticks if it is not an identifier."""
    if _IDENTIFIER.fullmatch(name):
        return name
    return f"`{name.replace('`', '``')}`"


def path_parts(name: str) -> list[str]:
    """The parts of a path as SQL reads it; only the name itself if it is not a path.

    >>> path_parts("user.`e.mail`"), path_parts("`half")
    (['user', 'e.mail'], ['`half'])
    """
    parts: list[str] = []
    at = 0
    while part := _PART.match(name, at):
        parts.append(part[2] or part[1].replace("``", "`"))
        at = part.end()
        if at == len(name):
            return parts
        if name[at] != ".":
            break
        at += 1
    return [name]


def read_nested(text: str, what: str) -> Word:
    """Read one nested type; an error names the position at which it is not well formed.

    As in Spark, keywords may have any case, spaces may stand between any words, names may be in
    backticks, and the colon after a name is optional. ``NOT NULL`` and ``COMMENT '...'`` after a
    field have no effect.

    >>> read_nested("ARRAY<struct<`a b` INT NOT NULL>>", "x").children[0][1].children
    [('a b', Word(text='INT', children=[]))]
    """
    return _Reader(text, what).read()


class _Reader:
    """Recursive descent over one text."""

    def __init__(self, text: str, what: str) -> None:
        self.text = text
        self.what = what
        self.at = 0

    def read(self) -> Word:
        word = self.type(0)
        if self.peek():
            self.fail("the end")
        return word

    def type(self, depth: int) -> Word:
        self.peek()
        start = self.at
        word = _WORD.match(self.text, start)
        kind = word[0].lower() if word else ""
        self.at = word.end() if word else start
        if kind in NESTED and self.peek() == "<":
            if depth >= MAX_DEPTH:
                raise DeclarationError(f"{self.what}: more than {MAX_DEPTH} levels of nesting")
            self.at += 1
            children = self.fields(depth) if kind == "struct" else self.parameters(kind, depth)
            self.take(">")
            return Word(kind, children)
        scalar = _SCALAR.match(self.text, start)
        if scalar is None:
            self.fail("a type")
        self.at = scalar.end()
        return Word(scalar[0])

    def parameters(self, kind: str, depth: int) -> list[tuple[str, Word]]:
        if kind == "array":
            return [("element", self.type(depth + 1))]
        key = self.type(depth + 1)
        self.take(",")
        return [("key", key), ("value", self.type(depth + 1))]

    def fields(self, depth: int) -> list[tuple[str, Word]]:
        fields: list[tuple[str, Word]] = []
        if self.peek() == ">":
            return fields
        while True:
            self.peek()
            name = _FIELD.match(self.text, self.at)
            if name is None:
                self.fail("a field's name")
            self.at = name.end()
            if self.peek() == ":":
                self.at += 1
            type_ = self.type(depth + 1)
            while ignored := _IGNORED.match(self.text, self.at):
                self.at = ignored.end()
            fields.append((name[2] or name[1].replace("``", "`"), type_))
            if self.peek() != ",":
                return fields
            self.at += 1

    def peek(self) -> str:
        """The next character that is not a space; "" at the end."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def take(self, wanted: str) -> None:
        if self.peek() != wanted:
            self.fail(repr(wanted))
        self.at += 1

    def fail(self, wanted: str) -> NoReturn:
        raise DeclarationError(
            f"{self.what}: {self.text!r:.200}: expected {wanted} at character {self.at}"
        )
