"""What the wrapper declares of the core is what the core's header says.

Cython believes a `.pxd`: an argument of another width, a missing status or a field of another type
compiles, and is wrong when it runs. So the declarations are written as C and compiled behind the
header. A function is declared once more, which C refuses where the two differ; a field's type is
compared; the values of an enumeration are those of a `switch`, which has to name them all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PXD = ROOT / "pystate" / "_core" / "cpystate.pxd"
CC = (os.environ.get("CC") or "gcc").split()
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Icsrc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]

pytestmark = pytest.mark.skipif(
    not shutil.which(CC[0]), reason="there is no C compiler here: the package gcc has one"
)


def statements(text: str) -> list[tuple[int, str]]:
    """Each declaration of the extern block in one line, with its depth in the block."""
    found: list[tuple[int, str]] = []
    block = text.split('cdef extern from "pystate.h" nogil:\n')[1]
    for line in block.split("\n"):
        line = line.split("#")[0].rstrip()
        if not line:
            continue
        if found and found[-1][1].count("(") > found[-1][1].count(")"):
            found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}"
        else:
            found.append(((len(line) - len(line.lstrip())) // 4, line.strip()))
    return found


def c_type(text: str) -> str:
    """A declaration in C's words."""
    text = re.sub(r"\bbint\b", "int", text)
    return re.sub(r" noexcept nogil$", "", text)


def named(declaration: str) -> tuple[str, str]:
    """The name that a field has in C, and its type."""
    declaration = c_type(declaration)
    if renamed := re.fullmatch(r'(.*?)\w+ "(\w+)"', declaration):
        return renamed[2], renamed[1]
    if function := re.fullmatch(r"(.*\(\*)(\w+)(\).*)", declaration):
        return function[2], function[1] + function[3]
    field = re.fullmatch(r"(.*?)(\w+)((?:\[\d+\])?)", declaration)
    assert field is not None, declaration
    return field[2], field[1] + field[3]


def same_type(expression: str, of: str, what: str) -> str:
    types = f"__typeof__({expression}), {of}"
    return f'_Static_assert(__builtin_types_compatible_p({types}), "{what}");'


def checks(text: str) -> Iterator[str]:
    """C that compiles where the header says the same."""
    within = ""
    cases: list[str] = []
    for depth, line in [*statements(text), (1, "")]:
        if depth > 1:
            kind, _, name = within.rpartition(" ")
            if line == "pass":
                yield f"typedef {name} *declared_{name};"
            elif kind == "ctypedef enum":
                cases.append(f"case {line}:")
            elif kind == "ctypedef struct":
                field, of = named(line)
                yield same_type(f"(({name} *)0)->{field}", of, f"{name}.{field}")
            else:
                yield f"enum {{ declared_{line} = {line} }};"
            continue
        if cases:
            name = within.split(" ")[-1]
            yield (
                f"int declared_{name}({name} it) "
                f"{{ switch (it) {{ {' '.join(cases)} return 1; }} return 0; }}"
            )
            cases = []
        within = line.removesuffix(":") if line.endswith(":") else ""
        if line.endswith(")"):
            function = re.match(r".*?(\w+)\(", line)
            assert function is not None, line
            yield f"typedef __typeof__({function[1]}) declared_{function[1]};"
            yield f"{c_type(line)};"
        elif line and not within:
            name, of = named(line)
            yield same_type(name, of, name)


def refusal(text: str) -> str:
    """What the compiler says against the declarations."""
    source = '#include "pystate.h"\n' + "\n".join(checks(text)) + "\n"
    done = subprocess.run(
        [*CC, *FLAGS, "-x", "c", "-"],
        cwd=ROOT,
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def test_the_declarations_are_those_of_the_header() -> None:
    assert refusal(PXD.read_text(encoding="utf-8")) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "pst_table_rollback(pst_table *t, int32_t back)",
            "pst_table_rollback(pst_table *t)",
            "rollback",
        ),
        ("pst_table *t, int32_t back)", "pst_table *t, int64_t back)", "pst_table_rollback"),
        ("pst_sealed_bytes(const", "pst_sealed_size(const", "pst_sealed_size"),
        ("int64_t pst_batch_length(", "int32_t pst_batch_length(", "pst_batch_length"),
        ("const pst_array *times)", "pst_array *times)", "pst_batch_timer_register"),
        ("        uint32_t row_size\n", "        uint64_t row_size\n", "pst_table_stats.row_size"),
        ("uint8_t boot_id[16]", "uint8_t boot_id[8]", "pst_identity.boot_id"),
        ("        int32_t key_group\n", "        int32_t group\n", "group"),
        ("int (*write)(void *ctx, const", "int (*write)(void *ctx,", "pst_io.write"),
        ("        PST_POISONED\n", "", "PST_POISONED"),
        ("        PST_EVENT\n", "        PST_EVENT\n        PST_CHANGED\n", "pst_domain"),
        ("        PST_MAX_FIXED\n", "        PST_MAX_FIELDS\n", "PST_MAX_FIELDS"),
        ("    int64_t PST_NO_TIME\n", "    int32_t PST_NO_TIME\n", "PST_NO_TIME"),
        ("    ctypedef struct pst_budget:\n", "    ctypedef struct pst_limit:\n", "pst_limit"),
    ],
)
def test_a_declaration_that_differs_is_refused(right: str, wrong: str, said: str) -> None:
    text = PXD.read_text(encoding="utf-8")
    assert right in text
    found = refusal(text.replace(right, wrong, 1))
    assert said in found
    assert "error" in found
