"""Who may know whom in the core, read from its folders and includes.

The order of the folders, what each knows and which modules lie in it stand in csrc/IMPL.md. A
module is a header with the source of the same name, or one of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "csrc"
FILES = sorted(path for path in CORE.rglob("*.[ch]") if path.relative_to(CORE).parts[0] != "tests")
MODULES = {path.relative_to(CORE).with_suffix("").as_posix() for path in FILES} - {"pystate"}
FOLDERS = {module.split("/")[0] for module in MODULES}


def table(first: str) -> list[list[str]]:
    """Return the cells of IMPL.md's table under that head."""
    lines = (CORE / "IMPL.md").read_text(encoding="utf-8").split("\n")
    rows = []
    for line in lines[lines.index(first) + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


#: Folder -> the folders that it says it knows; the lowest first.
KNOWN = {names(row[0])[0]: set(names(row[2])) for row in table("| folder | what | knows |")}
LISTED = [
    f"{names(row[0])[0]}/{module}"
    for row in table("| folder | modules | what |")
    for module in names(row[1])
]


def includes(path: Path) -> tuple[set[str], set[str]]:
    text = path.read_text(encoding="utf-8")
    own = set(re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M))
    system = set(re.findall(r"^\s*#\s*include\s+<([^>]+)>", text, re.M))
    return own, system


def code(path: Path) -> str:
    """The file's text without comments and, in a header, without declarations of functions."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(encoding="utf-8"), flags=re.S)
    declaration = r"^(?!static)[A-Za-z_][\w *]*\([^;{}]*\);"
    return re.sub(declaration, "", text, flags=re.M) if path.suffix == ".h" else text


CODE = {path: code(path) for path in FILES if path.parent.name not in ("csrc", "interface")}


def definitions() -> dict[str, str]:
    """Function or constant that other files can name -> its module."""
    outside = r"^(?!.*\bstatic\b|typedef)[A-Za-z_][\w *]*?\b(pst_\w+)(?:\([^;{}]*\) \{| = )"
    return {
        name: path.relative_to(CORE).with_suffix("").as_posix()
        for path, text in CODE.items()
        if path.suffix == ".c"
        for name in re.findall(outside, text, re.M)
    }


def arrows() -> dict[str, set[str]]:
    """Module -> the modules that its header or its source includes, or of which it names what they
    define. Who calls a function through another one's header, or pystate.h, knows its module, too.
    """
    arrow: dict[str, set[str]] = {module: set() for module in MODULES}
    defined = definitions()
    for path in FILES:
        module = path.relative_to(CORE).with_suffix("").as_posix()
        if module == "pystate":
            continue
        included = {name.removesuffix(".h") for name in includes(path)[0]} - {"pystate"}
        words = set(re.findall(r"\bpst_\w+", CODE.get(path, "")))
        named = {defined[word] for word in words & defined.keys()}
        arrow[module] |= (included | named) - {module}
    return arrow


ARROWS = arrows()


def circles(graph: Mapping[str, Iterable[str]]) -> set[str]:
    """Names that are left when those that use nothing that is left have been taken away."""
    left = {name: set(used) for name, used in graph.items()}
    while free := {name for name, used in left.items() if not used & left.keys()}:
        left = {name: used for name, used in left.items() if name not in free}
    return set(left)


def test_every_folder_has_its_place() -> None:
    assert list(KNOWN) == [names(row[0])[0] for row in table("| folder | what | knows |")]
    assert set(KNOWN) == FOLDERS


def test_every_module_is_listed_once() -> None:
    assert sorted(LISTED) == sorted(MODULES)


def test_all_files_lie_in_folders() -> None:
    assert [path.name for path in CORE.glob("*.[ch]")] == ["pystate.h"]
    assert {len(path.relative_to(CORE).parts) for path in FILES} == {1, 2}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CORE).as_posix())
def test_includes_are_written_from_the_root(path: Path) -> None:
    for name in includes(path)[0]:
        assert (CORE / name).is_file(), f"{path.name} includes {name}"


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_arrows_between_folders_point_down(folder: str) -> None:
    order = list(KNOWN)
    used = {
        target: module
        for module, targets in ARROWS.items()
        for target in sorted(targets)
        if module.split("/")[0] == folder
    }
    for target, module in used.items():
        below = target.split("/")[0]
        assert order.index(below) <= order.index(folder), f"{module} knows {target}"
    assert {target.split("/")[0] for target in used} - {folder} == KNOWN[folder]


def test_no_modules_include_or_call_each_other() -> None:
    assert circles(ARROWS) == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CORE).as_posix())
def test_no_c_file_knows_python(path: Path) -> None:
    own, system = includes(path)
    assert not {n for n in own | system if "ython" in n or "numpy" in n or "lz4" in n}


def test_the_public_header_stands_alone() -> None:
    own, system = includes(CORE / "pystate.h")
    assert {name.split("/")[0] for name in own} == {"interface"} and system == set()
    for name in own:
        others, system = includes(CORE / name)
        assert others < own and system == {"stddef.h", "stdint.h"}
