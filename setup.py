"""Builds `pystate._core`: the core under its own strict flags, the Cython modules under none.

``PYSTATE_SANITIZE=address,undefined`` or ``PYSTATE_SANITIZE=thread`` instruments both.
``PYSTATE_WERROR=0`` lets warnings of an unknown compiler pass. What a build needs is looked for
before anything is made, so that an installer ends with one line and not with a log.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def missing() -> str | None:
    """What this machine lacks for a build, and what to do, in one line."""
    if sys.platform != "linux":
        return (
            f"it runs on Linux only, and this is {sys.platform}: its tables are in the shared "
            "memory of Linux; use a container, a virtual machine, or WSL on Windows"
        )
    if sys.byteorder != "little":
        return "it runs on little-endian machines only, since its files are little-endian"
    wanted = os.environ.get("CC")
    candidates = [wanted] if wanted else [sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    commands = [shlex.split(each) for each in candidates if each]
    found = next((command for command in commands if shutil.which(command[0])), None)
    if found is None:
        return (
            f"a C compiler is needed, and there is no {commands[0][0]}: install gcc or clang "
            "(Debian, Ubuntu: apt install build-essential) or name one by CC=..."
        )
    if not wanted and found is not commands[0]:
        os.environ["CC"] = shlex.join(found)
    include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(include, "Python.h")):
        return (
            f"the headers of Python are missing ({include}/Python.h): install them (Debian, "
            "Ubuntu: apt install python3-dev)"
        )
    done = subprocess.run(
        [*found, "-fsyntax-only", "-x", "c", "-"],
        input=b"#include <stdlib.h>\n#include <pthread.h>\n",
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        return (
            f"{found[0]} does not find the C library's headers: install them (Debian, Ubuntu: apt "
            "install libc6-dev)"
        )
    return None


if __name__ == "__main__" and (lacks := missing()) is not None:
    raise SystemExit(f"pystate-spark cannot be built here: {lacks}")

from Cython.Build import cythonize  # noqa: E402 (what is missing is said first)
from setuptools import Extension, setup  # noqa: E402
from setuptools.command.build import build  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402

# The extension that the core is linked into.
CORE = "pystate._core.core"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes"]
CORE_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O3", "-fvisibility=hidden"]
WRAPPER_FLAGS = ["-std=c11", "-O3", "-w", "-fvisibility=hidden"]


def sanitize_flags() -> list[str]:
    """Flags of the instrumented builds."""
    names = [name.strip() for name in os.environ.get("PYSTATE_SANITIZE", "").split(",")]
    names = [name for name in names if name]
    unknown = set(names) - {"address", "undefined", "thread"}
    if unknown:
        raise SystemExit(f"pystate: PYSTATE_SANITIZE does not know {', '.join(sorted(unknown))}")
    if not names:
        return []
    return [
        f"-fsanitize={','.join(names)}",
        "-fno-sanitize-recover=all",
        "-DPST_GROW_BY_PAGES",
        "-UNDEBUG",
        "-g",
        "-O1",
        "-fno-omit-frame-pointer",
    ]


def core_files(pattern: str) -> list[Path]:
    """Return the files of the core, in the folders that are its layers."""
    found = sorted(Path("csrc").rglob(pattern))
    return [path for path in found if path.parts[1] != "tests"]


class BuildCore(build_ext):
    """Compiles `csrc` and the wrappers side by side, and links them into the extensions."""

    def finalize_options(self) -> None:
        """Let an editable install find what `build_ext --inplace` has compiled, and leave it so."""
        super().finalize_options()
        if self.editable_mode:
            usual = build(self.distribution)
            usual.ensure_finalized()
            self.build_lib, self.build_temp = usual.build_platlib, usual.build_temp

    def build_extensions(self) -> None:
        """Compile what changed, a file for each core, and link."""
        sanitize = sanitize_flags()
        kind = "-".join(["core", *(flag.split("=")[-1] for flag in sanitize[:1])])
        werror = [] if os.environ.get("PYSTATE_WERROR") == "0" else ["-Werror"]
        flags = CORE_FLAGS + WARNINGS + werror + sanitize
        headers = [path.stat().st_mtime_ns for path in core_files("*.h")]
        folder = str(Path(self.build_temp) / kind)

        def compiled(source: Path, flags: list[str]) -> None:
            self.compiler.compile(
                [str(source)], output_dir=folder, include_dirs=["csrc"], extra_postargs=flags
            )

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            running = []
            for ext in self.extensions:
                objects = []
                # The wrappers first: the core's takes the longest.
                sources = [(Path(source), WRAPPER_FLAGS + sanitize) for source in ext.sources]
                if ext.name == CORE:
                    sources += [(path, flags) for path in core_files("*.c")]
                for source, own in sources:
                    [name] = self.compiler.object_filenames([str(source)], output_dir=folder)
                    objects.append(name)
                    newest = max([source.stat().st_mtime_ns, *headers])
                    if self.force or not os.path.exists(name) or os.stat(name).st_mtime_ns < newest:
                        running.append(pool.submit(compiled, source, own))
                ext.sources = []
                ext.extra_objects = objects
                ext.extra_link_args = sanitize
                ext.depends = [*ext.depends, *objects]
            for each in running:
                each.result()
        # The modules' names do not tell which flags they were built with.
        stamp = Path(self.build_temp) / "kind"
        self.force = self.force or not stamp.exists() or stamp.read_text() != kind
        super().build_extensions()
        stamp.write_text(kind)


if __name__ == "__main__":
    extensions = [
        Extension(
            f"pystate._core.{name}",
            [f"pystate/_core/{name}.pyx"],
            include_dirs=["csrc"],
            depends=["csrc/pystate.h", *map(str, core_files("interface/*.h"))],
        )
        for name in ("core", "calls", "ported")
    ]
    setup(
        # Its errors are printed all the same.
        ext_modules=cythonize(extensions, build_dir="build/cython", quiet=True),
        cmdclass={"build_ext": BuildCore},
    )
