"""The public header of the core, in all its parts, says what each of its functions returns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "csrc"
WHOLE = (CORE / "pystate.h").read_text(encoding="utf-8")
PARTS = re.findall(r'^#include "(interface/\w+\.h)"', WHOLE, re.M)
HEADER = WHOLE + "".join((CORE / name).read_text(encoding="utf-8") for name in PARTS)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
STATUS = re.compile(r"\bPST_[A-Z_]+\b")


def enumerators() -> list[str]:
    body = re.search(r"typedef enum pst_status \{(.*?)\}", HEADER, re.S)
    assert body is not None
    return re.findall(r"^\s*(PST_[A-Z_]+) = \d+,", body[1], re.M)


STATUSES = set(enumerators())


@dataclass(frozen=True)
class Function:
    """A function that returns a status, with what is said of it."""

    name: str
    own: str  # the comment before it, or before the functions that it stands together with
    section: str  # what its section says of all that are in it


def functions() -> list[Function]:
    """Every function of the header that returns a status.

    A comment is of all functions after it, up to the next comment or empty line. One that begins
    with "Statuses" is of the section, which begins with a ruled line.
    """
    found = []
    own = section = ""
    for part in re.split(r"(/\*.*?\*/|\n\n)", HEADER, flags=re.S):
        if part == "\n\n":
            own = ""
        elif part.startswith("/* ----"):
            own = section = ""
        elif part.startswith("/* Statuses"):
            section += part
        elif part.startswith("/*"):
            own = part
        else:
            for name in re.findall(r"^pst_status\s+(pst_\w+)\(", part, re.M):
                found.append(Function(name, own, section))
    return found


FUNCTIONS = functions()


def named(text: str) -> set[str]:
    return set(STATUS.findall(text)) & STATUSES


def test_every_part_is_read() -> None:
    there = [path.relative_to(CORE).as_posix() for path in CORE.glob("interface/*")]
    assert sorted(PARTS) == sorted(there)


def test_every_function_is_read() -> None:
    bare = COMMENT.sub("", HEADER)
    assert [f.name for f in FUNCTIONS] == re.findall(r"\bpst_status\s+(pst_\w+)\(", bare)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
def test_a_function_names_its_statuses(function: Function) -> None:
    said = named(function.own) | named(function.section)
    assert said, f"{function.name} says no status, nor does its section"


def test_every_status_that_is_named_exists() -> None:
    """In comments as in declarations: what is not a status is some other name of the header."""
    bare = COMMENT.sub("", HEADER)
    known = set(re.findall(r"\bPST_[A-Z0-9_]+\b", bare))
    for comment in COMMENT.findall(HEADER):
        unknown = set(re.findall(r"\bPST_[A-Z0-9_]+\b", comment)) - known
        assert not unknown, f"{sorted(unknown)} in {comment[:60]!r}"


def test_every_status_is_of_some_function() -> None:
    said = {status for f in FUNCTIONS for status in named(f.own) | named(f.section)}
    said |= named(HEADER[: HEADER.index("*/")])
    assert STATUSES - {"PST_OK"} == said - {"PST_OK"}


def test_what_a_function_returns_itself_is_named() -> None:
    """Statuses that stand in the body of a function of the header, or of one that it hands on to.

    What its callees find out is not looked at.
    """
    memory = {"PST_NO_MEMORY", "PST_LIMIT", "PST_NO_SPACE", "PST_IO", "PST_TOO_LARGE"}
    sources = "\n".join(COMMENT.sub("", p.read_text()) for p in sorted(CORE.glob("*/*.c")))
    missing = {}
    for f in FUNCTIONS:
        body = re.search(rf"^pst_status {f.name}\([^;{{]*\{{\n(.*?)^}}", sources, re.S | re.M)
        if body is None:
            continue
        text = re.sub(r"[=!]= PST_\w+", "", body[1])
        said = named(f.own) | named(f.section)
        if re.search(r"\bmemory\b", f.own + f.section, re.I):
            said |= memory
        returned = {s for line in re.findall(r"return ([^;]*);", text) for s in named(line)}
        if left := returned - said - {"PST_OK"}:
            missing[f.name] = sorted(left)
    assert not missing
