"""The checks before a build: one line that says what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "sed", "head", "dirname", "rm", "make", "touch", "env")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with the everyday tools, and neither Python nor compiler nor Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"no {tool} on this machine")
        (folder / tool).symlink_to(found)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make` reads before it builds anything."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", ".ci/preflight"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "setup.py").touch()
    return folder


def script(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


def run(
    command: list[str], path: Path, cwd: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": str(path), "LC_ALL": "C", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def preflight(path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run([str(ROOT / ".ci/preflight"), *arguments], path, **env)


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """The only line that pystate prints; make may add its own."""
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("pystate: ")
    assert "install" in lines[0]
    return lines[0]


def test_no_python(path: Path) -> None:
    assert "Python 3.10 or newer is needed (none found)" in refusal(preflight(path, "python"))


def test_old_python(path: Path) -> None:
    script(path, "python3", 'case "$2" in *exit*) exit 1;; *) echo 3.8.10;; esac')
    assert "python3 is 3.8.10" in refusal(preflight(path, "python"))


def test_an_old_python3_beside_a_newer_one(path: Path) -> None:
    script(path, "python3", "exit 1")
    (path / "python3.12").symlink_to(sys.executable)
    result = preflight(path, "python")
    assert (result.returncode, result.stdout) == (0, "python3.12\n")


def test_the_named_python_is_taken_or_refused(path: Path) -> None:
    assert preflight(path, "python", PYTHON=sys.executable).stdout.strip() == sys.executable
    assert "no-such-python" in refusal(preflight(path, "python", PYTHON="no-such-python"))


def test_python_without_venv(path: Path) -> None:
    script(path, "python3", 'case "$2" in *venv*) exit 1;; esac')
    assert "python3-venv" in refusal(preflight(path, "python"))


def test_no_compiler(path: Path) -> None:
    assert "a C compiler is needed" in refusal(preflight(path, "compiler", sys.executable))


def test_no_python_headers(path: Path, tmp_path: Path) -> None:
    script(path, "cc", "exit 0")
    script(path, "headless", f"echo {tmp_path}/nowhere")
    assert "python3-dev" in refusal(preflight(path, "compiler", "headless"))


def test_no_c_headers(path: Path) -> None:
    script(path, "gcc", "exit 1")
    assert "libc6-dev" in refusal(preflight(path, "compiler", sys.executable))


def test_the_named_compiler_is_taken(path: Path) -> None:
    script(path, "cc", "exit 1")
    script(path, "my-cc", "exit 0")
    assert preflight(path, "compiler", sys.executable, CC="my-cc").stdout == "my-cc\n"


def test_no_java(path: Path) -> None:
    assert "there is none" in refusal(preflight(path, "java"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('openjdk version "11.0.21" 2023-10-17', "11.0.21"),
        ('java version "1.8.0_392"', "1.8.0_392"),
    ],
)
def test_old_java(path: Path, line: str, found: str) -> None:
    script(path, "java", f"echo '{line}' >&2")
    assert f"java is {found}" in refusal(preflight(path, "java"))


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_java_from_java_home(path: Path, tmp_path: Path, version: str) -> None:
    script(path, "java", """echo 'java version "1.8.0_392"' >&2""")
    (tmp_path / "jdk/bin").mkdir(parents=True)
    script(tmp_path / "jdk/bin", "java", f"echo 'openjdk version \"{version}\"' >&2")
    result = preflight(path, "java", JAVA_HOME=str(tmp_path / "jdk"))
    assert (result.returncode, result.stderr) == (0, "")


def test_java_home_without_java_is_refused_as_spark_would(path: Path, tmp_path: Path) -> None:
    script(path, "java", """echo 'openjdk version "17.0.1"' >&2""")
    assert "JAVA_HOME" in refusal(preflight(path, "java", JAVA_HOME=str(tmp_path / "jdk")))


@pytest.mark.parametrize("target", ["demo", "test", "wheel", "bench-spark"])
def test_make_looks_for_java_before_it_builds(path: Path, checkout: Path, target: str) -> None:
    assert "Java 17" in refusal(run(["make", target], path, checkout))
    assert not (checkout / ".venv").exists()


def test_make_looks_for_a_compiler_before_it_builds(path: Path, checkout: Path) -> None:
    result = run(["make", "lint"], path, checkout, PYTHON=os.path.realpath(sys.executable))
    assert "a C compiler is needed" in refusal(result)
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("target", "extras"),
    [
        ("demo", "demo"),
        ("bench", "bench"),
        ("docs", "docs"),
        ("lint", "lint"),
        ("build", "demo,test,lint,bench,docs"),
    ],
)
def test_a_target_installs_what_it_needs_once(
    path: Path, checkout: Path, target: str, extras: str
) -> None:
    made = run(["make", "-n", target], path, checkout).stdout
    assert re.findall(r'-e "\.\[(.*)\]"', made) == [extras]
    stamps = [f".venv/.{extra}" for extra in extras.split(",")]
    assert f"touch {' '.join(stamps)}\n" in made
    (checkout / ".venv").mkdir()
    for stamp in (".venv/.base", ".venv/.built", *stamps):
        (checkout / stamp).touch()
    assert "install" not in run(["make", "-n", target], path, checkout).stdout


def test_make_alone_lists_the_targets(path: Path, checkout: Path) -> None:
    expand = shutil.which("expand")
    assert expand is not None
    (path / "expand").symlink_to(expand)
    result = run(["make"], path, checkout)
    assert result.returncode == 0
    for target in ("demo", "test", "wheel", "bench", "bench-spark", "lint", "clean", "help"):
        assert f"make {target} " in result.stdout


def test_other_pythons_are_found_wherever_they_are(path: Path, tmp_path: Path) -> None:
    """On the path and of pyenv; a shim that answers nothing, and .venv's own version, are not."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/pythons", folder / ".ci/pythons")
    tool = shutil.which("tr")
    assert tool is not None
    (path / "tr").symlink_to(tool)

    def python(place: Path, name: str, version: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        answers = f'case "$2" in *executable*) echo $0;; *) echo {version};; esac'
        script(place, name, answers if version else "exit 127")

    def pythons(*arguments: str) -> str:
        home = {"HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path / "pyenv")}
        result = run([str(folder / ".ci/pythons"), *arguments], path, folder, **home)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout.strip()

    python(folder / ".venv/bin", "python", "3.11")
    python(path, "python3.11", "3.11")
    python(path, "python3.10", "")
    python(path, "python3.9", "3.9")
    assert pythons() == "no other Python from 3.10 to 3.14 is on this machine: only 3.11 is tested"
    python(tmp_path / "pyenv/versions/3.10.13/bin", "python", "3.10")
    python(tmp_path / "pyenv/versions/3.8.1/bin", "python", "3.8")
    python(path, "python3.13", "3.13")
    assert pythons("list") == "3.10 3.13"


def test_wheels_are_built_for_each_python_that_is_supported() -> None:
    config = (ROOT / "pyproject.toml").read_text("utf-8")
    classified = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', config)
    [built] = re.findall(r"^\[tool\.cibuildwheel\]\nbuild = \[(.*)\]$", config, re.MULTILINE)
    assert re.findall(r'"cp3(\d+)-\*"', built) == classified == ["10", "11", "12", "13", "14"]
    assert 'repair-wheel-command = "auditwheel repair' in config
    workflow = (ROOT / ".github/workflows/check.yml").read_text("utf-8")
    assert "- run: .ci/run\n" in workflow and "pypa/cibuildwheel@" in workflow
    assert 'step sanitize "wheel pythons"\n' in (ROOT / ".ci/run").read_text("utf-8")
