"""Fresh Python environments that hold what the distribution's metadata names, and nothing else.

Packages are links to those of the environment that runs the tests, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Collection, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NAME = "pystate-spark"


def requirements(extras: Sequence[str] = ()) -> set[str]:
    """The distributions that pip would install beside `NAME` itself."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    todo = [(NAME, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found.add(name)
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                other = canonicalize_name(requirement.name)
                todo += [(other, part) for part in ("", *requirement.extras)]
    return found - {NAME}


def clean_environment() -> dict[str, str]:
    """The variables of this process, without those that lead to other packages."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV"))
        or name == "SPARK_SUBMIT_OPTS"  # of the JVM alone
    }
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1"}


class Environment:
    """A virtual environment.

    Parameters
    ----------
    folder : Path
        Made.
    extras : sequence of str
        Of the distribution.
    without : collection of str
        Distributions to leave out all the same, perhaps the one under test.
    """

    def __init__(
        self, folder: Path, extras: Sequence[str] = (), without: Collection[str] = ()
    ) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.folder = folder
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self._packages = folder / "lib" / version / "site-packages"
        for name in requirements(extras) - set(without):
            self._link(distribution(name))
        if NAME in without:
            return
        (self._packages / "pystate").symlink_to(ROOT / "pystate")
        # A wheel that was built in the checkout leaves a second record of the distribution there.
        for found in Distribution.discover(name=NAME):
            for file in found.files or ():
                if file.parts[0].endswith(".dist-info") and file.name == "METADATA":
                    info = self._packages / file.parts[0]
                    if not info.is_symlink():
                        info.symlink_to(Path(str(file.locate())).parent)

    def _link(self, found: Distribution) -> None:
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = self._packages / top
            # Several distributions may be parts of one package, as those of sphinxcontrib are.
            if not link.is_symlink():
                link.symlink_to(Path(str(found.locate_file(top))))

    def run(
        self, *arguments: str, cwd: Path, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run its Python outside of the checkout."""
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=cwd,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
