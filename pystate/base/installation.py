"""How this copy of pystate was installed, and by what name the rest of it is to be had.

The distribution is called pystate-spark and the package pystate, which on PyPI is another project.
So no message sends anyone to an index for it: it names the wheel or the checkout that this version
came from.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from urllib.parse import unquote, urlsplit

from pystate.errors import MissingPackageError

_NAME = "pystate-spark"
_NAMESAKE = "pystate"
_PACKAGES = ("site-packages", "dist-packages")


def extra(name: str) -> str:
    """How to install an extra of the version that is here, as the end of a message.

    Its packages are named if it is not known where this version came from, as on a cluster to
    which an archive was sent.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    into = f"into the environment of {sys.executable}"
    try:
        package = distribution(_NAME)
    except PackageNotFoundError:
        return f"install the packages of the extra {name!r} of {_NAME} {into}"
    origin = _origin(
        package.read_text("direct_url.json"), package.read_text("WHEEL"), package.version
    )
    return f"pip install '{origin}[{name}]' {into}: the extra {name!r} of {_NAME} {package.version}"


def _origin(direct_url: str | None, wheel: str | None, version: str) -> str:
    """The path that pip installed from, or the name of the wheel."""
    if direct_url is not None:
        url = urlsplit(str(json.loads(direct_url).get("url", "")))
        if url.scheme == "file" and os.path.exists(unquote(url.path)):
            return unquote(url.path)
    tags = [line[5:] for line in (wheel or "").splitlines() if line.startswith("Tag: ")]
    return f"pystate_spark-{version}-{tags[0] if tags else '*'}.whl"


def require_own_package() -> None:
    """Raise an error unless the module `pystate` is this project's."""
    package = sys.modules[_NAMESAKE]
    if not hasattr(package, "PystateError"):
        raise MissingPackageError(
            f"{package.__file__} is not a file of {_NAME}: another project, which is called "
            f"{_NAMESAKE} on PyPI, was installed over it. {_repair()}"
        )


def _repair() -> str:
    return (
        f"Uninstall that project (pip uninstall {_NAMESAKE}, with {sys.executable}), and then "
        f"install {_NAME} again, of which that removes files (--force-reinstall --no-deps)"
    )


def warn_of_namesake() -> None:
    """Warn if another project's distribution `pystate` is installed over this package or beside it.

    Only names in folders of packages are read, so that an import takes no longer for it.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [
        os.path.dirname(package),
        *(path for path in sys.path if os.path.basename(path) in _PACKAGES),
    ]
    for folder in dict.fromkeys(folders):
        try:
            names = os.listdir(folder)
        except OSError:  # an archive, or a folder that is not there
            continue
        for name in names:
            if name.startswith(f"{_NAMESAKE}-") and name.endswith((".dist-info", ".egg-info")):
                _warn(os.path.join(folder, name), os.path.realpath(package))


def _warn(info: str, package: str) -> None:
    from importlib.metadata import Distribution

    namesake = Distribution.at(info)
    places = {os.path.realpath(str(namesake.locate_file(file))) for file in namesake.files or ()}
    over = sorted(place for place in places if place.startswith(package + os.sep))
    where = (
        f"over this package: {len(over)} of its files are in {package}, "
        f"{os.path.basename(over[0])} among them"
        if over
        else f"beside this package, in {os.path.dirname(info)}: which of them is imported depends "
        "on the order of sys.path"
    )
    warnings.warn(
        f"another project, which is called {_NAMESAKE} on PyPI ({namesake.version} is here), was "
        f"installed {where}. {_repair()}",
        RuntimeWarning,
        stacklevel=3,
    )
