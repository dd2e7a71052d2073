"""Builds `pystate._core.core`: the core under its own strict flags, the Cython wrapper under none.

``PYSTATE_SANITIZE=address,undefined`` or ``PYSTATE_SANITIZE=thread`` instruments both.
``PYSTATE_WERROR=0`` lets warnings of an unknown compiler pass.
"""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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
    """Compiles `csrc` into objects of their own and links them into the extension."""

    def build_extension(self, ext: Extension) -> None:
        """Compile what changed, then build the extension around it."""
        sanitize = sanitize_flags()
        kind = "-".join(["core", *(flag.split("=")[-1] for flag in sanitize[:1])])
        werror = [] if os.environ.get("PYSTATE_WERROR") == "0" else ["-Werror"]
        flags = CORE_FLAGS + WARNINGS + werror + sanitize
        headers = [path.stat().st_mtime_ns for path in core_files("*.h")]
        objects = []
        for source in core_files("*.c"):
            folder = str(Path(self.build_temp) / kind)
            [name] = self.compiler.object_filenames([str(source)], output_dir=folder)
            objects.append(name)
            newest = max([source.stat().st_mtime_ns, *headers])
            if self.force or not os.path.exists(name) or os.stat(name).st_mtime_ns < newest:
                self.compiler.compile(
                    [str(source)], output_dir=folder, include_dirs=["csrc"], extra_postargs=flags
                )
        ext.extra_objects = objects
        ext.extra_compile_args = WRAPPER_FLAGS + sanitize
        ext.extra_link_args = sanitize
        ext.depends = [*ext.depends, *objects]
        # The module's name does not tell which flags it was built with.
        stamp = Path(self.build_temp) / "kind"
        self.force = self.force or not stamp.exists() or stamp.read_text() != kind
        super().build_extension(ext)
        stamp.write_text(kind)


if __name__ == "__main__":
    extension = Extension(
        "pystate._core.core",
        ["pystate/_core/core.pyx"],
        include_dirs=["csrc"],
        depends=["csrc/pystate.h", *map(str, core_files("interface/*.h"))],
    )
    setup(
        ext_modules=cythonize([extension], build_dir="build/cython"),
        cmdclass={"build_ext": BuildCore},
    )
