"""Who may know whom: the layers of the package, read from its folders and imports.

Their order stands in CONTRIBUTING.md; what is imported for type checkers counts as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pystate"


def entries() -> list[set[str]]:
    """The rows of CONTRIBUTING's table of the package, lowest layer first: names in `pystate/`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `pystate/([^|]+)\|", text, re.M)
    return [{re.sub(r"(\.py|/)$", "", n) for n in re.split(r"[`\s]+", row) if n} for row in rows]


ROWS = entries()


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a folder's `__init__` by the folder's."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
#: They export what is below them, and belong to no layer.
FACES = {"pystate", "pystate.spark", "pystate.testing"}


def imports(path: Path, *, typing: bool = True) -> Iterator[str]:
    """Absolute names of everything that a file imports: at its top, lazily, for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in guarded and not typing:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{name.name}" for name in node.names)


@cache
def used(name: str) -> frozenset[str]:
    """Modules of the package that a module imports, without the faces."""
    found = set()
    for imported in imports(MODULES[name]):
        while imported not in MODULES and "." in imported:
            imported = imported.rpartition(".")[0]
        found.add(imported)
    return frozenset(found & set(MODULES)) - FACES - {name}


def entry(name: str) -> str:
    """The file or folder of `pystate/` that a module lies in."""
    return name.split(".")[1]


def row_of(name: str) -> int:
    [row] = [number for number, names in enumerate(ROWS) if entry(name) in names]
    return row


def circles(arrows: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Who reaches himself, with all whom he meets on the way back."""
    reached = {}
    for start in arrows:
        todo, seen = list(arrows[start]), set()
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += arrows.get(at, ())
        reached[start] = seen
    return [{n for n in reached[s] if s in reached.get(n, ())} for s in arrows if s in reached[s]]


INNER = sorted(set(MODULES) - FACES)


def test_the_table_names_all_and_only_what_is_there() -> None:
    listed = [name for names in ROWS for name in names]
    assert len(listed) == len(set(listed)), listed
    assert set(listed) == {entry(name) for name in MODULES if name != "pystate"}


def test_rooms_and_floors_are_few() -> None:
    rooms = {entry(name) for name in MODULES if name != "pystate"} - {"__main__"}
    assert len(rooms) <= 19 and len(ROWS) <= 11
    assert len([room for room in rooms if not (PACKAGE / room).is_dir()]) <= 3


@pytest.mark.parametrize("name", INNER)
def test_a_module_uses_only_the_layers_below(name: str) -> None:
    for other in used(name):
        assert row_of(other) <= row_of(name), f"{name} imports {other}"


def test_no_circle_of_folders() -> None:
    arrows: dict[str, set[str]] = {entry(name): set() for name in INNER}
    for name in INNER:
        arrows[entry(name)] |= {entry(other) for other in used(name)} - {entry(name)}
    assert circles(arrows) == []


def test_no_circle_of_modules() -> None:
    assert circles({name: used(name) for name in INNER}) == []


def test_the_folders_of_spark_are_layers() -> None:
    """Each taken as one, it is above some parts of `pystate.spark` and below others, never both."""

    def part(name: str) -> str:
        return ".".join(name.split(".")[:3])

    names = [name for name in INNER if entry(name) == "spark"]
    arrows: dict[str, set[str]] = {part(name): set() for name in names}
    for name in names:
        arrows[part(name)] |= {part(other) for other in used(name)} - {part(name)}
    assert circles(arrows) == []
    order = re.findall(
        r"^\* (.+?):", (PACKAGE / "spark/__init__.py").read_text(encoding="utf-8"), re.M
    )
    rank = {
        f"pystate.spark.{name}": number
        for number, row in enumerate(order)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert set(rank) == set(arrows)
    for name, below in arrows.items():
        assert all(rank[other] <= rank[name] for other in below & set(rank)), name


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}, {"b", "c"}]


def test_only_the_spark_layer_imports_pyspark() -> None:
    for name, path in MODULES.items():
        if name != "pystate" and entry(name) in ("spark", "examples"):
            continue
        roots = {imported.split(".")[0] for imported in imports(path, typing=False)}
        assert not roots & {"pyspark", "py4j"}, path


def test_only_core_knows_the_header() -> None:
    folder = PACKAGE / "_core"
    for path in [*folder.glob("*.pyx"), *folder.glob("*.pxi"), *folder.glob("*.pxd")]:
        text = path.read_text(encoding="utf-8")
        headers = set(re.findall(r'cdef extern from "([^"]+)"', text))
        wanted = {"pystate.h"} if path.stem == "cpystate" else {"Python.h", "pthread.h"}
        assert headers <= wanted, path
        for name in re.findall(r"^\s*(?:from|c?import)\s+(pystate[.\w]*)", text, re.M):
            known = {"pystate", "pystate._core.cpystate"}
            if path.stem in ("calls", "ported"):
                known |= {"pystate._core.core", "pystate._core.new_row"}
            assert name in known, (path, name)
        for names in re.findall(r"^\s*from pystate import (.+)$", text, re.M):
            assert names == "errors", path


def test_files_are_short() -> None:
    """A file is one concept, whole; one that takes more than a thousand lines is several."""
    kinds = ("*.py", "*.pyx", "*.pxi", "*.pxd", "*.pyi", "*.c", "*.h")
    files = [
        path
        for folder in ("pystate", "csrc", "bench")
        for kind in kinds
        for path in (ROOT / folder).rglob(kind)
        if not {"tests", "build"} & set(path.relative_to(ROOT).parts) and path.name != "core.c"
    ]
    assert len(files) > 200
    lengths = {path.relative_to(ROOT): path.read_bytes().count(b"\n") for path in files}
    assert not {path: n for path, n in lengths.items() if n > 1000}


# -- importing


def test_importing_loads_no_pyspark_and_starts_no_thread() -> None:
    script = (
        "import sys, threading\n"
        "import os\n"
        "before = len(os.listdir('/proc/self/task')) if os.path.isdir('/proc/self/task') else 0\n"
        "import pyarrow, pyarrow.compute, numpy\n"
        "loaded = len(os.listdir('/proc/self/task')) if before else 0\n"
        "import pystate\n"
        "heavy = ('pyspark', 'py4j', 'pandas', 'duckdb')\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in heavy]\n"
        "assert not bad, bad\n"
        "assert not any(m.startswith('pystate.spark') for m in sys.modules)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert not before or len(os.listdir('/proc/self/task')) == loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_a_task_imports_no_driver() -> None:
    """What its worker would wait for: Spark's workers are forked anew after each minute at rest."""
    script = (
        "import sys\n"
        "import pystate.spark.tasks.worker, pystate.spark.tasks.range_task\n"
        "driver = {'pandas', 'pystate.testing', 'pystate.spark.job'}\n"
        "driver |= {'pystate.epochs.coordinator'}\n"
        "assert not driver & {*sys.modules}, driver & {*sys.modules}\n"
        "from pystate.spark import *\n"
        "assert Job.__module__ == 'pystate.spark.job' and 'pystate.spark.job' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
