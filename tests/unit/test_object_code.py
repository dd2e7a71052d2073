"""What must be in the core's object code, and what a compiler may think is without effect."""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "csrc"

#: What a prefetch is called by the assemblers of the machines that have one.
INSTRUCTIONS = {"x86_64": "prefetch", "AMD64": "prefetch", "aarch64": "prfm"}


def shipped_flags() -> list[str]:
    """The core's flags, as setup.py has them."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CORE_FLAGS":
            flags: list[str] = ast.literal_eval(node.value)
            return flags
    raise AssertionError("setup.py names no CORE_FLAGS")


def written() -> set[tuple[str, int]]:
    """File and line of every prefetch that the core asks for."""
    return {
        (path.name, number)
        for path in CORE.glob("*.[ch]")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "__builtin_prefetch(" in line
    }


def prefetching() -> list[Path]:
    """The sources that prefetch, by themselves or by an inlined function of a header."""
    names = {"__builtin_prefetch"}
    for header in CORE.glob("*.h"):
        text = header.read_text(encoding="utf-8")
        if "__builtin_prefetch(" in text:
            names |= set(re.findall(r"^(?:static inline|PST_PREFETCH) .*?(\w+)\(", text, re.M))
    word = re.compile(rf"\b(?:{'|'.join(sorted(names))})\(")
    return sorted(p for p in CORE.glob("*.c") if word.search(p.read_text(encoding="utf-8")))


def compiled(source: Path, folder: Path, instruction: str) -> set[tuple[str, int]]:
    """File and line of every prefetch in the object code of a source."""
    made = folder / f"{source.stem}.o"
    compiler = os.environ.get("CC") or "gcc"
    subprocess.run(
        [*compiler.split(), *shipped_flags(), "-g", f"-I{CORE}", "-c", source, "-o", made],
        check=True,
    )
    listing = subprocess.run(
        ["objdump", "--disassemble", "--line-numbers", "--no-show-raw-insn", made],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found, place = set(), ("", 0)
    for line in listing.splitlines():
        if at := re.match(r"(\S+):(\d+)(?: \(discriminator \d+\))?$", line):
            place = Path(at[1]).name, int(at[2])
        elif re.search(rf"\t{instruction}", line):
            found.add(place)
    return found


def test_every_prefetch_is_an_instruction(tmp_path: Path) -> None:
    """A compiler takes the call of a function of prefetches alone for one without effect.

    It then leaves it out, silently, unless the function was inlined before.
    """
    instruction = INSTRUCTIONS.get(platform.machine())
    if instruction is None:
        pytest.skip(f"it is not known what {platform.machine()} calls a prefetch")
    if not shutil.which("objdump"):
        pytest.skip("objdump is not here: it comes with the package binutils")
    if not shutil.which((os.environ.get("CC") or "gcc").split()[0]):
        pytest.skip("there is no C compiler here: the package gcc has one")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda p: compiled(p, tmp_path, instruction), prefetching()))
    missing = written() - set().union(*objects)
    assert not missing, f"asked for and not in the object code: {sorted(missing)}"
