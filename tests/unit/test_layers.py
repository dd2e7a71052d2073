"""Who may know whom: the layers of the package and of the core, read from their imports.

A new module goes into the layer that it belongs to below; a new arrow between layers is a change
of the architecture.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pystate"
CORE = ROOT / "csrc"

#: Layer -> its modules, and the layers that it may use beside itself.
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "errors": ({"arguments", "errors", "markup"}, set()),
    "core": ({"_core"}, {"errors"}),
    "declarations": (
        {
            "accumulators",
            "aggregates",
            "aggregators",
            "arrays",
            "columns",
            "context",
            "ddl",
            "declarations",
            "durations",
            "elements",
            "folds",
            "functions",
            "habits",
            "handles",
            "keys",
            "nested",
            "sketches",
            "stored",
            "tables",
            "ttl",
            "types",
        },
        {"core", "errors"},
    ),
    "files": ({"files"}, {"core", "declarations", "errors"}),
    "storage": (
        {
            "document",
            "history",
            "host",
            "janitor",
            "jobfile",
            "manifest",
            "marks",
            "parts",
            "refs",
            "runs",
            "storage",
        },
        {"errors"},
    ),
    "backend": (
        {
            "backend",
            "backend_files",
            "backend_rows",
            "backend_table",
            "backend_time",
            "registry",
            "snapshots",
            "timers",
        },
        {"core", "declarations", "errors", "files", "storage"},
    ),
    "rows": (
        {"event_time", "output", "output_nested", "rows", "yielded"},
        {"declarations", "errors"},
    ),
    "runtime": ({"calls", "drain", "runtime"}, {"backend", "declarations", "errors", "rows"}),
    "testing": (
        {"faults", "feeding", "ranges", "testing", "trial"},
        {"backend", "declarations", "errors", "rows", "runtime"},
    ),
    "housekeeping": ({"maintenance", "rescale", "retention"}, {"errors", "files", "storage"}),
    "coordinator": (
        {
            "clock",
            "coordinator",
            "epoch",
            "evaluation",
            "evolution",
            "ownership",
            "rivals",
            "settling",
            "succession",
        },
        {"errors", "housekeeping", "storage"},
    ),
    "live state": (
        {"attach", "embedded", "inspection", "planned", "upkeep"},
        {"backend", "declarations", "errors", "files", "housekeeping", "storage"},
    ),
}

CORE_LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "public": ({"pystate"}, set()),
    "memory, coding, hash": (
        {
            "budget",
            "checksum",
            "coding",
            "element",
            "hash",
            "host",
            "layout",
            "lock",
            "mem",
            "schema",
            "scratch",
            "status",
            "store",
            "siphash",
            "xxh64",
        },
        {"public"},
    ),
    "accumulators": ({"aggregate", "sketch"}, {"memory, coding, hash", "public"}),
    "table": (
        {
            "accumulate",
            "alloc",
            "arena",
            "batch",
            "batch_elements",
            "batch_maps",
            "changed",
            "collections",
            "elements",
            "epoch",
            "huge",
            "evacuate",
            "index",
            "key",
            "list",
            "list_pack",
            "ops",
            "reader",
            "sealed",
            "sealed_elements",
            "sealed_write",
            "single",
            "single_elements",
            "slots",
            "span",
            "table",
            "timer_move",
            "timers",
            "tree",
            "tree_move",
            "tree_node",
            "tree_remove",
            "tree_walk",
            "tree_write",
            "ttl",
            "ttl_elements",
            "undo",
            "value",
        },
        {"accumulators", "memory, coding, hash", "public"},
    ),
    "sst": (
        {
            "record",
            "sst_block",
            "sst_build",
            "sst_format",
            "sst_reader",
            "sst_shape",
            "sst_writer",
        },
        {"memory, coding, hash", "public"},
    ),
    "merge": ({"load", "merge"}, {"memory, coding, hash", "public", "sst", "table"}),
}


def layer_of(module: str, layers: dict[str, tuple[set[str], set[str]]]) -> str:
    found = [name for name, (modules, _) in layers.items() if module in modules]
    assert len(found) == 1, f"{module} is in {found or 'no layer'}: see the top of this file"
    return found[0]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything that a file imports, lazily too, but for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        and isinstance(block.test, ast.Name)
        and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def modules_used(path: Path) -> set[str]:
    """Modules of the package, by their first part, that a file imports."""
    known = {p.stem for p in PACKAGE.glob("*.py")} | {"_core", "spark", "examples"}
    used = {name.split(".")[1] for name in imports(path) if name.startswith("pystate.")}
    return used & known


MODULES = sorted(p for p in PACKAGE.glob("*.py") if p.stem not in ("__init__", "__main__", "cli"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_a_module_uses_only_the_layers_below(path: Path) -> None:
    own = layer_of(path.stem, LAYERS)
    allowed = LAYERS[own][1] | {own}
    for used in modules_used(path) - {path.stem}:
        assert used not in ("spark", "examples"), f"{path.stem} imports pystate.{used}"
        assert layer_of(used, LAYERS) in allowed, f"{path.stem} ({own}) imports {used}"


def test_the_layers_have_no_cycle() -> None:
    for layers in (LAYERS, CORE_LAYERS):
        done: set[str] = set()
        while len(done) < len(layers):
            ready = {name for name, (_, uses) in layers.items() if uses <= done} - done
            assert ready, f"a cycle among {sorted(set(layers) - done)}"
            done |= ready


def test_every_listed_module_exists_and_none_twice() -> None:
    listed = [m for modules, _ in LAYERS.values() for m in modules]
    assert len(listed) == len(set(listed))
    assert set(listed) - {"_core"} == {p.stem for p in MODULES}


def test_the_coordinator_never_reaches_live_state() -> None:
    reached, todo = set(), {"coordinator"}
    while todo:
        module = todo.pop()
        reached.add(module)
        path = PACKAGE / f"{module}.py"
        if path.exists():
            todo |= modules_used(path) - reached
    assert not reached & {"attach", "backend", "embedded", "snapshots"}


def test_only_the_spark_layer_imports_pyspark() -> None:
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        if parts[0] in ("spark", "examples"):
            continue
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & {"pyspark", "py4j"}, path


def test_spark_does_not_know_the_examples() -> None:
    for path in (PACKAGE / "spark").rglob("*.py"):
        assert "examples" not in modules_used(path), path


def test_only_core_knows_the_header() -> None:
    for path in [*PACKAGE.glob("*.pyx"), *PACKAGE.glob("*.pxi"), *PACKAGE.glob("*.pxd")]:
        text = path.read_text(encoding="utf-8")
        headers = set(re.findall(r'cdef extern from "([^"]+)"', text))
        wanted = {"pystate.h"} if path.stem == "_cpystate" else {"Python.h", "pthread.h"}
        assert headers <= wanted, path
        for name in re.findall(r"^\s*(?:from|c?import)\s+(pystate[.\w]*)", text, re.M):
            assert name in ("pystate", "pystate._cpystate"), (path, name)
        for names in re.findall(r"^\s*from pystate import (.+)$", text, re.M):
            assert names == "errors", path


# -- the core


def includes(path: Path) -> tuple[set[str], set[str]]:
    text = path.read_text(encoding="utf-8")
    own = set(re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M))
    system = set(re.findall(r"^\s*#\s*include\s+<([^>]+)>", text, re.M))
    return own, system


C_FILES = sorted([*CORE.glob("*.c"), *CORE.glob("*.h")])


@pytest.mark.parametrize("path", C_FILES, ids=lambda p: p.name)
def test_a_c_file_includes_only_the_layers_below(path: Path) -> None:
    own = layer_of(path.stem, CORE_LAYERS)
    allowed = CORE_LAYERS[own][1] | {own}
    for name in includes(path)[0]:
        assert layer_of(Path(name).stem, CORE_LAYERS) in allowed, f"{path.name} includes {name}"


@pytest.mark.parametrize("path", C_FILES, ids=lambda p: p.name)
def test_no_c_file_knows_python(path: Path) -> None:
    own, system = includes(path)
    assert not {n for n in own | system if "ython" in n or "numpy" in n or "lz4" in n}


def test_the_public_header_stands_alone() -> None:
    assert includes(CORE / "pystate.h") == (set(), {"stddef.h", "stdint.h"})


# -- importing


def test_importing_loads_no_pyspark_and_starts_no_thread() -> None:
    script = (
        "import sys, threading\n"
        "import os\n"
        "before = len(os.listdir('/proc/self/task')) if os.path.isdir('/proc/self/task') else 0\n"
        "import pyarrow, pyarrow.compute, numpy\n"
        "loaded = len(os.listdir('/proc/self/task')) if before else 0\n"
        "import pystate\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j', 'pandas')]\n"
        "assert not bad, bad\n"
        "assert not any(m.startswith('pystate.spark') for m in sys.modules)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert not before or len(os.listdir('/proc/self/task')) == loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
