"""Names that texts and editors show: those of tests exist, and modules offer their interface."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pystate as ps
from pystate import spark, testing
from pystate.examples import __main__ as examples
from pystate.operators import functions
from tests.guide import ROOT, blocks

_NAME = re.compile(r"(?:\b(test_\w+)::)?\b(test_\w+)")


def python_files() -> Iterator[tuple[Path, str, ast.Module]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text("utf-8")
        yield path, text, ast.parse(text)


def test_every_test_that_is_named_exists() -> None:
    """In docstrings and comments of tests, in the core's texts, and in CONTRIBUTING."""
    modules: dict[str, set[str]] = {}
    texts = {path: path.read_text("utf-8") for path in (ROOT / "csrc").glob("*.md")}
    texts[ROOT / "CONTRIBUTING.md"] = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for path, text, tree in python_files():
        nodes = list(ast.walk(tree))
        found = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        modules.setdefault(path.stem, set()).update(found)
        documented = [
            ast.get_docstring(node) or ""
            for node in nodes
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        ]
        texts[path] = "\n".join([*documented, *re.findall(r"(?m)^\s*#.*$", text)])
    for path in (ROOT / "csrc" / "tests").glob("*.c"):
        modules[path.stem] = set(re.findall(r"\btest_\w+", path.read_text("utf-8")))
    for path in (ROOT / "bench").rglob("*.py"):
        modules.setdefault(path.stem, set())
    tests = set().union(*modules.values())
    assert len(tests) > 1000
    gone = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path, text in texts.items()
        for found in _NAME.finditer(text)
        if found[2] != "test_x"  # stands for any
        and (found[2] not in modules[found[1]] if found[1] else found[2] not in tests | {*modules})
    ]
    assert not gone


def test_a_module_offers_its_interface_and_no_more() -> None:
    for module in (ps, spark, testing):
        offered = {name for name in dir(module) if not name.startswith("__")}
        assert offered == set(module.__all__)
        modules = {n for n in offered if isinstance(getattr(module, n), types.ModuleType)}
        assert modules == ({"errors", "testing"} if module is ps else set())
        assert {"__name__", "__all__"} <= set(dir(module))
    # They are still there for those who import them.
    assert functions.__name__ == "pystate.operators.functions"


def test_the_examples_are_listed_without_what_they_need() -> None:
    there = {p.stem for p in (ROOT / "pystate/examples").glob("*.py") if p.stem[0] != "_"}
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['rich'] = None\n"
        "import runpy; runpy.run_module('pystate.examples', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = dict(line.strip().split(maxsplit=1) for line in done.stdout.splitlines()[2:])
    assert listed.keys() == there == examples.summaries().keys()
    assert all(line.endswith(".") and len(line) > 20 for line in listed.values())
    readme = (ROOT / "README.md").read_text("utf-8")
    assert not [name for name in there if f"`{name}" not in readme]


def test_contexts_are_annotated_wherever_a_function_is_shown() -> None:
    """So that an editor completes `ctx.`; the type is that of the base class's method."""
    shown: dict[str, str] = {
        f"docs/{path.name}": "\n".join(block.text for block in blocks(path.name))
        for path in (ROOT / "docs").glob("*.md")
        if "from pyflink" not in path.read_text("utf-8")
    }
    readme = (ROOT / "README.md").read_text("utf-8")
    shown["README.md"] = "\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL))
    for path in (ROOT / "pystate/examples").glob("*.py"):
        shown[f"examples/{path.name}"] = path.read_text("utf-8")
    found = 0
    for where, text in shown.items():
        for cls in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef)):
            base = (
                getattr(ps, ast.unparse(cls.bases[0]).removeprefix("ps."), None)
                if cls.bases
                else None
            )
            for method in (n for n in cls.body if isinstance(n, ast.FunctionDef)):
                for argument in method.args.args:
                    if argument.arg != "ctx":
                        continue
                    said = argument.annotation and ast.unparse(argument.annotation)
                    what = f"{where}: {cls.name}.{method.name}"
                    assert said in {
                        "ps.RuntimeContext",
                        "ps.InstanceContext",
                        "ps.WindowContext",
                    }, what
                    if base is not None and hasattr(base, method.name):
                        declared = inspect.signature(getattr(base, method.name)).parameters["ctx"]
                        assert said == f"ps.{declared.annotation}", what
                    found += 1
    assert found > 40
    for path in (ROOT / "pystate").rglob("*.py"):
        bare = re.findall(r"^ *\.\.\. +def .*\bctx\).*", path.read_text("utf-8"), re.MULTILINE)
        assert not bare, path


def test_the_glossary_is_one_page_of_the_words_that_are_used() -> None:
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    entries = re.findall(r"^(\*\*.*?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    words = [word for entry in entries for word in re.findall(r"\*\*(.+?)\*\*", entry)]
    assert len(words) == len(set(words)) and len(text.splitlines()) <= 120
    wanted = "Epoch, Range, Key group, Checkpoint, Savepoint, uid, Watermark, Manifest, Operator"
    assert {*wanted.split(", ")} <= {*words}
    # Each is explained at once: in at most three sentences.
    assert not [entry for entry in entries if len(re.findall(r"[.](?=\s|$)", entry)) > 3]


def test_the_words_of_the_code_are_few_and_used() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("## Words")[2].partition("## House rules")[0]
    words = [
        word for row in re.findall(r"^\| ([a-z ,]+) \|", table, re.M) for word in row.split(", ")
    ]
    words.remove("word")
    assert len(words) == len(set(words)) and 15 < len(words) <= 25
    used: set[str] = set()
    for path in (ROOT / "pystate").rglob("*.py"):
        names = re.findall(r"\w+", path.read_text("utf-8"))
        used.update(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_") for name in names)
    names = {word: word.replace(" ", "_") for word in words}
    assert not [word for word, name in names.items() if not {name, f"{name}s"} & used]
