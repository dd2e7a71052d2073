"""The packages that jobs on Spark need beside pystate's own, and the errors if one is missing.

They are the extra ``spark`` of the distribution. They are no hard dependency, since a cluster has
its own pyspark. Packages are checked when they are needed, before anything is computed.

Thread safety: the functions keep no state.
"""

from __future__ import annotations

import sys

from pystate.base.installation import extra
from pystate.errors import MissingPackageError

#: The requirements of the extra ``spark``, by package.
REQUIREMENTS = {"pyspark": "pyspark>=4.1", "pandas": "pandas>=2.2,<3"}

_OLDEST_PYSPARK = (4, 1)


def require_pyspark() -> None:
    """Raise `MissingPackageError` unless a recent enough pyspark is installed."""
    try:
        import pyspark
    except ImportError as error:
        raise _missing("pystate.spark", "pyspark", f"there is none ({error})") from error
    version = str(pyspark.__version__)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_PYSPARK:
        raise _missing("pystate.spark", "pyspark", f"found is {version}")


def require_pandas(what: str) -> None:
    """Raise `MissingPackageError` unless pyspark accepts the installed pandas.

    Spark runs functions over Arrow data in the same way as those over pandas frames, and so
    requires pandas for both.
    """
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    try:
        require_minimum_pandas_version()
    except ImportError as error:
        found = getattr(sys.modules.get("pandas"), "__version__", None)
        raise _missing(
            f"{what}: Spark's mapInArrow, which runs operators over DataFrames,",
            "pandas",
            f"there is none ({error.__cause__})" if found is None else f"found is {found}",
        ) from error


def _missing(what: str, package: str, found: str) -> MissingPackageError:
    wanted = REQUIREMENTS if package == "pyspark" else {package: REQUIREMENTS[package]}
    install = " ".join(repr(requirement) for requirement in wanted.values())
    return MissingPackageError(
        f"{what} needs {REQUIREMENTS[package]}, and {found}: pip install {install} into the "
        f"environment of {sys.executable}, with a cluster pyspark of the version that the cluster "
        f"runs; or {extra('spark')}"
    )
